"""SmoothL1Loss: what boxes are learned with (SSD's smooth_L1_loss_layer.cpp; Girshick, "Fast R-CNN", 2015).

Different from Caffe: the gradient carries the weights a second time, as the derivative of the loss does (Caffe's is right for
weights 0 and 1 only); backward may run more than once; blobs may have any number of axes.
"""

from minicaffe.layers.base.loss cimport Blob, Context, LossLayer
from minicaffe.ops.loss.caffe cimport smooth_l1, smooth_l1_backward

from minicaffe.errors import ShapeError
from minicaffe.proto.text import parse_fields


cdef class SmoothL1LossLayer(LossLayer):
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

    exact_num_bottom_blobs = -1
    min_bottom_blobs = 2
    max_bottom_blobs = 3
    gradients = 2

    @classmethod
    def for_param(cls, param):
        if len(param.bottom) < 4 and "smooth_l1_loss_param" not in parse_fields(param.fork_fields):
            return cls
        from minicaffe.addons.forks.variants import RegionSmoothL1LossLayer     # of another fork, and rarely needed
        return RegionSmoothL1LossLayer

    cpdef reshape(self, list bottom, list top):
        cdef Blob a = bottom[0], blob
        if not a.num_axes:
            raise ShapeError("needs an axis for the records, got a scalar", field="bottom[0]")
        for i, blob in enumerate(bottom[1:], 1):
            if not a.same_shape(blob):
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(a.shape)}; they must be equal",
                                 field=f"bottom[{i}]")
        (<Blob?> top[0]).reshape_to(())

    cdef int loss_to(self, const Context& on, list bottom, double coeff, void* out) except -1:
        cdef Blob x = bottom[0]
        cdef Blob b = bottom[1], w = bottom[2] if len(bottom) > 2 else None
        with nogil:
            smooth_l1(on, self.dtype, x.count, coeff, out, x.data_on(on), b.data_on(on), w.data_on(on) if w is not None else NULL)

    cdef int gradient_to(self, const Context& on, list bottom, double scale, void* dx) except -1:
        cdef Blob x = bottom[0]
        cdef Blob b = bottom[1], w = bottom[2] if len(bottom) > 2 else None
        with nogil:
            smooth_l1_backward(on, self.dtype, x.count, 4, x.data_on(on), b.data_on(on),
                               w.data_on(on) if w is not None else NULL, scale, dx)
