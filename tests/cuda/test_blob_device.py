"""Blob on a device: const and mutable access by Caffe's names with copies counted, its shape there, and memory of others."""

import weakref

import numpy as np
import pytest
import strided_arrays

from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError
from minicaffe.memory import Buffer, CUDAPlace
from minicaffe.memory.registry import registry

# access -> copies where the host alone is current, where the device alone is, and whether it is to be read
ACCESS = {"cpu_": (0, 1, True), "mutable_cpu_": (0, 1, False), "": (0, 1, False), "gpu_": (1, 0, True), "mutable_gpu_": (1, 0, False)}


@pytest.mark.parametrize("part", ["data", "diff"])
@pytest.mark.parametrize("start", ["cpu", "gpu"])
def test_copies_of_each_access(start, part):
    """The first access copies what is stale; the next one, of the other side, shows whether the first was to read or to write."""
    for access, (from_host, from_device, const) in ACCESS.items():
        blob, other = Blob((5,)), "cpu_" if "gpu" in access else "gpu_"
        if start == "cpu":
            getattr(blob, part)[:] = 3
        else:
            registry.device_side(CUDAPlace(0)).zero(getattr(blob, "mutable_gpu_" + part).address, 20)
        mem, array, copied = getattr(blob, part + "_memory"), getattr(blob, access + part), from_host if start == "cpu" else from_device
        assert mem.copies == copied, access
        assert const == (array.readonly if "gpu" in access else not array.flags.writeable), access
        getattr(blob, other + part)
        assert mem.copies == (1 if const else copied + 1), access
        assert set(getattr(blob, "cpu_" + part)) == {3 if start == "cpu" else 0}, access


def ints(array):
    host = np.empty(array.shape, np.int32)
    registry.device_side(CUDAPlace(0)).copy_to_host(host.ctypes.data, array.address, host.nbytes)
    return host.tolist()


def test_values_and_shape_on_the_device():
    four = Blob((4,))
    four.diff[...] = 2
    four.mutable_gpu_diff  # noqa: B018
    assert four.diff_at(3) == four.diff_at(0) == 2 and four.diff_memory.copies == 2     # there, and back once
    blob, used = Blob((2, 3, 4)), memory.used(CUDAPlace(0))
    assert memory.used(CUDAPlace(0)) == used  # not before the first access
    array = blob.gpu_shape
    assert array.readonly and array.dtype == np.int32 and array.shape == (3,) and ints(array) == [2, 3, 4]
    with memory.record() as events:
        assert blob.gpu_shape.address == array.address
    assert not events
    blob.reshape(6, 4)
    assert ints(blob.gpu_shape) == [6, 4] and ints(array) == [2, 3, 4]
    blob.reshape()
    assert ints(blob.gpu_shape) == [] and blob.gpu_shape.shape == (0,)
    assert Blob().gpu_shape.shape == (0,)


class Foreign(strided_arrays.Foreign):
    """Device memory of another library."""

    def __init__(self, values, **more):
        self.buffer = Buffer(registry.allocator(CUDAPlace(0)), max(values.nbytes, 1), "foreign")
        registry.device_side(CUDAPlace(0)).copy_to_device(self.buffer.address, values.ctypes.data, values.nbytes)
        super().__init__(self.buffer.address, values.shape, values.dtype.str, **more)


def test_foreign_device_memory():
    blob, foreign = Blob((2, 3)), Foreign(np.arange(6, dtype=np.float32))
    blob.data[...] = 9
    address, kept = foreign.buffer.address, weakref.ref(foreign)
    blob.set_gpu_data(foreign)
    del foreign
    assert blob.gpu_data.address == address and blob.data_memory.copies == 0 and kept() is not None
    np.testing.assert_array_equal(blob.cpu_data.ravel(), np.arange(6))
    blob.reshape(1)
    assert kept() is not None
    number = Foreign(np.full(1, 7, np.float32))
    blob.set_gpu_data(number.buffer.address, number)
    del number
    assert kept() is None and blob.data_at(0) == 7
    blob.reshape(100)
    assert not blob.data.any()
    blob = Blob((0, 3))     # without elements it is nowhere
    blob.set_gpu_data(strided_arrays.Foreign(0, (0, 3)))
    assert blob.gpu_data.shape == (0, 3)


def test_foreign_memory_refused():
    blob = Blob((9, 9))
    blob.reshape(2, 3)  # in more memory than that takes
    blob.data[...] = 4
    for source, error, words in (
            (Foreign(np.zeros(6, np.float64)), ShapeError, "needs 6 writable float32 values, got 6 of float64"),
            (Foreign(np.zeros(5, np.float32)), ShapeError, "got 5 of float32"),
            (Foreign(np.zeros(6, np.float32), readonly=True), ShapeError, "got 6 read-only of float32"),
            (Foreign(np.zeros((2, 3), np.float32), strides=(4, 8)), ShapeError, "not C-contiguous"),
            (np.zeros(6, np.float32), WrongTypeError, "needs an array on the device"), (0, ConfigError, "needs a device address, got 0")):
        with pytest.raises(error, match=words):
            blob.set_gpu_data(source)
        assert (blob.cpu_data == 4).all()
