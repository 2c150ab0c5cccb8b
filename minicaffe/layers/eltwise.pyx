"""Eltwise and Split: one element-wise result of several blobs, and one blob for several readers.

Split is here because its backward is Eltwise's sum (Caffe eltwise_layer.cpp, split_layer.cpp). Formulas stand in
kernels/eltwise.hpp. Different from Caffe: the winners of a maximum are found again in backward instead of being stored.
"""

from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.cpu.threads cimport num_threads
from minicaffe.layer cimport Layer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.checks import refuse_in_place

cdef extern from "minicaffe/cpu/eltwise.hpp" namespace "mc::cpu" nogil:
    void weighted_sum "mc::cpu::combine<mc::WeightedSum>"(int, int, long long, int, const void* const*, const double*, void*)
    void product "mc::cpu::combine<mc::ProductOf>"(int, int, long long, int, const void* const*, const double*, void*)
    void largest(int, int, long long, int, const void* const*, void*)
    void largest_backward(int, int, long long, int, int winner, const void* const*, const void* dy, void* dx)
    void spread(int, int, long long, int, const void* x, const double*, void* const*)

cdef extern from "minicaffe/cpu/typed.hpp" nogil:
    void quotient_gradient "mc::cpu::map3<mc::QuotientGradient>"(int, int, long long, const void*, const void*, const void*, void*)

cpdef enum EltwiseOp:   # caffe.proto EltwiseParameter.EltwiseOp
    PROD = 0
    SUM = 1
    MAX = 2


cdef class EltwiseLayer(Layer):
    """``y = x0 x1 ...``, ``c0 x0 + c1 x1 + ...`` or ``max(x0, x1, ...)`` of bottoms of one shape.

    The gradient of a maximum goes to its winner: of the first two the second wins ties, a later one must be larger.
    ``stable_prod_grad: false`` computes the gradient of a product as ``dy y / x``, faster for many bottoms, NaN at zeros.
    """

    min_bottom_blobs = 2
    exact_num_top_blobs = 1

    cdef EltwiseOp operation
    cdef vector[double] coefficients

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.eltwise_param
        self.operation = param.operation
        if param.coeff and self.operation == PROD:
            raise ConfigError("a product takes no coefficients", field="eltwise_param.coeff")
        if len(param.coeff) not in (0, len(bottom)):
            raise ConfigError(f"give none, or one for each of the {len(bottom)} bottoms, got {len(param.coeff)}",
                              field="eltwise_param.coeff")
        self.coefficients = list(param.coeff) or [1.0] * len(bottom)
        refuse_in_place(self, bottom, top)

    cpdef reshape(self, list bottom, list top):
        for i, blob in enumerate(bottom):
            if blob.shape != bottom[0].shape:
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(bottom[0].shape)}; they must agree",
                                 field=f"bottom[{i}]")
        (<Blob> top[0]).reshape_like(<Blob> bottom[0])

    cpdef forward_cpu(self, list bottom, list top):
        cdef vector[const void*] x = data_of(bottom)
        cdef long long count = (<Blob> top[0]).count
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        with nogil:
            if self.operation == SUM:
                weighted_sum(num_threads(), self.dtype, count, <int> x.size(), x.data(), self.coefficients.data(), y)
            elif self.operation == PROD:
                product(num_threads(), self.dtype, count, <int> x.size(), x.data(), NULL, y)
            else:
                largest(num_threads(), self.dtype, count, <int> x.size(), x.data(), y)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        cdef long long count = (<Blob> top[0]).count
        cdef vector[void*] dx
        cdef vector[double] c
        cdef vector[int] wanted
        cdef size_t i
        for i in range(len(bottom)):
            if propagate_down[i]:
                wanted.push_back(<int> i)
                c.push_back(self.coefficients[i])
                dx.push_back((<Blob> bottom[i]).mutable_cpu_diff_ptr())
        if self.operation == SUM:
            with nogil:
                spread(num_threads(), self.dtype, count, <int> dx.size(), dy, c.data(), dx.data())
            return
        cdef vector[const void*] x = data_of(bottom)
        cdef const void* y = (<Blob> top[0]).cpu_data_ptr()
        cdef bint stable = self.param.eltwise_param.stable_prod_grad
        with nogil:
            for i in range(wanted.size()):
                if self.operation == MAX:
                    largest_backward(num_threads(), self.dtype, count, <int> x.size(), wanted[i], x.data(), dy, dx[i])
                elif stable:
                    self.product_of_others(x, wanted[i], dy, dx[i], count)
                else:
                    quotient_gradient(num_threads(), self.dtype, count, x[wanted[i]], y, dy, dx[i])

    cdef void product_of_others(self, vector[const void*] x, int index, const void* dy, void* dx, long long count) noexcept nogil:
        """dx = dy times all bottoms but one, which is never divided by."""
        x.erase(x.begin() + index)
        x.push_back(dy)
        product(num_threads(), self.dtype, count, <int> x.size(), x.data(), NULL, dx)


cdef class SplitLayer(Layer):
    """Give one blob to several readers: the tops share its data, and backward adds their diffs in order.

    A net inserts it by itself. No reader may work in place on a top, the others would read the result.
    """

    exact_num_bottom_blobs = 1
    min_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)

    cpdef reshape(self, list bottom, list top):
        for blob in top:
            (<Blob> blob).reshape_like(<Blob> bottom[0])
            (<Blob> blob).share_data(<Blob> bottom[0])

    cpdef forward_cpu(self, list bottom, list top):
        return

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if not propagate_down[0]:
            return
        cdef vector[const void*] dy
        cdef long long count = (<Blob> bottom[0]).count
        for blob in top:
            dy.push_back((<Blob> blob).cpu_diff_ptr())
        cdef void* dx = (<Blob> bottom[0]).mutable_cpu_diff_ptr()
        with nogil:
            weighted_sum(num_threads(), self.dtype, count, <int> dy.size(), dy.data(), NULL, dx)


cdef vector[const void*] data_of(list blobs) except *:
    cdef vector[const void*] pointers
    for blob in blobs:
        pointers.push_back((<Blob> blob).cpu_data_ptr())
    return pointers


register_layer("Eltwise", EltwiseLayer)
register_layer("Split", SplitLayer)
