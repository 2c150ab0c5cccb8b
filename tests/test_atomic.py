"""Whole files or none: content, modes, links, failures in every phase of a write."""

import errno
import os
import resource
import stat

import pytest

from minicaffe.errors import FileError
from minicaffe.proto import atomic
from minicaffe.proto.atomic import check_writable, replacing


def put(path, content):
    with replacing(path) as file:
        file.write(content)


def test_new_and_replaced(tmp_path):
    path = tmp_path / "a.bin"
    put(path, b"one")
    put(path, b"two, longer")
    assert path.read_bytes() == b"two, longer"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_the_old_file_stands_until_the_end(tmp_path):
    path = tmp_path / "a.bin"
    put(path, b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("cause", [KeyboardInterrupt, ValueError])
def test_an_exception_leaves_the_old_file(tmp_path, cause):
    path = tmp_path / "a.bin"
    put(path, b"old")
    with pytest.raises(cause), replacing(path) as file:
        file.write(b"half")
        raise cause
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


def test_mode_of_a_new_file_follows_umask(tmp_path):
    before = os.umask(0o027)
    try:
        put(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_mode_of_the_replaced_file_stays(tmp_path):
    put(tmp_path / "a", b"")
    (tmp_path / "a").chmod(0o604)
    put(tmp_path / "a", b"x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o604


def test_a_link_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "real")
    put(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "real").read_bytes() == b"x"


def test_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("a", b"x")
    check_writable("b")
    assert os.listdir() == ["a"]


def test_too_large_for_the_process(tmp_path):
    path = tmp_path / "a"
    put(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(FileError, match=r"a: cannot be written: .*ulimit -f"):
            put(path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    put(path, b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, call, full)
    with pytest.raises(FileError, match="no room left for .*; make room") as error:
        put(path, b"new")
    assert error.value.file == str(path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_a_missing_folder(tmp_path):
    for write in (lambda: put(tmp_path / "no" / "a", b""), lambda: check_writable(tmp_path / "no" / "a")):
        with pytest.raises(FileError, match="does not exist; make it"):
            write()


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*arguments, **keywords):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may write everywhere, so the refusal is played
    with pytest.raises(FileError, match="not writable for this user"):
        check_writable(tmp_path / "a")


def test_a_file_system_that_cannot_sync_folders(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    put(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
