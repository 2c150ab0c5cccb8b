from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.loss.caffe cimport Labels
from minicaffe.ops.softmax.operation cimport Softmax

cdef enum:
    FULL = 0            # minicaffe.proto LossParameter.NormalizationMode
    VALID = 1
    BATCH_SIZE = 2


cdef class LossLayer(DeviceLayer):
    cdef double divisor     # of the last forward; below 1 it counts as 1
    cdef long long count    # values of bottom[0]
    cdef const void* at[4]  # addresses of the data of `blobs_read` in the present pass; NULL where it has fewer
    cdef double prepare(self, const Context& on, list bottom) except? -1
    cdef int find_data(self, const Context& on, list bottom) except -1
    cdef list blobs_read(self, list bottom)
    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil
    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil


cdef class ClassLossLayer(LossLayer):
    cdef Labels labels      # sizes outer, classes, inner, and the label to ignore or kNoLabel (ops/loss)
    cdef int mode           # FULL, VALID, BATCH_SIZE, or NONE: the divisor is 1


cdef class SoftmaxLossLayer(ClassLossLayer):
    cdef Blob p             # probabilities, of the shape of bottom[0]
    cdef Softmax softmax
    cdef int reshape_softmax(self, list bottom, list top, int axis, str field) except -1


cdef int same_count(list bottom) except -1
cdef int mode_of(object param, int mode) except -1
cdef int set_label_shape(Labels* labels, Blob x, int axis, int end, Blob blob) except -1
cdef long long count_labels(int dtype, const Labels& labels, Blob blob) except -1
cdef str place_of(Blob blob, long long index)
