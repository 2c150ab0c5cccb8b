"""ArgMax: the classes with the highest scores (Caffe argmax_layer.cpp). It has no gradient.

Different from Caffe: NaN comes last; more values than the net's type can number are an error.
"""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.ops.ranking.caffe cimport top_of_each

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of, check_size


cdef class ArgMaxLayer(DeviceLayer):
    """The `argmax_param.top_k` largest values in falling order; of equal values, that with the larger index is first.

    Parameters
    ----------
    bottom : Blob, at least one axis
    top : Blob
        With `axis`: the bottom's shape with k instead of that axis; indices, or with `out_max_val` values. Without: all axes
        after 0 are one, and the shape is (N, 1, k), or (N, 2, k) with indices and values; padded with 1 to the bottom's
        number of axes.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long top_k, outer, n, inner       # n: values to choose from; outer and inner: of the axes before and behind
    cdef bint writes_values, along_axis         # out_max_val; `axis` is given

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.argmax_param
        self.top_k, self.writes_values, self.along_axis = param.top_k, param.out_max_val, param.HasField("axis")
        check_size(param.top_k, "argmax_param.top_k")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis
        if self.along_axis:
            axis = axis_of(x, self.param.argmax_param.axis, "argmax_param.axis")
            self.outer, self.n, self.inner = x.count_range(0, axis), x.dims[axis], x.count_range(axis + 1, x.num_axes)
            shape = x.shape[:axis] + (self.top_k,) + x.shape[axis + 1:]
        else:
            if x.num_axes < 1:
                raise ShapeError("needs at least one axis, got a scalar", field="bottom[0]")
            self.outer, self.n, self.inner = x.dims[0], x.count_range(1, x.num_axes), 1
            shape = (x.dims[0], 2 if self.writes_values else 1, self.top_k) + (1,) * max(x.num_axes - 3, 0)
        if self.top_k > self.n:
            raise ConfigError(f"must be at most the number of values, {self.n}, got {self.top_k}", field="argmax_param.top_k")
        if self.dtype == FLOAT and self.n > 1 << 24 and not (self.writes_values and self.along_axis):
            raise ShapeError(f"{self.n} values to choose from; a float32 holds indices up to 2^24 exactly: "
                             "use a net of doubles, or give an axis of fewer values", field="bottom[0]")
        (<Blob?> top[0]).reshape_to(shape)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        cdef char* out = <char*> (<Blob> top[0]).mutable_data_on(on)
        cdef long long stride = self.top_k      # from one outer index to the next, in units of `inner` elements
        cdef void* index = out
        cdef void* value = NULL     # NULL, here or of the index: these are not written
        if self.writes_values and self.along_axis:
            index, value = NULL, out
        elif self.writes_values:
            stride = 2 * self.top_k
            value = out + self.top_k * item_size(self.dtype)
        with nogil:
            top_of_each(self.dtype, on, self.outer, self.n, self.inner, self.top_k, stride, x.data_on(on), index, value)
