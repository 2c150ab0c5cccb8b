"""SmoothL1Loss: what boxes are learned with (smooth_L1_loss_layer.cpp of SSD and of Fast R-CNN; Girshick, "Fast R-CNN", 2015).

Different from Caffe: the gradient carries the weights a second time, as the derivative of the loss does (Caffe's is right for
weights 0 and 1 only); backward may run more than once; blobs may have any number of axes.
"""

from minicaffe.layers.base.loss cimport Blob, Context, LossLayer
from minicaffe.ops.loss.caffe cimport smooth_l1, smooth_l1_backward

from minicaffe.errors import ConfigError, ShapeError, shown
from minicaffe.proto.fields import Fields
from minicaffe.proto.text import layer_fields

MESSAGE = "smooth_l1_loss_param"    # Fast R-CNN's


cdef class SmoothL1LossLayer(LossLayer):
    """``loss = 1/N sum v s(w (a - b))``, ``s(d) = sigma^2 d^2 / 2`` where ``|d| < 1 / sigma^2``, else ``|d| - 1 / (2 sigma^2)``.

    Parameters
    ----------
    bottom[0], bottom[1] : Blob, shape (N, ...)
        Predictions a and targets b; both may have a gradient.
    bottom[2], bottom[3] : Blob of the same shape, optional
        Weights w inside and v outside of s; 1 without them. They have no gradient. v is Fast R-CNN's.
    top[0] : Blob, shape ()
    smooth_l1_loss_param.sigma : float
        1 by default, as in SSD, which lacks the field; it is Fast R-CNN's.

    Raises
    ------
    ConfigError, ShapeError
        If sigma is not above 0, or the bottoms differ in shape.
    """

    exact_num_bottom_blobs = -1
    min_bottom_blobs = 2
    max_bottom_blobs = 4
    gradients = 2
    takes_unknown_fields = MESSAGE,

    cdef double sigma2

    cpdef layer_setup(self, list bottom, list top):
        fields = layer_fields(self.param)
        param = fields.get(MESSAGE, Fields())
        if not isinstance(param, Fields) or set(param) - {"sigma"}:
            raise ConfigError(f"must be given once, and has one field, sigma; got {shown(param)}", field=MESSAGE)
        sigma = param.get("sigma", 1)
        if not isinstance(sigma, (int, float)) or not sigma > 0:
            raise ConfigError(f"must be above 0, got {shown(sigma)}", field=f"{MESSAGE}.sigma")
        if MESSAGE in fields and len(bottom) == 3:
            raise ShapeError("is given without bottom[3]: give inside and outside weights, or neither", field="bottom[2]")
        self.sigma2 = float(sigma) ** 2

    cpdef reshape(self, list bottom, list top):
        cdef Blob a = bottom[0], blob
        if not a.num_axes:
            raise ShapeError("needs an axis for the records, got a scalar", field="bottom[0]")
        for i, blob in enumerate(bottom[1:], 1):
            if not a.same_shape(blob):
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(a.shape)}; they must be equal",
                                 field=f"bottom[{i}]")
        (<Blob?> top[0]).reshape_to(())

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:
        smooth_l1(on, self.dtype, self.count, coeff, out, self.at[0], self.at[1], self.at[2], self.at[3], self.sigma2)

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:
        smooth_l1_backward(on, self.dtype, self.count, 4, self.at[0], self.at[1], self.at[2], self.at[3], self.sigma2, scale, dx)
