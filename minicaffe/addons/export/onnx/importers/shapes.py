"""Operators that move, cut, repeat, reduce and resize values."""

import logging
import math

import numpy as np

from minicaffe.addons.export.onnx.conversion import Unsupported, importer
from minicaffe.memory.budget import check_bytes
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


def multiplied(made, blob, given, matrices, last=True):
    """Return the products of matrices (results, values), a dict by axis, with a blob: InnerProducts, between Permutes."""
    count = len(given)
    for axis, matrix in matrices.items():
        ends, order = last and axis == list(matrices)[-1], [*range(axis), *range(axis + 1, count), axis]
        back = axis < count - 1
        if back:
            blob = made.layer("Permute", [blob], "permute_param", order=order)
        blob = made.layer("InnerProduct", [blob], "inner_product_param", [matrix], last=ends and not back, num_output=len(matrix),
                          bias_term=False, axis=count - 1)
        if back:
            blob = made.layer("Permute", [blob], "permute_param", last=ends, order=np.argsort(order).tolist())
    return blob


def selected(made, blob, given, changes, last=True):
    """Return a blob with other indices along some axes, a dict of axis to array; index -1 gives 0.

    A range is cut out by a Slice; steps along the picture and zeros around it are a convolution. All else is a matrix product for
    each axis: its values must be finite, as each result is a sum of all values along the axis, but one times 0.
    """
    if not all(map(len, changes.values())):
        raise Unsupported("it keeps nothing of an axis")
    lines = {axis: line(indices, given[axis]) for axis, indices in changes.items()}
    even = None not in lines.values()
    if even and all(lines[axis][1] == 1 and min(indices) >= 0 for axis, indices in changes.items()):
        for axis, (first, _) in lines.items():
            blob = made.part(blob, given[axis], axis, first, len(changes[axis]))
        return made.layer("Power", [blob], last=True) if last else blob
    if even and last and min(changes) > 1:
        return one_tap(made, blob, given, {axis: (*lines[axis], len(changes[axis])) for axis in changes})
    matrices = {}
    for axis, indices in changes.items():
        check_matrix(made, given[axis], len(indices))
        matrices[axis] = indices[:, None] == np.arange(given[axis])
    return multiplied(made, blob, given, matrices, last)


def check_matrix(made, size, result):
    """Raise an error if the matrix from `size` to `result` values is beyond the budget."""
    check_bytes(8 * result * size, f"the matrix of a {made.node.op_type} from {size} to {result}")


def line(indices, size):
    """Return the first of indices that grow evenly, and the step; None for others. Index -1 is one outside of `size`."""
    inside = np.flatnonzero(indices >= 0)
    if not len(inside):
        return None
    step = int(indices[inside[1]] - indices[inside[0]]) if len(inside) > 1 else 1
    even = int(indices[inside[0]]) + step * (np.arange(len(indices)) - inside[0])
    return (int(even[0]), step) if step > 0 and np.array_equal(np.where((even >= 0) & (even < size), even, -1), indices) else None


def one_tap(made, blob, given, lines):
    """Take the indices ``first + i step``, i < count, along axes, a dict of axis to these: kernels of a single 1, and zeros."""
    kernel, place, pad, stride = [], [], [], []
    for axis in range(2, len(given)):
        first, step, count = lines.get(axis, (0, 1, given[axis]))
        pad.append(max(0, -first, first + (count - 1) * step + 1 - given[axis]))
        place.append(first + pad[-1])
        kernel.append(max(place[-1] + 1, given[axis] + 2 * pad[-1] - count * step + 1))     # for exactly `count` windows
        stride.append(step)
    taps = np.zeros((given[1], 1, *kernel))
    taps[(slice(None), 0, *place)] = 1
    return depthwise(made, blob, "Convolution", taps, pad=pad, stride=stride)


def depthwise(made, blob, kind, taps, **windows):
    """Return the node's output: a convolution or deconvolution of each channel by its own kernel, `taps` (channels, 1, ...)."""
    return made.layer(kind, [blob], "convolution_param", [taps], last=True, num_output=len(taps), group=len(taps),
                      bias_term=False, kernel_size=taps.shape[2:], **windows)


@importer("Slice")
def slice_(made, node):
    starts, ends = (made.attribute(name, made.constant(i, name)) for i, name in ((1, "starts"), (2, "ends")))
    axes, steps = made.attribute("axes", made.constant(3, "axes")), made.constant(4, "steps")    # attributes before opset 10
    given, changes = made.shape(), {}
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        whole = np.arange(given[int(axis)])
        part = whole[int(starts[i]):int(ends[i]):1 if steps is None else int(steps[i])]
        if not np.array_equal(part, whole):
            changes[int(axis) % len(given)] = part
    replaced(made, changes)


def replaced(made, changes):
    """Let the output be the input with other indices along some axes; see `selected`."""
    if changes:
        selected(made, made.bottom(), made.shape(), changes)
    else:
        made.alias()


@importer("Gather")
def gather(made, node):
    indices, axis, given = made.constant(1, "indices"), made.attribute("axis", 0), made.shape()
    axis %= len(given)
    flat = np.where(indices < 0, indices + given[axis], indices).reshape(-1)
    blob = selected(made, made.bottom(), given, {axis: flat}, last=indices.ndim == 1)
    if indices.ndim != 1:
        made.reshaped(blob, [*given[:axis], len(flat), *given[axis + 1:]], made.result, last=True)


@importer("Expand", "Tile")
def tile(made, node):
    made.layer("Power", [made.broadcast(made.bottom(), made.shape(), made.result)], last=True)


@importer("Pad")
def pad(made, node):
    given, amounts = made.shape(), made.constant(1, "pads")
    value, axes, mode = made.constant(2, "value"), made.constant(3, "axes"), made.attribute("mode", "constant")
    if amounts is None:     # before opset 11
        amounts, value = made.attribute("pads"), np.float32(made.attribute("value", 0.0))
    if mode == "constant" and value is not None and np.any(value != 0):
        raise Unsupported("it pads with something other than 0")
    half, changes = len(amounts) // 2, {}
    for axis, before, behind in zip(range(half) if axes is None else axes, amounts, amounts[half:]):
        if before or behind:
            size = given[int(axis)]
            left = np.arange(size)[max(0, -before):size + min(0, behind)]
            how = {"mode": mode} if mode != "constant" else {"constant_values": -1}
            changes[int(axis) % len(given)] = np.pad(left, (max(0, int(before)), max(0, int(behind))), **how)
    replaced(made, changes)


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
    if made.attribute("antialias", 0) or mode == "cubic" or how == "tf_crop_and_resize":
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
        kind = made.attribute("nearest_mode", "round_prefer_floor")
        changes = {axis: nearest(place, ("ceil" if factors[axis] < 1 else "floor") if old else kind).clip(0, given[axis] - 1)
                   for axis, place in places.items()}
        repeats = [max(1, result // size) for size, result in zip(given, wanted)]
        repeated = all(np.array_equal(one, np.arange(given[axis]).repeat(repeats[axis])) for axis, one in changes.items())
        if repeated and min(changes) > 1:
            depthwise(made, made.bottom(), "Deconvolution", np.ones((given[1], 1, *repeats[2:])), stride=repeats[2:])
        else:
            selected(made, made.bottom(), given, changes)
    else:
        multiplied(made, made.bottom(), given, {axis: interpolation(place, given[axis]) for axis, place in places.items()})


def positions(made, size, result, scale, how):
    """Return where the results of a Resize lie among the values of an axis, as float32 (results,), in which runtimes compute it."""
    check_matrix(made, size, result)
    x = np.arange(result, dtype=np.float32)
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


def interpolation(place, size):
    """Return the matrix (results, size) of a linear interpolation; values outside are those of the border."""
    place, made, rows = place.clip(0, size - 1), np.zeros((len(place), size)), np.arange(len(place))
    low = np.floor(place).astype(int)
    for tap in (0, 1):
        made[rows, (low + tap).clip(0, size - 1)] += 1 - np.abs(place - low - tap)
    return made
