"""Capsules of DLPack become arrays on a device: address, strides and type; the memory is given back once, with the last view."""

import ctypes
import gc

import numpy as np
import pytest

from minicaffe.device.dlpack import from_capsule, is_on_gpu
from minicaffe.errors import WrongTypeError


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    """DLManagedTensor."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", DELETER)]
CPU, CUDA, CUDA_HOST, MANAGED = 1, 2, 3, 13
ADDRESS = 0x7000000     # nothing reads the memory
NAME = b"dltensor"


class Exported:
    """What a library exports; `deleted` counts how often its memory was given back."""

    def __init__(self, shape=(2, 3), strides=None, kind=CUDA, code=2, bits=32, lanes=1, offset=0, name=NAME, deleter=True):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.deleted = 0
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else ctypes.POINTER(ctypes.c_int64)()
        self.delete = DELETER(self.count) if deleter else DELETER()
        self.managed = Managed(Tensor(ADDRESS, kind, 0, len(shape), code, bits, lanes, self.shape, self.strides, offset), None, self.delete)
        self.capsule = new(ctypes.addressof(self.managed), name, None)

    def count(self, managed):
        assert ctypes.addressof(managed.contents) == ctypes.addressof(self.managed)
        self.deleted += 1


@pytest.mark.parametrize(("code", "bits", "dtype"), [
    (0, 8, np.int8), (0, 16, np.int16), (0, 32, np.int32), (0, 64, np.int64), (1, 8, np.uint8), (1, 64, np.uint64), (2, 16, np.float16),
    (2, 32, np.float32), (2, 64, np.float64), (5, 64, np.complex64), (5, 128, np.complex128), (6, 8, np.bool_)])
@pytest.mark.parametrize(("shape", "strides", "offset"), [
    ((2, 3), None, 0), ((2, 3), (3, 1), 256), ((2, 3), (1, 2), 8), ((2, 3), (-3, 1), 64), ((4,), (0,), 0), ((), None, 16), ((0, 3), None, 0)])
def test_arrays(code, bits, dtype, shape, strides, offset):
    """Strides are in elements there and in bytes here."""
    exported = Exported(shape, strides, CUDA if offset else MANAGED, code, bits, offset=offset)
    array = from_capsule(exported.capsule, "x")
    size = np.dtype(dtype).itemsize
    expected = tuple(n * size for n in strides) if strides else np.zeros(shape, dtype).strides if 0 not in shape else (3 * size, size)
    assert (array.address, array.shape, array.dtype, array.strides) == (ADDRESS + offset, shape, np.dtype(dtype), expected)
    assert not array.readonly


@pytest.mark.parametrize("deleter", [True, False])
def test_the_memory_is_given_back_once(deleter):
    """After the last view. A library may have nothing to give back."""
    exported = Exported(deleter=deleter)
    array = from_capsule(exported.capsule, "x")
    view = array[1:].T
    del array
    gc.collect()
    assert exported.deleted == 0
    with pytest.raises(WrongTypeError, match="x: __dlpack__ must return a capsule 'dltensor' that was not used before"):
        from_capsule(exported.capsule, "x")
    assert exported.deleted == 0
    del view
    gc.collect()
    assert exported.deleted == deleter


@pytest.mark.parametrize(("options", "words"), [
    (dict(kind=CPU), "x: its memory is of DLPack's device type 1, which is no GPU of CUDA"),
    (dict(kind=CUDA_HOST), "device type 3"),
    (dict(code=4, bits=16), "x: elements of DLPack's type code 4, 16 bits and 1 lanes have no type in NumPy; convert the array to float32"),
    (dict(code=3), "type code 3, 32 bits"), (dict(code=200), "type code 200"), (dict(bits=4), "2, 4 bits"), (dict(bits=24), "2, 24 bits"),
    (dict(code=0, bits=4), "0, 4 bits"), (dict(code=6, bits=1), "6, 1 bits"),
    (dict(lanes=4), "32 bits and 4 lanes"), (dict(lanes=0), "0 lanes")])
def test_what_has_no_array_here_is_given_back(options, words):
    exported = Exported(**options)
    with pytest.raises(WrongTypeError, match=words) as caught:
        from_capsule(exported.capsule, "x")
    del caught
    gc.collect()
    assert exported.deleted == 1


@pytest.mark.parametrize("capsule", [Exported(name=b"used_dltensor").capsule, Exported(name=b"dltensor_versioned").capsule, None, 7])
def test_what_is_no_capsule_to_be_used(capsule):
    with pytest.raises(WrongTypeError, match="data: __dlpack__ must return a capsule 'dltensor'"):
        from_capsule(capsule, "data")


@pytest.mark.parametrize("kind", [CPU, CUDA, CUDA_HOST, MANAGED, 10, None])
@pytest.mark.parametrize("interface", [False, True])
def test_where_an_array_is(kind, interface):
    """DLPack's answer comes first: an array of the host may have an interface that raises."""
    members = {"__dlpack_device__": lambda self: (kind, 0)} if kind else {}
    members |= {"__cuda_array_interface__": {}} if interface else {}
    assert is_on_gpu(type("Array", (), members)()) == (kind in (CUDA, MANAGED) if kind else interface)
