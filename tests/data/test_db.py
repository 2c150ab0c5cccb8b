"""Databases: order, wrap-around, growth, and an error with name and remedy for everything that is none."""

import contextlib
import gc
import itertools
import os
import shutil
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from minicaffe.data import db_lmdb
from minicaffe.data.db import new_database, open_db
from minicaffe.errors import ConfigError, DataError, DependencyError, FileError


def read(cursor, count, skip=0, gap=1):
    """Return a list of `count` (key, value) after `skip` records, of every `gap`-th one."""
    return [step() for step in itertools.islice(cursor, skip, skip + (count - 1) * gap + 1, gap)]


def overwrite(path, *changes):
    """Write bytes into the file of an LMDB: (offset, content) each."""
    with open(path / "data.mdb", "r+b") as file:
        for offset, content in changes:
            file.seek(offset)
            file.write(content)


def test_cursor(make_db, backend):
    with open_db(make_db([b"%d" % i for i in range(7)], backend), backend) as db:
        assert len(db) == 7 and bytes(read(db.cursor(1), 1)[0][0]) == b"00000001"
        for index in 0, 1, 6, 7, 12, 3_000_000_001:
            assert [int(bytes(value)) for _, value in read(db.cursor(index), 16)] == [(index + i) % 7 for i in range(16)]
        cursor = db.cursor()
        assert [bytes(value) for _, value in read(cursor, 3, skip=2, gap=4)] == [b"2", b"6", b"3"]
        assert [bytes(value) for _, value in read(cursor, 2, skip=8)] == [b"5", b"6"]


@pytest.mark.parametrize("how", [{}, {"readonly": True, "lock": False}, {"readonly": True}])
def test_lmdb_held_by_the_program(make_db, how):
    path = make_db([b"0", b"1", b"2"], "LMDB")
    lmdb.open(str(path)).close()  # makes the lock file

    def values(db):
        return [bytes(value) for _, value in read(db.cursor(), 3)]

    with lmdb.open(str(path), **how) as env, open_db(path, "LMDB") as db:
        assert values(db) == [b"0", b"1", b"2"]
        with env.begin() as transaction:
            assert transaction.get(b"00000001") == b"1"
    with open_db(path, "LMDB") as db:
        cursor = db.cursor()
        read(cursor, 1)
        with lmdb.open(str(path), **how) as env, env.begin() as transaction:
            assert bytes(read(cursor, 1)[0][1]) == b"1" and transaction.get(b"00000002") == b"2"
        assert bytes(read(cursor, 1)[0][1]) == b"2" and values(db) == [b"0", b"1", b"2"]


def test_writing_between_rounds(make_db):
    path = make_db([b"0", b"1"], "LMDB")
    with lmdb.open(str(path), map_size=1 << 26) as env, open_db(path, "LMDB") as db:
        cursor = db.cursor()
        assert [bytes(value) for _, value in read(cursor, 2)] == [b"0", b"1"]
        for i in range(2, 60):  # the file grows past what was mapped
            with env.begin(write=True) as transaction:
                transaction.put(b"%08d" % i, b"%d" % i * 2000)
        assert len(db) == 60
        values = [bytes(value) for _, value in read(cursor, 60)]
        assert values[:2] == [b"0", b"1"] and all(value == b"%d" % i * 2000 for i, value in enumerate(values[2:], 2))


def test_writing_while_it_is_read(tmp_path):
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        def write(text):
            with env.begin(write=True) as transaction:
                for i in range(300):
                    transaction.put(b"%08d" % i, text * 100)

        write(b"a")
        with open_db(tmp_path, "LMDB") as db:
            cursor = db.cursor()
            assert bytes(read(cursor, 1)[0][1]) == b"a" * 100
            write(b"b")  # leaves the pages that are read alone
            assert all(bytes(value) == b"a" * 100 for _, value in read(cursor, 299))
            assert all(bytes(value) == b"b" * 100 for _, value in read(cursor, 150))
            write(b"c")
            write(b"d")
            with pytest.raises(FileError, match="was written to while it was read; let the program that writes it finish, or read a copy"):
                read(cursor, 150)


def test_overwritten_pages(tmp_path):
    """The values of a page that was read before the transactions, and a page that they have put to another use."""
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        def write(size):
            with env.begin(write=True) as transaction:
                for i in range(300):
                    transaction.put(b"%08d" % i, b"\xff" * size)

        write(100)
        with open_db(tmp_path, "LMDB") as db:
            steps = db.steps()
            read = next(steps)
            snapshot = db._snapshot()
            for size in (5000, 10, 5000, 10):
                write(size)
            for call in (read, lambda: [step() for step in steps], lambda: db._page(db._bytes, snapshot, snapshot.last + 1)):
                with pytest.raises(FileError, match="was written to while it was read"):
                    call()


def random_records(count):
    random = np.random.default_rng(7)
    sizes = random.choice([0, 1, 7, 100, 2000, 4000, 4097, 20000, 70000], count, p=[0.13] * 7 + [0.085, 0.005])
    return {random.bytes(random.integers(1, 511)): random.bytes(int(size)) for size in sizes}


@pytest.mark.parametrize("count", [1, 2, 50, 3000])
def test_lmdb_as_by_py_lmdb(tmp_path, count):
    records = random_records(count)
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as env:
        for part in range(3):
            with env.begin(write=True) as transaction:
                for key in list(records)[part::3]:
                    transaction.put(key, records[key])
        for key in list(records)[::5][1:]:
            with env.begin(write=True) as transaction:
                transaction.delete(key)
        with env.begin() as transaction, open_db(tmp_path, "LMDB") as db:
            wanted = list(transaction.cursor())
            assert len(db) == len(wanted)
            assert [(bytes(key), bytes(value)) for key, value in read(db.cursor(), len(wanted))] == wanted
            for start in (0, len(wanted) // 2, len(wanted) - 1):
                assert bytes(read(db.cursor(start), 1)[0][0]) == wanted[start][0]


def test_damaged_pages(tmp_path):
    """Whatever bytes change, reading gives records or an error, and never touches what lies behind the file."""
    with lmdb.open(str(tmp_path / "good"), map_size=1 << 26, lock=False) as env, env.begin(write=True) as transaction:
        for key, value in random_records(400).items():
            transaction.put(key, value[:100])
    content = (tmp_path / "good" / "data.mdb").read_bytes()
    random, failed = np.random.default_rng(8), 0
    for i in range(400):
        changed = bytearray(content)
        page = int(random.integers(0, len(content) // 4096)) * 4096
        for _ in range(4):
            changed[page + int(random.choice(64 if i % 2 else 4096))] = int(random.choice([0, 1, 2, 255, 127]))
        folder = tmp_path / f"bad{i}"
        folder.mkdir()
        (folder / "data.mdb").write_bytes(changed)
        try:
            with open_db(folder, "LMDB") as db:
                for _, value in read(db.cursor(), len(db)):
                    bytes(value)
        except (DataError, FileError) as error:
            failed += 1
            assert str(folder) in str(error)
    assert failed > 50


def test_another_kind_of_lmdb(make_db):
    path = make_db([b"a"])
    good = (path / "data.mdb").read_bytes()
    for offset, value, error in (
            (20, 2, "it has LMDB's data format 2, format 1"), (16, 7, "it has no magic number of one"), (40, 100, "its page size is 100"),
            (40, 128, "its page size is 128"), (40, 256, "it has no magic number of one"), (40, 768, "its page size is 768"),
            (92, 4, "its keys have several values each"), (0, None, "")):
        (path / "data.mdb").write_bytes(good if value is not None else b"nonsense" * 2000)
        if value is not None:
            overwrite(path, *((page + offset, value.to_bytes(2, "little")) for page in (0, 4096)))
        with pytest.raises(FileError, match=f"db: is not a readable LMDB: {error}"):
            open_db(path, "LMDB")


@pytest.mark.parametrize(("size", "error"), [
    (0, "is not a readable LMDB: data.mdb has 0 bytes"), (151, "is not a readable LMDB: data.mdb has 151 bytes"), (152, "is not a readable LMDB: its second page is missing"),
    (3000, "is not a readable LMDB: its second page is missing"), (4247, "is not a readable LMDB: its second page is missing"),
    (4248, "data.mdb is cut off: 4248 bytes of {whole}"), (40_000, "data.mdb is cut off: 40000 bytes of {whole}; copy it again"),
    (-4096, "data.mdb is cut off: {size} bytes of {whole}; copy it again")])
def test_lmdb_that_is_cut_off(make_db, size, error):
    """The heads of the first two pages have 152 bytes each."""
    path = make_db([bytes(3000)] * 100)
    whole = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size % whole)
    with pytest.raises(FileError, match=f"^{path}: {error.format(whole=whole, size=size % whole)}"):
        open_db(path, "LMDB")


def test_order_of_keys(tmp_path, backend):
    with open_db(tmp_path / "db", backend, "w") as db:
        for key, value in [(b"10", b"x"), (b"9", b"y"), (b"1", b"z"), (b"9", b"w")]:
            db.put(key, value)
    with open_db(tmp_path / "db", backend) as db:
        assert [tuple(map(bytes, r)) for r in read(db.cursor(), 3)] == [(b"1", b"z"), (b"10", b"x"), (b"9", b"w")]


def test_growing_lmdb(tmp_path, monkeypatch):
    monkeypatch.setattr(db_lmdb, "MAP_SIZE", 1 << 16)
    with open_db(tmp_path / "db", "lmdb", "w") as db:
        for i in range(2500):  # three transactions, 2.5 MB
            db.put(b"%08d" % i, b"%04d" % i * 250)
    with open_db(tmp_path / "db", "LMDB") as db:
        assert len(db) == 2500
        assert bytes(read(db.cursor(), 2500)[2499][1]) == b"2499" * 250


def test_read_only_folder(make_db):
    path = make_db([b"a"])
    assert sorted(os.listdir(path)) == ["data.mdb"]
    os.chmod(path / "data.mdb", 0o444)
    os.chmod(path, 0o555)
    with open_db(path, "LMDB") as db:
        assert bytes(read(db.cursor(), 1)[0][1]) == b"a"
    assert os.listdir(path) == ["data.mdb"]
    os.chmod(path, 0o755)


def test_opening_twice(make_db, backend):
    path = make_db([b"a", b"b"], backend)
    first, second = open_db(path, backend), open_db(path, backend)
    cursor = second.cursor()
    read(cursor, 1)
    first.close()
    assert bytes(read(cursor, 1)[0][1]) == b"b"
    del first, second, cursor
    gc.collect()
    with open_db(path, backend) as again:
        assert len(again) == 2


def test_databases_that_cannot_be_opened(make_db, tmp_path, backend):
    assert len(open_db(make_db([b"a"], name="number"), 1)) == 1
    (tmp_path / "file").write_text("x")
    path = make_db([b"a"], backend)
    for name, arguments, error, words in (
            ("x", ("hdf5",), ConfigError, "LEVELDB, LMDB.*'hdf5'"), ("x", ("lmdb", "a"), ConfigError, "mode"),
            (path, ({"LMDB": "LEVELDB", "LEVELDB": "LMDB"}[backend],), FileError, f"set backend: {backend}"),
            (make_db([], backend, "empty"), (backend,), DataError, "empty: holds no records"),
            (path, (backend, "w"), FileError, "exists already"), (tmp_path / "file" / "db", (backend, "w"), FileError, "cannot be created")):
        with pytest.raises(error, match=words):
            open_db(name, *arguments)


def test_damaged_leveldb(make_db):
    path = make_db([os.urandom(3000) for _ in range(200)], "LEVELDB")
    import plyvel

    handle = plyvel.DB(str(path))
    handle.compact_range()
    del handle
    (table,) = path.glob("*.ldb")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 255
    table.write_bytes(content)
    with open_db(path, "LEVELDB") as db, pytest.raises(FileError, match="cannot be read on.*damaged"):
        read(db.cursor(), 200)
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(FileError, match="db: cannot be opened as LEVELDB"):
        open_db(path, "LEVELDB")


def test_key_too_long_for_lmdb(tmp_path):
    with pytest.raises(DataError, match="1 to 511 bytes.*600"), new_database(tmp_path / "db", "LMDB") as db:
        db.put(b"k" * 600, b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_exceptions_while_writing(tmp_path, backend, error):
    """A new database is whole or absent; one that is opened keeps what was committed."""
    for make, left in (new_database, []), (lambda path, backend: open_db(path, backend, "w"), [b"1"]):
        with pytest.raises(error), make(tmp_path / "db", backend) as db:
            db.put(b"1", b"a")
            db.commit()
            db.put(b"2", b"b")
            raise error
        assert (os.listdir(tmp_path) == []) == (left == [])
    with open_db(tmp_path / "db", backend) as db:
        assert [bytes(key) for key, _ in db.records()] == left


def test_replacement_that_fails(tmp_path, monkeypatch):
    rename = Path.rename

    def fails_for_the_new_one(path, target):
        if Path(target) == tmp_path / "db" and not path.name.endswith(".old"):
            raise KeyboardInterrupt
        return rename(path, target)

    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt), new_database(tmp_path / "db", "LMDB", force=True) as db:
            db.put(b"k", b"v")
        monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    assert len(open_db(tmp_path / "db", "LMDB")) == 1


def test_replacement_by_force(make_db, backend):
    path = make_db([b"old"], backend)
    with pytest.raises(FileError, match="--force"), new_database(path, backend):
        pass
    with pytest.raises(ValueError), new_database(path, backend, force=True):
        raise ValueError
    with open_db(path, backend) as db:
        assert bytes(read(db.cursor(), 1)[0][1]) == b"old"
    del db
    with new_database(path, backend, force=True) as db:
        db.put(b"1", b"new")
    with open_db(path, backend) as db:
        assert bytes(read(db.cursor(), 1)[0][1]) == b"new"
    assert os.listdir(path.parent) == ["db"]


def test_leveldb_without_plyvel(make_db, monkeypatch):
    path = make_db([b"a"], "LEVELDB")
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(DependencyError, match=r'pip install "minicaffe\[leveldb\]"'):
        open_db(path, "LEVELDB")


def test_record_batches_close_their_cursor(make_db, backend):
    from minicaffe.data.record_batches import RecordBatches
    reader = RecordBatches(make_db([b"a"], backend), backend, None)
    reader.cursor = reader.db.cursor()
    next(reader.cursor)
    reader.close()
    assert reader.cursor is None    # it would keep the database open
    RecordBatches(make_db([b"a"], backend, "other"), backend, None).close()      # that was never opened


def test_mapping_again(make_db):
    path = make_db([b"a"])
    with open_db(path, "LMDB") as db:
        mapped = db._bytes
        assert len(db) == 1 and db._bytes is mapped
        with lmdb.open(str(path), map_size=1 << 26) as env, env.begin(write=True) as transaction:
            transaction.put(b"b", bytes(300_000))
        assert len(db) == 2 and db._bytes is not mapped
        assert len(read(db.cursor(), 2)[1][1]) == 300_000


@pytest.mark.parametrize("number", [0xFFFF, 0x10000, 0xFFFF_0000, 0x1_0000_0000, 0x1234_5678_9ABC, (1 << 48) - 1])
def test_numbers_of_pages_have_48_bits(make_db, number):
    path = make_db([bytes(1000)] * 10)
    with open_db(path, "LMDB") as db:
        root, last = db._snapshot().root, db._snapshot().last
        first = int.from_bytes(db._bytes[root * 4096 + 16:root * 4096 + 18], "little")
    overwrite(path, (root * 4096 + first, number.to_bytes(6, "little")))
    with open_db(path, "LMDB") as db, pytest.raises(FileError, match=f"page {number} lies behind the last, {last}"):
        read(db.cursor(), 1)


@pytest.mark.parametrize(("at", "content", "message"), [
    (0, (9).to_bytes(8, "little"), "page {page} declares itself page 9 with pointers up to {lower}"),
    (12, (15).to_bytes(2, "little"), "page {page} declares itself page {page} with pointers up to 15"),
    (12, (4097).to_bytes(2, "little"), "page {page} declares itself page {page} with pointers up to 4097"),
    (10, (1).to_bytes(2, "little"), "page {page} has flags 0x1 on level 1 of 1"),
    (16, (4089).to_bytes(2, "little"), "page {page} has a pointer to 4089"),
    (10, (3).to_bytes(2, "little"), "page {page} has flags 0x3 on level 1 of 1"),
    (12, (16).to_bytes(2, "little"), "it has 0 records, and declares 2"),
    (16, (4088).to_bytes(2, "little"), "a value of 808464432 bytes does not fit into its page"),      # it takes "0000" for the length
])
def test_fields_of_a_page(make_db, at, content, message):
    path = make_db([b"a", b"b"])
    with open_db(path, "LMDB") as db:
        page = db._snapshot().root
        lower = int.from_bytes(db._bytes[page * 4096 + 12:page * 4096 + 14], "little")
    overwrite(path, (page * 4096 + at, content))
    with pytest.raises(FileError) as caught, open_db(path, "LMDB") as db:
        read(db.cursor(), 2)
    assert str(caught.value) == f"{path}: cannot be read on: {message.format(page=page, lower=lower)}; the database is damaged, make it again"


@pytest.mark.parametrize("more", [0, 1])
def test_longest_value(make_db, more):
    """The node that lies last in its page, longer by a byte than what is there."""
    path = make_db([b"ab"])
    with open_db(path, "LMDB") as db:
        page = db._snapshot().root
        _, _, pointers = db._page(db._bytes, db._snapshot(), page)
        room = 4096 - pointers[0] - 8 - len(b"00000000")
    overwrite(path, (page * 4096 + pointers[0], (room + more).to_bytes(2, "little")))
    refused = pytest.raises(FileError, match=f"a value of {room + 1} bytes does not fit into its page")
    with open_db(path, "LMDB") as db, refused if more else contextlib.nullcontext():
        assert len(read(db.cursor(), 1)[0][1]) == room


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7])
def test_commits(tmp_path, backend, monkeypatch, count):
    """A database that is written can be read, too: what is committed."""
    monkeypatch.setattr("minicaffe.data.database.COMMIT_EVERY", 3)
    values = [(b"%d" % i, b"value %d" % i) for i in range(count)]
    with open_db(tmp_path / "db", backend, "w") as db:
        written, write = [], db._write
        monkeypatch.setattr(db, "_write", lambda records: (written.append(len(records)), write(records)))
        assert len(db) == 0 and list(db.records()) == []
        for i, record in enumerate(values):
            db.put(*record)
            assert sum(written) == (i + 1) // 3 * 3 == len(db)
        db.commit()
        db.commit()     # nothing is pending
        assert written == [3] * (count // 3) + [count % 3] * (count % 3 > 0)
        assert [(bytes(key), bytes(value)) for key, value in db.records()] == values
        assert [bytes(key) for key, _ in read(db.cursor(count - 1), 2)] == [values[-1][0], b"0"]
        db.put(b"9", b"")
    with open_db(tmp_path / "db", backend) as db:
        assert len(db) == count + 1


def test_sync_at_the_end(tmp_path, monkeypatch):
    """The environment writes without syncing: one sync at the end, after the last records."""
    class Recorded:
        def __init__(self, env):
            self.env = env

        def __getattr__(self, name):
            def call(*arguments, **options):
                called.append((name, *arguments, *options.items()))
                return getattr(self.env, name)(*arguments, **options)
            return call

    db, called = open_db(tmp_path / "db", "LMDB", "w"), []
    db._env = Recorded(db._env)
    db.put(b"a", b"b")
    db.close()
    assert called == [("begin", ("write", True)), ("sync", True), ("close",)]       # without True nothing is synced
    db.close()
    assert len(called) == 3


@pytest.mark.parametrize("before", [1, 2])
def test_both_pages_of_transactions(tmp_path, before):
    """The newest one alternates between the first two pages."""
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        def write():
            with env.begin(write=True) as transaction:
                transaction.put(b"key", b"value" * 10)

        for _ in range(before):
            write()
        with open_db(tmp_path, "LMDB") as db:
            first, second = db.cursor(), db.cursor()
            reads = [next(db.steps()) for _ in range(2)]
            assert bytes(reads[0]()[0]) == b"key"
            write()
            assert bytes(reads[0]()[0]) == b"key"       # one transaction leaves the pages alone
            write()
            with pytest.raises(FileError, match="was written to while it was read"):
                reads[1]()
            assert bytes(read(first, 1)[0][0]) == bytes(read(second, 1)[0][0]) == b"key"


@pytest.mark.parametrize(("offset", "content", "error"), [
    (6, bytes(2), "it declares .* levels"), (6, b"\x21\0", "it declares .* levels"), (32, b"\xff" * 8, "it declares .* levels"),
    (32, b"\x03", "it has 2 records, and declares 3")])
def test_wrong_levels_and_records(make_db, offset, content, error):
    """Some made reading endless, or were an OverflowError."""
    path = make_db([b"a", b"b"])
    main_database = 16 + 4 + 4 + 8 + 8 + 48      # in a meta page: flags, depth, numbers of pages, entries, root
    overwrite(path, *((page + main_database + offset, content) for page in (0, 4096)))
    with pytest.raises(FileError, match=f"cannot be read on: {error}; the database is damaged"), open_db(path, "LMDB") as db:
        read(db.cursor(), 3)


def test_repeated_page(make_db):
    path = make_db([bytes(1000)] * 12)
    with open_db(path, "LMDB") as db:
        root, last, content = db._snapshot().root, db._snapshot().last, bytearray(db._bytes)
    begin = root * 4096
    pointers = [int.from_bytes(content[at:at + 2], "little") for at in range(begin + 16, begin + int.from_bytes(content[begin + 12:begin + 14], "little"), 2)]
    for pointer in pointers:     # all children are the first one, and there are more of them than pages
        content[begin + pointer:begin + pointer + 6] = content[begin + pointers[0]:begin + pointers[0] + 6]
    pointers = (pointers * (last + 3))[:last + 3]
    content[begin + 12:begin + 14] = (16 + 2 * len(pointers)).to_bytes(2, "little")
    content[begin + 16:begin + 16 + 2 * len(pointers)] = b"".join(pointer.to_bytes(2, "little") for pointer in pointers)
    (path / "data.mdb").write_bytes(content)
    with open_db(path, "LMDB") as db, pytest.raises(FileError, match=r"page \d+ is in its tree more than once"):
        read(db.cursor(), 100)


def test_closed_while_it_is_read(make_db):
    with open_db(make_db([b"a", b"b"]), "LMDB") as db:
        new, begun = db.cursor(), db.cursor()
        step = next(begun)
    for call in lambda: next(new), step:
        with pytest.raises(FileError, match="was closed; read it before"):
            call()


def test_paths_without_a_database(tmp_path, backend, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker, kind = {"LMDB": "data.mdb", "LEVELDB": "CURRENT"}[backend], f"a database of kind {backend}"
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "lock.mdb").write_bytes(b"")
    (tmp_path / "unknown").write_bytes(bytes(range(200, 256)))
    (tmp_path / "text").write_text("x")
    for name, message in (("nowhere", "no such database; check the path"), ("folder", f"is not {kind}: no {marker} in it; check the path"),
                          ("locked", f"is not {kind}: no {marker} in it; only its lock file lock.mdb is there: copy data.mdb, too"),
                          ("unknown", f"is a file, but {kind} is a directory"), ("text", f"is text, where the folder of {kind} is expected")):
        with pytest.raises(FileError) as caught:
            open_db(tmp_path / name, backend)
        assert str(caught.value).startswith(f"{tmp_path}/{name}: {message}"), caught.value
        assert "relative" not in str(caught.value)
    with pytest.raises(FileError, match="nowhere: no such database; check the path, which is relative to the working directory$"):
        open_db("nowhere", backend)


def test_folders_replaced_by_force(tmp_path, backend):
    """A folder that holds a database itself, or the train_lmdb or train_leveldb of several."""
    for name in ("train_lmdb", "train_leveldb", "data.mdb", "CURRENT"):
        (tmp_path / "old" / name).mkdir(parents=True)
        with new_database(tmp_path / "old", backend, force=True) as db:
            db.put(b"a", b"b")
        assert not (tmp_path / "old" / name).is_dir()
        shutil.rmtree(tmp_path / "old")
    (tmp_path / "empty").mkdir()
    with new_database(tmp_path / "empty", backend, force=True) as db:
        db.put(b"a", b"b")
    assert list((tmp_path / "empty").iterdir())
    for name in ("train_LMDB", "lock.mdb", "notes"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        with pytest.raises(FileError, match=f"^{tmp_path}/mine: is a folder without a database, so --force does not replace it"), \
                new_database(tmp_path / "mine", backend, force=True):
            pass
        assert (tmp_path / "mine" / name).is_dir()
        shutil.rmtree(tmp_path / "mine")


def test_removed_records(make_db):
    """A cursor that was moved to one begins again with the first. Without any the end of a round is an error: a search would have no end."""
    path = make_db([b"a", b"b", b"c", b"d"], "LMDB")
    with open_db(path, "LMDB") as db:
        cursor = db.cursor(3)
        with lmdb.open(str(path)) as env, env.begin(write=True) as transaction:
            transaction.delete(b"00000003")
        assert [bytes(read(cursor, 1)[0][1]) for _ in range(4)] == [b"a", b"b", b"c", b"a"]
    with open_db(path, "LMDB") as db:
        started, sought = db.cursor(), db.cursor(5)
        assert bytes(read(started, 1)[0][1]) == b"a"
        with lmdb.open(str(path)) as env, env.begin(write=True) as transaction:
            for i in range(3):
                transaction.delete(b"%08d" % i)
        assert len(db) == 0 and list(db.records()) == []
        assert [bytes(read(started, 1)[0][1]) for _ in range(2)] == [b"b", b"c"]     # of the state that it began with
        for cursor in started, sought, db.cursor():
            with pytest.raises(DataError) as caught:
                read(cursor, 1)
            assert str(caught.value) == f"{path}: holds no records any more; make the database again"


@pytest.mark.parametrize("what", ["link", "file", "link to a file", "link to nowhere"])
def test_links_replaced_by_force(tmp_path, backend, what):
    """A link is replaced, and what it leads to stays."""
    target = tmp_path / "target"
    if what == "link":
        with new_database(target, backend) as db:
            db.put(b"old", b"1")
    elif what == "link to a file":
        target.write_bytes(b"mine")
    path = tmp_path / "db"
    if what == "file":
        path.write_bytes(b"a file")
    else:
        path.symlink_to(target)
    with pytest.raises(FileError, match=f"^{path}: exists already"), new_database(path, backend):
        pass
    with new_database(path, backend, force=True) as db:
        db.put(b"new", b"2")
    assert path.is_dir() and not path.is_symlink() and sorted(os.listdir(tmp_path)) == sorted({"db", *(["target"] if target.exists() else [])})
    with open_db(path, backend) as db:
        assert [bytes(key) for key, _ in db.records()] == [b"new"]
    if what == "link":
        with open_db(target, backend) as db:
            assert [bytes(key) for key, _ in db.records()] == [b"old"]
    assert what != "link to a file" or target.read_bytes() == b"mine"
