"""The batch script and the web service of docs/using_a_trained_net.md."""

import csv
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import cli
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db

cv2 = pytest.importorskip("cv2")
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "using_a_trained_net.md"
LABELS = (ROOT / "models" / "data" / "labels.txt").read_text().splitlines()
PICTURES = 70
PATIENCE = 60  # seconds


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A folder with the scripts of the page, LeNet with random weights, and bundled pictures; returns it and the pictures."""
    folder = tmp_path_factory.mktemp("service")
    for name in ("lenet/net.prototxt", "data/labels.txt"):
        (folder / "models" / name).parent.mkdir(parents=True)
        (folder / "models" / name).write_bytes((ROOT / "models" / name).read_bytes())
    (folder / "models" / "data" / "fashion_mnist_test_lmdb").symlink_to(ROOT / "models" / "data" / "fashion_mnist_test_lmdb")
    (folder / "models" / "data" / "fashion_mnist_train_lmdb").symlink_to(ROOT / "models" / "data" / "fashion_mnist_train_lmdb")
    text = PAGE.read_text()
    for script in ("batch.py", "serve.py"):
        code = re.search(rf"```python\n(# {script}\n.*?)```", text, re.DOTALL)[1]
        (folder / script).write_text(code.replace("8000), Handler).serve_forever()", "0), Handler) as server:\n        print(server.server_port, flush=True)\n        server.serve_forever()")
                                     .replace("    ThreadingHTTPServer((", "    with ThreadingHTTPServer(("))
    before = os.getcwd()
    os.chdir(folder)
    try:
        caffe.set_random_seed(1)
        caffe.Net("models/lenet/net.prototxt", caffe.TEST).save("models/lenet/net_iter_1500.caffemodel")
        command = re.search(r"^    minicaffe (deploy .*)$", text, re.M)[1]
        assert cli.main(command.split()) == 0
        (folder / "pictures" / "more").mkdir(parents=True)
        with open_db("models/data/fashion_mnist_test_lmdb", "LMDB") as db:
            pictures = [picture_of(read_datum(value)).copy() for _, value in db.records()][::1000 // PICTURES][:PICTURES]
        for i, picture in enumerate(pictures):
            cv2.imwrite(f"pictures/{'more/' if i % 2 else ''}{i}.png", picture[0])
        net = caffe.Net("lenet.prototxt", caffe.TEST, weights="lenet.caffemodel")
        net.blobs["pixels"].reshape(PICTURES, 1, 28, 28)
        scores = net.forward(pixels=np.stack(pictures))["prob"].copy()
    finally:
        os.chdir(before)
    return folder, scores


def test_the_batch_script(there):
    folder, scores = there
    (folder / "pictures" / "broken.png").write_bytes(b"no picture")
    done = subprocess.run([sys.executable, "batch.py", "pictures", "out.csv"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and "pictures/broken.png: cannot be read; left out" in done.stderr, done.stderr
    header, *rows = csv.reader((folder / "out.csv").open())
    assert header == ["file", "class", "score"] and len(rows) == PICTURES
    for file, name, score in rows:
        wanted = scores[int(Path(file).stem)]
        assert float(score) == pytest.approx(wanted.max(), abs=2e-4) and wanted[LABELS.index(name)] > wanted.max() - 1e-5


def test_service(there):
    folder, scores = there
    service = subprocess.Popen([sys.executable, "serve.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = f"http://127.0.0.1:{int(service.stdout.readline())}/"

        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))   # not through a proxy of the environment

        def ask(i):
            content = next((folder / "pictures").rglob(f"{i}.png")).read_bytes()
            with direct.open(urllib.request.Request(url, data=content), timeout=PATIENCE) as answer:
                return json.load(answer)

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(ask, range(PICTURES)))
        assert [list(answer) for answer in answers] == [LABELS] * PICTURES
        np.testing.assert_allclose([list(answer.values()) for answer in answers], scores, rtol=1e-3, atol=1e-6)
        for content in (b"no picture", b""):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                direct.open(urllib.request.Request(url, data=content, method="POST"), timeout=PATIENCE)
        assert ask(0) == answers[0]     # it still answers
    finally:
        service.kill()
        service.wait()
        service.stdout.close()
