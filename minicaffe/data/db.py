"""Open and create databases: LMDB and LevelDB behind one interface, `Database` (Caffe db.hpp, db.cpp).

A record is a key and a value, both bytes. Readers take the keys in bytewise order and start over at the end. `datum.py` parses
the values (serialized Datum messages).

Different from Caffe: every fault is an error that names the database and the remedy, and one process may open a database any
number of times (two nets, two layers).
"""

import contextlib
import os
from pathlib import Path

from minicaffe.data.db_leveldb import LevelDB
from minicaffe.data.db_lmdb import LMDB
from minicaffe.errors import ConfigError, FileError, shown
from minicaffe.proto import kinds
from minicaffe.proto.atomic import check_free, delayed_interrupts, temporary_folder
from minicaffe.proto.files import absolute, path_of

KINDS = (LevelDB, LMDB)  # index: caffe_pb2.DataParameter.DB


def open_db(source, backend, mode="r"):
    """Return the `Database` in the folder `source`; with `mode` "w" create it: then `source` must not exist.

    `backend` is ``"LMDB"`` or ``"LEVELDB"`` in any case, or the number that ``data_param.backend`` holds. Raises FileError if
    nothing or something else is there, or it is cut off; DataError if it has no records; DependencyError if its package is not
    installed.
    """
    source = path_of(source)
    kind = next((kind for number, kind in enumerate(KINDS) if backend == number or str(backend).upper() == kind.backend),
                None)
    if kind is None:
        raise ConfigError(f"must be one of {', '.join(kind.backend for kind in KINDS)}, got {shown(backend)}", field="backend")
    if mode == "w":
        if os.path.lexists(source):
            raise FileError("exists already; remove it or choose another name", file=source)
        return kind.create(source)
    if mode != "r":
        raise ConfigError(f"mode must be 'r' or 'w', got {shown(mode)}")
    if not os.path.exists(source):
        relative = "" if os.path.isabs(source) else ", which is relative to the working directory"
        raise FileError(f"no such database; check the path{relative}", file=source)
    if not os.path.isdir(source):
        error = FileError(f"is a file, but a database of kind {kind.backend} is a directory", file=source)
        raise kinds.with_kind(error, kinds.head_of(source), f"the folder of a database of kind {kind.backend}")
    if not os.path.exists(os.path.join(source, kind.marker)):
        other = next((k for k in KINDS if os.path.exists(os.path.join(source, k.marker))), None)
        remedy = f"it looks like {other.backend}: set backend: {other.backend}" if other else \
            "only its lock file lock.mdb is there: copy data.mdb, too" if os.path.exists(os.path.join(source, "lock.mdb")) else \
            "check the path"
        raise FileError(f"is not a database of kind {kind.backend}: no {kind.marker} in it; {remedy}", file=source)
    return kind(source)


@contextlib.contextmanager
def new_database(path, backend, *, force=False):
    """Create the database `path` completely or not at all, as `new_folder`; yield the open `Database`."""
    with new_folder(path, force) as growing, open_db(growing, backend, "w") as db:
        yield db


@contextlib.contextmanager
def new_folder(path, force=False):
    """Make the folder `path` completely or not at all; yield the temporary path at which the caller creates it.

    The folder beside `path` is renamed to `path` at the end of the ``with`` block. An exception (Ctrl-C too) removes it and keeps
    the old `path`. With `force` it replaces a file, an empty folder, or a folder with a database that is at `path`; otherwise, and
    for any other folder, that is a FileError.
    """
    check_free(path, force)
    # What is in a database, or in the folder of databases that class_folders.py makes.
    marks = [*(kind.marker for kind in KINDS), *(f"train_{kind.backend.lower()}" for kind in KINDS)]
    if os.path.isdir(path) and os.listdir(path) and not any(os.path.exists(os.path.join(path, name)) for name in marks):
        raise FileError("is a folder without a database, so --force does not replace it; choose another name", file=os.fspath(path))
    with replacing_folder(path) as growing:
        yield growing


@contextlib.contextmanager
def replacing_folder(path):
    """Yield a temporary path, at which the block makes a folder that then replaces `path`; an exception keeps the old `path`."""
    path = Path(absolute(path))
    with temporary_folder(path) as folder:
        growing = folder / path.name
        yield growing
        with delayed_interrupts():      # Ctrl-C leaves the old or the new one
            old = folder / f"{path.name}.old"       # removed with `folder`
            if os.path.lexists(path):
                path.rename(old)
            try:
                growing.rename(path)
            except BaseException:
                if os.path.lexists(old):
                    old.rename(path)
                raise

