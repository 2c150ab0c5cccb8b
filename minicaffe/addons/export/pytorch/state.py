"""A state dict in the file format of `torch.save`, written without PyTorch: `torch.load` reads it, also with ``weights_only``.

The file is a zip archive without compression (PyTorch: torch/serialization.py, caffe2/serialize/inline_container.h). The record
``data.pkl`` is a pickle of an OrderedDict of tensors, each a call of ``torch._utils._rebuild_tensor_v2`` on a storage. A storage
is the record ``data/0``, ``data/1``, ...: the bytes of an array, at a multiple of 64, so that ``torch.load(mmap=True)`` works.
Names that have the same array share a storage, also after `torch.load`.
"""

import pickle
import struct
import zipfile

import numpy as np

STORAGES = {"float32": "FloatStorage", "int64": "LongStorage"}
ALIGNMENT = 64
ROOT = "archive"


def write_state(file, state):
    """Write a state dict to an open binary file.

    Parameters
    ----------
    file : binary file, open for writing at its start
    state : dict of str to ndarray, any shape
        float32 or int64, in C order.
    """
    keys, arrays = {}, []
    for array in state.values():
        if id(array) not in keys:
            keys[id(array)] = str(len(arrays))
            arrays.append(array)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", _pickle(state, keys))
        _add(archive, "byteorder", b"little")
        for key, array in enumerate(arrays):
            plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
            _add(archive, f"data/{key}", memoryview(plain.view(np.uint8)))
        _add(archive, "version", b"3\n")


def _add(archive, name, content):
    """Add a record whose bytes begin at a multiple of `ALIGNMENT`: an extra field of the zip format fills the space before."""
    info = zipfile.ZipInfo(f"{ROOT}/{name}")
    begin = archive.fp.tell() + 30 + len(info.filename) + 4     # local header, name, header of the extra field
    padding = -begin % ALIGNMENT
    info.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    archive.writestr(info, content)


def _pickle(state, keys):
    """Return the pickle of a state dict; protocol 2, as `torch.save` writes it."""
    def name(module, attribute):
        return b"c" + f"{module}\n{attribute}\n".encode()       # GLOBAL

    def text(value):
        encoded = value.encode()
        return b"X" + struct.pack("<I", len(encoded)) + encoded     # BINUNICODE

    def value(number):
        """Return the opcodes of an int or of a tuple of ints."""
        return pickle.dumps(number, 2)[2:-1]      # without PROTO and STOP

    empty = name("collections", "OrderedDict") + b")R"      # EMPTY_TUPLE, REDUCE
    opcodes = [b"\x80\x02", empty, b"("]       # PROTO 2, MARK
    for key, array in state.items():
        strides = tuple(stride // array.itemsize for stride in array.strides)
        storage = (b"(" + text("storage") + name("torch", STORAGES[array.dtype.name]) + text(keys[id(array)]) + text("cpu")
                   + value(array.size) + b"tQ")     # TUPLE, BINPERSID
        opcodes += [text(key), name("torch._utils", "_rebuild_tensor_v2"), b"(", storage, value(0), value(array.shape),
                    value(strides), b"\x89", empty, b"tR"]     # NEWFALSE: requires_grad
    return b"".join([*opcodes, b"u."])     # SETITEMS, STOP
