"""Eltwise: one element-wise result of several blobs (Caffe eltwise_layer.cpp). Formulas: ops/eltwise/kernel.hpp.

Different from Caffe: the winners of a maximum are found again in backward instead of being stored. Forward of a sum
computes a ReLU that follows it in place.
"""

from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.eltwise.caffe cimport (kMaxInputs, kMaxInputsOfMaximum, largest, largest_backward, product, quotient_gradient,
                                          rectified_sum, spread, weighted_sum)
from minicaffe.engines.engine cimport Operation
from minicaffe.engines.epilogue cimport Epilogue, ReluEpilogue
from minicaffe.engines.layouts cimport data_layout, diff_layout, element, stored

from minicaffe.errors import ConfigError, ShapeError

cpdef enum EltwiseOp:   # caffe.proto EltwiseParameter.EltwiseOp
    PROD = 0
    SUM = 1
    MAX = 2


cdef class Sum(Operation):
    """A sum as an Operation: a net can fuse a ReLU behind it by an epilogue. The layer computes it, by the formulas of CAFFE."""

    epilogue_class = ReluEpilogue

    cdef int inputs     # number of bottoms; `fuses` and `describe` are hooks of Operation (engines/engine.pyx)

    cdef bint fuses(self, const Context& on, Blob x, Blob y) except -1:    # if one pass can add all, then a ReLU
        return self.inputs <= kMaxInputs

    def describe(self):    # for displays; no engine chooses, none refuses
        return {"operation": "Sum", "engine": "CAFFE", "refused": {}}


cdef class EltwiseLayer(DeviceLayer):
    """``y = x0 x1 ...``, ``c0 x0 + c1 x1 + ...`` or ``max(x0, x1, ...)`` of bottoms of one shape.

    The gradient of a maximum goes to its winner: of the first two the second wins ties, a later one must be larger.
    ``stable_prod_grad: false`` computes the gradient of a product as ``dy y / x``, faster for many bottoms, NaN at zeros.
    """

    min_bottom_blobs = 2
    exact_num_top_blobs = 1
    refuses_in_place = True

    cdef EltwiseOp operation
    cdef vector[double] coefficients    # one for each bottom; used by SUM only
    cdef Sum sum                        # None unless SUM

    @property
    def backward_reads_bottoms(self):       # False: a plan may recycle their data before backward
        return self.operation != SUM

    @property
    def backward_reads_tops(self):      # False: a plan may recycle their data before backward
        return self.operation == PROD

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.eltwise_param
        self.operation = param.operation
        if param.coeff and self.operation == PROD:
            raise ConfigError("a product takes no coefficients", field="eltwise_param.coeff")
        if len(param.coeff) not in (0, len(bottom)):
            raise ConfigError(f"give none, or one for each of the {len(bottom)} bottoms, got {len(param.coeff)}",
                              field="eltwise_param.coeff")
        self.coefficients = list(param.coeff) or [1.0] * len(bottom)
        self.sum = Sum(self.dtype) if self.operation == SUM else None
        if self.operation == MAX and len(bottom) > kMaxInputsOfMaximum:
            raise ConfigError(f"a maximum takes at most {kMaxInputsOfMaximum} bottoms, got {len(bottom)}; take maxima of maxima",
                              field="bottom")

    cpdef reshape(self, list bottom, list top):
        for i, blob in enumerate(bottom):
            if blob.shape != bottom[0].shape:
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(bottom[0].shape)}; they must agree",
                                 field=f"bottom[{i}]")
        (<Blob?> top[0]).reshape_like(<Blob?> bottom[0])
        if self.operation == SUM:
            self.sum.inputs = len(bottom)

    def operations(self):       # a net chooses engines and fuses layers by them
        return [self.sum] if self.operation == SUM else []

    def fuse(self, Epilogue epilogue, list bottom, bint backward):      # a residual's sum, into the layer of one bottom
        if backward or self.operation != SUM or len(bottom) != 2 or self.coefficients != vector[double](2, 1.0):
            return False
        return epilogue.add(bottom[1] if bottom[0] is epilogue.top else bottom[0])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef bint rectify = self.operation == SUM and self.sum.epilogue is not None     # a net has fused a ReLU for this forward
        if rectify:
            self.sum.epilogue = None    # reports that it is computed
        cdef Layout layout = data_layout(on, bottom, True)    # an engine's, if a bottom has one: its padding stays zero
        cdef vector[const void*] x = data_of(on, bottom, layout)
        cdef long long count = stored(layout, top[0])       # of elements, with padding
        cdef int dtype = element(layout, top[0])            # BF16 in some layouts, else the net's
        cdef void* y = (<Blob> top[0]).overwrite_data_in_layout(on, layout)
        with nogil:
            if rectify:
                rectified_sum(on, dtype, count, <int> x.size(), x.data(), self.coefficients.data(), y)
            elif self.operation == SUM:
                weighted_sum(on, dtype, count, <int> x.size(), x.data(), self.coefficients.data(), y)
            elif self.operation == PROD:
                product(on, dtype, count, <int> x.size(), x.data(), NULL, y)
            else:
                largest(on, dtype, count, <int> x.size(), x.data(), y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Layout layout = diff_layout(on, top, True) if self.operation == SUM else None
        cdef const void* dy = (<Blob> top[0]).diff_in_layout(on, layout)
        cdef long long count = stored(layout, top[0])
        cdef int dtype = element(layout, top[0])
        cdef vector[void*] dx
        cdef vector[double] c
        cdef vector[int] wanted     # indices of the bottoms that get a gradient; c and dx are theirs
        cdef size_t i
        for i in range(len(bottom)):
            if propagate_down[i]:
                wanted.push_back(<int> i)
                c.push_back(self.coefficients[i])
                dx.push_back((<Blob> bottom[i]).overwrite_diff_in_layout(on, layout))
        if self.operation == SUM:
            with nogil:
                spread(on, dtype, count, <int> dx.size(), dy, c.data(), dx.data())
            return 0
        cdef vector[const void*] x = data_of(on, bottom, None)
        cdef const void* y = NULL
        if self.operation == PROD:
            y = (<Blob> top[0]).data_on(on)
        cdef bint stable = self.param.eltwise_param.stable_prod_grad
        with nogil:
            for i in range(wanted.size()):
                if self.operation == MAX:
                    largest_backward(on, self.dtype, count, <int> x.size(), wanted[i], x.data(), dy, dx[i])
                elif stable:
                    self.product_of_others(on, x, wanted[i], dy, dx[i], count)
                else:
                    quotient_gradient(on, self.dtype, count, x[wanted[i]], y, dy, dx[i])

    cdef void product_of_others(self, const Context& on, vector[const void*] x, int index, const void* dy, void* dx,
                                long long count) noexcept nogil:
        """Overwrite dx with dy times all bottoms but number `index`: this gradient of a product stays finite if a bottom is 0."""
        x.erase(x.begin() + index)
        x.push_back(dy)
        product(on, self.dtype, count, <int> x.size(), x.data(), NULL, dx)


cdef vector[const void*] data_of(const Context& on, list blobs, Layout layout) except *:
    """Return the addresses of the blobs' data in a layout (None: plain), where `on` computes."""
    cdef vector[const void*] pointers
    for blob in blobs:
        pointers.push_back((<Blob> blob).data_in_layout(on, layout))
    return pointers
