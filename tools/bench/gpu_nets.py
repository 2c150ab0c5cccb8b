"""Whole nets on a GPU against PyTorch: training step, forward, memory, the kernels and the steps that the time goes to; see gpu.py.

The rows of the table of docs/benchmarks.md come first (gpu_table.py has the aims); with ``--table`` no others.

PyTorch has the same layers and values (to_torch.py), in NCHW and channels-last, eagerly with cudnn.benchmark and a fused
optimizer, and the same as one CUDA graph. Its precision is ours: TF32 allowed for tf32 alone, autocast for bf16. On the simulated
device pictures are small and PyTorch, if it is installed, computes on the CPU.
"""

import collections
import functools
import gc
import os
import time
from contextlib import contextmanager
from unittest import mock

import bench
import gpu_table
import nets
from turns import find, sync_all, turns

import minicaffe
from minicaffe import cuda
from minicaffe.cuda import compile
from minicaffe.errors import ConfigError
from minicaffe.inspection import timing
from minicaffe.memory import CUDAPlace
from minicaffe.memory.registry import registry

BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 128, "googlenet": 64, "squeezenet": 64, "resnet50": 64, "mobilenet": 64,
           "vgg16": 32}
PRECISIONS = ("tf32", "bf16", "float32")    # the last is not in the table
NCHW_TOO = ("resnet50", "mobilenet")    # whose step in tf32 is measured in both layouts
LAYOUT = "MINICAFFE_CUDNN_LAYOUT"
SMALL = {"lenet": 28, "cifar10_quick": 32, "caffenet": 67}  # pixels of a picture's side in a rehearsal, 32 for other nets
KERNELS = 25    # of a step, those that take longest
MIB = 2 ** 20


def measure(name, precision, options, rows):
    """Measure one net in the precision that MINICAFFE_PRECISION has set; if the device has it not, the row says so."""
    try:
        Measurement(name, precision, options, rows).run()
    except ConfigError as error:
        if "precision" not in str(error).lower():
            raise
        rows.add(f"{name}, {precision}", f"not run: {error}", "")


class Measurement:
    """One net in one precision."""

    def __init__(self, name, precision, options, rows):
        self.name, self.precision, self.options, self.rows = name, precision, options, rows
        self.sim = options.device == "sim"
        self.batch = 2 if self.sim else BATCHES[name]   # more than one picture
        self.place = "cpu" if self.sim else "cuda"
        found = find("torch", gpu=not self.sim)
        self.torch, self.missing = (None, {"PyTorch": found}) if isinstance(found, str) else (found, {})
        self.sync = sync_all({} if self.torch is None else {"torch": self.torch})
        if self.torch and self.sim:
            self.torch.set_num_threads(1)

    def run(self):
        """Measure what there is, the most important first; each row is written at once."""
        with tuning() as tuned:
            ours, arrays, seconds = self.trained()
        stats = registry.allocator(CUDAPlace(0)).stats()
        mine, live = stats.peak_reserved / MIB, stats.peak / MIB    # of our own first steps, before anything else is made
        peers, peaks = self.peers(ours.net, arrays, "step")
        made = {"minicaffe": ours.step, **self.nchw(), **self.calls(peers, "step")}
        self.compare(made, "step", ours.net)
        best = self.row("step", "training step, data resident", made, engines=self.engines(ours.net),
                        graph=ours.solver.training_step.recorded.graph is not None)
        least = min(peaks.values(), default=None)
        self.add("memory", "peak of reserved device memory", mine, "MiB", peaks, {"ratio": mine / least if least else None},
                 live=live)
        self.add("tuning", "measuring plans of cuDNN", tuned.pop("seconds"), "s", {}, {}, first_steps=seconds, **tuned)
        if not self.options.table:
            self.kernels(made, best)
            self.row("fed", "training step, fed from NumPy", {"minicaffe": functools.partial(self.fed, ours, arrays),
                                                              **{who: self.torch_fed(peer) for who, peer in peers.items()}})
            self.steps(ours.net)
        del ours, peers, made

        net = nets.random_net(self.name, self.batch, self.small)
        arrays = nets.random_inputs(net)
        for batch in self.batch, 1:
            if batch == 1 and self.options.table and self.name not in gpu_table.ONE_PICTURE_NETS:
                continue
            arrays = [array[:batch] for array in arrays]
            for blob, array in zip(net.input_blobs, arrays):
                blob.reshape(array.shape)
                blob.data[...] = array
            peers, _ = self.peers(net, arrays, "forward")
            made = {"minicaffe": functools.partial(net.forward_from_to, 0, len(net.layers) - 1), **self.calls(peers, "forward")}
            self.compare(made, "forward", net)
            before = cuda.current().launches
            made["minicaffe"]()
            launches = cuda.current().launches - before
            best = self.row(*("one picture",) * 2 if batch == 1 else ("forward", "forward, data resident"), made, launches=launches)
            if batch > 1 and not self.options.table:
                self.kernels(made, best)

    def trained(self):
        """Return our net after some steps, its inputs, and the seconds that making it and these took."""
        begin = time.perf_counter()
        ours = bench.Minicaffe(self.small(nets.training_net(self.name, self.batch)), minicaffe.get_num_threads(), nets.PLAN)
        arrays = nets.random_inputs(ours.net)
        ours.fill(arrays)
        for _ in range(4):
            ours.step()     # the third is recorded as a graph
        self.sync()
        return ours, arrays, time.perf_counter() - begin

    def nchw(self):
        """Return {name: the step of the same net in NCHW} of the nets for which this is a row of the table; else nothing."""
        if self.name not in NCHW_TOO or self.precision != "tf32":
            return {}
        with mock.patch.dict(os.environ, {LAYOUT: "nchw"}):     # read when a net's shapes are first used
            return {"minicaffe NCHW": self.trained()[0].step}

    def title(self):
        return f"{self.name}, batch {self.batch}, {self.precision}"

    def small(self, param):
        """Make pictures small in a rehearsal, and windows that would be larger than the map; return `param`."""
        for layer in param.layer if self.sim else ():
            if layer.type == "Input":
                for shape in layer.input_param.shape:
                    if len(shape.dim) == 4:
                        shape.dim[2:] = [SMALL.get(self.name, 32)] * 2
            elif layer.type == "Pooling" and layer.pooling_param.kernel_size >= 5:
                layer.pooling_param.kernel_size = layer.pooling_param.stride = 1
        return param

    def engines(self, net):
        return dict(collections.Counter(str(found["engine"]) for found in net.engines()))

    # ---- PyTorch

    def peers(self, net, arrays, what):
        """Return ({name: bench.Torch}, {name: MiB that PyTorch reserved at most}) for both layouts."""
        peers, peaks = {}, {}
        torch = self.torch
        if torch is None:
            return peers, peaks
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.precision == "tf32"
        for who, last in ("PyTorch NCHW", False), ("PyTorch channels-last", True):
            if not self.sim:
                gc.collect()    # a TorchNet refers to itself
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_reserved()
            peer = bench.Torch(net, torch.get_num_threads(), last, True, self.place)
            peer.fill(arrays)
            try:
                for _ in range(3):
                    self.rounded(getattr(peer, what))()
            except Exception as error:
                self.missing[who] = f"{type(error).__name__}: {error}"[:200]
                continue
            if not self.sim:
                peaks[who] = (torch.cuda.max_memory_reserved() - before) / MIB
            peers[who] = peer
        return peers, peaks

    def rounded(self, run):
        """Return `run` in the precision: by autocast for bf16."""
        if self.precision != "bf16":
            return run

        def in_bf16():
            with self.torch.autocast(self.place, self.torch.bfloat16):
                return run()
        return in_bf16

    def calls(self, peers, what):
        """Return {name: function} of peers, eager and as a CUDA graph."""
        made = {who: self.rounded(getattr(peer, what)) for who, peer in peers.items()}
        for who, run in () if self.sim else list(made.items()):
            try:
                made[f"{who}, CUDA graph"] = graphed(self.torch, run)
            except Exception as error:  # something in the net cannot be recorded
                self.missing[f"{who}, CUDA graph"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return made

    def torch_fed(self, peer):
        """Return a function that copies a batch from page-locked memory and does a step."""
        hosts = [x.cpu() if self.sim else x.cpu().pin_memory() for x in peer.inputs]
        step = self.rounded(peer.step)

        def fed():
            for x, host in zip(peer.inputs, hosts):
                x.copy_(host, non_blocking=True)
            step()
        return fed

    # ---- ours

    def fed(self, ours, arrays):
        ours.net.feed(**{blob.name: array for blob, array in zip(ours.net.input_blobs, arrays)})
        ours.step()

    def steps(self, net):
        """Add what `minicaffe time` measures, with a line for each step of the net."""
        times = timing.measure(net, 1 if self.sim else 20)
        self.rows.add(f"{self.title()}: steps, forward and backward", sum(step.ms for step in times.steps), "ms",
                      times=times.as_dict())

    # ---- rows

    def compare(self, made, what, net):
        """Leave out peers whose results are others than ours."""
        case = nets.Case(self.name, what, self.batch, precision=self.precision)
        for who, why in nets.check(case, made, net).items():
            self.missing[who] = why
            del made[who]

    def add(self, kind, what, value, unit, peers, ratios, **more):
        """Add a row with its aims; one without peers has none."""
        wanted = gpu_table.aims(self.name, self.precision, kind) if peers else {}
        aim = ", ".join(f"{most:g}x {ratio.partition('_')[2] or 'PyTorch'}" for ratio, most in wanted.items()) or None
        self.rows.add(f"{self.title()}: {what}", value, unit, {**peers, **self.missing}, aim, gpu_table.met(wanted, ratios),
                      net=self.name, precision=self.precision, batch=self.batch, kind=kind, **ratios, **more)

    def row(self, kind, what, made, **more):
        """Measure by turns and add a row; return the name of the fastest peer, None without any."""
        quick = {"rounds": 1, "seconds": 0, "first": 1} if self.sim else {
            "rounds": min(5, self.options.rounds), "seconds": 0.05 if self.options.table else 0.1}
        times = turns(made, self.sync, **quick)
        mine, nchw = times.pop("minicaffe"), times.pop("minicaffe NCHW", None)
        if nchw is not None:
            more["nchw_ms"] = 1e3 * nchw
            print(f"    in NCHW {1e3 * nchw:.4g} ms", flush=True)
        eager, graph = (min((t for who, t in times.items() if who.endswith(", CUDA graph") is recorded), default=None)
                        for recorded in (False, True))
        best = min(times, key=times.get, default=None)
        ratios = {"ratio": mine / times[best] if best else None, "ratio_eager": mine / eager if eager else None,
                  "ratio_graph": mine / graph if graph else None}
        self.add(kind, what, 1e3 * mine, "ms", {who: 1e3 * t for who, t in times.items()}, ratios, **more)
        return best

    def kernels(self, made, best):
        """Add the device's time of a call by kernel, ours and the best peer's, as PyTorch's profiler sees both."""
        for who in filter(None, ("minicaffe", best) if self.torch else ()):
            field = "self_cpu_time_total" if self.sim else "self_device_time_total"
            activity = self.torch.profiler.ProfilerActivity
            with self.torch.profiler.profile(activities=[activity.CPU if self.sim else activity.CUDA]) as found:
                made[who]()
                self.sync()
            events = sorted(((getattr(e, field) / 1e3, e.count, short(e.key)) for e in found.key_averages()), reverse=True)
            events = [event for event in events if event[0] > 0]
            total = sum(ms for ms, _, _ in events)
            self.rows.add(f"{self.title()}: time of the device, {who}", total, "ms", kernels=events[:KERNELS])
            for ms, count, name in events[:8]:
                print(f"    {ms:8.3f} ms {count:5} x {name}", flush=True)


@contextmanager
def tuning():
    """Count how long cuDNN's plans are measured: from the search for a choice on disk, which finds none, to the new one's writing.

    Yields {"seconds", "measured", "kept"}: products that were measured, and those whose choice an earlier process had kept.
    """
    found, begin = {"seconds": 0.0, "measured": 0, "kept": 0}, [0.0]
    read, write = compile.read_cached_plan, compile.write_cached_plan

    def read_cached_plan(place):
        begin[0] = time.perf_counter()
        kept = read(place)
        found["kept"] += kept is not None
        return kept

    def write_cached_plan(place, choice):
        found["seconds"] += time.perf_counter() - begin[0]
        found["measured"] += 1
        write(place, choice)

    with mock.patch.multiple(compile, read_cached_plan=read_cached_plan, write_cached_plan=write_cached_plan):
        yield found


def graphed(torch, run):
    """Record a call as a CUDA graph; return the function that replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay():
        graph.replay()
        return result
    return replay


def short(name):
    """Return a kernel's name without what all have."""
    return name.removeprefix("void ").replace("mc::", "")[:120]
