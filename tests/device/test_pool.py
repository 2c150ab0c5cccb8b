"""The threads that share CPU loops: their number, the pool behind them, and nets that use it from several Python threads."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cplusplus import compiler
from helpers import layer_text

import minicaffe as caffe
from minicaffe.device.threads import threads_by_variable, usable_processors
from minicaffe.engines.onednn import library
from minicaffe.errors import ConfigError, DependencyError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
NET = (layer_text("DummyData", "x", more="dummy_data_param { shape { dim: 16 dim: 8 dim: 24 dim: 24 } data_filler { type: 'gaussian' } }")
       + layer_text("Convolution", "conv", "x", more="convolution_param { num_output: 24 kernel_size: 3 weight_filler { type: 'xavier' } }")
       + layer_text("ReLU", "relu", "conv", "conv") + layer_text("Pooling", "pool", "conv", more="pooling_param { kernel_size: 2 stride: 2 }"))


def make_net(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    caffe.set_random_seed(3)
    return caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)


@pytest.mark.slow(4)
@pytest.mark.parametrize("sanitizer", ["", "-fsanitize=thread"])
def test_the_pool_runs_each_part_once(tmp_path, sanitizer):
    program = str(tmp_path / "pool")
    build = subprocess.run([*compiler(), "-std=c++17", "-O2", "-g", *sanitizer.split(), f"-I{ROOT}", str(HERE / "pool.cpp"), "-o",
                            program, "-pthread"], capture_output=True, text=True)
    if sanitizer and ("libtsan" in build.stderr or "unsupported" in build.stderr):
        pytest.skip("the compiler has no ThreadSanitizer")
    assert build.returncode == 0, build.stderr[-3000:]
    done = subprocess.run([program, "300" if sanitizer else "800"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TSAN_OPTIONS": "exitcode=66 die_after_fork=0"})
    if sanitizer and "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run on this kernel")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.endswith(" loops\n")


def test_more_threads_than_processors(tmp_path, on_cpu):
    net = make_net(tmp_path)
    results = []
    for threads in (1, 2, 7, 40):
        caffe.set_num_threads(threads)
        assert caffe.get_num_threads() == threads
        net.forward(start="conv")
        results.append(net.blobs["pool"].data.copy())
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-5, atol=1e-6)


def test_nets_share_the_pool(tmp_path, on_cpu):
    caffe.set_num_threads(3)
    nets = [make_net(tmp_path) for _ in range(4)]
    expected = [net.forward()["pool"].copy() for net in nets]

    def work(net, wanted):
        for _ in range(30):
            net.forward(start="conv")
            np.testing.assert_array_equal(net.blobs["pool"].data, wanted)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, nets, expected))


@pytest.mark.parametrize("engine", ["caffe", "onednn"])
def test_a_forked_child_computes(tmp_path, on_cpu, engine):
    """Threads do not survive a fork; the child's loops start their own, and what oneDNN's layouts hold is read without its threads."""
    if engine == "onednn":
        try:
            library.version()
        except DependencyError as error:
            pytest.skip(str(error))
    (tmp_path / "net.prototxt").write_text(NET)
    code = ("import os, sys, minicaffe as caffe\n"
            "caffe.set_num_threads(4)\n"
            f"net = caffe.Net({str(tmp_path / 'net.prototxt')!r}, caffe.TEST)\n"
            "net.forward(); before = net.blobs['pool'].data.copy()\n"
            "child = os.fork()\n"
            "net.forward(start='conv')\n"
            "same = abs(net.blobs['pool'].data - before).max() <= 1e-5 * abs(before).max()\n"
            "if child == 0: os._exit(0 if same else 3)\n"
            "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not same)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu", "MINICAFFE_ENGINE": engine})
    assert done.returncode == 0, done.stderr


def test_idle_threads_sleep(tmp_path, on_cpu):
    """After a loop the workers look out for the next one for a bounded time only."""
    caffe.set_num_threads(4)
    net = make_net(tmp_path)
    net.forward()
    threading.Event().wait(0.2)
    before = os.times()
    threading.Event().wait(0.5)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.25, "0.5 s of doing nothing cost processor time"


def test_the_threads_of_the_environment(monkeypatch, caplog):
    """None: not given. False: no number of threads, which a warning says in one line that is not long."""
    for used, *texts in (
            (None, "", " ", ",4"), (1, "1"), (2, " 2 , 4", "\N{ARABIC-INDIC DIGIT TWO}"), (3, "3", "00000003"), (7, "0007"), (1024, "1024"),
            (False, "0", "1025", "000000003", "9" * 5000, "-3", "+3", "2.0", "1_0", "two", "\N{SUPERSCRIPT TWO}")):
        for given in texts:
            caplog.clear()
            monkeypatch.setenv("OMP_NUM_THREADS", given)
            assert threads_by_variable(warn=True) == (used or None), given
            said = f"OMP_NUM_THREADS must be a number, 1 to 1024, got '{given[:40]}'; it is not used"
            assert caplog.messages == [said] * (used is False), given


def test_most_threads_by_default(monkeypatch, tmp_path):
    assert usable_processors(tmp_path) == min(1024, PROCESSORS)     # without cgroups the affinity counts
    for processors in 1, 1023, 1024, 1025, 3000:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, processors=processors: range(processors), raising=False)
        assert usable_processors(tmp_path) == min(processors, 1024)
    for number in 0, -1, 1025, 99999999999:
        with pytest.raises(ConfigError, match=f"number of threads must be 1 to 1024, got {number}"):
            caffe.set_num_threads(number)


@pytest.mark.parametrize("processors", [1, 3, 64])
def test_quota_of_a_container(tmp_path, monkeypatch, processors):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(processors)), raising=False)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for text, quota in (("50000 100000", 0.5), ("150000 100000", 1.5), ("100000 100000", 1),
                        *((text, 1024) for text in ("max 100000", "nonsense", "", "50000 0", "0 100000", "-1 100000", "50000"))):     # no quota of a period
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text + "\n")
        assert usable_processors(tmp_path) == max(1, min(processors, int(-(-quota // 1)))), text
