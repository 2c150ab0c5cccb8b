"""A graph of ONNX under construction: nodes, initializers and names for the layers of a net.

A layer type has a function that adds its operations (`exporter`) and returns the names of the values that are the layer's tops.
A top that is written once has its blob's name. Of a blob that layers compute in place, the last value has the name, and the
earlier ones are ``BLOB/LAYER``. The operation that computes a layer's top has the layer's name: a viewer shows the layers of
the prototxt.
"""

import numpy as np

from minicaffe.addons.export.exporting import registration, unique, unique_names, value_names
from minicaffe.addons.export.operators import LAYERS, Writer
from minicaffe.errors import ConfigError, DependencyError

try:
    import onnx  # noqa: F401 - other files import it from here, with this error
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise DependencyError(f"the package onnx is needed ({error}); pip install \"minicaffe[onnx]\"") from error

OPSET = 17          # the version of the operators
BATCH = "batch"     # the name of an axis whose size the caller chooses
EXPORTERS = dict(LAYERS)    # layer type -> function
OPERATORS = {}      # operator of `minicaffe.addons.export.operators` that ONNX lacks -> function of graph, inputs, attributes
operator = registration(OPERATORS)


def exporter(*types):
    """Return a decorator that registers a function as the exporter of layer types.

    The function has the arguments `graph`, a `Graph`, and `node`, a `minicaffe.net.node.Node`. It returns a list of the
    names of the tops' values. It replaces an exporter that the type already has.
    """
    return registration(EXPORTERS)(*types)


class Graph(Writer):
    """A model of a net, to which a layer's exporter adds.

    Attributes
    ----------
    shapes : dict
        Blob name -> list of the sizes of its axes: an int, or a str where the size depends on the batch.
    """

    functions, form, register = EXPORTERS, "a model of ONNX", "minicaffe.addons.export.onnx.exporter"

    def __init__(self, net):
        super().__init__(net)
        self.values = {blob.name: blob.name for blob in net.input_blobs}
        self.shapes = {name: list(blob.shape) for name, blob in net.blobs.items()}
        self.value_names = value_names(net.nodes)
        self.scopes = unique_names([node.name for node in net.nodes])   # layers may have equal names
        self.node_names = dict.fromkeys(self.scopes, 1)
        self.nodes, self.initializers = [], {}
        self.scope, self.layer_nodes = "preprocessing", []      # layer_nodes: the operations of the layer
        self.parameters = {}    # (address of the memory, shape) -> name of the initializer
        self.taken = dict.fromkeys(self.value_names.values(), 1)

    # ---- for exporters

    def shape(self, index=0):
        """Return the sizes of a bottom's axes; an int, or a str where the size depends on the batch."""
        return self.shapes[self.node.bottoms[index].name]

    def top_shape(self, index=0):
        """Return the sizes of a top's axes; see `shape`."""
        return self.shapes[self.node.tops[index].name]

    def known_top_shape(self):
        """Return `top_shape`; raise ConfigError if it depends on values."""
        return [size if size is not None else self.fixed(None, "the shape of the top") for size in self.top_shape()]

    def fixed(self, size, what):
        """Return a size as an int; raise ConfigError if it depends on the batch, or on values."""
        if size is None:
            raise ConfigError(f"{what} depends on what a layer before it selects, which ONNX cannot express here")
        if isinstance(size, str):
            raise ConfigError(f"{what} depends on the size of the batch, which ONNX cannot express here; export a fixed batch")
        return size

    def op(self, kind, /, *inputs, count=1, **attributes):
        """Add an operation; return the name of its output, or a list of names if `count` is not 1.

        Parameters
        ----------
        kind : str
            Operator of ONNX, or one of `OPERATORS`, which returns its own results.
        *inputs : str or array_like, any shape
            Names of values, "" for an optional input that is left out, or the numbers of a constant.
        **attributes
            Of the operator; those with the value None are left out.
        """
        if kind in OPERATORS:
            return OPERATORS[kind](self, *inputs, **attributes)
        inputs = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        outputs = [unique(f"{self.scope}/{kind}", self.taken) for _ in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, unique(f"{self.scope}/{kind}", self.node_names),
                                           **{k: v for k, v in attributes.items() if v is not None}))
        self.layer_nodes.append(self.nodes[-1])
        return outputs[0] if count == 1 else outputs

    def constant(self, value):
        """Return the name of a constant: integers are int64, all others float32."""
        value = np.asarray(value)
        if value.dtype != bool:
            value = value.astype(np.int64 if value.dtype.kind in "iu" else np.float32)
        return self._initializer(f"{self.scope}/constant", value)

    def parameter(self, index, shape=None):
        """Return the name of a parameter of the layer, in `shape` if that is given. Layers that share it share the initializer."""
        blob = self.node.layer.blobs[index]
        shape = blob.shape if shape is None else tuple(shape)
        key = id(blob.data_memory), shape
        if key not in self.parameters:
            view = "" if shape == blob.shape else ":" + "x".join(map(str, shape))
            self.parameters[key] = self._initializer(f"{self.node.name}[{index}]{view}",
                                                     np.array(blob.data, np.float32).reshape(shape))
        return self.parameters[key]

    def reduce(self, kind, x, axes, keepdims=True):
        """Add a reduction over `axes`."""
        axes = [int(axis) for axis in axes]
        if not axes:
            return x if keepdims else self.op("Identity", x)
        if kind == "ReduceSum":
            return self.op(kind, x, np.array(axes, np.int64), keepdims=int(keepdims))
        return self.op(kind, x, axes=axes, keepdims=int(keepdims))

    def reshape(self, x, given, wanted):
        """Return `x` of the sizes `given` in the sizes `wanted`; both may have sizes that depend on the batch."""
        if given == wanted:
            return x
        target, unknown = [], 0
        for i, size in enumerate(wanted):
            if isinstance(size, int):
                if size == 0:
                    raise ConfigError("has no elements, which ONNX's Reshape cannot express")
                target.append(size)
            elif i < len(given) and given[i] == size:
                target.append(0)
            else:
                target.append(-1)
                unknown += 1
        if unknown > 1:
            self.fixed(wanted[0], "the shape of the top")
        return self.op("Reshape", x, np.array(target, np.int64))

    # ---- for `export`

    def add(self, index, node):
        """Add a layer by its type's exporter."""
        self.node, self.scope, self.layer_nodes = node, self.scopes[index], []
        results = EXPORTERS[node.type](self, node)
        for blob, value in zip(node.tops, results, strict=True):
            self.values[blob.name] = self._rename(value, self.value_names[index, blob.name], blob is node.tops[0])

    def _rename(self, value, name, names_layer):
        """Give the result of an operation of this layer its blob's name; another layer's value keeps its own."""
        maker = next((made for made in self.layer_nodes if value in made.output), None)
        if maker is None or value == name or value in self.values.values():
            return value
        for made in self.layer_nodes:
            for names in (made.input, made.output):
                for i, old in enumerate(names):
                    if old == value:
                        names[i] = name
        del self.taken[value]
        if names_layer:
            maker.name = self.scope
        return name

    def _initializer(self, wanted, array):
        name = unique(wanted, self.taken)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name


def value_info(name, shape):
    """Return the ValueInfoProto of an input or output."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def reads(node):
    """Return the names of the values that a node reads, also those that its subgraphs (If, Loop, Scan) read of the graph around."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            names += [info.name for info in graph.output]
            for inner in graph.node:
                names += reads(inner)
    return names


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
