"""RowLayer: the base of layers that pick rows by index.

Different from Caffe: every index is checked in every pass; one that is no integer is an error, where Caffe truncates it.
"""

from minicaffe.blob cimport INT, Blob
from minicaffe.device.context cimport Context
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.rows.caffe cimport read_indices

import numpy as np

from minicaffe.errors import DataError


cdef class RowLayer(DeviceLayer):
    """A layer that reads indices of rows: the elements of a blob with one index of axis 0."""

    cdef const int* take_indices(self, const Context& on, Blob blob, long long limit, str field) except? NULL:
        """Return the values of `blob` as int32 where `on` computes; raise DataError for one that is no index below `limit`."""
        if self.index is None:
            self.index = Blob(None, INT, f"{self.name} indices")
        self.index.reshape_like(blob)
        cdef int* out = <int*> self.index.mutable_cpu_data_ptr()
        cdef long long wrong = read_indices(self.dtype, blob.count, blob.cpu_data_ptr(), limit, out)
        if wrong >= 0:
            value = blob.cpu_data.reshape(-1)[wrong]
            if np.floor(value) < value:
                raise DataError(f"value {wrong} is {value!s}, an index must be an integer; round it in the data", field=field)
            raise DataError(f"value {wrong} is {value:g}, an index must be from 0 to {limit - 1}", field=field)
        return <const int*> self.index.data_on(on)

    def capture_obstacle(self):     # why a CUDA graph cannot hold the layer
        return "it reads indices on the host"

    cdef long long row_bytes(self, Blob blob) except -1:
        """Return the size in bytes of a row of `blob`, which is one index of axis 0."""
        return blob.count_range(1, blob.num_axes) * item_size(self.dtype)
