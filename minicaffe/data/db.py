"""Databases of records in key order: LMDB and LevelDB behind one face (Caffe db_lmdb.cpp, db_leveldb.cpp).

A record is a key and a value, both bytes; readers go through the keys in bytewise order and start over at the end. What
a value means (a serialized Datum) is the business of `datum.pyx`.

Differs from Caffe: every fault is an error that names the database; an LMDB is read without its lock file, so a
read-only directory will do; a file that is shorter than its own page table says is refused at once, as touching the
missing pages would kill the process; one process may open a database any number of times (two nets, two layers).
A database of LevelDB kind needs a writable directory even for reading: LevelDB locks it and writes a log.
"""

import contextlib
import itertools
import os
import shutil
import threading
import weakref
from abc import ABC, abstractmethod
from pathlib import Path

from minicaffe.errors import ConfigError, DataError, DependencyError, FileError

BACKENDS = ("LEVELDB", "LMDB")  # index: caffe_pb2.DataParameter.DB
COMMIT_EVERY = 1000  # records, as Caffe's converters
MAP_SIZE = 10 << 20  # bytes, LMDB's own default


def open_db(source, backend, mode="r", *, readahead=True):
    """Open the database `source`.

    Parameters
    ----------
    source : str or Path
        The directory of the database.
    backend : str or int
        ``"LMDB"`` or ``"LEVELDB"`` in any case, or the number that ``data_param.backend`` holds.
    mode : {"r", "w"}
        Read an existing database, or create one: then `source` must not exist.
    readahead : bool
        LMDB only: let the system read ahead; turn it off for random access to a database larger than the memory.

    Returns
    -------
    Database

    Raises
    ------
    FileError
        Nothing there, something else there, cut off, or (mode ``"w"``) something there already.
    DataError
        No records.
    DependencyError
        The package for `backend` is not installed.
    """
    source = os.fspath(source)
    kind = backend_class(backend)
    if mode == "w":
        if os.path.lexists(source):
            raise FileError("exists already; remove it or choose another name", file=source)
        return kind.create(source)
    if mode != "r":
        raise ConfigError(f"mode must be 'r' or 'w', got {mode!r}")
    if not os.path.exists(source):
        raise FileError("no such database; check the path, which is relative to the working directory", file=source)
    if not os.path.isdir(source):
        raise FileError(f"is a file, but a database of kind {kind.backend} is a directory", file=source)
    if not os.path.exists(os.path.join(source, kind.marker)):
        other = next((k for k in (LMDB, LevelDB) if os.path.exists(os.path.join(source, k.marker))), None)
        remedy = f"it looks like {other.backend}: set backend: {other.backend}" if other else "check the path"
        raise FileError(f"is not a database of kind {kind.backend}: no {kind.marker} in it; {remedy}", file=source)
    return kind.open(source, readahead)


def backend_class(backend):
    """Return LMDB or LevelDB for a name in any case or a number of ``DataParameter.DB``."""
    name = backend.upper() if isinstance(backend, str) else BACKENDS[backend] if backend in (0, 1) else backend
    for kind in (LMDB, LevelDB):
        if kind.backend == name:
            return kind
    raise ConfigError(f"must be one of {', '.join(BACKENDS)}, got {backend!r}", field="backend")


@contextlib.contextmanager
def new_database(path, backend, *, force=False):
    """Create the database `path` whole or not at all.

    It grows under a temporary name beside `path` and gets its own name at the end of the ``with`` block; an exception
    (Ctrl-C too) removes it and leaves what was there before.

    Parameters
    ----------
    path : str or Path
    backend : str
    force : bool
        Replace what stands at `path`; otherwise that is a FileError.
    """
    path = Path(path)
    check_free(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open_db(growing, backend, "w") as db:
            yield db
        if os.path.lexists(path):
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            path.rename(old)
            growing.rename(path)
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        else:
            growing.rename(path)
    finally:
        if growing.exists():
            shutil.rmtree(growing)


def check_free(path, force=False):
    """Raise FileError if `path` exists and may not be replaced."""
    if os.path.lexists(path) and not force:
        raise FileError("exists already; --force replaces it, or choose another name", file=os.fspath(path))


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
    def open(cls, source, readahead):
        """Open for reading; the path is known to be a directory with the marker."""

    @classmethod
    @abstractmethod
    def create(cls, source):
        """Create the directory and an empty database in it."""

    @abstractmethod
    def __len__(self):
        """Return the number of records."""

    @abstractmethod
    def records(self, skip=0):
        """Return an iterator over (key, value) from record `skip` to the last; the values live as long as it does."""

    @abstractmethod
    def _write(self, records):
        """Write a list of (key, value) in one transaction."""

    @abstractmethod
    def close(self):
        """Write what is pending and let go of the files."""

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
        """Put database, number and key of a record into `error` and return it."""
        error.field = f"record {number % len(self)} (key '{bytes(key).decode(errors='backslashreplace')}')"
        return error.at(file=self.source)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self._pending = []
        self.close()


class Cursor:
    """A place in a database; goes round for ever.

    Values are buffers that live as long as the cursor stays open (LMDB: they lie in the mapped file).
    """

    def __init__(self, db):
        self._db = db
        self._records = db.records()

    def __len__(self):
        return len(self._db)

    def seek(self, index):
        """Go to record `index` modulo the number of records. Steps over the keys: about 0.1 s for a million."""
        self._records = self._db.records(index % len(self._db))

    def next(self):
        """Return (key, value) and step on; after the last record comes the first."""
        return self.take(1)[0]

    def take(self, count):
        """Return a list of the next `count` (key, value)."""
        taken = list(itertools.islice(self._records, count))
        while len(taken) < count:
            self._records = self._db.records()
            taken += itertools.islice(self._records, count - len(taken))
        return taken

    def close(self):
        """Let go of the records taken: their values must not be used any more."""
        self._records = iter(())


class LMDB(Database):
    """The unnamed database of an LMDB environment (a directory with ``data.mdb``)."""

    backend = "LMDB"
    marker = "data.mdb"

    def __init__(self, source, shared, map_size=0):
        super().__init__(source)
        self._shared = shared
        self._env = shared.handle
        self._map_size = map_size  # bytes; 0 when reading

    @classmethod
    def open(cls, source, readahead):
        import lmdb

        def connect():
            env = lmdb.open(source, readonly=True, lock=False, create=False, readahead=readahead, max_spare_txns=0)
            pages, size = env.info()["last_pgno"] + 1, os.path.getsize(os.path.join(source, cls.marker))
            if size < pages * env.stat()["psize"]:
                env.close()
                raise FileError(
                    f"data.mdb is cut off: {size} bytes of {pages * env.stat()['psize']}; copy it again", file=source
                )
            return env

        try:
            shared = _share(source, cls.marker, connect)
        except lmdb.Error as error:
            raise FileError(f"is not a readable LMDB: {error}; make the database anew", file=source) from error
        if shared.handle.stat()["entries"] == 0:
            raise DataError("holds no records; make the database anew", file=source)
        return cls(source, shared)

    @classmethod
    def create(cls, source):
        import lmdb

        try:
            os.mkdir(source)
            # Nobody else knows the database yet: no lock file, and one sync at the end instead of one a commit.
            env = lmdb.open(source, map_size=MAP_SIZE, lock=False, sync=False, subdir=True)
        except (lmdb.Error, OSError) as error:
            raise FileError(f"cannot be created: {error}", file=source) from error
        return cls(source, _Handle(env), MAP_SIZE)

    def __len__(self):
        return self._env.stat()["entries"]

    def records(self, skip=0):
        import lmdb

        try:
            with self._env.begin(buffers=True) as transaction:
                cursor = transaction.cursor()
                # Keys alone stay on the leaf pages; the values passed over are never read from the disk.
                for _ in itertools.islice(cursor.iternext(keys=True, values=False), skip):
                    pass
                yield from cursor.iternext() if skip == 0 or cursor.next() else ()
        except lmdb.Error as error:
            raise _damaged(self.source, error) from error

    def _write(self, records):
        import lmdb

        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                return
            except lmdb.MapFullError:
                self._map_size *= 2
                self._env.set_mapsize(self._map_size)
            except lmdb.BadValsizeError as error:
                longest = max((key for key, _ in records), key=len)
                raise DataError(
                    f"a key must have 1 to {self._env.max_key_size()} bytes, the longest here has {len(longest)}: "
                    f"{longest[:60]!r}; shorten the name",
                    file=self.source,
                ) from error
            except lmdb.Error as error:
                raise FileError(f"cannot be written: {error}", file=self.source) from error

    def close(self):
        if self._env is None:
            return
        try:
            self.commit()
            if self._map_size:
                self._env.sync(True)
        finally:
            if self._map_size:  # a reader's environment is shared and goes with its last user
                self._env.close()
            self._env = self._shared = None


class LevelDB(Database):
    """A LevelDB directory; needs the package plyvel."""

    backend = "LEVELDB"
    marker = "CURRENT"

    def __init__(self, source, shared):
        super().__init__(source)
        self._shared = shared
        self._handle = shared.handle
        self._count = None

    @classmethod
    def open(cls, source, readahead):
        plyvel = _plyvel()

        def connect():
            return plyvel.DB(source, create_if_missing=False, max_open_files=100)

        try:
            shared = _share(source, cls.marker, connect)
            with shared.handle.iterator() as first:
                empty = next(first, None) is None
        except (plyvel.Error, OSError) as error:
            raise FileError(
                f"cannot be opened as LEVELDB: {error}; it must be whole, writable (LevelDB locks it) and open in no "
                "other process: copy it, or convert it to LMDB",
                file=source,
            ) from error
        if empty:
            raise DataError("holds no records; make the database anew", file=source)
        return cls(source, shared)

    @classmethod
    def create(cls, source):
        plyvel = _plyvel()
        try:
            handle = plyvel.DB(
                source,
                create_if_missing=True,
                error_if_exists=True,
                block_size=64 << 10,
                write_buffer_size=256 << 20,
                max_open_files=100,
            )
        except (plyvel.Error, OSError) as error:
            raise FileError(f"cannot be created: {error}", file=source) from error
        return cls(source, _Handle(handle))

    def __len__(self):
        if self._count is None:  # LevelDB keeps no count
            with self._handle.iterator(include_value=False) as keys:
                self._count = sum(1 for _ in keys)
        return self._count

    def records(self, skip=0):
        try:
            with self._handle.iterator(verify_checksums=True) as iterator:
                yield from itertools.islice(iterator, skip, None)
        except (_plyvel().Error, OSError) as error:
            raise _damaged(self.source, error) from error

    def _write(self, records):
        try:
            with self._handle.write_batch() as batch:
                for key, value in records:
                    batch.put(key, value)
        except _plyvel().Error as error:
            raise FileError(f"cannot be written: {error}", file=self.source) from error
        self._count = None

    def close(self):
        if self._handle is not None:
            try:
                self.commit()
            finally:
                self._handle = self._shared = None  # plyvel closes with the last reference: readers share the handle


class _Handle:
    """Holds a library's open database; unlike plyvel's class it takes weak references."""

    def __init__(self, handle):
        self.handle = handle


# lmdb and LevelDB forbid a second opening of a database in one process: this table is the process's, as the rule is.
_handles = weakref.WeakValueDictionary()
_handles_lock = threading.Lock()


def _share(source, marker, connect):
    """Return the _Handle of the database, made with `connect` if none is open; a forked child gets its own."""
    with _handles_lock:
        status = os.stat(os.path.join(source, marker))
        key = (os.getpid(), status.st_dev, status.st_ino)
        shared = _handles.get(key)
        if shared is None:
            shared = _handles[key] = _Handle(connect())
        return shared


def _damaged(source, error):
    return FileError(f"cannot be read on: {error}; the database is damaged, make it anew", file=source)


def _plyvel():
    try:
        import plyvel
    except ImportError as error:
        raise DependencyError(
            'LevelDB databases need the package plyvel: pip install "minicaffe[leveldb]"'
        ) from error
    return plyvel
