"""The nets of docs/benchmarks.md against PyTorch, OpenVINO and OpenCV: training step and forward, by turns in one run.

    python tools/bench/nets.py RESULT.json [--only REGEX] [--seconds 3] [--minutes 12]

Measures every case that RESULT.json lacks and writes the file after each, so that a run that was stopped continues where it was;
tools/bench/report.py makes the tables and the picture of docs/benchmarks.md from it. A case is one of the nets of `models/` with
random pictures of its size: a training step or a forward of its deploy net, of a batch or one picture, on 1 or 2 threads, in
float32 or bf16. minicaffe runs by the plan that its commands run by.

The step is forward, backward and SGD with momentum and weight decay. PyTorch runs in NCHW and channels-last (BatchNorm and Scale
as one operator there, as PyTorch's users write it), its optimiser fused, some nets by torch.compile, too; the best counts.
OpenVINO gets the net from PyTorch, OpenCV as prototxt and caffemodel. Why a peer is missing is in the file. The share of the peak
is what of the machine's fastest product of matrices minicaffe reaches, counting the multiplications and additions of
convolutions, inner products and LSTMs as they are defined, three times for a step: Winograd's convolutions need fewer, and may
have shares above 1.

A virtual machine's two processors may be two threads of one core for seconds at a time, and then give what one does. So a turn of
two threads counts only if a product of matrices just before and just after it was about as fast as ever, and took little more
than half of one thread's time; else it is taken again, while there is time, and the file has how many turns were taken again and
how many count all the same.

A case counts only if minicaffe's results are finite, a peer only if its forward gives the same; what does not is said and left out.
"""

import argparse
import gc
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from pathlib import Path

import numpy as np

import minicaffe
from minicaffe import pycaffe
from minicaffe.errors import DependencyError
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import write_text

sys.path.insert(0, str(Path(__file__).parent))
import bench  # noqa: E402

MODELS = Path(__file__).resolve().parents[2] / "models"
BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 16, "googlenet": 8, "resnet50": 8, "mobilenet": 8, "squeezenet": 8,
           "vgg16": 4, "lstm_text": 32}
COMPILED = ("lenet", "cifar10_quick", "squeezenet")     # torch.compile takes minutes for deep nets
PLAN = "memory" # what `minicaffe train` and `classify` run by
STEPS = 32      # of a sequence of lstm_text
SQUARE = 2048   # size of the matrices that measure the peak
LOOK = 512      # and of those that show whether the processors are all there
WHOLE = 0.8     # of the fastest look: less is too little
SHARE = 1.1     # what of a processor's part of one thread's time a look of all takes, at least
PATIENCE = 8    # times the seconds of a case may go by with waiting for that
TURN = 0.1      # seconds of a turn, at least
REST = 0.05     # seconds before a turn, in which the threads of the turn before stop looking out for work
# What others may differ, of the range and of the greatest of our outputs.
CLOSE = {"float32": (1e-3, 5e-6), "tf32": (1e-2, 2 ** -10), "bf16": (5e-2, 2 ** -8)}
_converted = {} # the last net that OpenVINO made of PyTorch's


class Case(typing.NamedTuple):
    """What is measured. PyTorch runs eagerly unless `compiled`, then only so."""

    net: str
    what: str
    batch: int
    threads: int = 2
    precision: str = "float32"
    compiled: bool = False

    def __str__(self):
        return (f"{self.net} {self.what}, batch {self.batch}, {self.threads} thread{'s' * (self.threads > 1)}, {self.precision}"
                + ", torch.compile" * self.compiled)


def cases():
    """All cases, the most important first, those of a net next to each other."""
    for net, batch in BATCHES.items():
        yield Case(net, "step", batch)
        yield Case(net, "forward", batch)
    for net, batch in BATCHES.items():
        yield Case(net, "forward", 1)
        for what in ("step", "forward"):
            yield Case(net, what, batch, precision="bf16")
            if net != "vgg16":      # whose step takes some five seconds
                yield Case(net, what, batch, threads=1)
            if net in COMPILED:
                yield Case(net, what, batch, compiled=True)


def deploy_net(name, batch):
    """The deploy net with random weights, its input resized; of text, that of whole sequences."""
    param, _ = read_net(str(MODELS / name / "deploy.prototxt"), caffe_pb2.TEST)
    for layer in param.layer:
        if layer.type == "Input":
            shape = layer.input_param.shape[0]
            if name == "lstm_text":
                shape.dim[:] = [STEPS, batch]
            else:
                shape.dim[0] = batch
    return param


def random_net(name, batch, change=lambda param: param):
    """The deploy net, changed by `change`, with the same weights at each call, each BatchNorm with a mean of 0 and a variance."""
    pycaffe.set_random_seed(1)
    net = Net(change(deploy_net(name, batch)), plan=PLAN)
    variance = 2 if any(layer.type == "Eltwise" for layer in net.layers) else 1     # else sums grow until Softmax gives 0 and 1
    for layer in net.layers:
        if layer.type == "BatchNorm":
            for blob, value in zip(layer.blobs, (0, variance, 1)):  # all are 0 at first: that divides by the root of eps
                blob.data[...] = value
    return net


def training_net(name, batch):
    """The training net, its data layers turned into inputs of the deploy net's picture size."""
    picture = next(layer for layer in deploy_net(name, batch).layer if layer.type == "Input").input_param.shape[0].dim
    param, _ = read_net(str(MODELS / name / "net.prototxt"), caffe_pb2.TRAIN)
    made = caffe_pb2.NetParameter()
    made.CopyFrom(param)
    del made.layer[:]
    for layer in param.layer:
        rules = layer.include
        if rules and not any(rule.phase == caffe_pb2.TRAIN for rule in rules):
            continue
        if layer.type not in ("Data", "HDF5Data"):
            made.layer.add().CopyFrom(layer)
            continue
        source = made.layer.add(name=layer.name, type="Input", top=layer.top)
        source.input_param.shape.add(dim=picture)
        for _ in layer.top[1:]:
            source.input_param.shape.add(dim=[batch] if layer.type == "Data" else picture)
    return made


def steps(case, try_peer):
    """Functions that take a training step, by who computes, and the net."""
    ours = bench.Minicaffe(training_net(case.net, case.batch), case.threads, plan=PLAN)
    arrays = random_inputs(ours.net)
    ours.fill(arrays)
    return {"minicaffe": ours.step, **_torches(ours.net, arrays, case, try_peer)}, ours.net


def forwards(case, try_peer):
    """Functions that run the deploy net forward, by who computes, and the net."""
    minicaffe.set_num_threads(case.threads)
    net = random_net(case.net, case.batch)
    arrays = random_inputs(net)
    for blob, array in zip(net.input_blobs, arrays):
        blob.data[...] = array
    made = {"minicaffe": lambda: net.forward_from_to(0, len(net.layers) - 1), **_torches(net, arrays, case, try_peer)}
    if not case.compiled:
        made |= try_peer("OpenVINO", lambda: _openvino(net, arrays, case))
        made |= try_peer("OpenCV", lambda: _opencv(net, arrays, case))
    return made, net


def random_inputs(net):
    """Pictures, indices and labels below 10, and for `cont` ones: sequences that continue."""
    random = np.random.default_rng(0)

    def values(name, shape):
        if name == "cont":
            return np.ones(shape, np.float32)
        return random.random(shape, np.float32) if len(shape) > 2 else random.integers(0, 10, shape).astype(np.float32)
    return [values(blob.name, blob.shape) for blob in net.input_blobs]


def _torches(net, arrays, case, try_peer):
    made = {}
    for last in (False, True) if any(array.ndim == 4 for array in arrays) else (False,):
        who = "PyTorch " + ("compiled " if case.compiled else "") + ("channels-last" if last else "NCHW")
        made |= try_peer(who, lambda last=last: _torch(net, last, arrays, case))
    return made


def _torch(net, channels_last, arrays, case):
    os.environ["CXX"] = os.environ.get("CXX", "g++").split()[-1]   # torch.compile takes no launcher before it, such as ccache
    import torch
    runner = bench.Torch(net, case.threads, channels_last, True)
    runner.fill(arrays)
    if case.compiled:
        runner.net = torch.compile(runner.net)
    run = getattr(runner, case.what)
    if case.precision == "float32":
        return run

    def in_bf16():
        with torch.autocast("cpu", torch.bfloat16):
            return run()
    return in_bf16


def _openvino(net, arrays, case):
    import openvino
    import torch
    from to_torch import TorchNet
    if _converted.get("of") != (case.net, case.batch):      # the same for all threads and precisions
        source = TorchNet(net).eval()       # kept, as the model's weights are in its memory
        _converted.update(of=(case.net, case.batch), source=source, model=openvino.convert_model(
            source, example_input=tuple(torch.from_numpy(a) for a in arrays), input=[a.shape for a in arrays]))
    settings = {"INFERENCE_NUM_THREADS": case.threads, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32" if case.precision == "float32" else "bf16"}
    request = openvino.Core().compile_model(_converted["model"], "CPU", settings).create_infer_request()
    for i, array in enumerate(arrays):
        request.set_input_tensor(i, openvino.Tensor(array, shared_memory=True))
    return lambda kept=arrays: request.infer()[0]       # the request reads the arrays' own memory


def _opencv(net, arrays, case):
    import cv2
    if case.precision != "float32" or len(arrays) > 1:
        raise ValueError("float32 and one input only")
    cv2.setNumThreads(case.threads)
    with tempfile.TemporaryDirectory() as folder:
        prototxt, weights = f"{folder}/net.prototxt", f"{folder}/net.caffemodel"
        Path(prototxt).write_text(write_text(deploy_net(case.net, case.batch)))
        net.save(weights)
        model = cv2.dnn.readNetFromCaffe(prototxt, weights)

    def run():
        model.setInput(arrays[0])
        return model.forward()
    return run


def peak(case, repeats=7):
    """GFLOP/s of the fastest of some products of two square matrices on `case.threads`, PyTorch's or, in float32, our own.

    None without PyTorch.
    """
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(case.threads)
    a = torch.ones(SQUARE, SQUARE, dtype=torch.float32 if case.precision == "float32" else torch.bfloat16)
    products = [lambda: torch.mm(a, a)]
    if case.precision == "float32":
        minicaffe.set_num_threads(case.threads)
        products.append(our_product(SQUARE))
    return max(2 * SQUARE ** 3 / seconds_of(run, 1) / 1e9 for _ in range(repeats) for run in products)


def our_product(size):
    """A function that multiplies two square matrices."""
    param = caffe_pb2.NetParameter()
    param.layer.add(name="x", type="Input", top=["x"]).input_param.shape.add(dim=[size, size])
    param.layer.add(name="y", type="InnerProduct", bottom=["x"], top=["y"]).inner_product_param.num_output = size
    net = Net(param)
    return lambda: net.forward_from_to(0, 1)


class Processors:
    """Whether as many processors as a case has threads are there, for turns that count; see the head of this file."""

    fastest = {}    # look by number of threads, in seconds

    def __init__(self, threads, patience):
        self.threads, self.end = threads, time.monotonic() + patience
        self.count = {"again": 0, "shared": 0}  # turns that were taken again; that count all the same
        minicaffe.set_precision("float32")      # of this process, which runs the peers alone from now on
        self.product = our_product(LOOK)

    def whole(self):
        """Measure whether they are there; one thread always has its processor."""
        if self.threads == 1:
            return True
        if self.threads not in self.fastest:    # a run may begin while they are not there
            self.fastest[self.threads] = SHARE * self._look(1) / self.threads
        look = self._look(self.threads)
        self.fastest[self.threads] = least = min(look, self.fastest[self.threads])
        return least >= WHOLE * look

    def _look(self, threads):
        minicaffe.set_num_threads(threads)
        return min(seconds_of(self.product, 1) for _ in range(6))

    def turn(self, take):
        """Return what `take` returns, of a turn with all processors, or of the last if there is no more time to wait for it."""
        while True:
            there, patient = self.whole(), time.monotonic() < self.end
            time.sleep(REST)
            if there or not patient:
                result = take()
                there = there and self.whole()
                if there or not patient:
                    self.count["shared"] += not there
                    return result
                self.count["again"] += 1


class Alone:
    """minicaffe in a process of its own, as its users run it: without PyTorch's libraries and threads."""

    def __init__(self, case):
        self.process = subprocess.Popen([sys.executable, __file__, "--alone", json.dumps(case)], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def seconds(self, calls):
        self.process.stdin.write(f"{calls}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.communicate()


def alone(case):
    """The process of `Alone`: for each number that comes, so many calls; what they took goes back."""
    minicaffe.set_precision(case.precision)
    made, _ = (steps if case.what == "step" else forwards)(case, lambda who, make: {})
    for line in sys.stdin:
        print(seconds_of(made["minicaffe"], int(line)), flush=True)


def seconds_of(run, calls):
    """What so many calls take."""
    if hasattr(run, "seconds"):     # in processes of its own
        return run.seconds(calls)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start


def by_turns(made, seconds, processors, turn=TURN):
    """Lists of milliseconds of a call by name; all take turns of `turn` seconds, three at least, for some `seconds` in all."""
    once = {}
    for name, run in made.items():
        seconds_of(run, 2)
        once[name] = max(1e-6, seconds_of(run, 1))
    calls = {name: max(1, int(turn / time_)) for name, time_ in once.items()}
    rounds = max(3, min(25, int(seconds / sum(calls[name] * once[name] for name in made))))
    found = {name: [] for name in made}

    def take(name):
        if calls[name] > 1:
            seconds_of(made[name], 1)       # what others left in the caches is another's
        return seconds_of(made[name], calls[name]) / calls[name] * 1e3
    for number in range(rounds):
        for name in list(made)[:: -1 if number % 2 else 1]:
            found[name].append(processors.turn(lambda name=name: take(name)))
    return found


def check(case, made, net):
    """What differs from minicaffe's result of a forward, by peer: {peer: how}; ArithmeticError unless minicaffe's are finite."""
    made["minicaffe"]()
    tops = net.nodes[-1].tops[:1] if case.what == "forward" else [blob for blob, weight in net.loss_weights.items() if weight]
    if not all(np.isfinite(top.data).all() for top in tops):
        raise ArithmeticError(f"{case}: minicaffe's results are not finite")
    wrong = {}
    if case.what == "step":     # each goes its own way, by its own dropout
        return wrong
    ours = tops[0].data.copy()
    part, rounding = CLOSE[case.precision]
    most = part * np.ptp(ours) + rounding * abs(ours).max()
    for who in made.keys() - {"minicaffe"}:
        result = made[who]()
        theirs = np.asarray(result.float().cpu() if hasattr(result, "float") else result).reshape(ours.shape)
        error = abs(theirs - ours).max()
        if not error <= most:
            wrong[who] = f"computes something else: differs by {error:.1e} from minicaffe's, rounding allows {most:.1e}"
    return wrong


def host():
    """What a measurement depends on besides the case: the commit, with a + if files differ from it, and the processor."""
    def git(*words):
        done = subprocess.run(["git", "-C", str(MODELS), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None
    commit = git("rev-parse", "--short", "HEAD") if shutil.which("git") else None
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.*)", info.read_text()) if info.exists() else None
    return {"commit": commit and commit + "+" * bool(git("status", "--porcelain", "--untracked-files=no")),
            "processor": found[1].strip() if found else platform.processor()}


def measure(case, seconds):
    """What is known of a case afterwards, for JSON."""
    missing = {}

    def try_peer(who, make):
        try:
            run = make()
            run()
            return {who: run}
        except Exception as error:  # a peer may fail in any way; the measurement continues
            missing[who] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return {}

    minicaffe.set_precision(case.precision)
    top = peak(case, 4)
    made, net = (steps if case.what == "step" else forwards)(case, try_peer)
    for who, why in check(case, made, net).items():
        print(f"left out: {case}: {who} {why}", file=sys.stderr, flush=True)
        missing[who] = why
        del made[who]
    made["minicaffe"] = Alone(case)
    processors = Processors(case.threads, PATIENCE * seconds)
    times = by_turns(made, seconds, processors)
    made["minicaffe"].close()
    quartiles = {who: statistics.quantiles(ms, n=4, method="inclusive") for who, ms in times.items()}
    work = bench.flops(net) * (3 if case.what == "step" else 1) / 1e9
    return {**case._asdict(), **host(), "ms": {who: [round(ms, 4) for ms in found] for who, found in quartiles.items()},
            "missing": missing, "rounds": len(times["minicaffe"]), **processors.count, "gflop": work, "peak_gflops": top}


def main():
    if sys.argv[1:2] == ["--alone"]:
        return alone(Case(*json.loads(sys.argv[2])))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument("--only", default="", metavar="REGEX", help="measure the cases with this in their names, known or not")
    parser.add_argument("--seconds", type=float, default=3, help="of measuring in each case, about")
    parser.add_argument("--minutes", type=float, default=12, help="no case begins later")
    parser.add_argument("--list", action="store_true", help="say which cases there are")
    options = parser.parse_args()
    known = json.loads(options.result.read_text()) if options.result.exists() else {}
    wanted = [case for case in cases() if (re.search(options.only, str(case)) if options.only else str(case) not in known)]
    if options.list:
        return print(*wanted, sep="\n")
    start, wrong = time.monotonic(), []
    for i, case in enumerate(wanted):
        if time.monotonic() - start > 60 * options.minutes:
            sys.exit(f"{len(wanted) - i} cases are left; run the same command again")
        try:
            known[str(case)] = found = measure(case, options.seconds)
        except DependencyError as error:
            print(f"no {case}: {error}", file=sys.stderr)
            continue
        except ArithmeticError as error:
            known.pop(str(case), None)
            wrong.append(str(error))
            print(f"left out: {error}", file=sys.stderr, flush=True)
            continue
        options.result.write_text(json.dumps(known, indent=1) + "\n")
        gc.collect()
        medians = ", ".join(f"{who} {ms[1]:.2f}" for who, ms in found["ms"].items())
        print(f"{time.monotonic() - start:4.0f} s  {case}: {medians}", flush=True)
    if wrong:
        sys.exit(f"{len(wrong)} cases are left out, as results were wrong")


if __name__ == "__main__":
    main()
