"""Batches of the records of a database, for the prefetch thread (Caffe data_layer.cpp)."""

import numpy as np

from minicaffe.data.datum import labels_of, picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.errors import Error, located


class RecordBatches:
    """Make batches of transformed records; the database is repeated endlessly.

    Parameters
    ----------
    source, backend
        As for `open_db`.
    transformer : Transformer
    augmenter : optional
        As of minicaffe/proto/unknown.py; applied to a picture before the transformer.
    label_size : int, optional
        A record's labels are this many real numbers, its float_data.

    Raises
    ------
    FileError, DataError
        The database cannot be opened or is empty.
    """

    def __init__(self, source, backend, transformer, augmenter=None, *, label_size=None):
        self.db = open_db(source, backend)
        self.source = self.db.source
        self.transformer, self.augmenter, self.label_size = transformer, augmenter, label_size
        self.cursor = None

    def open(self, number):
        """Start batches at record `number`, counted from the start of training."""
        self.cursor = self.db.cursor()
        self.cursor.seek(number)
        self.place = number

    def fill(self, numbers, buffer):
        """Put the records `numbers` into `buffer`."""
        records = self.cursor.read(len(numbers), numbers.start - self.place, numbers.step)
        self.place = numbers[-1] + 1
        try:
            self._fill([value for _, value in records], numbers, buffer)
        except Error as error:
            if error.record is None:
                raise error.at(file=self.source)
            raise self.db.locate(error, numbers[error.record], records[error.record][0])

    def _fill(self, values, numbers, buffer):
        """Put a batch of serialized records, which have these `numbers`, into `buffer`."""
        batch = self.load(values, numbers)
        if self.label_size is None:
            batch.write(*buffer.reshape(batch.shape), numbers.start, numbers.step)
            return
        data, labels = buffer.reshape(batch.shape, (len(values), self.label_size))
        batch.write(data, None, numbers.start, numbers.step)
        for i, value in enumerate(values if labels is not None else ()):
            with located(record=i):
                labels[i] = labels_of(read_datum(value), self.label_size)

    def load(self, values, numbers):
        """Return a Batch of serialized Datums, which are the records `numbers`."""
        if self.augmenter is None:
            return self.transformer.load(values)
        pictures, labels = [], []
        for i, (value, number) in enumerate(zip(values, numbers, strict=True)):
            with located(record=i):
                datum = read_datum(value)
                pictures.append(self.augmenter.picture(picture(datum, self.augmenter.param), number))
            labels.append(datum.label)
        return self.transformer.load_images(pictures, labels)

    def close(self):
        """Release the database."""
        if self.cursor is not None:
            self.cursor.close()
        self.db.close()


def picture(datum, param):
    """Return the picture of a Datum message as (height, width, channels), uint8, or float32 for float_data.

    The TransformationParameter `param` has force_color and force_gray.
    """
    return np.ascontiguousarray(picture_of(datum, param.force_color, param.force_gray).transpose(1, 2, 0))
