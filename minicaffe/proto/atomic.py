"""Write a file so that its name always refers to a complete file: first the old one, then the new one.

The bytes go to a hidden temporary file in the same folder, which is synced and renamed. A process killed in between
leaves at most the temporary file, ``.<name>.<8 hex digits>.minicaffe.tmp``. It is never read, and the next write into that folder
removes it if it is not locked: its writer held a lock, which ended with the process. Caffe writes in place.
"""

import contextlib
import errno
import fcntl
import io
import logging
import os
import re
import secrets
import shutil
import signal
import stat
import threading
from pathlib import Path

from minicaffe.errors import FileError
from minicaffe.proto.files import absolute, path_of

log = logging.getLogger("minicaffe.proto")

LEFTOVER = re.compile(r"\..*\.[0-9a-f]{8}\.minicaffe\.tmp", re.DOTALL)


@contextlib.contextmanager
def replacing(path):
    """Open a binary file whose content takes the place of `path` when the block is left without an exception.

    The new file has the mode of the one it replaces, otherwise what ``open`` gives. A symbolic link is followed. Raises FileError
    if the file cannot be written completely; then the temporary file is removed and the old content of `path` is kept.
    """
    path = path_of(path)
    target = _target(path)
    try:
        file, temporary = _open_temporary(target)
        with file:  # the lock must last until the rename
            try:
                if os.path.exists(target):
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, target)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        sync_folder(os.path.dirname(target))
    except OSError as cause:
        raise write_error(path, cause) from cause


def write_bytes(path, content):
    """Write a file that holds `content`, as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def delayed_interrupts():
    """Delay Ctrl-C to the end of the block; a second Ctrl-C is not delayed.

    h5py runs Python in callbacks of weak references, where an exception is printed and lost. Threads other than the main one are
    not affected: Python never runs signal handlers there.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came = []

    def note(*arguments):
        came.append(arguments)
        if len(came) > 1:
            handler(*arguments)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


@contextlib.contextmanager
def hdf5_in_memory(file):
    """Yield an h5py.File in memory, and write its bytes to the open binary `file` at the end of the block.

    So a full disk is an error of `file`, which can be discarded; the HDF5 library does not recover from it.
    """
    import h5py
    memory = io.BytesIO()
    with delayed_interrupts():
        with h5py.File(memory, "w") as hdf5:
            yield hdf5
        file.write(memory.getbuffer())


def check_free(path, force=False):
    """Raise FileError if `path` exists and may not be replaced."""
    if os.path.lexists(path) and not force:
        raise FileError("exists already; --force replaces it, or choose another name", file=os.fspath(path))


def check_writable(path):
    """Raise FileError if no file can be made at `path`, by making and removing one beside it."""
    target = _target(path)
    try:
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        file, probe = _open_temporary(target)
        with file:
            os.unlink(probe)
    except OSError as cause:
        raise write_error(path, cause) from cause


def lock(descriptor):
    """Lock an open file or folder while this process lives, if the file system has locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def remove_leftovers(folder):
    """Remove the temporary files and folders that killed processes left in `folder`."""
    with contextlib.suppress(OSError):  # a folder that may not be listed
        for name in filter(LEFTOVER.fullmatch, os.listdir(folder or os.curdir)):
            _remove_leftover(os.path.join(folder, name))


def _remove_leftover(path):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            log.info("Removed %s, which a process that was killed had left", path)
        finally:
            os.close(descriptor)
    except OSError:
        pass  # another process writes it, or it belongs to another user


@contextlib.contextmanager
def temporary_folder(target):
    """Yield a new hidden folder, a Path, beside `target`; the end of the block removes it with its content."""
    try:
        folder = Path(_new_name(target))
        folder.mkdir(parents=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as cause:
        raise write_error(target, cause) from cause
    try:
        lock(descriptor)
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(descriptor)


def _open_temporary(target):
    """Return a new file beside `target`, locked, and its path."""
    while True:
        path = _new_name(target)
        file = open(path, "xb")
        lock(file.fileno())
        if os.path.exists(path):
            return file, path
        file.close()  # another process removed it as a leftover before it was locked


def _new_name(target):
    """Return a new temporary name for `target`; first remove leftovers beside it."""
    folder, name = os.path.split(target)
    remove_leftovers(folder)
    start = os.fsdecode(os.fsencode(name)[:200])  # a name has 255 bytes at most
    return os.path.join(folder, f".{start}.{secrets.token_hex(4)}.minicaffe.tmp")


def _target(path):
    """Return the path behind links; FileError if it is invalid, or a device, which a rename would remove."""
    try:
        target = os.path.realpath(absolute(path))
        status = os.stat(target)
    except OSError:
        return target  # nothing is there, or opening the file raises the error
    except ValueError as cause:  # a NUL inside the path
        raise FileError(f"is no usable path: {cause}; correct the path", file=repr(path)) from cause
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise FileError("cannot be written: a device or pipe is there, and files are put in place by renaming; name another path",
                        file=path)
    return target


def sync_folder(folder):
    """Make a rename in `folder` survive a power failure, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno not in (errno.EINVAL, errno.ENOTSUP):  # network and FUSE file systems that cannot sync folders
            raise
    finally:
        os.close(descriptor)


def write_error(path, cause):
    """Return the FileError for an OSError of writing `path`."""
    folder = os.path.dirname(os.path.abspath(path))
    if cause.errno == errno.EISDIR:
        why = "it is a folder; name a file inside it"
    elif cause.errno in (errno.ENOSPC, errno.EDQUOT):
        why = f"no room left for {folder}; make room, or write to another disk"
    elif cause.errno == errno.EFBIG:
        why = "it would be larger than the process or the file system allows; raise the limit (ulimit -f)"
    elif cause.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(folder):
        why = f"the folder {folder} does not exist; make it, or correct the path"
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = f"the folder {folder} is not writable for this user; change its permissions, or write elsewhere"
    else:
        why = f"{cause.strerror or cause}; check the disk and the path"
    return FileError(f"cannot be written: {why}", file=path)
