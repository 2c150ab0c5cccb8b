"""Filter: records for which a selector is not 0 (Caffe filter_layer.cpp).

Different from Caffe: a Filter that let nothing through can go backward.
"""

import numpy as np

from minicaffe.blob cimport INT, Blob
from minicaffe.layers.base.rows cimport Context, RowLayer
from minicaffe.ops.rows.caffe cimport copy_rows

from minicaffe.errors import ConfigError, ShapeError


cdef class FilterLayer(RowLayer):
    """Keep the rows of all bottoms but the last for which the last, the selector, is not 0.

    The shape of the tops depends on values, so `reshape` runs before every forward. The first one, when the net is built, keeps
    every row.
    """

    min_bottom_blobs = 2
    min_top_blobs = 1
    refuses_in_place = True
    always_reshape = True
    backward_reads_bottoms = backward_reads_tops = False

    @property
    def no_gradient(self):    # a property, as the selector is the last bottom
        return {self.num_bottoms - 1: "its selector"}    # index of a bottom -> word for an error

    cdef bint reshaped_once     # a reshape ran before, in `set_up`, so that the selector has values now

    cpdef layer_setup(self, list bottom, list top):
        if len(top) != len(bottom) - 1:
            raise ConfigError(f"{len(bottom)} bottoms, the last of them the selector, need {len(bottom) - 1} tops, got "
                              f"{len(top)}", field="top")
        self.index = Blob(None, INT, f"{self.name} indices")

    cpdef reshape(self, list bottom, list top):
        cdef Blob selector = bottom[len(bottom) - 1]
        if selector.num_axes < 1 or selector.count != selector.shape[0]:
            raise ShapeError(f"the selector needs one value per row, got shape {list(selector.shape)}",
                             field=f"bottom[{len(bottom) - 1}]")
        for i, blob in enumerate(bottom):
            if blob.num_axes < 1 or blob.shape[0] != selector.count:
                raise ShapeError(f"has shape {list(blob.shape)}, the selector has {selector.count} rows", field=f"bottom[{i}]")
        kept = np.flatnonzero(selector.cpu_data) if self.reshaped_once else np.arange(selector.count)
        self.reshaped_once = True
        self.index.reshape(len(kept))
        self.index.data[...] = kept     # of the kept rows, for forward and backward
        for blob, x in zip(top, bottom):
            blob.reshape_to((len(kept), *x.shape[1:]))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const int* index = <const int*> self.index.data_on(on)
        cdef const void* x
        cdef void* y
        cdef long long row
        for i in range(len(top)):
            row = self.row_bytes(bottom[i])
            x, y = (<Blob> bottom[i]).data_on(on), (<Blob> top[i]).mutable_data_on(on)
            with nogil:
                copy_rows(on, self.index.count, index, row, False, x, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef const int* index = <const int*> self.index.data_on(on)
        cdef const void* dy
        cdef void* dx
        cdef long long row
        for i in range(len(top)):
            if propagate_down[i]:
                (<Blob> bottom[i]).fill_diff_on(on, 0)
                row = self.row_bytes(bottom[i])
                dy, dx = (<Blob> top[i]).diff_on(on), (<Blob> bottom[i]).mutable_diff_on(on)
                with nogil:
                    copy_rows(on, self.index.count, index, row, True, dy, dx)   # True: to the indices; other rows are 0
