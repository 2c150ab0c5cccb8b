"""oneDNN's parallel regions on the threads of our own loops (engines/onednn/openmp.hpp), by a small library that calls OpenMP as it does.
Small work is not divided: a region would wait until the system has scheduled each of the threads."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_engine_onednn import conv, engines, input_layer, layer, make, step

from minicaffe.device.threads import set_num_threads
from minicaffe.engines import engine
from minicaffe.engines.onednn import library
from minicaffe.errors import DependencyError

REGIONS = """
#include <omp.h>
#include <stdbool.h>
void GOMP_parallel_start(void (*)(void*), void*, unsigned);
void GOMP_parallel_end(void);
bool GOMP_loop_static_start(long, long, long, long, long*, long*);
bool GOMP_loop_static_next(long*, long*);
void GOMP_loop_end_nowait(void);

// Each member writes who it is, waits for the others, and counts those who have written.
int meet(int threads, int* size, int* seen, int* inner) {
  #pragma omp parallel num_threads(threads)
  {
    const int i = omp_get_thread_num();
    size[i] = omp_get_num_threads();
    for (int round = 0; round < 100; ++round) {
      #pragma omp barrier
    }
    for (int k = 0; k < threads; ++k) seen[i] += size[k] == threads;
    #pragma omp parallel num_threads(3)
    { inner[i] += 10 * omp_get_num_threads() + omp_get_thread_num() + 100 * omp_in_parallel(); }
  }
  return 10 * omp_get_num_threads() + omp_get_thread_num() + 100 * omp_in_parallel();
}
int most(void) { return omp_get_max_threads(); }

struct loop { long begin, end, step, chunk; int *who; };
static void share(void* data) {
  struct loop* loop = data;
  long first, last;
  if (GOMP_loop_static_start(loop->begin, loop->end, loop->step, loop->chunk, &first, &last))
    do {
      for (long i = first; loop->step > 0 ? i < last : i > last; i += loop->step) loop->who[i] += 1 + omp_get_thread_num();
    } while (GOMP_loop_static_next(&first, &last));
  GOMP_loop_end_nowait();
}
void loop(int threads, long begin, long end, long step, long chunk, int* who) {
  struct loop made = {begin, end, step, chunk, who};
  GOMP_parallel_start(share, &made, threads);
  share(&made);
  GOMP_parallel_end();
}
"""
UNKNOWN = """
int count(void) {
  int n = 0;
  #pragma omp parallel
  #pragma omp critical
  ++n;
  return n;
}
"""


def compiled(folder, name, source):
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / f"{name}.c").write_text(source)
    done = subprocess.run([compiler, "-O1", "-fopenmp", "-shared", "-fPIC", folder / f"{name}.c", "-o", folder / f"{name}.so"],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the C compiler has no OpenMP: {done.stderr[:200]}")
    return ctypes.CDLL(folder / f"{name}.so"), str(folder / f"{name}.so")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A library whose regions run on our threads, as those of oneDNN do."""
    handle, path = compiled(tmp_path_factory.mktemp("regions"), "regions", REGIONS)
    library.redirect_openmp(handle, path)
    return handle


@pytest.fixture
def regions(onednn, loaded):
    return loaded


def make_net(threads, images=8):
    set_num_threads(threads)
    return make(input_layer((images, 32, 20, 20)) + conv("a", "x", "y", "num_output: 32 kernel_size: 1")
                + conv("b", "y", "z", "num_output: 32 kernel_size: 1 stride: 2"))


def integers(count):
    return (ctypes.c_int * count)()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_region_members_run_at_once(regions, threads):
    engine.prefer("CAFFE")
    step(make_net(threads, images=64))     # starts the threads
    there = len(os.listdir("/proc/self/task"))
    engine.prefer("ONEDNN")
    net = make_net(threads, images=64)
    step(net)
    assert set(engines(net)) == {"ONEDNN"}
    for _ in range(50):
        size, seen, inner = integers(threads), integers(threads), integers(threads)
        assert regions.meet(threads, size, seen, inner) == 10
        assert list(size) == list(seen) == [threads] * threads
        # Alone in a region of its own, which is one of several threads outside.
        assert list(inner) == ([110] * threads if threads > 1 else [10])
    assert regions.most() == threads and len(os.listdir("/proc/self/task")) == there


@pytest.mark.parametrize("begin, end, by", [(0, 17, 1), (0, 3, 1), (2, 17, 3), (16, -1, -1), (15, 2, -4), (5, 5, 1)])
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_members_share_a_loop(regions, begin, end, by, chunk):
    step(make_net(4))
    who = integers(17)
    regions.loop(4, begin, end, by, chunk, who)
    mine = range(begin, end, by)
    expected = [0] * 17
    parts = [mine[k:k + chunk] for k in range(0, len(mine), chunk)] if chunk else [list(part) for part in np.array_split(mine, 4)]
    for k, part in enumerate(parts):
        for i in part:
            expected[i] = 1 + k % 4
    assert list(who) == expected


def test_library_with_unknown_calls_unchanged(onednn, tmp_path):
    handle, path = compiled(tmp_path, "unknown", UNKNOWN)
    with pytest.raises(DependencyError, match=r"unknown.so cannot use the threads of minicaffe \(calls GOMP_critical_(start|end)\); pip install onednn"):
        library.redirect_openmp(handle, path)
    assert handle.count() >= 1


# ---- small work

SMALL_STACK = input_layer((1, 16, 7, 7)) + conv("c", "x", "y", "num_output: 16 kernel_size: 3") + layer("LRN", "y", "n")
SMALL = {
    "few channels": input_layer((1, 3, 7, 7)) + conv("c", "x", "y", "num_output: 16 kernel_size: 3 pad: 1"),
    "deconvolution": input_layer((1, 16, 7, 7)) + conv("c", "x", "y", "num_output: 16 kernel_size: 2").replace("Con", "Decon"),
    "stack": SMALL_STACK + layer("Pooling", "n", "p", "pooling_param { kernel_size: 3 stride: 2 pool: MAX }"),
    "recurrent": input_layer((3, 8, 8)) + input_layer((3, 8), "cont")
    + layer("LSTM", "x cont", "h", 'recurrent_param { num_output: 8 weight_filler { type: "xavier" } }'),
}
# A loop of our own, which waits for no thread, is divided from a tenth of that on.
SMALL_REGION = {"kernel 7x7": input_layer((1, 3, 12, 12)) + conv("c", "x", "y", "num_output: 16 kernel_size: 7 pad: 3")}
LARGE = input_layer((4, 32, 40, 40)) + conv("c", "x", "y", "num_output: 32 kernel_size: 3 pad: 1")
# Prints the number of threads that some steps of each net start.
STARTED = """
import os, sys
engine_requested, folder, *nets = sys.argv[1:]
sys.path[:0] = [folder, os.path.dirname(os.path.dirname(folder))]
from test_engine_onednn import make, step
from minicaffe.device.threads import set_num_threads
from minicaffe.engines import engine
engine.prefer(engine_requested)
for text in nets:
    before = len(os.listdir("/proc/self/task"))
    set_num_threads(1)
    net = make(text)
    set_num_threads(3)
    for _ in range(3):
        step(net)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(("name", "small"), [("ONEDNN", SMALL | SMALL_REGION), ("WINOGRAD", SMALL), ("CAFFE", SMALL)])
def test_small_work_starts_no_thread(onednn, name, small):
    arguments = [name, str(Path(__file__).parent), *small.values(), LARGE]
    done = subprocess.run([sys.executable, "-c", STARTED, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert dict(zip([*small, "large"], map(int, done.stdout.split()))) == {**dict.fromkeys(small, 0), "large": 2}
