"""MemoryData: batches from arrays that the program hands over (Caffe memory_data_layer.cpp)."""

import numpy as np

from minicaffe.errors import ConfigError, ShapeError, in_field
from minicaffe.layers.base.checks import check_size
from minicaffe.layers.data.sources import SourceLayer


class MemoryDataLayer(SourceLayer):
    """Tops: data (batch, channels, height, width) and label (batch,); each forward gives the next batch, wrapping around.

    The arrays given to `reset` are used in place: they are neither copied nor transformed. Different from Caffe: a batch that a
    layer changes in place is copied, so that the arrays stay as they are.
    """

    exact_num_top_blobs = 2

    def layer_setup(self, bottom, top):
        param = self.param.memory_data_param
        for field in ("batch_size", "channels", "height", "width"):
            check_size(getattr(param, field), f"memory_data_param.{field}")
        self.batch_size = param.batch_size
        self.item_shape = (param.channels, param.height, param.width)
        self.data = self.labels = None      # the arrays of `reset`
        self.position = 0       # index in them of the next batch's first record
        with in_field("memory_data_param.batch_size"):
            top[0].reshape(self.batch_size, *self.item_shape)
            top[1].reshape(self.batch_size)

    def reset(self, data, labels):
        """Use `data` and `labels` from the next forward on, from their start; `Net.set_input_arrays` calls it.

        Parameters
        ----------
        data : array, shape (N, channels, height, width), the net's type, C-contiguous
            N must be a multiple of the batch size.
        labels : array, shape (N,) or (N, 1, 1, 1)

        Raises
        ------
        ShapeError, ConfigError
            If shape, type or layout differ.
        """
        dtype = (np.float32, np.float64)[self.dtype]
        labels = labels.reshape(-1, 1, 1, 1) if labels.ndim == 1 else labels
        for name, array, item in (("data", data, self.item_shape), ("labels", labels, (1, 1, 1))):
            if array.dtype != dtype or not array.flags.c_contiguous:
                fault = f"{np.dtype(dtype)}, got {array.dtype}" if array.dtype != dtype else \
                    f"contiguous in C order, got shape {array.shape} and strides {array.strides}"
                raise ConfigError(f"must be {fault}; use np.ascontiguousarray({name}, '{np.dtype(dtype)}')", field=name)
            if array.shape[1:] != item:
                raise ShapeError(f"must have shape (N, {', '.join(map(str, item))}), got {array.shape}", field=name)
        if len(data) != len(labels):
            raise ShapeError(f"{len(labels)} labels for {len(data)} samples", field="labels")
        if len(data) == 0 or len(data) % self.batch_size:
            raise ShapeError(f"the number of samples must be a multiple of the batch size {self.batch_size}, got {len(data)}",
                             field="data")
        if self.data is None:
            self.log_ignored("set_input_arrays uses arrays as they are; transform them before")
        self.data, self.labels, self.position = data, labels, 0

    def forward_cpu(self, bottom, top):
        if self.data is None:
            raise ConfigError("has no data yet; call net.set_input_arrays(data, labels) first")
        begin, end = self.position, self.position + self.batch_size
        # Caffe gives the labels four axes from the first forward on.
        for i, (blob, array) in enumerate(zip(top, (self.data, self.labels))):
            blob.reshape(self.batch_size, *array.shape[1:])
            blob.set_cpu_data(array[begin:end].copy() if i in self.overwritten else array[begin:end])
        self.position = end % len(self.data)
