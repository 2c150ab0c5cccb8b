"""The nets of docs/benchmarks.md against PyTorch, OpenVINO and OpenCV: training step and forward, by turns in one run.

    python tools/bench/nets.py [lenet cifar10_quick ...] [--threads 2] [--seconds 0.5] [--rounds 9] [--batch1] [--json FILE]

Each net of `models/` is measured with random pictures of its size. The step is forward, backward and SGD with momentum and weight
decay of the training net; the forward is that of the deploy net. PyTorch runs in NCHW and channels-last (BatchNorm and Scale as one
operator there, as PyTorch's users write it), its optimiser fused; the best counts. OpenVINO gets the net from PyTorch, OpenCV as
prototxt and caffemodel. A peer that is not installed, or that fails on a net, is left out and the row says so.
"""

import argparse
import json
import statistics
import sys
import tempfile
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
           "vgg16": 4}


def deploy_net(name, batch):
    """The deploy net with random weights, its input resized."""
    param, _ = read_net(str(MODELS / name / "deploy.prototxt"), caffe_pb2.TEST)
    next(layer for layer in param.layer if layer.type == "Input").input_param.shape[0].dim[0] = batch
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
        if layer.type != "Data":
            made.layer.add().CopyFrom(layer)
            continue
        source = made.layer.add(name=layer.name, type="Input", top=layer.top)
        source.input_param.shape.add(dim=picture)
        if len(layer.top) > 1:
            source.input_param.shape.add(dim=[batch])
    return made


def peer(reason, make):
    """The function that `make` returns, or None after saying why not."""
    try:
        run = make()
        run()
        return run
    except Exception as error:  # a peer may fail in any way; the measurement goes on
        print(f"no {reason}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)


def steps(name, batch, threads):
    """Functions that take a training step, by who computes."""
    ours = bench.Minicaffe(training_net(name, batch), threads)
    arrays = _arrays(ours.net)
    ours.fill(arrays)
    made = {"minicaffe": ours.step}
    for last in (False, True):
        who = "PyTorch channels-last" if last else "PyTorch NCHW"
        run = peer(who, lambda last=last: _torch(ours.net, threads, last, arrays).step)
        if run:
            made[who] = run
    return made


def forwards(name, batch, threads):
    """Functions that run the deploy net forward, by who computes."""
    minicaffe.set_num_threads(threads)
    param = deploy_net(name, batch)
    net = Net(param)
    arrays = _arrays(net)
    net.input_blobs[0].data[...] = arrays[0]
    made = {"minicaffe": lambda: net.forward_from_to(0, len(net.layers) - 1)}
    for last in (False, True):
        who = "PyTorch channels-last" if last else "PyTorch NCHW"
        run = peer(who, lambda last=last: _torch(net, threads, last, arrays).forward)
        if run:
            made[who] = run
    for who, make in (("OpenVINO", _openvino), ("OpenCV", _opencv)):
        run = peer(who, lambda make=make: make(net, param, arrays[0], threads))
        if run:
            made[who] = run
    return made


def _arrays(net):
    random = np.random.default_rng(0)
    return [random.random(b.shape, np.float32) if b.num_axes > 1 else random.integers(0, 10, b.shape).astype(np.float32)
            for b in net.input_blobs]


def _torch(net, threads, channels_last, arrays):
    runner = bench.Torch(net, threads, channels_last, True)
    runner.fill(arrays)
    return runner


def _openvino(net, param, array, threads):
    import openvino
    import torch
    from to_torch import TorchNet
    model = openvino.convert_model(TorchNet(net).eval(), example_input=torch.from_numpy(array), input=array.shape)
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    request.set_input_tensor(openvino.Tensor(array, shared_memory=True))
    return request.infer


def _opencv(net, param, array, threads):
    import cv2
    cv2.setNumThreads(threads)
    with tempfile.TemporaryDirectory() as folder:
        prototxt, weights = f"{folder}/net.prototxt", f"{folder}/net.caffemodel"
        Path(prototxt).write_text(write_text(param))
        net.save(weights)
        model = cv2.dnn.readNetFromCaffe(prototxt, weights)

    def run():
        model.setInput(array)
        model.forward()
    return run


def row(made, rounds, seconds):
    """Medians in milliseconds by name, and the spread of minicaffe's."""
    times = turns.samples(made, lambda: None, rounds, seconds)
    result = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    low, _, high = statistics.quantiles(times["minicaffe"], n=4)
    return result, [low * 1e3, high * 1e3]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", default=list(BATCHES), help=f"of {', '.join(BATCHES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--batch1", action="store_true", help="forward of one picture, and no step")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.nets) - set(BATCHES):
        parser.error(f"unknown nets {', '.join(sorted(unknown))}; there are {', '.join(BATCHES)}")
    rows = []
    print(f"{options.threads} threads, float32; milliseconds, median of {options.rounds} turns; ratio: minicaffe / peer\n")
    print("| net, batch | what | minicaffe (quartiles) | PyTorch | ratio | OpenVINO | ratio | OpenCV | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.nets:
        batch = 1 if options.batch1 else BATCHES[name]
        for what, make in (("forward", forwards),) if options.batch1 else (("step", steps), ("forward", forwards)):
            times, spread = row(make(name, batch, options.threads), options.rounds, options.seconds)
            mine = times["minicaffe"]
            torch = min((ms for who, ms in times.items() if who.startswith("PyTorch")), default=None)
            cells = []
            for peer_ms in (torch, times.get("OpenVINO"), times.get("OpenCV")):
                cells += [f"{peer_ms:.2f}", f"{mine / peer_ms:.2f}x"] if peer_ms else ["-", "-"]
            rows.append({"net": name, "batch": batch, "what": what, "threads": options.threads, "ms": times, "quartiles": spread})
            ours = f"{mine:.2f} ({spread[0]:.2f} to {spread[1]:.2f})"
            print(f"| {name}, {batch} | {what} | {ours} | {' | '.join(cells)} |", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
