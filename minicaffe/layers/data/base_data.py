"""Base of the layers with a prefetch thread: Data, AnnotatedData, ImageData, WindowData, VideoData (Caffe base_data_layer.cpp).

The arrays of the thread become the tops' memory without a copy. In GPU mode they are page-locked, and the next batch is sent
to the device on a stream of its own while the present one is computed (data/upload.py). Different from
Caffe: random draws depend on the seed and the record's number only, and a snapshot holds the position.
"""

import functools
from operator import attrgetter

import numpy as np

from minicaffe.common import caffe
from minicaffe.data.augment import Augmenter
from minicaffe.data.prefetch import Prefetcher
from minicaffe.data.real_labels import label_size
from minicaffe.data.transform import Transformer
from minicaffe.data.upload import DeviceUpload, pinned_array
from minicaffe.errors import ConfigError, DataError, Error, FileError, in_field
from minicaffe.layers.base.checks import state_numbers
from minicaffe.layers.data.sources import NumberedSource
from minicaffe.memory.budget import check_bytes

# What the thread holds beside the values themselves, at least: the place of a record and of a batch.
RECORD_BYTES, BUFFER_BYTES = 512, 4096
LABEL_FIELDS = "data_param", "image_data_param"  # the messages with a field label_size
DEFAULT_DEPTH = 4  # of data_param.prefetch; as many batches are held whatever the budget


class PrefetchingLayer(NumberedSource):
    """Tops: data (batch, channels, height, width), and label (batch,) where the type has it, or (batch, label_size).

    A type defines `batch_field`, `prepare`, which reads the layer's other parameters and gives the shape of a record, and
    `make_batches`.

    Attributes
    ----------
    seed : int
        Of the layer's random draws, known before `prepare`.
    label_size : int or None
        How many real numbers the label of a record is, if it is not one integer; known before `prepare`.
    within : str or None
        The folder that files must lie in, if the net is not trusted.
    """

    batch_field = None  # the field that says the batch's size
    label_param = None  # the message whose label_size the type takes

    def check_files(self):
        """Raise ConfigError unless the net may read what `make_batches` opens; called again before it, as links may change."""
        if self.param.transform_param.mean_file:
            caffe.check_path(self.param.transform_param.mean_file, "transform_param.mean_file")

    def prepare(self):
        """Read and check the parameters; return the shape of a record of the first batch."""
        raise Error(f"layer type {self.type} does not define prepare()")

    def make_batches(self):
        """Return a new batch reader (data/prefetch.py) for the present `seed`."""
        raise Error(f"layer type {self.type} does not define make_batches()")

    def transformer(self):
        """Return the Transformer, which crops and mirrors, with the present seed."""
        return Transformer(self.param.transform_param, self.phase, self.seed)

    def augmenter(self, samplers=None):
        """Return the Augmenter, which changes pictures before the Transformer."""
        return Augmenter(self.param.transform_param, samplers, self.seed)

    def layer_setup(self, bottom, top):
        depth = self.param.data_param.prefetch
        if depth < 1:
            raise ConfigError(f"must be at least 1, got {depth}", field="data_param.prefetch")
        self.seed = self.generator.seed ^ self.generator.take() << 32
        self.upload = None  # in GPU mode: of the next batch
        self.prefetcher = None  # started by the first forward, so that a restored position costs no reading
        self.position = 0
        self.within = caffe.within
        self.check_files()
        self.batch_size = attrgetter(self.batch_field)(self.param)
        if self.batch_size < 1:
            raise ConfigError(f"must be at least 1, got {self.batch_size}", field=self.batch_field)
        self.label_size = self._label_size()
        shape = self.prepare()
        with in_field(self.batch_field):
            top[0].reshape(self.batch_size, *shape)
            check_bytes(self.batch_size * RECORD_BYTES, f"the records of a batch of {self.batch_size}")
        if depth > DEFAULT_DEPTH:
            with in_field("data_param.prefetch"):
                check_bytes(depth * max(BUFFER_BYTES, top[0].count * (4, 8)[self.dtype]), f"{depth} batches made ready")
        if len(top) > 1:
            if self.label_size is None:
                top[1].reshape(self.batch_size)
            else:
                with in_field(f"{self.label_param}.label_size"):
                    top[1].reshape(self.batch_size, self.label_size)

    def _label_size(self):
        for name in LABEL_FIELDS:
            if name != self.label_param and getattr(self.param, name).HasField("label_size"):
                remedy = f"give {self.label_param}.label_size" if self.label_param else "Data and ImageData do"
                raise ConfigError(f"{self.type} does not take it; {remedy}", field=f"{name}.label_size")
        if self.label_param is None:
            return None
        return label_size(getattr(self.param, self.label_param), f"{self.label_param}.label_size")

    def forward_cpu(self, bottom, top):
        step = self._match_prefetch_position()
        if self.upload is not None:  # the mode changed: what was sent is this batch
            arrays, self.upload = self.upload.arrays, None
        else:
            arrays = self.next_batch(np.empty, 1)
        for blob, array in zip(top, arrays):
            if blob.shape != array.shape:
                blob.reshape(*array.shape)
            blob.set_cpu_data(array)
        self.position += step

    def forward_gpu(self, bottom, top):
        step = self._match_prefetch_position()
        fetch = functools.partial(self.next_batch, pinned_array, 2)  # two batches are in use: one is computed, one is sent
        if self.upload is None:
            self._stop_prefetching()   # after a CPU forward the tops have the thread's arrays; a read of a top would copy into them
            upload = DeviceUpload()
            upload.send(fetch)
            self.upload = upload
        self.upload.take(top)
        try:
            self.upload.send(fetch)
        except (DataError, FileError):
            if not self.prefetcher.failed:
                raise
            # This batch is whole; the next forward reads again what is wrong with its own.
        self.position += step

    def _match_prefetch_position(self):
        """Stop the prefetch thread if it failed or its next batch is another one; return the step to the batch after it."""
        numbers, step = self.records()
        if self.prefetcher is not None:
            coming = self.prefetcher.upcoming if self.upload is None else self.prefetcher.numbers
            if self.prefetcher.failed or (coming, self.prefetcher.step) != (numbers, step):
                self._stop_prefetching()
        return step

    def release_memory(self):
        """Free prefetched batches; the next forward makes them again."""
        super().release_memory()
        self._stop_prefetching()

    def _stop_prefetching(self):
        """Stop the prefetch thread, and drop its batches."""
        self.upload = None
        if self.prefetcher is not None:
            self.prefetcher.close()
            self.prefetcher = None

    def next_batch(self, allocate, hold):
        """Return data, and labels if they are wanted, of the next batch; start the thread if there is none."""
        if self.prefetcher is None:
            with caffe.confined(self.within):
                self.check_files()
                reader = self.make_batches()
            self.prefetcher = Prefetcher(
                reader, *self.records(), self.param.data_param.prefetch, (np.float32, np.float64)[self.dtype],
                labels=len(self.param.top) > 1, allocate=allocate, hold=hold)
        data, labels = self.prefetcher.next()
        return (data,) if labels is None else (data, labels)

    def get_state(self):
        return {"seed": self.seed, "position": self.position}

    def set_state(self, state):
        self.seed, self.position = state_numbers(state, {"seed": 1 << 128, "position": 1 << 63})
        self._stop_prefetching()
