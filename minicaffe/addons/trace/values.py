"""Values of the arrays of a net for the page of a trace: statistics, a histogram, and pictures such as feature maps.

They are those of one more iteration, which runs after the recorded ones. It runs layer by layer, and all its arrays are copied to
the host. In a recorded iteration this would change states, copies and the fusion of layers.
"""

import base64
import math

import numpy as np

from minicaffe.errors import check_type
from minicaffe.net.net import Net
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.solver.solver import Solver
from minicaffe.inspection.watch import measure
from minicaffe.addons.trace.model import Trace

BINS = 32           # of a histogram
BLOCK = 1 << 16     # values that are binned at once: an array may have GiB
MAX_MAPS = 16       # of an array
MAX_SIDE = 32       # of a picture of a channel; a larger one is sampled
MAX_MATRIX = 96     # of a side of the picture of an array without height and width
NOT_FINITE = 255    # level of a value that is not finite; the least value has level 0, the largest 254


def add(trace, target):
    """Run one more iteration of `target`, and put the values of its arrays into a Trace as ``values`` (docs/trace.md).

    Parameters
    ----------
    trace : Trace
    target : Solver or Net
        The recorded one. A Net runs forward only.
    """
    check_type(trace, Trace, "trace", "a Trace")
    check_type(target, Solver | Net, "target", "a Solver or a Net")
    solver = target if isinstance(target, Solver) else None
    net, found = target.net if solver else target, {}

    def keep(title, layer, array, filters=False):
        if array.size:
            # A later layer in place has the same title: its values replace those of its bottom.
            found[title] = {"title": title, "layer": layer, **values_of(array, filters)}

    def tops(index):
        node = net.nodes[index]
        for blob in node.tops if node.type != "Split" else ():
            keep(blob.name, node.name, blob.cpu_data)

    def gradients(index):
        node = net.nodes[index]
        for blob in node.tops if node.type != "Split" and node.needs_backward else ():
            keep(f"{blob.name} diff", node.name, blob.cpu_diff)

    def parameters(diff=True):
        for blob in net.param_table.params:
            layer = blob.name.rpartition("[")[0]
            keep(blob.name, layer, blob.cpu_data, filters=True)
            if diff:
                keep(f"{blob.name} diff", layer, blob.cpu_diff, filters=True)

    iteration, callback = solver.iter if solver else None, (lambda: None, parameters)
    net.add_hook(AFTER_FORWARD, tops)
    net.add_hook(BEFORE_BACKWARD, gradients)
    try:
        if solver:
            solver.callbacks.append(callback)
            try:
                solver.step(1)
            finally:
                solver.callbacks.remove(callback)
        else:
            net.forward_from_to(0, len(net.nodes) - 1)
            parameters(diff=False)
    finally:
        net.remove_hook(AFTER_FORWARD, tops)
        net.remove_hook(BEFORE_BACKWARD, gradients)
    trace.fill({**trace.document, "values": {"iteration": iteration, "arrays": list(found.values())}})


def values_of(array, filters=False):
    """Return shape, statistics, histogram and pictures of an array that is not empty; `filters`: it is a parameter."""
    array = np.asarray(array, np.float32)
    measured = measure(array)
    found = {key: measured[key] for key in ("norm", "min", "max", "wrong")} | {"zeros": float(measured["zeros"])}
    finite = array[np.isfinite(array)] if measured["wrong"] else array.ravel()      # no copy of a finite array, which may have GiB
    mean = float(finite.mean(dtype=np.float64)) if finite.size else None
    return {"shape": list(array.shape), **found, "mean": mean, "histogram": bin_counts(finite, BINS), "maps": maps(array, filters)}


def bin_counts(finite, bins):
    """Return how many values lie in each of `bins` parts of their range: [] without values, all in the middle if they are equal.

    np.histogram raises for ranges that the dtype cannot divide: two neighbouring float32, or the full range of float16.
    """
    if not finite.size:
        return []
    low, high = float(finite.min()) / 2, float(finite.max()) / 2    # the difference of halves cannot overflow
    if low == high:
        return [finite.size if i == bins // 2 else 0 for i in range(bins)]
    counts = np.zeros(bins, int)
    for part in np.array_split(finite.ravel(), -(-finite.size // BLOCK)):
        places = ((part.astype(np.float64) / 2 - low) / (high - low) * bins).astype(int)
        counts += np.bincount(np.minimum(places, bins - 1), minlength=bins)
    return counts.tolist()


def maps(array, filters=False):
    """Return pictures of an array: a dict with what they are, their number and size, and `levels`.

    `levels` has a byte for each value, in base64: 0 for the least value shown, 254 for the largest. An array of four axes gives the
    channels of its first sample. Filters, and samples with one channel, give the first channel of each. Other arrays give one
    matrix, whose rows are the first axis.
    """
    if array.ndim >= 4:
        planes, side = array.reshape(*array.shape[:2], array.shape[2], -1), MAX_SIDE
        first_channels = filters or planes.shape[1] == 1
        planes = planes[:, 0] if first_channels else planes[0]
        what = "channels of the first sample"
        if first_channels:
            what = "filters, the first channel of each" if filters else "samples"
    else:
        planes, side, what = array.reshape(1, len(array) if array.ndim > 1 else 1, -1), MAX_MATRIX, "matrix"
    total = len(planes)
    planes = planes[:MAX_MAPS, :: math.ceil(planes.shape[1] / side), :: math.ceil(planes.shape[2] / side)].astype(np.float64)
    finite = np.isfinite(planes)
    low, high = (float(planes[finite].min()), float(planes[finite].max())) if finite.any() else (0.0, 0.0)
    levels = np.full(planes.shape, NOT_FINITE, np.uint8)
    levels[finite] = np.rint((planes[finite] - low) / (high - low or 1) * (NOT_FINITE - 1))
    return {"what": what, "of": total, "count": len(planes), "height": planes.shape[1], "width": planes.shape[2],
            "levels": base64.b64encode(levels.tobytes()).decode()}
