from minicaffe.blob cimport Blob
from minicaffe.ops.loss.caffe cimport Labels

cdef int set_label_shape(Labels* labels, Blob x, int axis, int end, Blob blob) except -1
cdef long long count_labels(int dtype, const Labels& labels, Blob blob) except -1
cdef str place_of(Blob blob, long long index)
