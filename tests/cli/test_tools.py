"""Caffe's tools as subcommands: what they write, their options in gflags' form too, and one line for what is wrong."""

import csv
import gzip
import json
import re
import struct

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.cli import app
from minicaffe.cli.parse_log import read_run, times_of
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2

cv2 = pytest.importorskip("cv2")
DEPLOY = """layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
V1 = """name: "old" layers { name: "d" type: DUMMY_DATA top: "x" dummy_data_param { num: 4 channels: 3 height: 1 width: 2 data_filler { type: "gaussian" } } }
layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" blobs_lr: 1 blobs_lr: 2 inner_product_param { num_output: 2 } }
"""
LOG = """I1121 03:31:07.000000 1 solver.py:1] Solving tiny
I1121 03:31:07.500000 1 solver.py:1] Iteration 0, Testing net (#0)
I1121 03:31:08.000000 1 solver.py:1]     Test net output #0: accuracy = 0.1
I1121 03:31:08.000000 1 solver.py:1]     Test net output #1: loss = 2.5 (* 1 = 2.5 loss)
I1121 03:31:09.000000 1 solver.py:1] Iteration 0 (0 iter/s, 0s/10 iters), loss = 2.4
I1121 03:31:09.000000 1 solver.py:1]     Train net output #0: loss = 2.4 (* 1 = 2.4 loss)
I1121 03:31:09.000000 1 sgd.py:1] Iteration 0, lr = 0.01
I1121 03:31:11.000000 1 solver.py:1] Iteration 10 (0 iter/s, 0s/10 iters), loss = nan
I1121 03:31:11.000000 1 solver.py:1]     Train net output #0: loss = nan (* 1 = nan loss)
I1121 03:31:11.000000 1 sgd.py:1] Iteration 10, lr = 1e-3
"""


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    (tmp_path / "old.prototxt").write_text(V1)
    (tmp_path / "train.log").write_text(LOG)
    caffe.Net("deploy.prototxt", caffe.TEST).save("w.caffemodel")
    pictures = np.random.default_rng(0).integers(0, 255, (3, 12, 16, 3)).astype(np.uint8)
    for i, picture in enumerate(pictures):
        cv2.imwrite(f"{i}.png", picture)
    digits = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
    with gzip.open("images.gz", "wb") as file:
        file.write(struct.pack(">4I", 0x803, 6, 4, 4) + digits.tobytes())
    (tmp_path / "labels").write_bytes(struct.pack(">2I", 0x801, 6) + bytes([0, 1, 2, 0, 1, 2]))
    return tmp_path


def records(path, backend="lmdb"):
    with open_db(path, backend) as db:
        return [(bytes(k), bytes(v)) for k, v in db.records()]


@pytest.mark.no_plan("extract_features reads a blob from the middle of the net, and has no plan")
def test_extract_features(minicaffe, there):
    (there / "net.prototxt").write_text(DEPLOY.replace('type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } }',
        'type: "DummyData" top: "data" dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } data_filler { type: "constant" value: 2 } }'))
    out = minicaffe("extract_features", "w.caffemodel", "net.prototxt", "ip,data", "f1,f2", 3, "lmdb", "CPU")
    assert "f1: 12 records of ip" in out
    rows = records("f1")
    assert [key for key, _ in rows] == [b"%010d" % i for i in range(12)]
    datum = caffe_pb2.Datum.FromString(rows[5][1])
    weight, bias = (blob.data for blob in caffe.Net("deploy.prototxt", caffe.TEST, weights="w.caffemodel").params["ip"])
    np.testing.assert_allclose(datum.float_data, weight.sum(axis=1) * 2 + bias, rtol=1e-4, atol=1e-6)
    assert (datum.channels, datum.height, datum.width, datum.HasField("label")) == (5, 1, 1, False)
    assert caffe_pb2.Datum.FromString(records("f2")[0][1]).height == 8
    assert "exists already" in minicaffe("extract_features", "w.caffemodel", "net.prototxt", "ip", "f1", 1, "lmdb", status=1)
    assert "one database for each" in minicaffe("extract_features", "w.caffemodel", "net.prototxt", "ip,data", "f3", 1, "lmdb", status=2)
    assert "'ip'" in minicaffe("extract_features", "w.caffemodel", "net.prototxt", "ipp", "f3", 1, "lmdb", status=1)
    assert not (there / "f3").exists()


def test_names_of_caffes_converters(minicaffe, there):
    assert "db: 6 records" in minicaffe("convert_mnist_data", "-backend=lmdb", "images.gz", "labels", "db")
    rows = records("db")
    assert rows[3][0] == b"00000003" and caffe_pb2.Datum.FromString(rows[4][1]).label == 1
    np.testing.assert_array_equal(picture_of(read_datum(rows[1][1]))[0].ravel(), np.arange(16, 32))
    minicaffe("convert_mnist_siamese_data", "images.gz", "labels", "pairs", "--seed", 1)
    for _, value in records("pairs"):
        pair = picture_of(read_datum(value))
        digits = [plane[0, 0] // 16 % 3 for plane in pair]
        assert pair.shape == (2, 4, 4) and caffe_pb2.Datum.FromString(value).label == (digits[0] == digits[1])
    (there / "cifar").mkdir()
    record = bytes([7]) + bytes(3072)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        (there / "cifar" / name).write_bytes(record * 2)
    assert "cifar10_train_lmdb: 10 records" in minicaffe("data", "cifar10", "--from", "cifar", "--out", ".")
    assert records("cifar10_test_lmdb")[1][0] == b"00001"
    (there / "list.txt").write_text("0.png 3\n1.png 4\n")
    minicaffe("convert_imageset", "./", "list.txt", "pictures", "-resize_width", 6, "-resize_height=5", "-gray")
    assert picture_of(read_datum(records("pictures")[1][1])).shape == (1, 5, 6)
    assert "mean_value channel [0]" in minicaffe("compute-image-mean", "pictures", "mean.binaryproto", "-backend", "lmdb")
    assert caffe_pb2.BlobProto.FromString((there / "mean.binaryproto").read_bytes()).height == 5
    assert "exists already" in minicaffe("data", "idx", "images.gz", "labels", "db", status=1)
    assert "no IDX file" in minicaffe("data", "idx", "0.png", "labels", "db2", status=1)
    assert "--seed: for the pairs of --pairs" in minicaffe("data", "idx", "images.gz", "labels", "db3", "--seed=1", status=2)


def test_classify(minicaffe, there):
    common = ("--model", "deploy.prototxt", "-weights=w.caffemodel", "--images_dim", "10,10")
    out = minicaffe("classify", ".", "--out", "out.npy", *common, "--ext", "png")
    assert "Classifying 3 inputs." in out and "Saving results into out.npy" in out
    assert ".prototxt 2, " in minicaffe.messages and "; --ext takes other kinds" in minicaffe.messages
    scores = np.load("out.npy")
    net = caffe.Classifier("deploy.prototxt", "w.caffemodel", image_dims=(10, 10), raw_scale=255, channel_swap=(2, 1, 0))
    np.testing.assert_allclose(scores, net.predict([caffe.io.load_image(f"{i}.png") for i in range(3)]), rtol=1e-5)
    minicaffe("classify", "0.png", "--out", "one.npy", *common, "--center_only", "--mean=", "--channel_swap=0,1,2", "--raw_scale=1")
    assert np.load("one.npy").shape == (1, 5)
    np.save("in.npy", np.random.default_rng(0).random((2, 12, 12, 3)))
    minicaffe("classify", "in.npy", "--out", "two.npy", *common)
    assert np.load("two.npy").shape == (2, 5)
    assert ".: holds no picture (jpg); --ext names others" in minicaffe("classify", ".", "--ext=jpg", "--out", "x.npy", *common, status=1)
    assert "whole numbers" in minicaffe("classify", ".", "--out", "x.npy", *common, "--channel_swap", "a", status=2)
    assert "2 whole numbers" in minicaffe("classify", ".", "--out", "x.npy", *common[:2], "--images_dim", "256", status=2)
    assert "must have a channel, 0 to 2," in minicaffe("classify", "0.png", "--out", "x.npy", *common, "--channel_swap", "0,1,7", status=2)
    assert "no such" in minicaffe("classify", "9.png", "--out", "x.npy", *common, status=1)


def test_the_page_of_convolution_is_written(minicaffe, there):
    assert minicaffe("convolution", "--html", "p.html") == "wrote p.html\n" and "<html" in (there / "p.html").read_text()


def test_upgrade(minicaffe, there):
    minicaffe("upgrade", "net_text", "old.prototxt", "new.prototxt")
    text = (there / "new.prototxt").read_text()
    assert 'type: "InnerProduct"' in text and "layers" not in text
    old = caffe_pb2.NetParameter(name="n")
    old.layers.add(name="ip", type=caffe_pb2.V1LayerParameter.INNER_PRODUCT).blobs.add(num=1, channels=1, height=1, width=2, data=[1, 2])
    (there / "old.caffemodel").write_bytes(old.SerializeToString())
    minicaffe("upgrade", "net-binary", "old.caffemodel", "new.caffemodel")
    new = caffe_pb2.NetParameter.FromString((there / "new.caffemodel").read_bytes())
    assert new.layer[0].type == "InnerProduct" and list(new.layer[0].blobs[0].data) == [1, 2]
    (there / "s.prototxt").write_text("solver_type: ADAM base_lr: 0.1")
    minicaffe("upgrade", "solver_text", "s.prototxt", "s2.prototxt")
    assert 'type: "Adam"' in (there / "s2.prototxt").read_text() and "snapshot_prefix" not in (there / "s2.prototxt").read_text()
    minicaffe("upgrade", "net_text", "new.prototxt", "again.prototxt")
    assert (there / "again.prototxt").read_text() == text
    assert "exists already" in minicaffe("upgrade", "net_text", "old.prototxt", "new.prototxt", status=1)
    assert "binary NetParameter" in minicaffe("upgrade", "net_binary", "0.png", "x.caffemodel", status=1)
    assert "old.caffemodel" in minicaffe("upgrade", "net_text", "old.caffemodel", "x.prototxt", status=2)


def test_csv(minicaffe, there):
    """The tables of Caffe's parse_log.py."""
    out = minicaffe("plot", "train.log", "--csv", ".")
    assert "train.log.train: 2 rows" in out and "train.log.test: 1 rows" in out
    train = list(csv.DictReader(open("train.log.train")))
    assert train[0] == {"NumIters": "0", "Seconds": "2.0", "LearningRate": "0.01", "loss": "2.4"}
    assert train[1] == {"NumIters": "10", "Seconds": "4.0", "LearningRate": "0.001", "loss": "nan"}
    test = list(csv.DictReader(open("train.log.test")))
    assert test == [{"NumIters": "0", "Seconds": "1.0", "LearningRate": "0.01", "accuracy": "0.1", "loss": "2.5"}]
    assert "exists already" in minicaffe("plot", "train.log", "--csv", ".", status=1)
    minicaffe("plot", "train.log", "--csv", ".", "--force")
    assert "deploy.prototxt: is a prototxt, where the log of a training is expected" in minicaffe("plot", "deploy.prototxt", "--csv", ".", status=1)
    (there / "empty.log").write_text("I1121 03:31:07.000000 1 solver.py:1] Solving tiny\n")
    assert "empty.log: holds no outputs of a net" in minicaffe("plot", "empty.log", "--csv", ".", status=1)
    assert "minicaffe plot LOG --csv FOLDER does the same" in minicaffe("parse_log", "train.log", ".", status=2)


def test_our_own_log_is_parsed(minicaffe, there):
    """What the solver logs today is what plot reads."""
    from tiny import NET, SOLVER, run
    (there / "net.prototxt").write_text(NET)
    (there / "solver.prototxt").write_text(SOLVER)
    done = run("train", "solver.prototxt", cwd=there)
    (there / "own.log").write_text(done.stderr)
    assert "own.log.train: 3 rows" in minicaffe("plot", "own.log", "--csv", ".") and (there / "own.log.test").exists()


def test_json_records_are_read_as_the_log_is(minicaffe, there):
    from tiny import NET, SOLVER, run
    (there / "net.prototxt").write_text(NET)
    (there / "solver.prototxt").write_text(SOLVER)
    log = run("train", "solver.prototxt", "--json", "own.jsonl", "--lr-policy=exp", "--gamma=0.9", cwd=there).stderr
    log += run("train", "solver.prototxt", "--json", "own.jsonl", "--snapshot=tiny_iter_30.solverstate", "--max-iter=50",
               "--lr-policy=exp", "--gamma=0.9", cwd=there).stderr
    (there / "own.log").write_text(log)
    from_log, from_json = read_run("own.log").tables, read_run("own.jsonl").tables
    assert [len(from_json[table]) for table in ("train", "test")] == [5, 7]
    for table in ("train", "test"):
        for text, record in zip(from_log[table], from_json[table], strict=True):
            assert list(text) == list(record)
            for name in text:
                tolerance = {"abs": 1} if name == "Seconds" else {"rel": 1e-4, "abs": 1e-30}
                assert record[name] == pytest.approx(text[name], **tolerance), (table, name)
    assert "own.jsonl.train: 5 rows" in minicaffe("plot", "own.jsonl", "--csv", ".")
    text = (there / "own.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    (there / "own.jsonl").write_text(text[:-20])  # killed while it wrote
    assert len(read_run("own.jsonl").tables["test"]) == 6
    (there / "own.jsonl").write_text(lines[0] + "{}\n" + lines[1])
    assert "own.jsonl:2: is no record of minicaffe train --json" in minicaffe("plot", "own.jsonl", "--csv", ".", status=1)
    (there / "own.jsonl").write_text(re.sub('"time": [^,]*, ', "", lines[1]).replace(re.search('"value": ([^,]*)', lines[1])[1], "null"))
    row, = read_run("own.jsonl").tables["train"]
    assert row["Seconds"] is None and np.isnan(row["loss"])


def test_every_command_has_help(minicaffe):
    for name in app.commands():
        assert "Usage" in minicaffe(name, "--help")


def test_summary(minicaffe, there):
    from tiny import NET, SOLVER
    (there / "net.prototxt").write_text(NET)
    (there / "solver.prototxt").write_text(SOLVER)
    net, solver = minicaffe("summary", "net.prototxt"), minicaffe("summary", "solver.prototxt")
    assert "memory needed to train with SGD (plan memory): " in net and "history" in solver and max(map(len, net.splitlines())) <= 80
    said = json.loads(minicaffe("summary", "net.prototxt", "--json"))
    assert said["needs"][0]["peak"] > 0 and said["not_run"] is None and said["parameters"] == sum(row["parameters"] for row in said["rows"])
    assert "phase TEST" in minicaffe("summary", "net.prototxt", "--phase=TEST") and "to test" in minicaffe("summary", "net.prototxt", "--phase=TEST")
    assert "--phase TEST is for nets" in minicaffe("summary", "solver.prototxt", "--phase", "TEST", status=2)
    assert "TOP=CHANNELSxHEIGHTxWIDTH" in minicaffe("summary", "net.prototxt", "--shape", "data", status=2)
    assert "nowhere.prototxt" in minicaffe("summary", "nowhere.prototxt", status=1)
    (there / "wrong.prototxt").write_text('layer { name: "c" type: "Convolution" bottom: "nowhere" top: "c" }')
    assert "wrong.prototxt:1: layer 'c' (Convolution): bottom[0]: unknown bottom" in minicaffe("summary", "wrong.prototxt", status=2)
    (there / "data.prototxt").write_text('''layer { name: "d" type: "Data" top: "x" transform_param { crop_size: 4 } data_param { source: "none" batch_size: 2 } }
        layer { name: "s" type: "Slice" bottom: "x" top: "a" top: "b" slice_param { slice_point: 3 } }''')
    assert "axis 1, got [3]; as the data are not there, it was assumed that x is 3x4x4, from crop_size; if that is wrong, give --shape x=" in \
        minicaffe("summary", "data.prototxt", status=2)
    assert "Data" in minicaffe("summary", "data.prototxt", "--shape=x=5x4x4", "--batch=7") and "7x3x4x4, 7x2x4x4" in \
        minicaffe("summary", "data.prototxt", "--shape=x=5x4x4", "--batch=7")
    assert "--shape: no data layer has a top 'y'" in minicaffe("summary", "data.prototxt", "--shape=x=5x4x4", "--shape=y=1x1", status=2)


LINE = "I{0}.000000 1 solver.cpp:1] {1}\n"
ITERATION = LINE.format("{0}", "Iteration {1}, loss = 2") + LINE.format("{0}", "    Train net output #0: loss = 2 (* 1 = 2 loss)")


@pytest.mark.parametrize("begin, moments, seconds", [
    ("1231 23:59:58", ["1231 23:59:59", "0101 00:00:02"], [1, 4]),
    ("0101 00:00:01", ["0101 00:00:02", "0101 00:00:05"], [1, 4]),      # the net was built in the old year
    ("0228 23:59:58", ["0229 00:00:02", "0301 00:00:00"], [4, 86402]),  # the file's year may have no such day
    ("1231 23:59:58", ["1231 23:59:59", "0229 23:59:58"], [1, 60 * 86400]),
], ids=["iterations", "solving", "leap day", "leap day of the next year"])
def test_times_of_a_log_hold_no_year(tmp_path, begin, moments, seconds):
    """Seconds continue when December ends, and on 29 February, whatever the year of the file is."""
    log = tmp_path / "log"
    log.write_text(LINE.format("1231 23:59:57", "Creating the net") * begin.startswith(("1231", "0101")) + LINE.format(begin, "Solving net")
                   + "".join(ITERATION.format(moment, i) for i, moment in enumerate(moments)) + LINE.format(moments[-1], "Optimization Done."))
    assert [row["Seconds"] for row in read_run(log).tables["train"]] == seconds
    for year in range(2020, 2028):
        times = [moment for moment in times_of(log.read_text().splitlines(), year) if moment]
        assert len(times) == len(log.read_text().splitlines()) and times == sorted(times)
