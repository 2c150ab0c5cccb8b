from minicaffe.layer cimport Layer

cdef class Node:
    cdef readonly Layer layer
    cdef readonly str name           # these three are the layer's own; a user's Python layer may have others of the same name
    cdef readonly str type
    cdef readonly object param
    cdef readonly list bottoms       # the blobs that it reads
    cdef readonly list tops          # the blobs that it writes
    cdef public list bottom_needs    # for each bottom whether it gets a gradient; Caffe's propagate_down
    cdef public bint needs_backward  # whether its backward runs in a backward of the net
    cdef readonly object file        # where the layer is defined, for errors
    cdef readonly object line
    cdef bint parameter_free         # its tops depend on data and shapes only: it computes in a dry run, too (device/threads.pyx)
    cdef bint has_builtin_passes     # its forward and backward are those of a DeviceLayer, which no user's class has changed
    cdef dict attributes             # with builtin passes: the object's __dict__, where a program may assign passes; else None
    # The number of the first node of the fused step that computed it, if that saved nothing for a backward of its own; else -1.
    cdef int fused_into
    cdef bint is_patched(self) except -1
    cdef int forward(self, bint upload=*) except -1
    cdef int compute_tops(self) except -1
    cdef int backward(self) except -1
    cdef int compute_gradients(self, bint fused) except -1
    cdef int report(self, str kind, str detail) except -1
    cdef int check_params(self, Py_ssize_t made) except -1
    cdef int reallocate_tops(self) except -1
    cdef int reshape(self) except -1
    cdef int inspect(self) except -1
    cdef double loss(self, list tops=*) except? -1
