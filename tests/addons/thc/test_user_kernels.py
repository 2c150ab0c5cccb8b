"""cuda.kernel and cuda.elementwise: arguments, shapes, limits, and every message that a user can get."""

import ctypes
import mmap
import os
import subprocess

import numpy as np
import pytest
from strided_arrays import blob_of

import minicaffe
from minicaffe import cuda, memory, sim
from minicaffe.addons.thc import kernel as custom
from minicaffe.addons.thc.kernel import renamed
from minicaffe.blob import Blob
from minicaffe.cuda import compile
from minicaffe.errors import ConfigError, DependencyError, DeviceError, WrongTypeError
from minicaffe.memory import CUDAPlace

pytestmark = pytest.mark.usefixtures("needs_compiler")
FLOAT, DOUBLE, INT = 0, 1, 2
AXPY = """
extern "C" __global__ void axpy(float a, const float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""


def test_kernels_on_blobs():
    axpy = cuda.kernel(AXPY, "axpy")
    for n in 1, 255, 256, 257, 5000:
        x, y = blob_of(np.arange(n)), blob_of(np.ones(n))
        axpy((-(-n // 256),), (256,), (np.float32(2), x, y, n))
        np.testing.assert_array_equal(y.cpu_data, 2 * np.arange(n, dtype=np.float32) + 1)
    assert "axpy" in repr(axpy) or axpy.name == "axpy"
    source = """extern "C" __global__ void all(double* out, float f, double d, long long l, int i, unsigned char b, bool t,
      const float* diff) { out[0] = f; out[1] = d; out[2] = l; out[3] = i; out[4] = b; out[5] = t; out[6] = diff[1]; }"""
    out, x = Blob((7,), DOUBLE), Blob((2,))
    x.diff[...] = 9
    cuda.kernel(source, "all")((1,), (1,), (out, np.float32(1.5), 2.25, -(1 << 40), np.int32(-7), np.uint8(200), True, x.gpu_diff))
    np.testing.assert_array_equal(out.cpu_data, [1.5, 2.25, -(1 << 40), -7, 200, 1, 9])
    x = blob_of(np.ones(10))
    cuda.kernel(AXPY, "axpy")((1,), (32,), (np.float32(1), x, x, 10))
    assert (x.cpu_data == 2).all()  # the host's copy was stale and was copied again
    x.data[...] = 5
    cuda.kernel(AXPY, "axpy")((1,), (32,), (np.float32(1), x, x, 10))
    assert (x.data == 10).all()
    source = 'extern "C" __global__ void fill(int* out) { out[threadIdx.x] = N; }'
    out = Blob((8,), INT)
    for n in 5, 6, 5:   # what was compiled with others does not serve
        cuda.kernel(source, "fill", [f"-DN={n}"])((1,), (8,), (out,))
        assert (out.cpu_data == n).all()


def test_memory_of_running_kernels():
    """Their memory is not reused while a stream other than the computing one may still run the kernel."""
    x, y, line = blob_of(np.ones(1 << 14)), blob_of(np.ones(1 << 14)), cuda.Stream(cuda.current())
    x.gpu_data, y.mutable_gpu_data      # noqa: B018  (on the device)
    cuda.current().synchronize()
    cuda.kernel(AXPY, "axpy")((64,), (256,), (np.float32(2), x, y, 1 << 14), stream=line)
    allocator = memory.allocator_of(CUDAPlace(cuda.current().index))
    before = allocator.stats().waiting
    del x, y
    assert allocator.stats().waiting - before >= 2 << 16
    line.synchronize()


def test_number_equal_to_host_address():
    class Rows(ctypes.Structure):
        _fields_ = [("x", ctypes.c_void_p * 2), ("n", ctypes.c_longlong)]

    source = """struct Rows { const float* x[2]; long long n; };
      extern "C" __global__ void add(long long* out, long long n, Rows rows) { out[0] = n + rows.n; }"""
    pages = mmap.mmap(-1, 4096)    # beyond 4 GiB, where addresses are checked
    host, out = np.frombuffer(pages).ctypes.data, Blob((2,))
    add = cuda.kernel(source, "add")
    add((1,), (1,), (out, host, Rows((0, 0), host)))
    assert out.cpu_data.view(np.int64)[0] == 2 * host
    if sim.selected():      # a GPU checks no pointer that its kernel does not use
        with pytest.raises(DeviceError, match=rf"kernel add, argument 2, byte 8: {host:#x} is a host address"):
            add((1,), (1,), (out, 0, Rows((0, host), 0)))


def test_three_dimensions_and_shared_memory():
    source = """extern "C" __global__ void where(int* out) {
      extern __shared__ int part[];
      int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      int threads = blockDim.x * blockDim.y * blockDim.z;
      part[t] = t;
      __syncthreads();
      int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      out[block * threads + t] = 1000 * block + part[threads - 1 - t];
    }"""
    grid, block = (3, 2, 2), (4, 3, 2)
    out = Blob((12, 24), INT)
    cuda.kernel(source, "where")(grid, block, (out,), shared=4 * 24)
    np.testing.assert_array_equal(out.cpu_data, 1000 * np.arange(12)[:, None] + np.arange(24)[::-1])


@pytest.mark.slow(1)
def test_keys_of_libraries(sim, cache, monkeypatch):
    """Of the simulated device's cache; that of NVRTC's cubins is in test_kernel_cache."""
    compiled, compiler_version = [], subprocess.run(["true"], capture_output=True, text=True)
    both = AXPY + AXPY.replace("axpy", "axpby")
    library = ctypes.CDLL(cuda.kernel(AXPY, "axpy")._simulated_image() and os.fspath(next(cache.glob("*.so"))))
    monkeypatch.setattr(custom.Kernel, "_compile_host", lambda self, compiler, text, include, path: compiled.append(path) or library)
    monkeypatch.setattr(custom.compile, "cache_folder", lambda: cache / "empty")
    monkeypatch.setattr(custom.subprocess, "run", lambda *arguments, **options: compiler_version)

    def compile_again(source=both, name="axpy", options=()):
        cuda.kernel(source, name, options)._simulated_image()

    compile_again()
    compile_again()
    assert len(set(compiled)) == 1
    for options in ["-DN=1"], ["-DN=2"], ["-DN=1", "-DM=2"], ["-DM=2", "-DN=1"], ["-DN=1-DM=2"], ["-O0"]:
        compile_again(options=options)
    compile_again(both.replace("a * x", "2 * a * x"))
    compile_again(name="axpby")
    compiler_version.stdout = "g++ 99"
    compile_again()
    headers = compile.kernel_headers()
    (cache / "changed.hpp").write_text("// changed")
    monkeypatch.setattr(custom.compile, "kernel_headers", lambda: {**headers, next(iter(headers)): cache / "changed.hpp"})
    compile_again()
    assert len(set(compiled)) == len(compiled) - 1 == 11


@pytest.mark.parametrize(("grid", "block", "shared"), [
    ((1,), (1025,), 0), ((1, 70000), (32,), 0), ((1, 1, 70000), (32,), 0),
    ((1,), (32, 64), 0), ((1,), (1, 1, 65), 0), ((1,), (32,), 1 << 20)])  # fmt: skip
def test_launch_limits(grid, block, shared):
    x = blob_of(np.zeros(10))
    with pytest.raises(DeviceError, match="cuLaunchKernel.*CUDA_ERROR_INVALID_VALUE"):
        cuda.kernel(AXPY, "axpy")(grid, block, (np.float32(1), x, x, 10), shared=shared)
    assert x.asum_data() == 0  # the device still works


@pytest.mark.parametrize(("wrong", "what"), [("text", "str"), (np.float16(1), "float16"), (None, "NoneType"), ([1, 2], "list"), (np.zeros(3), "ndarray")])
def test_arguments_of_other_types(wrong, what):
    with pytest.raises(WrongTypeError, match=f"argument 1: a kernel takes blobs, numbers and arrays on the device, got {what}"):
        cuda.kernel(AXPY, "axpy")((1,), (32,), (np.float32(1), wrong, wrong, 10))
    for number in 2**63, -2**63 - 1:
        with pytest.raises(WrongTypeError, match=f"argument 3: an int becomes a long long, which cannot hold {number}"):
            cuda.kernel(AXPY, "axpy")((1,), (32,), (np.float32(1), blob_of([1.0]), blob_of([1.0]), number))


@pytest.mark.parametrize("size", [1, (), (1, 1, 1, 1), (2**32,), (0,), (-1,), (1.5,), None])
def test_grids_and_blocks_that_cannot_be(size):
    for grid, block, field in (size, (32,), "grid"), ((1,), size, "block"):
        with pytest.raises(ConfigError, match=f"{field}: kernel axpy: must be a tuple of 1 to 3 integers from 1 to"):
            cuda.kernel(AXPY, "axpy")(grid, block, (np.float32(1), blob_of([1.0]), blob_of([1.0]), 1))


def test_source_that_does_not_compile():
    broken = AXPY.replace("a * x[i]", "a * nothing[i]")
    with pytest.raises(DeviceError) as caught:
        cuda.kernel(broken, "axpy")((1,), (32,), (np.float32(1), blob_of([1.0]), blob_of([1.0]), 1))
    text = str(caught.value)
    assert "axpy does not compile" in text and "nothing" in text
    assert "   4   if (i < n) y[i] = a * nothing[i] + y[i];" in text
    assert "axpy.cu:4" in text or "kernel.cu(4)" in text or "(4)" in text, text  # the log says the same number
    with pytest.raises(ConfigError, match="holds no function 'saxpy'"):
        cuda.kernel(AXPY, "saxpy")
    with pytest.raises(DeviceError, match="wrong does not compile(.|\n)*   1 extern") as caught:
        cuda.elementwise("T x", "T y", "y = wibble(x)", "wrong")(Blob((3,)), Blob((3,)))
    assert "wibble" in str(caught.value)


NAMES = {
    "of a function of CUDA": ("all", 'extern "C" __global__ void all(float* out, float x) { out[threadIdx.x] = x; }'),
    "of one that is extern C, which is called": (
        "min", 'extern "C" __global__ void min(float* out, float x) { out[threadIdx.x] = min(x, 1e9f); }'),
    "of one of the C library": ("index", 'extern "C" __global__ void index(float* out, float x) { out[threadIdx.x] = x; }'),
    "with C++ linkage": ("all", "__global__ void all(float* out, float x) { out[threadIdx.x] = x; }"),
    "with C++ linkage, of none": ("put", "__global__ void put(float* out, float x) { out[threadIdx.x] = x; }"),
    "of a field": ("x", 'extern "C" __global__ void x(float* out, float value) { out[threadIdx.x] = value; }'),
    "in a block, declared before": (
        "any", 'extern "C" {\n__global__ void any(float*, float);\n\n__global__ void any(float* out, float x) { out[threadIdx.x] = x; }\n}'),
    "in comments, strings and launch bounds": (
        "min", '''// a __global__ min(a, b) with a float* min (of one)
        __device__ const char text[] = "__global__ void min(float*)";
        extern "C" __global__ void __launch_bounds__(sizeof(min(256, 512)))
        min  (float* out, float x) { /* min(x) */ out[threadIdx.x] = x; }'''),
    "of a template": ("put<float>", "template <class T> __global__ void put(T* out, T x) { out[threadIdx.x] = x; }"),
    "in a namespace, of a template": (
        "mine::put<float, 1>", "namespace mine { template <class T, int N> __global__ void put(T* out, T x) { out[threadIdx.x] = N * x; } }"),
}


@pytest.mark.parametrize(("name", "source"), [
    pytest.param(*case, marks=[pytest.mark.slow(1)] * (not title.startswith(("of one that", "in comments"))), id=title)
    for title, case in NAMES.items()])
def test_names(name, source, cache):
    out = Blob((4,))
    cuda.kernel(source, name)((1,), (4,), (out, np.float32(3)))
    assert (out.cpu_data == 3).all()
    try:        # and with NVRTC
        compile.nvrtc()
    except DependencyError as error:
        pytest.skip(str(error))
    cubin, symbol = compile.image(*renamed(source, name), "sm_90")
    assert f"\0.text.{symbol}\0".encode() in cubin
    if name.isidentifier() and "extern" in source:
        assert symbol == f"mc_kernel_{name}"   # as profilers show it


def test_cpu_mode_is_refused():
    minicaffe.set_mode_cpu()
    x = blob_of(np.ones(3))
    with pytest.raises(ConfigError, match=r"kernel axpy needs GPU mode; call set_mode_gpu\(\) first"):
        cuda.kernel(AXPY, "axpy")((1,), (32,), (np.float32(1), x, x, 3))
    with pytest.raises(ConfigError, match="GPU mode"):
        cuda.elementwise("T x", "T y", "y = x")(x, Blob((3,)))
    minicaffe.set_mode_gpu()


@pytest.mark.slow(1)
def test_damaged_cache_or_no_compiler(sim, cache, tmp_path, monkeypatch, caplog):
    def run():
        x = blob_of(np.ones(4))
        cuda.kernel(AXPY, "axpy")((1,), (32,), (np.float32(1), x, x, 4))
        assert (x.cpu_data == 2).all()

    run()
    library, = cache.glob("*.so")
    library.unlink()  # the loaded one keeps its pages
    library.write_bytes(b"no library")
    run()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINICAFFE_CACHE", str(tmp_path / "file" / "cache"))
    run()
    assert "cannot keep what is compiled" in caplog.text and "MINICAFFE_CACHE" in caplog.text
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DependencyError, match=r"kernel axpy: .* only with a C\+\+ compiler .*apt install g\+\+"):
        run()


def test_elementwise_types_and_outputs():
    both = cuda.elementwise("T x, T a, int32 k", "T sum, T product", "sum = x + a * k; product = x * a", "both")
    x, s, p = blob_of(np.arange(6.0)), Blob((6,)), Blob((6,))
    both(x, 0.5, 4, s, p)
    np.testing.assert_array_equal(s.cpu_data, np.arange(6) + 2)
    np.testing.assert_array_equal(p.cpu_data, np.arange(6) / 2)
    both(2.0, x, 1, s, p)  # a number where a blob was, and the other way round
    np.testing.assert_array_equal(s.cpu_data, 2 + np.arange(6))
    squared = cuda.elementwise("T x, T y", "T z", "z = (x - y) * (x - y)", "squared")
    for dtype, shape in (FLOAT, (257,)), (DOUBLE, (3, 5, 7)), (DOUBLE, (256,)):
        x, y, z = [blob_of(np.random.default_rng(i).standard_normal(shape), dtype) for i in range(3)]
        squared(x, y, z)
        np.testing.assert_allclose(z.cpu_data, (x.cpu_data - y.cpu_data) ** 2, rtol=1e-6 if dtype == FLOAT else 1e-15)
    x, empty = blob_of(np.arange(6.0)), Blob((0, 3))
    both(empty, 1, 1, Blob((0, 3)), Blob((0,)))
    count = cuda.elementwise("T i, int32 n", "float64 i_", "i_ = double(i) * n", "mixed")
    x, n, y = blob_of(np.arange(5.0)), blob_of([1, 2, 3, 4, 5], INT), Blob((5,), DOUBLE)
    count(x, n, y)
    np.testing.assert_array_equal(y.cpu_data, [0, 2, 6, 12, 20])
    f = cuda.elementwise("T x, float64 y", "T z", "z = x + y", "typed")
    with pytest.raises(WrongTypeError, match="typed: y must be an array of double, got one of float"):
        f(Blob((5,)), Blob((5,)), Blob((5,)))  # else the second half would be read from beyond its end
    with pytest.raises(WrongTypeError, match="typed: z must be an array of float, got one of double"):
        f(Blob((5,)), 1.0, Blob((5,), DOUBLE))
    for name in "exp", "all":
        x, y = blob_of([0.0, 1.0]), Blob((2,))
        cuda.elementwise("T x", "T y", "y = exp(x)", name)(x, y)
        np.testing.assert_allclose(y.cpu_data, np.exp([0, 1]), rtol=1e-6)


@pytest.mark.parametrize(("inputs", "outputs", "name", "words"), [
    ("Q x", "T y", "f", "'Q x' is not a parameter; write a type of"), ("T", "T y", "f", "'T' is not a parameter"),
    ("T x, ", "T y", "f", "is not a parameter"), ("T x", "T y z", "f", "'T y z'"), ("T x", "T 1y", "f", "1y"),
    ("T x, int n", "T x", "f", "a name comes twice in x, n, x"),
    ("T x", "T y", "my kernel", "must be an identifier"), ("T x", "T y", "", "must be an identifier")])  # fmt: skip
def test_elementwise_wrong_definitions(inputs, outputs, name, words):
    with pytest.raises(ConfigError, match=words):
        cuda.elementwise(inputs, outputs, "y = x", name)
