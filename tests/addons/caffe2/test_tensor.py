"""Tensor: sizes, types that change in place, memory that is kept, grown, shared and lent, and what is refused."""

import gc
import weakref
from copy import copy

import numpy as np
import pytest

import minicaffe
from minicaffe import Tensor
from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError, WrongTypeError
from minicaffe.memory.states import SyncedHead

f4, f8, i4 = np.float32, np.float64, np.int32


def full(shape, value, dtype=f4):
    tensor = Tensor(shape, dtype)
    tensor.mutable_data(dtype)[...] = value
    return tensor


def values(tensor):
    return tensor.data(tensor.dtype).tolist()


# ---- sizes

def test_shapes_and_sizes():
    tensor = Tensor()
    assert (tensor.size, tensor.shape, tensor.ndim, tensor.dtype, tensor.nbytes, tensor.capacity_nbytes) == (-1, (), 0, None, 0, 0)
    with pytest.raises(ShapeError, match="call resize first"):
        tensor.mutable_data(f4)
    with pytest.raises(DataError, match="no elements yet"):
        tensor.data(f4)
    tensor.resize()
    assert (tensor.size, tensor.shape) == (1, ())
    tensor.mutable_data(f4)[...] = 3
    assert tensor.data(f4) == 3 and repr(tensor) == "<Tensor '' (1) float32>"
    tensor = Tensor((2, 3, 4), i4, "x")
    assert (tensor.size, tensor.nbytes, tensor.itemsize, tensor.ndim) == (24, 96, 4, 3)
    assert (tensor.dim(1), tensor.dim(-1), tensor.canonical_axis(-3)) == (3, 4, 0)
    assert [tensor.size_from_dim(k) for k in range(4)] == [24, 12, 4, 1] and [tensor.size_to_dim(k) for k in range(4)] == [1, 2, 6, 24]
    for wrong in (lambda: tensor.dim(3), lambda: tensor.canonical_axis(-4), lambda: tensor.size_from_dim(4),
                  lambda: tensor.size_to_dim(-1), lambda: Tensor(()).dim(0)):
        with pytest.raises(ShapeError):
            wrong()
    tensor.reshape(4, 6)
    assert tensor.shape == (4, 6)
    with pytest.raises(ShapeError, match=r"\[5\], of 5 elements"):
        tensor.reshape([5])
    with pytest.raises(WrongTypeError, match="copy_from"):
        copy(tensor)


def test_tensor_of_a_workspace():
    workspace, other = minicaffe.Workspace(), minicaffe.Workspace()
    tensor = workspace.create_slot("t").get_mutable(Tensor)
    tensor.resize(2)
    tensor.mutable_data(f4)[...] = 3
    assert workspace.blob("t", Tensor) is tensor and np.asarray(tensor).tolist() == [3, 3] and tensor.memory.head == SyncedHead.HEAD_AT_CPU
    other.deserialize(workspace.serialize("t"))
    assert other.slot("t").is_type(Tensor) and other.blob("t").is_type(f4) and values(other.blob("t")) == [3, 3]


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (2**31,), (2**20, 2**20), (1,) * 33, (1.5,), "ab", (0, 2**31 - 1, 2**31 - 1, 2**31 - 1)])
def test_impossible_shapes(shape):
    tensor = full((2, 3), 5)
    for change in (tensor.resize, tensor.reserve, tensor.reshape):
        with pytest.raises(ShapeError):
            change(shape)
    assert values(tensor) == [[5, 5, 5], [5, 5, 5]]


def test_budget_and_growth(monkeypatch):
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "1000")
    tensor = full((100,), 1)
    for change in (lambda: tensor.mutable_data(np.complex128), lambda: tensor.extend(200), lambda: tensor.reserve(300),
                   lambda: tensor.extend(1, 10**6), lambda: tensor.extend(2**31), lambda: tensor.copy_from(np.zeros(300, f4))):
        with pytest.raises(ShapeError):
            change()
        assert tensor.is_type(f4) and values(tensor) == [1] * 100
    monkeypatch.setattr("minicaffe.addons.caffe2.tensor.MAX_COUNT", 100)
    owner, tensor = shared()
    tensor.extend(1, 10**12)
    assert tensor.shape == (3, 2) and tensor.capacity_nbytes == 4 * 100 and tensor.data(f4)[:2].tolist() == [[1, 1], [1, 1]]
    assert tensor.memory is not owner.memory


# ---- memory and types

def test_memory_between_types_and_sizes():
    tensor = full((4, 6), 7)
    memory = tensor.memory
    tensor.resize(2, 6)
    assert tensor.memory is memory and values(tensor) == [[7] * 6] * 2
    tensor.mutable_data(f8)  # 12 doubles fit
    assert tensor.memory is memory and tensor.is_type(f8) and tensor.capacity_nbytes == tensor.nbytes == 96
    tensor.resize(13)
    assert tensor.memory is None and tensor.dtype == f8 and tensor.capacity_nbytes == 0
    with pytest.raises(DataError, match="no elements yet"):
        tensor.data(f8)
    assert tensor.mutable_data(f8).shape == (13,)
    tensor = full((3,), 1)
    assert tensor.mutable_data(np.uint32).tolist() == [0x3F800000] * 3
    raw = tensor.raw_mutable_data(np.uint8)
    assert raw.nbytes == 12 and tensor.size == 3 and tensor.is_type(np.uint8) and not raw.readonly and tensor.raw_data().readonly
    assert tensor.raw_mutable_data().address == raw.address == tensor.raw_data().address
    for call, error, words in ((Tensor((2,)).raw_data, DataError, "has no elements yet"),
                               (Tensor((2,)).raw_mutable_data, WrongTypeError, r"raw_mutable_data: .* has no type yet, .* call mutable_data\(dtype\) first")):
        with pytest.raises(error, match=words):
            call()
    tensor.free_memory()
    assert (tensor.shape, tensor.dtype, tensor.capacity_nbytes) == ((3,), np.uint8, 0)
    with pytest.raises(DataError):
        tensor.data(np.uint8)
    assert tensor.mutable_data(f4).tolist() == [0, 0, 0]
    tensor.reset()
    assert (tensor.size, tensor.dtype) == (-1, None)


def test_typed_access():
    tensor = full((2,), 1)
    for other in (f8, "f8", i4, str, object, list, np.dtype(">f4")):
        with pytest.raises(WrongTypeError):
            tensor.data(other)
        assert not tensor.is_type(other)
    assert tensor.is_type("float32") and tensor.is_type(np.dtype(f4)) and not tensor.is_type(float) and not tensor.is_type(None)
    view = tensor.data(f4)
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    point = np.dtype([("x", f4), ("y", i4)])
    tensor = Tensor((2,), point)
    tensor.mutable_data(point)["y"] = 3
    assert tensor.data(point).tolist() == [(0, 3), (0, 3)] and tensor.itemsize == 8
    assert Tensor((2,), float).is_type(f8) and Tensor((2,), int).is_type(np.int64) and Tensor((1,), bool).data(bool).dtype == bool


@pytest.mark.parametrize("dtype", [">f4" if np.dtype("<f4").isnative else "<f4", "S0", np.str_, (f4, (3,)), None, 5, "nonsense", str, list, object,
                                   [("a", object)], [("a", ">i4" if np.dtype("<i4").isnative else "<i4")]])
def test_types_that_elements_cannot_have(dtype):
    tensor = full((2,), 1)
    for access in (tensor.mutable_data, tensor.data, tensor.mutable_gpu_data, lambda t: Tensor((1,), t or "nonsense")):
        with pytest.raises(WrongTypeError):
            access(dtype)
    assert values(tensor) == [1, 1]


def test_views_and_freed_memory():
    tensor = full((3,), 4)
    view = tensor.mutable_data(f4)
    tensor.mutable_data(i4)[...] = 5
    assert view.view(i4).tolist() == [5, 5, 5]      # the same bytes, as a pointer would show them
    view[...] = 4
    tensor.resize(1000)
    tensor.mutable_data(f8)[...] = 1
    tensor.reset()
    del tensor
    gc.collect()
    assert view.tolist() == [4, 4, 4]
    tensor = Tensor()
    for change in lambda: tensor.resize(2), lambda: (tensor.mutable_data(f4), tensor.free_memory()):
        assert not tensor.shares_data
        with pytest.raises(DataError, match="has no elements yet"):
            np.asarray(tensor)
        change()
    with pytest.raises(WrongTypeError, match=r"asked for float64; mutable_data\(float64\)"):
        tensor.data(f8)


def test_tensors_without_elements():
    tensor = Tensor((0, 3))
    assert tensor.mutable_data(f4).shape == (0, 3) and tensor.data(f4).size == tensor.nbytes == 0
    tensor = full((3,), 2)
    tensor.resize(0)
    assert tensor.data(f4).shape == (0,) and tensor.capacity_nbytes == 12
    tensor.resize(3)
    assert values(tensor) == [2, 2, 2]
    tensor.extend(0)
    tensor.copy_from(np.zeros((2, 0), f8))
    assert tensor.shape == (2, 0) and tensor.is_type(f8)
    tensor.share_external(np.zeros(0, i4))
    assert tensor.is_type(i4)


@pytest.mark.parametrize("kind", [Tensor, Blob])
def test_array_protocol(kind):
    made = kind((2,), f4) if kind is Tensor else Blob((2,))
    for copied in None, True:
        made.__array__(copy=copied)[...] = 9
        assert not made.__array__().any()
    view = made.__array__(copy=False)
    assert not view.flags.writeable
    (made.mutable_data(f4) if kind is Tensor else made.data)[...] = 5
    assert view.tolist() == [5, 5] and made.__array__(np.dtype(f8)).dtype == f8


# ---- growing

def test_extend_and_its_limits():
    tensor = full((2, 3), 4)
    tensor.extend(1, 50)
    assert tensor.capacity_nbytes == 36 and tensor.data(f4)[:2].tolist() == [[4] * 3] * 2
    tensor.extend(2, 100)
    memory = tensor.memory
    assert tensor.shape == (5, 3) and tensor.capacity_nbytes == 6 * 3 * 4 and (tensor.data(f4)[:2] == 4).all()
    tensor.extend(1)
    assert tensor.memory is memory and tensor.shape == (6, 3)
    tensor.extend(1)
    assert tensor.capacity_nbytes == tensor.nbytes == 7 * 3 * 4
    before = tensor.memory
    tensor.extend(0, 1000)
    assert tensor.memory is before and tensor.shape == (7, 3)
    tensor = Tensor((2,))
    tensor.extend(3)
    assert tensor.shape == (5,) and tensor.capacity_nbytes == 0
    tensor.mutable_data(f4)
    for wrong in ((-1,), (1.5,), (1, -5), (1, 0.5)):
        with pytest.raises(ShapeError):
            tensor.extend(*wrong)
    for call in Tensor().extend, Tensor(()).extend, Tensor().shrink, Tensor(()).shrink:
        with pytest.raises(ShapeError, match="axis 0"):
            call(1)


def test_shrink_and_reserve():
    tensor = full((4, 2), 3)
    memory = tensor.memory
    tensor.shrink(1)
    assert tensor.shape == (1, 2) and tensor.memory is memory
    for wrong in (2, -1):
        with pytest.raises(ShapeError):
            tensor.shrink(wrong)
    tensor.reserve(100, 2)
    memory = tensor.memory
    assert tensor.shape == (1, 2) and values(tensor) == [[3, 3]] and tensor.capacity_nbytes == 800
    tensor.extend(99)
    assert tensor.memory is memory and tensor.data(f4)[0].tolist() == [3, 3]
    for change, count in (tensor.reserve, 3), (tensor.reserve, 200), (tensor.shrink, 100):
        change(count)
        assert tensor.memory is memory and tensor.shape == (100, 2)
    for wrong, error in ((Tensor(), ShapeError), (Tensor((1,)), WrongTypeError)):
        with pytest.raises(error):
            wrong.reserve(4)


# ---- sharing

def shared(count=4):
    owner, other = full((count,), 1), Tensor((2, count // 2))
    other.share_data(owner)
    return owner, other


def test_shared_data_is_seen_by_both():
    owner, other = shared()
    other.mutable_data(f4)[0, 1] = 9
    assert values(owner) == [1, 9, 1, 1] and owner.shares_data and other.shares_data
    del other
    gc.collect()
    assert not owner.shares_data
    for tensor, source, error in ((Tensor((3,)), owner, ShapeError), (Tensor(), owner, ShapeError), (Tensor((4,)), Tensor((4,)), DataError),
                                  (owner, np.zeros(4), WrongTypeError)):
        with pytest.raises(error, match="no elements yet" if error is DataError else None):
            tensor.share_data(source)
    owner.share_data(owner)
    assert values(owner) == [1, 9, 1, 1]


@pytest.mark.parametrize(("change", "shape"), [
    (lambda t, other: t.extend(0), (2, 2)), (lambda t, other: t.shrink(2), (2, 2)), (lambda t, other: t.shrink(1), (1, 2)),
    (lambda t, other: t.resize(2, 1), (2, 1)), (lambda t, other: t.reserve(1), (2, 2)), (lambda t, other: t.copy_from(other), (4,)),
    (lambda t, other: t.mutable_data(t.dtype), (2, 2)), (lambda t, other: t.reshape(4), (4,))])
def test_changes_that_keep_sharing(change, shape):
    """A copy from a tensor of the same memory takes its shape alone."""
    owner, other = Tensor((4,), f4), Tensor((2, 2))
    other.share_data(owner)
    change(other, owner)
    assert owner.shares_data and other.shares_data and other.shape == shape and owner.shape == (4,)
    other.mutable_data(f4).reshape(-1)[1] = 7
    assert owner.data(f4)[1] == 7


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("grow", [lambda t: t.resize(8), lambda t: t.extend(t.dim(0), 100), lambda t: t.reserve(64),
                                  lambda t: t.mutable_data(i4), lambda t: t.copy_from(np.arange(9.0)),
                                  lambda t: t.copy_from(np.full(4, 7, i4)), lambda t: (t.shrink(1), t.resize(4))])
def test_growth_ends_sharing(grow, who):
    tensors = Tensor((4,), f4), Tensor((4,))
    tensors[0].reserve(16)
    tensors[0].mutable_data(f4)[...] = 1
    tensors[1].share_data(tensors[0])
    grower, stays = tensors[who], tensors[1 - who]
    grow(grower)
    if grower.dtype == f4:
        grower.mutable_data(f4)[...] = 5
    assert values(stays) == [1] * 4 and not stays.shares_data


def test_external_memory():
    lent, tensor = np.arange(6, dtype=i4), Tensor((2, 3))
    tensor.share_external(lent)
    tensor.mutable_data(i4)[0, 0] = 50
    assert lent[0] == 50 and tensor.is_type(i4)
    gone = weakref.ref(array := np.zeros(6, f4).view(np.ndarray))
    tensor.share_external(array)
    del array
    assert gone() is not None
    tensor.mutable_data(f8)[...] = 3  # not in the memory of another owner
    gc.collect()
    assert gone() is None
    for change in (lambda: tensor.mutable_data(f4), lambda: tensor.copy_from(np.full((2, 3), 9, f4)), lambda: tensor.raw_mutable_data(f4)):
        tensor.share_external(lent)
        change()    # of another type, though it would fit
        tensor.mutable_data(f4)[...] = 9
        assert lent.tolist() == [50, 1, 2, 3, 4, 5]
    tensor.resize(4)
    tensor.share_external(bytearray(4))
    assert tensor.is_type(np.uint8)
    days = np.array(["2020-01-01", "2021-01-01", "2022-01-01", "2023-01-01"], "M8[D]")  # which NumPy exports as no buffer
    tensor.share_external(days)
    tensor.mutable_data("M8[D]")[0] += np.timedelta64(1, "D")
    assert days[0] == np.datetime64("2020-01-02") and tensor.is_type("M8[D]")


@pytest.mark.parametrize(("source", "error"), [
    (np.zeros(5, f4), ShapeError), (np.zeros((4, 8), f4)[:, ::2], ShapeError), (np.zeros(8, f4)[::2], ConfigError),
    (np.broadcast_to(f4(1), 4), ConfigError), (bytes(4), ConfigError), ([1, 2, 3, 4], WrongTypeError), (None, WrongTypeError),
    (np.array([None] * 4), WrongTypeError), (np.zeros(4, ">f4" if np.dtype("<f4").isnative else "<f4"), WrongTypeError)])
def test_external_memory_that_does_not_fit(source, error):
    tensor = full((4,), 1)
    with pytest.raises(error):
        tensor.share_external(source)
    assert values(tensor) == [1] * 4
    with pytest.raises(ShapeError, match="call resize first"):
        Tensor().share_external(np.zeros(4, f4))


# ---- copies

@pytest.mark.parametrize("source", [np.arange(6).reshape(2, 3), np.arange(12.0)[::2], np.array(5, ">i2"), np.array([True]), [[1.5, 2]],
                                    np.arange(4, dtype=">f8"), np.zeros((0, 4), f4), np.arange(6, dtype=f4).reshape(2, 3).T])
def test_copy_from_arrays(source):
    tensor = full((3,), 1)
    tensor.copy_from(source)
    want = np.asarray(source)
    assert tensor.is_type(want.dtype.newbyteorder("=")) and tensor.shape == want.shape
    np.testing.assert_array_equal(tensor.data(tensor.dtype), want)


def test_copies():
    source, target = full((2, 2), 6), Tensor()
    target.copy_from(source)
    target.mutable_data(f4)[0, 0] = 1
    assert values(source) == [[6, 6], [6, 6]] and values(target) == [[1, 6], [6, 6]] and not target.shares_data
    blob = Blob((3,), Dtype.DOUBLE)
    blob.data[...] = [1, 2, 3]
    target.copy_from(blob)
    assert target.is_type(f8) and values(target) == [1, 2, 3]
    for shape in (), (0, 3):
        other = Tensor()
        other.copy_from(Blob(shape))
        assert other.shape == shape and other.size == len(other.data(f4).ravel()) and other.is_type(f4)
    for wrong in (Tensor(), Tensor((2,)), Blob(), np.zeros(2, [("a", object)]), [[1], [1, 2]]):
        with pytest.raises((ShapeError, DataError, WrongTypeError)):
            target.copy_from(wrong)
        assert values(target) == [1, 2, 3]
    tensor = full((4,), 0)
    tensor.mutable_data(f4)[...] = range(4)
    for of_itself, wanted in ((tensor, [0, 1, 2, 3]), (tensor.data(f4), [0, 1, 2, 3]), (tensor.data(f4)[::-1], [3, 2, 1, 0]), (tensor.data(f4)[1:], [2, 1, 0])):
        tensor.copy_from(of_itself)
        assert values(tensor) == wanted
    other = Tensor((3,))
    other.share_data(tensor)
    tensor.copy_from(other)
    assert values(tensor) == [2, 1, 0] and tensor.shares_data


def test_swap():
    one, two = full((2,), 1), Tensor((), f8, "doubles")
    one.name = "ones"
    one.swap(two)
    assert values(two) == [1, 1] and one.is_type(f8) and (one.name, two.name) == ("ones", "doubles")
    one.swap(one)
    assert one.shape == () and one.is_type(f8) and not one.shares_data
    with pytest.raises(WrongTypeError, match="other must be a Tensor, got .*Blob"):
        one.swap(Blob((2,)))
