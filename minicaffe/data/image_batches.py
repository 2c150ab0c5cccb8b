"""Batches of the pictures of a list, for the prefetch thread (Caffe image_data_layer.cpp).

Different from Caffe: the order of an epoch is a function of the seed and the epoch's number, so that a resumed run repeats it.
"""

import numpy as np

from minicaffe.data.datum import opencv
from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.errors import DataError, FileError, ShapeError
from minicaffe.memory.budget import check_bytes


class ImageBatches:
    """Make batches of transformed pictures; the list is repeated endlessly.

    Parameters
    ----------
    images : ImageList
    root : str
        Put before each path unchanged.
    transformer : Transformer
    augmenter : object or None
        As of minicaffe/proto/unknown.py; applied after resizing and before the transformer.
    seed : int
        Of the order; the lower 64 bits are used.
    shuffle : bool
        A new order in each epoch.
    size : (int, int), optional
        Height and width to resize to (bilinear).
    color : bool
        BGR, else gray.
    within : str, optional
        The folder that pictures must lie in (`minicaffe.proto.files.check_below`).
    """

    def __init__(self, images, root, transformer, augmenter, seed, *, shuffle=False, size=None, color=True, within=None):
        self.images, self.root, self.transformer, self.within = images, root, transformer, within
        self.source = images.path
        self.shuffle, self.size, self.color, self.augmenter = shuffle, size, color, augmenter
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._epoch = self._order = None

    def infer_shape(self, number):
        """Return (C, height, width) of record `number`, counted from the start of training."""
        return self._load(range(number, number + 1)).shape[1:]

    def open(self, number):
        """Nothing to open: each picture is a file."""

    def fill(self, numbers, buffer):
        """Put the records `numbers` into `buffer`."""
        batch = self._load(numbers)
        if self.images.label_size is None:
            batch.write(*buffer.reshape(batch.shape), numbers.start, numbers.step)
            return
        data, labels = buffer.reshape(batch.shape, (len(numbers), self.images.label_size))
        batch.write(data, None, numbers.start, numbers.step)
        labels[...] = [self.images.entries[self._index(number)][1] for number in numbers]

    def close(self):
        """Nothing to close."""

    def _index(self, number):
        """Return the place in the list of record `number`."""
        epoch, place = divmod(number, len(self.images.entries))
        if not self.shuffle:
            return place
        if epoch != self._epoch:
            counter_based = np.random.Philox(key=np.array([self._seed, epoch], np.uint64))
            self._epoch, self._order = epoch, np.random.Generator(counter_based).permutation(len(self.images.entries))
        return int(self._order[place])

    def _load(self, numbers):
        """Read the pictures of the records `numbers`; return them as a Batch."""
        pictures, indices, held = [], [self._index(number) for number in numbers], 0
        for number, index in zip(numbers, indices, strict=True):
            try:
                image = self._read(self.root + self.images.entries[index][0])
                pictures.append(image if self.augmenter is None else self.augmenter.picture(image, number))
                held += pictures[-1].nbytes
                check_bytes(held, f"the {len(pictures)} first decoded pictures of a batch")  # before crop_size reduces them
            except (DataError, FileError, ShapeError) as error:
                raise self.images.locate(error, index)
        try:
            labels = None if self.images.label_size else [self.images.entries[index][1] for index in indices]
            return self.transformer.load_images(pictures, labels)
        except (DataError, ShapeError) as error:
            if error.record is None:
                raise
            raise self.images.locate(error, indices[error.record])

    def _read(self, path):
        image = decode_picture(read_content(path, self.within), path, self.color)
        if self.size is None:
            return image
        height, width = self.size
        return opencv().resize(image, (width, height))
