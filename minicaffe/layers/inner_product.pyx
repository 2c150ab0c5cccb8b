"""InnerProduct: ``top = bottom W^T + b``, with the axes from `axis` on seen as one (Caffe inner_product_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.layers.base.operation cimport OperationLayer
from minicaffe.ops.inner_product.operation cimport InnerProduct

from minicaffe.errors import ShapeError, located
from minicaffe.layers.base.checks import axis_of, check_size


cdef class InnerProductLayer(OperationLayer):
    """Bottom (M..., K...), weights (N, K), or (K, N) if `transpose`, top (M..., N).

    Raises ConfigError if num_output is not at least 1 or axis is out of range; ShapeError if the bottom's K is not the one seen in
    `layer_setup`.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_tops = False

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.inner_product_param
        check_size(param.num_output, "inner_product_param.num_output")
        cdef InnerProduct op = InnerProduct(self.dtype)
        self.op = op
        op.n, op.transpose = param.num_output, param.transpose      # the product is (m, k) by (k, n)
        op.learned = self.learns_weights()
        op.k = (<Blob> bottom[0]).count_range(axis_of(bottom[0], param.axis, "inner_product_param.axis"), bottom[0].num_axes)
        with located(field="inner_product_param.num_output"):
            self.add_param((op.k, op.n) if op.transpose else (op.n, op.k), param.weight_filler, "inner_product_param.weight_filler")
            if param.bias_term:
                self.add_param((op.n,), param.bias_filler, "inner_product_param.bias_filler")

    def multiply_adds(self, bottom, top):       # for `Layer.flops`
        cdef InnerProduct op = self.op
        return op.m * op.n * op.k

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef InnerProduct op = self.op
        cdef int axis = axis_of(x, self.param.inner_product_param.axis, "inner_product_param.axis")
        if x.count_range(axis, x.num_axes) != op.k:
            raise ShapeError(f"has shape {list(x.shape)}, {x.count_range(axis, x.num_axes)} values from axis {axis} on; the "
                             f"layer was set up for {op.k}", field="bottom[0]")
        top[0].reshape_to((*x.shape[:axis], op.n))
        op.m = x.count_range(0, axis)
        op.changed()    # engines are chosen again
