"""Subtract a mean, divide by a deviation: what a layer describes."""

import numpy as np


cdef class Standardize(Operation):
    """``y = (x - mean) / deviation`` for each channel of (outer, channels, inner); `rule` says what the deviation is.

    With `given` mean and variance are what their blobs hold, else those of x, which forward puts there. Forward keeps x only where
    x and y are one blob and the gradient needs it.

    With a `group` of processes (minicaffe.parallel.group.Group), which compute at the same time, mean and variance are those of the
    values of all of them, and the gradient is that of the sum of their losses. What the processes tell each other, two numbers for each
    channel in forward and in backward, goes by way of the host.
    """

    def __init__(self, *arguments):
        self.mean, self.variance, self.factor, self.scale, self.shift, self.sums = [
            Blob((0,), self.dtype, "statistics") for _ in range(6)]

    cdef int see(self, long long outer, long long channels, long long inner, bint in_place) except -1:
        """Set the shape."""
        if outer != self.shape.outer or channels != self.shape.channels or inner != self.shape.inner:
            self.carried = None
        self.shape, self.in_place = Channels(outer, channels, inner), in_place
        for blob in (self.mean, self.variance, self.factor, self.scale, self.shift):
            blob.reshape(channels)
        return self.changed()

    cdef bint keeps_x(self):
        """Whether backward needs x, and y is in its place."""
        return self.in_place and (not self.given or self.carried is not None)

    cdef int join_moments(self) except -1:
        """Make the mean and variance of all processes' values of those of this one's."""
        cdef long long count = self.shape.outer * self.shape.inner
        theirs = self.group.gather_array(np.concatenate([[count], self.mean.data, self.variance.data], dtype=np.float64))
        counts = theirs[:, :1]
        means, variances = np.split(theirs[:, 1:], 2, 1)
        total = counts.sum()
        with np.errstate(all="ignore"):     # values that are not finite stay so
            mean = (counts * means).sum(0) / max(total, 1)
            self.mean.data[...] = mean
            self.variance.data[...] = (counts * (variances + (means - mean) ** 2)).sum(0) / max(total, 1)
        self.elsewhere = total - count
        return 0

    cdef int join_gradients(self) except -1:
        """Add up what the gradient of x subtracts."""
        sums = self.sums.data[:2 * self.shape.channels]
        sums[...] = self.group.gather_array(sums.astype(np.float64)).sum(0)
        return 0


cdef class BatchNorm(Standardize):
    """Standardize with the rule EPS_INSIDE; what Scale and ReLU do behind it takes no pass of its own."""

    takes_epilogue = NormEpilogue
    carries = True
