"""Databases: order, wrap-around, growth, and an error with name and remedy for everything that is none."""

import gc
import os
import shutil
import sys

import lmdb
import pytest

from minicaffe.data import db_lmdb
from minicaffe.data.db import new_database, open_db
from minicaffe.errors import ConfigError, DataError, DependencyError, FileError


def test_every_nth_record(make_db, backend):
    with open_db(make_db([b"%d" % i for i in range(7)], backend), backend) as db:
        cursor = db.cursor()
        assert [bytes(value) for _, value in cursor.take(3, skip=2, gap=4)] == [b"2", b"6", b"3"]
        assert [bytes(value) for _, value in cursor.take(2, skip=8)] == [b"5", b"6"]


def test_cursor_goes_in_key_order_and_round(make_db, backend):
    path = make_db([b"a", b"b", b"c"], backend)
    with open_db(path, backend) as db:
        cursor = db.cursor()
        assert len(db) == len(cursor) == 3
        assert [bytes(v) for _, v in cursor.take(7)] == [b"a", b"b", b"c", b"a", b"b", b"c", b"a"]
        assert [bytes(part) for part in cursor.next()] == [b"00000001", b"b"]


@pytest.mark.parametrize("index", [0, 1, 2, 3, 5, 3_000_000_001])
def test_seek_counts_modulo_the_number_of_records(make_db, backend, index):
    with open_db(make_db([b"0", b"1", b"2"], backend), backend) as db:
        cursor = db.cursor()
        cursor.next()
        cursor.seek(index)
        assert [int(bytes(v)) for _, v in cursor.take(4)] == [(index + i) % 3 for i in range(4)]


def test_an_lmdb_that_the_program_itself_holds_open(make_db):
    path = make_db([b"0"], "LMDB")
    with lmdb.open(str(path), readonly=True, lock=False), pytest.raises(FileError, match="is open in this process by lmdb.open; close that"):
        open_db(path, "LMDB")
    open_db(path, "LMDB").close()


def test_keys_are_sorted_as_bytes_and_the_last_value_wins(tmp_path, backend):
    with open_db(tmp_path / "db", backend, "w") as db:
        for key, value in [(b"10", b"x"), (b"9", b"y"), (b"1", b"z"), (b"9", b"w")]:
            db.put(key, value)
    with open_db(tmp_path / "db", backend) as db:
        assert [tuple(map(bytes, r)) for r in db.cursor().take(3)] == [(b"1", b"z"), (b"10", b"x"), (b"9", b"w")]


def test_lmdb_grows_past_its_first_map(tmp_path, monkeypatch):
    monkeypatch.setattr(db_lmdb, "MAP_SIZE", 1 << 16)
    with open_db(tmp_path / "db", "lmdb", "w") as db:
        for i in range(2500):  # three transactions, 2.5 MB
            db.put(b"%08d" % i, b"%04d" % i * 250)
    with open_db(tmp_path / "db", "LMDB") as db:
        assert len(db) == 2500
        assert bytes(db.cursor().take(2500)[2499][1]) == b"2499" * 250


def test_lmdb_is_read_from_a_read_only_directory_without_lock_file(make_db):
    path = make_db([b"a"])
    assert sorted(os.listdir(path)) == ["data.mdb"]
    os.chmod(path / "data.mdb", 0o444)
    os.chmod(path, 0o555)
    with open_db(path, "LMDB") as db:
        assert bytes(db.cursor().next()[1]) == b"a"
    assert os.listdir(path) == ["data.mdb"]
    os.chmod(path, 0o755)


def test_one_process_opens_a_database_twice(make_db, backend):
    path = make_db([b"a", b"b"], backend)
    first, second = open_db(path, backend), open_db(path, backend)
    cursor = second.cursor()
    cursor.next()
    first.close()
    assert bytes(cursor.next()[1]) == b"b"
    del first, second, cursor
    gc.collect()
    with open_db(path, backend) as again:
        assert len(again) == 2


def test_backend_by_number_and_unknown(make_db):
    assert len(open_db(make_db([b"a"]), 1)) == 1
    with pytest.raises(ConfigError, match="LEVELDB, LMDB.*'hdf5'"):
        open_db("x", "hdf5")
    with pytest.raises(ConfigError, match="mode"):
        open_db("x", "lmdb", "a")


def test_missing_path(tmp_path, backend):
    with pytest.raises(FileError, match="nowhere.*no such database.*check the path"):
        open_db(tmp_path / "nowhere", backend)


def test_a_file_is_no_database(tmp_path, backend):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="file: is text, where the folder of a database of kind"):
        open_db(tmp_path / "file", backend)


def test_an_empty_directory_is_no_database(tmp_path, backend):
    with pytest.raises(FileError, match="is not a database of kind"):
        open_db(tmp_path, backend)


def test_the_other_kind_is_named(make_db, backend):
    other = {"LMDB": "LEVELDB", "LEVELDB": "LMDB"}[backend]
    with pytest.raises(FileError, match=f"set backend: {backend}"):
        open_db(make_db([b"a"], backend), other)


def test_no_records(make_db, backend):
    with pytest.raises(DataError, match="db: holds no records"):
        open_db(make_db([], backend), backend)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"nonsense" * 2000])
def test_data_mdb_of_other_content(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(FileError, match="is not a readable LMDB|its data.mdb is (empty|text), where the data file of an LMDB database is expected"):
        open_db(tmp_path, "LMDB")


@pytest.mark.parametrize("keep", [0.99, 0.5, 0.1])
def test_truncated_lmdb(make_db, keep):
    path = make_db([bytes(3000)] * 100)
    size = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", int(size * keep))
    with pytest.raises(FileError, match=f"cut off: {int(size * keep)} bytes of {size}; copy it again"):
        open_db(path, "LMDB")


def test_truncated_lmdb_inside_its_first_pages(make_db):
    path = make_db([b"a"])
    os.truncate(path / "data.mdb", 3000)
    with pytest.raises(FileError, match="is not a readable LMDB|cut off"):
        open_db(path, "LMDB")


def test_damaged_leveldb(make_db):
    path = make_db([bytes(3000)] * 10, "LEVELDB")
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(FileError, match="db: cannot be opened as LEVELDB"):
        open_db(path, "LEVELDB")


def test_leveldb_with_a_broken_table_names_the_database(make_db):
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
        db.cursor().take(200)


def test_writing_over_something_is_refused(make_db, backend):
    path = make_db([b"a"], backend)
    with pytest.raises(FileError, match="exists already"):
        open_db(path, backend, "w")


def test_writing_where_nothing_can_be_made(tmp_path, backend):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="cannot be created"):
        open_db(tmp_path / "file" / "db", backend, "w")


def test_key_too_long_for_lmdb(tmp_path):
    with pytest.raises(DataError, match="1 to 511 bytes.*600"), new_database(tmp_path / "db", "LMDB") as db:
        db.put(b"k" * 600, b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_new_database_leaves_nothing_after_an_exception(tmp_path, backend, error):
    with pytest.raises(error), new_database(tmp_path / "db", backend) as db:
        db.put(b"1", b"a")
        db.commit()
        raise error
    assert os.listdir(tmp_path) == []


def test_new_database_replaces_only_by_force_and_only_when_whole(make_db, backend):
    path = make_db([b"old"], backend)
    with pytest.raises(FileError, match="--force"), new_database(path, backend):
        pass
    with pytest.raises(ValueError), new_database(path, backend, force=True):
        raise ValueError
    with open_db(path, backend) as db:
        assert bytes(db.cursor().next()[1]) == b"old"
    del db
    with new_database(path, backend, force=True) as db:
        db.put(b"1", b"new")
    with open_db(path, backend) as db:
        assert bytes(db.cursor().next()[1]) == b"new"
    assert os.listdir(path.parent) == ["db"]


def test_leveldb_without_plyvel_says_what_to_install(make_db, monkeypatch):
    path = make_db([b"a"], "LEVELDB")
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(DependencyError, match=r'pip install "minicaffe\[leveldb\]"'):
        open_db(path, "LEVELDB")


def test_lmdb_written_by_others_with_lock_file(tmp_path):
    with lmdb.open(str(tmp_path / "db")) as env, env.begin(write=True) as transaction:
        transaction.put(b"k", b"v")
    shutil.move(tmp_path / "db", tmp_path / "moved")
    with open_db(tmp_path / "moved", "LMDB") as db:
        assert tuple(map(bytes, db.cursor().next())) == (b"k", b"v")
