"""Tensor on a device: copies counted, memory of others, and values that are current there alone."""

import gc

import numpy as np
import pytest
from processes import run_gpu
from strided_arrays import Foreign

from minicaffe import Tensor, cuda, memory
from minicaffe.blob import Blob
from minicaffe.cuda.device import computing
from minicaffe.errors import ConfigError, DataError, ShapeError, WrongTypeError
from minicaffe.memory import CUDAPlace, PinnedPlace, SyncedHead

f4, i4 = np.float32, np.int32

ADD = cuda.elementwise("T x, T y", "T z", "z = x + y", "tensor_add")


def numbered(count, dtype=f4):
    """A tensor of 0, 1, 2, ..., current on the device alone."""
    tensor = Tensor((count,), dtype)
    tensor.mutable_data(dtype)[...] = range(count)
    tensor.mutable_gpu_data(dtype)
    assert tensor.memory.head == SyncedHead.HEAD_AT_GPU
    return tensor


def test_copies_on_reading():
    x, y, z = Tensor((5,), f4), Tensor((5,), f4), Tensor((5,))
    x.mutable_data(f4)[...] = 1
    y.mutable_data(f4)[...] = 2
    assert x.memory.copies == 0
    ADD(x.gpu_data(f4), y.gpu_data(f4), z.mutable_gpu_data(f4))
    assert (x.memory.copies, x.memory.head, z.memory.copies) == (1, SyncedHead.SYNCED, 0)
    assert z.data(f4).tolist() == [3] * 5 and z.memory.copies == 1 and z.memory.head == SyncedHead.SYNCED
    x.data(f4)
    z.gpu_data(f4)
    assert (x.memory.copies, z.memory.copies) == (1, 1)
    z.mutable_data(f4)
    z.gpu_data(f4)
    assert z.memory.copies == 2 and z.gpu_data(f4).shape == (5,) and z.gpu_data(f4).readonly
    assert z.raw_data().place == PinnedPlace()
    with pytest.raises(WrongTypeError, match="output z is read-only"):
        ADD(x.gpu_data(f4), 1, z.gpu_data(f4))


def test_types_and_growth_on_the_device():
    tensor = Tensor((2,))
    with pytest.raises(DataError):
        tensor.gpu_data(f4)
    block = tensor.mutable_gpu_data(f4).address
    with pytest.raises(WrongTypeError, match="was asked for int32"):
        tensor.gpu_data(i4)
    assert tensor.mutable_gpu_data(i4).address == block and tensor.is_type(i4)
    tensor = numbered(3)
    before = tensor.memory
    tensor.extend(2, 100)
    assert before.copies == 1 and tensor.memory.head == SyncedHead.HEAD_AT_GPU  # by no way of the host
    tensor.reserve(100)
    assert tensor.data(f4).tolist()[:3] == [0, 1, 2] and tensor.capacity_nbytes == 400


def test_copy_from_the_device():
    source, target = numbered(4), Tensor()
    target.copy_from(source)
    assert source.memory.copies == 1 and target.memory.head == SyncedHead.HEAD_AT_GPU
    assert target.data(f4).tolist() == [0, 1, 2, 3]
    blob = Blob((2, 2))
    blob.data[...] = 7
    blob.mutable_gpu_data  # noqa: B018
    for each in blob.gpu_data, blob, target:
        target.copy_from(each.gpu_data(f4) if each is target else each)
        assert target.shape == (2, 2) and target.data(f4).tolist() == [[7, 7], [7, 7]]
    assert blob.data_memory.head == SyncedHead.HEAD_AT_GPU
    with pytest.raises(ShapeError, match="not C-contiguous"):
        target.copy_from(blob.gpu_data.T)
    target.copy_from(np.arange(3, dtype=i4))
    assert target.gpu_data(i4).shape == (3,) and target.data(i4).tolist() == [0, 1, 2]


def test_copy_from_own_part():
    for part in slice(1, None), slice(0, 5), slice(7, None):
        tensor = numbered(10)
        tensor.copy_from(tensor.mutable_gpu_data(f4)[part])
        assert tensor.memory.head == SyncedHead.HEAD_AT_GPU and tensor.data(f4).tolist() == list(range(10)[part])


@pytest.mark.parametrize("source", [lambda: np.arange(6, dtype=f4), lambda: np.arange(12, dtype=f4)[::2], lambda: np.arange(6, dtype=">i4"),
                                    lambda: numbered(6), lambda: numbered(6).gpu_data(f4), lambda: np.zeros((0, 2), f4)])
def test_copies_on_a_stream(source):
    """The source is dropped at once; computing that waits for the stream sees its values."""
    values, tensor, out, stream = source(), Tensor(), Tensor(), cuda.Stream(cuda.current())
    tensor.copy_from(values, stream)
    want = np.asarray(values) if isinstance(values, np.ndarray) else np.arange(6, dtype=f4)
    del values
    done = cuda.Event(cuda.current())
    done.record(stream)
    computing(cuda.current()).wait(done)
    if want.size:
        assert tensor.memory.head == SyncedHead.HEAD_AT_GPU
    out.copy_from(tensor)
    np.testing.assert_array_equal(out.data(out.dtype), want)
    assert out.is_type(want.dtype.newbyteorder("="))


def test_memory_of_another_gpu(only_sim, place):
    run_gpu("""
    from minicaffe import Tensor
    from minicaffe.memory import CUDAPlace
    f4, to = np.float32, minicaffe.set_device
    tensor, blob, other = Tensor((4,), f4, "t"), Blob((4,)), Tensor((4,))
    tensor.mutable_data(f4)[:] = blob.data[:] = range(4)
    lent, _ = tensor.mutable_gpu_data(f4), blob.mutable_gpu_data
    to(1)
    for call in (lambda: tensor.gpu_data(f4), lambda: tensor.mutable_gpu_data(f4), lambda: other.share_external(lent), lambda: Blob((4,)).set_gpu_data(lent)):
        refused(errors.WrongDeviceError, call, "GPU 0")
    assert other.dtype is None
    for source in lent, blob, tensor:       # by no way of the host
        copy = Tensor()
        copy.copy_from(source)
        assert copy.memory.place == CUDAPlace(1) and tensor.memory.copies == 1
        assert copy.data(f4).tolist() == [0, 1, 2, 3]
    copy.extend(2)
    assert copy.data(f4)[:4].tolist() == [0, 1, 2, 3] and copy.memory.place == CUDAPlace(1)
    to(0)
    other.share_external(lent)
    assert other.data(f4).tolist() == [0, 1, 2, 3]
    """, place, "devices=2,race=1")


def test_external_device_memory():
    blob, tensor = Blob((2, 3)), Tensor((6,))
    blob.data[...] = 5
    tensor.share_external(blob.mutable_gpu_data)
    ADD(tensor.gpu_data(f4), 1, tensor.mutable_gpu_data(f4))
    assert tensor.gpu_data(f4).address == blob.gpu_data.address and (blob.cpu_data == 6).all() and tensor.data(f4).tolist() == [6] * 6
    used = memory.used(CUDAPlace(0))
    del blob
    gc.collect()
    assert memory.used(CUDAPlace(0)) == used  # the tensor keeps it
    tensor.mutable_gpu_data(i4)  # in memory of its own
    assert tensor.memory.own_gpu_data
    with pytest.raises(ConfigError, match="may be written"):
        tensor.share_external(Blob((6,)).gpu_data)
    with pytest.raises(ShapeError, match="takes 6 elements, got 5"):
        tensor.share_external(Blob((5,)).mutable_gpu_data)
    assert tensor.is_type(i4)
    for nowhere in 0, None:
        empty = Tensor((3, 0))
        empty.share_external(Foreign(nowhere, (0, 3), "<i4"))
        assert empty.is_type(i4) and empty.shape == (3, 0) and empty.gpu_data(i4).shape == (3, 0) and empty.data(i4).size == 0
