"""Bucket: gradients that are sent between processes together, as one array (Caffe parallel.cpp has all of a net in one)."""

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.device.context cimport Context, context, cpu_context
from minicaffe.kernels.types cimport BF16, item_size
from minicaffe.engines.layouts cimport stored
from minicaffe.loops.strided.caffe cimport copy_strided, sum_bf16

import numpy as np

from minicaffe.memory.synced import device_lock


cdef class Bucket:
    """Gradients that are sent together, each in a layout that all processes agreed on; `Exchange` makes the buckets (exchange.py).

    A transport by MPI calls `pack`, sums `array` over all ranks in place, and calls `unpack`; NCCL uses `blobs` alone. A single
    gradient is sent from its own memory. Several, or those that are sent in bf16, are copied to an array and back. On a device
    they pass through the host's side of their memory, which is page-locked there.
    """

    cdef readonly list which        # numbers of the parameters in `Net.learnable_params`
    cdef readonly list blobs        # the parameters, of any shapes and all of one type
    cdef readonly list layouts      # of each gradient; None: plain order
    cdef readonly bint bf16         # they are sent rounded to bf16; float32 only
    cdef readonly long long count       # elements, with the padding of the layouts
    cdef readonly long long nbytes      # that are sent
    cdef readonly object array          # memoryview of the bytes that are sent, between `pack` and `unpack`
    cdef public long long start_ns      # when its sending started, by time.perf_counter_ns, for traces
    cdef int dtype          # of the gradients in memory
    cdef list counts        # elements of each gradient, with the padding of its layout
    cdef object staging     # array of uint8 that is sent in place of the gradients' memory; None: that memory is sent

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
        cdef long long n, one = 1
        cdef int i, sent = BF16 if self.bf16 else self.dtype
        for i in range(len(self.blobs)):
            gradient, n = self.gradient(i), self.counts[i]
            if out:
                copy_strided(cpu_context(), self.dtype, sent, 1, &n, gradient, &one, at, &one)
            else:
                copy_strided(cpu_context(), sent, self.dtype, 1, &n, at, &one, gradient, &one)
            at += n * item_size(sent)
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
            sum_bf16(n, &x[0], &y[0])
