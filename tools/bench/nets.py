"""The nets of docs/benchmarks.md against PyTorch, OpenVINO and OpenCV: training step and forward, by turns in one run.

    python tools/bench/nets.py [lenet cifar10_quick ...] [--threads 1 2] [--precision bf16] [--batch1] [--json FILE]

Each net of `models/` is measured with random pictures of its size. The step is forward, backward and SGD with momentum and weight
decay of the training net; the forward is that of the deploy net. PyTorch runs in NCHW and channels-last, and compiled if --compile
asks for it (BatchNorm and Scale as one operator there, as PyTorch's users write it), its optimiser fused; the best counts. OpenVINO
gets the net from PyTorch, OpenCV as prototxt and caffemodel. A peer that is not installed, or that fails on a net, is left out, and
standard error says why. The share of the peak is what of the machine's fastest product of matrices minicaffe reaches, counting the
multiplications and additions of convolutions, inner products and LSTMs, three times for a step.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import minicaffe
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import write_text

sys.path.insert(0, str(Path(__file__).parent))
import bench  # noqa: E402
import turns  # noqa: E402

MODELS = Path(__file__).resolve().parents[2] / "models"
BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 16, "googlenet": 8, "resnet50": 8, "mobilenet": 8, "squeezenet": 8,
           "vgg16": 4, "lstm_text": 32}
STEPS = 32      # of a sequence of lstm_text
SQUARE = 2048   # size of the matrices that measure the peak


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


def peer(reason, make):
    """The function that `make` returns, or None after saying why not."""
    try:
        run = make()
        run()
        return run
    except Exception as error:  # a peer may fail in any way; the measurement goes on
        print(f"no {reason}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)


def steps(name, batch, options):
    """Functions that take a training step, by who computes, and the net."""
    ours = bench.Minicaffe(training_net(name, batch), options.threads)
    arrays = random_inputs(ours.net)
    ours.fill(arrays)
    return {"minicaffe": ours.step, **_torches(ours.net, arrays, options, "step")}, ours.net


def forwards(name, batch, options):
    """Functions that run the deploy net forward, by who computes, and the net."""
    minicaffe.set_num_threads(options.threads)
    param = deploy_net(name, batch)
    net = Net(param)
    arrays = random_inputs(net)
    for blob, array in zip(net.input_blobs, arrays):
        blob.data[...] = array
    made = {"minicaffe": lambda: net.forward_from_to(0, len(net.layers) - 1), **_torches(net, arrays, options, "forward")}
    for who, make in (("OpenVINO", _openvino), ("OpenCV", _opencv)):
        run = peer(who, lambda make=make: make(net, param, arrays, options))
        if run:
            made[who] = run
    return made, net


def random_inputs(net):
    random = np.random.default_rng(0)
    return [random.random(b.shape, np.float32) if b.num_axes > 2 else random.integers(0, 10, b.shape).astype(np.float32)
            for b in net.input_blobs]


def _torches(net, arrays, options, phase):
    made = {}
    for compiled in (False, True) if options.compile else (False,):
        for last in (False, True):
            who = "PyTorch " + ("compiled " if compiled else "") + ("channels-last" if last else "NCHW")
            run = peer(who, lambda last=last, compiled=compiled: _torch(net, last, compiled, arrays, options, phase))
            if run:
                made[who] = run
    return made


def _torch(net, channels_last, compiled, arrays, options, phase):
    import torch
    runner = bench.Torch(net, options.threads, channels_last, True)
    runner.fill(arrays)
    if compiled:
        runner.net = torch.compile(runner.net)
    run = getattr(runner, phase)
    if options.precision == "float32":
        return run

    def in_bf16():
        with torch.autocast("cpu", torch.bfloat16):
            run()
    return in_bf16


def _openvino(net, param, arrays, options):
    import openvino
    import torch
    from to_torch import TorchNet
    model = openvino.convert_model(TorchNet(net).eval(), example_input=tuple(torch.from_numpy(a) for a in arrays),
                                   input=[a.shape for a in arrays])
    settings = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32" if options.precision == "float32" else "bf16"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    for i, array in enumerate(arrays):
        request.set_input_tensor(i, openvino.Tensor(array, shared_memory=True))
    return request.infer


def _opencv(net, param, arrays, options):
    import cv2
    if options.precision != "float32" or len(arrays) > 1:
        raise ValueError("float32 and one input only")
    cv2.setNumThreads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        prototxt, weights = f"{folder}/net.prototxt", f"{folder}/net.caffemodel"
        Path(prototxt).write_text(write_text(param))
        net.save(weights)
        model = cv2.dnn.readNetFromCaffe(prototxt, weights)

    def run():
        model.setInput(arrays[0])
        model.forward()
    return run


def peak(options):
    """GFLOP/s of the fastest product of two square matrices, of NumPy's and PyTorch's; None without one in this precision."""
    runs = []
    a = np.ones((SQUARE, SQUARE), np.float32)
    with contextlib.suppress(ImportError):
        import torch
        torch.set_num_threads(options.threads)
        b = torch.ones(SQUARE, SQUARE, dtype=torch.float32 if options.precision == "float32" else torch.bfloat16)
        runs.append(lambda: torch.mm(b, b))
    if options.precision == "float32" and options.threads > 1:     # NumPy's threads are those of the machine
        runs.append(lambda: a @ a)
    best = 0.0
    for run in runs:
        for _ in range(7):
            start = time.perf_counter()
            run()
            best = max(best, 2 * SQUARE ** 3 / (time.perf_counter() - start) / 1e9)
    return best or None


def row(made, rounds, seconds):
    """Medians in milliseconds by name, and the spread of minicaffe's."""
    times = turns.samples(made, lambda: None, rounds, seconds)
    result = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    low, _, high = statistics.quantiles(times["minicaffe"], n=4)
    return result, [low * 1e3, high * 1e3]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", default=list(BATCHES), help=f"of {', '.join(BATCHES)}")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--batch1", action="store_true", help="forward of one picture, and no step")
    parser.add_argument("--compile", action="store_true", help="also PyTorch's torch.compile (minutes for each net)")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.nets) - set(BATCHES):
        parser.error(f"unknown nets {', '.join(sorted(unknown))}; there are {', '.join(BATCHES)}")
    if options.precision != "float32":
        minicaffe.set_precision(options.precision)
    rows, counts = [], options.threads
    print(f"{options.precision}; milliseconds, median of {options.rounds} turns; ratio: minicaffe / peer\n")
    print("| net, batch | threads | what | minicaffe (quartiles) | of the peak | PyTorch | ratio | OpenVINO | ratio | OpenCV | "
          "ratio |\n" + "|---" * 11 + "|")
    for options.threads in counts:
        top = peak(options)
        for name in options.nets:
            batch = 1 if options.batch1 else BATCHES[name]
            for what, make in (("forward", forwards),) if options.batch1 else (("step", steps), ("forward", forwards)):
                made, net = make(name, batch, options)
                work = bench.flops(net) * (3 if what == "step" else 1)
                times, spread = row(made, options.rounds, options.seconds)
                mine = times["minicaffe"]
                torch = min((ms for who, ms in times.items() if who.startswith("PyTorch")), default=None)
                cells = []
                for peer_ms in (torch, times.get("OpenVINO"), times.get("OpenCV")):
                    cells += [f"{peer_ms:.2f}", f"{mine / peer_ms:.2f}x"] if peer_ms else ["-", "-"]
                rows.append({"net": name, "batch": batch, "what": what, "threads": options.threads, "precision": options.precision,
                             "ms": times, "quartiles": spread, "gflop": work / 1e9, "peak_gflops": top})
                share = f"{work / mine / 1e6 / top:.0%}" if top else "-"
                ours = f"{mine:.2f} ({spread[0]:.2f} to {spread[1]:.2f})"
                print(f"| {name}, {batch} | {options.threads} | {what} | {ours} | {share} | {' | '.join(cells)} |", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
