from minicaffe.memory.allocator cimport Allocator
from minicaffe.memory.reporter cimport MemoryCounts

cdef extern from "Python.h":
    unsigned long this_thread "PyThread_get_thread_ident"() nogil


cdef class Buffer:
    cdef void* ptr
    cdef readonly size_t nbytes
    cdef readonly object place
    cdef readonly bint readonly
    cdef public str name            # purpose of the block, for the reporter
    cdef Allocator allocator        # frees the block; None: never freed here, see `owner`
    cdef object owner               # keeps foreign memory alive: an array, or the Buffer of which this is a part; else None
    cdef MemoryCounts usage         # the reporter's, of the place; None: not counted, as foreign memory
    cpdef Buffer toreadonly(self)


cdef Buffer foreign_buffer(void* ptr, size_t nbytes, place, owner, str name)
cdef Buffer wrap_array(source, size_t nbytes, str call, str name)
