from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from minicaffe.memory.layout cimport Layout

cdef int fail() except -1

cdef extern from "minicaffe/engines/onednn/dnnl.hpp" namespace "mc::onednn" nogil:
    cppclass Library:
        void set_function(int i, void* address)
        void start() except +fail
        int (*get_effective_cpu_isa "call.get_effective_cpu_isa")()
        const DnnlVersion* (*version "call.version")()
        void (*set_threads)(int) noexcept nogil
        int (*dry)() noexcept nogil
    cppclass DnnlVersion:
        int major, minor, patch
        unsigned cpu_runtime
    cppclass Array:
        size_t bytes()
        int type() except +fail
        vector[int64_t] dims() except +fail
        bint operator==(const Array&)
    Array plain_array "mc::onednn::Array::plain"(const Library*, const vector[int64_t]& dims) except +fail
    Array tagged_array "mc::onednn::Array::any"(const Library*, const vector[int64_t]& dims, int type, int tag) except +fail
    cppclass Reorder:
        void make(const Library*, int threads, const Array& from_, const Array& to, bint add, int64_t scales) except +fail
        bint made "operator bool"()
        void run(int threads, const void* x, void* y, const float* scales) except +fail

cdef const Library* library() except NULL


cdef class OnednnLayout(Layout):
    cdef object __weakref__         # for `layout_of`
    cdef Array array, plain         # this layout, and that of the plain array
    cdef Reorder from_plain_step, to_plain_step, direct     # made at first use
    cdef OnednnLayout source       # from which `direct` converts; None: not made
    cdef int tag                    # its number in TAGS; 0: another layout
    cdef vector[float] factors      # of the elements along the first axes, for `scaled`; empty: none

cdef Layout layout_of(const Array& array, const Array* plain=*)
cdef Layout lanes_layout(tuple dims, int lanes)
cdef str why_no_image_layout(Layout layout, tuple outer)
cdef OnednnLayout scaled_layout(const Array& array, const Array& plain, const vector[float]& factors)
