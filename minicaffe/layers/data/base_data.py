"""Base of the layers with a prefetch thread: Data, AnnotatedData, ImageData, WindowData, VideoData (Caffe base_data_layer.cpp).

The arrays of the thread become the tops' memory without a copy. In GPU mode they are page-locked, and the next batch is copied to
the device on a separate stream while the current one is computed (data/upload.py). Different from Caffe: random draws depend on
the seed and the record's number only, and a snapshot has the position.
"""

import functools
from operator import attrgetter

import numpy as np

from minicaffe.common import caffe
from minicaffe.data.prefetch import Prefetcher
from minicaffe.data.transform import Transformer
from minicaffe.errors import ConfigError, DataError, FileError, in_field
from minicaffe.layers.base.checks import check_size, state_numbers
from minicaffe.layers.data.sources import NumberedSource
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import unknown

# Least memory of the prefetch thread besides the values: for each record of a batch, and for each batch.
RECORD_BYTES, BUFFER_BYTES = 512, 4096
LABEL_FIELDS = "data_param", "image_data_param"  # fields of LayerParameter that have label_size, real numbers as labels
DEFAULT_DEPTH = 4  # of data_param.prefetch; the memory of a larger depth is compared with the budget


class PrefetchingLayer(NumberedSource):
    """Tops: data (batch, channels, height, width), and label (batch,) where the type has it, or (batch, label_size).

    A subclass defines `batch_field`; ``prepare()``, which reads the layer's other parameters and returns the shape of a record of
    the first batch; and ``make_batches()``, which returns a new batch reader (data/prefetch.py) for the current `seed`.

    Attributes
    ----------
    seed : int
        Of the layer's random draws; set before `prepare` is called.
    label_size : int or None
        Number of real numbers in the label of a record; None if it is one integer. Set before `prepare` is called.
    within : str or None
        The folder that must contain all files, if the net is not trusted.
    """

    batch_field = None  # path of the field of LayerParameter with the batch size
    label_param = None  # the one of LABEL_FIELDS whose label_size the type supports; None: it takes integer labels only

    def check_files(self):
        """Raise ConfigError unless a net that is not trusted may read the files that `make_batches` opens; a type adds its own."""
        if self.param.transform_param.mean_file:
            caffe.check_path(self.param.transform_param.mean_file, "transform_param.mean_file")

    def transformer(self):
        """Return the Transformer, which crops and mirrors, for the current `seed`."""
        return Transformer(self.param.transform_param, self.phase, self.seed)

    def augmenter(self):
        """Return the object, of an add-on, that distorts pictures before the Transformer; None without fields for it (SSD's)."""
        param = self.param.transform_param
        return unknown.augmenter(param, self.seed) if any(map(param.HasField, unknown.AUGMENTATIONS)) else None

    def layer_setup(self, bottom, top):
        depth = self.param.data_param.prefetch
        check_size(depth, "data_param.prefetch")
        self.seed = self.generator.seed ^ self.generator.reserve_counters() << 32
        self.upload = None  # in GPU mode: the DeviceUpload that copies the next batch to the device
        self.prefetcher = None  # started by the first forward, so that a restored position costs no reading
        self.position = 0
        self.within = caffe.within
        if self.within is not None:
            self.check_files()
        self.batch_size = attrgetter(self.batch_field)(self.param)
        check_size(self.batch_size, self.batch_field)
        labeled = any(getattr(self.param, name).HasField("label_size") for name in LABEL_FIELDS)
        self.label_size = self._label_size() if labeled else None
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
        """Return the `label_size` that one of LABEL_FIELDS has; raise ConfigError if the type does not support it."""
        for name in LABEL_FIELDS:
            if name != self.label_param and getattr(self.param, name).HasField("label_size"):
                remedy = f"give {self.label_param}.label_size" if self.label_param else "Data and ImageData do"
                raise ConfigError(f"{self.type} does not take it; {remedy}", field=f"{name}.label_size")
        size = getattr(self.param, self.label_param).label_size
        if size < 1:
            raise ConfigError("must be at least 1, got 0; leave it out for one integer a record",
                              field=f"{self.label_param}.label_size")
        return size

    def forward_cpu(self, bottom, top):     # the tops use the arrays of the batch, without a copy
        step = self._match_prefetch_position()
        if self.upload is not None:  # the mode changed to CPU: the batch that was copied to the device is this one
            arrays, self.upload = self.upload.arrays, None
        else:
            arrays = self._next_batch(np.empty, 1)
        for blob, array in zip(top, arrays):
            if blob.shape != array.shape:
                blob.reshape(*array.shape)
            blob.set_cpu_data(array)
        self.position += step

    def forward_gpu(self, bottom, top):     # the tops get the batch sent before; the copy of the next one begins
        from minicaffe.data.upload import DeviceUpload, pinned_array
        step = self._match_prefetch_position()
        fetch = functools.partial(self._next_batch, pinned_array, 2)  # two batches are in use: one is computed, one is copied
        if self.upload is None:
            self._stop_prefetching()   # a CPU forward gave pageable arrays to the tops; a read of a top would copy into them
            upload = DeviceUpload()
            upload.send(fetch)
            self.upload = upload
        self.upload.copy_to(top)
        try:
            self.upload.send(fetch)
        except (DataError, FileError):
            if self.prefetcher.error is None:
                raise
            # The error is of the next batch: the next forward reads that batch again, and raises if this fails again.
        self.position += step

    def _match_prefetch_position(self):
        """Stop the prefetch thread if it failed or its next batch is not that of `records`; return the step of `position`."""
        numbers, step = self.records()
        if self.prefetcher is not None:
            next_numbers = self.prefetcher.upcoming if self.upload is None else self.prefetcher.numbers
            if self.prefetcher.error is not None or (next_numbers, self.prefetcher.step) != (numbers, step):
                self._stop_prefetching()
        return step

    def release_memory(self):
        """Free prefetched batches; the next forward reads them again."""
        super().release_memory()
        self._stop_prefetching()

    def _stop_prefetching(self):
        """Stop the prefetch thread, if any, and drop its batches; the next forward starts one from `position` on."""
        self.upload = None
        if self.prefetcher is not None:
            self.prefetcher.close()
            self.prefetcher = None

    def _next_batch(self, allocate, hold):
        """Return (data,) or (data, labels) of the next batch; start the prefetch thread if there is none.

        `allocate` makes the arrays, `hold` is the number of batches in use at once (`Prefetcher`). They have no effect on a thread
        that runs already: a caller that changes them must stop it before.
        """
        if self.prefetcher is None:
            reader = self.make_batches() if self.within is None else self._batches_within()
            self.prefetcher = Prefetcher(
                reader, *self.records(), self.param.data_param.prefetch, (np.float32, np.float64)[self.dtype],
                labels=len(self.param.top) > 1, allocate=allocate, hold=hold)
        data, labels = self.prefetcher.next()
        return (data,) if labels is None else (data, labels)

    def _batches_within(self):
        """Return ``make_batches()`` for a net that is not trusted: check its files again, as links may have changed since setup."""
        with caffe.confined(self.within):
            self.check_files()
            return self.make_batches()

    def get_state(self):    # for a snapshot, so that a resumed training continues with the same records
        return {"seed": self.seed, "position": self.position}

    def set_state(self, state):     # of `get_state`, from a snapshot
        self.seed, self.position = state_numbers(state, {"seed": 1 << 128, "position": 1 << 63})
        self._stop_prefetching()
