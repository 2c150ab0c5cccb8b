"""Random programs of blobs on two GPUs, for a process of its own: ``python random_device_programs.py ALLOCATORS SEED SEED``.

Blobs lie on either GPU, which may lend its memory to the other. Operations on strided and broadcast views, kernels of the user's on
streams with events, copies between GPUs, CUDA graphs, streams and blocks that are freed in use, one of several allocators at a time: each
blob must hold what NumPy computes.
"""

import gc
import random
import sys

import numpy as np

import minicaffe
from minicaffe import cuda, errors, memory
from minicaffe.blob import Blob
from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace

MIX = cuda.kernel("""extern "C" __global__ void mix(float* y, const float* x, float c, long long n) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = fmodf(y[i] + x[i] + c, 512.f);
}
""", "mix")
ADD = cuda.elementwise("T x, T b", "T y", "y = x - y + b", "random_add")
SHAPE = 4, 6, 5
VIEWS = [np.s_[:], np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[:, ::-2], np.s_[..., 1:], np.s_[:, 2:5, ::2], np.s_[1], np.s_[..., 3:3], np.s_[0, :, ::-1]]


class Used:
    """A blob that has its memory on a GPU; `stream` is a stream with work on it that the computing stream has not waited for."""

    def __init__(self, device, dice):
        self.device, self.stream = device, None
        self.values = np.random.default_rng(dice.randrange(1 << 30)).integers(-50, 50, SHAPE).astype(np.float32)
        minicaffe.set_device(device)
        self.blob = Blob(SHAPE)
        self.blob.data[...] = self.values
        self.blob.data_memory.mutable_gpu_data()


class Program:
    def __init__(self, seed, allocators):
        self.dice, self.lent, self.graphs, self.allocators, self.buffers = random.Random(seed), set(), [], allocators, []
        for device in 0, 1:
            self.change_allocator(device)
        self.blobs = [Used(device, self.dice) for device in (0, 1, 0, 1)]
        self.streams = [cuda.Stream(cuda.get_device(device)) for device in (0, 0, 1)]

    def join(self, used):
        """Let the computing stream of the blob's GPU wait for the other stream's work on it."""
        if used.stream is not None:
            event = cuda.Event(used.stream.device)
            event.record(used.stream)
            cuda.computing(cuda.get_device(used.device)).wait(event)
            used.stream = None

    def pick(self, device, lent=True):
        """A blob that kernels of a GPU can use."""
        fitting = [used for used in self.blobs if used.device == device or lent and (device, used.device) in self.lent]
        return self.dice.choice(fitting or [self.new_blob(device)])

    def new_blob(self, device):
        self.blobs.append(Used(device, self.dice))
        return self.blobs[-1]

    def change_allocator(self, device):
        """What is allocated from here on comes from another one."""
        memory.use(CUDAPlace(device), self.dice.choice(self.allocators))
        memory.empty_cache()

    def change_streams(self, device):
        """The handle of a stream that is freed serves a later one."""
        gone = self.dice.choice(self.streams)
        for used in self.blobs:
            if used.stream is gone:
                self.join(used)
        self.streams.remove(gone)
        self.streams.append(cuda.Stream(cuda.get_device(gone.device.index)))

    def buffer(self, device):
        """A block of the user's own, that kernels of a stream may use when it is freed."""
        stream = self.dice.choice(self.streams)
        made = Buffer(memory.allocator_of(CUDAPlace(stream.device.index), "caching"), self.dice.choice([64, 5000, 280000, 1 << 20]))
        made.record_stream(stream)
        self.buffers = [*self.buffers[-1:], made]

    def add(self, device):
        """On views of the same shape, or broadcast ones."""
        dice, x, y = self.dice, self.pick(device), self.pick(device)
        if x is y:
            return
        self.join(x), self.join(y)
        minicaffe.set_device(device)
        key, number = dice.choice(VIEWS), dice.randint(-3, 3)
        a, b = x.blob.gpu_data, y.blob.mutable_gpu_data
        kind = dice.choice(["number", "same", "turned", "one", "one", "one"])
        if kind == "number":
            ADD(a[key], number, b[key])
            y.values[key] = np.fmod(x.values[key] - y.values[key] + number, 2**20)
        elif kind == "same":
            ADD(a[key], a[key], b[key])
            y.values[key] = 2 * x.values[key] - y.values[key]
        elif kind == "turned":
            ADD(a[:, 0:5].transpose(0, 2, 1), number, b[:, 0:5])
            y.values[:, 0:5] = x.values[:, 0:5].transpose(0, 2, 1) - y.values[:, 0:5] + number
        else:       # a row, a number, the other order
            source = dice.choice([np.s_[0:1, 0:1], np.s_[1:2, 2:3, 3:4], np.s_[::-1, ::-1, ::-1]])
            ADD(a[source], number, b)
            y.values[...] = x.values[source] - y.values + number

    def launch(self, device):
        """A kernel on the computing stream, or on another one whose order with it events give."""
        streams = [None] + [stream for stream in self.streams if stream.device.index == device]
        stream = self.dice.choice(streams)
        x, y = self.pick(device, stream is None), self.pick(device, stream is None)
        minicaffe.set_device(device)
        for used in (x, y):
            if used.stream is not stream:
                self.join(used)
        arguments = y.blob, x.blob.gpu_data, np.float32(self.dice.randint(-5, 5)), x.values.size
        if stream is not None:
            event = cuda.Event(cuda.get_device(device))
            event.record(cuda.computing(cuda.get_device(device)))
            stream.wait(event)
            x.stream = y.stream = stream
        MIX((self.dice.randint(1, 3),), (self.dice.choice([1, 32, 64]),), arguments, stream=stream)
        y.values[...] = np.fmod(y.values + x.values + arguments[2], np.float32(512))

    def free_in_use(self, device):
        """On another stream than that of its allocation; a new blob of the size comes at once."""
        gone = self.blobs.pop(self.dice.randrange(len(self.blobs)))
        self.graphs, device = [graph for graph in self.graphs if gone not in graph[1:3]], gone.device
        del gone
        self.new_blob(device)

    def copy(self, device):
        """Between GPUs, without access."""
        x, y = self.dice.choice(self.blobs), self.dice.choice(self.blobs)
        self.join(x), self.join(y)
        minicaffe.set_device(y.device)
        if x is not y:
            y.blob.copy_from(x.blob)
            y.values[...] = x.values

    def lend(self, device):
        pair = {(device, 1 - device)}
        if pair <= self.lent:
            for used in self.blobs:
                self.join(used)
            self.graphs = []
        (cuda.disable_peer_access if pair <= self.lent else cuda.enable_peer_access)(device, 1 - device)
        self.lent ^= pair

    def refuse(self, device):
        """Memory that is not lent."""
        for used in self.blobs:
            if used.device != device and (device, used.device) not in self.lent:
                minicaffe.set_device(device)
                try:
                    used.blob.gpu_data  # noqa: B018
                except errors.WrongDeviceError:
                    return
                raise AssertionError("memory of another GPU was given out")

    def scale(self, device):
        used = self.pick(device)
        self.join(used)
        minicaffe.set_device(device)
        used.blob.scale_data(-1)
        used.values *= -1

    def write(self, device):
        used = self.pick(device, False)
        self.join(used)
        minicaffe.set_device(device)
        used.values[...] = self.dice.randint(-99, 99)
        used.blob.data[...] = used.values
        used.blob.data_memory.mutable_gpu_data()

    def record(self, device):
        x, y = self.pick(device, False), self.pick(device, False)
        if x is y:
            return
        self.join(x), self.join(y)
        minicaffe.set_device(device)
        ones = Blob(SHAPE)
        ones.data[...] = 1
        ones.gpu_data  # noqa: B018
        with cuda.Graph(cuda.get_device(device)) as graph:      # which keeps blocks that its recording frees
            between = Blob(SHAPE)
            between.copy_from(y.blob)
            ADD(x.blob.gpu_data[::-1], ones.gpu_data, between.mutable_gpu_data[:, ::-1])
            del ones
            y.blob.copy_from(between)
            del between
        self.graphs.append((graph, x, y))

    def replay(self, device):
        for graph, x, y in self.graphs[-2:]:
            for used in x, y:
                self.join(used)
                minicaffe.set_device(y.device)
                used.blob.data_memory.mutable_gpu_data()
            graph.replay(0, 0)
            y.values[:, ::-1] = x.values[::-1] - y.values[:, ::-1] + 1

    def read(self, device):
        self.check(self.dice.choice(self.blobs))

    def check(self, used):
        self.join(used)
        minicaffe.set_device(used.device)
        np.testing.assert_array_equal(used.blob.cpu_data, used.values)
        used.blob.data_memory.mutable_gpu_data()
        if np.abs(used.values).max() > 1e5:    # sums stay exact
            self.blobs.remove(used)
            self.graphs = [graph for graph in self.graphs if used not in graph[1:3]]
            self.new_blob(used.device)

    def run(self, steps):
        choices = [self.add, self.launch] * 4 + [self.copy, self.free_in_use, self.read, self.replay] * 2 + [
            self.lend, self.refuse, self.scale, self.write, self.record, self.change_allocator, self.change_streams, self.buffer]
        for _ in range(steps):
            self.dice.choice(choices)(self.dice.randrange(2))
            if any(np.abs(used.values).max() > 1e6 for used in self.blobs):
                break
        for used in list(self.blobs):
            self.check(used)
        for pair in self.lent:
            cuda.disable_peer_access(*pair)


def main(allocators, first, last):
    minicaffe.set_mode_gpu()
    places = [CUDAPlace(0), CUDAPlace(1), PinnedPlace()]
    for seed in range(int(first), int(last)):
        before = [memory.used(place) for place in places]
        try:
            Program(seed, allocators.split(",")).run(25)
        except BaseException as error:
            error.add_note(f"program {seed}, allocators {allocators}")
            raise
        gc.collect()
        for device in 0, 1:
            cuda.get_device(device).synchronize()
        memory.empty_cache()
        after = [memory.used(place) for place in places]
        assert seed == int(first) or after == before, (seed, before, after)     # kernels that the first loaded stay
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
