"""Blob: shapes, capacity, views that keep memory alive, sharing, messages, arithmetic."""

import gc
import threading

import numpy as np
import pytest

import minicaffe
from minicaffe.blob import Blob, Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import DataError, ShapeError, WrongTypeError
from minicaffe.proto import caffe_pb2

TYPES = [Dtype.FLOAT, Dtype.DOUBLE]


@pytest.mark.parametrize("dtype", TYPES)
def test_memory_of_a_blob(dtype):
    """It is zero at first, and stays while the blob is no larger."""
    blob = Blob((4, 6), dtype)
    assert not blob.data.any() and not blob.diff.any() and blob.data.dtype == (np.float32, np.float64)[dtype]
    blob.data[...] = np.arange(24).reshape(4, 6)
    memory = blob.data_memory
    blob.reshape(2, 3)
    assert blob.data_memory is memory and blob.capacity == 24
    np.testing.assert_array_equal(blob.data, np.arange(6).reshape(2, 3))
    blob.reshape(24)
    np.testing.assert_array_equal(blob.data, np.arange(24))
    blob.reshape(25)
    assert blob.data_memory is not memory and not blob.data.any()


def test_stamp_moves_only_when_something_changed():
    blob, other = Blob((2, 3)), Blob((6,))
    for change, moves in (
            (lambda: blob.reshape(2, 3), False), (lambda: blob.reshape(3, 2), True), (lambda: blob.share_data(other), True),
            (lambda: blob.share_data(other), False),
            (lambda: blob.share_diff(other), True), (lambda: blob.share_diff(other), False),
            (lambda: blob.set_cpu_data(np.zeros(6, np.float32)), False), (lambda: blob.reshape(2), True),
            (lambda: blob.set_cpu_data(np.zeros(2, np.float32)), True)):      # with memory of just that size
        stamp = blob.stamp
        change()
        assert (blob.stamp != stamp) == moves, blob.shape
    assert blob.capacity == 2


@pytest.mark.parametrize("shape, words", [
    ((-1,), "got -1"), ((2**31,), "2^31"), ((2**20, 2**20), "2^31 - 1 elements"), ((0x100000001, 2), "4294967297"), ((46341, 46341), "2^31 - 1 elements"),
    ((1,) * 33, "at most 32 axes"), ((1.5,), "integers")])
def test_impossible_shapes(shape, words):
    """And the largest possible ones: memory is taken on first access."""
    with pytest.raises(ShapeError, match=words.replace("^", r"\^").replace("- 1", r"\- 1")):
        Blob(shape)
    assert Blob((1,) * 32).num_axes == 32 and Blob(()).num_axes == 0 and Blob((0, 2**31 - 1)).count == 0
    assert [Blob(shape).count for shape in ((2**31 - 1,), (1, 2**31 - 1), (46341, 46340))] == [2**31 - 1, 2**31 - 1, 46341 * 46340]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_no_elements_but_huge_sizes(axis):
    """Such a blob is Caffe's, until a product of its sizes overflows; NumPy may have no array for it."""
    sizes = [2**31 - 1] * 2
    sizes.insert(axis, 0)
    blob = Blob(sizes) if axis == 0 else Blob((0, 1))
    if axis == 0:
        assert blob.count == 0 and blob.count_from(1) == (2**31 - 1)**2
        for view in ("data", "diff", "cpu_data", "cpu_diff"):
            with pytest.raises(ShapeError, match=r"\[0, 2147483647, 2147483647\] has no elements, but NumPy"):
                getattr(blob, view)
    with pytest.raises(ShapeError, match="elements"):
        blob.reshape(*sizes, 3)
    Blob((2**31 - 1, 0)).data  # noqa: B018


def test_views_keep_memory_alive():
    blob = Blob((1000,))
    shared = np.from_dlpack(blob)
    shared[...] = 7
    assert (blob.data == 7).all() and (np.asarray(blob) == 7).all()
    view = blob.data
    blob.reshape(5000)
    blob.data[...] = 1
    del blob
    gc.collect()
    assert (view == 7).all()


def test_axes():
    """Their numbers, their four names in Caffe, and offsets."""
    blob = Blob((2, 3, 4, 5))
    assert [blob.canonical_axis(axis) for axis in (0, 3, -1, -4, np.int64(1))] == [0, 3, 3, 0, 1]
    assert blob.count_from(1) == 60 and blob.count_from(1, 3) == 12 and blob.count_from(np.int8(2)) == 20
    assert blob.shape_string() == "2 3 4 5 (120)" and Blob(()).shape_string() == "(1)"
    for wrong in lambda: blob.canonical_axis(4), lambda: blob.canonical_axis(-5), lambda: blob.count_from(3, 2):
        with pytest.raises(ShapeError):
            wrong()
    for call in blob.canonical_axis, blob.count_from, blob.legacy_shape:
        for axis in "a", 0.5, None:
            with pytest.raises(WrongTypeError, match=" must be an int, got "):
                call(axis)
    for shape in (), (2,), (0,), (2, 3, 4, 5):
        blob, filled = Blob(shape), (*shape, 1, 1, 1, 1)[:4]
        assert (blob.num, blob.channels, blob.height, blob.width) == filled
        assert [blob.legacy_shape(axis) for axis in range(-4, 4)] == [*(1, 1, 1, 1, *shape)[-4:], *filled]
        for axis in -5, 4:
            with pytest.raises(ShapeError, match=rf"axis {axis} is out of range -4..3"):
                blob.legacy_shape(axis)
    for name in "num", "channels", "height", "width":
        with pytest.raises(ShapeError, match="num, channels, height and width need at most 4 axes, the blob has 5"):
            getattr(Blob((1, 2, 3, 4, 5)), name)
    blob, vector = Blob((2, 3, 4)), Blob((5,))
    assert Blob((2, 3, 4, 5)).offset(1, 2, 3, 4) == 119 and Blob((2, 3, 4, 5)).offset(1) == 60
    assert blob.offset((1, 2, 3)) == blob.offset([1, 2, 3]) == blob.offset(np.array([1, 2, 3])) == 23
    assert blob.offset(()) == blob.offset() == 0 and blob.offset([1]) == 12
    assert blob.offset(1, 2, 3, 0) == 23 and vector.offset(3, 0, 0, 0) == 3 and Blob(()).offset(0, 0, 0, 0) == 0  # n, c, h, w
    assert Blob((0, 3)).offset() == 0  # Caffe does not look at missing indices
    for wrong in ((2,), (1, 2, 3, 1), ([1, 2, 3, 0],), ((0, 3),), (-1,), (0, 0, 0, 0, 0)):
        with pytest.raises(ShapeError):
            blob.offset(*wrong)
    for wrong in (0.5, "a", None):
        with pytest.raises(ShapeError, match=f"indices must be integers, got {wrong!r} for axis 1"):
            blob.offset(0, wrong)


def test_values_and_shapes():
    blob = Blob((2, 3), Dtype.INT)
    blob.data[...] = np.arange(6).reshape(2, 3)
    blob.diff[...] = -blob.cpu_data
    assert blob.data_at(1, 2, 0, 0) == blob.data_at([1, 2]) == 5 and blob.diff_at(1) == -3
    assert type(blob.data_at(0)) is int and type(Blob((1,)).diff_at(0)) is float
    for wrong in (lambda: blob.data_at(2), lambda: blob.diff_at(0, 3), lambda: Blob((0,)).data_at(), lambda: Blob().data_at(0)):
        with pytest.raises(ShapeError):
            wrong()
    blob = Blob()
    for shape in ([2, 3], (2, 3), np.array([2, 3]), caffe_pb2.BlobShape(dim=[2, 3])):
        blob.reshape(7)
        blob.reshape(shape)
        assert blob.shape == (2, 3)
    assert Blob(caffe_pb2.BlobShape(dim=[4])).shape == (4,) and Blob(caffe_pb2.BlobShape()).shape == ()
    for wrong in (1.5, None, "ab", caffe_pb2.BlobShape(dim=[2**31]), caffe_pb2.BlobShape(dim=[-1])):
        with pytest.raises(ShapeError):
            blob.reshape(wrong)
    assert blob.shape == (2, 3)


@pytest.mark.parametrize("part", ["data", "diff"])
def test_const_and_mutable_views(part):
    blob = Blob((3,))
    getattr(blob, "mutable_cpu_" + part)[:] = 4
    const = getattr(blob, "cpu_" + part)
    assert (const == 4).all()
    for part_of_it in (const, const[1:]):
        with pytest.raises(ValueError, match="read-only"):
            part_of_it[0] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        const.flags.writeable = True
    assert not getattr(Blob((0,)), "cpu_" + part).flags.writeable


@pytest.mark.parametrize("part", ["data", "diff"])
def test_growing_with_shared_memory(part):
    """The capacity is that of the memories, not of those that the blob once had; the memory of another blob may be large enough."""
    blob, small = Blob((1 << 20,)), Blob((4,))
    blob.reshape(4)
    getattr(small, part)[:] = 7
    getattr(blob, "share_" + part)(small)
    assert blob.capacity == 4
    blob.reshape(1 << 20)
    assert blob.capacity == 1 << 20 and blob.data.size == blob.diff.size == 1 << 20
    assert blob.data_memory.size == blob.diff_memory.size == 4 << 20
    getattr(blob, part)[:] = 1
    assert (getattr(small, part) == 7).all()
    blob, large = Blob((4,)), Blob((100,))
    large.reshape(4)
    getattr(blob, "share_" + part)(large)
    assert blob.capacity == 4  # that of the memory that is its own
    blob.reshape(100)
    getattr(blob, part)[:] = 3
    assert (getattr(large, part) == 3).all() and blob.data.size == blob.diff.size == 100


def test_share_and_borrow():
    a, b = Blob((2, 3)), Blob((6,))
    a.data[...] = 1
    b.share_data(a)
    b.data[...] = 5
    assert (a.data == 5).all() and not b.diff.any()
    with pytest.raises(ShapeError, match="count and type must agree"):
        b.share_diff(Blob((7,)))
    for call in b.share_data, b.share_diff:
        with pytest.raises(ShapeError, match=r"6 \(6\) float32 against 6 \(6\) int32; count and type must agree"):
            call(Blob((6,), Dtype.INT))
    array = np.arange(6, dtype=np.float32)
    blob, named = Blob((2, 3)), Blob((2,), name="conv1")
    blob.set_cpu_data(array)
    blob.data[1, 2] = 50
    assert array[5] == 50 and (blob.data_memory.name, blob.diff_memory.name) == ("data", "diff")
    assert (named.data_memory.name, named.diff_memory.name) == ("conv1 data", "conv1 diff")


@pytest.mark.parametrize("part", ["data", "diff"])
def test_a_copy_is_of_one_shape(device, part):
    """With the same number of axes, too; one of itself, or of no elements, changes nothing."""
    source, target = Blob((2, 3)), Blob((3, 2))
    for blob, value in (source, 5), (target, 7):
        blob.data[...] = blob.diff[...] = value
        blob.scale_data(1), blob.scale_diff(1)    # where the process computes
    with pytest.raises(ShapeError, match=r"cannot copy 2 3 \(6\) to 3 2 \(6\); pass reshape=True"):
        target.copy_from(source, part == "diff")
    with pytest.raises(ShapeError, match="reshape=True"):
        target.copy_from(Blob((3, 2, 1)), part == "diff")
    assert target.shape == (3, 2) and (target.cpu_data == 7).all() and (target.cpu_diff == 7).all()
    target.reshape(2, 3)
    target.copy_from(source, part == "diff")
    assert [(getattr(target, "cpu_" + each) == (5 if each == part else 7)).all() for each in ("data", "diff")] == [True, True]
    target.copy_from(target, part == "diff")
    shown = Blob((2, 3))
    shown.share_data(target), shown.share_diff(target)
    shown.copy_from(target, part == "diff")
    smaller = Blob((1,))
    for blob in target, smaller:
        blob.copy_from(source, part == "diff", reshape=True)
    source.data[...] = source.diff[...] = 0
    for blob in target, smaller:
        assert blob.shape == (2, 3) and (getattr(blob, "cpu_" + part) == 5).all()
    for shape in (0, 3), None:
        Blob(shape).copy_from(Blob(shape), part == "diff")


@pytest.mark.parametrize("before", [None, (), (0, 3), (2,), (4, 0)])
@pytest.mark.parametrize("after", [None, (), (0, 3), (2,), (4, 0)])
def test_the_shape_of_another_blob(before, after):
    """A scalar has no axes and a blob of an empty axis no elements; one without a shape has neither."""
    blob, other = Blob(before), Blob(after)
    stamp = blob.stamp
    blob.reshape_like(other)
    assert (blob.shape, blob.num_axes, blob.count) == (other.shape, other.num_axes, other.count)
    assert blob.data.shape == ((0,) if after is None else after) and (blob.stamp == stamp) == (before == after)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [0, 3, -0.5])
def test_fill_diff(device, dtype, value):
    """What lies behind it in a larger memory stays, a view shows the new values, and the data stay."""
    blob = Blob((5,), dtype)
    for _ in range(2):      # of new memory, and of written one
        blob.fill_diff(value)
        assert (blob.cpu_diff == value).all() and not blob.cpu_data.any()
        blob.diff[...] = 7
    blob.reshape(3)
    view = blob.diff
    blob.fill_diff(value)
    assert (blob.cpu_diff == value).all() and (view == value).all()
    blob.reshape(5)
    assert blob.cpu_diff.tolist() == [value] * 3 + [7] * 2
    empty = Blob((0, 3), dtype)
    empty.fill_diff(value)
    assert empty.cpu_diff.shape == (0, 3) and empty.diff_memory.head in (0, 1)


@pytest.mark.parametrize("call", [lambda blob: blob.fill_diff(1), lambda blob: blob.update(), lambda blob: blob.asum_data(), lambda blob: blob.scale_data(2)])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.INT])
def test_blob_free_for_other_threads(call, dtype):
    """Also where the call raised."""
    blob = Blob((2, 3), dtype)
    if dtype == Dtype.INT:
        assert blob.data.dtype == np.int32
        with pytest.raises(ShapeError, match="an integer blob has no arithmetic"):
            call(blob)
    else:
        call(blob)
    thread = threading.Thread(target=blob.reshape, args=(3, 2))
    thread.start()
    thread.join()
    assert blob.shape == (3, 2)


@pytest.mark.parametrize("shape", [(3,), (0,), ()])
def test_arithmetic_of_untouched_memory(device, shape):
    blob = Blob(shape)
    assert [blob.asum_data(), blob.asum_diff(), blob.sumsq_data(), blob.sumsq_diff()] == [0] * 4
    blob.scale_data(2), blob.scale_diff(2)
    for mem in blob.data_memory, blob.diff_memory:
        assert mem.head == 0 and not mem.own_cpu_data and not mem.own_gpu_data


def test_stored_shapes():
    for shape, stored, fits in ((), (1, 1, 1, 1), True), ((3,), (1, 1, 1, 3), True), ((2, 3), (1, 1, 2, 3), True), \
            ((2, 3, 4, 5), (2, 3, 4, 5), True), ((2, 3, 4, 5), (2, 3, 5, 4), False), ((2, 3), (1, 2, 2, 3), False), \
            ((1, 1, 1, 2, 3), (1, 1, 2, 3), False), ((2, 3), (2, 3), False), ((2, 3), (1, 1, 2, 3, 9), False):  # fmt: skip
        assert Blob(shape).shape_equals(stored, True) == fits
        assert Blob(shape).shape_equals(stored) == (shape == stored) and Blob(shape).shape_equals(shape)
    proto = caffe_pb2.BlobProto(num=1, channels=1, height=2, width=3, data=range(6))
    blob = Blob((2, 3))
    blob.from_proto(proto, reshape=False)
    np.testing.assert_array_equal(blob.data, [[0, 1, 2], [3, 4, 5]])
    blob.from_proto(proto)
    assert blob.shape == (1, 1, 2, 3)
    with pytest.raises(ShapeError):
        Blob((3, 2)).from_proto(proto, reshape=False)
    with pytest.raises(DataError, match="needs 8"):
        Blob().from_proto(caffe_pb2.BlobProto(shape={"dim": [8]}, data=[1, 2]))


READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(("source", "words"), [(np.zeros(8, np.float32)[::2], "4 scattered of float32"), (READ_ONLY, "4 read-only of float32"),
                                               (np.zeros(4), "4 of float64"), (np.zeros(3, np.float32), "3 of float32"), (np.zeros(5, np.float32), "5 of float32")])
def test_set_cpu_data_refused(source, words):
    blob = Blob((9,))
    blob.reshape(4)  # in more memory than that takes
    blob.data[...], blob.diff[...] = 7, 3
    with pytest.raises(ShapeError, match=f"4 contiguous, writable float32 values, got {words}"):
        blob.set_cpu_data(source)
    assert (blob.data == 7).all() and (blob.diff == 3).all()


@pytest.mark.parametrize("dtype, field", [(Dtype.FLOAT, "data"), (Dtype.DOUBLE, "double_data")])
def test_proto_round_trip(dtype, field):
    blob = Blob((2, 3), dtype)
    blob.data[...], blob.diff[...] = np.random.default_rng(0).normal(size=(2, 2, 3))
    proto = blob.to_proto(caffe_pb2.BlobProto(), write_diff=True)
    assert list(proto.shape.dim) == [2, 3] and len(getattr(proto, field)) == 6 and not proto.HasField("num")
    other = Blob((1,), dtype)
    other.from_proto(proto)
    np.testing.assert_array_equal(other.data, blob.data)
    np.testing.assert_array_equal(other.diff, blob.diff)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [0, 1, 2, 15, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 100_003])
def test_arithmetic_on_threads(dtype, size):
    data, diff = np.random.default_rng(size).normal(size=(2, size))
    results = []
    for threads in (1, 2, 3):
        set_num_threads(threads)
        blob = Blob((size,), dtype)
        blob.data[...], blob.diff[...] = data, diff
        sums = blob.asum_data(), blob.sumsq_data(), blob.asum_diff(), blob.sumsq_diff()
        blob.scale_diff(0.5)
        blob.update()
        results.append((sums, blob.data.copy()))
    # Sums of float32 run in lanes of float32 inside a block: a few units in the seventh digit.
    tolerance = 1e-5 if dtype == Dtype.FLOAT else 1e-12
    np.testing.assert_allclose(results[0][0], [abs(data).sum(), (data**2).sum(), abs(diff).sum(), (diff**2).sum()], tolerance)
    np.testing.assert_allclose(results[0][1], data - 0.5 * diff, tolerance, tolerance)
    for sums, values in results[1:]:
        assert sums == results[0][0]
        np.testing.assert_array_equal(values, results[0][1])


def test_without_a_shape(device, tmp_path):
    """As in Caffe; a scalar has no axes either, and one element."""
    blob, scalar = Blob(), Blob(())
    assert (blob.shape, blob.num_axes, blob.count, blob.capacity, blob.shape_string()) == ((), 0, 0, 0, "(0)")
    assert blob.data.shape == blob.cpu_diff.shape == (0,) and blob.legacy_shape(0) == 0
    assert (scalar.count, scalar.shape_string(), scalar.data.shape, scalar.legacy_shape(0)) == (1, "(1)", (), 1)
    blob.reshape()
    assert (blob.count, blob.data.shape) == (1, ())
    # What reads it has none either, until the input gets one
    (tmp_path / "net.prototxt").write_text("""layer { name: "in" type: "Input" top: "x" top: "y" }
        layer { name: "relu" type: "ReLU" bottom: "x" top: "a" } layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "y" top: "s" }""")
    net = minicaffe.Net(str(tmp_path / "net.prototxt"), minicaffe.TEST)
    assert [(blob.shape, blob.num_axes, blob.count) for blob in net.blobs.values()] == [((), 0, 0)] * 4
    assert [out.shape for out in net.forward().values()] == [(0,)]
    for name in "xy":
        net.blobs[name].reshape(2, 3)
        net.blobs[name].data[...] = 4
    assert net.forward()["s"].tolist() == [[8.0] * 3] * 2
    (tmp_path / "net.prototxt").write_text("""layer { name: "in" type: "Input" top: "x" }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }""")
    with pytest.raises(ShapeError, match=r"net.prototxt:2: layer 'ip' .*axis 1 is out of range for a blob with 0 axes"):
        minicaffe.Net(str(tmp_path / "net.prototxt"), minicaffe.TEST)
