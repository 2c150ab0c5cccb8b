"""Embed: rows of a learned table (Caffe embed_layer.cpp)."""

from minicaffe.layers.base.rows cimport Blob, Context, RowLayer
from minicaffe.ops.broadcast.caffe cimport shift_by
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.ops.rows.caffe cimport add_rows, copy_rows
from minicaffe.loops.sums.caffe cimport channel_sums

from minicaffe.layers.base.checks import check_size


cdef class EmbedLayer(RowLayer):
    """``y[m] = W[x[m]] + b``: rows of a learned table W [input_dim, num_output]; duplicates add up in its gradient."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    no_gradient = {0: "indices"}

    cdef long long rows, columns    # input_dim, num_output

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.embed_param
        for field in ("num_output", "input_dim"):
            check_size(getattr(param, field), f"embed_param.{field}", needed=True)
        self.rows, self.columns = param.input_dim, param.num_output
        self.add_param((self.rows, self.columns), param.weight_filler, "embed_param.weight_filler")
        if param.bias_term:
            self.add_param((self.columns,), param.bias_filler, "embed_param.bias_filler")

    cpdef reshape(self, list bottom, list top):
        top[0].reshape_to((*bottom[0].shape, self.columns))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], weight = self.blobs[0]
        cdef const int* index = self.take_indices(on, x, self.rows, "bottom[0]")
        cdef const void* b = (<Blob> self.blobs[1]).data_on(on) if len(self.blobs) > 1 else NULL
        cdef long long row = self.row_bytes(weight)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            copy_rows(on, x.count, index, row, False, weight.data_on(on), y)
            if b:
                shift_by(on, self.dtype, Channels(x.count, self.columns, 1), y, y, NULL, b)     # y += b

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob x = bottom[0]
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef const int* index
        cdef void* out
        if self.needs_gradient(0):
            index = self.take_indices(on, x, self.rows, "bottom[0]")
            out = (<Blob> self.blobs[0]).mutable_diff_on(on)
            with nogil:
                add_rows(self.dtype, on, x.count, index, self.columns, dy, out)     # out[index[m]] += dy[m]
        if len(self.blobs) > 1 and self.needs_gradient(1):
            out = (<Blob> self.blobs[1]).mutable_diff_on(on)
            with nogil:
                channel_sums(on, self.dtype, Channels(x.count, self.columns, 1), 1, True, out, dy)
