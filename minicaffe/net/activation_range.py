"""What a blob of a net holds over many batches: its range, its histogram, and ranges for int8.

A range T gives the int8 value ``q = clip(round(x / s), -127, 127)`` with the scale ``s = T / 127``; it represents ``q s``. Three
ranges are computed: the greatest absolute value; a percentile of the absolute values; and the one of the smallest Kullback-Leibler
divergence, by the method of ncnn (tools/quantize/ncnn2table.cpp, `QuantNet::quantize_KL`, after S. Migacz, "8-bit inference with
TensorRT", 2017). As there, a histogram has 2048 bins from zero to the greatest absolute value, and zeros are left out.
"""

import math

import numpy as np

BINS = 2048         # of a histogram, as in ncnn2table
LEVELS = 128        # that int8 has for the absolute values: 0 to 127
MOST = 127          # the greatest int8 value that is used
METHODS = ("kl", "percentile", "max")
KL_FLOOR = 1e-4     # ncnn adds it to each bin, so that no bin is empty
CHUNK = 1 << 20     # elements that are measured at once
POINTS = 8          # in each bin, for the expected error


class Value:
    """What a blob holds after one of the layers that write it.

    Attributes
    ----------
    name : str
        The blob's, or BLOB/LAYER for a value that a later layer overwrites in place.
    layer, layer_type : str
        The layer that wrote it.
    role : str
        ``activation``; ``label`` for labels and indices that the data have; ``result`` for a loss or an accuracy. Only activations
        are quantized.
    count, zeros, nan, infinite : int
        The finite elements in all batches, those of them that are zero, and those that are not finite.
    min, max : float
        Of the finite elements; NaN if there are none.
    square_sum : float
        Of the finite elements.
    histogram : ndarray of uint64, shape (BINS,)
        Of the absolute values that are not zero, from 0 to the greatest. What the second pass finds beyond that, as of a source of
        random data, counts in the last bin.
    thresholds : dict of str to float
        By the names of `METHODS`; empty without a finite element, zeros if all are zero.
    """

    def __init__(self, name, node, role):
        self.name, self.layer, self.layer_type, self.role = name, node.name, node.type, role
        self.count = self.zeros = self.nan = self.infinite = 0
        self._low, self._high, self.square_sum = math.inf, -math.inf, 0.0
        self.histogram = np.zeros(BINS, np.uint64)
        self.thresholds = {}

    @property
    def min(self):
        return self._low if self.count else math.nan

    @property
    def max(self):
        return self._high if self.count else math.nan

    @property
    def absmax(self):
        """float: the greatest absolute value, 0 without a finite element."""
        return max(abs(self._low), abs(self._high)) if self.count else 0.0

    def scale_range(self, method):
        """Return the range for a table, by a method: 1 if all elements are zero, None without a finite element."""
        return (self.thresholds[method] or 1.0) if self.thresholds else None

    def beyond(self, method):
        """Return the share of the elements whose absolute value is above a threshold, to within a bin."""
        at = self.thresholds[method] / self.absmax * BINS if self.absmax else BINS
        whole = min(BINS, math.ceil(at))
        count = float(self.histogram[whole:].sum())
        if whole > at:
            count += (whole - at) * float(self.histogram[whole - 1])
        return count / self.count

    def snr(self, method):
        """Return the signal-to-noise ratio in dB that is expected of int8 in the range of a method; infinite for a value of zeros.

        The noise is that of `POINTS` points in each bin, rounded and cut: exact for a density that is constant in a bin.
        """
        if not self.square_sum:
            return math.inf
        step = self.thresholds[method] / MOST
        points = (np.arange(BINS * POINTS) + 0.5) * (self.absmax / (BINS * POINTS))
        errors = (points - np.clip(np.rint(points / step), 0, MOST) * step) ** 2
        noise = float(np.dot(errors.reshape(BINS, POINTS).mean(1), self.histogram.astype(np.float64)))
        return 10 * math.log10(self.square_sum / noise) if noise else math.inf

    def add_range(self, array):
        """Count the elements of an array of any shape; of the first pass."""
        for part in _chunks(array):
            finite = np.isfinite(part)
            if not finite.all():
                nan = int(np.isnan(part).sum())
                self.nan += nan
                self.infinite += part.size - int(finite.sum()) - nan
                part = part[finite]
            if part.size:
                self.count += part.size
                self.zeros += part.size - int(np.count_nonzero(part))
                self._low, self._high = min(self._low, float(part.min())), max(self._high, float(part.max()))
                wide = part.astype(np.float64)
                self.square_sum += float(np.dot(wide, wide))

    def add_histogram(self, array):
        """Count the elements of an array of any shape in the histogram; of the second pass."""
        if not self.absmax:
            return
        for part in _chunks(array):
            part = np.abs(part[np.isfinite(part) & (part != 0)], dtype=np.float64)
            bins = np.minimum(part / self.absmax * BINS, BINS - 1).astype(np.int64)
            self.histogram += np.bincount(bins, minlength=BINS).astype(np.uint64)

    def find_thresholds(self, percentile):
        """Set `thresholds`."""
        if not self.count:
            return
        self.thresholds = dict.fromkeys(METHODS, self.absmax)
        if self.histogram.any():
            self.thresholds["percentile"] = self._percentile(percentile) or self.absmax
            self.thresholds["kl"] = kl_threshold(self.histogram, self.absmax)

    def _percentile(self, percentile):
        """Return a percentile of the absolute values, zeros included, to within a bin."""
        counts = self.histogram.astype(np.float64)
        wanted = percentile / 100 * (self.zeros + counts.sum()) - self.zeros
        if wanted <= 0:
            return 0.0
        sums = np.cumsum(counts)
        at = min(int(np.searchsorted(sums, wanted)), BINS - 1)
        part = (wanted - (sums[at] - counts[at])) / counts[at] if counts[at] else 1.0
        return float((at + min(1.0, part)) * self.absmax / BINS)


def kl_threshold(histogram, absmax):
    """Return the range whose int8 histogram has the smallest Kullback-Leibler divergence from that of the values (ncnn's method).

    For each number of bins t from 128 up to all but one: p is the histogram cut at t, with the values beyond in its last bin. q is
    the uncut histogram up to t, averaged over 128 equal parts. 1e-4 is added to each bin of both. The t with the smallest
    ``sum(p log(p / q))`` gives the range ``(t + 0.5) absmax / bins``.

    Different from ncnn: of equal divergences the greatest t counts. ncnn takes the first, which cuts a blob of one absolute value,
    such as a mask, to a sixteenth of it. ncnn adds up in float32, so of two that are nearly equal the other may be the smaller.

    Parameters
    ----------
    histogram : array_like, shape (bins,)
        Of the absolute values from 0 to `absmax`, without zeros; at least 129 bins, and one that is not empty.
    absmax : float

    Returns
    -------
    float
    """
    histogram = np.asarray(histogram, np.float64)
    bins = len(histogram)
    share = histogram / histogram.sum()
    sums = np.concatenate([[0.0], np.cumsum(share)])
    edges = np.arange(bins + 1.0)
    best, smallest = LEVELS, math.inf
    for t in range(LEVELS, bins):
        p = share[:t] + KL_FLOOR
        p[-1] += sums[-1] - sums[t]
        knots = np.arange(LEVELS + 1) * (t / LEVELS)
        # A bin that two parts share gives each the part of its mass that lies there, so the sums are linear within a bin.
        q = np.diff(np.interp(edges[:t + 1], knots, np.interp(knots, edges, sums))) + KL_FLOOR
        divergence = float(np.dot(p, np.log(p / q)))
        if divergence <= smallest:
            best, smallest = t, divergence
    return float((best + 0.5) * absmax / bins)


def _chunks(array):
    flat = np.ravel(array)
    return (flat[i:i + CHUNK] for i in range(0, flat.size, CHUNK))
