"""Batches of the records of a database, for the prefetch thread (Caffe data_layer.cpp)."""

from minicaffe.data.db import open_db
from minicaffe.errors import ConfigError, Error


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
    solver_count, solver_rank : int

    Raises
    ------
    ConfigError
        batch_size, solver_count or solver_rank out of range.
    FileError, DataError
        The database cannot be opened or is empty.
    """

    def __init__(self, source, backend, batch_size, transformer, *, solver_count=1, solver_rank=0):
        for field, value in (("batch_size", batch_size), ("solver_count", solver_count)):
            if value < 1:
                raise ConfigError(f"must be at least 1, got {value}", field=field)
        if not 0 <= solver_rank < solver_count:
            raise ConfigError(f"must be from 0 to {solver_count - 1}, got {solver_rank}", field="solver_rank")
        self.db = open_db(source, backend)
        self.source = self.db.source
        self.step = batch_size * solver_count
        self.transformer, self.solver_count, self.solver_rank = transformer, solver_count, solver_rank
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
        batch = self.transformer.load(values)
        batch.write(*buffer.room(batch.shape), first, self.solver_count)

    def close(self):
        """Let go of the database."""
        if self.cursor is not None:
            self.cursor.close()
        self.db.close()
