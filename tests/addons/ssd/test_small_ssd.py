"""A small SSD learns to find coloured rectangles; the nets of models/ssd/make.py."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")

from small_ssd import CLASSES, SIDE, net, picture, write_database  # noqa: E402
from ssd_boxes import overlap  # noqa: E402

import minicaffe  # noqa: E402
from minicaffe import cli  # noqa: E402
from minicaffe.addons.ssd.mean_precision import MeanPrecision  # noqa: E402
from minicaffe.common import TEST  # noqa: E402
from minicaffe.device.threads import set_num_threads  # noqa: E402
from minicaffe.errors import ConfigError  # noqa: E402
from minicaffe.net.net import Net, read_net  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402
from minicaffe.proto.text import read_text, write_text  # noqa: E402
from minicaffe.solver import create_solver  # noqa: E402

ITERATIONS = 80


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ssd")
    return write_database(folder / "train", 200, 1), write_database(folder / "test", 40, 2)


def solver(databases, **fields):
    param = caffe_pb2.SolverParameter(type="Adam", base_lr=0.002, lr_policy="fixed", momentum=0.9, momentum2=0.999, weight_decay=5e-4,
                                      max_iter=ITERATIONS, random_seed=1, test_iter=[5], test_interval=10000, eval_type="detection",
                                      show_per_class_result=True)
    for name, value in fields.items():
        setattr(param, name, value)
    train, test = databases
    param.train_net_param.CopyFrom(net(train, 16))
    param.test_net_param.add().CopyFrom(net(test, 8, train=False))
    return create_solver(param)


def losses(trained, steps):
    found = []
    for _ in range(steps):
        trained.step(1)
        found.append(trained.net.blob_by_name("mbox_loss").cpu_data.item())
    return found


@pytest.mark.slow(4)
def test_it_learns(databases, on_cpu, tmp_path):
    set_num_threads(1)
    trained = solver(databases)
    before = trained.test(0)["outputs"][0]
    seen = losses(trained, ITERATIONS)
    after = trained.test(0)["outputs"]
    assert [record["name"] for record in after] == ["detection_eval", "detection_eval[1]", "detection_eval[2]"]
    # 9.7 to 2.6 and a precision of 0.94 were seen; the rest is room for other machines' sums.
    assert np.mean(seen[-10:]) < 0.4 * np.mean(seen[:10]), seen
    assert before["value"] < 0.1 and after[0]["value"] > 0.75, after
    assert after[0]["value"] == pytest.approx(np.mean([record["value"] for record in after[1:]]))

    # The deploy net finds the rectangles of new pictures with the same weights.
    weights = tmp_path / "ssd.caffemodel"
    trained.net.save(str(weights))
    deploy = net()
    deploy.state.phase = TEST
    deploy = Net(deploy)
    deploy.copy_from(str(weights))
    random = np.random.default_rng(3)
    hits = objects = 0
    for _ in range(20):
        image, boxes = picture(random)
        deploy.blob_by_name("data").data[0] = (image.transpose(2, 0, 1) - 115.0) / 128
        deploy.forward_from_to(0, len(deploy.layers) - 1)
        rows = deploy.blob_by_name("detection_out").cpu_data[0, 0]
        objects += len(boxes)
        hits += sum(any(row[1] == label and row[2] > 0.5 and overlap(row[3:], box) > 0.5 for row in rows) for label, *box in boxes)
    assert hits > 0.6 * objects, (hits, objects)


def test_the_command_prints_precisions(databases, tmp_path, capsys, on_cpu):
    param = net(databases[1], 8, train=False)
    (tmp_path / "test.prototxt").write_text(write_text(param))
    untrained = Net(param)
    untrained.save(str(tmp_path / "w.caffemodel"))
    wanted = MeanPrecision("11point")
    for _ in range(5):
        untrained.forward_from_to(0, len(untrained.layers) - 1)
        wanted.add(untrained.blob_by_name("detection_eval").cpu_data)
    assert cli.main(["test", str(tmp_path / "test.prototxt"), "--weights", str(tmp_path / "w.caffemodel"), "--iterations", "5",
                     "--ap-version", "11point"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["Loss: 0", f"detection_eval = {wanted.mean():g}",
                       *(f"detection_eval[{label}] = {value:g}" for label, value in wanted.by_class().items())]


def test_a_device_takes_the_same_steps(databases, device):
    here = losses(solver(databases), 2)
    minicaffe.set_mode_cpu()
    try:
        there = losses(solver(databases), 2)
    finally:
        if device != "cpu":
            minicaffe.set_mode_gpu()
    assert here == pytest.approx(there, rel=1e-3)  # float32 sums in another order, through one update


def test_labels_and_wrong_evaluation(databases):
    train = Net(net(databases[0], 4))
    train.forward_from_to(0, 0)
    data, label = (blob.cpu_data for blob in train.tops[0])
    assert data.shape == (4, 3, SIDE, SIDE) and label.shape[3] == 8 and set(label[0, 0, :, 1]) <= set(range(1, CLASSES))
    with pytest.raises(ConfigError, match="ap_version: must be one of Integral, MaxIntegral, 11point, got 'best'"):
        solver(databases, ap_version="best").test(0)
    train, test = databases
    param = caffe_pb2.SolverParameter(base_lr=0.1, lr_policy="fixed", test_iter=[1], test_interval=5, eval_type="detection")
    param.train_net_param.CopyFrom(net(train, 1))
    param.test_net_param.add().CopyFrom(net(test, 1, augment=False))  # its output is the loss
    with pytest.raises(ConfigError, match="eval_type: is for test nets whose outputs are evaluated.*the outputs of this one are of MultiBoxLoss"):
        create_solver(param).test(0)


MAKE = Path(__file__).parents[3] / "models" / "ssd" / "make.py"


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make_ssd", MAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The four files, written by the command, for two small databases."""
    folder = tmp_path_factory.mktemp("ssd300")
    train, test = write_database(folder / "train", 3, 1), write_database(folder / "test", 3, 2)
    (folder / "labels").write_text("".join(f'item {{ name: "{i}" label: {i} }}' for i in range(3)))
    done = subprocess.run([sys.executable, str(MAKE), str(folder / "out"), "--train", train, "--test", test, "--classes", "3",
                           "--batch", "2", "--test-pictures", "3", "--test-batch", "2", "--label-map", str(folder / "labels")],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(folder / "out" / f"{name}.prototxt") for name in ("train", "test", "deploy", "solver")]
    return folder / "out"


def test_the_deploy_net(make):
    param = make.ssd300("deploy")
    param.state.phase = caffe_pb2.TEST
    net = Net(param)
    shapes = {name: net.blob_by_name(name).shape for name in net.blob_names}
    assert shapes["mbox_priorbox"] == (1, 2, 8732 * 4) and shapes["mbox_loc"] == (1, 8732 * 4) and shapes["mbox_conf"] == (1, 8732 * 21)
    assert [shapes[name][2:] for name in ("conv4_3", "fc7", "conv6_2", "conv7_2", "conv8_2", "conv9_2")] == [
        (38, 38), (19, 19), (10, 10), (5, 5), (3, 3), (1, 1)]
    assert shapes["detection_out"] == (1, 1, 1, 7)
    blobs = {layer.name: [blob.shape for blob in layer.blobs] for layer in net.layers}
    assert blobs["conv4_3_norm"] == [(512,)] and blobs["fc6"] == [(1024, 512, 3, 3), (1024,)]
    assert blobs["conv4_3_norm_mbox_loc"][0] == (16, 512, 3, 3) and blobs["conv4_3_norm_mbox_conf"][0] == (84, 512, 3, 3)
    assert blobs["conv7_2_mbox_conf"][0] == (126, 256, 3, 3) and blobs["conv9_2_mbox_conf"][0] == (84, 256, 3, 3)
    for name in ("relu4_3", "relu7", "conv6_1_relu", "fc7_mbox_conf_perm", "conv8_2_mbox_loc_flat", "conv9_2_mbox_priorbox",
                 "mbox_conf_reshape", "mbox_conf_softmax", "mbox_conf_flatten", "detection_out"):
        assert name in blobs
    assert sum(np.prod(shape) for shapes in blobs.values() for shape in shapes) == 26_285_486
    # The prior boxes as SSD300 has them: the last map has one place in the middle.
    index = net.layer_names.index("conv9_2_mbox_priorbox")
    net.forward_from_to(index, index)
    first = net.tops[index][0].cpu_data[0, 0, :4]
    np.testing.assert_allclose(first, [18 / 300, 18 / 300, 282 / 300, 282 / 300], rtol=1e-6)


def test_train_test_and_solver(files):
    for kind, phase, output, batch in (("train", caffe_pb2.TRAIN, "mbox_loss", 2), ("test", caffe_pb2.TEST, "detection_eval", 2)):
        param, positions = read_net(str(files / f"{kind}.prototxt"), phase)
        net = Net(param, positions=positions)
        assert [blob.name for blob in net.output_blobs] == [output]
        net.forward_from_to(0, 0)
        data, label = net.tops[0][:2]
        assert data.shape == (batch, 3, 300, 300) and label.shape[3] == 8
        assert np.abs(data.cpu_data).max() < 256
    param, _ = read_text(files / "solver.prototxt", caffe_pb2.SolverParameter)
    assert param.test_iter == [2] and param.eval_type == "detection" and param.train_net == str(files / "train.prototxt")


def test_wrong_arguments(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run([sys.executable, str(MAKE), str(tmp_path / "file")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "file" in done.stderr and "Traceback" not in done.stderr
