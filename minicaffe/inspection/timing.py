"""Times of the steps of a net, beside their operations and bytes.

A step is a layer, or layers that are computed as one (schedule.pyx). On a device events of its computing stream take the time of a
step, so that calls of cuBLAS and cuDNN count. A GPU is delayed while the host starts a pass, so that no step waits for launches.
"""

import ctypes
import functools
import statistics
from collections import namedtuple
from time import perf_counter

from minicaffe import cuda, sim
from minicaffe.common import caffe
from minicaffe.cuda import compile
from minicaffe.inspection import cost
from minicaffe.memory.reporter import record


class StepTime(namedtuple("StepTime", "direction first layers types engine ms mean flops bytes gflop_s gb_s")):
    """A step forward or backward (`direction`); the `first` of its `layers`, by number, computes the others, too.

    `ms` and `mean` are median and mean of its milliseconds; `flops` and `bytes` are those of `cost.step`, `gflop_s`
    and `gb_s` 10^9 of them a second, None of nothing.
    """


class Times:
    """Result of `measure`: the device, ``cpu``, ``sim`` or ``gpu``; a StepTime for each step, in the order in which they ran.

    `total_ms` has the milliseconds of all rounds; on a device what its steps took.
    """

    def __init__(self, device):
        self.device, self.steps, self.total_ms = device, [], 0.0

    def as_dict(self):
        """Return the attributes as a dict that JSON can hold."""
        return {**vars(self), "steps": [step._asdict() for step in self.steps]}

    def by_layer(self, count):
        """Return lists of the mean milliseconds of `count` layers, forward and backward; 0 of those that another computes."""
        found = {"forward": [0.0] * count, "backward": [0.0] * count}
        for step in self.steps:
            found[step.direction][step.first] += step.mean
        return found["forward"], found["backward"]


def measure(net, iterations, on_loss=None, on_round=None):
    """Run a net forward and backward for `iterations` rounds, after some that warm up, and return the `Times` of its steps.

    Layers with parameters that the net would skip run backward, too. `on_loss` gets the first loss, `on_round` the number of each
    round and its milliseconds.
    """
    device = cuda.current() if caffe.mode == "gpu" else None
    times = Times("cpu" if device is None else "sim" if sim.selected() else "gpu")
    net.clear_param_diffs()     # which a training with a plan has freed
    _run(net, on_loss=on_loss)
    ahead = 0.0     # seconds that the host takes to start a pass, for which `_sleep` delays a GPU
    for _ in range(2 if times.device == "gpu" else 0):
        net.run_sources()
        device.synchronize()
        began = perf_counter()
        _run(net, sources=False)
        ahead = max(ahead, perf_counter() - began)
    rounds = _Rounds(net, device)
    with record(rounds):
        for number in range(1, iterations + 1):
            taken = rounds.run(2 * ahead)
            times.total_ms += taken
            if on_round is not None:
                on_round(number, taken)
    times.steps = rounds.steps()
    return times


class _Rounds:
    """Records when layers begin and end: times of the clock, on a device (`device` is not None) events on its computing stream."""

    def __init__(self, net, device):
        self.net, self.device = net, device
        self.numbers = {id(node): i for i, node in enumerate(net.nodes)}
        self.seen = []      # (number of the node, detail, moment or Event) of a round: begin, end, begin ...
        self.found = {}     # (direction, number of the first node) -> (numbers of all, milliseconds of each round)

    def append(self, event):
        """Store the moment at which a layer begins or ends; `record` appends each event to this object as to a list."""
        if event.kind not in ("begin", "end") or event.address not in self.numbers:
            return
        mark = perf_counter()
        if self.device is not None:
            mark = cuda.Event(self.device, timing=True)
            mark.record(cuda.computing(self.device))
        self.seen.append((self.numbers[event.address], event.detail, mark))

    def run(self, ahead):
        """Run a round, on a device after a delay of `ahead` seconds; return its milliseconds."""
        self.seen.clear()
        began = perf_counter()
        if self.device is not None:
            self.net.run_sources()
            if ahead:
                _sleep(self.device, ahead)
        _run(self.net, sources=self.device is None)
        if self.device is not None:
            self.device.synchronize()
        whole, on_device, others = 1000 * (perf_counter() - began), 0.0, []
        for (number, _, begin), (_, detail, end) in zip(self.seen[::2], self.seen[1::2], strict=True):
            direction, _, root = detail.partition(" with ")
            if root:    # fused, and computed by the last layer of that name before it: it has no time of its own
                others.append((direction, next(i for i in range(number - 1, -1, -1) if self.net.nodes[i].name == root), number))
                continue
            taken = 1000 * (end - begin) if self.device is None else end.elapsed(begin)
            self.found.setdefault((direction, number), ({number}, []))[1].append(taken)
            on_device += taken
        for direction, first, number in others:
            self.found[direction, first][0].add(number)
        return whole if self.device is None else on_device

    def steps(self):
        """Return the steps, in the order in which they ran."""
        engines, made = {row["layer"]: row["engine"] for row in self.net.engines()}, []
        for (direction, first), (numbers, taken) in self.found.items():
            nodes, ms = [self.net.nodes[i] for i in sorted(numbers)], statistics.median(taken)
            of = cost.step(nodes, direction)
            speeds = [amount / ms / 1e6 if amount and ms else None for amount in of]
            made.append(StepTime(direction, first, [node.name for node in nodes], [node.type for node in nodes],
                             engines.get(nodes[0].name), ms, statistics.fmean(taken), *of, *speeds))
        return made


SLEEP = """extern "C" __global__ void mc_sleep(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""


def _sleep(device, seconds):
    """Keep the computing stream of a GPU busy, and return at once: the host then starts a pass ahead of the GPU."""
    device.launch(_sleeping_kernel(device), (1,), (1,), [ctypes.c_longlong(int(seconds * device.clock_rate))])


@functools.cache
def _sleeping_kernel(device):
    """Return the kernel of `_sleep`, compiled once for each device."""
    image, name = compile.image(SLEEP, "mc_sleep", device.architecture)
    return device.function(device.load_module(image), name)


def _run(net, sources=True, on_loss=None):
    """Run a net forward and backward, also layers with parameters that the net itself skips: a deploy net has no loss."""
    net.forward_backward(run_sources=sources, read_loss=on_loss is not None, on_loss=on_loss)
    fused = {name for names in net.fused() for name in names}
    for i, node in reversed(list(enumerate(net.nodes))):
        if node.blobs and not node.needs_backward and node.name not in fused:
            net.backward_layer(i)
