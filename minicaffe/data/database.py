"""The common part of LMDB and LevelDB: records in key order and a cursor that starts over."""

from minicaffe.errors import DataError, FileError

COMMIT_EVERY = 1000  # records, as Caffe's converters


class Database:
    """Records in key order.

    A subclass opens the database ``source``, and has a class method ``create(source)``; ``len()``, the number of records;
    ``steps(skip)``, which yields for each record from number `skip` on a function that returns (key, value), and is called before
    the next step or not at all; ``_write(records)``, which writes a list of (key, value) in one transaction; and ``close()``. Its
    `backend` is ``"LMDB"`` or ``"LEVELDB"``, its `marker` the name of a file that every database of this kind has.
    """

    def __init__(self, source):
        self.source = source
        self._pending = []      # (key, value) of `put` that are not written yet

    def records(self):
        """Return an iterator over (key, value), both buffers; those of an LMDB lie in the mapped file."""
        return (read() for read in self.steps())

    def cursor(self, index=0):
        """Step from record `index` modulo their number on, without an end; yield for each a function as `steps` does.

        It steps over the keys before `index`: about 0.1 s for a million. A LevelDB stays open as long as it has cursors. Raises
        DataError when another program has removed all records.
        """
        index = index and index % max(len(self), 1)     # len() of a LevelDB reads all keys
        while True:
            read = None
            for read in self.steps(index):
                yield read
            if read is None and index == 0:
                raise DataError("holds no records any more; make the database again", file=self.source)
            index = 0

    def put(self, key, value):
        """Add a record; every COMMIT_EVERY records are written together. A key that is there already is replaced."""
        self._pending.append((key, value))
        if len(self._pending) >= COMMIT_EVERY:
            self.commit()

    def commit(self):
        """Write the pending records."""
        if self._pending:
            self._write(self._pending)
            self._pending = []

    def locate(self, error, number, key):
        """Put database, number and key of a record into `error`, which keeps its field, and return it for the caller to raise."""
        error.record = f"{number % len(self)} (key '{bytes(key).decode(errors='backslashreplace')}')"
        return error.at(file=self.source)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:    # an exception: its records are not written
            self._pending = []
        self.close()


def damaged(source, error):
    """Return the error of a database that LMDB or LevelDB finds damaged while its records are read."""
    return FileError(f"cannot be read on: {error}; the database is damaged, make it again", file=source)
