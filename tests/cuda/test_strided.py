"""Views of device memory against NumPy, every refusal, and copies of rows in strides."""

import helpers
import numpy as np
import pytest
from strided_arrays import Foreign, numbered
from training import recorded_launches

from minicaffe import memory
from minicaffe.device import strided
from minicaffe.device.strided import DeviceArray
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError

KEYS = [0, -1, np.s_[:], np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[5:0:-2], np.s_[3:3], np.s_[9:], np.s_[-2:], None, ...,
        np.s_[:, 1], np.s_[1, :, 2], np.s_[..., 1], np.s_[..., None, ::-2], np.s_[1, ..., 1:2], np.s_[None, 0, None, ..., None],
        np.s_[0, 1, 2], (), np.int64(1), np.s_[:, :, 7:], np.s_[-3:, ::-1, ::-1]]  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views_of_numpy(key, turned):
    host = np.zeros((3, 4, 5), np.float32)
    array = DeviceArray(host.ctypes.data, host.shape, host.dtype, host)
    if turned:
        host, array = host.transpose(2, 0, 1), array.transpose(2, 0, 1)
    view = array[key]
    want = host[(*(key if isinstance(key, tuple) else (key,)), *(() if "Ellipsis" in str(key) else (...,)))]  # an array, never a number
    assert view.shape == want.shape and view.ndim == want.ndim and view.size == want.size
    assert view.dtype == np.float32 and view.readonly is False
    if want.size:
        assert view.strides == want.strides and view.address == want.ctypes.data
        places = [want.ctypes.data + sum(k * s for k, s in zip(index, want.strides)) for index in np.ndindex(want.shape)]
        assert view.bounds() == (min(places), max(places) + 4)


def test_transposes():
    array = numbered(2, 3, 4).mutable_gpu_data
    assert array.strides == (48, 16, 4) and array.T.shape == (4, 3, 2) and array.T.strides == (4, 16, 48)
    for view in array.transpose(1, 0, -1), array.transpose((1, 0, 2)):
        assert view.shape == (3, 2, 4) and view.strides == (16, 48, 4)
    for axes in (0, 1), (0, 1, 1), (0, 1, 3), ((0, 1),), ('ab',), (0, 1, 2.0):
        with pytest.raises(ShapeError, match="each of 3 axes once"):
            array.transpose(*axes)
    assert "2x3x4 float32" in repr(array) and "(48, 16, 4)" in repr(array)
    assert array.__cuda_array_interface__["strides"] is None
    interface = array[0, 1:, ::-2].__cuda_array_interface__
    assert interface["strides"] == (16, -8) and interface["shape"] == (2, 2) and interface["data"] == (array.address + 16 + 12, False)


@pytest.mark.parametrize(("key", "error", "words"), [
    (4, ShapeError, r"an array of shape \(4, 6\) has no such view: index 4 is out of bounds for axis 0 with size 4"),
    (-5, ShapeError, "index -5"), ((0, 6), ShapeError, "axis 1"), ((0, 0, 0), ShapeError, "too many indices"),
    ((..., ...), ShapeError, "single ellipsis"), (np.array(4), ShapeError, "index 4"), (np.array(True), WrongTypeError, "True"),
    ([0, 1], WrongTypeError, "integers, slices, None"), (np.array([0]), WrongTypeError, "copy it to the host"),
    (True, WrongTypeError, "True"), (1.0, WrongTypeError, "1.0"), ("a", WrongTypeError, "'a'"),
    (slice(None, None, 0), ShapeError, "step cannot be zero"), (slice(0.5), ShapeError, "must be integers")])  # fmt: skip
def test_indices_that_are_refused(key, error, words):
    with pytest.raises(error, match=words):
        numbered(4, 6).mutable_gpu_data[key]


def test_view_keeps_memory():
    blob, used = numbered(4, 6), memory.used(memory.CUDAPlace(0))
    want, view = blob.cpu_data[::2, 1].copy(), blob.mutable_gpu_data[::2, 1]
    assert memory.used(memory.CUDAPlace(0)) == used + 96
    del blob
    out = np.zeros((2, 1), np.float32)
    for i in range(2):
        memory.copy(out[i], view[i : i + 1])
    np.testing.assert_array_equal(out[:, 0], want)
    with pytest.raises(TypeError):
        iter(view)
    with pytest.raises(WrongTypeError, match="has no values on the host; take them from blob.cpu_data"):
        np.asarray(view)
    del view
    assert memory.used(memory.CUDAPlace(0)) == used


@pytest.mark.parametrize("take", [
    lambda x: x, lambda x: x[0], lambda x: x[1, 2], lambda x: x[1:], lambda x: x[...], lambda x: x[None], lambda x: x[::2, ::-1],
    lambda x: x.T, lambda x: x.transpose(1, 0), lambda x: x.T.T[1:]])  # fmt: skip
def test_read_only_views(take):
    """May only be read, too: a write there leaves the host's copy as it is, and the array of another library as it must stay."""
    blob = numbered(4, 6)
    free = take(blob.mutable_gpu_data)
    assert not free.readonly and not free.__cuda_array_interface__["data"][1] and "read-only" not in repr(free)
    foreign = Foreign(blob.gpu_data.address, (4, 6), readonly=True)
    for array in blob.gpu_data, strided.device_array(foreign, "foreign"):
        view = take(array)
        assert view.readonly and view.__cuda_array_interface__["data"][1] and "read-only" in repr(view)
        if view.is_packed:
            with pytest.raises(ConfigError, match="dst is read-only"):
                memory.copy(view, np.zeros(view.shape, np.float32))
    np.testing.assert_array_equal(blob.cpu_data, np.arange(24).reshape(4, 6))


def test_sizes_and_strides():
    array = DeviceArray(2**40, np.array([2, 3], np.int32), "f4", None, np.array([12, 4], np.int32))
    assert array[1, ::-1].address == 2**40 + 20 and array.bounds() == (2**40, 2**40 + 24)
    for shape, strides, words in (((2, -1), None, "cannot have the shape"), ((2, 3), (4,), "cannot have .* strides"),
                                  ((2.0,), None, "must be integers, got"), (3, None, "must be integers, got 3")):
        with pytest.raises(ShapeError, match=words):
            DeviceArray(2**40, shape, "f4", None, strides)


@pytest.mark.parametrize(("channels", "word"), [((4, 8), "Pack<float>"), ((3, 8), "float"), ((4, 7), "float")])
def test_rows_copied_by_words(channels, word):
    """Concat copies rows of `channels` pixels; one that is no multiple of 4 moves the next row off the words."""
    shapes = " ".join(f"shape {{ dim: [2, {number}, 3] }}" for number in channels)
    net = helpers.make_net(helpers.layer_text("Input", "in", "", "a b", f"input_param {{ {shapes} }}") + helpers.layer_text("Concat", "y", "a b"))
    values = [np.random.default_rng(0).standard_normal(blob.shape).astype(np.float32) for blob in net.input_blobs]
    for blob, value in zip(net.input_blobs, values, strict=True):
        blob.data[...] = value
    with recorded_launches() as events:
        net.forward_from_to(0, 1)
    assert [event.name for event in events if event.kind == "launch"] == [f"Each<StridedCopy<{word}, {word}, unsigned int> >"] * 2
    np.testing.assert_array_equal(net.output_blobs[0].cpu_data, np.concatenate(values, 1))
