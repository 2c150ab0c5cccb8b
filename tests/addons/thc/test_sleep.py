"""cuda.sleep: a device that is busy for a while."""

import time

import numpy as np
import pytest
from processes import run_gpu

import minicaffe
from minicaffe import cuda
from minicaffe.errors import ConfigError, WrongTypeError

pytestmark = pytest.mark.usefixtures("needs_compiler")


def test_duration():
    device = cuda.current()
    cuda.sleep(0)
    cuda.sleep(np.int64(1))
    device.synchronize()
    start, end = cuda.Event(device, timing=True), cuda.Event(device, timing=True)
    begin = time.perf_counter()
    start.record(cuda.computing(device))
    cuda.sleep(device.clock_rate // 20)
    end.record(cuda.computing(device))
    device.synchronize()
    assert time.perf_counter() - begin >= 0.05 and end.elapsed(start) >= 49


def test_on_a_stream_of_its_own():
    device = cuda.current()
    launches = device.launches
    cuda.sleep(device.clock_rate // 1000, cuda.Stream(device))
    cuda.sleep(1000, stream=device.copies)
    device.synchronize()
    assert device.launches == launches + 2


@pytest.mark.parametrize("cycles", [-1, 2**62 + 1, 0.5, "1", None, True])
def test_what_is_no_number_of_cycles(cycles):
    with pytest.raises(ConfigError, match=r"cuda.sleep.cycles: must be an integer from 0 to 2\^62, got .*clock_rate"):
        cuda.sleep(cycles)
    with pytest.raises(WrongTypeError, match="kernel mc_sleep: the stream must be a cuda.Stream, got 5"):
        cuda.sleep(1, 5)


def test_cpu_mode_is_refused():
    minicaffe.set_mode_cpu()
    with pytest.raises(ConfigError, match="GPU mode"):
        cuda.sleep(1)
    minicaffe.set_mode_gpu()


def test_host_does_not_wait(place):
    """With deferred=1 the simulated device, too, is not done until a thread waits."""
    text = run_gpu("""
    device = cuda.current()
    busy, mark = cuda.Stream(device), cuda.Event(device)
    cuda.sleep(device.clock_rate // 20, busy)
    mark.record(busy)
    assert not mark.done()
    mark.synchronize()
    assert mark.done()
    print("done")
    """, place, "deferred=1")
    assert "done" in text
