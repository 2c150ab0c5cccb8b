"""InnerProduct: ``top = bottom W^T + b``, with the axes from `axis` on seen as one (Caffe inner_product_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context
from minicaffe.ops.inner_product.operation cimport InnerProduct

from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.layer import register_layer


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

    cdef InnerProduct op
    cdef bint bias_term

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.inner_product_param
        if not 1 <= param.num_output <= 2**31 - 1:
            raise ConfigError("must be at least 1, got 0" if not param.num_output else
                              f"must be at most 2^31 - 1, got {param.num_output}", field="inner_product_param.num_output")
        self.op = InnerProduct(self.dtype)
        self.op.n, self.op.transpose, self.bias_term = param.num_output, param.transpose, param.bias_term
        self.op.k = (<Blob> bottom[0]).count_range(self.first_axis(bottom[0]), bottom[0].num_axes)
        try:
            self.add_param((self.op.k, self.op.n) if self.op.transpose else (self.op.n, self.op.k), param.weight_filler,
                           "inner_product_param.weight_filler")
            if self.bias_term:
                self.add_param((self.op.n,), param.bias_filler, "inner_product_param.bias_filler")
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
        if x.count_range(axis, x.num_axes) != self.op.k:
            raise ShapeError(f"has shape {list(x.shape)}, {x.count_range(axis, x.num_axes)} values from axis {axis} on; the "
                             f"layer was set up for {self.op.k}", field="bottom[0]")
        if top[0] is x:
            raise ConfigError("InnerProduct cannot work in place; give the top a name of its own", field="top[0]")
        top[0].reshape_to((*x.shape[:axis], self.op.n))
        self.op.m = x.count_range(0, axis)
        self.op.changed()

    def operations(self):
        return [self.op]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        return self.op.forward(on, bottom[0], top[0], self.blobs[0], self.blobs[1] if self.bias_term else None)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob weight = self.blobs[0] if self.learns(0) else None
        cdef Blob bias = self.blobs[1] if self.bias_term and self.learns(1) else None
        if weight is not None or bias is not None:
            self.op.backward_params(on, bottom[0], top[0], weight, bias)
        if propagate_down[0]:
            self.op.backward(on, bottom[0], top[0], self.blobs[0])


register_layer("InnerProduct", InnerProductLayer)
