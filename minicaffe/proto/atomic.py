"""Write a file so that under its name there is always a whole one: the old until the last moment, then the new.

The bytes go to a hidden temporary file in the same folder, which is synced and renamed. A process killed in between
leaves at most the temporary file, ``.<name>.<8 hex digits>.tmp``, which nothing reads. Caffe writes in place.
"""

import contextlib
import errno
import io
import os
import secrets
import stat

from minicaffe.errors import FileError


@contextlib.contextmanager
def replacing(path):
    """Open a binary file whose content takes the place of `path` when the block is left without an exception.

    The new file has the mode of the one it replaces, otherwise what ``open`` gives. A symbolic link is followed.

    Raises
    ------
    FileError
        If the file cannot be written whole; the temporary file is removed and what `path` held before stays.
    """
    path = os.fspath(path)
    target = _target(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        file = open(temporary, "xb")
        try:
            with file:
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
        sync_folder(folder)
    except OSError as cause:
        raise write_error(path, cause) from cause


@contextlib.contextmanager
def hdf5_in_memory(file):
    """Give an h5py.File to fill, and write its bytes to the open binary `file` when the block is left.

    A full disk is then met by `file`, which can be given up; the HDF5 library does not survive it in good order.
    """
    import h5py
    memory = io.BytesIO()
    with h5py.File(memory, "w") as hdf5:
        yield hdf5
    file.write(memory.getbuffer())


def check_writable(path):
    """Raise FileError if no file can be made at `path`, by making and removing one beside it."""
    folder, name = os.path.split(_target(path))
    probe = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        open(probe, "xb").close()
        os.unlink(probe)
    except OSError as cause:
        raise write_error(path, cause) from cause


def _target(path):
    """Return the path behind links; FileError if it can be none, or if a device is there, which a rename would remove."""
    try:
        target = os.path.realpath(path)
        status = os.stat(target)
    except OSError:
        return target  # nothing is there, or opening the file will say what
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
    """Return the FileError for an OSError that writing `path` met."""
    folder = os.path.dirname(os.path.abspath(path))
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        why = f"no room left for {folder}; make room, or write to another disk"
    elif cause.errno == errno.EFBIG:
        why = "it would be larger than the process or the file system allows; raise the limit (ulimit -f)"
    elif cause.errno in (errno.ENOENT, errno.ENOTDIR):
        why = f"the folder {folder} does not exist; make it, or correct the path"
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = f"the folder {folder} is not writable for this user; change its permissions, or write elsewhere"
    else:
        why = f"{cause.strerror or cause}; check the disk and the path"
    return FileError(f"cannot be written: {why}", file=path)
