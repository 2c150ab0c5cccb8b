"""The operation of BatchNorm and MVN: subtract a mean, divide by a deviation."""

import numpy as np

from minicaffe.errors import ShapeError


cdef class Standardize(Operation):
    """``y = (x - mean) / deviation`` for each channel of (outer, channels, inner); `rule` is the formula of the deviation.

    With `given` mean and variance are read from their blobs, else forward computes those of x and stores them there. Forward keeps
    a copy of x only if x and y are one blob and the gradient needs it.

    With a `group` of processes (minicaffe.parallel.group.Group), which compute at the same time, mean and variance are those of
    all their values, and the gradient is that of the sum of their losses. The processes exchange two numbers for each channel in
    forward and in backward, through the host.
    """

    def __init__(self, *arguments):
        self.mean, self.variance, self.factor, self.scale, self.shift, self.sums = [
            Blob((0,), self.dtype, "statistics") for _ in range(6)]

    cdef int set_shape(self, long long outer, long long channels, long long inner, bint in_place) except -1:
        """Set the shape."""
        if outer != self.shape.outer or channels != self.shape.channels or inner != self.shape.inner:
            self.fused_epilogue = None
        self.shape, self.in_place = Channels(outer, channels, inner), in_place
        for blob in (self.mean, self.variance, self.factor, self.scale, self.shift):
            blob.reshape(channels)
        return self.changed()

    cdef bint needs_x_copy(self):
        """Whether backward needs x, and y overwrites it."""
        return self.in_place and (not self.given or self.fused_epilogue is not None)

    cdef Blob values(self, Blob bottom):
        """Return the blob with the values of x for backward: the bottom, or its copy."""
        if not self.needs_x_copy():
            return bottom
        if self.kept is None or not self.kept.same_shape(bottom):
            raise ShapeError(f"forward has not run for a bottom of shape {list(bottom.shape)}, and backward of a layer in place "
                             "needs the bottom that it kept; run forward before backward", field="bottom[0]")
        return self.kept

    cdef int allreduce_moments(self) except -1:
        """Replace mean and variance of this process by those over all processes."""
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

    cdef int allreduce_gradient_terms(self) except -1:
        """Sum the terms that the gradient of x subtracts over all processes."""
        sums = self.sums.data[:2 * self.shape.channels]
        sums[...] = self.group.gather_array(sums.astype(np.float64)).sum(0)
        return 0


cdef class BatchNorm(Standardize):
    """Standardize with the rule EPS_INSIDE; Scale and ReLU after it are fused."""

    epilogue_class = NormEpilogue
    fuses_backward = True
