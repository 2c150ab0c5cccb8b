"""Dropout (Caffe dropout_layer.cpp; Srivastava et al., 2014).

Different from Caffe: the mask is not stored. Random numbers are a function of seed and position in the stream
(ops/dropout/kernel.hpp), so backward draws the mask of the last forward again, and a resumed run repeats it. The position is
that in Caffe's order of elements, in every layout.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.strided.caffe cimport copy_typed
from minicaffe.engines.layouts cimport data_layout, diff_layout, stored

import math

from minicaffe.common import TEST
from minicaffe.errors import ConfigError

cdef extern from "minicaffe/ops/dropout/caffe.hpp" nogil:
    const int kDropBlock "mc::kDropBlock"
    const int kDropLanes "mc::kDropLanes"
    void dropout "mc::dropout"(const Context&, int, long long, long long, long long, unsigned long long, unsigned long long,
                                    unsigned int, double, const void*, void*)


cdef class DropoutLayer(DeviceLayer):
    """``y = x / (1 - p)`` with probability ``1 - p``, else 0, drawn in each forward; in TEST ``y = x``.

    p is `dropout_param.dropout_ratio`, from 0 to less than 1; in TEST also 1. In place is fine. A dropped NaN becomes 0.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    backward_reads_bottoms = backward_reads_tops = False

    cdef double scale               # 1 / (1 - p)
    cdef unsigned int threshold     # p 2^32: an element whose random word is below it is dropped
    cdef unsigned long long seed, start     # of the mask of the last forward: key, and first counter of the random numbers

    cpdef layer_setup(self, list bottom, list top):
        ratio = self.param.dropout_param.dropout_ratio
        if not 0 <= ratio <= 1 or ratio == 1 and self.phase != TEST:
            raise ConfigError(f"must be at least 0 and less than 1, got {ratio:g}", field="dropout_param.dropout_ratio")
        if self.phase != TEST:
            self.scale, self.threshold = 1 / (1 - ratio), int(ratio * 2**32)

    cpdef reshape(self, list bottom, list top):
        (<Blob?> top[0]).reshape_like(<Blob?> bottom[0])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        cdef Layout layout = data_layout(on, bottom, True) if self.draws_in_layouts(on) else None       # None: plain
        if self.phase != TEST:
            self.seed = self.generator.seed
            self.start = self.generator.reserve((x.count + kDropBlock - 1) // kDropBlock * kDropLanes)
        elif top[0] is x:
            return 0
        self._apply(on, layout, stored(layout, x), x.data_in_layout(on, layout),
                    (<Blob> top[0]).overwrite_data_in_layout(on, layout))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob x = bottom[0]
        cdef Layout layout = diff_layout(on, top, True) if self.draws_in_layouts(on) else None
        if self.phase == TEST and top[0] is x:
            return 0
        self._apply(on, layout, stored(layout, x), (<Blob> top[0]).diff_in_layout(on, layout),
                    x.overwrite_diff_in_layout(on, layout))

    cdef bint draws_in_layouts(self, const Context& on) noexcept:
        """Return whether arrays may be in an engine's layout: the CPU draws masks of plain arrays only."""
        return self.phase == TEST or on.stream != NULL

    cdef int _apply(self, const Context& on, Layout layout, long long count, const void* source, void* target) except -1:
        """Write data or, in backward, gradients times the mask of the last forward, drawn again; in TEST a copy of them."""
        cdef bint test = self.phase == TEST
        cdef int dtype = self.dtype if layout is None else layout.dtype
        cdef long long channels = 0, pixels = 1     # of an array with channels last; 0: plain
        if layout is not None and not test:
            channels, pixels = layout.dims[1], math.prod(layout.dims[2:])
        with nogil:
            if test:
                copy_typed(on, dtype, count, source, target)
            else:
                dropout(on, dtype, count, channels, pixels, self.seed, self.start, self.threshold, self.scale, source, target)
