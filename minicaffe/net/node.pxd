from minicaffe.layer cimport Layer

cpdef enum:     # how a node ran last
    ALONE       # by itself
    JOINED      # a node before it computed it, too
    CARRIED     # ... and that one's backward computes this one's
    LOST        # ... and nothing was kept for its backward

cdef class Node:
    cdef readonly Layer layer
    cdef readonly str name           # these three are the layer's own; a user's Python layer may have others of the same name
    cdef readonly str type
    cdef readonly object param
    cdef readonly list bottoms       # the blobs that it reads
    cdef readonly list tops          # the blobs that it writes
    cdef public list bottom_needs    # for each bottom whether it gets a gradient; Caffe's propagate_down
    cdef public bint needs_backward
    cdef readonly object file        # where the layer is defined, for errors
    cdef readonly object line
    cdef readonly list followers     # nodes that its operation may compute, too: each reads what the one before it wrote
    cdef readonly bint moves         # what its operation computes may go to another blob than the top
    cdef readonly int in_place       # so many of them, the first, work in place on its only top
    cdef readonly int fused          # how many of them it computed when it ran last
    cdef readonly str into           # the layer for which it wrote its result into another blob then; None: it did not
    cdef readonly int ran            # how it ran last itself: ALONE to LOST
    cpdef bint carries(self) noexcept
    cdef int forward(self) except -1
    cdef int forward_with(self, int most, bint lasting, list parts) except -1
    cdef int separate(self) except -1
    cdef int backward(self) except -1
    cdef int check_params(self, Py_ssize_t made) except -1
    cdef int renew_tops(self) except -1
    cdef int renew_bottoms(self) except -1
    cdef unsigned long long stamp(self) noexcept
    cdef int reshape(self) except -1
    cdef int inspect(self) except -1
    cdef double loss(self, list tops=*) except? -1
