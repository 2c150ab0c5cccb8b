"""LMDB databases (Caffe db_lmdb.cpp): written through the package lmdb, read by `minicaffe.data.lmdb_pages`.

Read without the lock file, so a read-only directory is enough, and the program may also use `lmdb.open`. A file that is shorter
than its page table declares is refused at once: reading the missing pages of the mapped file would kill the process (SIGBUS).
"""

import os

import lmdb

from minicaffe.data.database import Database
from minicaffe.data.lmdb_pages import PageFile
from minicaffe.errors import DataError, FileError, shown

MAP_SIZE = 10 << 20  # bytes, LMDB's own default


class LMDB(Database):
    """The unnamed database of an LMDB environment (a directory with ``data.mdb``)."""

    backend = "LMDB"
    marker = "data.mdb"

    def __init__(self, source, pages, env=None):
        super().__init__(source)
        self._pages, self._env = pages, env  # a PageFile; an lmdb.Environment when writing

    @classmethod
    def open(cls, source):
        pages = PageFile(source)
        if pages.snapshot().entries == 0:
            raise DataError("holds no records; make the database again", file=source)
        return cls(source, pages)

    @classmethod
    def create(cls, source):
        try:
            os.mkdir(source)
            # No other process uses the database yet: no lock file, and one sync at the end instead of one a commit.
            env = lmdb.open(source, map_size=MAP_SIZE, lock=False, sync=False, subdir=True)
        except (lmdb.Error, OSError) as error:
            raise FileError(f"cannot be created: {error}", file=source) from error
        return cls(source, PageFile(source), env)

    def __len__(self):
        return self._pages.snapshot().entries

    def steps(self, skip=0):
        return self._pages.steps(skip)

    def _write(self, records):
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.BadValsizeError as error:
                longest = max((key for key, _ in records), key=len)
                raise DataError(
                    f"a key must have 1 to {self._env.max_key_size()} bytes, the longest here has {len(longest)}: "
                    f"{shown(longest)}; shorten the name",
                    file=self.source,
                ) from error
            except lmdb.Error as error:
                raise FileError(f"cannot be written: {error}", file=self.source) from error

    def close(self):
        try:
            self.commit()
            if self._env is not None:
                self._env.sync(True)
        finally:
            if self._env is not None:
                self._env.close()
            self._env = self._pages = None  # the map is closed with the last value that points into it
