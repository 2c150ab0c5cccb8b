"""A net as a model of ONNX: `to_model` makes it, `export` also compares it with the net and writes it."""

import minicaffe
from minicaffe.addons.export import exporting
from minicaffe.addons.export.exporting import Preprocessing, random_inputs  # noqa: F401 - the first is public here
from minicaffe.addons.export.onnx import forks, layers, losses  # noqa: F401 - they register exporters
from minicaffe.addons.export.onnx.graph import BATCH, OPSET, Graph, helper, onnx, reads, run_model, value_info
from minicaffe.errors import ConfigError
from minicaffe.proto.atomic import replacing

check_types = Graph.check_types


def to_model(net, dynamic_batch=False, preprocessing=None):
    """Return a net as a model of ONNX.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        In phase TEST, its inputs of the shapes that the model is to have.
    dynamic_batch : bool
        Whether the first axis of all inputs may have any size; a runtime reads it as an axis named ``batch``.
    preprocessing : Preprocessing, optional
        Of the first input.

    Returns
    -------
    onnx.ModelProto
        In float32. Its inputs and outputs have the names of the net's.

    Raises
    ------
    ConfigError
        For a layer that ONNX cannot express; all such layers are named. For a net in phase TRAIN.
    DependencyError
        Without the package onnx.
    """
    graph = Graph(net)
    if dynamic_batch:
        graph.shapes = batch_shapes(net)
    for at in [i for i, node in enumerate(net.nodes) if node.type in exporting.UNKNOWN_SIZES][:1]:
        graph.shapes |= {blob.name: [None] * blob.num_axes for node in net.nodes[at:] for blob in node.tops}
    inputs = [value_info(blob.name, graph.shapes[blob.name]) for blob in net.input_blobs]
    if preprocessing is not None:
        graph.values[net.input_blobs[0].name] = graph.preprocess(preprocessing)
    graph.add_layers()
    for name in graph.outputs:
        if (value := graph.values[name]) != name:       # that of another layer
            graph.nodes.append(helper.make_node("Identity", [value], [name], exporting.unique(name, graph.node_names)))
    outputs = [value_info(name, graph.shapes[name]) for name in graph.outputs]
    inner = {value for node in graph.nodes for value in node.output} - {info.name for info in outputs}
    used = {value for node in graph.nodes for value in reads(node)} | {info.name for info in outputs}
    made = helper.make_graph(graph.nodes, net.name or "net", inputs, outputs,
                             [tensor for key, tensor in graph.initializers.items() if key in used],
                             value_info=[value_info(name, shape) for name, shape in graph.shapes.items() if name in inner])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="minicaffe",
                              producer_version=minicaffe.__version__)
    model.ir_version = min(model.ir_version, 10)    # readers reject a version of the format that they do not know
    helper.set_model_props(model, {"source": str(net.file or ""), "caffe_layers": str(len(net.nodes))})
    onnx.checker.check_model(model)
    return model


def batch_shapes(net):
    """Return the sizes of each blob by name: ``batch``, or a multiple of it, where they follow the first axis of the inputs."""
    sizes = {blob.shape[0] if blob.num_axes else None for blob in net.input_blobs}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        given = ", ".join(f"{blob.name} {list(blob.shape)}" for blob in net.input_blobs)
        raise ConfigError(f"the inputs have no common first axis: {given or 'there are none'}", file=net.file,
                          field="dynamic_batch")
    two, three = ({name: list(blob.shape) for name, blob in net.blobs.items()} for _ in in_batches(net, 2, 3))
    return {name: [a if a == b else BATCH if (a, b) == (2, 3) else f"{a // 2}*{BATCH}" for a, b in zip(two[name], three[name])]
            for name in two}


def in_batches(net, *sizes):
    """Reshape a net to each of these batch sizes, and yield the size; at the end restore the first shapes."""
    before = [blob.shape for blob in net.input_blobs]
    try:
        for size in sizes:
            for blob in net.input_blobs:
                blob.reshape(size, *blob.shape[1:])
            net.reshape_all()
            yield size
    finally:
        for blob, shape in zip(net.input_blobs, before):
            blob.reshape(*shape)
        net.reshape_all()


def export(net, path, *, dynamic_batch=False, preprocessing=None, check=True, inputs=None):
    """Write a net as a model of ONNX, and compare the two.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        In phase TEST. With `check` it runs once for each batch.
    path : str or Path
        Of the .onnx file. It is written when the comparison has passed.
    dynamic_batch, preprocessing
        See `to_model`.
    check : bool
        Whether to run both by onnxruntime on random inputs, with `dynamic_batch` for batches of 1 and 3.
    inputs : dict of str to array_like, optional
        Inputs for the comparison, in the shapes of the net's inputs; by default random numbers.

    Returns
    -------
    list of minicaffe.addons.export.exporting.Difference
        Of each output; empty without `check`.

    Raises
    ------
    ConfigError
        See `to_model`.
    DataError
        If an output differs by more than 1e-4 of its greatest absolute value; the first layer that differs is named.
    DependencyError
        Without onnx, or onnxruntime for `check`.
    """
    model = to_model(net, dynamic_batch, preprocessing)
    found = []
    if check:
        found = compare(net, model, inputs if inputs is not None else random_inputs(net), preprocessing)
        if dynamic_batch and inputs is None:
            for _ in in_batches(net, 1, 3):
                found += compare(net, model, random_inputs(net), preprocessing)
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return found


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
        if tops is None:
            return dict(zip([output.name for output in model.graph.output], run_model(model, inputs), strict=True))
        # Each top is an input with the net's value; the model's own value of it is an output. A Split or a Dropout has none.
        made, value_of = onnx.ModelProto(), exporting.value_names(net.nodes)
        made.CopyFrom(model)
        computed = {name for node in model.graph.node for name in node.output}
        keys = {value_of[key]: key for key in tops if value_of[key] in computed}
        for node in made.graph.node:
            node.output[:] = [f"{name}/computed" if name in keys else name for name in node.output]
        del made.graph.value_info[:], made.graph.output[:]
        made.graph.input.extend(value_info(name, tops[key].shape) for name, key in keys.items())
        made.graph.output.extend(value_info(f"{name}/computed", None) for name in keys)
        return dict(zip(keys.values(), run_model(made, inputs | {name: tops[key] for name, key in keys.items()}), strict=True))

    return exporting.compare(net, inputs, preprocessing, "model", run)
