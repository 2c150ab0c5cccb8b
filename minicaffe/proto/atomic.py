"""Write a file so that its name always refers to a complete file: first the old one, then the new one.

The bytes go to a hidden temporary file in the same folder, which is synced and renamed. A process that is killed in between
leaves at most that file, ``.<name>.<8 hex digits>.tmp``, which nothing reads. Caffe writes in place.
"""

import contextlib
import errno
import os
import signal
import stat
import threading

from minicaffe.errors import FileError
from minicaffe.proto.files import NO_DIRECTORY, path_of


@contextlib.contextmanager
def replacing(path):
    """Open a binary file whose content takes the place of `path` when the block is left without an exception.

    The new file has the mode of the one it replaces, otherwise what ``open`` gives. A symbolic link is followed. Raises FileError
    if the file cannot be written completely; then the temporary file is removed and the old content of `path` is kept.
    """
    path = path_of(path)
    target = _target(path)
    temporary = _temporary_name(target)
    try:
        with open(temporary, "xb") as file:
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
        descriptor = os.open(os.path.dirname(target), os.O_RDONLY)
        with contextlib.suppress(OSError):  # network and FUSE file systems that cannot sync folders
            os.fsync(descriptor)
        os.close(descriptor)
    except OSError as cause:
        raise write_error(path, cause) from cause


def write_bytes(path, content):
    """Write a file that holds `content`, as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def delayed_interrupts():
    """Delay Ctrl-C to the end of the block, such as the writing of two files; a second Ctrl-C is not delayed.

    h5py needs it: it runs Python in callbacks of weak references, where an exception is printed and lost. In threads other than the
    main one it does nothing: Python never runs signal handlers there.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came = []

    def note(*arguments):       # the handler in the block
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


def check_free(path, force=False):
    """Raise FileError if `path` exists, unless `force`, the option --force of commands."""
    if os.path.lexists(path) and not force:
        raise FileError("exists already; --force replaces it, or choose another name", file=os.fspath(path))


def check_writable(path):
    """Raise FileError if no file can be made at `path`, before long work; a file beside it is made and removed."""
    target = _target(path)
    probe = _temporary_name(target)
    try:
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        open(probe, "xb").close()
        os.unlink(probe)
    except OSError as cause:
        raise write_error(path, cause) from cause


@contextlib.contextmanager
def temporary_folder(target):
    """Yield a new hidden folder, a Path, beside `target`; the end of the block removes it with its content."""
    import shutil  # here, as these are slow
    from pathlib import Path
    folder = Path(_temporary_name(target))
    try:
        folder.mkdir(parents=True)
    except OSError as cause:
        raise write_error(target, cause) from cause
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _temporary_name(target):
    """Return a new hidden name beside `target`."""
    folder, name = os.path.split(target)
    start = os.fsdecode(os.fsencode(name)[:200])  # a name has 255 bytes at most
    return os.path.join(folder, f".{start}.{os.urandom(4).hex()}.tmp")


def _target(path):
    """Return the path behind links, which need not exist; FileError if it is invalid, or a device, which a rename would remove."""
    target = None
    try:
        target = os.path.realpath(path)
        status = os.stat(target)
    except OSError:
        if target is None:
            raise FileError(NO_DIRECTORY) from None
        return target  # nothing is there, or opening the file raises the error
    except ValueError as cause:  # a NUL inside the path
        raise FileError(f"is no usable path: {cause}; correct the path", file=repr(path)) from cause
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise FileError("cannot be written: a device or pipe is there, and files are put in place by renaming; name another path",
                        file=path)
    return target


def write_error(path, cause):
    """Return the FileError for an OSError of writing `path`."""
    folder = os.path.dirname(os.path.abspath(path))
    if cause.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(folder):
        why = f"the folder {folder} does not exist; make it, or correct the path"
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = f"the folder {folder} is not writable for this user; change its permissions, or write elsewhere"
    else:
        why = {errno.EISDIR: "it is a folder; name a file inside it",
               errno.ENOSPC: f"no room left for {folder}; make room, or write to another disk",
               errno.EDQUOT: f"no room left for {folder}; make room, or write to another disk",
               errno.EFBIG: "it would be larger than the process or the file system allows; raise the limit (ulimit -f)",
               }.get(cause.errno, f"{cause.strerror or cause}; check the disk and the path")
    return FileError(f"cannot be written: {why}", file=path)
