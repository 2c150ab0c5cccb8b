"""Host arrays to blobs of a GPU, by a copy stream beside the computing stream.

    arrays in page-locked memory -> (copy stream) -> staging blobs -> (computing stream) -> tops

The next batch is copied to the device while the present one is computed. Sources of data (layers/data/base_data.py) and
`Net.feed` (net/feed.py) use it. A top keeps its memory, which a CUDA graph needs: the copy from a staging blob to it costs a few
microseconds of the device's own bandwidth. Events keep the order: computing waits until the staging blobs are full, and the next
copy to them until they were read. An upload may be dropped at any time: the allocators of its blocks track the copy stream.
"""

import math

import numpy as np

from minicaffe import cuda, memory
from minicaffe.blob import NUMPY_TYPES, Blob, Dtype
from minicaffe.memory.registry import registry
from minicaffe.memory.synced import device_lock


def pinned_array(shape, dtype, name="prefetched batch"):
    """Return an uninitialised array in page-locked memory, which lives as long as the array; memory reports show its `name`."""
    dtype = np.dtype(dtype)
    buffer = memory.Buffer(registry.allocator(memory.PinnedPlace()), max(math.prod(shape) * dtype.itemsize, 1), name)
    return np.ndarray(shape, dtype, buffer=buffer)


class DeviceUpload:
    """Batches that are copied to the current GPU: call `send` and `copy_to` alternately. `arrays` are those of the last `send`."""

    def __init__(self):
        device = cuda.current()
        self.copies, self.computing = device.copies, cuda.computing(device)
        # `full`: the copies of one of the last two batches to the staging blobs are done; `read`: the staging blobs were read.
        self.full, self.read = (cuda.Event(device), cuda.Event(device)), cuda.Event(device)
        self.staging, self.arrays, self.sent = [], None, 0      # `sent` counts the batches

    def send(self, fetch):
        """Start the copy of what ``fetch()`` returns, a sequence of arrays in page-locked memory, to the staging blobs.

        The host waits for the copy of the batch before the last: `fetch` may overwrite its arrays.
        """
        full = self.full[self.sent % 2]
        full.synchronize()      # returns at once for an event that was never recorded
        self.arrays = fetch()
        if not self.staging:
            self.staging = [Blob(None, Dtype(NUMPY_TYPES.index(a.dtype)), "next batch") for a in self.arrays]
        with device_lock:  # not while another thread records a graph
            self.copies.wait(self.read)
            for blob, array in zip(self.staging, self.arrays):
                blob.reshape_to(array.shape)
                blob.set_cpu_data(array)
                blob.async_gpu_push(self.copies)
            full.record(self.copies)
        self.sent += 1

    def copy_to(self, tops):
        """Give `tops` shapes and values of the last batch of `send`, by copies on the device; the host does not wait."""
        with device_lock:
            self.computing.wait(self.full[(self.sent - 1) % 2])
            for top, blob in zip(tops, self.staging):
                top.reshape_like(blob)
                top.take_pushed(blob)
            self.read.record(self.computing)
