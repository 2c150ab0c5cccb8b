"""Operators that move, cut, repeat, reduce and resize values."""

import logging
import math

import numpy as np

from minicaffe.memory.budget import check_bytes
from minicaffe.addons.export.onnx.conversion import Unsupported, importer
from minicaffe.addons.export.onnx.importers.products import cropped
from minicaffe.proto import caffe_pb2

POOLING = caffe_pb2.PoolingParameter
log = logging.getLogger(__name__)


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
    if 0 in sizes:
        raise Unsupported("it keeps nothing of an axis")
    points = np.cumsum(sizes)[:-1].tolist()
    made.layer("Slice", [made.bottom()], "slice_param", last=True, tops=len(sizes), axis=axis, slice_point=points)


def multiplied(made, blob, given, axis, matrix, last=False):
    """Return the product of a matrix (results, values) with the values along an axis: an InnerProduct, between Permutes."""
    back = axis < len(given) - 1
    order = [*range(axis), *range(axis + 1, len(given)), axis]
    if back:
        blob = made.layer("Permute", [blob], "permute_param", order=order)
    blob = made.layer("InnerProduct", [blob], "inner_product_param", [matrix], last=last and not back, num_output=len(matrix),
                      bias_term=False, axis=len(given) - 1)
    return made.layer("Permute", [blob], "permute_param", last=last, order=np.argsort(order).tolist()) if back else blob


def selected(made, blob, given, changes, last=True):
    """Return a blob with other indices along some axes, a dict of axis to array; index -1 gives 0.

    The values must be finite: each result is a sum of all values along the axis, but one times 0.
    """
    shape = list(given)
    for axis, indices in changes.items():
        check_bytes(8 * len(indices) * shape[axis], f"the matrix of a {made.node.op_type} from {shape[axis]} to {len(indices)}")
        matrix = np.zeros((len(indices), shape[axis] + 1))
        matrix[np.arange(len(indices)), indices] = 1
        blob = multiplied(made, blob, shape, axis, matrix[:, :-1], last and axis == list(changes)[-1])
        shape[axis] = len(indices)
    return blob


@importer("Slice")
def slice_(made, node):
    starts = made.attribute("starts", made.constant(1, "starts"))     # attributes before opset 10
    axes, steps = made.attribute("axes", made.constant(3, "axes")), made.constant(4, "steps")
    given = made.shape()
    axes = range(len(starts)) if axes is None else axes
    begin, stride = [0] * len(given), [1] * len(given)
    for i, axis in enumerate(axes):
        size, start = given[int(axis)], int(starts[i])
        stride[int(axis)] = step = 1 if steps is None else int(steps[i])
        begin[int(axis)] = min(size - (step < 0), max(0, start + size if start < 0 else start))
    if 0 in made.result:
        raise Unsupported("it keeps nothing of an axis")
    if all(step == 1 for step in stride):
        if tuple(given) == tuple(made.result):
            made.alias()
        else:
            cropped(made, made.bottom(), given, begin, made.result)
    elif len(given) < 3 or min(stride) < 1 or made.result[:2] != given[:2]:
        axes = [axis for axis in range(len(given)) if made.result[axis] != given[axis] or stride[axis] != 1]
        selected(made, made.bottom(), given, {axis: begin[axis] + stride[axis] * np.arange(made.result[axis]) for axis in axes})
    else:
        strided(made, given, begin, stride)


def strided(made, given, begin, stride):
    """Take every n-th value of spatial axes, from the first one on."""
    whole = [*made.result[:2], *((size - first - 1) // step + 1 for size, first, step in zip(given[2:], begin[2:], stride[2:]))]
    cut = tuple(whole) != tuple(made.result)
    top = one_tap(made, given[1], [first + 1 for first in begin[2:]], begin[2:], last=not cut, stride=stride[2:])
    if cut:
        cropped(made, top, whole, [0] * len(given), made.result)


def one_tap(made, channels, kernel, place, last=True, **windows):
    """Return the top of a depthwise convolution whose kernels have a 1 at one place, and are 0 elsewhere."""
    taps = np.zeros((channels, 1, *kernel))
    taps[(slice(None), 0, *place)] = 1
    return depthwise(made, "Convolution", taps, last, **windows)


def depthwise(made, kind, taps, last=True, **windows):
    """Return the top of a convolution or deconvolution of each channel by its own kernel, `taps` (channels, 1, ...)."""
    return made.layer(kind, [made.bottom()], "convolution_param", [taps], last=last, num_output=len(taps), group=len(taps),
                      bias_term=False, kernel_size=taps.shape[2:], **windows)


@importer("Gather")
def gather(made, node):
    indices, axis, given = made.constant(1, "indices"), made.attribute("axis", 0), made.shape()
    axis %= len(given)
    flat = np.where(indices < 0, indices + given[axis], indices).reshape(-1)
    part = [*given[:axis], len(flat), *given[axis + 1:]]
    if np.any(np.diff(flat) != 1):
        blob = selected(made, made.bottom(), given, {axis: flat}, last=indices.ndim == 1)
        if indices.ndim > 1:
            made.reshaped(blob, part, made.result, last=True)
        return
    if indices.ndim == 1:
        cropped(made, made.bottom(), given, [int(flat[0]) if i == axis else 0 for i in range(len(given))], part)
        return
    made.reshaped(made.part(made.bottom(), given[axis], axis, int(flat[0]), len(flat)), part, made.result, last=True)


@importer("Expand", "Tile")
def tile(made, node):
    made.layer("Power", [made.broadcast(made.bottom(), made.shape(), made.result)], last=True)


@importer("Pad")
def pad(made, node):
    given, amounts = made.shape(), made.constant(1, "pads")
    value, axes = made.constant(2, "value"), made.constant(3, "axes")
    if amounts is None:     # before opset 11
        amounts, value = made.attribute("pads"), np.float32(made.attribute("value", 0.0))
    count = len(given)
    before, behind = np.zeros(count, int), np.zeros(count, int)
    where = range(count) if axes is None else axes
    half = len(amounts) // 2
    for i, axis in enumerate(where):
        before[int(axis)], behind[int(axis)] = amounts[i], amounts[half + i]
    mode = made.attribute("mode", "constant")
    if mode == "constant" and value is not None and np.any(value != 0):
        raise Unsupported("it pads with something other than 0")
    if not before.any() and not behind.any():
        made.alias()
        return
    if mode != "constant" or before[:2].any() or behind[:2].any() or min(before.min(), behind.min()) < 0 or count < 3:
        changes = {}
        for axis in np.flatnonzero(before | behind).tolist():
            left = np.arange(given[axis])[max(0, -before[axis]):given[axis] + min(0, behind[axis])]
            more = [max(0, int(side[axis])) for side in (before, behind)]
            changes[axis] = np.pad(left, more, **{"mode": mode} if mode != "constant" else {"constant_values": -1})
        selected(made, made.bottom(), given, changes)
        return
    most = np.maximum(before, behind)[2:]
    one_tap(made, given[1], 1 + np.abs(before - behind)[2:], np.maximum(0, behind - before)[2:], pad=most.tolist())


@importer("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceL2", "ReduceSumSquare")
def reduce(made, node):
    axes, given = made.attribute("axes", made.constant(1, "axes")), made.shape()
    axes = [] if axes is None else sorted({int(axis) % len(given) for axis in axes})
    if not axes and made.attribute("noop_with_empty_axes", 0):
        raise Unsupported("it reduces no axis (noop_with_empty_axes)")
    axes = axes or list(range(len(given)))
    kept, blob = [axis for axis in range(len(given)) if axis not in axes], made.bottom()
    order, keep = kept + axes, len(made.result) == len(given)
    if order != sorted(order):      # Reduction and Pooling are over the last axes
        blob = made.layer("Permute", [blob], "permute_param", order=order)
    planes = axes == [2, 3] and len(given) == 4
    if node.op_type == "ReduceMax" or node.op_type == "ReduceMean" and planes:
        shape = given if planes else (math.prod(given[axis] for axis in kept), 1, math.prod(given[axis] for axis in axes), 1)
        blob = made.reshaped(blob, [given[axis] for axis in order], shape)
        blob = made.layer("Pooling", [blob], "pooling_param", last=keep and planes, global_pooling=True,
                          pool=POOLING.AVE if node.op_type == "ReduceMean" else POOLING.MAX)
        if not keep or not planes:
            made.reshaped(blob, (*shape[:2], 1, 1), made.result, last=True)
        return
    kind, root = caffe_pb2.ReductionParameter, node.op_type == "ReduceL2"
    operations = {"ReduceMean": kind.MEAN, "ReduceSum": kind.SUM, "ReduceL1": kind.ASUM, "ReduceSumSquare": kind.SUMSQ,
                  "ReduceL2": kind.SUMSQ}
    top = made.layer("Reduction", [blob], "reduction_param", last=not keep and not root, operation=operations[node.op_type],
                     axis=len(kept))
    if root:
        top = made.layer("Power", [top], "power_param", last=not keep, power=0.5)
    if keep:
        made.reshaped(top, [given[axis] for axis in kept], made.result, last=True)


@importer("ArgMax")
def arg_max(made, node):
    if not made.attribute("select_last_index", 0):
        log.warning("node '%s' (ArgMax): of equal maxima Caffe takes the last, this node takes the first", node.name or made.number)
    keep, axis = bool(made.attribute("keepdims", 1)), made.attribute("axis", 0) % len(made.shape())
    top = made.layer("ArgMax", [made.bottom()], "argmax_param", last=keep, axis=axis)
    if not keep:
        made.reshaped(top, (), made.result, last=True)


@importer("DepthToSpace", "SpaceToDepth")
def depth_to_space(made, node):
    (batch, channels, height, width), size = made.shape(), made.attribute("blocksize")
    if node.op_type == "SpaceToDepth":
        shape = batch, channels, height // size, size, width // size, size
        order = [0, 3, 5, 1, 2, 4] if made.attribute("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    elif made.attribute("mode", "DCR") == "DCR":
        shape, order = (batch, size, size, channels // size**2, height, width), [0, 3, 4, 1, 5, 2]
    else:
        shape, order = (batch, channels // size**2, size, size, height, width), [0, 1, 4, 2, 5, 3]
    blob = made.reshaped(made.bottom(), made.shape(), shape)
    blob = made.layer("Permute", [blob], "permute_param", order=order)
    made.reshaped(blob, [shape[axis] for axis in order], made.result, last=True)


@importer("Resize", "Upsample")
def resize(made, node):
    """Nearest neighbours by whole factors are a depthwise deconvolution with ones, all else a matrix product for each axis."""
    given, wanted, old = made.shape(), made.result, made.opset < 11
    mode, policy = made.attribute("mode", "nearest"), made.attribute("keep_aspect_ratio_policy", "stretch")
    how = made.attribute("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    scales = made.attribute("scales", made.constant(1 if old else 2, "scales"))     # an attribute in opset 7
    if made.attribute("antialias", 0) or how == "tf_crop_and_resize":
        raise Unsupported(f"its mode is {mode}{', with antialias' * made.attribute('antialias', 0)}, its coordinates are {how}")
    axes, factors = made.attribute("axes", range(len(given))), [result / size for size, result in zip(given, wanted)]
    if policy != "stretch":     # one factor for all axes
        factor = min if policy == "not_larger" else max
        scales = [factor(size / given[axis] for axis, size in zip(axes, made.constant(3, "sizes")))] * len(axes)
    for axis, scale in zip(axes, () if scales is None else scales):
        factors[axis] = scale
    places = {axis: positions(made, given[axis], wanted[axis], factors[axis], how)
              for axis in range(len(given)) if wanted[axis] != given[axis]}
    if not places:
        made.alias()
    elif mode == "nearest":
        kind, repeats = made.attribute("nearest_mode", "round_prefer_floor"), [1] * len(given)
        changes = {axis: nearest(place, ("ceil" if factors[axis] < 1 else "floor") if old else kind).clip(0, given[axis] - 1)
                   for axis, place in places.items()}
        for axis, indices in changes.items():
            repeats[axis] = max(1, wanted[axis] // given[axis])
            if not np.array_equal(indices, np.arange(given[axis]).repeat(repeats[axis])):
                repeats[0] = 0
        if len(given) < 3 or repeats[:2] != [1, 1]:
            selected(made, made.bottom(), given, changes)
            return
        depthwise(made, "Deconvolution", np.ones((given[1], 1, *repeats[2:])), stride=repeats[2:])
    else:
        blob, shape = made.bottom(), list(given)
        cubic = (made.attribute("cubic_coeff_a", -0.75), made.attribute("exclude_outside", 0)) if mode == "cubic" else ()
        for axis, place in places.items():
            blob = multiplied(made, blob, shape, axis, interpolation(place, given[axis], *cubic), last=axis == list(places)[-1])
            shape[axis] = wanted[axis]


def positions(made, size, result, scale, how):
    """Return where the results of a Resize lie among the values of an axis, as float32 (results,), in which runtimes compute it."""
    x = np.arange(result, dtype=np.float32)
    check_bytes(8 * result * size, f"the matrix of a {made.node.op_type} from {size} to {result}")
    if how == "align_corners":
        return x * (size - 1) / max(1, result - 1)
    if how == "asymmetric":
        return x / scale
    if how == "pytorch_half_pixel" and result == 1:
        return x * 0
    if how in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        return size / 2 * (1 - result / (size * scale)) + (x + 0.5) / scale - 0.5
    raise Unsupported(f"its coordinates are {how}")


def nearest(place, mode):
    """Return the indices of the nearest values."""
    rounded = {"floor": np.floor(place), "ceil": np.ceil(place), "round_prefer_floor": np.ceil(place - 0.5),
               "round_prefer_ceil": np.floor(place + 0.5)}
    return rounded[mode].astype(int)


def interpolation(place, size, a=None, exclude_outside=False):
    """Return the matrix (results, size) of a linear interpolation, or of a cubic convolution with the coefficient `a` (Keys 1981).

    Values outside are those of the border; `exclude_outside`: they have no weight, and the others add up to 1.
    """
    place = place.clip(0, size - 1) if a is None else place
    low = np.floor(place).astype(int)
    made, rows = np.zeros((len(place), size)), np.arange(len(place))
    for tap in (0, 1) if a is None else (-1, 0, 1, 2):
        t = np.abs(place - low - tap)
        weight = 1 - t if a is None else np.where(t <= 1, ((a + 2) * t - (a + 3)) * t * t + 1, ((t - 5) * t + 8) * t * a - 4 * a)
        inside = (low + tap >= 0) & (low + tap < size)
        made[rows, (low + tap).clip(0, size - 1)] += np.where(inside, weight, 0) if exclude_outside else weight
    return made / made.sum(1, keepdims=True) if exclude_outside else made
