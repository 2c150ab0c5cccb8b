"""docs/fine_tuning.md: its commands, in their order, on three classes of 60 pictures each that the net has not seen."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import PATIENCE

import minicaffe as caffe

pytest.importorskip("cv2")
ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "fine_tuning.md"
SCRIPT = ROOT / "models" / "shapes" / "make_pictures.py"


def commands():
    """Return the commands of the page up to "What happens to a picture"."""
    found = re.findall(r"```sh\n(.*?)\n```", PAGE.read_text().partition("\n## What happens")[0], re.DOTALL)
    assert [command.split()[:2] for command in found] == [
        ["python", "models/shapes/make_pictures.py"], ["minicaffe", "data"], ["minicaffe", "finetune"], ["minicaffe", "test"],
        ["minicaffe", "classify"]]
    return found


def run(command, folder):
    """Run a command of the page; return what it prints and writes to standard error."""
    command = re.sub("^minicaffe ", f"{sys.executable} -m minicaffe ", re.sub("^python ", f"{sys.executable} ", command))
    done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True,
                          text=True, timeout=6 * PATIENCE)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout, done.stderr


@pytest.mark.slow(14)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_commands_of_the_page(tmp_path, seed, device):
    if device == "sim":
        pytest.skip("minutes on the simulated device")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "shapes").symlink_to(ROOT / "models" / "shapes")
    make, data, finetune, test, classify = commands()
    run(f"{make} --seed {seed}", tmp_path)
    out, _ = run(data, tmp_path)
    assert "things/train_lmdb: 144 records of 3 x 56 x 56" in out and "things/test_lmdb: 36 records" in out
    out, err = run(f"{finetune} --seed {seed}", tmp_path)
    assert "layer 'scores_things' with 3 outputs in place of 'scores' with 45; lr_mult of 6 other layers times 0.1" in out
    assert "144 pictures for training, 36 for tests; a record is 3 x 48 x 48, minus mean 128, times 0.0078125" in err
    accuracy = float(re.search(r"best test accuracy = ([\d.]+)", out)[1])
    assert accuracy >= 0.7, out     # by chance it is 0.33
    out, _ = run(test, tmp_path)
    assert float(re.search(r"accuracy = ([\d.]+)", out)[1]) == pytest.approx(accuracy, abs=1e-3)
    assert {"fish", "heart", "key"} <= set(re.findall(r"\w+", out))
    out, err = run(classify, tmp_path)
    assert out.startswith("pictures/fish/000.jpg:\n") and "resized to 56 x 56, minus mean 128" in err and "as in things.prototxt" in err


@pytest.mark.slow(1)
def test_script_of_the_page(on_cpu, tmp_path):
    spec = importlib.util.spec_from_file_location("make_pictures", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    random = np.random.default_rng(11)
    labels = np.repeat(np.arange(len(script.CLASSES)), 4)
    pictures = np.stack([script.picture_of(label, random)[4:-4, 4:-4].transpose(2, 0, 1) for label in labels])
    net = caffe.Net(str(SCRIPT.with_name("deploy.prototxt")), caffe.TEST, weights=str(SCRIPT.with_name("shapes.caffemodel")))
    net.blobs["data"].reshape(*pictures.shape)
    scores = net.forward(data=(pictures.astype(np.float32) - 128) * 0.0078125)["prob"]
    assert (scores.argmax(axis=1) == labels).mean() > 0.75
    for out in "ab":
        subprocess.run([sys.executable, SCRIPT, "--out", tmp_path / out, "--count", "24", "--seed", "5"], check=True, capture_output=True)
    a, b = ((tmp_path / out / "shapes_train_lmdb" / "data.mdb").read_bytes() for out in "ab")
    assert a == b
