"""Copies of host memory by the threads of the CPU's loops, without the GIL.

One thread reaches only a part of the memory's bandwidth.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

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
    """Do ``target[...] = source``, by several threads where both are contiguous and of one type and shape.

    Parameters
    ----------
    target, source : numpy.ndarray
        What has to be converted, broadcast or gathered NumPy copies, on one thread; so it does where both share memory.
    """
    cdef Py_buffer to, from_
    plain = target.dtype == source.dtype and target.shape == source.shape and not source.dtype.hasobject
    if not plain or not target.flags.c_contiguous or not source.flags.c_contiguous or np.may_share_memory(target, source):
        target[...] = source
        return
    PyObject_GetBuffer(target, &to, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(source, &from_, PyBUF_C_CONTIGUOUS)
        try:
            with nogil:
                copy_in_parts(num_threads(), to.buf, from_.buf, to.len)
        finally:
            PyBuffer_Release(&from_)
    finally:
        PyBuffer_Release(&to)
