"""The next batch on its way to the device while the present one is computed.

    prefetch thread -> page-locked array -> (copies stream) -> staging blob -> (computing stream) -> top

The top keeps its memory, which a CUDA graph needs; the copy from the staging blob costs a few microseconds of the device's
own bandwidth. Two events keep order: computing waits for the staging blob to be full, the next push for it to be read. The
host waits for the latter before it fetches, since that may overwrite the arrays of the batch before. Dropping all of it is safe
at any time: the push tells the allocators of both blocks of its stream.
"""

import numpy as np

from minicaffe import cuda, memory
from minicaffe.blob import NUMPY_TYPES, Blob, Dtype
from minicaffe.memory.registry import registry


def pinned_array(shape, dtype):
    """Return an uninitialised array in page-locked memory, which lives as long as the array."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    buffer = memory.Buffer(registry.allocator(memory.PinnedPlace()), max(count * dtype.itemsize, 1), "prefetched batch")
    return np.ndarray(shape, dtype, buffer=buffer)


class Ahead:
    """One batch under way, of which `arrays` is the tuple of arrays.

    ``fetch()`` gives those of the next batch; they stay as they are until the call after the next.
    """

    def __init__(self, fetch):
        self.fetch = fetch
        device = cuda.current()
        self.copies, self.computing = device.copies, cuda.computing(device)
        self.full, self.read = cuda.Event(device), cuda.Event(device)
        self.staging = []
        self._send()

    def _send(self):
        self.read.synchronize()
        self.arrays = self.fetch()
        self.read.record(self.computing)
        if not self.staging:
            self.staging = [Blob(None, Dtype(NUMPY_TYPES.index(a.dtype)), "next batch") for a in self.arrays]
        self.copies.wait(self.read)
        for blob, array in zip(self.staging, self.arrays):
            blob.reshape_to(array.shape)
            blob.set_cpu_data(array)
            blob.async_gpu_push(self.copies)
        self.full.record(self.copies)

    def give(self, tops):
        """Let `tops` have the batch under way, and send the next."""
        self.computing.wait(self.full)
        for top, blob in zip(tops, self.staging):
            top.reshape_like(blob)
            top.take_pushed(blob)
        self._send()
