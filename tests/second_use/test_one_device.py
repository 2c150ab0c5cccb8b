"""One device through any sequence of streams, events, graphs, kernels and freed blocks: each blob holds what the host computes.

The work is ordered by events as a user must order it, so nothing may be wrong on a device that runs late (deferred=1), looks for races
(race=1), or for reads of what was never written (uninitialized=1).
"""

import gc

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import minicaffe
from minicaffe import cuda, memory
from minicaffe.blob import Blob
from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace


@pytest.fixture(scope="module", autouse=True)
def on_a_device(request):
    """What a device does: the run on the simulated device has it."""
    if request.config.getoption("--device") == "cpu":
        pytest.skip("what a device does after changes and errors: pytest --device sim, as .ci/run does")


MIX = """extern "C" __global__ void mix(float* y, const float* x, float c, long long n) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = fmodf(y[i] + x[i] + c, 512.f);
}
"""
SIZES = [1, 100, 3000, 70000]
CHECKS = {"deferred": ["caching", "buddy", "plain"], "uninitialized": ["caching", "buddy", "plain"], "race": ["plain"]}


class Used:
    """A blob, the values that it must have, and the streams with work on it since it was last written, the writer first."""

    def __init__(self, count, values):
        self.blob, self.values, self.writer, self.readers = Blob((count,)), values, None, []
        self.blob.data[...] = values


class DeviceMachine(RuleBasedStateMachine):
    """Streams are numbered; None is the one of all computing."""

    def __init__(self, kernel, allocators):
        super().__init__()
        self.kernel, self.allocators = kernel, allocators
        self.blobs, self.streams, self.graphs, self.buffers, self.events = [], [], [], [], []

    @initialize(data=st.data())
    def make(self, data):
        minicaffe.set_mode_gpu()
        self.device = cuda.current()
        self.use(data.draw(st.sampled_from(self.allocators)))
        for seed in range(2):
            self.new_blob(SIZES[2], seed)

    # ---- things that come and go

    @rule(kind=st.sampled_from(CHECKS["deferred"]))
    def use(self, kind):
        """What is allocated from here on comes from another allocator."""
        if kind in self.allocators:
            memory.use(CUDAPlace(0), kind)

    @rule(count=st.sampled_from(SIZES), seed=st.integers(0, 9))
    def new_blob(self, count, seed):
        self.blobs.append(Used(count, np.random.default_rng(seed).integers(-100, 100, count).astype(np.float32)))

    @rule(data=st.data())
    def free_blob(self, data):
        """While kernels on any stream may still use it."""
        if len(self.blobs) > 1:
            self.blobs.remove(self.any_blob(data))

    @precondition(lambda self: len(self.streams) < 4)
    @rule()
    def new_stream(self):
        self.streams.append(cuda.Stream(self.device))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def free_stream(self, data):
        """Its handle serves a later Stream; those that wait for its work have waited by events."""
        stream = data.draw(st.sampled_from(self.streams))
        for used in self.blobs:
            if stream in (used.writer, *used.readers):
                self.wait(None, used, True)
        self.streams.remove(stream)

    @rule(nbytes=st.sampled_from([64, 5000, 1 << 20]), data=st.data())
    def buffer(self, nbytes, data):
        """A block of a user's own, that kernels of a stream may use when it is freed."""
        made = Buffer(memory.allocator_of(CUDAPlace(0), "caching"), nbytes)
        if self.streams:
            made.record_stream(data.draw(st.sampled_from(self.streams)))
        self.buffers = [*self.buffers[-1:], made]

    @rule()
    def empty_cache(self):
        memory.empty_cache()

    @rule()
    def collect(self):
        gc.collect()

    # ---- work

    def any_blob(self, data, count=None):
        fitting = [used for used in self.blobs if count is None or used.values.size >= count]
        return data.draw(st.sampled_from(fitting))

    def line(self, stream):
        return cuda.computing(self.device) if stream is None else stream

    def wait(self, stream, used, writes):
        """Let a stream wait for the work of others on a blob: its writer, and before it is written its readers, too."""
        for other in dict.fromkeys([used.writer, *(used.readers if writes else ())]):
            if other is not stream:
                event = cuda.Event(self.device)
                event.record(self.line(other))
                self.line(stream).wait(event)
                self.events = [*self.events[-3:], event]
        if writes:
            used.writer, used.readers = stream, []
        elif stream not in used.readers:
            used.readers.append(stream)

    def upload(self, *blobs):
        """Copies to the device are made on the stream of all computing."""
        for used in blobs:
            if used.writer is None:
                used.blob.gpu_data  # noqa: B018

    @rule(data=st.data(), constant=st.integers(-5, 5))
    def launch(self, data, constant):
        """A kernel of the user's, on any stream."""
        y = self.any_blob(data)
        x = self.any_blob(data, y.values.size)
        stream = data.draw(st.sampled_from([None, *self.streams]))
        self.upload(x, y)
        self.wait(stream, x, False)
        self.wait(stream, y, True)
        arguments = y.blob, x.blob.gpu_data, np.float32(constant), y.values.size
        self.kernel((2,), (64,), arguments, stream=stream)
        mix(y, x, constant)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), count=st.sampled_from(SIZES))
    def free_in_use(self, data, count):
        """The next blob of the size may not get a block that a kernel of another stream still writes."""
        stream = data.draw(st.sampled_from(self.streams))
        values = np.ones(count, np.float32)
        gone = Used(count, values)
        self.upload(gone)
        self.wait(stream, gone, True)
        self.kernel((2,), (64,), (gone.blob, gone.blob.gpu_data, np.float32(5), count), stream=stream)
        gone.blob = None
        self.blobs.append(Used(count, values))
        self.blobs[-1].blob.scale_data(1)
        stream.synchronize()
        self.compare(self.blobs[-1])

    @rule(data=st.data(), factor=st.sampled_from([-1.0, 0.0]))
    def scale(self, data, factor):
        used = self.any_blob(data)
        self.wait(None, used, True)
        used.blob.scale_data(factor)
        used.values = used.values * np.float32(factor)

    @rule(data=st.data())
    def copy(self, data):
        source = self.any_blob(data)
        count = source.values.size
        target = data.draw(st.sampled_from([used for used in self.blobs if used.values.size == count]))
        self.wait(None, source, False)
        self.wait(None, target, True)
        target.blob.copy_from(source.blob)
        target.values = source.values.copy()

    @rule(data=st.data(), seed=st.integers(0, 9))
    def write(self, data, seed):
        """On the host."""
        used = self.any_blob(data)
        self.wait(None, used, True)
        used.values = np.random.default_rng(seed).integers(-100, 100, used.values.size).astype(np.float32)
        used.blob.data[...] = used.values

    @rule(data=st.data())
    def read(self, data):
        self.compare(self.any_blob(data))

    @precondition(lambda self: len(self.graphs) < 3)
    @rule(data=st.data(), constant=st.integers(-5, 5))
    def record(self, data, constant):
        """Kernels and operations on blobs that are freed during the recording: one of before it, and one that was made there."""
        y = self.any_blob(data)
        x = self.any_blob(data, y.values.size)
        for used in x, y:
            self.wait(None, used, True)
            used.blob.data_memory.mutable_gpu_data()
        zeros = Blob(y.blob.shape)
        zeros.scale_data(0)
        graph = cuda.Graph(self.device)
        with graph:
            between = Blob(y.blob.shape)
            between.copy_from(y.blob)
            self.kernel((2,), (64,), (between, zeros.gpu_data, np.float32(0), y.values.size))
            del zeros
            between.scale_data(-1)
            self.kernel((2,), (64,), (between, x.blob.gpu_data, np.float32(constant), y.values.size))
            y.blob.copy_from(between)
            del between
        self.graphs.append((graph, x, y, constant))

    @precondition(lambda self: self.graphs)
    @rule(data=st.data(), times=st.integers(1, 2))
    def replay(self, data, times):
        graph, x, y, constant = data.draw(st.sampled_from(self.graphs))
        for used in x, y:
            self.wait(None, used, True)
            used.blob.data_memory.mutable_gpu_data()
        for _ in range(times):
            graph.replay(0, 0)
            before, y.values = y.values, -y.values
            mix(y, x if x is not y else None, constant, before)

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def free_graph(self, data):
        """While it may still be replayed."""
        self.graphs.remove(data.draw(st.sampled_from(self.graphs)))

    # ---- the comparison

    def compare(self, used):
        self.wait(None, used, True)
        np.testing.assert_array_equal(used.blob.cpu_data, used.values)

    def teardown(self):
        for used in {id(used): used for used in [*self.blobs, *(used for _, x, y, _ in self.graphs for used in (x, y))]}.values():
            self.compare(used)
        self.blobs = self.streams = self.graphs = self.buffers = self.events = None
        if hasattr(self, "device"):
            self.device.synchronize()


def mix(y, x, constant, x_values=None):
    """What the kernel computes."""
    x_values = x.values if x is not None else x_values
    y.values = np.fmod(y.values + x_values[:y.values.size] + np.float32(constant), np.float32(512))


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_any_sequence(search, sim, check):
    places = CUDAPlace(0), PinnedPlace()
    before = [memory.use(place, "caching") for place in places]
    kernel = cuda.kernel(MIX, "mix")
    minicaffe.set_mode_gpu()
    gc.collect()
    used = [memory.used(place) for place in places]
    sim(f"{check}=1")
    try:
        search(lambda: DeviceMachine(kernel, CHECKS[check]), 40, 30)
    finally:
        cuda.current().synchronize()
        sim(f"{check}=0")
        for place, allocator in zip(places, before):
            memory.use(place, allocator)
    gc.collect()
    assert [memory.used(place) for place in places] == used


def test_graph_keeps_freed_memory(sim):
    """No later blob gets the block, which each replay reads."""
    minicaffe.set_mode_gpu()
    y, source = Blob((5000,)), Blob((5000,))
    source.data[...] = 3
    y.data_memory.mutable_gpu_data()
    source.data_memory.mutable_gpu_data()
    with cuda.Graph(cuda.current()) as graph:
        y.copy_from(source)
        del source
    others = [Blob((5000,)) for _ in range(4)]
    for blob in others:
        blob.data[...] = 7
        blob.data_memory.mutable_gpu_data()
    graph.replay(0, 0)
    assert (y.cpu_data == 3).all()
