"""Data: batches of pictures and labels from an LMDB or LevelDB, made ready by a thread (Caffe data_layer.cpp).

The arrays of the thread become the tops' memory; nothing is copied on the way. In GPU mode they are page-locked, and the
next batch goes to the device on a stream of its own while the present one is computed (data/ahead.py). Different from
Caffe: random crops and mirrors depend on the seed and the record's number only, and a snapshot holds the position.
"""

import numpy as np

from minicaffe.common import TRAIN, caffe
from minicaffe.data.ahead import Ahead, pinned_array
from minicaffe.data.db import open_db
from minicaffe.data.prefetch import Prefetcher
from minicaffe.data.transform import Transformer
from minicaffe.errors import ConfigError, Error
from minicaffe.layer import Layer, register_layer


class DataLayer(Layer):
    """Tops: data (batch, channels, height, width), and label (batch,) unless only one top is named."""

    host_only = True
    exact_num_bottom_blobs = 0
    min_top_blobs = 1
    max_top_blobs = 2

    def layer_setup(self, bottom, top):
        param = self.param.data_param
        if param.batch_size < 1:
            raise ConfigError(f"must be at least 1, got {param.batch_size}", field="data_param.batch_size")
        if param.prefetch < 1:
            raise ConfigError(f"must be at least 1, got {param.prefetch}", field="data_param.prefetch")
        self.seed = self.generator.seed ^ self.generator.take() << 32
        self.start = 0
        self.ahead = None  # in GPU mode: the next batch, under way to the device
        self.prefetcher = None  # started by the first forward, so that a restored position costs no reading
        self.transformer = Transformer(self.param.transform_param, self.phase, self.seed)
        try:
            db = open_db(param.source, param.backend)
            cursor = db.cursor()
            (key, record), = cursor.take(1)
            try:
                shape = self.transformer.infer_shape(record)
            except Error as error:
                raise db.locate(error, 0, key)
            finally:
                del record  # it points into the database
                cursor.close()
                db.close()
        except Error as error:
            if error.field is None:
                error.field = "data_param.source"
            if error.file is not None:  # the net's file is what the user must mend
                error.message, error.file = f"{error.file}: {error.message}", None
            raise
        top[0].reshape(param.batch_size, *shape)
        if len(top) > 1:
            top[1].reshape(param.batch_size)

    def reshape(self, bottom, top):
        """Nothing to do: each batch brings its shape."""

    def forward_cpu(self, bottom, top):
        if self.ahead is not None:  # the mode changed: what is under way is this batch
            arrays, self.ahead = self.ahead.arrays, None
        else:
            arrays = self.next_batch(np.empty, 1)
        for blob, array in zip(top, arrays):
            blob.reshape(*array.shape)
            blob.set_cpu_data(array)

    def forward_gpu(self, bottom, top):
        if self.ahead is None:
            self.ahead = Ahead(lambda: self.next_batch(pinned_array, 2))
        self.ahead.give(top)

    def next_batch(self, allocate, hold):
        """Return data, and labels if they are wanted, of the next batch; start the thread if there is none."""
        param = self.param.data_param
        if self.prefetcher is None:
            count, rank = (caffe.solver_count, caffe.solver_rank) if self.phase == TRAIN else (1, 0)
            self.prefetcher = Prefetcher(
                param.source, param.backend, param.batch_size, self.transformer, param.prefetch, self.start,
                (np.float32, np.float64)[self.dtype], solver_count=count, solver_rank=rank, labels=len(self.param.top) > 1,
                allocate=allocate, hold=hold)
        data, labels = self.prefetcher.next()
        return (data,) if labels is None else (data, labels)

    def backward_cpu(self, top, propagate_down, bottom):
        """Data have no gradient."""

    def get_state(self):
        position = self.start
        if self.prefetcher is not None:
            position = self.prefetcher.position - (self.prefetcher.step if self.ahead is not None else 0)
        return {"seed": self.seed, "position": position}

    def set_state(self, state):
        self.ahead = None
        if self.prefetcher is not None:
            self.prefetcher.close()
            self.prefetcher = None
        self.seed, self.start = state["seed"], state["position"]
        self.transformer = Transformer(self.param.transform_param, self.phase, self.seed)


register_layer("Data", DataLayer)
