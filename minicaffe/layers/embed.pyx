"""Layers that pick rows by index: Embed, BatchReindex, Filter (Caffe embed_layer.cpp, batch_reindex_layer.cpp,
filter_layer.cpp).

Different from Caffe: every index is checked in every pass, and a Filter that let nothing through can go backward.
"""

from minicaffe.blob cimport INT, Blob
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context

import numpy as np

from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import refuse_in_place

cdef extern from "minicaffe/ops/rows/caffe.hpp" namespace "mc" nogil:
    long long read_indices "mc::cpu::read_indices"(int dtype, long long n, const void* x, long long limit, int* out)
    void gather_rows(const Context& on, long long n, const int* index, long long bytes, const void* x, void* y)
    void scatter_rows(const Context& on, long long n, const int* index, long long bytes, const void* x, void* y)
    void add_rows(const Context& on, int dtype, long long n, const int* index, long long columns, const void* x, void* y)

cdef extern from "minicaffe/ops/broadcast/caffe.hpp" nogil:
    void shift_by "mc::broadcast1<mc::ShiftBy>"(
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* b)

cdef extern from "minicaffe/ops/sums/caffe.hpp" nogil:
    void channel_sums "mc::channel_sums_typed<mc::SumTerm>"(
        const Context&, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)


cdef class RowLayer(DeviceLayer):
    """A layer that reads indices of rows."""

    cdef Blob index       # integers, one for each row picked
    cdef long long row    # bytes of a row

    cdef const int* take_indices(self, const Context& on, Blob blob, long long limit, str field) except? NULL:
        """Read the values of `blob` as indices into `limit` rows, on the host; copy them to where the context computes."""
        if self.index is None:
            self.index = Blob(None, INT, f"{self.name} indices")
        self.index.reshape_like(blob)
        cdef int* out = <int*> self.index.mutable_cpu_data_ptr()
        cdef long long wrong = read_indices(self.dtype, blob.count, blob.cpu_data_ptr(), limit, out)
        if wrong >= 0:
            raise DataError(f"value {wrong} is {blob.cpu_data.reshape(-1)[wrong]:g}, an index must be from 0 to {limit - 1}",
                            field=field)
        return <const int*> self.index.data_on(on)

    def capture_obstacle(self):
        return "it reads indices on the host"

    cdef long long row_bytes(self, Blob blob, int axis) except -1:
        return blob.count_range(axis, blob.num_axes) * item_size(self.dtype)


cdef class EmbedLayer(RowLayer):
    """``y[m] = W[x[m]] + b``: rows of a learned table W [input_dim, num_output]; duplicates add up in its gradient."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long rows, columns

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.embed_param
        refuse_in_place(self, bottom, top)
        for field in ("num_output", "input_dim"):
            if getattr(param, field) < 1:
                raise ConfigError(f"must be given and at least 1, got {getattr(param, field)}", field=f"embed_param.{field}")
        self.rows, self.columns = param.input_dim, param.num_output
        self.add_param((self.rows, self.columns), param.weight_filler, "embed_param.weight_filler")
        if param.bias_term:
            self.add_param((self.columns,), param.bias_filler, "embed_param.bias_filler")

    cpdef reshape(self, list bottom, list top):
        top[0].reshape_to((*bottom[0].shape, self.columns))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], weight = self.blobs[0]
        cdef const int* index = self.take_indices(on, x, self.rows, "bottom[0]")
        cdef const void* w = weight.data_on(on)
        cdef const void* b = (<Blob> self.blobs[1]).data_on(on) if len(self.blobs) > 1 else NULL
        cdef long long row = self.row_bytes(weight, 1)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            gather_rows(on, x.count, index, row, w, y)
            if b:
                shift_by(on, self.dtype, x.count, self.columns, 1, y, y, NULL, b)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if propagate_down[0]:
            raise ConfigError("Embed has no gradient for indices; set propagate_down: false", field="bottom[0]")
        cdef Blob x = bottom[0]
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef const int* index
        cdef void* out
        if self.learns(0):
            index = self.take_indices(on, x, self.rows, "bottom[0]")
            out = (<Blob> self.blobs[0]).mutable_diff_on(on)
            with nogil:
                add_rows(on, self.dtype, x.count, index, self.columns, dy, out)
        if len(self.blobs) > 1 and self.learns(1):
            out = (<Blob> self.blobs[1]).mutable_diff_on(on)
            with nogil:
                channel_sums(on, self.dtype, x.count, self.columns, 1, 1, True, out, dy)

    def allow_force_backward(self, int bottom_index):
        """Indices have no gradient."""
        return False


cdef class BatchReindexLayer(RowLayer):
    """``y[m] = x[index[m]]`` along axis 0; bottom[1] holds the indices, which may repeat."""

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)

    cpdef reshape(self, list bottom, list top):
        if bottom[1].num_axes != 1:
            raise ShapeError(f"needs 1 axis, got shape {list(bottom[1].shape)}", field="bottom[1]")
        if bottom[0].num_axes < 1:
            raise ShapeError("needs an axis to pick from, got a scalar", field="bottom[0]")
        top[0].reshape_to((bottom[1].shape[0], *bottom[0].shape[1:]))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], chosen = bottom[1]
        cdef const int* index = self.take_indices(on, chosen, x.dim(0), "bottom[1]")
        cdef long long row = self.row_bytes(x, 1)
        cdef const void* data = x.data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            gather_rows(on, chosen.count, index, row, data, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if propagate_down[1]:
            raise ConfigError("BatchReindex has no gradient for indices; set propagate_down: false", field="bottom[1]")
        if not propagate_down[0]:
            return 0
        cdef Blob x = bottom[0], chosen = bottom[1]
        cdef const int* index = self.take_indices(on, chosen, x.dim(0), "bottom[1]")
        x.fill_diff_on(on, 0)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef long long columns = x.count_range(1, x.num_axes)
        with nogil:
            add_rows(on, self.dtype, chosen.count, index, columns, dy, dx)

    def allow_force_backward(self, int bottom_index):
        """Indices have no gradient."""
        return bottom_index == 0


cdef class FilterLayer(RowLayer):
    """Keep the rows of all bottoms but the last for which the last, the selector, is not 0.

    The shape of the tops depends on values, so it is found again before every forward; until the first forward every row
    counts as kept.
    """

    min_bottom_blobs = 2
    min_top_blobs = 1
    always_reshape = True

    cdef bint shaped   # the selector held values at some time

    cpdef layer_setup(self, list bottom, list top):
        if len(top) != len(bottom) - 1:
            raise ConfigError(f"{len(bottom)} bottoms, the last of them the selector, need {len(bottom) - 1} tops, got "
                              f"{len(top)}", field="top")
        refuse_in_place(self, bottom, top)
        self.index = Blob(None, INT, f"{self.name} indices")

    cpdef reshape(self, list bottom, list top):
        cdef Blob selector = bottom[len(bottom) - 1]
        if selector.num_axes < 1 or selector.count != selector.shape[0]:
            raise ShapeError(f"the selector needs one value a row, got shape {list(selector.shape)}",
                             field=f"bottom[{len(bottom) - 1}]")
        for i, blob in enumerate(bottom):
            if blob.num_axes < 1 or blob.shape[0] != selector.count:
                raise ShapeError(f"has shape {list(blob.shape)}, the selector has {selector.count} rows", field=f"bottom[{i}]")
        if self.shaped:
            kept = np.flatnonzero(selector.cpu_data)
        else:
            kept = np.arange(selector.count)
            self.shaped = True
        self.index.reshape(len(kept))
        self.index.data[...] = kept
        for blob, x in zip(top, bottom):
            blob.reshape_to((len(kept), *x.shape[1:]))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const int* index = <const int*> self.index.data_on(on)
        cdef const void* x
        cdef void* y
        cdef long long row
        for i in range(len(top)):
            row = self.row_bytes(bottom[i], 1)
            x, y = (<Blob> bottom[i]).data_on(on), (<Blob> top[i]).mutable_data_on(on)
            with nogil:
                gather_rows(on, self.index.count, index, row, x, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if propagate_down[len(bottom) - 1]:
            raise ConfigError("Filter has no gradient for its selector; set propagate_down: false",
                              field=f"bottom[{len(bottom) - 1}]")
        cdef const int* index = <const int*> self.index.data_on(on)
        cdef const void* dy
        cdef void* dx
        cdef long long row
        for i in range(len(top)):
            if propagate_down[i]:
                (<Blob> bottom[i]).fill_diff_on(on, 0)
                row = self.row_bytes(bottom[i], 1)
                dy, dx = (<Blob> top[i]).diff_on(on), (<Blob> bottom[i]).mutable_diff_on(on)
                with nogil:
                    scatter_rows(on, self.index.count, index, row, dy, dx)

    def allow_force_backward(self, int bottom_index):
        """The selector, the last bottom, has no gradient."""
        return bottom_index < len(self.param.bottom) - 1


register_layer("Embed", EmbedLayer)
register_layer("BatchReindex", BatchReindexLayer)
register_layer("Filter", FilterLayer)
