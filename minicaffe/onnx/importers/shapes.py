"""Operators that move, cut, repeat, reduce and resize values."""

import numpy as np

from minicaffe.memory.budget import check_bytes
from minicaffe.onnx.conversion import Unsupported, importer
from minicaffe.onnx.importers.products import cropped
from minicaffe.proto import caffe_pb2

POOLING = caffe_pb2.PoolingParameter


@importer("Reshape", "Squeeze", "Unsqueeze")
def reshape(made, node):
    made.reshaped(made.bottom(), made.shape(), made.result, last=True)


@importer("Flatten")
def flatten(made, node):
    if made.attribute("axis", 1) == 1 and len(made.shape()) > 1:
        made.layer("Flatten", [made.bottom()], last=True)
    else:
        made.reshaped(made.bottom(), made.shape(), made.result, last=True)


@importer("Transpose")
def transpose(made, node):
    order = made.attribute("perm", list(range(len(made.shape())))[::-1])
    made.layer("Permute", [made.bottom()], "permute_param", last=True, order=order)


@importer("Concat")
def concat(made, node):
    axis = made.attribute("axis") % len(made.result)
    made.layer("Concat", [made.bottom(i) for i in range(len(node.input))], "concat_param", last=True, axis=axis)


@importer("Split")
def split(made, node):
    axis = made.attribute("axis", 0) % len(made.shape())
    sizes = [made.shapes[name][axis] for name in node.output]
    if len(sizes) == 1:
        made.alias()
        return
    points = np.cumsum(sizes)[:-1].tolist()
    made.layer("Slice", [made.bottom()], "slice_param", last=True, tops=len(sizes), axis=axis, slice_point=points)


@importer("Slice")
def slice_(made, node):
    starts = made.constant(1, "starts")
    axes, steps = made.constant(3, "axes"), made.constant(4, "steps")
    given = made.shape()
    axes = range(len(starts)) if axes is None else axes
    begin, stride = [0] * len(given), [1] * len(given)
    for i, axis in enumerate(axes):
        size, start = given[int(axis)], int(starts[i])
        begin[int(axis)] = min(size, max(0, start + size if start < 0 else start))
        stride[int(axis)] = 1 if steps is None else int(steps[i])
    if any(step != 1 for step in stride):
        strided(made, given, begin, stride)
    elif tuple(given) == tuple(made.result):
        made.alias()
    else:
        cropped(made, made.bottom(), given, begin, made.result)


def strided(made, given, begin, stride):
    """Take every n-th value of spatial axes: a depthwise convolution whose kernel is 1 at the first value."""
    if len(given) < 3 or min(stride) < 1 or any(stride[axis] != 1 or begin[axis] for axis in (0, 1)):
        raise Unsupported("it has steps other than 1 in the batch or the channels, or backward")
    taps = np.zeros((given[1], 1, *(first + 1 for first in begin[2:])), np.float32)
    taps[(slice(None), 0, *begin[2:])] = 1
    whole = [*made.result[:2], *((size - first - 1) // step + 1 for size, first, step in zip(given[2:], begin[2:], stride[2:]))]
    cut = tuple(whole) != tuple(made.result)
    if whole[:2] != list(given[:2]):
        raise Unsupported("it cuts the batch or the channels, and has steps")
    top = made.layer("Convolution", [made.bottom()], "convolution_param", [taps], last=not cut, num_output=given[1], group=given[1],
                     bias_term=False, kernel_size=taps.shape[2:], stride=stride[2:])
    if cut:
        cropped(made, top, whole, [0] * len(given), made.result)


@importer("Gather")
def gather(made, node):
    indices, axis, given = made.constant(1, "indices"), made.attribute("axis", 0), made.shape()
    axis %= len(given)
    flat = np.where(indices < 0, indices + given[axis], indices).reshape(-1)
    if indices.ndim > 1 or np.any(np.diff(flat) != 1):
        raise Unsupported("its indices are no range")
    part = [*given[:axis], len(flat), *given[axis + 1:]]
    if indices.ndim:
        cropped(made, made.bottom(), given, [int(flat[0]) if i == axis else 0 for i in range(len(given))], part)
        return
    points = sorted({int(flat[0]), int(flat[0]) + 1} - {0, given[axis]})
    blob = made.bottom()
    if points:
        names = made.layer("Slice", [blob], "slice_param", tops=len(points) + 1, axis=axis, slice_point=points)
        blob = names[1 if flat[0] else 0]
        made.layer("Silence", [name for name in names if name != blob], tops=0)
    made.reshaped(blob, part, made.result, last=True)


@importer("Expand", "Tile")
def tile(made, node):
    blob, given = made.bottom(), made.shape()
    wanted, whole = made.result, (1,) * (len(made.result) - len(given)) + tuple(given)
    blob = made.reshaped(blob, given, whole)
    for axis, (size, result) in enumerate(zip(whole, wanted)):
        if size != result:
            blob = made.layer("Tile", [blob], "tile_param", axis=axis, tiles=result // size)
    made.layer("Power", [blob], last=True)


@importer("Pad")
def pad(made, node):
    """A depthwise convolution with one tap that is not 0."""
    given, amounts = made.shape(), made.constant(1, "pads")
    value, axes = made.constant(2, "value"), made.constant(3, "axes")
    amounts = made.attribute("pads") if amounts is None else amounts
    count = len(given)
    before, behind = np.zeros(count, int), np.zeros(count, int)
    where = range(count) if axes is None else axes
    half = len(amounts) // 2
    for i, axis in enumerate(where):
        before[int(axis)], behind[int(axis)] = amounts[i], amounts[half + i]
    if made.attribute("mode", "constant") != "constant" or value is not None and np.any(value != 0):
        raise Unsupported("it pads with something other than 0")
    if not before.any() and not behind.any():
        made.alias()
        return
    if before[:2].any() or behind[:2].any() or min(before.min(), behind.min()) < 0 or count < 3:
        raise Unsupported("it pads the batch or the channels, or cuts off")
    most = np.maximum(before, behind)[2:]
    kernel = 1 + np.abs(before - behind)[2:]
    taps = np.zeros((given[1], 1, *kernel), np.float32)
    taps[(slice(None), 0, *np.maximum(0, behind - before)[2:])] = 1
    made.layer("Convolution", [made.bottom()], "convolution_param", [taps], last=True, num_output=given[1], group=given[1],
               bias_term=False, kernel_size=kernel.tolist(), pad=most.tolist())


@importer("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceSumSquare")
def reduce(made, node):
    axes, given = made.constant(1, "axes"), made.shape()
    axes = made.attribute("axes", list(range(len(given)))) if axes is None else axes.tolist()
    axes = sorted(axis % len(given) for axis in axes)
    if axes == [2, 3] and len(given) == 4 and node.op_type in ("ReduceMean", "ReduceMax"):
        keep = len(made.result) == 4
        top = made.layer("Pooling", [made.bottom()], "pooling_param", last=keep, global_pooling=True,
                         pool=POOLING.AVE if node.op_type == "ReduceMean" else POOLING.MAX)
        if not keep:
            made.reshaped(top, (*given[:2], 1, 1), made.result, last=True)
        return
    kind = caffe_pb2.ReductionParameter
    operations = {"ReduceMean": kind.MEAN, "ReduceSum": kind.SUM, "ReduceL1": kind.ASUM, "ReduceSumSquare": kind.SUMSQ}
    operation = operations.get(node.op_type)
    if operation is None or axes != list(range(axes[0], len(given))):
        raise Unsupported(f"Reduction is over all axes from one on, this is over {axes} of {len(given)}")
    keep = len(made.result) == len(given)
    top = made.layer("Reduction", [made.bottom()], "reduction_param", last=not keep, operation=operation, axis=axes[0])
    if keep:
        made.reshaped(top, given[:axes[0]], made.result, last=True)


@importer("Resize", "Upsample")
def resize(made, node):
    """Nearest neighbours by whole factors: a depthwise deconvolution with ones. Linear: a matrix product for each axis."""
    given, wanted = made.shape(), made.result
    factors, mode = [b // a for a, b in zip(given, wanted)], made.attribute("mode", "nearest")
    coordinates = made.attribute("coordinate_transformation_mode", "asymmetric" if node.op_type == "Upsample" else "half_pixel")
    if len(given) != 4 or given[:2] != wanted[:2] or mode not in ("nearest", "linear") or made.attribute("antialias", 0):
        raise Unsupported("only height and width of pictures are resized, by nearest neighbours or linearly")
    if mode == "linear":
        blob = made.bottom()
        for axis, last in ((3, wanted[2] == given[2]), (2, True)):
            if wanted[axis] == given[axis]:
                continue
            order = [0, 1, 3, 2] if axis == 2 else None
            matrix = interpolation(given[axis], wanted[axis], coordinates)
            blob = made.layer("Permute", [blob], "permute_param", order=order) if order else blob
            blob = made.layer("InnerProduct", [blob], "inner_product_param", [matrix], last=last and not order,
                              num_output=wanted[axis], bias_term=False, axis=3)
            blob = made.layer("Permute", [blob], "permute_param", last=True, order=order) if order else blob
        if given == wanted:
            made.alias()
        return
    if any(a * f != b for a, b, f in zip(given, wanted, factors)):
        raise Unsupported("nearest neighbours are exact for whole factors alone")
    if coordinates not in ("asymmetric", "half_pixel"):
        raise Unsupported(f"its coordinates are {coordinates}")
    made.layer("Deconvolution", [made.bottom()], "convolution_param", [np.ones((given[1], 1, *factors[2:]))], last=True,
               num_output=given[1], group=given[1], bias_term=False, kernel_size=factors[2:], stride=factors[2:])


def interpolation(size, result, coordinates):
    """Return the matrix (result, size) of a linear interpolation of one axis."""
    where = np.arange(result, dtype=np.float64)
    if coordinates == "align_corners":
        where *= (size - 1) / max(1, result - 1)
    elif coordinates == "asymmetric":
        where *= size / result
    elif coordinates == "half_pixel" or coordinates == "pytorch_half_pixel" and result > 1:
        where = (where + 0.5) * size / result - 0.5
    elif coordinates == "pytorch_half_pixel":
        where *= 0
    else:
        raise Unsupported(f"its coordinates are {coordinates}")
    where = where.clip(0, size - 1)
    check_bytes(8 * result * size, f"the matrix of a Resize from {size} to {result}")
    low = np.floor(where).astype(int)
    made = np.zeros((result, size))
    made[np.arange(result), low] = 1 - (where - low)
    made[np.arange(result), np.minimum(low + 1, size - 1)] += where - low
    return made
