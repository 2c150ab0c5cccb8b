from minicaffe.memory.layout cimport Layout
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.device.context cimport Context
from minicaffe.shape cimport Shaped

cdef extern from "minicaffe/kernels/types.hpp" namespace "mc":
    cpdef enum Dtype:
        FLOAT    # float32
        DOUBLE   # float64
        INT      # int32, no arithmetic

cdef class Blob(Shaped):
    cdef readonly str name
    cdef readonly Dtype dtype
    # Grows whenever the shape or one of the two memories is replaced; a layer's reshape depends on nothing else of its blobs.
    cdef readonly unsigned long long stamp
    cdef readonly SyncedMemory data_memory
    cdef readonly SyncedMemory diff_memory
    cdef SyncedMemory shape_memory   # of `gpu_shape`; None before its first use
    cdef unsigned long long shape_stamp  # `stamp` when it was filled
    cdef int uses                    # number of running nets and operations that need shape and memories to stay as they are
    cdef unsigned long long user     # the thread of all of them; 0: they are in several threads
    cdef void begin_use(self, unsigned long long thread) noexcept
    cdef void end_use(self) noexcept
    cdef int check_idle(self) except -1
    cdef void replace_memories(self, SyncedMemory data, SyncedMemory diff) noexcept
    # Valid until the next reshape that grows the blob; Caffe's cpu_data(), mutable_cpu_data() and so on.
    cdef const void* cpu_data_ptr(self) except? NULL nogil
    cdef void* mutable_cpu_data_ptr(self) except? NULL nogil
    cdef const void* cpu_diff_ptr(self) except? NULL nogil
    cdef void* mutable_cpu_diff_ptr(self) except? NULL nogil
    # The same in the memory of a context: gpu_data() and so on where that is a device.
    cdef const void* data_on(self, const Context& on) except? NULL nogil
    cdef void* mutable_data_on(self, const Context& on) except? NULL nogil
    cdef const void* diff_on(self, const Context& on) except? NULL nogil
    cdef void* mutable_diff_on(self, const Context& on) except? NULL nogil
    # The same in the private side, an engine's order of elements, as `layout` says; None: plain, as above. `overwrite_`: the old
    # contents are lost. `wrote_` ends a write by `mutable_` or `overwrite_`, as `Layer.finish_forward` and `finish_backward` do.
    cdef const void* data_in_layout(self, const Context& on, Layout layout) except? NULL nogil
    cdef void* mutable_data_in_layout(self, const Context& on, Layout layout) except? NULL nogil
    cdef void* overwrite_data_in_layout(self, const Context& on, Layout layout) except? NULL nogil
    cdef int wrote_data(self) except -1
    cdef const void* diff_in_layout(self, const Context& on, Layout layout) except? NULL nogil
    cdef void* mutable_diff_in_layout(self, const Context& on, Layout layout) except? NULL nogil
    cdef void* overwrite_diff_in_layout(self, const Context& on, Layout layout) except? NULL nogil
    # For a parameter's gradient. *add, an output: add to what is there; false: zeros that are not written yet, overwrite all.
    cdef void* gradient_on(self, const Context& on, Layout layout, bint* add) except? NULL
    cdef int wrote_diff(self) except -1
    cdef int fill_data_on(self, const Context& on, double value) except -1
    cdef int fill_diff_on(self, const Context& on, double value) except -1
    cdef int resize(self, const long long* dims, int num_axes) except -1
    cpdef reshape_like(self, other)
    cpdef share_data(self, other)
    cpdef share_diff(self, other)

cdef Blob checked_blob(value, str what, str remedy=*)
cdef Dtype checked_dtype(value) except *
