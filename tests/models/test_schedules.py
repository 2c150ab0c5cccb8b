"""The schedule of every model says what really runs: which layers as one step, what is freed when, which gradients are complete.

Large models run as a dry run, on the simulated device as on the CPU.
"""

import contextlib
from pathlib import Path

import pytest
from opencv_table import slim

from minicaffe import memory
from minicaffe.device.threads import dry_run
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, upgrade

MODELS = Path(__file__).resolve().parents[2] / "models"

FILES = {path.parent.name: path for path in sorted(MODELS.glob("*/net.prototxt"))}
COMPUTED = ("autoencoder", "lenet", "mlp", "siamese", "cifar10_quick", "squeezenet")


def built(path, phase):
    if path.parent.name == "ssd":
        path = path.with_name("train.prototxt" if phase == caffe_pb2.TRAIN else "test.prototxt")
    param = upgrade.read_net_file(str(path))[0]
    param.state.phase = phase
    if path.parent.name == "autoencoder" and phase == caffe_pb2.TEST:
        param.state.stage.append("test-on-test")
    made, _ = replace_sources(param, str(path), {"pair_data": (2, 28, 28)} if path.parent.name == "siamese" else {}, batch=1)
    return Net(slim(made) if path.parent.name not in ("ssd", "resnet50", "mobilenet") else made, file=str(path))


def ran(net, training):
    """Run the net; return (direction, layers, memories freed) of each step, and the parameters in the order of their updates."""
    taken = []
    if training:
        net.clear_param_diffs()
    with memory.record() as events:
        if training:
            net.forward_backward(on_gradients=lambda which, part, last: taken.extend(which) or which, stream_large=False)
        else:
            net.forward_from_to(0, len(net.nodes) - 1)
    steps, freed, followers = [], [], []
    for event in events:
        direction, _, head = event.detail.partition(" with ")
        if event.kind == "head" and event.detail.endswith("-> RECYCLED by recycle"):
            freed.append(event.name)
        elif event.kind == "end" and direction == "forward" and head:
            steps[-1][1].append(event.name)
        elif event.kind == "end" and head:
            followers.insert(0, event.name)
        elif event.kind == "end" and direction in ("forward", "backward"):
            steps.append((direction, [event.name, *followers], freed))
            freed, followers = [], []
    return steps, [net.learnable_params[i].name for i in taken]


@pytest.mark.parametrize("phase", [caffe_pb2.TRAIN, caffe_pb2.TEST], ids=["train", "test"])
@pytest.mark.parametrize("model", [*FILES, "ssd"])
def test_schedules(model, phase):
    with contextlib.nullcontext() if model in COMPUTED else dry_run():
        check_schedule(built(FILES.get(model, MODELS / "ssd" / "net.prototxt"), phase), phase)


def check_schedule(net, phase):
    net.forward_from_to(0, len(net.nodes) - 1)      # shapes that depend on values
    for plan in ("memory", None):
        net.set_plan(plan, net.output_blobs, phase == caffe_pb2.TRAIN)
        listing = net.schedule()
        steps, taken = ran(net, phase == caffe_pb2.TRAIN)
        rows = [row for row in listing.rows if row.direction == "forward" or any(net.nodes[net.layer_index(name)].needs_backward
                                                                                 for name in row.layers)]
        assert [(row.direction, row.layers) for row in rows] == [(direction, layers) for direction, layers, _ in steps]
        before = set()      # a part of a Concat, and a top that is not written, go with the step that computes them
        for row, (_, layers, freed) in zip(rows, steps):
            own = {name for name in freed if "scratch" not in name and "[" not in name}
            assert set(row.frees) <= own | before, layers
            before = (before | own) - set(row.frees)
            assert before <= {f"{blob.name} data" for blob in net.blob_list} and (plan or not own)
        assert not before
        assert bool(plan) == any(row.frees for row in rows)
        if phase == caffe_pb2.TRAIN:
            complete = [name for row in listing.rows for name in row.updates]
            assert taken[:len(complete)] == complete and sorted(taken) == sorted(blob.name for blob in net.learnable_params)
        assert len(listing.rows) < 2 * len(net.nodes) and listing.peak <= sum(
            blob.data_memory.size + blob.diff_memory.size for blob in net.blob_list)
