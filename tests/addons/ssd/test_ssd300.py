"""models/ssd/make.py: the nets that it writes can be built, and have the names and shapes of the public SSD300."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")

from small_ssd import write_database  # noqa: E402

from minicaffe.net.net import Net, read_net  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402
from minicaffe.proto.text import read_text  # noqa: E402

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


def test_the_train_and_test_nets(files):
    for kind, phase, output, batch in (("train", caffe_pb2.TRAIN, "mbox_loss", 2), ("test", caffe_pb2.TEST, "detection_eval", 2)):
        param, positions = read_net(str(files / f"{kind}.prototxt"), phase)
        net = Net(param, positions=positions)
        assert [blob.name for blob in net.output_blobs] == [output]
        net.forward_from_to(0, 0)
        data, label = net.tops[0][:2]
        assert data.shape == (batch, 3, 300, 300) and label.shape[3] == 8
        assert np.abs(data.cpu_data).max() < 256


def test_the_solver(files):
    param, _ = read_text(files / "solver.prototxt", caffe_pb2.SolverParameter)
    assert param.test_iter == [2] and param.eval_type == "detection" and param.train_net == str(files / "train.prototxt")


def test_wrong_arguments(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run([sys.executable, str(MAKE), str(tmp_path / "file")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "file" in done.stderr and "Traceback" not in done.stderr
