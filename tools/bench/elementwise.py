"""What cuda.elementwise spends on finding elements in strides, and what the specialised kernels bring (docs/elementwise.md).

    python tools/bench/elementwise.py

``y = 2 * x + b`` on a thousand elements, which fit in the first cache: the host compiler's code for the functor of
loops/strided/kernel.hpp is timed on one thread without vector instructions, and the instructions of the GPU's code for the same
functor are counted in what NVRTC makes of it for sm_90. Neither is a time on a GPU. With ``--device gpu`` the kernels
themselves are timed there; ``--device sim`` rehearses that.
"""

import argparse
import ctypes
import os
import shlex
import struct
import subprocess
import tempfile
import time

import numpy as np
from turns import turns

from minicaffe.addons.thc import walk as walks
from minicaffe.addons.thc.walk import ANY, CONTIGUOUS, Walk
from minicaffe.cuda import compile
from minicaffe.device.strided import DeviceArray
from minicaffe.errors import DependencyError

KINDS = {CONTIGUOUS: "contiguous data", 1: "1 axis", 2: "2 axes", 3: "3 axes", ANY: "any axes"}
SHAPES = {1: (1024,), 2: (32, 32), 3: (10, 10, 10), 4: (6, 6, 6, 6)}
REPEAT = 100  # a call of a C function from Python takes as long as some hundred elements
SOURCE = """
#include "minicaffe/loops/strided/kernel.hpp"
using namespace mc;
using number = INDEX;

struct Flat {  // contiguous data: the index is the offset
  MC_HD void offsets(index_t i, index_t (&at)[3]) const { at[0] = at[1] = at[2] = i; }
};
template <class Index, int Axes> struct Plain : OffsetInfo<Index, 3, Axes> {  // with the processor's own division
  MC_HD void offsets(index_t i, index_t (&at)[3]) const {
    Index rest = Index(i), sum[3] = {};
    for (int a = (Axes == kAnyAxes ? this->axes : Axes) - 1; a > 0; --a) {
      Index quotient = rest / this->size.divisor[a], position = rest - quotient * this->size.divisor[a];
      for (int t = 0; t < 3; ++t) sum[t] += position * this->stride[a][t];
      rest = quotient;
    }
    for (int t = 0; t < 3; ++t) at[t] = signed_(sum[t] + rest * this->stride[0][t]);
  }
};
#ifdef __CUDACC_RTC__
extern "C" __global__ void walk(const float* x, const float* b, float* y, const INFO info, long long n) {
  for (number i = blockIdx.x * blockDim.x + threadIdx.x; i < number(n); i += gridDim.x * blockDim.x) {
#else
extern "C" void walk(const float* x, const float* b, float* y, const INFO& given, long long n, long long repeat) {
  const INFO info = given;  // a kernel has it by value
  for (number r = 0, i = 0; r < number(repeat); ++r, i = 0) for (; i < number(n); ++i) {
#endif
    index_t at[3];
    info.offsets(i, at);
    y[at[2]] = 2 * x[at[0]] + b[at[1]];
  }
}
"""


def host_function(info, index, folder):
    """Compile the loop with g++ and return it."""
    library = os.path.join(folder, f"{abs(hash((info, index)))}.so")
    subprocess.run([*shlex.split(os.environ.get("CXX", "g++")), "-O2", "-fno-tree-vectorize", "-std=c++17", "-shared", "-fPIC",
                    f"-I{compile.package_folder().parent}", f"-DINFO={info}", f"-DINDEX={index}", "-x", "c++", "-",
                    "-o", library], input=SOURCE, text=True, check=True)
    return ctypes.CDLL(library).walk


def gpu_instructions(info, index):
    """Count the instructions of the kernel for sm_90, of 16 bytes each, without the padding behind; None without NVRTC."""
    try:
        cubin, _ = compile.compile_cubin(SOURCE, "walk", ("--gpu-architecture=sm_90", *compile.OPTIONS, f"-DINFO={info}",
                                                          f"-DINDEX={index}"))
    except DependencyError:
        return None
    start, = struct.unpack_from("<Q", cubin, 40)
    size, number, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(number)]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        if cubin[begin : cubin.index(b"\0", begin)] == b".text.walk":
            code = [cubin[offset + i : offset + i + 16] for i in range(0, length, 16)]
            while code[-1] == code[-2]:  # the kernel is filled up with NOPs behind a jump to itself
                code.pop()
            return len(code) - 2
    raise AssertionError("the cubin has no section .text.walk")


def gapped(axes):
    """Return an array on the host of SHAPES[axes] with gaps, so that none of its axes can be joined."""
    shape = SHAPES[axes]
    host = np.ones(2 * shape[0] if axes == 1 else [n + 1 for n in shape], np.float32)
    view = host[::2] if axes == 1 else host[(slice(-1),) * axes]
    return DeviceArray(view.ctypes.data, view.shape, view.dtype, host, view.strides)


def least(runners, rounds):
    """Return the least nanoseconds of processor time of one call of each; other programs only add to it."""
    times = dict.fromkeys(runners, float("inf"))
    for _ in range(rounds):
        for name, run in runners.items():
            start = time.thread_time_ns()
            run()
            times[name] = min(times[name], time.thread_time_ns() - start)
    return times


def functor(options):
    """Print the table of docs/elementwise.md."""
    rows, runners, keep = {}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        for index, most in ("unsigned", 2**31 - 1), ("unsigned long long", 0):
            walks.MOST = most
            for axes, kind in [(1, CONTIGUOUS), (1, 1), (1, ANY), (2, 2), (2, ANY), (3, 3), (3, ANY), (4, ANY)]:
                arrays = [gapped(axes) for _ in range(3)]
                walk = Walk(arrays)
                assert walk.index == index and len(walk.axes) == axes
                walk.kind = kind
                packed = walk.pack() if kind != CONTIGUOUS else (ctypes.c_char * 1)()
                keep.append((arrays, packed))
                for division in ("multiplied", "divided") if axes > 1 and index == "unsigned" else ("",):
                    info = "Flat" if kind == CONTIGUOUS else (f"Plain<{index}, {kind}>" if division == "divided" else
                                                              f"OffsetInfo<{index}, 3, {kind}>")
                    name = KINDS[kind], "-" if kind == CONTIGUOUS else axes, index, division
                    call, arguments = host_function(info, index, folder), [ctypes.c_void_p(a.address) for a in arrays]
                    arguments += [packed, ctypes.c_longlong(walk.count), ctypes.c_longlong(REPEAT)]
                    runners[name] = lambda call=call, arguments=arguments: call(*arguments)
                    rows[name] = walk.count, gpu_instructions(info, index)
        times = least(runners, options.rounds)
    print("| kernel for | axes of the data | index | division | ns an element, host | instructions, sm_90 |")
    print("|---|---|---|---|---|---|")
    for (kind, axes, index, division), (count, instructions) in rows.items():
        nanoseconds = times[kind, axes, index, division] / count / REPEAT
        bits = 32 if index == "unsigned" else 64
        print(f"| {kind} | {axes} | {bits} bits | {division} | {nanoseconds:.2f} | {instructions or 'no NVRTC'} |")


def on_device(options):
    """Time the kernels themselves on views of about `--mib` MiB, for each kind of them."""
    from minicaffe import cuda, set_mode_gpu
    from minicaffe.blob import Blob
    os.environ["MINICAFFE_DEVICE"] = options.device
    set_mode_gpu()
    f = cuda.elementwise("T x, T b", "T y", "y = 2 * x + b", "axpb")
    elements = 4096 if options.device == "sim" else options.mib << 18
    runners, counts = {}, {}
    for axes in 0, 1, 2, 3, 4:
        side = round(elements ** (1 / (axes or 1)))
        blobs = [Blob((2 * side,) if axes == 1 else (side + (axes > 0),) * (axes or 1)) for _ in range(3)]
        arrays = [blobs[0].gpu_data, blobs[1].gpu_data, blobs[2].mutable_gpu_data]
        views = [a[::2] if axes == 1 else a[(slice(side),) * (axes or 1)] for a in arrays]
        kind = Walk(views).kind
        runners[KINDS[kind]], counts[KINDS[kind]] = lambda views=views: f(*views), views[0].size
    times = turns(runners, cuda.current().synchronize, options.rounds // 10)
    print("| kernel for | elements | ms | GB/s of elements read and written |\n|---|---|---|---|")
    for kind, seconds in times.items():
        print(f"| {kind} | {counts[kind]:,} | {1e3 * seconds:.4g} | {12e-9 * counts[kind] / seconds:.4g} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "sim", "gpu"], default="cpu")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--mib", type=int, default=256, help="MiB of each operand on a GPU")
    given = parser.parse_args()
    functor(given) if given.device == "cpu" else on_device(given)
