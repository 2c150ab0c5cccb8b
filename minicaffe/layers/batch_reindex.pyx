"""BatchReindex: records picked by index (Caffe batch_reindex_layer.cpp)."""

from minicaffe.layers.base.rows cimport Blob, Context, RowLayer
from minicaffe.ops.rows.caffe cimport add_rows, copy_rows

from minicaffe.errors import ShapeError


cdef class BatchReindexLayer(RowLayer):
    """``y[m] = x[index[m]]`` along axis 0; bottom[1] holds the indices, which may repeat."""

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    refuses_in_place = True
    no_gradient = {1: "indices"}

    cpdef reshape(self, list bottom, list top):
        if bottom[1].num_axes != 1:
            raise ShapeError(f"needs 1 axis, got shape {list(bottom[1].shape)}", field="bottom[1]")
        if bottom[0].num_axes < 1:
            raise ShapeError("needs an axis to pick from, got a scalar", field="bottom[0]")
        top[0].reshape_to((bottom[1].shape[0], *bottom[0].shape[1:]))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], chosen = bottom[1], y = top[0]
        cdef const int* index = self.take_indices(on, chosen, x.dim(0), "bottom[1]")
        cdef long long row = self.row_bytes(x)
        with nogil:
            copy_rows(on, chosen.count, index, row, False, x.data_on(on), y.mutable_data_on(on))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob x = bottom[0], chosen = bottom[1], y = top[0]
        cdef const int* index = self.take_indices(on, chosen, x.dim(0), "bottom[1]")
        x.fill_diff_on(on, 0)       # rows that no index picks get 0, others the sum over their indices
        cdef long long columns = x.count_range(1, x.num_axes)
        with nogil:
            add_rows(self.dtype, on, chosen.count, index, columns, y.diff_on(on), x.mutable_diff_on(on))
