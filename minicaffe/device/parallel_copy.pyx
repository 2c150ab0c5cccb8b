"""Copies of host memory by the threads of the CPU loops, without the GIL: one thread cannot use the full memory bandwidth."""

from minicaffe.device.threads cimport Threads, num_threads

import numpy as np

cdef extern from *:
    """
    #include <cstring>
    #include "minicaffe/device/threads.hpp"
    static void copy_in_parts(mc::cpu::Threads threads, void* to, const void* from, long long bytes) {
      const long long least = 1 << 18;  // bytes of a part: waking a thread for fewer costs more than it saves
      mc::cpu::parallel(threads, bytes, least, [=](int, mc::index_t begin, mc::index_t end) {
        std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
      });
    }
    """
    void copy_in_parts(Threads threads, void* to, const void* source, long long nbytes) nogil


def copy_array(target, source):
    """Do ``target[...] = source`` for a net's input, by several threads if both are contiguous and of one type and shape.

    Parameters
    ----------
    target, source : numpy.ndarray
        The shape of `source` can be broadcast to that of `target`. NumPy copies, on one thread, arrays that need
        conversion, broadcasting or gathering, or that share memory.
    """
    cdef unsigned char[::1] to
    cdef const unsigned char[::1] from_
    plain = target.dtype == source.dtype and target.shape == source.shape and not source.dtype.hasobject
    if not plain or not target.flags.c_contiguous or not source.flags.c_contiguous or np.may_share_memory(target, source):
        target[...] = source
        return
    to, from_ = target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
    if to.shape[0]:
        with nogil:
            copy_in_parts(num_threads(), &to[0], &from_[0], to.shape[0])
