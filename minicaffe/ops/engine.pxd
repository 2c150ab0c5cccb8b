from minicaffe.blob cimport Blob, Dtype
from minicaffe.device.context cimport Context

cdef class Primitive:
    cdef readonly str engine


cdef class Operation:
    cdef readonly Dtype dtype
    cdef readonly int engine      # the layer's field: DEFAULT, CAFFE or CUDNN
    cdef dict refusals            # engine -> reason, of the last choice on the CPU and on a device
    cdef Primitive host, device   # chosen for the present shapes when first asked for
    cdef unsigned epoch           # of the settings with which they were chosen
    cdef int threads              # for which they were chosen
    cdef Blob memory              # scratch
    cdef int changed(self) except -1
    cdef Primitive primitive(self, const Context& on)
    cdef int refused(self, str engine, str reason) except -1
    cdef void* scratch(self, const Context& on, long long count) except? NULL
