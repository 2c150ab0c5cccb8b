"""Batches of the records of a database, for the prefetch thread (Caffe data_layer.cpp)."""

import numpy as np
from google.protobuf.message import DecodeError

from minicaffe.data.datum import datum_array, decode_image
from minicaffe.data.db import open_db
from minicaffe.errors import ConfigError, DataError, Error
from minicaffe.proto import caffe_pb2


class RecordBatches:
    """Make batches of transformed records; the database goes round for ever.

    With several solvers in TRAIN, solver r of n gets the records whose running number modulo n is r, where the running
    number goes on counting when the database starts over.

    Parameters
    ----------
    source, backend
        As for `open_db`.
    batch_size : int
    transformer : Transformer
    augmenter : Augmenter, optional
        What happens to a picture before the transformer's steps.
    colours : (bool, bool)
        force_color, force_gray; only where there is an augmenter, else the transformer knows.
    solver_count, solver_rank : int

    Raises
    ------
    ConfigError
        batch_size, solver_count or solver_rank out of range.
    FileError, DataError
        The database cannot be opened or is empty.
    """

    def __init__(self, source, backend, batch_size, transformer, *, augmenter=None, colours=(False, False), solver_count=1,
                 solver_rank=0):
        for field, value in (("batch_size", batch_size), ("solver_count", solver_count)):
            if value < 1:
                raise ConfigError(f"must be at least 1, got {value}", field=field)
        if not 0 <= solver_rank < solver_count:
            raise ConfigError(f"must be from 0 to {solver_count - 1}, got {solver_rank}", field="solver_rank")
        self.db = open_db(source, backend)
        self.source = self.db.source
        self.step = batch_size * solver_count
        self.transformer, self.solver_count, self.solver_rank = transformer, solver_count, solver_rank
        self.augmenter, self.colours = augmenter, colours
        self.cursor = None

    def open(self, number):
        """Let batches begin at record `number`, counted from the start of training."""
        self.cursor = self.db.cursor()
        self.cursor.seek(number)

    def fill(self, number, buffer):
        """Put the batch that begins at record `number` into `buffer`."""
        records = self.cursor.take(self.step)
        # Numbers stay multiples of solver_count plus a fixed rest, unless a run was resumed at another place.
        offset = (self.solver_rank - number) % self.solver_count
        mine = records[offset :: self.solver_count]
        try:
            self._fill([value for _, value in mine], number + offset, buffer)
        except Error as error:
            index = getattr(error, "record", None)
            if index is None:
                raise error.at(file=self.source)
            raise self.db.locate(error, number + offset + index * self.solver_count, mine[index][0])

    def _fill(self, values, first, buffer):
        """Put a batch of serialized records into `buffer`; the first of them is record `first`."""
        batch = self.load(values, first)
        batch.write(*buffer.room(batch.shape), first, self.solver_count)

    def load(self, values, first):
        """Return a Batch of serialized Datums, of which the first is record `first`."""
        if self.augmenter is None:
            return self.transformer.load(values)
        pictures, labels = [], []
        for i, value in enumerate(values):
            try:
                try:
                    datum = caffe_pb2.Datum.FromString(bytes(value))
                except DecodeError:
                    raise DataError("is no Datum: protobuf cannot read it") from None
                pictures.append(self.augmenter.picture(picture(datum, *self.colours), first + i * self.solver_count))
            except Error as error:
                raise at_record(error, i)
            labels.append(datum.label)
        return self.transformer.load_images(pictures, labels)

    def close(self):
        """Let go of the database."""
        if self.cursor is not None:
            self.cursor.close()
        self.db.close()


def picture(datum, force_color=False, force_gray=False):
    """Return the picture of a Datum message as (height, width, channels), uint8, or float32 for float_data."""
    if datum.encoded:
        return decode_image(datum.data, force_color, force_gray)
    return np.ascontiguousarray(datum_array(datum.SerializeToString()).transpose(1, 2, 0))


def at_record(error, index):
    """Note in an error that it is about record `index` of a batch; its field moves into the message; return it."""
    if error.field is not None:
        error.message, error.field = f"{error.field}: {error.message}", None
    error.record = index
    return error
