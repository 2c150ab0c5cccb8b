"""A net and its model of ONNX on the same inputs: the differences of their outputs, and the first layer that differs."""

import numpy as np

from minicaffe.addons.export import exporting
from minicaffe.addons.export.comparison import difference
from minicaffe.addons.export.onnx.graph import helper, reads, value_info
from minicaffe.errors import DependencyError


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
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape. Then the layers are compared
        one by one on equal bottoms. If they agree, outputs after a layer of `DISCONTINUOUS_TYPES` only cause a warning.
    DependencyError
        Without onnxruntime.
    """
    names = [output.name for output in model.graph.output]
    return exporting.compare(net, inputs, preprocessing, "model",
                             lambda inputs: dict(zip(names, run_model(model, inputs), strict=True)),
                             lambda inputs, given: _layer_by_layer(net, model, inputs, given))


def _layer_by_layer(net, model, inputs, given):
    """Yield (node, Difference) for each top of each layer that the model computes; all layers get the net's values as bottoms."""
    computed = {name for node in model.graph.node for name in node.output}
    value_of = exporting.value_names(net.nodes)
    arrays, names = dict(inputs), {name: name for name in inputs}    # of the model's values; blob -> its value in the model
    net.feed(**given)
    for i, node in enumerate(net.nodes):
        net.forward_from_to(i, i)
        bottoms, tops = {names[blob.name]: arrays[names[blob.name]] for blob in node.bottoms}, {}
        for blob in node.tops:
            name = value_of[i, blob.name]
            if name in computed:
                names[blob.name], arrays[name], tops[name] = name, np.array(blob.data), blob.name
            elif node.bottoms:      # the same value, or one that is computed together with the next layer's
                names[blob.name] = names[node.bottoms[0].name]
        if tops:
            for name, value in zip(tops, run_model(_part(model, bottoms, tops), bottoms, list(tops)), strict=True):
                yield node, difference(tops[name], arrays[name], value)


def _part(model, given, wanted):
    """Return a model of the operations from the values `given`, a dict of arrays, to the values `wanted`."""
    nodes, used = [], set(wanted)
    for node in reversed(model.graph.node):
        if any(name in used and name not in given for name in node.output):
            nodes.append(node)
            used.update(reads(node))
    graph = helper.make_graph(nodes[::-1], "part", [value_info(name, array.shape) for name, array in given.items() if name in used],
                              [value_info(name, None) for name in wanted],
                              [tensor for tensor in model.graph.initializer if tensor.name in used])
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


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
