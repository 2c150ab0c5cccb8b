"""A model of ONNX as a net of Caffe: `load` converts it, and compares it with onnxruntime layer by layer.

The shapes of all values are those that onnxruntime computes for inputs of the given shapes, so the net is for these shapes. What
depends on constants alone is a constant. Each other node becomes layers. Nodes that Caffe's layers cannot express are collected,
and one error names all of them.
"""

import logging
import math
import os
from typing import NamedTuple

import numpy as np

from minicaffe.addons.export.exporting import TOLERANCE, difference, run_net, unique
from minicaffe.addons.export.onnx import importers  # noqa: F401 (registers the operators)
from minicaffe.addons.export.onnx.conversion import IMPORTERS, Conversion, Unsupported
from minicaffe.addons.export.onnx.graph import numpy_helper, onnx, reads, run_model, value_info
from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError, close_matches
from minicaffe.memory.sizes import check_bytes
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.unknown import core_types

log = logging.getLogger(__name__)
# Operators that also take integers, as they move values and compute nothing.
MOVES = ("Cast", "Concat", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
SQUASHING = ("Sigmoid", "Softmax")      # types whose values are up to 1: a small one may be rounded as a large one is
MOST_OTHER = 1e-3                       # share of the values of an ArgMax that rounding errors may change
ROUNDING = 2.0 ** -21                   # of onnxruntime's values of these


class Imported(NamedTuple):
    """Result of `load`.

    Attributes
    ----------
    net : Net
        In phase TEST, with the parameters.
    param : caffe_pb2.NetParameter
        Its definition.
    differences : list of Difference
        Of the outputs.
    """

    net: Net
    param: caffe_pb2.NetParameter
    differences: list


def read_model(path, batch=None, shapes=None):
    """Return the ModelProto of a file, checked, its inputs of fixed shapes; see `load`."""
    try:
        size = os.stat(path).st_size
        check_bytes(size, f"the model {path}")
        model = onnx.load(path)
        outputs = [info.type.tensor_type for info in model.graph.output if info.type.HasField("tensor_type")]
        for kind in outputs:
            kind.shape.SetInParent()    # the checker wants a shape
        onnx.checker.check_model(model)
        for kind in outputs:
            kind.ClearField("shape")    # it may be that for other sizes of inputs
        check_names(model.graph)
    except Error:
        raise
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise DataError(f"is not a model of ONNX that can be used: {reason}", file=str(path)) from error
    if any(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        others = sorted({entry.domain for entry in model.opset_import} - {"", "ai.onnx"})
        raise ConfigError(f"has operators of other domains than ONNX's own: {', '.join(others)}", file=str(path))
    inputs, shapes = {info.name: info.type.tensor_type.shape.dim for info in inputs_of(model.graph)}, shapes or {}
    for name in shapes.keys() - inputs.keys():
        raise ConfigError(f"has no input '{name}'{close_matches(name, list(inputs))}", file=str(path), field="shapes")
    for name, axes in inputs.items():
        fixed = [max(axis.dim_value, 0) or None for axis in axes]
        sizes = shapes.get(name) or [batch if i == 0 and size is None else size for i, size in enumerate(fixed)]
        described = "x".join("SIZE" if size is None else str(size) for size in fixed)
        if None in sizes:
            raise ConfigError(f"input '{name}' has axes without a size: {described}; "
                              + ("give --batch N" if None not in sizes[1:] else f"give --shape {name}={described}"), file=str(path))
        if len(fixed) != len(sizes) or any(b not in (None, a) for a, b in zip(sizes, fixed)):
            raise ConfigError(f"input '{name}' has the shape {described}, which {'x'.join(map(str, sizes))} does not fit",
                              file=str(path), field="shapes")
        for axis, size in zip(axes, sizes):
            axis.dim_value = size
    del model.graph.value_info[:]   # shapes of values that were inferred for other sizes of inputs
    return model


def inputs_of(graph):
    """Return the ValueInfoProtos of the inputs of a graph without those that are initializers, as in old models."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in initializers]


def check_names(graph):
    """Raise ValueError unless all names of a graph are UTF-8: protobuf returns bytes for others."""
    names = [graph.name, *(one.name for one in (*graph.initializer, *graph.input, *graph.output))]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output, *(one.name for one in node.attribute)]
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise ValueError(f"the name {wrong[:100]} is not UTF-8")


def load(path, *, batch=None, shapes=None, check=True):
    """Return a model of ONNX as a net.

    Parameters
    ----------
    path : str or Path
    batch : int, optional
        The size of the first axis of inputs that have none.
    shapes : dict of str to sequence of int, optional
        Input -> its shape, where the model leaves sizes open.
    check : bool
        Whether to compare all blobs with onnxruntime's values on random inputs.

    Returns
    -------
    Imported

    Raises
    ------
    ConfigError
        For what Caffe's layers cannot express; all such nodes are named. For shapes without a size.
    DataError
        For a damaged file; for a net that gives other numbers than the model.
    FileError
        If the file cannot be read.
    DependencyError
        Without onnx or onnxruntime.
    """
    model = read_model(path, batch, shapes)
    inputs = inputs_of(model.graph)
    rng, given = np.random.default_rng(0), {}
    for info in inputs:
        if info.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            raise ConfigError(f"input '{info.name}' is not of float32", file=str(path))
        shape = [axis.dim_value for axis in info.type.tensor_type.shape.dim]
        check_bytes(8 * math.prod(shape), f"random numbers of shape {shape} for input '{info.name}'")
        given[info.name] = rng.normal(0, 1, shape).astype(np.float32)
    values = all_values(model, given, path)
    made = Conversion(model.graph, next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1))
    for info in inputs:
        made.blobs[info.name] = info.name
        made.shapes[info.name] = given[info.name].shape
        made.names[info.name] = 1
        made.param.layer.add(name=info.name, type="Input", top=[info.name]).input_param.shape.add(dim=given[info.name].shape)
    made.constants.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer)
    made.shapes.update((name, value.shape) for name, value in values.items() if isinstance(value, np.ndarray))
    trouble = convert(made, model, values)
    trouble += ["export the model without these nodes, or cut it before them (onnx.utils.extract_model)"] * bool(trouble)
    trouble += [f"output '{info.name}' is a constant; export the model without this output" for info in model.graph.output
                if info.name in made.constants]
    if trouble:
        raise ConfigError(f"Caffe cannot express: {'; '.join(trouble)}", file=str(path))
    for info in model.graph.output:
        if made.blobs[info.name] != info.name:      # another blob holds it
            made.param.layer.add(name=unique(f"{info.name}/output", made.names), type="Power", bottom=[made.blobs[info.name]],
                                 top=[info.name])
            made.checked[info.name] = info.name
    warn_of_other_caffes(made.param)
    net = Net(made.param, file=str(path))
    for name in sorted({info.name for info in model.graph.output} - {blob.name for blob in net.output_blobs}):
        log.warning("output '%s' is read by another layer: it is a blob of the net, and none of its outputs", name)
    for name, arrays in made.arrays.items():
        for blob, array in zip(net.layer_dict[name].blobs, arrays, strict=True):
            blob.data[...] = array.reshape(blob.shape)
    return Imported(net, made.param, compare(net, made, values, given, path) if check else [])


def all_values(model, given, path):
    """Return the values of all nodes by onnxruntime."""
    names = [name for node in model.graph.node for name in node.output if name]
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        typed = {info.name: info for info in (*inferred.value_info, *inferred.output)}
        for name, info in typed.items():
            shape = [axis.dim_value for axis in info.type.tensor_type.shape.dim]
            check_bytes(4 * math.prod(shape), f"'{name}' of shape {' x '.join(map(str, shape))}")
        check_for_crash(model.graph, typed)
        probe = onnx.ModelProto()
        probe.CopyFrom(model)
        del probe.graph.output[:]
        probe.graph.output.extend(typed.get(name) or value_info(name, None) for name in names)
        return dict(zip(names, run_model(probe, given, names), strict=True))
    except (ShapeError, DataError) as error:
        raise error.at(file=str(path)) from None
    except Exception as error:
        raise DataError(f"onnxruntime cannot run the model: {str(error).splitlines()[0][:200]}", file=str(path)) from error


def check_for_crash(graph, typed):
    """Raise DataError for nodes that end the process in onnxruntime 1.32: an Einsum without an operand, a Resize of no values."""
    for node in graph.node:
        where = f"node '{node.name}' ({node.op_type})"
        if node.op_type == "Einsum" and "" in node.input:
            raise DataError(f"{where} lacks an operand")
        info = typed.get(node.input[0]) if node.op_type in ("Resize", "Upsample") else None
        if info and any(axis.HasField("dim_value") and not axis.dim_value for axis in info.type.tensor_type.shape.dim):
            raise DataError(f"{where} resizes an axis without values")


def convert(made, model, values):
    """Add the layers of all nodes; return the reasons of those that cannot be expressed."""
    trouble = []
    for number, node in enumerate(model.graph.node):
        made.node, made.number = node, number
        name = f"node '{node.name or number}' ({node.op_type})"
        varying = [one for one in reads(node) if one in made.shapes and one not in made.constants]
        if node.op_type == "Shape" or not varying and not node.op_type.startswith("Random"):
            made.constants.update((output, values[output]) for output in node.output if output)
            continue
        function = IMPORTERS.get(node.op_type)
        if any(not isinstance(values[one], np.ndarray) for one in (*node.input, *node.output) if one in values):
            trouble.append(f"{name}: a blob holds an array, no sequence")
        elif function is None:
            trouble.append(f"{name}: no layers for this operator")
        elif node.op_type not in MOVES and any(values[one].dtype.kind == "i" for one in varying if one in values):
            trouble.append(f"{name}: it computes with integers, blobs are of real numbers")
        else:
            try:
                function(made, node)
                trouble += [f"{name}: no layers for its output '{one}'" for one in node.output[1:]
                            if one in made.readers and one not in made.blobs and one not in made.constants]
            except Unsupported as reason:
                trouble.append(f"{name}: {reason}")
            except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as reason:
                trouble.append(f"{name}: its attributes do not fit the operator, or its importer has a fault "
                               f"({type(reason).__name__}: {reason})")
        for output in node.output:      # so that later nodes are looked at, too
            if output and output not in made.constants:
                made.blobs.setdefault(output, output)
    return trouble


def warn_of_other_caffes(param):
    """Warn of layers that BVLC Caffe lacks, and of what is younger than Caffe 1.0."""
    rules = {"BVLC Caffe lacks the types": lambda layer: layer.type.lower() not in core_types,
             "Caffe 1.0 lacks the type Clip": lambda layer: layer.type == "Clip",
             "Caffe 1.0 and OpenCV lack round_mode: FLOOR, and compute other tops": lambda layer: layer.pooling_param.round_mode}
    for what, rule in rules.items():
        if names := [f"'{layer.name}' ({layer.type})" for layer in param.layer if rule(layer)]:
            log.warning("%s of the layers %s", what, ", ".join(names))


def compare(net, made, values, given, path):
    """Compare each blob that is a value of the model; return the Difference of each output."""
    found = run_net(net, given)
    results = []
    for node in net.nodes:
        for blob in node.tops:
            value = made.checked.get(blob.name)
            if value is None or value not in values:
                continue
            wanted = values[value].astype(np.float32)
            few = values[value].dtype.kind == "i" and np.mean(wanted != found[blob.name]) <= MOST_OTHER
            one = difference(blob.name, wanted, found[blob.name])
            if not one.relative <= TOLERANCE and not few and not (node.type in SQUASHING and one.absolute <= ROUNDING):
                raise DataError(f"the net gives other numbers than the model: layer '{node.name}' ({node.type}) differs first, by "
                                f"{one.absolute:.3g} ({one.relative:.2g} of the greatest)", file=str(path))
            if blob in net.output_blobs:
                results.append(one)
    return results
