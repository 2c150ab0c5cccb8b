"""SmoothL1Loss: what boxes are learned with (SSD's smooth_L1_loss_layer.cpp; Girshick, "Fast R-CNN", 2015).

Different from Caffe: the gradient carries the weights a second time, as the derivative of the loss does (Caffe's is right for
weights 0 and 1 only); backward may run more than once; blobs may have any number of axes.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer

cdef extern from "minicaffe/ops/loss/caffe.hpp" namespace "mc" nogil:
    void smooth_l1(const Context&, int, long long, const void* a, const void* b, const void* w, double coeff, void* out)
    void smooth_l1_backward(const Context&, int, long long, const void* a, const void* b, const void* w, double scale, void* dx)


cdef class SmoothL1LossLayer(DeviceLayer):
    """``loss = 1/N sum s(w (a - b))``, ``s(d) = d^2 / 2`` where ``|d| < 1``, else ``|d| - 1/2``.

    Parameters
    ----------
    bottom[0], bottom[1] : Blob, shape (N, ...)
        Predictions a and targets b; both may have a gradient.
    bottom[2] : Blob of the same shape, optional
        Weights w; 1 without it. They have no gradient.
    top[0] : Blob, shape ()

    Raises
    ------
    ShapeError
        If the bottoms differ in shape.
    """

    min_bottom_blobs = 2
    max_bottom_blobs = 3
    exact_num_top_blobs = 1
    auto_top_blobs = True
    default_loss_weight = 1

    def allow_force_backward(self, int bottom_index):
        return bottom_index != 2

    cpdef reshape(self, list bottom, list top):
        cdef Blob a = bottom[0], blob
        if not a.num_axes:
            raise ShapeError("needs an axis for the records, got a scalar", field="bottom[0]")
        for i, blob in enumerate(bottom[1:], 1):
            if not a.same_shape(blob):
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(a.shape)}; they must be equal",
                                 field=f"bottom[{i}]")
        (<Blob> top[0]).reshape_to(())

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        cdef const void* a = x.data_on(on)
        cdef const void* b = (<Blob> bottom[1]).data_on(on)
        cdef const void* w = (<Blob> bottom[2]).data_on(on) if len(bottom) > 2 else NULL
        cdef void* out = (<Blob> top[0]).mutable_data_on(on)
        cdef double coeff = 1.0 / max(x.dims[0], 1)
        with nogil:
            smooth_l1(on, self.dtype, x.count, a, b, w, coeff, out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if len(propagate_down) > 2 and propagate_down[2]:
            raise ConfigError("SmoothL1Loss has no gradient to its weights; cut it off with propagate_down: false",
                              field="bottom[2]")
        cdef Blob x = bottom[0]
        cdef double scale = (<Blob> top[0]).cpu_diff.item() / max(x.dims[0], 1)
        cdef const void* a = x.data_on(on)
        cdef const void* b = (<Blob> bottom[1]).data_on(on)
        cdef const void* w = (<Blob> bottom[2]).data_on(on) if len(bottom) > 2 else NULL
        cdef void* dx
        for i in range(2):
            if propagate_down[i]:
                dx = (<Blob> bottom[i]).mutable_diff_on(on)
                with nogil:
                    smooth_l1_backward(on, self.dtype, x.count, a, b, w, scale, dx)
            scale = -scale


register_layer("SmoothL1Loss", SmoothL1LossLayer)
