"""A net and its model of ONNX on the same inputs: the differences of their outputs, and the first layer that differs."""

from minicaffe.errors import DataError, DependencyError
from minicaffe.net.comparison import TOLERANCE, difference
from minicaffe.net.exporting import DISCONTINUOUS_TYPES, run_on, warn_of_discontinuity
from minicaffe.onnx.graph import onnx, value_info


def compare(net, model, inputs, preprocessing=None):
    """Run a net and its model on the same inputs; return the Difference of each output.

    Parameters
    ----------
    net : minicaffe.net.net.Net
    model : onnx.ModelProto
    inputs : dict of str to array_like
        Of the model, in the shapes of the net's inputs; the net gets the first after `preprocessing`.
    preprocessing : Preprocessing, optional

    Raises
    ------
    DataError
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape. If the first
        layer that differs is of `DISCONTINUOUS_TYPES`, the layers from it on are compared one by one instead, on equal bottoms.
    DependencyError
        Without onnxruntime.
    """
    inputs, _, wanted = run_on(net, inputs, preprocessing)
    names = [output.name for output in model.graph.output]
    found = [difference(name, wanted[name], value) for name, value in zip(names, run_model(model, inputs), strict=True)]
    if any(not one.relative <= TOLERANCE for one in found):
        node, one = first_difference(net, model, inputs, wanted)
        if node is not None and node.type in DISCONTINUOUS_TYPES:
            _check_alone(net, model, wanted, node)
        else:
            _raise(net, node, one, wanted)
    return found


def _raise(net, node, one, wanted):
    """Raise DataError: the first layer that differs, and how far."""
    if node is None:
        raise DataError("the model gives other numbers than the net in an output alone", file=net.file)
    sizes = f", shape {list(one.shape)} in place of {list(wanted[one.blob].shape)}" if one.shape != wanted[one.blob].shape else ""
    raise DataError(f"the model gives other numbers than the net: layer '{node.name}' ({node.type}) differs first, in '{one.blob}' "
                    f"by {one.absolute:.3g} ({one.relative:.2g} of the greatest){sizes}", file=net.file)


def _check_alone(net, model, wanted, first):
    """Compare each layer from `first` on with bottoms that have the net's values: its rounding errors may decide otherwise."""
    extractor = onnx.utils.Extractor(model)
    known = {info.name for info in model.graph.input} | {value for node in model.graph.node for value in node.output}
    for node in net.nodes[net.layer_names.index(first.name):]:
        names = [blob.name for blob in node.tops if blob.name in known]
        given = {blob.name: wanted[blob.name] for blob in node.bottoms if blob.name in known}
        if not names or names == list(given):
            continue
        for one in _compared(extractor.extract_model(list(given), names), names, given, wanted):
            if not one.relative <= TOLERANCE:
                _raise(net, node, one, wanted)
    warn_of_discontinuity(first)


def _compared(model, names, inputs, wanted):
    return [difference(name, wanted[name], value) for name, value in zip(names, run_model(model, inputs, names), strict=True)]


def run_model(model, inputs, outputs=None):
    """Return the outputs of a model by onnxruntime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(f"onnxruntime is needed to compare ({error}); pip install \"minicaffe[onnx]\", or leave the "
                              "comparison out (--no-check)") from error
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4     # an error is raised, too
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return session.run(outputs, {info.name: inputs[info.name] for info in session.get_inputs()})


def with_outputs(model, outputs):
    """Return a copy of a model with other outputs, a list of ValueInfoProto."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(outputs)
    return copy


def first_difference(net, model, inputs, wanted):
    """Return the first layer of which a top differs, and its Difference; (None, None) if none does."""
    made = {output for node in model.graph.node for output in node.output}
    names = list(dict.fromkeys(blob.name for node in net.nodes for blob in node.tops if blob.name in made))
    probe = with_outputs(model, [value_info(name, None) for name in names])
    for one in _compared(probe, names, inputs, wanted):
        if not one.relative <= TOLERANCE:
            return [node for node in net.nodes if any(blob.name == one.blob for blob in node.tops)][-1], one
    return None, None
