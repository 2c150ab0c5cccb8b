"""Copy between any two places with one call (Caffe2's ``Context::CopyBytes`` and ``CopyItems``).

Each side of a copy is an `End`: a Buffer, a NumPy array, an array on a GPU, or a block of `memory.alloc` by place and address.
The device sides of the places make the copy (memory/synced.pyx). Lists and arrays of objects are copied item by item.
"""

import copy as python_copy
import ctypes
from collections import namedtuple
from contextlib import suppress
from numbers import Integral

import numpy as np

from minicaffe.device.strided import device_array
from minicaffe.errors import ConfigError, PointerError, ShapeError, WrongTypeError, shown
from minicaffe.memory.buffer import Buffer, wrap
from minicaffe.memory.place import CPUPlace, CUDAPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.synced import device_lock

End = namedtuple("End", "block dtype readonly")  # block: a Buffer, its own or around foreign memory; dtype: None for raw bytes


def copy(dst, src, nbytes=None, stream=None):
    """Copy bytes, or objects, from `src` to `dst`.

    Parameters
    ----------
    dst, src : Buffer, array or (place, address)
        An array is any object with the buffer protocol or ``__cuda_array_interface__``, contiguous in C order. An address must
        lie in a live block of ``memory.alloc(place, n)``; the end is the rest of that block. Two lists, or two arrays of dtype
        object, are copied item by item, each by ``copy.copy``.
    nbytes : int, optional
        Number of bytes to copy, from the start; by default all, and then both ends must have the same size.
    stream : minicaffe.cuda.Stream, optional
        Queue the copy there, after the work now queued on its GPU's computing stream, and return. Dropping either end is then
        safe; wait for the stream before you write to an end or read `dst`. Without `stream` the copy is complete when the call
        returns, except from GPU to GPU: that copy is ordered with what the GPUs compute.

    Raises
    ------
    ConfigError
        If `dst` is read-only; the ends overlap on a GPU; `stream` is given and no end is on a GPU, or the ends are objects. On
        the host ends may overlap: `dst` gets what `src` held.
    ShapeError
        If the sizes differ, an end has fewer than `nbytes` bytes, or an array is not contiguous.
    WrongTypeError
        If an end has another type, or both are arrays of different dtypes. A Buffer or an address has no dtype.
    PointerError
        If an address lies in no such block.
    """
    if _is_objects(dst) or _is_objects(src):
        _copy_items(dst, src, nbytes, stream)
        return
    target, source = _end(dst, "dst"), _end(src, "src")
    nbytes = _checked_size(target, source, nbytes)
    to, from_ = target.block, source.block
    on_host = to.place.on_host and from_.place.on_host
    if stream is not None and on_host:
        raise ConfigError("memory.copy: no end is on a GPU, so there is nothing to put on a stream; leave stream out")
    if nbytes == 0:
        return
    if on_host:
        ctypes.memmove(to.address, from_.address, nbytes)
        return
    if to.place == from_.place and abs(to.address - from_.address) < nbytes:
        raise ConfigError(f"memory.copy: {nbytes} bytes at {from_.address:#x} and at {to.address:#x} of {to.place} overlap; copy "
                          "them via another block")
    side = registry.device_side(from_.place if to.place.on_host else to.place)
    with device_lock:  # so that the copy is not captured by another thread's graph
        if stream is not None:
            side.push(to, from_, nbytes, stream, True)
        elif from_.place.on_host:
            side.copy_to_device(to.address, from_.address, nbytes)
        elif to.place.on_host:
            side.copy_to_host(to.address, from_.address, nbytes)
        else:
            order = registry.stream_order(to.place)
            for block in (to, from_) if order else ():      # they may be allocated for another stream
                with suppress(ConfigError):     # from an allocator without streams: all its work is in order
                    block.record_stream(order.current())
            if to.place == from_.place:
                side.copy_within(to.address, from_.address, nbytes)
            else:
                side.copy_from_peer(to, from_, nbytes, registry.device_side(from_.place))


def _checked_size(target, source, nbytes):
    """Check that two `End`s match; return the number of bytes to copy, as an int, for the argument `nbytes` of `copy`."""
    if target.readonly:
        raise ConfigError("memory.copy: dst is read-only; take mutable access to it, such as mutable_cpu_data()")
    if target.dtype is not None and source.dtype is not None and target.dtype != source.dtype:
        raise WrongTypeError(f"memory.copy: dst is {target.dtype}, src is {source.dtype}; convert it: src.astype(dst.dtype)")
    have = target.block.nbytes, source.block.nbytes
    if nbytes is None:
        if have[0] != have[1]:
            raise ShapeError(f"memory.copy: dst has {have[0]} bytes, src has {have[1]}; say how many with nbytes=")
        return have[0]
    if not isinstance(nbytes, Integral):
        raise WrongTypeError(f"memory.copy: nbytes must be an int, got {shown(nbytes)}")
    if not 0 <= nbytes <= min(have):
        raise ShapeError(f"memory.copy: nbytes must be 0 to what both ends have, {min(have)}, got {nbytes}")
    return int(nbytes)


def _end(value, name):
    """Return `value`, an argument of `copy` called `name`, as an `End`; errors as `copy`."""
    if isinstance(value, Buffer):
        return End(value, None, value.readonly)
    if isinstance(value, tuple) and len(value) == 2 and hasattr(value[0], "on_host"):
        return End(_block_rest_at(*value, name), None, False)
    if getattr(value, "__cuda_array_interface__", None) is not None:
        return _device_end(value, name)
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError) as error:
        raise WrongTypeError(f"memory.copy: {name} must be a Buffer, an array or (place, address), got {type(value).__name__} "
                             f"({error})") from None
    if array.dtype.hasobject:
        raise WrongTypeError(f"memory.copy: {name} is an array of {array.dtype}, which has references to objects; copy it in NumPy")
    if not array.flags.c_contiguous:
        raise ShapeError(f"memory.copy: {name} is not C-contiguous; make it so with numpy.ascontiguousarray")
    typed = array.dtype if isinstance(value, np.ndarray) else None
    return End(wrap(array.ctypes.data, array.nbytes, CPUPlace(), value), typed, not array.flags.writeable)


def _device_end(value, name):
    """Return an array on a GPU, of any library, as an `End`; `name` as in `_end`."""
    array = packed_array(value, f"memory.copy: {name}")
    return End(wrap(array.address, array.size * array.dtype.itemsize, _place_of(array), value), array.dtype, array.readonly)


def _place_of(array):
    """Return the CUDAPlace of a DeviceArray; that of the present GPU if it is empty or its GPU is unknown."""
    gpu = registry.device_side(registry.device_place).device_of(array.address) if array.size else -1
    return registry.device_place if gpu < 0 else CUDAPlace(gpu)


def _block_rest_at(place, address, name):
    """Return a Buffer of the bytes from `address` to the end of the block of memory.alloc around it."""
    if not isinstance(address, Integral):
        raise WrongTypeError(f"memory.copy: {name} needs an address, as memory.alloc gave it, got {shown(address)}")
    block = registry.block_at(place, address)
    if block is None:
        raise PointerError(f"memory.copy: {name}: {address:#x} lies in no live block of {place} that memory.alloc gave")
    return block if block.address == address else wrap(address, block.address + block.nbytes - address, place, block)


def _is_objects(value):
    """Return whether a value is a list, or an array of Python objects, which `_copy_items` copies."""
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype == object)


def _copy_items(dst, src, nbytes, stream):
    """Copy between lists or arrays of objects (Caffe2's CopyItems); all is checked before the first item is written."""
    if not (_is_objects(dst) and _is_objects(src)):
        raise WrongTypeError(f"memory.copy: objects are copied to objects only, got {type(dst).__name__} and {type(src).__name__}: "
                             "give two lists or two arrays of dtype object")
    if nbytes is not None or stream is not None:
        raise ConfigError("memory.copy: objects have neither nbytes nor a stream; leave both out")
    if isinstance(dst, np.ndarray) and not dst.flags.writeable:
        raise ConfigError("memory.copy: dst is read-only; give an array that may be written")
    items = [python_copy.copy(item) for item in (src.flat if isinstance(src, np.ndarray) else src)]
    count = dst.size if isinstance(dst, np.ndarray) else len(dst)
    if count != len(items):
        raise ShapeError(f"memory.copy: dst has {count} items, src has {len(items)}; they must have the same number")
    if isinstance(dst, list):
        dst[:] = items
        return
    target = dst.reshape(1) if dst.ndim == 0 else dst
    for index, item in zip(np.ndindex(target.shape), items):
        target[index] = item


def packed_array(source, name):
    """Return an object with a ``__cuda_array_interface__`` as a DeviceArray without gaps; the host waits for its stream.

    Raises
    ------
    WrongTypeError, ShapeError
        If it has no such attribute, or is not C-contiguous. Names `name`.
    """
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is None:
        raise WrongTypeError(f"{name} needs an array on the device (__cuda_array_interface__), got {type(source).__name__}")
    array = device_array(source, name)
    if not array.is_packed:
        raise ShapeError(f"{name}: an array of shape {array.shape} with strides {array.strides} is not C-contiguous; copy it")
    if array.size and interface.get("stream") not in (None, 1):    # 1: the legacy default stream, in order with ours
        order = registry.stream_order(_place_of(array))
        order.wait(order.record(interface["stream"]))
    return array
