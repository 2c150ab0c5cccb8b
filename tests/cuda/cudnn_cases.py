"""Layers with engine CUDNN, run in processes of their own, as cuDNN is opened once (test_cudnn.py).

``python cudnn_cases.py record '<JSON>'`` runs layers and prints what they called, logged and raised; ``compare`` computes with
both engines and prints how far the results are apart.
"""

import ctypes
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "layers"))

from gradient import layer_net, run_backward, run_forward  # noqa: E402

import minicaffe  # noqa: E402
from minicaffe import cuda  # noqa: E402
from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.engines import engine  # noqa: E402


def conv(fields, type="Convolution"):
    return other(type, "convolution_param", fields + ' weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 1 }')


def other(type, param, fields="", engine="engine: ENGINE"):
    return f'layer {{ name: "layer" type: "{type}" bottom: "x" top: "y" {param} {{ {fields} {engine} }} }}'


# name: layer, shape of the bottom
CASES = {
    "conv": (conv("num_output: 4 kernel_h: 3 kernel_w: 2 pad_h: 1 pad_w: 0 stride_h: 2 stride_w: 1 group: 2"), (2, 6, 9, 7)),
    "conv without bias": (conv("num_output: 3 kernel_size: 3 dilation: 2 bias_term: false"), (2, 2, 8, 9)),
    "conv 1x1": (conv("num_output: 5 kernel_size: 1"), (3, 4, 6, 5)),
    "conv depthwise": (conv("num_output: 4 kernel_size: 3 pad: 1 group: 4"), (2, 4, 8, 8)),
    "conv 1 axis": (conv("num_output: 4 kernel_size: 3 pad: 2 stride: 2"), (2, 3, 10)),
    "conv 3 axes": (conv("num_output: 4 kernel_size: 2 kernel_size: 3 kernel_size: 1 pad: 0 pad: 1 pad: 0"), (2, 2, 4, 5, 6)),
    "conv 4 axes": (conv("num_output: 4 kernel_size: 2"), (1, 2, 3, 3, 3, 3)),
    "conv large window": (conv("num_output: 4 kernel_size: 4 stride: 3"), (1, 2, 3, 3)),
    "conv one image": (conv("num_output: 3 kernel_size: 5 pad: 2 stride: 3"), (1, 2, 11, 9)),
    "conv dilated": (conv("num_output: 6 kernel_size: 3 dilation: 2 pad: 2 stride: 2 group: 3"), (2, 6, 9, 8)),
    "conv 1 axis depthwise": (conv("num_output: 6 kernel_size: 3 pad: 1 group: 3"), (2, 3, 7)),
    "deconv 3 axes": (conv("num_output: 2 kernel_size: 2 stride: 2 bias_term: false", "Deconvolution"), (1, 3, 2, 3, 2)),
    "deconv depthwise": (conv("num_output: 4 kernel_size: 4 pad: 1 stride: 2 group: 4", "Deconvolution"), (2, 4, 3, 4)),
    "deconv": (conv("num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 2", "Deconvolution"), (2, 6, 5, 4)),
    "ave": (other("Pooling", "pooling_param", "pool: AVE kernel_size: 2 stride: 2"), (2, 3, 7, 8)),
    "lrn": (other("LRN", "lrn_param", "local_size: 5 alpha: 0.25 beta: 0.75 k: 2"), (2, 7, 3, 4)),
    "lrn within": (other("LRN", "lrn_param", "local_size: 3 norm_region: WITHIN_CHANNEL"), (2, 7, 3, 4)),
    "lrn 17": (other("LRN", "lrn_param", "local_size: 17 alpha: 0.25"), (2, 20, 3, 4)),
    "lrn empty": (other("LRN", "lrn_param"), (0, 7, 3, 4)),
    "softmax": (other("Softmax", "softmax_param", "axis: 2"), (2, 3, 5, 4)),
    "relu": (other("ReLU", "relu_param"), (2, 3, 5)),
    "batch norm": (other("BatchNorm", "batch_norm_param", "eps: 1e-3", engine=""), (4, 3, 5, 2)),
}


def make_net(name, engine="CUDNN", dtype=Dtype.FLOAT, images=None):
    layer, shape = CASES[name]
    shape = shape if images is None else (images, *shape[1:])
    minicaffe.set_random_seed(7)
    rng = np.random.default_rng(3)
    return layer_net(layer.replace("ENGINE", engine), [rng.standard_normal(shape)], dtype), rng


def step(net, rng, start=0.5):
    """Forward and backward; parameter diffs are `start` before, since layers add to them. None: as they are, at first unwritten zeros."""
    top = net.tops[-1][0]
    for blob in net.layers[-1].blobs if start is not None else []:
        blob.diff[...] = start
    run_forward(net)
    run_backward(net, [0], [rng.standard_normal(top.shape)])


def results(net):
    return [np.array(a) for a in (net.tops[-1][0].data, net.bottoms[-1][0].diff, *[blob.diff for blob in net.layers[-1].blobs])]


def addresses(net):
    blobs = {"x": net.bottoms[-1][0], "y": net.tops[-1][0], **{f"w{i}": blob for i, blob in enumerate(net.layers[-1].blobs)}}
    return {**{name: blob.mutable_gpu_data.address for name, blob in blobs.items()}, **{f"d{name}": blob.mutable_gpu_diff.address for name, blob in blobs.items()}}


class Refusals(logging.Handler):
    """Collects the warnings of what an engine refuses; other loggers have other ones, such as that kernels are compiled."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []
        engine.log.addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


def take_fake_times():
    """Let events report the time of the fake library, which other processes do not disturb."""
    from minicaffe.cuda import device
    fake = ctypes.CDLL(os.environ["MINICAFFE_CUDNN"])
    fake.fake_clock.restype = ctypes.c_longlong

    class Event(device.Event):
        def record(self, stream):
            super().record(stream)
            self.at = fake.fake_clock()

        def elapsed(self, start):
            super().elapsed(start)
            return (self.at - start.at) / 1e3

    device.Event = Event


def record(specs):
    """Each spec: {name, engine, dtype, images, fail, use, precision, steps, start}; `use` is the argument of use_cudnn."""
    log, done = Refusals(), []
    run_on_root = engine.preferred()
    calls = Path(os.environ["FAKE_LOG"])
    minicaffe.set_mode_gpu()
    take_fake_times()
    for spec in specs:
        calls.write_text("")
        del log.texts[:]
        os.environ["FAKE_FAIL"] = spec.get("fail", "")
        engine.prefer(run_on_root)
        if "use" in spec:
            cuda.use_cudnn(spec["use"])
        minicaffe.set_precision(spec.get("precision", "float32"))
        net, rng = make_net(spec["name"], spec.get("engine", "CUDNN"), Dtype[spec.get("dtype", "FLOAT")], spec.get("images"))
        error = None
        try:
            for _ in range(spec.get("steps", 1)):
                step(net, rng, spec.get("start", 0.5))
        except minicaffe.errors.DeviceError as raised:
            error = [str(raised), raised.code]
        done.append({"calls": [json.loads(line) for line in calls.read_text().splitlines()], "log": list(log.texts),
                     "error": error, "engines": [row["engine"] for row in net.engines()], "at": addresses(net) if net.bottoms[-1][0].count else {}})
    print("RESULT", json.dumps(done))


def compare(specs):
    """How far the engines are apart, relative to the largest value of each blob."""
    log, done = Refusals(), []
    minicaffe.set_mode_gpu()
    for spec in specs:
        del log.texts[:]
        found = []
        for name in "CAFFE", "CUDNN":
            cuda.use_cudnn(name == "CUDNN")
            minicaffe.set_precision(spec.get("precision", "float32") if name == "CUDNN" else "float32")
            net, rng = make_net(spec["name"], name, Dtype[spec["dtype"]])
            for _ in range(2):
                step(net, rng, spec.get("start", 0.5))
            found.append(results(net))
        worst = max((float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)) for a, b in zip(*found) if a.size), default=0.0)
        done.append({"worst": worst, "log": list(log.texts)})
    print("RESULT", json.dumps(done))


if __name__ == "__main__":
    {"record": record, "compare": compare}[sys.argv[1]](json.loads(sys.argv[2]))
