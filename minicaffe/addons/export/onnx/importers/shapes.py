"""Operators that move, cut, repeat, reduce and resize values."""

import logging

import numpy as np

from minicaffe.addons.export.onnx.conversion import Unsupported, importer
from minicaffe.addons.export.onnx.graph import helper, numpy_helper, run_model, value_info
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import caffe_pb2

log = logging.getLogger(__name__)
POOLING, REDUCTION = caffe_pb2.PoolingParameter, caffe_pb2.ReductionParameter


@importer("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def reshape(made, node):
    if node.op_type == "Flatten" and made.attribute("axis", 1) == 1 and len(made.shape()) > 1:
        made.layer("Flatten", [made.bottom()], last=True)
    else:
        made.reshaped(made.bottom(), made.shape(), made.result, last=True)


@importer("Transpose")
def transpose(made, node):
    order = made.attribute("perm", list(range(len(made.shape())))[::-1])
    made.layer("Permute", [made.bottom()], last=True, order=order)


@importer("Concat")
def concat(made, node):
    axis = made.attribute("axis") % len(made.result)
    made.layer("Concat", [made.bottom(i) for i in range(len(node.input))], last=True, axis=axis)


@importer("Split")
def split(made, node):
    axis = made.attribute("axis", 0) % len(made.shape())
    sizes = [made.shapes[name][axis] for name in node.output]
    if len(sizes) == 1:
        made.alias()
        return
    if 0 in sizes:
        raise Unsupported("it keeps nothing of an axis")
    points = np.cumsum(sizes)[:-1].tolist()
    made.layer("Slice", [made.bottom()], last=True, tops=len(sizes), axis=axis, slice_point=points)


@importer("Slice")
def slice_(made, node):
    starts, ends = (made.attribute(name, made.constant(i, name)) for i, name in ((1, "starts"), (2, "ends")))
    axes, steps = made.attribute("axes", made.constant(3, "axes")), made.constant(4, "steps")    # attributes before opset 10
    changes = {}
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        taken = range(made.shape()[axis])[int(starts[i]):int(ends[i]):1 if steps is None else int(steps[i])]
        changes[int(axis) % len(made.shape())] = taken.start, taken.step if len(taken) > 1 else 1, len(taken)
    cut(made, changes)


@importer("Pad")
def pad(made, node):
    given, amounts = made.shape(), made.constant(1, "pads")
    value, axes = made.constant(2, "value"), made.constant(3, "axes")
    if amounts is None:     # before opset 11
        amounts, value = made.attribute("pads"), np.float32(made.attribute("value", 0.0))
    if made.attribute("mode", "constant") != "constant" or value is not None and np.any(value != 0):
        raise Unsupported("it pads with something other than 0")
    pairs = zip(range(len(given)) if axes is None else axes, amounts, amounts[len(amounts) // 2:])
    cut(made, {int(axis) % len(given): (-int(first), 1, given[axis] + int(first) + int(last)) for axis, first, last in pairs})


def cut(made, changes):
    """Let the output be the values ``first + i step``, i < count, along axes, a dict of axis to these three; 0 outside.

    A range is cut out by a Slice. Steps along the picture and zeros around it are a convolution: kernels of a single 1.
    """
    given, blob = made.shape(), made.bottom()
    changes = {axis: one for axis, one in changes.items() if one != (0, 1, given[axis])}
    if not changes:
        made.alias()
        return
    if any(step < 1 or count < 1 for _, step, count in changes.values()):
        raise Unsupported("it takes values backward, or keeps nothing of an axis")
    if all(step == 1 and first >= 0 and first + count <= given[axis] for axis, (first, step, count) in changes.items()):
        for axis, (first, _, count) in changes.items():
            blob = made.sliced(blob, given[axis], axis, first, count)
        made.layer("Power", [blob], last=True)
        return
    if min(changes) < 2:
        raise Unsupported(f"it adds zeros or takes steps along axis {min(changes)}, a convolution along the picture alone")
    kernel, place, pads, strides = [], [], [], []
    for axis in range(2, len(given)):
        first, step, count = changes.get(axis, (0, 1, given[axis]))
        pads.append(max(0, -first, first + (count - 1) * step + 1 - given[axis]))
        place.append(first + pads[-1])
        kernel.append(max(place[-1] + 1, given[axis] + 2 * pads[-1] - count * step + 1))    # for exactly `count` windows
        strides.append(step)
    taps = np.zeros((given[1], 1, *kernel))
    taps[(slice(None), 0, *place)] = 1
    depthwise(made, blob, "Convolution", taps, pad=pads, stride=strides)


def depthwise(made, blob, kind, taps, **windows):
    """Return the node's output: a convolution or deconvolution of each channel by its own kernel, `taps` (channels, 1, ...)."""
    return made.layer(kind, [blob], [taps], last=True, num_output=len(taps), group=len(taps), bias_term=False,
                      kernel_size=taps.shape[2:], **windows)


@importer("Gather")
def gather(made, node):
    indices, axis, given = made.constant(1, "indices"), made.attribute("axis", 0) % len(made.shape()), made.shape()
    flat = (indices % given[axis]).reshape(-1)
    if not len(flat) or np.any(np.diff(flat) != 1):
        raise Unsupported("its indices are not consecutive")
    blob = made.sliced(made.bottom(), given[axis], axis, int(flat[0]), len(flat))
    made.reshaped(blob, [*given[:axis], len(flat), *given[axis + 1:]], made.result, last=True)


@importer("Expand", "Tile")
def tile(made, node):
    made.layer("Power", [made.broadcast(made.bottom(), made.shape(), made.result)], last=True)


@importer("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceSumSquare")
def reduce(made, node):
    axes, given = made.attribute("axes", made.constant(1, "axes")), made.shape()
    axes = [] if axes is None else sorted({int(axis) % len(given) for axis in axes})
    if not axes and made.attribute("noop_with_empty_axes", 0):
        raise Unsupported("it reduces no axis (noop_with_empty_axes)")
    axes = axes or list(range(len(given)))
    blob, keep = made.bottom(), len(made.result) == len(given)
    if node.op_type in ("ReduceMean", "ReduceMax") and axes == [2, 3] and len(given) == 4:
        blob = made.layer("Pooling", [blob], last=keep, global_pooling=True,
                          pool=POOLING.AVE if node.op_type == "ReduceMean" else POOLING.MAX)
        if not keep:
            made.reshaped(blob, (*given[:2], 1, 1), made.result, last=True)
        return
    if node.op_type == "ReduceMax":
        raise Unsupported("Reduction has no maximum, and Pooling is over axes 2 and 3 of 4")
    kept = [axis for axis in range(len(given)) if axis not in axes]
    if kept + axes != sorted(kept + axes):      # a Reduction is over the last axes
        blob = made.layer("Permute", [blob], order=kept + axes)
    operations = {"ReduceMean": REDUCTION.MEAN, "ReduceSum": REDUCTION.SUM, "ReduceL1": REDUCTION.ASUM}
    top = made.layer("Reduction", [blob], last=not keep, axis=len(kept),
                     operation=operations.get(node.op_type, REDUCTION.SUMSQ))
    if keep:
        made.reshaped(top, [given[axis] for axis in kept], made.result, last=True)


@importer("ArgMax")
def arg_max(made, node):
    if not made.attribute("select_last_index", 0):
        log.warning("node '%s' (ArgMax): of equal maxima Caffe takes the last, this node takes the first", node.name or made.number)
    keep, axis = bool(made.attribute("keepdims", 1)), made.attribute("axis", 0) % len(made.shape())
    top = made.layer("ArgMax", [made.bottom()], last=keep, axis=axis)
    if not keep:
        made.reshaped(top, (), made.result, last=True)


@importer("DepthToSpace")
def depth_to_space(made, node):
    (batch, channels, height, width), size = made.shape(), made.attribute("blocksize")
    if made.attribute("mode", "DCR") == "DCR":
        shape, order = (batch, size, size, channels // size**2, height, width), [0, 3, 4, 1, 5, 2]
    else:
        shape, order = (batch, channels // size**2, size, size, height, width), [0, 1, 4, 2, 5, 3]
    blob = made.reshaped(made.bottom(), made.shape(), shape)
    blob = made.layer("Permute", [blob], order=order)
    made.reshaped(blob, [shape[axis] for axis in order], made.result, last=True)


@importer("Resize", "Upsample")
def resize(made, node):
    """Nearest neighbours by whole factors are a depthwise deconvolution with ones, all else a matrix product for each axis."""
    given, wanted, old, blob = made.shape(), made.result, made.opset < 11, made.bottom()
    how = {"coordinate_transformation_mode": "asymmetric"} if old else {}
    names = "mode", "coordinate_transformation_mode", "nearest_mode"
    how |= {name: value for name in names if (value := made.attribute(name)) is not None}
    if (how.get("mode") == "cubic" or how.get("coordinate_transformation_mode") == "tf_crop_and_resize"
            or made.attribute("antialias", 0) or made.attribute("keep_aspect_ratio_policy", "stretch") != "stretch"):
        raise Unsupported("it is cubic, has antialias, crops (tf_crop_and_resize) or keeps the ratio (keep_aspect_ratio_policy)")
    scales = made.attribute("scales", made.constant(1 if old else 2, "scales"))     # an attribute in opset 7
    scales = {} if scales is None else dict(zip(made.attribute("axes", range(len(given))), scales))
    matrices = {axis: matrix(made, given[axis], wanted[axis], scales.get(axis), how) for axis in range(len(given))
                if given[axis] != wanted[axis]}
    repeats = [max(1, result // size) for size, result in zip(given, wanted)]
    repeated = all(np.array_equal(one, np.eye(given[axis]).repeat(repeats[axis], 0)) for axis, one in matrices.items())
    if not matrices:
        made.alias()
    elif min(matrices) > 1 and repeated:
        depthwise(made, blob, "Deconvolution", np.ones((given[1], 1, *repeats[2:])), stride=repeats[2:])
    else:
        for axis, one in matrices.items():
            blob = multiplied(made, blob, len(given), axis, one, axis == max(matrices))


def matrix(made, size, result, scale, how):
    """Return the matrix (results, values) by which the current node resizes an axis: what a Resize makes of unit vectors."""
    check_bytes(4 * size * (size + result), f"the matrix of a {made.node.op_type} from {size} to {result}")
    how = how | {"nearest_mode": "ceil" if result < size else "floor"} if made.opset < 11 else how
    target = np.array([size, result]) if scale is None else np.array([1, scale], np.float32)
    graph = helper.make_graph([helper.make_node("Resize", ["x", "", *[""] * (scale is None), "target"], ["y"], **how)], "axis",
                              [value_info("x", (size, size))], [value_info("y", None)], [numpy_helper.from_array(target, "target")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return run_model(model, {"x": np.eye(size, dtype=np.float32)})[0].T


def multiplied(made, blob, count, axis, values, last):
    """Return the product of a matrix (results, values) with an axis of a blob of `count` axes: InnerProduct between Permutes."""
    order, back = [*range(axis), *range(axis + 1, count), axis], axis < count - 1
    if back:
        blob = made.layer("Permute", [blob], order=order)
    blob = made.layer("InnerProduct", [blob], [values], last=last and not back, num_output=len(values), bias_term=False,
                      axis=count - 1)
    return made.layer("Permute", [blob], last=last, order=np.argsort(order).tolist()) if back else blob
