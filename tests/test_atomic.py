"""Whole files or none: content, modes, links, failures in every phase of a write."""

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from minicaffe import TEST, Net
from minicaffe.common import caffe as state
from minicaffe.data.db import new_database
from minicaffe.data.mean_file import write_mean
from minicaffe.errors import FileError
from minicaffe.proto import atomic
from minicaffe.proto.atomic import check_writable, delayed_interrupts, replacing, temporary_folder
from minicaffe.proto.files import check_below, is_hdf5, map_bytes, read_bytes
from minicaffe.proto.hdf5 import hdf5_in_memory, reading


def put(path, content):
    with replacing(path) as file:
        file.write(content)


def test_replaced_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a.bin", "b.bin"):
        put(path, b"old, longer")
        with replacing(path) as file:
            file.write(b"new")
            file.flush()
            with open(path, "rb") as before:
                assert before.read() == b"old, longer"
        with open(path, "rb") as after:
            assert file.closed and after.read() == b"new"
    check_writable("c.bin")
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin"]


@pytest.mark.parametrize("cause", [KeyboardInterrupt, ValueError])
def test_exception(tmp_path, cause):
    put(tmp_path / "a.bin", b"old")
    for name in "a.bin", "new.bin":
        with pytest.raises(cause), replacing(tmp_path / name) as file:
            file.write(b"half")
            raise cause
        assert file.closed
    assert (tmp_path / "a.bin").read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


def test_modes_and_links(tmp_path):
    before = os.umask(0o027)
    try:
        put(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    (tmp_path / "a").chmod(0o604)
    put(tmp_path / "a", b"x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o604
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "real")
    put(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "real").read_bytes() == b"x"
    with pytest.raises(KeyError), temporary_folder(tmp_path / "no" / "a") as folder:
        (folder / "inside").write_bytes(b"x")
        raise KeyError
    assert os.listdir(tmp_path / "no") == []


def test_killed_writer(tmp_path):
    """And beside it a hidden one, though the name has as many bytes as a name may have."""
    script = """
import os, signal
from minicaffe.proto.atomic import replacing
with replacing("ä" * 120) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    put(tmp_path / ("ä" * 120), b"old")
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path).returncode == -signal.SIGKILL
    left, = set(os.listdir(tmp_path)) - {"ä" * 120}
    assert left.startswith(".ä") and left.endswith(".tmp") and (tmp_path / ("ä" * 120)).read_bytes() == b"old"


def test_deleted_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    for use in (lambda: put("a", b""), lambda: check_writable("a"), lambda: read_bytes("a"), lambda: map_bytes("a"), lambda: is_hdf5("a"),
                lambda: put("a/b", b""), lambda: reading("a").__enter__(), lambda: state.trusting(False),
                lambda: Net("a", TEST), lambda: new_database("a", "LMDB").__enter__(),
                lambda: write_mean("a", np.zeros((1, 1, 1)))):
        with pytest.raises(FileError, match="working directory was deleted; change to one that exists"):
            use()
    put(tmp_path / "a", b"x")


def test_folders_without_sync_or_rights(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    put(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    def refuse(*arguments, **keywords):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may write everywhere, so the refusal is played
    with pytest.raises(FileError, match="not writable for this user"):
        check_writable(tmp_path / "a")


def interrupt():
    """Ctrl-C as it comes while Python runs the callback of a weak reference, as h5py has them: raised there it is lost."""
    class Thing:
        pass
    thing = Thing()
    thing.reference = weakref.ref(thing, lambda reference: signal.raise_signal(signal.SIGINT))
    keep = thing.reference
    del thing
    return keep


def test_ctrl_c(tmp_path):
    path = tmp_path / "a.h5"
    with open(path, "wb") as file:
        with pytest.raises(KeyboardInterrupt):
            with hdf5_in_memory(file) as hdf5:
                interrupt()
                hdf5["x"] = [1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        with reading(path) as hdf5:
            interrupt()
            assert list(hdf5["x"]) == [1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
            reached.append("after the first")
            signal.raise_signal(signal.SIGINT)
            reached.append("after the second")
    assert reached == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("where", ["a thread", "a process that ignores Ctrl-C", "a process that Ctrl-C ends"])
def test_other_reactions_to_ctrl_c(where):
    """Where Python has no handler of its own to call later: in threads, and where the program has set another reaction."""
    seen, before = [], signal.getsignal(signal.SIGINT)

    def use():
        with delayed_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    if where == "a thread":
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert seen == [before]
        return
    reaction = signal.SIG_IGN if "ignores" in where else signal.SIG_DFL
    try:
        signal.signal(signal.SIGINT, reaction)
        use()
        assert seen == [reaction] and signal.getsignal(signal.SIGINT) == reaction
    finally:
        signal.signal(signal.SIGINT, before)


def test_place_without_proc(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "in" / "link").symlink_to("../b")
    readlink = os.readlink

    def without_proc(path, **options):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path, **options)

    for read in readlink, without_proc:
        monkeypatch.setattr(os, "readlink", read)
        for name in ("in/a", "in/link", "b"):
            with open(tmp_path / name, "rb") as file:
                check_below(file.fileno(), str(tmp_path / name), None)
                refused = contextlib.nullcontext() if name == "in/a" else pytest.raises(FileError, match=f"^'{tmp_path}/{name}' lies outside {tmp_path}/in, and")
                with refused:
                    check_below(file.fileno(), str(tmp_path / name), str(tmp_path / "in"))


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code, missing, words", [
    (errno.EISDIR, False, "it is a folder; name a file inside it"), (errno.ENOSPC, False, "no room left for {}; make room, or"),
    (errno.EDQUOT, True, "no room left for {}/no; make room"), (errno.EFBIG, False, "raise the limit (ulimit -f)"),
    (errno.ENOENT, True, "the folder {}/no does not exist; make it"), (errno.ENOTDIR, True, "the folder {}/no does not exist"),
    (errno.ENOENT, False, "No such file or directory; check the disk and the path"), (errno.EIO, True, "Input/output error; check the disk"),
    (errno.EACCES, False, "the folder {} is not writable for this user"), (errno.EPERM, False, "is not writable for this user"),
    (errno.EROFS, False, "is not writable for this user"), (errno.EIO, False, "Input/output error; check the disk and the path")])
def test_causes_of_errors(tmp_path, monkeypatch, call, code, missing, words):
    path = tmp_path / "no" / "a" if missing else tmp_path / "a"
    error = atomic.write_error(str(path), OSError(code, os.strerror(code)))
    assert str(error).startswith(f"{path}: cannot be written: ") and words.format(tmp_path) in str(error), error

    def fail(*_):
        raise OSError(code, os.strerror(code))

    if not missing:
        put(path, b"old")
        monkeypatch.setattr(atomic.os, call, fail)
    for write in (lambda: put(path, b"new"), *([lambda: check_writable(path)] if missing else [])):
        with pytest.raises(FileError) as caught:
            write()
        assert str(caught.value.file) == str(path)
    assert missing or path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]
