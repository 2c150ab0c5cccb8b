from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

cdef class StripLayer(DeviceLayer):
    cdef int axis       # along which the parts lie, counted from the front
    cdef int copy_parts(self, const Context& on, list parts, Blob whole, bint join, bint diff, list wanted) except -1
