"""Batches of the pictures of a list, for the prefetch thread (Caffe image_data_layer.cpp).

Different from Caffe: the order of an epoch is a function of the seed and the epoch's number, so that a resumed run repeats it.
"""

import numpy as np

from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.errors import DataError, FileError, ShapeError
from minicaffe.memory.sizes import check_bytes


class ImageBatches:
    """Make batches of the transformed pictures of an `ImageList`; the list is repeated endlessly.

    `root` is put before each path unchanged. A picture is resized to `size`, (height, width), if given, then changed by
    `augmenter` (minicaffe/proto/unknown.py), if given, and by `transformer`. With `shuffle` each epoch has an order of its own,
    by `seed`. Without `color` pictures are gray. They must lie in the folder `within`, if given
    (`minicaffe.proto.files.check_below`).
    """

    def __init__(self, images, root, transformer, augmenter, seed, *, shuffle=False, size=None, color=True, within=None):
        self.images, self.root, self.transformer, self.within = images, root, transformer, within
        self.source = images.path
        self.shuffle, self.size, self.color, self.augmenter = shuffle, size, color, augmenter
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._epoch = self._order = None

    def infer_shape(self, number):
        """Return (C, height, width) of record `number`, counted from the start of training: ImageData needs it in its setup."""
        return self._load(range(number, number + 1))[0].shape[1:]

    def fill(self, numbers, buffer):
        """Put the records `numbers` into `buffer`, a BatchArrays."""
        batch, labels = self._load(numbers)
        buffer.write(batch, numbers, labels)

    def close(self):
        """Do nothing, as no file stays open; each batch reader has this method."""

    def _index(self, number):
        """Return the index in the list of record `number`; with `shuffle` by the permutation of its epoch."""
        epoch, place = divmod(number, len(self.images.entries))
        if not self.shuffle:
            return place
        if epoch != self._epoch:
            counter_based = np.random.Philox(key=np.array([self._seed, epoch], np.uint64))
            self._epoch, self._order = epoch, np.random.Generator(counter_based).permutation(len(self.images.entries))
        return int(self._order[place])

    def _load(self, numbers):
        """Return a Batch of the records `numbers`, and their labels that are real numbers; None if the Batch has integer labels."""
        pictures, indices, held = [], [self._index(number) for number in numbers], 0
        paths, labels = zip(*(self.images.entries[index] for index in indices), strict=True)
        for number, index, path in zip(numbers, indices, paths, strict=True):
            try:
                path = self.root + path
                image = decode_picture(read_content(path, self.within), path, self.color, self.size)
                pictures.append(image if self.augmenter is None else self.augmenter.picture(image, number))
                held += pictures[-1].nbytes
                check_bytes(held, f"the {len(pictures)} first decoded pictures of a batch")  # before crop_size reduces them
            except (DataError, FileError, ShapeError) as error:
                raise self.images.locate(error, index)
        try:
            if self.images.label_size is None:
                return self.transformer.load_images(pictures, labels), None
            return self.transformer.load_images(pictures), np.array(labels)
        except (DataError, ShapeError) as error:
            if error.record is None:
                raise
            raise self.images.locate(error, indices[error.record])     # `record` was the index in the batch
