"""A net that is made from a model of ONNX node by node: its layers, and the functions that add those of each operator."""

from collections import Counter

import numpy as np

from minicaffe.addons.export.exporting import registration, unique
from minicaffe.addons.export.onnx.graph import onnx
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import param_name_dict

IMPORTERS = {}                      # operator -> function
MESSAGES = param_name_dict() | {"Deconvolution": "convolution", "LSTM": "recurrent"}


class Unsupported(Exception):
    """A node cannot be expressed; the message is the reason."""


def importer(*operators):
    """Return a decorator that registers a function as the importer of operators of ONNX.

    The function has the arguments `made`, a `Conversion`, and `node`, a NodeProto. It adds layers by ``made.layer``, and raises
    `Unsupported` for what they cannot express.
    """
    return registration(IMPORTERS)(*operators)


class Conversion:
    """Collects the layers of a net.

    Attributes
    ----------
    constants : dict of str to ndarray
        Values that depend on no input.
    shapes : dict of str to tuple of int
        Of all other values.
    blobs : dict of str to str
        Value -> the blob that holds it.
    checked : dict of str to str
        Blob -> the value that it must equal, see `load`.
    readers : Counter
        Value -> how many nodes read it; an output of the graph has one more reader, so that no other layer replaces it.
    opset : int
        Version of the model's operators.
    """

    def __init__(self, graph, opset=17):
        self.param = caffe_pb2.NetParameter(name=graph.name or "net")
        self.constants, self.shapes, self.blobs, self.arrays, self.checked = {}, {}, {}, {}, {}
        self.readers = Counter(name for node in graph.node for name in node.input if name)
        self.readers.update(info.name for info in graph.output)
        self.names, self.node, self.number, self.opset = {}, None, 0, opset

    def attribute(self, name, default=None):
        """Return an attribute of the current node."""
        found = next((one for one in self.node.attribute if one.name == name), None)
        if found is None:
            return default
        value = onnx.helper.get_attribute_value(found)
        several = isinstance(value, (list, tuple))
        values = [one.decode() if isinstance(one, bytes) else one for one in (value if several else [value])]
        return values if several else values[0]

    def constant(self, index, what):
        """Return input `index` of the current node, which must be a constant; None if it is left out."""
        if index >= len(self.node.input) or not self.node.input[index]:
            return None
        if self.node.input[index] not in self.constants:
            raise Unsupported(f"its {what} is computed from the inputs")
        return self.constants[self.node.input[index]]

    def bottom(self, index=0):
        """Return the blob of input `index`; a constant becomes a Parameter layer."""
        name = self.node.input[index]
        if name in self.constants:
            return self.layer("Parameter", [], arrays=[self.constants[name]], shape={"dim": self.constants[name].shape})
        return self.blobs[name]

    def shape(self, index=0):
        """Return the shape of input `index`."""
        name = self.node.input[index]
        return self.constants[name].shape if name in self.constants else self.shapes[name]

    @property
    def result(self):
        """tuple of int: the shape of the first output."""
        return self.shapes[self.node.output[0]]

    def layer(self, kind, bottoms, arrays=(), last=False, tops=1, **fields):
        """Add a layer; return the name of its top, or a list of names for several.

        Parameters
        ----------
        kind : str
            Layer type.
        bottoms : list of str
        arrays : sequence of ndarray or None
            The parameters, in the order and with the number of elements of the layer's blobs; None: the layer lacks this one.
        last : bool
            Whether the tops are the first outputs of the node; the layer has the node's name then.
        tops : int
        **fields
            Of the message of the type; None: left out.
        """
        node_name = self.node.name or f"{self.node.op_type}{self.number}"
        name = unique(node_name if last else f"{node_name}/{kind}", self.names)
        names = list(self.node.output[:tops]) if last else [name] if tops == 1 else [f"{name}/{i}" for i in range(tops)]
        message = {f"{MESSAGES[kind]}_param": fields} if fields else {}
        self.param.layer.add(name=name, type=kind, bottom=bottoms, top=names, **message)
        if arrays:
            self.arrays[name] = [np.asarray(array, np.float32) for array in arrays if array is not None]
        if last:
            for i, blob in enumerate(names):
                self.blobs[self.node.output[i]] = blob
                self.checked[blob] = self.node.output[i]
        return names[0] if tops == 1 else names

    def sliced(self, blob, size, axis, start, count):
        """Return `count` of the `size` values of a blob along an axis, from `start` on; without a layer if these are all."""
        points = sorted({start, start + count} - {0, size})
        if not points:
            return blob
        names = self.layer("Slice", [blob], tops=len(points) + 1, axis=axis, slice_point=points)
        found = names.pop(1 if start else 0)
        self.layer("Silence", names, tops=0)
        return found

    def alias(self):
        """Let the output be the first input."""
        self.blobs[self.node.output[0]] = self.blobs[self.node.input[0]]

    def reshaped(self, blob, given, wanted, last=False):
        """Return `blob` of the shape `given` in the shape `wanted`; without a layer if they are equal."""
        if tuple(given) == tuple(wanted) and not last:
            return blob
        if not wanted or 0 in wanted:
            raise Unsupported(f"the shape {list(wanted)} is not one that a Reshape layer can make")
        dims = [0 if i == 0 and given[:1] == wanted[:1] and len(wanted) > 1 else size for i, size in enumerate(wanted)]
        return self.layer("Reshape", [blob], last=last, shape={"dim": dims})

    def broadcast(self, blob, given, wanted):
        """Return `blob` of the shape `given` repeated to the shape `wanted`."""
        whole = (1,) * (len(wanted) - len(given)) + tuple(given)
        blob = self.reshaped(blob, given, whole)
        for axis, (size, result) in enumerate(zip(whole, wanted)):
            if size != result:
                blob = self.layer("Tile", [blob], axis=axis, tiles=result // size)
        return blob
