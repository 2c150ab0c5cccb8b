"""Open files by path: an error names the path, the fault, and similar names.

Large files are mapped, not read: weights are then views of the page cache (see :mod:`minicaffe.proto.binary`).
"""

import contextlib
import mmap
import os
import stat

from minicaffe.errors import DataError, Error, FileError, WrongTypeError, close_matches, shown
from minicaffe.memory.sizes import VARIABLE, max_blob_bytes
from minicaffe.proto import kinds

# In the error for a file that a net or solver must not access (minicaffe/common.pyx, Caffe.check_path).
REMEDY = "load it without trusted=False (--untrusted) if you trust it"
NO_DIRECTORY = "the working directory was deleted; change to one that exists (cd)"
PIECE = 1 << 20  # bytes per read of a pipe

# Bounds on what one file may describe: a few bytes can become a message or object of a hundred times their size, so the file's
# length is no bound. All published nets are far smaller; nets unrolled in time have thousands of layers.
MAX_LAYERS = 50_000
MAX_TEXT = 256 << 20  # bytes of a prototxt
LINE = 256  # bytes of a line of a list in memory, text and number; the file's length covers longer lines


def path_of(path):
    """Return a path as str; raise `WrongTypeError` for another type, such as None or a number."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise WrongTypeError(f"a path is a str or an os.PathLike, got {shown(path)} ({type(path).__name__})") from None


def working_directory():
    """Return the real path of the working directory; raise `FileError` if it was deleted."""
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        raise FileError(NO_DIRECTORY) from None


def absolute(path):
    """Return a path from the root on; raise `FileError` if it is relative to a working directory that was deleted."""
    path = path_of(path)
    return path if os.path.isabs(path) else os.path.join(working_directory(), path)


def is_below(path, folder):
    """Return whether the real path `path` is the folder with the real path `folder`, or lies in it."""
    return os.path.commonpath([folder, path]) == folder


def check_below(descriptor, path, within):
    """Raise `FileError` unless an open file lies in the folder `within`; None is anywhere.

    The path is that of the descriptor, since a link in `path` may have changed before or after it was opened.
    """
    if within is None:
        return
    try:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # a system without /proc
        place = os.path.realpath(path)
    if not is_below(place, within):
        raise FileError(f"'{path}' lies outside {within}, and the net is not trusted; {REMEDY}")


def file_error(path, cause):
    """Return the `FileError` for an OSError `cause` of opening or reading `path`.

    For a missing file the message names the first folder that is missing or the files of similar name beside it.
    """
    path = path_of(path)
    if getattr(kinds.kind_of(path), "name", "") == "prototxt":
        return FileError(f"is the text of a prototxt and not a path ({len(path)} characters); write it to a file, or use "
                         "Workspace().create_net(text, phase), which takes the text of a net", file=shown(path))
    if isinstance(cause, FileNotFoundError):
        try:
            folder, name = os.path.split(os.path.abspath(path))
        except FileNotFoundError:
            return FileError(NO_DIRECTORY, file=path)
        if not os.path.isdir(folder):
            return FileError(f"no such file: the folder {folder} does not exist; correct the path", file=path)
        hint = close_matches(name, os.listdir(folder)) if os.access(folder, os.R_OK) else ""
        where = "" if os.path.isabs(path) else f" (looked in {folder})"
        return FileError(f"no such file{where}; correct the path{hint}", file=path)
    if isinstance(cause, IsADirectoryError):
        return FileError("is a folder; name a file inside it", file=path)
    if isinstance(cause, PermissionError):
        return FileError("may not be read by this user; change its permissions (chmod u+r)", file=path)
    return FileError(f"cannot be read: {cause.strerror or cause}; check the disk and the path", file=path)


@contextlib.contextmanager
def _opened(path):
    """Yield an open file or pipe to read; FileError for a device, which may never end, and for an OSError then or in the block."""
    try:
        with open(path_of(path), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise FileError("is neither a file nor a pipe; correct the path", file=os.fspath(path))
            yield file
    except Error:
        raise
    except OSError as cause:
        raise file_error(path, cause) from cause
    except ValueError as cause:  # a NUL inside the path
        raise FileError(f"is no usable path: {cause}; correct the path", file=repr(path)) from cause


def read_bytes(path, most=None):
    """Return the content of a small file as bytes.

    Raises FileError where that fails, for a device, which may never end, and for more than `most` bytes, by default the budget.
    """
    with _opened(path) as file:
        return read_whole(file, path, most)


def read_whole(file, path, most=None):
    """Return the content of a file open for reading; raise `FileError` before more than `most` bytes, or the budget, are taken."""
    limit = max_blob_bytes() if most is None else most
    size = os.fstat(file.fileno()).st_size  # 0 of a pipe
    pieces, left = [], limit + 1 if size <= limit else 0
    while left and (piece := file.read(min(left, max(size + 1, PIECE)))):  # read(n) allocates n bytes at once
        pieces.append(piece)
        left -= len(piece)
    if left:
        return b"".join(pieces)
    remedy = "correct the path" if most is not None else \
        f"correct the path, or if the file is right, set the environment variable {VARIABLE} to more"
    raise FileError(f"has more than {limit} bytes, the most that is read of such a file ({size or 'a pipe'}); {remedy}", file=path)


def read_lines(path, wanted="a list of files"):
    """Return the lines of a text file without line ends; bytes that are not UTF-8 become surrogates, a byte order mark is removed.

    Raises FileError as `read_bytes`, or for more lines than fit into the budget; DataError, which names `wanted`, for a file that
    cannot be text (proto/kinds.py).
    """
    content = read_bytes(path)
    kinds.check(content, wanted, path)
    count = len(content) - len(content.translate(None, b"\n\r\v\f\x1c\x1d\x1e\x85"))
    limit = max_blob_bytes() // LINE
    if count > limit:
        raise FileError(f"has {count} lines, the budget is enough for {limit}; if the file is right, set the environment variable "
                        f"{VARIABLE}={count * LINE} or more", file=os.fspath(path))
    return os.fsdecode(content.removeprefix(b"\xef\xbb\xbf")).splitlines()


def parse_lines(path, lines, parse, wanted):
    """Return ``parse(line)`` of each line that is not blank; its DataError gets file and line, or says that `wanted` is needed."""
    parsed = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                parsed.append(parse(line))
            except DataError as error:
                raise kinds.with_kind(error.at(file=str(path), line=number), "\n".join(lines[:99]), wanted, ("text",))
    return parsed


def map_bytes(path):
    """Return the content of a file as a read-only buffer: a memory map, or bytes where it cannot be mapped.

    The map stays valid when the file is renamed over or deleted. Cutting the file short in place while the map is alive
    kills the process (SIGBUS); minicaffe's own snapshots are renamed into place.
    """
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size > 0:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return read_whole(file, path)  # an empty file, or a pipe


def is_hdf5(path):
    """Return whether a file starts with HDF5's signature, as all do that have no user block."""
    with _opened(path) as file:
        found = kinds.kind_of(file.read(8))
        return found is not None and found.name == "hdf5"
