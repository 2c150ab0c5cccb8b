"""minicaffe calibrate: its pictures, its files, what it says and refuses; the numbers are tested in tests/net/test_calibration.py."""

import contextlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from test_classify import DEPLOY, pictures  # noqa: F401  (a fixture)

import minicaffe as caffe
from minicaffe.cli import calibrate as command
from minicaffe.cli.picture_nets import load_batch

OUT = ["-o", "o"]


@pytest.fixture
def there(minicaffe, pictures, tmp_path):  # noqa: F811
    """Three pictures, training net, deploy net, weights; returns the folder."""
    pictures("scale: 0.01 mean_value: 90")
    (tmp_path / "d.prototxt").write_text((DEPLOY % (3, 7, 8)).replace("dim: 1", "dim: 2", 1))
    return tmp_path


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(("o.", ".o")))


def read(folder):
    lines = [line.split() for line in (folder / "o.table").read_text().splitlines()]
    cache = dict(line.split(": ") for line in (folder / "o.cache").read_text().splitlines()[1:])
    return {name: np.array(scales, float) for name, *scales in lines}, cache, json.loads((folder / "o.json").read_text())


def test_pictures_of_a_list_are_those_of_classify(minicaffe, there):
    out = minicaffe("calibrate", "d.prototxt", "w.caffemodel", *OUT, "--images", "list.txt", "--method=max")
    assert "list.txt: the labels of 3 lines are ignored" in minicaffe.messages and "minus mean 90, times 0.01" in minicaffe.messages
    lines = out.splitlines()
    assert lines[0].split() == ["layer", "input", "min", "max", "99.99%", "KL", "beyond", "KL", "dB", "max", "dB", "99.99%", "dB", "KL"]
    assert lines[1].split()[:2] == ["ip", "data"] and len(lines) == 3
    assert lines[2] == "wrote o.table, o.cache and o.json: 1 layers, 2 batches, ranges by max"
    net = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    net.forward()       # the three pictures, as in training
    data = net.blobs["data"].data
    table, cache, made = read(there)
    np.testing.assert_allclose(table["ip"], 127 / np.abs(data).max(), rtol=1e-5)
    np.testing.assert_allclose(table["ip_param_0"], 127 / np.abs(net.params["ip"][0].data).max(1), rtol=1e-5)
    assert list(cache) == ["data", "ip", "prob"] and made["values"]["data"]["count"] == data.size
    np.testing.assert_allclose([made["values"]["data"][name] for name in ("min", "max")], [data.min(), data.max()], rtol=1e-5)
    assert float(lines[1].split()[2]) == pytest.approx(data.min(), rel=1e-3)


def test_a_folder_and_a_list_without_labels_give_the_same(minicaffe, there):
    (there / "plain.txt").write_text("\n".join(f"{i}.png" for i in range(3)) + "\n\n")
    (there / "folder").mkdir()
    for i in range(3):
        shutil.copy(there / f"{i}.png", there / "folder")
    found = []
    for images in (["plain.txt"], ["folder", "--ext=png"]):
        minicaffe("calibrate", "d.prototxt", "w.caffemodel", *OUT, "--force", "--images", *images)
        assert "labels" not in minicaffe.messages
        found.append((there / "o.json").read_text())
    assert found[0] == found[1]


def test_own_data_of_a_net_are_read_from_the_same_record_twice(minicaffe, there):
    text = (there / "net.prototxt").read_text()
    (there / "two.prototxt").write_text(text.replace("batch_size: 3", "batch_size: 2"))
    minicaffe("calibrate", "two.prototxt", "w.caffemodel", *OUT, "--iterations=1")      # two of three records
    net = caffe.Net("two.prototxt", caffe.TEST)
    net.forward()
    data = np.abs(net.blobs["data"].data.astype(np.float64))
    wanted, _ = np.histogram(data[data != 0], 2048, (0, data.max()))
    assert np.abs(np.cumsum(wanted) - np.cumsum(read(there)[2]["values"]["data"]["histogram"])).max() <= 2
    out = minicaffe("calibrate", "net.prototxt", "w.caffemodel", *OUT, "--iterations=3", "--force")
    made = read(there)[2]["values"]
    assert "1 layers, 3 batches, ranges by kl" in out and made["data"]["count"] == 3 * 3 * 3 * 7 * 8
    for value in (made["data"], made["ip"]):
        assert sum(value["histogram"]) == value["count"] - value["zeros"]
    assert "no activations, so not quantized: label (label or index, 0 to 2), right (Accuracy" in minicaffe.messages


def test_fewer_pictures_by_iterations(minicaffe, there):
    minicaffe("calibrate", "d.prototxt", "w.caffemodel", *OUT, "--images=list.txt", "--iterations=1")
    assert "1 batches of 2 are 2 of 3 pictures; the others are left out" in minicaffe.messages
    assert read(there)[2]["values"]["data"]["count"] == 2 * 3 * 7 * 8


def test_version_of_tensorrt_and_percentile(minicaffe, there):
    out = minicaffe("calibrate", "net.prototxt", "w.caffemodel", *OUT, "--tensorrt-version=100300", "--percentile=99.5", "--method=percentile")
    assert (there / "o.cache").read_text().startswith("TRT-100300-EntropyCalibration2\ndata: ") and "dB 99.5%" in out
    table, _, made = read(there)
    assert made["batches"] == 10 and table["ip"] == pytest.approx(127 / made["values"]["data"]["thresholds"]["percentile"])
    assert made["values"]["data"]["beyond"]["percentile"] == pytest.approx(0.005, abs=0.002)


def test_a_batch_has_the_centre_of_resized_pictures(there):
    cv2 = pytest.importorskip("cv2")
    mean = np.array([1.0, 2, 3])
    net = caffe.Classifier("d.prototxt", "w.caffemodel", image_dims=(9, 10), mean=mean, raw_scale=255)
    rgb = [cv2.resize(cv2.imread(f"{i}.png"), (10, 9))[1:8, 1:9, ::-1] for i in range(2)]
    np.testing.assert_allclose(load_batch(net, ["0.png", "1.png"]), (np.array(rgb) - mean).transpose(0, 3, 1, 2), atol=1e-4)


NO_LAYER = 'layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }\nlayer { name: "r" type: "ReLU" bottom: "x" top: "y" }\n'


@pytest.mark.parametrize("words, status, wrong", [
    (["d.prototxt", "w.caffemodel"], 2, "d.prototxt: nothing fills its input 'data', so its ranges would be meaningless; give pictures by --images"),
    (["d.prototxt", "w.caffemodel", "--images=empty.txt"], 1, "empty.txt: names no picture"),
    (["d.prototxt", "w.caffemodel", "--images=bad.txt"], 1, "bad.txt:2: no such picture: 7.png; paths are relative to the working directory"),
    (["d.prototxt", "w.caffemodel", "--images=0.png"], 1, "0.png: is no list; give a text file"),
    (["d.prototxt", "w.caffemodel", "--images=none.txt"], 1, "none.txt: no such file"),
    (["d.prototxt", "w.caffemodel", "--images=.", "--ext=gif"], 1, "holds no picture (gif); --ext names others"),
    (["d.prototxt", "w.caffemodel", "--images=nopicture.txt"], 1, "'list.txt' is text, where a picture is expected"),
    (["d.prototxt", "none.caffemodel", "--images=list.txt"], 1, "none.caffemodel: no such weights file"),
    (["two.prototxt", "w.caffemodel"], 1, "w.caffemodel: has no weights for more, whose ranges would be those of random numbers"),
    (["other.prototxt", "w.caffemodel"], 2, "no layer of the net got weights"),
    (["r.prototxt", "w.caffemodel"], 2, "r.prototxt: has no layer to quantize"),
    (["net.prototxt", "w.caffemodel", "--mean=3", "--ext=png"], 2, "--ext, --mean: for the pictures of --images, which is not given"),
    (["d.prototxt", "w.caffemodel", "--images=list.txt", "--mean=1,2"], 2, "--mean: must be one number, or one for each of the 3 channels"),
    (["net.prototxt", "w.caffemodel", "--percentile=0"], 2, "'--percentile'"), (["net.prototxt", "w.caffemodel", "--iterations=0"], 2, "'--iterations'"),
    (["net.prototxt", "w.caffemodel", "--method=mean"], 2, "'--method'"), (["net.prototxt"], 2, "WEIGHTS"),
    (["net.prototxt", "w.caffemodel", "-o", "no/o"], 1, "no/o.table: cannot be written")])
def test_wrong_words(minicaffe, there, words, status, wrong):
    (there / "empty.txt").write_text("\n")
    (there / "bad.txt").write_text("0.png 1\n7.png 2\n")
    (there / "nopicture.txt").write_text("list.txt\n")
    (there / "r.prototxt").write_text(NO_LAYER)
    text = (there / "net.prototxt").read_text()
    (there / "two.prototxt").write_text(text + 'layer { name: "more" type: "InnerProduct" bottom: "data" top: "m" inner_product_param { num_output: 2 } }\n')
    (there / "other.prototxt").write_text(text.replace('name: "ip"', 'name: "ip2"'))
    assert wrong in minicaffe("calibrate", *words, *([] if "-o" in words else OUT), status=status)
    assert files(there) == []


def test_one_of_several_inputs_cannot_be_filled(minicaffe, there):
    (there / "d.prototxt").write_text((DEPLOY % (3, 7, 8)).replace('top: "data"', 'top: "data" top: "more"', 1))
    error = minicaffe("calibrate", "d.prototxt", "w.caffemodel", *OUT, "--images=list.txt", status=2)
    assert "has the inputs data, more, and --images fills one" in error


def test_ctrl_c_while_it_measures_leaves_no_file(minicaffe, there, monkeypatch):
    def stop(name, done, total):
        if name.startswith("histogram"):
            raise KeyboardInterrupt

    monkeypatch.setattr(command.bars, "progress", lambda: contextlib.nullcontext(stop))
    minicaffe("calibrate", "net.prototxt", "w.caffemodel", *OUT, status=130)
    assert files(there) == []


def test_ctrl_c_while_it_writes_leaves_no_file(minicaffe, there, monkeypatch):
    replacing, seen = command.replacing, []

    def stop(path):
        seen.append(path)
        if path.endswith(".json"):
            assert len(files(there)) == 2      # temporary files
            raise KeyboardInterrupt
        return replacing(path)

    monkeypatch.setattr(command, "replacing", stop)
    minicaffe("calibrate", "net.prototxt", "w.caffemodel", *OUT, status=130)
    assert seen == ["o.table", "o.cache", "o.json"] and files(there) == []


def test_a_layer_without_finite_inputs_has_a_row(capsys):
    value = SimpleNamespace(name="x", thresholds={})
    command.print_table(SimpleNamespace(percentile=99.9, layers=[SimpleNamespace(name="ip", input=value)]))
    assert capsys.readouterr().out.splitlines()[1].split() == ["ip", "x", "not", "finite"]


def test_layers_without_weights_are_refused(minicaffe, there):
    layer = 'layer { name: "other" type: "InnerProduct" bottom: "data" top: "other" inner_product_param { num_output: 2 } }'
    (there / "d.prototxt").write_text((there / "d.prototxt").read_text() + layer)
    error = minicaffe("calibrate", "d.prototxt", "w.caffemodel", *OUT, "--images=list.txt", status=1)
    assert "has no weights for other, whose ranges would be those of random numbers" in error and files(there) == []
