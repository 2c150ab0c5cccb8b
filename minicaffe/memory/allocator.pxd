from minicaffe.memory.containers cimport unordered_map
from minicaffe.memory.reporter cimport MemoryCounts


cdef class Allocator:
    cdef readonly object place
    cdef readonly Allocator upstream            # the source of the memory; None for an allocator of the system or driver
    cdef MemoryCounts usage                     # of the blocks that this allocator has given out
    cdef unordered_map[size_t, size_t] sizes    # address of a live block -> bytes, by remember() and forget()
    cdef void* alloc_ptr(self, size_t nbytes) except NULL
    cdef int free_ptr(self, void* ptr) except -1
    cdef size_t reserved(self) noexcept
    cdef size_t largest_free(self) noexcept
    cdef void remember(self, void* ptr, size_t nbytes) noexcept
    cdef int forget(self, void* ptr) except -1


cdef size_t bytes_of(value, str what) except? <size_t> -1
cdef no_live_block(Allocator allocator, size_t address)
cdef out_of_memory(Allocator allocator, size_t nbytes, str limit)
cdef str limit_text(error)
