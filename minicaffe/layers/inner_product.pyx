"""InnerProduct: ``top = bottom W^T + b``, with the axes from `axis` on seen as one (Caffe inner_product_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context

from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.layer import register_layer

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    void inner_product_forward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                               const void* x, const void* weight, const void* bias, void* y)
    void inner_product_backward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                                const void* x, const void* weight, const void* dy, void* dweight, void* dbias, void* dx)


cdef class InnerProductLayer(DeviceLayer):
    """Bottom (M..., K...), weights (N, K), or (K, N) if `transpose`, top (M..., N).

    Raises
    ------
    ConfigError
        If num_output is not at least 1 or axis is out of range.
    ShapeError
        If the bottom's K is not the one seen in `layer_setup`.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long m, n, k
    cdef bint transpose, bias_term

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.inner_product_param
        if not 1 <= param.num_output <= 2**31 - 1:
            raise ConfigError("must be at least 1, got 0" if not param.num_output else
                              f"must be at most 2^31 - 1, got {param.num_output}", field="inner_product_param.num_output")
        self.n, self.transpose, self.bias_term = param.num_output, param.transpose, param.bias_term
        self.k = (<Blob> bottom[0]).count_range(self.first_axis(bottom[0]), bottom[0].num_axes)
        try:
            self.add_param((self.k, self.n) if self.transpose else (self.n, self.k), param.weight_filler,
                           "inner_product_param.weight_filler")
            if self.bias_term:
                self.add_param((self.n,), param.bias_filler, "inner_product_param.bias_filler")
        except ShapeError as error:
            raise error.at(field="inner_product_param.num_output")

    cdef int first_axis(self, Blob bottom) except -1:
        try:
            return bottom.canonical_axis(self.param.inner_product_param.axis)
        except Error as error:
            raise error.at(field="inner_product_param.axis")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis = self.first_axis(x)
        if x.count_range(axis, x.num_axes) != self.k:
            raise ShapeError(f"has shape {list(x.shape)}, {x.count_range(axis, x.num_axes)} values from axis {axis} on; the "
                             f"layer was set up for {self.k}", field="bottom[0]")
        if top[0] is x:
            raise ConfigError("InnerProduct cannot work in place; give the top a name of its own", field="top[0]")
        self.m = x.count_range(0, axis)
        top[0].reshape_to((*x.shape[:axis], self.n))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* weight = (<Blob> self.blobs[0]).data_on(on)
        cdef const void* bias = (<Blob> self.blobs[1]).data_on(on) if self.bias_term else NULL
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        cdef const Blas* library = blas()
        with nogil:
            inner_product_forward(on, library[0], self.dtype, self.m, self.n, self.k, self.transpose, x, weight, bias, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* weight = (<Blob> self.blobs[0]).data_on(on)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dweight = (<Blob> self.blobs[0]).mutable_diff_on(on) if self.learns(0) else NULL
        cdef void* dbias = (<Blob> self.blobs[1]).mutable_diff_on(on) if self.bias_term and self.learns(1) else NULL
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on) if propagate_down[0] else NULL
        cdef const Blas* library = blas()
        with nogil:
            inner_product_backward(on, library[0], self.dtype, self.m, self.n, self.k, self.transpose, x, weight, dy, dweight,
                                   dbias, dx)


register_layer("InnerProduct", InnerProductLayer)
