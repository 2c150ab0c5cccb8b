"""Databases: order, wrap-around, growth, and an error with name and remedy for everything that is none."""

import contextlib
import gc
import itertools
import os
import sys
from pathlib import Path
from unittest import mock

import lmdb
import numpy as np
import pytest

from minicaffe.data import db_lmdb
from minicaffe.data.db import new_database, open_db
from minicaffe.errors import ConfigError, DataError, DependencyError, FileError


def read(cursor, count, skip=0, gap=1):
    """Return a list of `count` (key, value) after `skip` records, of every `gap`-th one."""
    return [step() for step in itertools.islice(cursor, skip, skip + (count - 1) * gap + 1, gap)]


def values(cursor, count, **options):
    return [bytes(value) for _, value in read(cursor, count, **options)]


def put(env, *records):
    with env.begin(write=True) as transaction:
        for key, value in records:
            transaction.put(key, value)


def put_many(env, value):
    """Write 300 records of one value in a transaction."""
    put(env, *((b"%08d" % i, value) for i in range(300)))


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
            assert list(map(int, values(db.cursor(index), 16))) == [(index + i) % 7 for i in range(16)]
        cursor = db.cursor()
        assert values(cursor, 3, skip=2, gap=4) == [b"2", b"6", b"3"] and values(cursor, 2, skip=8) == [b"5", b"6"]


@pytest.mark.parametrize("how", [{}, {"readonly": True, "lock": False}, {"readonly": True}])
def test_lmdb_held_by_the_program(make_db, how):
    path = make_db([b"0", b"1", b"2"], "LMDB")
    lmdb.open(str(path)).close()  # makes the lock file
    with lmdb.open(str(path), **how) as env, open_db(path, "LMDB") as db:
        assert values(db.cursor(), 3) == [b"0", b"1", b"2"]
        with env.begin() as transaction:
            assert transaction.get(b"00000001") == b"1"
    with open_db(path, "LMDB") as db:
        cursor = db.cursor()
        read(cursor, 1)
        with lmdb.open(str(path), **how) as env, env.begin() as transaction:
            assert values(cursor, 1) == [b"1"] and transaction.get(b"00000002") == b"2"
        assert values(cursor, 1) == [b"2"] and values(db.cursor(), 3) == [b"0", b"1", b"2"]


def test_writing_between_rounds(make_db):
    path = make_db([b"0", b"1"], "LMDB")
    with lmdb.open(str(path), map_size=1 << 26) as env, open_db(path, "LMDB") as db:
        cursor, mapped = db.cursor(), db._bytes
        assert values(cursor, 2) == [b"0", b"1"] and len(db) == 2 and db._bytes is mapped
        for i in range(2, 60):  # the file grows past what was mapped
            put(env, (b"%08d" % i, b"%d" % i * 2000))
        assert len(db) == 60 and db._bytes is not mapped
        assert values(cursor, 60) == [b"0", b"1", *(b"%d" % i * 2000 for i in range(2, 60))]


def test_writing_while_it_is_read(tmp_path):
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        put_many(env, b"a" * 100)
        with open_db(tmp_path, "LMDB") as db:
            cursor = db.cursor()
            assert values(cursor, 1) == [b"a" * 100]
            put_many(env, b"b" * 100)  # leaves the pages that are read alone
            assert values(cursor, 299 + 150) == [b"a" * 100] * 299 + [b"b" * 100] * 150
            put_many(env, b"c" * 100)
            put_many(env, b"d" * 100)
            with pytest.raises(FileError, match="was written to while it was read; let the program that writes it finish, or read a copy"):
                read(cursor, 150)


def test_overwritten_pages(tmp_path):
    """The values of a page that was read before the transactions, and a page that they have put to another use."""
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        put_many(env, b"\xff" * 100)
        with open_db(tmp_path, "LMDB") as db:
            steps, snapshot = db.steps(), db._snapshot()
            read = next(steps)
            for size in (5000, 10, 5000, 10):
                put_many(env, b"\xff" * size)
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
            put(env, *list(records.items())[part::3])
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
    *((size, f"is not a readable LMDB: data.mdb has {size} bytes") for size in (0, 151)),
    *((size, "is not a readable LMDB: its second page is missing") for size in (152, 3000, 4247)),
    *((size, "data.mdb is cut off: {size} bytes of {whole}; copy it again") for size in (4248, 40_000, -4096))])
def test_lmdb_that_is_cut_off(make_db, size, error):
    """The heads of the first two pages have 152 bytes each."""
    path = make_db([bytes(3000)] * 100)
    whole = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size % whole)
    with pytest.raises(FileError, match=f"^{path}: {error.format(whole=whole, size=size % whole)}"):
        open_db(path, "LMDB")


def test_order_of_keys(tmp_path, backend, monkeypatch):
    """An LMDB of several transactions grows."""
    monkeypatch.setattr(db_lmdb, "MAP_SIZE", 1 << 16)
    with open_db(tmp_path / "db", backend, "w") as db:
        for key, value in [(b"10", b"x"), (b"9", b"y"), (b"1", b"z"), (b"9", b"w")]:
            db.put(key, value)
        for i in range(2500):  # 2.5 MB
            db.put(b"a%08d" % i, b"%04d" % i * 250)
    with open_db(tmp_path / "db", backend) as db:
        found = [tuple(map(bytes, record)) for record in read(db.cursor(), 2503)]
        assert len(db) == 2503 and found[:3] == [(b"1", b"z"), (b"10", b"x"), (b"9", b"w")] and found[-1] == (b"a00002499", b"2499" * 250)


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
    assert values(cursor, 1) == [b"b"]
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


def test_damaged_leveldb(make_db, monkeypatch):
    path = make_db([os.urandom(3000) for _ in range(200)], "LEVELDB")
    import plyvel

    plyvel.DB(str(path)).compact_range()
    (table,) = path.glob("*.ldb")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 255
    table.write_bytes(content)
    with open_db(path, "LEVELDB") as db, pytest.raises(FileError, match="cannot be read on.*damaged"):
        read(db.cursor(), 200)
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(FileError, match="db: cannot be opened as LEVELDB"):
        open_db(path, "LEVELDB")
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(DependencyError, match=r'pip install "minicaffe\[leveldb\]"'):
        open_db(path, "LEVELDB")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_exceptions_while_writing(tmp_path, backend, error):
    """A new database is whole or absent; one that is opened keeps what was committed."""
    if backend == "LMDB":
        with pytest.raises(DataError, match="1 to 511 bytes.*600"), new_database(tmp_path / "db", "LMDB") as db:
            db.put(b"k" * 600, b"")
        assert os.listdir(tmp_path) == []
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
        assert values(db.cursor(), 1) == [b"old"]
    del db
    with new_database(path, backend, force=True) as db:
        db.put(b"1", b"new")
    with open_db(path, backend) as db:
        assert values(db.cursor(), 1) == [b"new"]
    assert os.listdir(path.parent) == ["db"]


def test_record_batches_close_their_cursor(make_db, backend):
    from minicaffe.data.record_batches import RecordBatches
    reader = RecordBatches(make_db([b"a"], backend), backend, None)
    reader.cursor = reader.db.cursor()
    next(reader.cursor)
    reader.close()
    assert reader.cursor is None    # it would keep the database open
    RecordBatches(make_db([b"a"], backend, "other"), backend, None).close()      # that was never opened


def test_numbers_of_pages_have_48_bits(make_db):
    path = make_db([bytes(1000)] * 10)
    with open_db(path, "LMDB") as db:
        root, last = db._snapshot().root, db._snapshot().last
        first = int.from_bytes(db._bytes[root * 4096 + 16:root * 4096 + 18], "little")
    for number in 0xFFFF, 0x10000, 0xFFFF_0000, 0x1_0000_0000, 0x1234_5678_9ABC, (1 << 48) - 1:
        overwrite(path, (root * 4096 + first, number.to_bytes(6, "little")))
        with open_db(path, "LMDB") as db, pytest.raises(FileError, match=f"page {number} lies behind the last, {last}"):
            read(db.cursor(), 1)


@pytest.mark.parametrize(("at", "content", "message"), [
    (0, 9, "page {page} declares itself page 9 with pointers up to {lower}"),
    *((12, lower, f"page {{page}} declares itself page {{page}} with pointers up to {lower}") for lower in (15, 4097)),
    *((10, flags, f"page {{page}} has flags {flags:#x} on level 1 of 1") for flags in (1, 3)),
    (16, 4089, "page {page} has a pointer to 4089"),
    (12, 16, "it has 0 records, and declares 2"),
    (16, 4088, "a value of 808464432 bytes does not fit into its page")])      # it takes "0000" for the length
def test_fields_of_a_page(make_db, at, content, message):
    path = make_db([b"a", b"b"])
    with open_db(path, "LMDB") as db:
        page = db._snapshot().root
        lower = int.from_bytes(db._bytes[page * 4096 + 12:page * 4096 + 14], "little")
    overwrite(path, (page * 4096 + at, content.to_bytes(2 if at else 8, "little")))
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


def test_sync_at_the_end(tmp_path):
    """The environment writes without syncing: one sync at the end, after the last records."""
    db = open_db(tmp_path / "db", "LMDB", "w")
    db._env = env = mock.Mock(wraps=db._env)
    db.put(b"a", b"b")
    for _ in range(2):
        db.close()
        assert env.method_calls == [mock.call.begin(write=True), mock.call.sync(True), mock.call.close()]       # without True nothing is synced


@pytest.mark.parametrize("before", [1, 2])
def test_both_pages_of_transactions(tmp_path, before):
    """The newest one alternates between the first two pages."""
    record = b"key", b"value" * 10
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        for _ in range(before):
            put(env, record)
        with open_db(tmp_path, "LMDB") as db:
            first, second = db.cursor(), db.cursor()
            reads = [next(db.steps()) for _ in range(2)]
            assert bytes(reads[0]()[0]) == b"key"
            put(env, record)
            assert bytes(reads[0]()[0]) == b"key"       # one transaction leaves the pages alone
            put(env, record)
            with pytest.raises(FileError, match="was written to while it was read"):
                reads[1]()
            assert values(first, 1) == values(second, 1) == [record[1]]


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
    """A folder that holds a database itself, or the train_lmdb or train_leveldb of several, or nothing."""
    for name in "train_lmdb", "train_leveldb", "data.mdb", "CURRENT", "", "train_LMDB", "lock.mdb", "notes":
        folder, kept = tmp_path / f"of {name}", name in ("train_LMDB", "lock.mdb", "notes")
        (folder / name).mkdir(parents=True)
        refused = pytest.raises(FileError, match=f"^{folder}: is a folder without a database, so --force does not replace it")
        with refused if kept else contextlib.nullcontext(), new_database(folder, backend, force=True) as db:
            db.put(b"a", b"b")
        assert list(folder.iterdir()) and (name == "" or (folder / name).is_dir() == kept)


def test_removed_records(make_db):
    """A cursor that was moved to one begins again with the first. Without any the end of a round is an error: a search would have no end."""
    path = make_db([b"a", b"b", b"c", b"d"], "LMDB")

    def remove(*numbers):
        with lmdb.open(str(path)) as env, env.begin(write=True) as transaction:
            for i in numbers:
                transaction.delete(b"%08d" % i)

    with open_db(path, "LMDB") as db:
        cursor = db.cursor(3)
        remove(3)
        assert values(cursor, 4) == [b"a", b"b", b"c", b"a"]
    with open_db(path, "LMDB") as db:
        started, sought = db.cursor(), db.cursor(5)
        assert values(started, 1) == [b"a"]
        remove(0, 1, 2)
        assert len(db) == 0 and list(db.records()) == []
        assert values(started, 2) == [b"b", b"c"]     # of the state that it began with
        for cursor in started, sought, db.cursor():
            with pytest.raises(DataError) as caught:
                read(cursor, 1)
            assert str(caught.value) == f"{path}: holds no records any more; make the database again"


@pytest.mark.parametrize("what", ["link", "file", "link to a file", "link to nowhere"])
def test_links_replaced_by_force(tmp_path, backend, what):
    """A link is replaced, and what it leads to stays."""
    target, path = tmp_path / "target", tmp_path / "db"
    if what == "link":
        with new_database(target, backend) as db:
            db.put(b"old", b"1")
    elif what == "link to a file":
        target.write_bytes(b"mine")
    if what == "file":
        path.write_bytes(b"a file")
    else:
        path.symlink_to(target)
    there = {*os.listdir(tmp_path)}
    with pytest.raises(FileError, match=f"^{path}: exists already"), new_database(path, backend):
        pass
    with new_database(path, backend, force=True) as db:
        db.put(b"new", b"2")
    assert path.is_dir() and not path.is_symlink() and {*os.listdir(tmp_path)} == there
    for kept, keys in ((path, [b"new"]), *[(target, [b"old"])] * (what == "link")):
        with open_db(kept, backend) as db:
            assert [bytes(key) for key, _ in db.records()] == keys
    assert what != "link to a file" or target.read_bytes() == b"mine"
