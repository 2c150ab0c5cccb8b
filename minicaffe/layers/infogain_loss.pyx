"""InfogainLoss (Caffe infogain_loss_layer.cpp)."""

from minicaffe.layers.base.loss cimport Blob, Context, SoftmaxLossLayer
from minicaffe.ops.loss.caffe cimport infogain, infogain_backward

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ShapeError, located
from minicaffe.proto import binary

cdef double FLOOR = 1e-20   # least probability in the logarithm


cdef class InfogainLossLayer(SoftmaxLossLayer):
    """``loss = -sum over positions and classes l of H[label, l] log(max(p_l, 1e-20)) / divisor``, p = softmax(x) along
    `infogain_loss_param.axis`. H is bottom[2], or the BlobProto file named by `source`.
    """

    exact_num_bottom_blobs = -1
    min_bottom_blobs = 2
    max_bottom_blobs = 3

    cdef Blob stored        # H, K x K, of the file; None: bottom[2] has it

    cpdef layer_setup(self, list bottom, list top):
        SoftmaxLossLayer.layer_setup(self, bottom, top)
        param = self.param.infogain_loss_param
        if self.param.loss_param.HasField("normalize"):
            raise ConfigError("InfogainLoss does not take the old field; use normalization", field="loss_param.normalize")
        if len(bottom) > 2:
            return
        if not param.source:
            raise ConfigError("name a file with the matrix H, or give it as third bottom", field="infogain_loss_param.source")
        caffe.check_path(param.source, "infogain_loss_param.source")
        with located(field="infogain_loss_param.source"):
            stored = binary.read_blob(param.source)
            self.stored = self.new_blob(stored.shape, "H")
        self.stored.data[...] = stored.data.reshape(stored.shape)

    cpdef reshape(self, list bottom, list top):
        self.reshape_softmax(bottom, top, self.param.infogain_loss_param.axis, "infogain_loss_param.axis")
        cdef Blob h = self.matrix(bottom)
        if h.count != self.labels.classes * self.labels.classes:
            raise ShapeError(f"H needs {self.labels.classes} x {self.labels.classes} elements, got {list(h.shape)}",
                             field="bottom[2]" if len(bottom) > 2 else "infogain_loss_param.source")

    cdef Blob matrix(self, list bottom):
        """Return the blob with H: K x K weights, the row of a true label, the column of a predicted class."""
        return bottom[2] if len(bottom) > 2 else self.stored

    cdef list blobs_read(self, list bottom):    # their data: `at` of `loss_to` and `gradient_to`
        return [self.p, bottom[1], self.matrix(bottom)]

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of p, labels and H
        infogain(on, self.dtype, self.labels.outer * self.labels.inner, coeff, out, self.labels, self.at[0], self.at[1], self.at[2],
                 FLOOR)

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # 4 K + 1: the cost of a position
        infogain_backward(on, self.dtype, self.labels.outer * self.labels.inner, 4 * self.labels.classes + 1, self.labels,
                          self.at[0], self.at[1], self.at[2], scale, dx)
