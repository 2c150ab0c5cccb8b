"""The schedule of every model says what really runs: which layers as one step, what is freed when, which gradients are complete."""

import sys
from pathlib import Path

import pytest

from minicaffe import memory
from minicaffe.net.net import Net
from minicaffe.net.stand_in import stand_in
from minicaffe.proto import caffe_pb2, upgrade

MODELS = Path(__file__).resolve().parents[2] / "models"
sys.path.insert(0, str(MODELS.parent / "tools"))
from opencv_table import slim  # noqa: E402

FILES = {path.parent.name: path for path in sorted(MODELS.glob("*/net.prototxt"))}
SIMULATED = ("autoencoder", "lenet", "mlp", "siamese", "cifar10_quick", "squeezenet")


def built(path, phase):
    param = upgrade.read_net_file(str(path))[0]
    param.state.phase = phase
    made, _ = stand_in(param, str(path), batch=1)
    return Net(slim(made) if path.parent.name not in ("ssd", "resnet50", "mobilenet") else made, file=str(path))


def ran(net, training):
    """Run the net; return (direction, layers, memories freed) of each step, and the parameters in the order of their updates."""
    taken = []
    if training:
        net.clear_param_diffs()
    with memory.record() as events:
        if training:
            net.forward_backward(take=lambda which, part, last: taken.extend(which) or which, in_parts=False)
        else:
            net.forward_from_to(0, len(net.nodes) - 1)
    steps, followers, freed = [], [], []
    for event in events:
        if event.kind == "head" and event.detail.endswith("-> RECYCLED by recycle"):
            freed.append(event.name)
        elif event.kind == "end" and event.detail == "forward":
            steps.append(("forward", [event.name], freed := []))
            freed = steps[-1][2]
        elif event.kind == "end" and event.detail.startswith("forward with"):
            steps[-1][1].append(event.name)
        elif event.kind == "end" and event.detail.startswith("backward with"):
            followers.insert(0, event.name)
        elif event.kind == "end" and event.detail == "backward":
            steps.append(("backward", [event.name, *followers], None))
            followers = []
    return steps, [net.learnable_params[i].name for i in taken]
