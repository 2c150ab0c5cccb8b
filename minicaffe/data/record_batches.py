"""Batches of the records of a database, for the prefetch thread (Caffe data_layer.cpp)."""

import itertools

import numpy as np

from minicaffe.data.datum import labels_of, picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.errors import Error, located


class RecordBatches:
    """Make batches of transformed records; the database is repeated endlessly.

    `source` and `backend` are as for `open_db`. `augmenter` (minicaffe/proto/unknown.py), if given, is applied to a picture before
    `transformer`. With `label_size` the labels of a record are this many real numbers, its float_data. SSD overrides `load`.
    """

    def __init__(self, source, backend, transformer, augmenter=None, *, label_size=None):
        self.db = open_db(source, backend)
        self.source = self.db.source
        self.transformer, self.augmenter, self.label_size = transformer, augmenter, label_size
        self.cursor = None

    def fill(self, numbers, buffer):
        """Put the records `numbers` into `buffer`, a BatchArrays; records between those of `numbers` are stepped over."""
        if self.cursor is None:     # an iterator over functions that return (key, value); `place` is the number of its next record
            self.cursor, self.place = self.db.cursor(numbers.start), numbers.start
        first, end = numbers.start - self.place, numbers[-1] + 1 - self.place
        records = [read() for read in itertools.islice(self.cursor, first, end, numbers.step)]
        self.place = numbers[-1] + 1
        try:
            batch, labels = self.load([value for _, value in records], numbers)
        except Error as error:
            if error.record is None:
                raise error.at(file=self.source)
            raise self.db.locate(error, numbers[error.record], records[error.record][0])
        buffer.write(batch, numbers, labels)

    def load(self, values, numbers):
        """Return a Batch of serialized records with these `numbers`, and their real labels, None if the Batch has integer ones."""
        if self.augmenter is None:
            batch = self.transformer.load(values)
        else:
            pictures, labels = [], []
            for i, (value, number) in enumerate(zip(values, numbers, strict=True)):
                with located(record=i):
                    datum = read_datum(value)
                    pictures.append(self.augmenter.picture(picture(datum, self.augmenter.param), number))
                labels.append(datum.label)
            batch = self.transformer.load_images(pictures, labels)
        if self.label_size is None:
            return batch, None
        reals = np.empty((len(values), self.label_size), np.float32)
        for i, value in enumerate(values):
            with located(record=i):
                reals[i] = labels_of(read_datum(value), self.label_size)
        return batch, reals

    def close(self):
        """Release the database."""
        self.cursor = None
        self.db.close()


def picture(datum, param):
    """Return the picture of a Datum message as (height, width, channels), for augmenters: uint8, or float32 for float_data.

    The TransformationParameter `param` has force_color and force_gray.
    """
    return np.ascontiguousarray(picture_of(datum, param.force_color, param.force_gray).transpose(1, 2, 0))
