"""Caffe's tools as subcommands: what they write, their options in gflags' form too, and one line for what is wrong."""

import gzip
import struct

import numpy as np
import pytest

import minicaffe as caffe
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


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    (tmp_path / "old.prototxt").write_text(V1)
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
    common = ("--out", "out.npy", "--force", "--model", "deploy.prototxt", "-weights=w.caffemodel", "--images_dim", "10,10")
    out = minicaffe("classify", ".", *common, "--ext", "png")
    assert "Classifying 3 inputs." in out and "Saving results into out.npy" in out
    assert ".prototxt 2, " in minicaffe.messages and "; --ext takes other kinds" in minicaffe.messages
    net = caffe.Classifier("deploy.prototxt", "w.caffemodel", image_dims=(10, 10), raw_scale=255, channel_swap=(2, 1, 0))
    np.testing.assert_allclose(np.load("out.npy"), net.predict([caffe.io.load_image(f"{i}.png") for i in range(3)]), rtol=1e-5)
    minicaffe("classify", "0.png", *common, "--center_only", "--mean=", "--channel_swap=0,1,2", "--raw_scale=1")
    net = caffe.Classifier("deploy.prototxt", "w.caffemodel", image_dims=(10, 10), raw_scale=1, channel_swap=(0, 1, 2))
    np.testing.assert_allclose(np.load("out.npy"), net.predict([caffe.io.load_image("0.png")], oversample=False), rtol=1e-5)
    for words, status, message in ((("--ext=jpg",), 1, ".: holds no picture (jpg); --ext names others"), (("--channel_swap", "a"), 2, "whole numbers"),
                                   (("--images_dim", "256"), 2, "2 whole numbers"), (("--channel_swap", "0,1,7"), 2, "must have a channel, 0 to 2,")):
        assert message in minicaffe("classify", ".", *common, *words, *([] if status == 1 else ["--ext=png"]), status=status)
    assert "no such" in minicaffe("classify", "9.png", *common, status=1)


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


    assert "exists already" in minicaffe("upgrade", "net_text", "old.prototxt", "new.prototxt", status=1)
    assert "binary NetParameter" in minicaffe("upgrade", "net_binary", "0.png", "x.caffemodel", status=1)
    assert "old.caffemodel" in minicaffe("upgrade", "net_text", "old.caffemodel", "x.prototxt", status=2)
