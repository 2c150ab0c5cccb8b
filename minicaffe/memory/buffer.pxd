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
    cdef Allocator allocator        # frees the block; None: `owner` keeps the memory alive (another Buffer if it is ours)
    cdef object owner
    cdef MemoryCounts usage                # of the place; None without an allocator
    cpdef Buffer toreadonly(self)


cdef Buffer foreign_buffer(void* ptr, size_t nbytes, place, owner, str name)
cdef Buffer wrap_array(source, size_t nbytes, str call, str name)
