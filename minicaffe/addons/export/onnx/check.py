"""A net and its model of ONNX on the same inputs: the differences of their outputs, and the first layer that differs."""

from minicaffe.addons.export import exporting
from minicaffe.addons.export.onnx.graph import onnx, value_info
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
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape, and so does a layer: all are
        compared on equal bottoms. If they agree, a warning says that rounding errors are the reason.
    DependencyError
        Without onnxruntime.
    """
    def run(inputs, tops=None):
        names = [output.name for output in model.graph.output]
        if tops is None:
            return dict(zip(names, run_model(model, inputs), strict=True))
        return _run_layers(net, model, inputs, tops)

    return exporting.compare(net, inputs, preprocessing, "model", run)


def _run_layers(net, model, inputs, tops):
    """Return the values of tops by a model in which each top is an input with the net's value: its own is an output."""
    made, value_of = onnx.ModelProto(), exporting.value_names(net.nodes)
    made.CopyFrom(model)
    computed = {name for node in model.graph.node for name in node.output}
    keys = {value_of[key]: key for key in tops if value_of[key] in computed}     # a Split or a Dropout computes none
    for node in made.graph.node:
        node.output[:] = [f"{name}/computed" if name in keys else name for name in node.output]
    del made.graph.value_info[:], made.graph.output[:]
    made.graph.input.extend(value_info(name, tops[key].shape) for name, key in keys.items())
    made.graph.output.extend(value_info(f"{name}/computed", None) for name in keys)
    return dict(zip(keys.values(), run_model(made, inputs | {name: tops[key] for name, key in keys.items()}), strict=True))


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
