"""Read HDF5 files that may come from a stranger: weights, solver states, data.

h5py meets what is wrong in a file with half a dozen kinds of exceptions, and takes whatever memory a dataset's shape says.
Here all of them become errors that name the file, and sizes are compared with the budget (memory/budget.py) first.
"""

import contextlib
import math

from minicaffe.errors import Error, FileError, OutOfMemoryError
from minicaffe.memory.budget import check_bytes
from minicaffe.proto.files import file_error


@contextlib.contextmanager
def reading(path):
    """Give the h5py.File of `path`, open for reading.

    Raises
    ------
    FileError
        If it cannot be opened, is no HDF5 file, or h5py fails on what stands in it while the block runs. Errors of minicaffe
        pass through and get the name of the file.
    """
    import h5py
    path = str(path)
    try:
        with open(path, "rb"), h5py.File(path, "r") as file:
            yield file
    except Error as error:
        raise error.at(file=path)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as cause:
        raise file_error(path, cause) from cause
    # What h5py raises where links lead nowhere, types are unknown, filters fail, or names are no text.
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError) as cause:
        raise FileError(f"cannot read the HDF5 file: {cause}; check the path, or fetch the file again", file=path) from cause


def is_numbers(thing):
    """Tell whether `thing`, found in a file, is a dataset of numbers with a shape (HDF5 knows ones without)."""
    import h5py
    return isinstance(thing, h5py.Dataset) and thing.shape is not None and thing.dtype.kind in "fiu"


def read_array(dataset, field=None):
    """Return the content of a dataset for which `is_numbers` is true, as an array.

    Raises
    ------
    ShapeError
        If it, or one of the pieces in which the file stores it, exceeds the budget; names `field`.
    OutOfMemoryError
        If the system has no memory for it.
    """
    name = dataset.name
    try:
        for shape, what in ((dataset.shape, f"dataset '{name}'"), (dataset.chunks or (), f"a chunk of dataset '{name}'")):
            check_bytes(math.prod(shape) * dataset.dtype.itemsize, f"{what} of shape {list(shape)}")
    except Error as error:
        raise error.at(field=field)
    try:
        return dataset[()]
    except MemoryError as cause:
        raise OutOfMemoryError(f"no memory for dataset '{name}' of shape {list(dataset.shape)}; make the file smaller",
                               field=field) from cause
