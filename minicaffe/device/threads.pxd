cdef extern from "minicaffe/device/threads.hpp":
    struct Pool "mc::cpu::Pool":
        int (*dry)() noexcept nogil
    struct Threads "mc::cpu::Threads":
        int count
        Pool* pool

cdef Threads num_threads() noexcept nogil
