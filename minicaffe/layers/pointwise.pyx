"""Layers that apply one element-wise function: ReLU, Sigmoid, TanH and their like (Caffe neuron_layer.hpp and its family).

The formulas are defined in ops/activation/kernel.hpp. In-place works where the gradient can be had from the top alone; where Caffe
computes a wrong gradient in place without a word, setting the layer up in place raises if it would have to go backward.
"""

from libc.math cimport exp

import math

from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.layouts cimport data_layout, diff_layout, stored

from minicaffe.errors import ConfigError
from minicaffe.layer import register_layer

cdef extern from "minicaffe/ops/activation/kernel.hpp":
    pass

cdef extern from "minicaffe/device/typed.hpp" nogil:
    void relu_forward "mc::map1<mc::ReluForward>"(const Context&, int, long long, const void*, void*, double)
    void relu_backward "mc::map2<mc::ReluBackward>"(const Context&, int, long long, const void*, const void*, void*, double)
    void sigmoid_forward "mc::map1<mc::SigmoidForward>"(const Context&, int, long long, const void*, void*)
    void sigmoid_backward "mc::map2<mc::SigmoidBackward>"(const Context&, int, long long, const void*, const void*, void*)
    void tanh_forward "mc::map1<mc::TanhForward>"(const Context&, int, long long, const void*, void*)
    void tanh_backward "mc::map2<mc::TanhBackward>"(const Context&, int, long long, const void*, const void*, void*)
    void abs_forward "mc::map1<mc::AbsForward>"(const Context&, int, long long, const void*, void*)
    void abs_backward "mc::map2<mc::AbsBackward>"(const Context&, int, long long, const void*, const void*, void*)
    void bnll_forward "mc::map1<mc::BnllForward>"(const Context&, int, long long, const void*, void*)
    void bnll_backward "mc::map2<mc::BnllBackward>"(const Context&, int, long long, const void*, const void*, void*)
    void clip_forward "mc::map1<mc::ClipForward>"(const Context&, int, long long, const void*, void*, double, double)
    void clip_backward "mc::map2<mc::ClipBackward>"(const Context&, int, long long, const void*, const void*, void*, double, double)
    void elu_forward "mc::map1<mc::EluForward>"(const Context&, int, long long, const void*, void*, double)
    void elu_backward "mc::map3<mc::EluBackward>"(const Context&, int, long long, const void*, const void*, const void*, void*, double)
    void exp_forward "mc::map1<mc::ExpForward>"(const Context&, int, long long, const void*, void*, double, double)
    void exp_backward "mc::map2<mc::ExpBackward>"(const Context&, int, long long, const void*, const void*, void*, double)
    void log_forward "mc::map1<mc::LogForward>"(const Context&, int, long long, const void*, void*, double, double, double)
    void log_backward "mc::map2<mc::LogBackward>"(const Context&, int, long long, const void*, const void*, void*,
                                                       double, double, double)
    void power_forward "mc::map1<mc::PowerForward>"(const Context&, int, long long, const void*, void*, double, double, double)
    void power_backward "mc::map3<mc::PowerBackward>"(const Context&, int, long long, const void*, const void*, const void*, void*,
                                                           double, double, double)
    void swish_forward "mc::map1<mc::SwishForward>"(const Context&, int, long long, const void*, void*, double)
    void swish_backward "mc::map3<mc::SwishBackward>"(const Context&, int, long long, const void*, const void*, const void*, void*,
                                                           double)
    void threshold_forward "mc::map1<mc::ThresholdForward>"(const Context&, int, long long, const void*, void*, double)
    void copy_typed "mc::copy_typed"(const Context&, int, long long, const void*, void*)

cdef extern from "minicaffe/ops/activation/cudnn.hpp" namespace "mc::cuda" nogil:
    enum CudnnActivation:
        kRelu
        kSigmoid
        kTanh
    bint cudnn_activation_forward(const Context&, int engine, int, int activation, long long, const void* x, void* y)
    bint cudnn_activation_backward(
        const Context&, int engine, int, int activation, long long, const void* x, const void* y, const void* dy, void* dx)

cdef enum:
    CAFFE = 1   # minicaffe.proto ReLUParameter.Engine


cdef class NeuronLayer(DeviceLayer):
    """One bottom, one top of the same shape; x is the bottom, y the top."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef int engine     # of those that cuDNN knows
    cdef bint keeps_zero    # the function of 0 is 0, so that it may be computed in any layout
    cdef long long count
    cdef const void* x
    cdef const void* y
    cdef const void* dy
    cdef void* out

    cpdef reshape(self, list bottom, list top):
        (<Blob> top[0]).reshape_like(<Blob> bottom[0])

    cdef int begin_forward(self, const Context& on, list bottom, list top) except -1:
        """Set count, x and out for a forward pass."""
        cdef Layout layout = data_layout(on, bottom) if self.keeps_zero else None
        self.count = stored(layout, bottom[0])
        self.x = (<Blob> bottom[0]).data_in(on, layout)
        self.out = (<Blob> top[0]).overwrite_data_in(on, layout)
        return 0

    cdef bint begin_backward(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        """Set count, x, y, dy and out for a backward pass; false if none is asked for."""
        cdef Layout layout = None
        if not propagate_down[0]:
            return False
        if self.keeps_zero:
            layout = diff_layout(on, top) or data_layout(on, bottom)
        self.count = stored(layout, bottom[0])
        self.x, self.y = (<Blob> bottom[0]).data_in(on, layout), (<Blob> top[0]).data_in(on, layout)
        self.dy, self.out = (<Blob> top[0]).diff_in(on, layout), (<Blob> bottom[0]).overwrite_diff_in(on, layout)
        return True

    cdef int check_not_in_place(self, list top, list bottom) except -1:
        """Raise where the gradient needs the original x, which an in-place forward has overwritten."""
        if top[0] is bottom[0]:
            raise ConfigError(f"{self.type} cannot go backward in place, its gradient needs the bottom's values; give the top "
                              "a name of its own", field="top[0]")
        return 0


cdef class ReLULayer(NeuronLayer):
    """``y = max(x, 0) + negative_slope min(x, 0)`` (Caffe relu_layer.cpp). In place only for a slope of at least 0."""

    cdef double slope

    cpdef layer_setup(self, list bottom, list top):
        self.slope = self.param.relu_param.negative_slope
        self.keeps_zero = True
        self.engine = CAFFE if self.slope else self.param.relu_param.engine     # cuDNN knows no slope

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            if not cudnn_activation_forward(on, self.engine, self.dtype, kRelu, self.count, self.x, self.out):
                relu_forward(on, self.dtype, self.count, self.x, self.out, self.slope)
        return (<Blob> top[0]).wrote_data()

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            if self.slope < 0:
                self.check_not_in_place(top, bottom)
            with nogil:
                if not cudnn_activation_backward(on, self.engine, self.dtype, kRelu, self.count, self.x, self.y, self.dy,
                                                 self.out):
                    relu_backward(on, self.dtype, self.count, self.x, self.dy, self.out, self.slope)
            (<Blob> bottom[0]).wrote_diff()


cdef class SigmoidLayer(NeuronLayer):
    """``y = 1 / (1 + exp(-x))``, computed as ``tanh(x / 2) / 2 + 1 / 2`` (Caffe sigmoid_layer.cpp)."""

    cpdef layer_setup(self, list bottom, list top):
        self.engine = self.param.sigmoid_param.engine

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            if not cudnn_activation_forward(on, self.engine, self.dtype, kSigmoid, self.count, self.x, self.out):
                sigmoid_forward(on, self.dtype, self.count, self.x, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            with nogil:
                if not cudnn_activation_backward(on, self.engine, self.dtype, kSigmoid, self.count, self.x, self.y, self.dy,
                                                 self.out):
                    sigmoid_backward(on, self.dtype, self.count, self.y, self.dy, self.out)


cdef class TanHLayer(NeuronLayer):
    """``y = tanh(x)`` (Caffe tanh_layer.cpp)."""

    cpdef layer_setup(self, list bottom, list top):
        self.engine = self.param.tanh_param.engine

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            if not cudnn_activation_forward(on, self.engine, self.dtype, kTanh, self.count, self.x, self.out):
                tanh_forward(on, self.dtype, self.count, self.x, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            with nogil:
                if not cudnn_activation_backward(on, self.engine, self.dtype, kTanh, self.count, self.x, self.y, self.dy,
                                                 self.out):
                    tanh_backward(on, self.dtype, self.count, self.y, self.dy, self.out)


cdef class AbsValLayer(NeuronLayer):
    """``y = |x|``, gradient 0 at 0; never in place (Caffe absval_layer.cpp)."""

    cpdef layer_setup(self, list bottom, list top):
        self.check_not_in_place(top, bottom)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            abs_forward(on, self.dtype, self.count, self.x, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            with nogil:
                abs_backward(on, self.dtype, self.count, self.x, self.dy, self.out)


cdef class BNLLLayer(NeuronLayer):
    """``y = log(1 + exp(x))`` (Caffe bnll_layer.cpp)."""

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            bnll_forward(on, self.dtype, self.count, self.x, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            self.check_not_in_place(top, bottom)
            with nogil:
                bnll_backward(on, self.dtype, self.count, self.x, self.dy, self.out)


cdef class ClipLayer(NeuronLayer):
    """``y = max(min, min(x, max))``; the gradient passes where ``min <= x <= max`` (Caffe clip_layer.cpp)."""

    cdef double lo, hi

    cpdef layer_setup(self, list bottom, list top):
        self.lo, self.hi = self.param.clip_param.min, self.param.clip_param.max

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            clip_forward(on, self.dtype, self.count, self.x, self.out, self.lo, self.hi)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            self.check_not_in_place(top, bottom)
            with nogil:
                clip_backward(on, self.dtype, self.count, self.x, self.dy, self.out, self.lo, self.hi)


cdef class ELULayer(NeuronLayer):
    """``y = x`` for x > 0, else ``alpha (exp(x) - 1)``; in place for alpha >= 0 (Caffe elu_layer.cpp)."""

    cdef double alpha

    cpdef layer_setup(self, list bottom, list top):
        self.alpha = self.param.elu_param.alpha

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            elu_forward(on, self.dtype, self.count, self.x, self.out, self.alpha)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            if self.alpha < 0:
                self.check_not_in_place(top, bottom)
            with nogil:
                elu_backward(on, self.dtype, self.count, self.x, self.y, self.dy, self.out, self.alpha)


cdef class ExpLayer(NeuronLayer):
    """``y = base^(shift + scale x)``, base -1 means e (Caffe exp_layer.cpp)."""

    cdef double inner, outer

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.exp_param
        log_base = _log_of_base(param.base, "exp_param.base")
        self.inner, self.outer = log_base * param.scale, exp(log_base * param.shift)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            exp_forward(on, self.dtype, self.count, self.x, self.out, self.inner, self.outer)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            with nogil:
                exp_backward(on, self.dtype, self.count, self.y, self.dy, self.out, self.inner)


cdef class LogLayer(NeuronLayer):
    """``y = log_base(scale x + shift)``, base -1 means e (Caffe log_layer.cpp)."""

    cdef double scale, shift, per_base

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.log_param
        log_base = _log_of_base(param.base, "log_param.base")
        if log_base == 0:
            raise ConfigError("must not be 1, whose logarithm is 0", field="log_param.base")
        self.scale, self.shift, self.per_base = param.scale, param.shift, 1 / log_base

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            log_forward(on, self.dtype, self.count, self.x, self.out, self.scale, self.shift, self.per_base)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            self.check_not_in_place(top, bottom)
            with nogil:
                log_backward(on, self.dtype, self.count, self.x, self.dy, self.out, self.scale, self.shift,
                             self.per_base)


cdef class PowerLayer(NeuronLayer):
    """``y = (shift + scale x)^power`` (Caffe power_layer.cpp)."""

    cdef double power, scale, shift

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.power_param
        self.power, self.scale, self.shift = param.power, param.scale, param.shift

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            power_forward(on, self.dtype, self.count, self.x, self.out, self.power, self.scale, self.shift)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            if self.power not in (0, 1):
                self.check_not_in_place(top, bottom)
            with nogil:
                power_backward(on, self.dtype, self.count, self.x, self.y, self.dy, self.out, self.power, self.scale,
                               self.shift)


cdef class SwishLayer(NeuronLayer):
    """``y = x sigmoid(beta x)`` (Caffe swish_layer.cpp). Keeps x when in place."""

    cdef double beta
    cdef Blob kept

    cpdef layer_setup(self, list bottom, list top):
        self.beta = self.param.swish_param.beta
        self.kept = self.new_blob() if top[0] is bottom[0] else None

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        if self.kept is not None:
            self.kept.reshape_like(bottom[0])
            copy_typed(on, self.dtype, self.count, self.x, self.kept.mutable_data_on(on))
        with nogil:
            swish_forward(on, self.dtype, self.count, self.x, self.out, self.beta)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.begin_backward(on, top, propagate_down, bottom):
            if self.kept is not None:
                self.x = self.kept.data_on(on)
            with nogil:
                swish_backward(on, self.dtype, self.count, self.x, self.y, self.dy, self.out, self.beta)


cdef class ThresholdLayer(NeuronLayer):
    """``y = 1`` for x > threshold, else 0; no gradient (Caffe threshold_layer.cpp)."""

    cdef double threshold

    cpdef layer_setup(self, list bottom, list top):
        self.threshold = self.param.threshold_param.threshold

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.begin_forward(on, bottom, top)
        with nogil:
            threshold_forward(on, self.dtype, self.count, self.x, self.out, self.threshold)


def _log_of_base(base, field):
    """ln(base), where -1 means e."""
    if base != -1 and not base > 0:
        raise ConfigError(f"must be -1 (for e) or more than 0, got {base:g}", field=field)
    return 1.0 if base == -1 else math.log(base)


for _class in (ReLULayer, SigmoidLayer, TanHLayer, AbsValLayer, BNLLLayer, ClipLayer, ELULayer, ExpLayer, LogLayer, PowerLayer,
               SwishLayer, ThresholdLayer):
    register_layer(_class.__name__.removesuffix("Layer"), _class)
