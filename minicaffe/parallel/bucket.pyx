"""Bucket: gradients that are sent between processes together, as one array (Caffe parallel.cpp has all of a net in one)."""

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.string cimport memcpy

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.device.context cimport Context, context
from minicaffe.device.threads cimport Threads, num_threads
from minicaffe.kernels.types cimport BF16, item_size
from minicaffe.engines.layouts cimport stored

import numpy as np

from minicaffe.memory.synced import device_lock

cdef extern from "minicaffe/parallel/wire.hpp" namespace "mc" nogil:
    void to_bf16(Threads threads, long long n, const void* x, void* y)
    void from_bf16(Threads threads, long long n, const void* x, void* y)
    void add_bf16_ "mc::add_bf16"(long long n, const void* x, void* y)


cdef class Bucket:
    """Gradients that are sent together, each in a layout that all processes agreed on; `Exchange` makes the buckets (exchange.py).

    A transport by MPI calls `pack`, sums `array` over all ranks in place, and calls `unpack`; NCCL uses `blobs` alone. A single
    gradient is sent from its own memory. Several, or those that are sent in bf16, are copied to an array and back. On a device
    they pass through the host's side of their memory, which is page-locked there.

    Parameters
    ----------
    which : list of int
        The numbers of the parameters in `Net.learnable_params`.
    blobs : list of Blob
        The parameters, of any shapes and all of one type.
    layouts : list of Layout or None
        Of each gradient; None: plain order.
    bf16 : bool
        Send them rounded to bf16; float32 only.

    Attributes
    ----------
    count : int
        Elements, with the padding of the layouts.
    nbytes : int
        Bytes that are sent.
    array : memoryview of bytes
        The data that are sent, between `pack` and `unpack`.
    """

    cdef readonly list which
    cdef readonly list blobs
    cdef readonly list layouts
    cdef readonly bint bf16
    cdef readonly long long count
    cdef readonly long long nbytes
    cdef readonly object array
    cdef public long long start_ns     # when its sending started, by time.perf_counter_ns, for traces
    cdef int dtype          # of the gradients in memory
    cdef list counts        # elements of each gradient, with the padding of its layout
    cdef object staging         # array of uint8 that is sent in place of the gradients' memory; None: that memory is sent

    def __init__(self, list which not None, list blobs not None, list layouts not None, bint bf16=False):
        cdef Blob blob
        self.which, self.blobs, self.layouts = which, blobs, layouts
        self.dtype = (<Blob> blobs[0]).dtype
        self.bf16 = bf16 and self.dtype == FLOAT
        self.counts = [stored(layout, blob) for blob, layout in zip(blobs, layouts)]
        self.count = sum(self.counts)
        self.nbytes = self.count * item_size(BF16 if self.bf16 else self.dtype)
        self.staging = np.empty(self.nbytes, np.uint8) if self.bf16 or len(blobs) > 1 else None

    cdef void* gradient(self, int index) except NULL:
        """Return the address of a gradient in host memory, in the layout that all ranks have, for MPI to read and write."""
        cdef Context on = context()
        cdef Blob blob = self.blobs[index]
        if on.stream != NULL:       # a device: the plain array of the host
            return blob.mutable_cpu_diff_ptr()
        return blob.mutable_diff_in_layout(on, self.layouts[index])

    cdef int copy(self, bint out) except -1:
        """Copy all gradients to `staging`, one after the other (`out` True), or back; convert to bf16 or from it."""
        cdef unsigned char[::1] staging = self.staging
        cdef char* at = <char*> &staging[0]
        cdef void* gradient
        cdef long long n
        cdef int i
        cdef size_t item = item_size(BF16 if self.bf16 else self.dtype)
        for i in range(len(self.blobs)):
            gradient, n = self.gradient(i), self.counts[i]
            if self.bf16 and out:
                to_bf16(num_threads(), n, gradient, at)
            elif self.bf16:
                from_bf16(num_threads(), n, at, gradient)
            elif out:
                memcpy(at, gradient, n * item)
            else:
                memcpy(gradient, at, n * item)
            at += n * item
        return 0

    def pack(self):
        """Set `array` to the gradients as they are now; until `unpack` no other code may use them."""
        with device_lock:
            if self.staging is None:
                self.array = PyMemoryView_FromMemory(<char*> self.gradient(0), self.nbytes, PyBUF_WRITE)
            else:
                self.copy(True)
                self.array = memoryview(self.staging)

    def unpack(self):
        """Set the gradients to the values that `array` has now, the sums."""
        cdef Blob blob
        self.array = None
        with device_lock:
            if self.staging is not None:
                self.copy(False)
            for blob in self.blobs:
                blob.wrote_diff()       # ends the write in a layout: views of the plain array get the sums


def add_bf16(const unsigned char[::1] x, unsigned char[::1] y):
    """Add two arrays of bf16, given as bytes: ``y += x``, computed in float32 and rounded (MPI's operation in transport.py)."""
    cdef long long n = x.shape[0] // item_size(BF16)
    if n:
        with nogil:
            add_bf16_(n, &x[0], &y[0])
