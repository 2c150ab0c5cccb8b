from libcpp.unordered_map cimport unordered_map

from minicaffe.memory.reporter cimport Usage


cdef class Allocator:
    cdef readonly object place
    cdef readonly Allocator upstream            # where the memory comes from; None for an allocator that is the source
    cdef Usage usage
    cdef unordered_map[size_t, size_t] sizes    # live address -> bytes, for allocators that use remember() and forget()
    cdef void* alloc_ptr(self, size_t nbytes) except NULL
    cdef int free_ptr(self, void* ptr) except -1
    cdef size_t reserved(self) noexcept
    cdef size_t largest_free(self) noexcept
    cdef void remember(self, void* ptr, size_t nbytes) noexcept
    cdef int forget(self, void* ptr) except -1


cdef class Buffer:
    cdef void* ptr
    cdef readonly size_t nbytes
    cdef readonly object place
    cdef readonly bint readonly
    cdef public str name            # what the block serves, for the reporter
    cdef Allocator allocator        # frees the block; None: memory that `owner` keeps alive, a Buffer if it is ours
    cdef object owner
    cdef Usage usage                # of the place; None without an allocator
    cpdef Buffer toreadonly(self)


cdef Buffer foreign_buffer(void* ptr, size_t nbytes, place, owner, str name)
cdef out_of_memory(Allocator allocator, size_t nbytes, str limit)
cdef str limit_of(error)
