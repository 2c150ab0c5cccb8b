"""Whole files or none: content, modes, links, failures in every phase of a write."""

import contextlib
import errno
import os
import resource
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


def test_new_and_replaced(tmp_path):
    path = tmp_path / "a.bin"
    put(path, b"one")
    put(path, b"two, longer")
    assert path.read_bytes() == b"two, longer"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_old_file_stays_until_the_end(tmp_path):
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


def test_a_killed_writer_leaves_the_old_file(tmp_path):
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


def test_a_temporary_folder_goes_with_its_content(tmp_path):
    with pytest.raises(KeyError), temporary_folder(tmp_path / "no" / "a") as folder:
        (folder / "inside").write_bytes(b"x")
        raise KeyError
    assert os.listdir(tmp_path / "no") == []


def test_a_deleted_working_directory(tmp_path, monkeypatch):
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


def interrupt():
    """Ctrl-C as it comes while Python runs the callback of a weak reference, as h5py has them: raised there it is lost."""
    class Thing:
        pass
    thing = Thing()
    thing.reference = weakref.ref(thing, lambda reference: signal.raise_signal(signal.SIGINT))
    keep = thing.reference
    del thing
    return keep


def test_ctrl_c_waits_for_the_end_of_hdf5(tmp_path):
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


def test_a_second_ctrl_c_does_not_wait():
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
def test_ctrl_c_is_left_as_it_is(where):
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


def test_the_place_of_an_open_file_where_there_is_no_proc(tmp_path, monkeypatch):
    """The path is followed then."""
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


@pytest.mark.parametrize("fail", [False, True])
def test_the_file_is_closed_at_the_end(tmp_path, fail):
    with contextlib.suppress(KeyError), replacing(tmp_path / "a") as file:
        file.write(b"x")
        if fail:
            raise KeyError
    assert file.closed and os.listdir(tmp_path) == [] + ["a"] * (not fail)


def test_every_cause_of_a_write_that_failed(tmp_path):
    for code, missing, words in (
            (errno.EISDIR, False, "it is a folder; name a file inside it"), (errno.ENOSPC, False, f"no room left for {tmp_path}; make room, or"),
            (errno.EDQUOT, True, f"no room left for {tmp_path}/no; make room"), (errno.EFBIG, False, "raise the limit (ulimit -f)"),
            (errno.ENOENT, True, f"the folder {tmp_path}/no does not exist; make it"), (errno.ENOTDIR, True, f"the folder {tmp_path}/no does not exist"),
            (errno.ENOENT, False, "No such file or directory; check the disk and the path"), (errno.EIO, True, "Input/output error; check the disk"),
            (errno.EACCES, False, f"the folder {tmp_path} is not writable for this user"), (errno.EPERM, False, "is not writable for this user"),
            (errno.EROFS, False, "is not writable for this user"), (errno.EIO, False, "Input/output error; check the disk and the path")):
        path = str(tmp_path / "no" / "a" if missing else tmp_path / "a")
        error = atomic.write_error(path, OSError(code, os.strerror(code)))
        assert str(error).startswith(f"{path}: cannot be written: ") and words in str(error), error
