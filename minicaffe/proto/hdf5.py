"""Read HDF5 files that are not trusted (weights, solver states, data), and write them.

h5py raises half a dozen kinds of exceptions for faults of a file, and allocates the memory of any shape. Here all exceptions
become errors that name the file, and sizes are first compared with the budget (memory/sizes.py). HDF5 also opens other files
that a file links to; `find` refuses that for files that are not trusted.
"""

import contextlib
import io
import math

from minicaffe.errors import DataError, Error, FileError, OutOfMemoryError, located
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import kinds
from minicaffe.proto.atomic import delayed_interrupts
from minicaffe.proto.files import REMEDY, check_below, file_error, path_of


@contextlib.contextmanager
def reading(path, within=None):
    """Yield the h5py.File of `path`, open for reading; it must lie in the folder `within`, if given
    (`minicaffe.proto.files.check_below`).

    Raises FileError if it cannot be opened, is no HDF5 file, or h5py fails on its content in the block. Errors of minicaffe
    get the name of the file.
    """
    import h5py
    path = str(path_of(path))
    try:
        with delayed_interrupts(), open(path, "rb"), h5py.File(path, "r") as file:
            check_below(file.id.get_vfd_handle(), path, within)
            yield file
    except Error as error:
        raise error.at(file=path)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as cause:
        raise file_error(path, cause) from cause
    # h5py's errors for dangling links, unknown types, failed filters and names that are no text.
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError) as cause:
        why = getattr(cause, "strerror", None) or cause     # an OSError's own text repeats the path
        error = FileError(f"cannot read the HDF5 file: {why}; check the path, or fetch the file again", file=path)
        head = kinds.head_of(path) if isinstance(cause, OSError) else None
        raise (error if head is None else kinds.with_kind(error, head, "an HDF5 file", ("hdf5",))) from cause


@contextlib.contextmanager
def hdf5_in_memory(file):
    """Yield an h5py.File in memory, and write its bytes to the open binary `file` at the end of the block.

    So a full disk is an error of `file`, which `replacing` (atomic.py) discards; the HDF5 library does not recover from it.
    """
    import h5py
    memory = io.BytesIO()
    with delayed_interrupts():
        with h5py.File(memory, "w") as hdf5:
            yield hdf5
        file.write(memory.getbuffer())


def find(group, name, follow=True):
    """Return the object of `name`, which may be a path, in an open file or group; None if there is none.

    Unless `follow`, raises DataError if the object is in another file: behind an external link, or a dataset with external storage
    or a virtual one. Files of nets that are not trusted must not link there.
    """
    if not follow and _leaves(group, name):
        path = f"{group.name}/{name}".lstrip("/")
        raise DataError(f"'{path}' lies in another file, and the net is not trusted; {REMEDY}")
    return group.get(name)


def _leaves(group, name):
    """Return whether a name, a soft link on its path, or the storage of its dataset leads into another file."""
    import h5py
    top, thing, parts, links = group["/"], group, name.split("/"), 0
    if name.startswith("/"):
        thing = top
    while parts:
        part, *parts = parts
        if part in ("", "."):
            continue
        link = thing.get(part, getlink=True) if isinstance(thing, h5py.Group) else None
        if link is None:
            return False  # there is no such thing
        if isinstance(link, h5py.ExternalLink):
            return True
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > 16:  # as many as HDF5 itself follows
                return True
            thing = top if link.path.startswith("/") else thing
            parts = link.path.split("/") + parts
        else:
            thing = thing[part]
    return isinstance(thing, h5py.Dataset) and bool(thing.external or thing.is_virtual)


def is_numbers(thing):
    """Return whether `thing`, found in a file, is a dataset of numbers with a shape (HDF5 also has datasets without one)."""
    import h5py
    return isinstance(thing, h5py.Dataset) and thing.shape is not None and thing.dtype.kind in "fiu"


def read_array(dataset, field=None):
    """Return the content of a dataset for which `is_numbers` is true, as an array.

    Raises ShapeError if it, or one of the pieces in which the file stores it, exceeds the budget; names `field`; OutOfMemoryError
    if the system has no memory for it.
    """
    name = dataset.name
    with located(field=field):
        for shape, what in ((dataset.shape, f"dataset '{name}'"), (dataset.chunks or (), f"a chunk of dataset '{name}'")):
            check_bytes(math.prod(shape) * dataset.dtype.itemsize, f"{what} of shape {list(shape)}")
    try:
        return dataset[()]
    except MemoryError as cause:
        raise OutOfMemoryError(f"no memory for dataset '{name}' of shape {list(dataset.shape)}; make the file smaller",
                               field=field) from cause
