"""The common part of LMDB and LevelDB: records in key order, a cursor that starts over, one opening per process."""

import itertools
import os
import threading
import weakref
from abc import ABC, abstractmethod

from minicaffe.errors import DataError, FileError

COMMIT_EVERY = 1000  # records, as Caffe's converters


class Database(ABC):
    """Records in key order.

    Attributes
    ----------
    source : str
    backend : str
        ``"LMDB"`` or ``"LEVELDB"``.
    """

    backend: str
    marker: str  # a file that every database of this kind has

    def __init__(self, source):
        self.source = source
        self._pending = []

    @classmethod
    @abstractmethod
    def open(cls, source):
        """Open for reading; the path is known to be a directory with the marker."""

    @classmethod
    @abstractmethod
    def create(cls, source):
        """Create the directory and an empty database in it."""

    @abstractmethod
    def __len__(self):
        """Return the number of records."""

    @abstractmethod
    def steps(self, skip=0):
        """Return an iterator from record `skip` to the last, which yields for each a function that reads it.

        The function is called before the next step, or not at all; it returns (key, value), and the value lives as long as the
        iterator does.
        """

    @abstractmethod
    def _write(self, records):
        """Write a list of (key, value) in one transaction."""

    @abstractmethod
    def close(self):
        """Write what is pending and close the files."""

    def records(self):
        """Return an iterator over (key, value); the values live as long as it does."""
        return (read() for read in self.steps())

    def cursor(self):
        """Return a new Cursor at record 0."""
        return Cursor(self)

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
        """Put database, number and key of a record into `error`, which keeps its field, and return it."""
        error.record = f"{number % len(self)} (key '{bytes(key).decode(errors='backslashreplace')}')"
        return error.at(file=self.source)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self._pending = []
        self.close()


class Cursor:
    """A position in a database; after the last record comes the first.

    Values are buffers that live as long as the cursor stays open (LMDB: they lie in the mapped file).
    """

    def __init__(self, db):
        self._db = db
        self._records = _endless_records(db, 0)

    def __len__(self):
        return len(self._db)

    def seek(self, index):
        """Move to record `index` modulo the number of records. Steps over the keys: about 0.1 s for a million."""
        self._records = _endless_records(self._db, index % max(len(self._db), 1))

    def next(self):
        """Return (key, value) and step on; after the last record comes the first."""
        return next(self._records)()

    def read(self, count, skip=0, gap=1):
        """Pass over `skip` records, then return a list of `count` (key, value), of every `gap`-th record; no others are read."""
        return [read() for read in itertools.islice(self._records, skip, skip + (count - 1) * gap + 1, gap)]

    def close(self):
        """Release the records that were read: their values must not be used any more."""
        self._records = iter(())


def _endless_records(db, index):
    """Step from record `index` on, endlessly. Raises DataError when another program has removed all records."""
    while True:
        read = None
        for read in db.steps(index):
            yield read
        if read is None and index == 0:
            raise DataError("holds no records any more; make the database again", file=db.source)
        index = 0


# One table per process: LevelDB forbids a second opening in one process, and one mapping of an LMDB is enough.
_handles = weakref.WeakValueDictionary()
_handles_lock = threading.Lock()


def shared_handle(held_file, connect):
    """Return what `connect` returned for the database that keeps `held_file` open; call `connect` if that no longer exists.

    The key is the inode of the open file, which no other file can get; a path may refer to another file later.
    """

    def key():
        status = os.stat(held_file)
        return status.st_dev, status.st_ino

    with _handles_lock:
        shared = _handles.get(key()) if os.path.exists(held_file) else None
        if shared is None:
            _handles[key()] = shared = connect()
        return shared


def damaged(source, error):
    return FileError(f"cannot be read on: {error}; the database is damaged, make it again", file=source)
