"""LevelDB databases (Caffe db_leveldb.cpp), through the optional package plyvel.

Even for reading LevelDB needs a writable directory: it locks the database and writes a log. The package closes a
database with the last reference to it, so nothing here closes one.
"""

import itertools
import os
import threading
import weakref

from minicaffe.data.database import Database, damaged
from minicaffe.errors import DataError, DependencyError, FileError

# Of all open databases, by the inode of their lock file: LevelDB forbids a second opening in one process.
_handles = weakref.WeakValueDictionary()
_handles_lock = threading.Lock()


class Handle:
    """Holds plyvel's object of an open database, and the process that opened it; unlike that object it takes weak references."""

    def __init__(self, handle):
        self.handle = handle
        self.pid = os.getpid()


class LevelDB(Database):
    """A LevelDB directory; needs the package plyvel. `shared` is the Handle of `create`, None to open `source`."""

    backend = "LEVELDB"
    marker = "CURRENT"

    def __init__(self, source, shared=None):
        super().__init__(source)
        self._shared = shared or _opened(source)
        self._handle = self._shared.handle
        self._count = None

    @classmethod
    def create(cls, source):
        """Return a new, empty database to write, for `open_db`; the options are those of Caffe."""
        plyvel = _plyvel()
        try:
            handle = plyvel.DB(source, create_if_missing=True, error_if_exists=True, block_size=64 << 10,
                               write_buffer_size=256 << 20, max_open_files=100)
        except (plyvel.Error, OSError) as error:
            raise FileError(f"cannot be created: {error}", file=source) from error
        return cls(source, Handle(handle))

    def __len__(self):
        if self._count is None:  # LevelDB keeps no count
            with self._handle.iterator(include_value=False) as keys:
                self._count = sum(1 for _ in keys)
        return self._count

    def steps(self, skip=0):
        """Yield for each record from number `skip` on a function that returns (key, value), as `Database` says."""
        try:
            with self._handle.iterator(verify_checksums=True) as iterator:
                for record in itertools.islice(iterator, skip, None):
                    yield lambda record=record: record      # it was read by the step; an LMDB reads it in the call
        except (_plyvel().Error, OSError) as error:
            raise damaged(self.source, error) from error

    def _write(self, records):
        """Write a list of (key, value) in one transaction, for `Database.commit`."""
        try:
            with self._handle.write_batch() as batch:
                for key, value in records:
                    batch.put(key, value)
        except _plyvel().Error as error:
            raise FileError(f"cannot be written: {error}", file=self.source) from error
        self._count = None

    def close(self):
        """Write pending records, and drop the reference to the database."""
        if self._handle is not None:
            try:
                self.commit()
            finally:
                self._handle = self._shared = None  # plyvel closes with the last reference: readers hold the same handle


def _opened(source):
    """Return the Handle of an existing database, shared by all readers in this process. Raises errors if it has no records."""
    plyvel = _plyvel()
    try:
        with _handles_lock:
            shared = _handles.get(_inode(source))
            if shared is None:
                shared = Handle(plyvel.DB(source, create_if_missing=False, max_open_files=100))
                _handles[_inode(source)] = shared
        if shared.pid != os.getpid():  # its locks and threads are the parent's; LMDB readers have none
            raise FileError("LevelDB cannot be used after a fork; open it in the child only", file=source)
        with shared.handle.iterator() as first:
            empty = next(first, None) is None
    except (plyvel.Error, OSError) as error:
        raise FileError(f"cannot be opened as LEVELDB: {error}; it must be whole, writable (LevelDB locks it) and open in no "
                        "other process: copy it, or convert it to LMDB", file=source) from error
    if empty:
        raise DataError("holds no records; make the database again", file=source)
    return shared


def _inode(source):
    """Return the key of `_handles`: device and inode of the lock file, which identify an open database even if its path changes."""
    try:
        status = os.stat(os.path.join(source, "LOCK"))
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _plyvel():
    """Return the optional package plyvel, imported at the first database; DependencyError, which names its extra, without it."""
    try:
        import plyvel
    except ImportError as error:
        raise DependencyError('LevelDB databases need the package plyvel: pip install "minicaffe[leveldb]"') from error
    return plyvel
