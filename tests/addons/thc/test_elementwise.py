"""cuda.elementwise on views of device memory: every way to walk through operands against NumPy, and every refusal."""

import re
from pathlib import Path

import numpy as np
import pytest
from compile_kernels import compile_for
from processes import run, run_gpu
from strided_arrays import Foreign, blob_of, numbered

from minicaffe import cuda, memory
from minicaffe.addons.thc import walk as walks
from minicaffe.addons.thc.walk import ANY, CONTIGUOUS, Walk, broadcast
from minicaffe.blob import Blob
from minicaffe.device.strided import DeviceArray, device_array
from minicaffe.errors import DeviceError, ShapeError, WrongTypeError

pytestmark = pytest.mark.usefixtures("needs_compiler")
FLOAT, DOUBLE, INT = 0, 1, 2
ALL = np.s_[...]
copy = cuda.elementwise("T x", "T y", "y = x", "copied")
axpb = cuda.elementwise("T x, T b", "T y", "y = 2 * x + b", "axpb")


@pytest.mark.parametrize(("views", "axes", "kind"), [
    ([ALL, ALL], 1, CONTIGUOUS), ([np.s_[1:2], np.s_[2:3]], 1, CONTIGUOUS), ([np.s_[:1, :1, :1, :1, :1]] * 2, 0, CONTIGUOUS),
    ([np.s_[..., ::2, :1]] * 2, 1, 1), ([np.s_[::-1, ::-1, ::-1, ::-1, ::-1]] * 2, 1, 1), ([np.s_[:, 1:]] * 2, 2, 2),
    ([np.s_[:, 1:, :, 1:]] * 2, 3, 3), ([np.s_[:, 1:, :, :, 1:]] * 2, 3, 3), ([np.s_[:, :, :, 1:]] * 2, 2, 2),
    ([ALL, np.s_[::-1]], 2, 2), ([ALL, np.s_[::-1, :, ::-1]], 4, ANY)])  # fmt: skip
def test_joined_axes(views, axes, kind):
    arrays = [numbered(2, 3, 2, 4, 3).mutable_gpu_data[v] for v in views]
    walk = Walk(arrays)
    assert (len(walk.axes), walk.kind) == (axes, kind) and walk.count == arrays[0].size and walk.narrow
    if kind != CONTIGUOUS:      # a size that differs from C++'s would shift every parameter after it
        assert len(walk.pack()) == 4 * (1 + (8 if kind == ANY else axes) * (3 + len(arrays)))


def test_walks_and_dividers():
    array = numbered(3, 4, 5).mutable_gpu_data
    assert Walk([array.T, array.T]).kind == CONTIGUOUS
    assert Walk([array.transpose(1, 0, 2), array.transpose(1, 0, 2)]).kind == CONTIGUOUS
    assert Walk([array, broadcast(array[:, 0:1], (3, 4, 5))]).kind == 3
    random = np.random.default_rng(0)
    for d in {1, 2, 3, 5, 7, 641, 2**30, 2**31 - 1, *map(int, random.integers(1, 2**31, 300))}:
        _, magic, shift = walks.divider(d)
        for n in {0, 1, d - 1, d, min(2 * d, 2**31 - 1), 2**31 - 1, *map(int, random.integers(0, 2**31, 30))}:
            assert (n * magic >> 32) + n >> shift == n // d and magic < 2**32


@pytest.mark.parametrize(("shape", "strides", "narrow"), [
    ((2**31 - 1,), (4,), True), ((2**31,), (4,), False), ((2, 3), (4 * 2**31, 4), False), ((2, 3), (-4 * 2**31, 4), False),
    ((2, 2), (4 * (2**31 - 2), 4), True), ((2, 2), (4 * (2**31 - 1), 4), False), ((1, 2), (4 * 2**40, 4), True)])  # fmt: skip
def test_indices_of_32_bits(shape, strides, narrow):
    array = DeviceArray(1 << 40, shape, np.float32, None, strides)
    assert Walk([array]).narrow is narrow


def check(f, function, operands, out):
    """Run f on (blob, view) pairs, and the same function with NumPy; the whole output blob is compared, neighbours too."""
    want = out[0].cpu_data.copy()
    want_view = out[1](want)
    want_view[...] = function(*[view(blob.cpu_data) for blob, view in operands])
    f(*[view(blob.mutable_gpu_data) for blob, view in operands], out[1](out[0].mutable_gpu_data))
    np.testing.assert_array_equal(out[0].cpu_data, want)


@pytest.mark.parametrize("seed", range(36))
def test_random_views(seed, monkeypatch):
    random = np.random.default_rng(seed)
    shape = random.integers(1, 4, random.integers(0, 8)) if seed < 34 else np.array([2] * (3 * seed - 93))     # then 9 and 12 axes
    if seed % 2 == 0:
        monkeypatch.setattr(walks, "MOST", 3)   # indices of 64 bits

    def view(output):
        gaps = random.integers(0, 2, len(shape))
        keys, full, repeated = [], [], random.random(len(shape)) < (0 if output else 0.3)
        for size, gap, once in zip(shape, gaps, repeated):
            size = 1 if once else size
            full.append(2 * size if gap else size)
            keys.append(np.s_[:: random.choice([-2, 2])] if gap else np.s_[:: random.choice([-1, 1])])
        order = random.permutation(len(shape))
        blob = numbered(*np.array(full, int)[order])
        back = np.argsort(order)
        return blob, lambda array: array.transpose(*map(int, back))[tuple(keys) or ...]

    check(axpb, lambda x, b: 2 * x + b, [view(False), view(False)], view(True))


def test_operands_in_place_or_overlapping():
    add = cuda.elementwise("T a, T b, T c, T d", "T y", "y = a + b + c + d", "five")
    twice = cuda.elementwise("int32 k", "T y", "y = k * y", "scaled_in_place")
    blob = numbered(6, 5)
    want = blob.cpu_data.copy()
    twice(2, blob.mutable_gpu_data[::2, 1:4])
    want[::2, 1:4] *= 2
    copy(blob.mutable_gpu_data[:, 1:3], blob.mutable_gpu_data[:, 1:3])
    x = blob.mutable_gpu_data
    add(x[:, 0], x[:, 1], x[:, 2], x[:, 4], x[:, 4])
    want[:, 4] += want[:, 0] + want[:, 1] + want[:, 2]
    np.testing.assert_array_equal(blob.cpu_data, want)
    add = cuda.elementwise("T a, T b", "T y", "y = a + 10 * b", "of_both")
    square, y = numbered(5, 5), Blob((5, 5))
    x, want = square.gpu_data, square.cpu_data
    for a, b in (np.s_[1:, :], np.s_[:-1, :]), (np.s_[:, 1:], np.s_[:, :-1]), (np.s_[:4, :4], np.s_[1:, 1:]), (np.s_[:], np.s_[:]):
        shape = want[a].shape
        out = y.mutable_gpu_data[:shape[0], :shape[1]]
        add(x[a], x[b], out)
        np.testing.assert_array_equal(y.cpu_data[:shape[0], :shape[1]], want[a] + 10 * want[b])
    add(x, x.T, y.mutable_gpu_data)
    np.testing.assert_array_equal(y.cpu_data, want + 10 * want.T)
    split = cuda.elementwise("T x", "T a, T b", "a = x; b = -x", "split")
    x = numbered(4, 6)
    even, odd = x.mutable_gpu_data[:, ::2], x.mutable_gpu_data[:, 1::2]
    split(even, even, odd)
    assert (x.cpu_data[:, 1::2] == -x.cpu_data[:, ::2]).all()
    for a, b in (even, even), (x.mutable_gpu_data[:, :3], x.mutable_gpu_data[:, 2:5]):
        with pytest.raises(ShapeError, match="split.b: overlaps a"):
            split(1.0, a, b)
    with pytest.raises(ShapeError, match=r"split.a: has shape \(4, 3\), output b has \(4, 6\)"):
        split(1.0, even, x.mutable_gpu_data)
    blob = numbered(4, 6)
    for array in blob.gpu_data, device_array(Foreign(blob.gpu_data.address, (4, 6), readonly=True), "foreign"):
        for view in array, array[0], array[1, 2], array[::2, ::-1], array.T, broadcast(array[:1], (3, 6)):
            assert view.readonly
            with pytest.raises(WrongTypeError, match="copied: output y is read-only; take blob.mutable_gpu_data, or a copy"):
                copy(9.0, view)
    np.testing.assert_array_equal(blob.cpu_data, np.arange(24).reshape(4, 6))


def test_numbers_and_broadcast_blobs():
    scale = cuda.elementwise("T k, int32 x", "int32 y", "y = (int)(k * x + 0.25f)", "of_integers")
    x, y = Blob((4,), 2), Blob((4,), 2)
    x.data[...] = [1, 2, 3, 4]
    for k in 2.5, 3, np.float64(0.5):
        scale(k, x, y)
        np.testing.assert_array_equal(y.cpu_data, (k * np.array([1, 2, 3, 4]) + 0.25).astype(np.int32))
    x, bias, y = numbered(4, 6), numbered(6), Blob((4, 6))
    axpb(x, bias, y)
    np.testing.assert_array_equal(y.cpu_data, 2 * x.cpu_data + bias.cpu_data)
    axpb(bias.mutable_gpu_data[:, None][:4], x, y)
    np.testing.assert_array_equal(y.cpu_data, 2 * bias.cpu_data[:4, None] + x.cpu_data)
    axpb(x.mutable_gpu_data, blob_of([5.0]), y.mutable_gpu_data)
    np.testing.assert_array_equal(y.cpu_data, 2 * x.cpu_data + 5)
    axpb(x.mutable_gpu_data, 1.5, y)
    np.testing.assert_array_equal(y.cpu_data, 2 * x.cpu_data + 1.5)
    f = cuda.elementwise("T x", "T y", "y = -x", "negative")
    x, y = numbered(4, 6, 3), Blob((4, 6, 3))
    for key in np.s_[:, 1:], np.s_[:, :4], np.s_[::2, 1:5], np.s_[:, :, 1:]:
        f(x.mutable_gpu_data[key], y.mutable_gpu_data[key])
    assert {kind for _, _, kind, _ in f._kernels} == {2}
    f(x, y)
    f(x.mutable_gpu_data[::2, ::2, ::2], y.mutable_gpu_data[::2, ::2, ::2])
    assert {kind for _, _, kind, _ in f._kernels} == {2, 3, CONTIGUOUS}


def test_arrays_of_other_libraries():
    x, y = numbered(6, 8), Blob((3, 4))
    address = x.mutable_gpu_data.address
    copy(Foreign(address + 4, (3, 4), strides=(64, 8)), y)
    np.testing.assert_array_equal(y.cpu_data, x.cpu_data[::2, 1::2])
    copy(Foreign(address + 4 * 47, (3, 4), strides=(-64, -8), stream=1), y)
    np.testing.assert_array_equal(y.cpu_data, x.cpu_data[::-2, ::-2])
    x.data[...] = 7
    copy(Foreign(x.mutable_gpu_data.address, (48,)), Foreign(x.mutable_gpu_data.address, (48,)))
    copies = cuda.current().copies
    copy(Foreign(x.mutable_gpu_data.address, (3, 4), stream=copies.address), y.mutable_gpu_data)
    assert (y.cpu_data == 7).all()


def test_stream_of_an_array():
    """What its interface names as ``stream`` may still be writing it; race=1 finds reads that do not wait."""
    text = run_gpu("""
    from minicaffe.memory import CUDAPlace
    memory.use(CUDAPlace(0), "plain")  # kernels count with whole allocations
    f = cuda.elementwise("T x", "T y", "y = x", "copied")
    fill = cuda.kernel('extern "C" __global__ void fill(float* x, float value) { x[threadIdx.x] = value; }', "fill")
    line, x, y = cuda.Stream(cuda.current()), Blob((8,)), Blob((8,))
    array = x.mutable_gpu_data
    y.mutable_gpu_data
    cuda.current().synchronize()

    class Foreign:
        def __init__(self, stream):
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": stream}

    fill((1,), (8,), (array, np.float32(3)), stream=line)
    f(Foreign(line.address), y)
    assert (y.cpu_data == 3).all()
    for inputs in ((y,), (2,)):     # an output is waited for as well, beside an array or a number
        cuda.current().synchronize()
        fill((1,), (8,), (array, np.float32(9)), stream=line)
        f(*inputs, Foreign(line.address))
        cuda.current().synchronize()
        assert (x.cpu_data == (2 if inputs == (2,) else 3)).all(), x.cpu_data
        x.mutable_gpu_data
    twice = cuda.kernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
    fill((1,), (8,), (array, np.float32(9)), stream=line)
    twice((1,), (8,), (Foreign(line.address),))     # as an argument of a kernel
    cuda.current().synchronize()
    assert (x.cpu_data == 18).all(), x.cpu_data
    x.mutable_gpu_data
    cuda.current().synchronize()
    fill((1,), (8,), (array, np.float32(4)), stream=line)
    refused(errors.DeviceError, lambda: (f(Foreign(None), y), cuda.current().synchronize()), "race")
    cuda.current().synchronize()
    z = Blob((8,))
    fill((1,), (8,), (array, np.float32(5)), stream=line)
    z.set_gpu_data(Foreign(line.address))
    f(z, y)
    assert (y.cpu_data == 5).all()
    fill((1,), (8,), (array, np.float32(6)), stream=line)
    z.set_gpu_data(Foreign(None))
    refused(errors.DeviceError, lambda: (f(z, y), cuda.current().synchronize()), "race")
    print("done")
    """, "sim", "race=1")
    assert "done" in text


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_no_elements(shape):
    launches = cuda.current().launches
    x, y = Blob(shape), Blob(shape)
    copy(x.mutable_gpu_data[..., ::-1], y.mutable_gpu_data[..., ::-1])
    copy(numbered(4, 4).mutable_gpu_data[4:, :], numbered(5, 4).mutable_gpu_data[3:1])
    copy(Foreign(0, (0, 5), strides=(-3, 0)), Blob((0, 5)).mutable_gpu_data)
    assert cuda.current().launches == launches


@pytest.mark.parametrize(("arguments", "error", "words"), [
    (lambda x: (x[:, 1:3], x[:, 3:4]), ShapeError, r"copied.x: shape \(4, 2\) cannot be broadcast to \(4, 1\), the shape of y"),
    (lambda x: (x,), WrongTypeError, "takes 2 arguments, got 1"), (lambda x: (x[None], x), ShapeError, "cannot be broadcast"),
    (lambda x: (x, 2.0), WrongTypeError, "output y must be a Blob or an array on the device, got float"),
    (lambda x: (x[:, :-1], x[:, 1:]), ShapeError, "copied.y: overlaps x; only an input"),
    (lambda x: (x[::-1], x), ShapeError, "copied.y: overlaps x; only an input"),
    (lambda x: (x[:4, :4].T, x[:4, :4]), ShapeError, "copied.y: overlaps x; only an input"),
    (lambda x: (x[0], x), ShapeError, "copied.y: overlaps x; only an input"),  # a row, and all of them
    (lambda x: (1.0, Foreign(x.address, (5,), strides=(0,))), ShapeError, "copied.y: elements of the output share memory, its strides are .0,."),
    (lambda x: (1.0, Foreign(x.address, (3, 3), strides=(4, 4))), ShapeError, "share memory"),
    (lambda x: (1.0, Foreign(x.address, (4,), readonly=True)), WrongTypeError, "output y is read-only"),
    (lambda x: (Foreign(x.address, (4,), "<i8"), x[0, :4]), WrongTypeError, "x must be an array of float, double or int, got .*int64"),
    (lambda x: (Foreign(x.address, (4,), ">f4"), x[0, :4]), WrongTypeError, "x must be an array of .*, got one of >f4"),
    (lambda x: (Foreign(x.address, (3,), strides=(6,)), x[0, :3]), WrongTypeError, "multiples of the 4 bytes"),
    (lambda x: (Foreign(x.address + 2, (3,)), x[0, :3]), WrongTypeError, "multiples of the 4 bytes"),
    (lambda x: (Foreign(x.address, (3,), mask=x), x[0, :3]), WrongTypeError, "has a mask"),
    (lambda x: (np.zeros(4, np.float32), x[0, :4]), WrongTypeError, "x must be a number, a Blob or an array on the device, got ndarray"),
    (lambda x: (1.0, np.zeros(4, np.float32)), WrongTypeError, "output y must be a Blob or an array on the device, got ndarray"),
    (lambda x: ("1", x), WrongTypeError, "x must be a number.* got str"),
    (lambda x: (1j, x), WrongTypeError, "x must be a number.* got complex"),
    (lambda x: (10**400, x), WrongTypeError, "x is of type float32, which cannot hold"),
    (lambda x: (1e300, x), WrongTypeError, "x is of type float32, which cannot hold 1e"),
    (lambda x: (np.float64(-1e300), x), WrongTypeError, "x is of type float32, which cannot hold -1e"),
    (lambda x: (1.0, Foreign(x.address, (4, 6), strides=(24,))), ShapeError, r"cannot have the shape \(4, 6\) and the strides \(24,\)"),
    (lambda x: (1.0, Foreign(x.address, (-4, -6))), ShapeError, r"cannot have the shape \(-4, -6\)"),
    (lambda x: (Foreign(64, (3,)), x[0, :3]), DeviceError, "x is at 0x40, which is in no memory of a device"),
])  # fmt: skip
def test_what_is_refused(arguments, error, words):
    x = numbered(4, 6)
    with pytest.raises(error, match=words):
        copy(*arguments(x.mutable_gpu_data))
    np.testing.assert_array_equal(x.cpu_data, np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("wrong", [2.5, 2**31, -(2**31) - 1, float("nan"), float("inf"), 10**30, np.int64(2**40), np.uint32(2**31), np.float32(2**31)])
def test_integers_are_not_rounded(wrong):
    f, y = cuda.elementwise("int32 k", "T y", "y = k", "whole"), Blob((3,))
    for right in True, np.int64(4), 5.0:
        f(right, y)
        assert (y.cpu_data == right).all()
    with pytest.raises(WrongTypeError, match="k is of type int32, which cannot hold"):
        f(wrong, y)


@pytest.mark.parametrize(("shape", "strides"), [((100,), None), ((2,), (1 << 40,)), ((2,), (-(1 << 40),)), ((3, 3), (40, 64)),
                                                ((2,), (-4,)), ((2**62, 2), (4, 2**62))])  # fmt: skip
def test_arrays_that_leave_their_allocation(shape, strides):
    """An array's bounds are its allocation's, which is larger than a blob where a cache cuts it up.

    On a GPU what lies before an allocation may be in another one.
    """
    from minicaffe.memory import CUDAPlace
    before = memory.use(CUDAPlace(0), "plain")
    try:
        x = numbered(36)
        address = x.mutable_gpu_data.address
    finally:
        memory.use(CUDAPlace(0), before)
    copy(Foreign(address, (36,)), Blob((36,)).mutable_gpu_data)
    with pytest.raises(DeviceError, match=r"beyond its allocation of \d+ bytes|in no memory of a device"):
        copy(1.0, Foreign(address, shape, strides=strides))
    del x
    cuda.current().synchronize()
    memory.empty_cache()
    with pytest.raises(DeviceError, match="in no memory of a device"):
        copy(Foreign(address, (4,)), Blob((4,)).mutable_gpu_data)


def test_an_array_of_another_device():
    text = run("""
    f = cuda.elementwise("T x", "T y", "y = x", "copied")
    minicaffe.set_mode_gpu()
    x = Blob((4,))
    x.data[...] = np.arange(4)
    read, written = x.gpu_data, x.mutable_gpu_data
    minicaffe.set_device(1)
    y = Blob((2,))
    for call, name in (lambda: f(read[::2], y), "x"), (lambda: f(read[::2], y.mutable_gpu_data), "x"), (lambda: f(1.0, written), "y"):
        refused(errors.WrongDeviceError, call, f"copied: {name} is on GPU 0, the current GPU is 1")
    stream = cuda.Stream(cuda.get_device(0))
    refused(errors.ConfigError, lambda: cuda.sleep(1, stream), "the stream is of device 0, the current one is 1")
    cuda.enable_peer_access(1, 0)
    f(read[::2], y)
    assert (y.cpu_data == [0, 2]).all()
    print("done")
    """, "sim", "devices=3,peers=0-1")
    assert "done" in text


def test_indices_and_offsets_beyond_32_bits():
    """Two rows of elements 9 GiB apart: the simulated device gives pages only to what is touched."""
    text = run_gpu("""
    from minicaffe.memory import CUDAPlace
    from minicaffe.device.strided import DeviceArray
    memory.use(CUDAPlace(0), "plain")
    address, far = memory.alloc(CUDAPlace(0), 19 << 30), 9 << 30
    f = cuda.elementwise("T x", "T y", "y = x", "copied")
    big = DeviceArray(address, (3, 4), np.float32, None, (far, 4))
    x, y = Blob((3, 4)), Blob((3, 4))
    x.data[...] = np.arange(12).reshape(3, 4)
    f(x, big[::-1])
    f(big[:, ::-1], y.mutable_gpu_data)
    assert (y.cpu_data == x.cpu_data[::-1, ::-1]).all()
    assert {index for *_, index in f._kernels} == {"unsigned long long"}
    print("done")
    """, "sim", "memory=20GiB")
    assert "done" in text


def test_the_page_runs():
    page = Path(__file__).parents[3] / "docs" / "elementwise.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert len(blocks) == 3 and all("\nassert " in block for block in blocks)      # what they compute is compared there
    names = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


def test_the_kernel_of_sleep_compiles(nvrtc, architecture):
    from minicaffe.addons.thc.kernel import _sleep
    size, log = compile_for(nvrtc, _sleep.source, architecture)
    assert size > 0, log


@pytest.mark.parametrize("kind", [CONTIGUOUS, 3, ANY, *(pytest.param(axes, marks=pytest.mark.slow(1)) for axes in (1, 2, 12))])
@pytest.mark.parametrize("index", ["unsigned", "unsigned long long"])
def test_the_source_compiles_for_every_gpu(nvrtc, architecture, kind, index):
    f = cuda.elementwise("T x, float64 k, int32 n", "T y, T z", "y = x * k; z = y + n", "checked")
    for real in "float", "double", "int":
        size, log = compile_for(nvrtc, f._source(real, (False, True, False, False, False), kind, index), architecture)
        assert size > 0, log
