"""LMDB databases (Caffe db_lmdb.cpp): written through the package lmdb; read here, page by page.

py-lmdb cannot open a file twice in one process, as LMDB's locks belong to the process. Reading needs no locks here: ``data.mdb`` is
mapped, and its tree is walked. So a read-only directory is enough, and the program may also use `lmdb.open`. The format is number
1, of LMDB 0.9, whose values are little-endian and 64 bits wide. All values in the file are checked against its bounds; a file that
is shorter than its pages is refused at once: reading the missing pages of a map would kill the process (SIGBUS).

A transaction of another writer does not change the pages of the state before it; the next transaction may overwrite them. So
reading raises an error when two transactions were committed since it began. Not done here: sorted duplicates, databases with names.
"""

import mmap
import os
import struct
from collections import namedtuple
from functools import partial

import lmdb

from minicaffe.data.database import Database, damaged
from minicaffe.errors import DataError, FileError, shown

MAP_SIZE = 10 << 20  # bytes for writing, LMDB's own default
MAGIC, FORMAT = 0xBEEFC0DE, 1
HEADER = struct.Struct("<QHHHH")  # of a page: number, unused, flags, end of the pointers, begin of the nodes
# Magic number, format, address, size of the map; the tree of free pages, which begins with the page size; of the tree of records:
# unused, flags, depth, branch, leaf and overflow pages, entries, root; last page, transaction.
META = struct.Struct("<IIQQ48sIHHQQQQQQQ")
NUMBER = struct.Struct("<Q")
NODE = struct.Struct("<HHHH")  # low and high half of the size, flags, size of the key; in a branch the first three are a page
BRANCH, LEAF = 1, 2  # flags of pages
OVERFLOW_NODE = 1  # flag of a node: the value has pages of its own
DUPLICATES = 4  # flag of a database: a key may have several values
NO_ROOT = (1 << 64) - 1  # root of an empty tree
MAX_DEPTH = 32  # levels that LMDB's own cursors can have

Snapshot = namedtuple("Snapshot", "transaction depth entries root last")
Snapshot.__doc__ = """A committed state: its number, levels of its tree, records, page of its root, last page in use."""


class LMDB(Database):
    """The unnamed database of an LMDB environment, the folder `source`; `env` is its lmdb.Environment when writing.

    Raises FileError if ``data.mdb`` cannot be opened, is no LMDB, is of another format, or shorter than its pages; later if its
    pages are inconsistent.
    """

    backend = "LMDB"
    marker = "data.mdb"

    def __init__(self, source, env=None):
        super().__init__(source)
        self._env = env
        self._map()
        first = self._meta(0)
        self.page_size = struct.unpack_from("<I", first[4])[0]
        if self.page_size < 256 or self.page_size & (self.page_size - 1):
            raise self._unreadable(f"its page size is {self.page_size}")
        if first[6] & DUPLICATES:
            raise self._unreadable("its keys have several values each (dupsort)")
        if not len(self) and env is None:
            raise DataError("holds no records; make the database again", file=source)

    @classmethod
    def create(cls, source):
        """Return a new, empty database to write, for `open_db`."""
        try:
            os.mkdir(source)
            # No other process uses the database yet: no lock file, and one sync at the end instead of one a commit.
            env = lmdb.open(source, map_size=MAP_SIZE, lock=False, sync=False, subdir=True)
        except (lmdb.Error, OSError) as error:
            raise FileError(f"cannot be created: {error}", file=source) from error
        return cls(source, env)

    def __len__(self):
        return self._snapshot().entries

    def steps(self, skip=0):
        """Step from record `skip` of the newest snapshot to the last; yield for each a function that returns its key and value."""
        snapshot, seen = self._snapshot(), 0
        pages = self._bytes
        leaves = () if snapshot.root == NO_ROOT else self._leaves(pages, snapshot, snapshot.root, 1, iter(range(snapshot.last + 1)))
        for begin, pointers in leaves:
            self._check_unchanged(snapshot)
            if seen + len(pointers) <= skip:
                seen += len(pointers)
                continue
            for pointer in pointers[max(0, skip - seen):]:
                yield partial(self._record, pages, snapshot, begin + pointer, begin + self.page_size)
            seen += len(pointers)
        if seen != snapshot.entries:
            raise self._damaged(snapshot, f"it has {seen} records, and declares {snapshot.entries}")

    def _write(self, records):
        """Write a list of (key, value) in one transaction, for `Database.commit`; if the map is full, enlarge it and try again."""
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
                raise DataError(f"a key must have 1 to {self._env.max_key_size()} bytes, the longest here has {len(longest)}: "
                                f"{shown(longest)}; shorten the name", file=self.source) from error
            except lmdb.Error as error:
                raise FileError(f"cannot be written: {error}", file=self.source) from error

    def close(self):
        """Write pending records, and drop the references to the file."""
        try:
            if self._env is not None:
                self.commit()
                self._env.sync(True)
        finally:
            if self._env is not None:
                self._env.close()
            self._env = self._bytes = None  # the map is closed with the last value that points into it

    def _map(self):
        """Map ``data.mdb`` as it is now; each snapshot beyond the present map needs it again."""
        try:
            with open(os.path.join(self.source, "data.mdb"), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < HEADER.size + META.size:
                    raise self._unreadable(f"data.mdb has {size} bytes")
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._unreadable(error.strerror) from None
        self._bytes = memoryview(mapped)  # values returned earlier keep an older map alive

    def _unreadable(self, why):
        """Return the error of a file that is no LMDB, or of a kind that is not read."""
        return FileError(f"is not a readable LMDB: {why}; make the database again", file=self.source)

    def _damaged(self, snapshot, why):
        """Return the error of pages that contradict each other; raise that of `_check_unchanged` if a writer is the reason."""
        self._check_unchanged(snapshot)
        return damaged(self.source, why)

    def _check_unchanged(self, snapshot):
        """Raise FileError if the pages of `snapshot` may be overwritten: after two later transactions, or when closed."""
        if self._bytes is None:
            raise FileError("was closed; read it before", file=self.source)
        end = HEADER.size + META.size - NUMBER.size  # the transaction is the last field of a meta page
        newest = max(NUMBER.unpack_from(self._bytes, end), NUMBER.unpack_from(self._bytes, self.page_size + end))
        if newest[0] > snapshot.transaction + 1:
            raise FileError("was written to while it was read; let the program that writes it finish, or read a copy",
                            file=self.source)

    def _meta(self, offset):
        """Return the fields of a meta page (`META`) as a tuple: LMDB has two, and commits alternate between them."""
        meta = META.unpack_from(self._bytes, offset + HEADER.size)
        if meta[0] != MAGIC:
            raise self._unreadable("it has no magic number of one")
        if meta[1] != FORMAT:
            raise self._unreadable(f"it has LMDB's data format {meta[1]}, format {FORMAT} (LMDB 0.9) is read")
        return meta

    def _snapshot(self):
        """Return the Snapshot of the newest transaction, which reading begins with; map the file again if it has grown."""
        if self._bytes is None:
            raise FileError("was closed; read it before", file=self.source)
        if len(self._bytes) < self.page_size + HEADER.size + META.size:
            raise self._unreadable("its second page is missing")
        meta = max(self._meta(0), self._meta(self.page_size), key=lambda meta: meta[-1])
        found = Snapshot(meta[-1], meta[7], meta[11], meta[12], meta[13])
        if (found.last + 1) * self.page_size > len(self._bytes):
            self._map()
        needed = (found.last + 1) * self.page_size
        if needed > len(self._bytes):
            raise FileError(f"data.mdb is cut off: {len(self._bytes)} bytes of {needed}; copy it again", file=self.source)
        if found.root != NO_ROOT and not 0 < found.depth <= MAX_DEPTH or found.entries > needed:
            raise damaged(self.source, f"it declares {found.entries} records in {needed} bytes and {found.depth} levels")
        return found

    def _leaves(self, pages, snapshot, number, level, left):
        """Yield place and pointers of each leaf page below a page, in the order of the keys; `steps` reads a record at each.

        `left` is an iterator with an item for each page that may still be read.
        """
        if next(left, None) is None:
            raise self._damaged(snapshot, f"page {number} is in its tree more than once")
        begin, flags, pointers = self._page(pages, snapshot, number)
        if flags & (BRANCH | LEAF) != (LEAF if level == snapshot.depth else BRANCH):
            raise self._damaged(snapshot, f"page {number} has flags {flags:#x} on level {level} of {snapshot.depth}")
        if level == snapshot.depth:
            yield begin, pointers
            return
        for pointer in pointers:
            low, high, top, _ = NODE.unpack_from(pages, begin + pointer)
            yield from self._leaves(pages, snapshot, low | high << 16 | top << 32, level + 1, left)

    def _page(self, pages, snapshot, number):
        """Return place, flags and pointers (places of its nodes) of a page of the tree, all within the page."""
        if number > snapshot.last:
            raise self._damaged(snapshot, f"page {number} lies behind the last, {snapshot.last}")
        begin = number * self.page_size
        own, _, flags, lower, _ = HEADER.unpack_from(pages, begin)
        if own != number or not HEADER.size <= lower <= self.page_size:
            raise self._damaged(snapshot, f"page {number} declares itself page {own} with pointers up to {lower}")
        pointers = pages[begin + HEADER.size:begin + lower & ~1].cast("H").tolist()
        if pointers and max(pointers) > self.page_size - NODE.size:
            raise self._damaged(snapshot, f"page {number} has a pointer to {max(pointers)}")
        return begin, flags, pointers

    def _record(self, pages, snapshot, at, end):
        """Return the key and value whose node lies at `at`, in a page that ends at `end`: views of `pages`, the mapped file."""
        low, high, flags, size = NODE.unpack_from(pages, at)
        length, at = low | high << 16, at + NODE.size
        key = at
        at += size
        if flags & OVERFLOW_NODE:
            if at + 8 > end:
                raise self._damaged(snapshot, f"a key of {size} bytes does not fit into its page")
            first, = NUMBER.unpack_from(pages, at)
            at, end = first * self.page_size + HEADER.size, (snapshot.last + 1) * self.page_size
        if at + length > end:
            raise self._damaged(snapshot, f"a value of {length} bytes does not fit into its page")
        self._check_unchanged(snapshot)  # after the sizes were read
        return pages[key:key + size], pages[at:at + length]
