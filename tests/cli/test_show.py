"""minicaffe show: statistics of weights files, and what differs between two."""

import h5py
import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.cli.show import read_parameters, statistics
from minicaffe.data.mean_file import write_mean

NET = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    caffe.set_random_seed(3)
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.save("a.caffemodel")
    net.save_hdf5("a.h5")
    net.params["ip"][0].data[1, 7] += 0.25
    net.save("b.caffemodel")
    return net


def test_every_kind_of_file_is_read(minicaffe, files, tmp_path):
    first = read_parameters("a.caffemodel")
    assert [(one.name, one.array.shape) for one in first] == [("conv[0]", (5, 3, 3, 3)), ("conv[1]", (5,)), ("ip[0]", (2, 180)), ("ip[1]", (2,))]
    for one, other in zip(first, read_parameters("a.h5"), strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.array, other.array)
    write_mean("mean.binaryproto", np.arange(12.0).reshape(3, 2, 2))
    (tmp_path / "mean").write_bytes((tmp_path / "mean.binaryproto").read_bytes())
    for path in ("mean.binaryproto", "mean"):
        [mean] = read_parameters(path)
        np.testing.assert_array_equal(mean.array, np.arange(12.0).reshape(1, 3, 2, 2))
    assert "mean.binaryproto" not in minicaffe("show", "mean.binaryproto")
    with h5py.File("other.h5", "w") as file:
        file["x"] = 1
    assert "other.h5: holds no parameters" in minicaffe("show", "other.h5", status=1)
    assert "nowhere.caffemodel" in minicaffe("show", "nowhere.caffemodel", status=1)
    (tmp_path / "x.solverstate").write_bytes(b"\x08\x1e")      # read as a blob: num 30, no values
    assert "x.solverstate: is the state of a solver; the weights" in minicaffe("show", "x.solverstate", status=1)
    (tmp_path / "x.solverstate").rename(tmp_path / "state")
    assert "state: " in minicaffe("show", "state", status=1)
    (tmp_path / "text").write_text("no weights")
    assert "text: " in minicaffe("show", "text", status=1)


def test_numbers_and_names(tmp_path, minicaffe, monkeypatch):
    found = statistics(np.float32([[0, -3, 4, 0], [np.nan, np.inf, 0, 0]]))
    assert (found["min"], found["max"], found["norm"], found["zeros"], found["wrong"]) == (-3, 4, 5, 4 / 6, 2)
    assert found["mean"] == pytest.approx(1 / 6) and found["std"] == pytest.approx(np.std([0, -3, 4, 0, 0, 0]))
    nothing = statistics(np.float32([np.nan]))
    assert np.isnan(nothing["mean"]) and nothing["wrong"] == 1
    assert np.isnan(statistics(np.zeros(0))["min"])
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i in (0, 2, 11, 1, 10, 3):
            file[f"data/a/{i}"] = np.float32([i])
    assert [(one.name, one.array.tolist()) for one in read_parameters(tmp_path / "w.h5")] == [(f"a[{i}]", [i]) for i in (0, 1, 2, 3, 10, 11)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET.replace('name: "ip"', 'name: "ip[/bold]"'))
    caffe.Net("net.prototxt", caffe.TEST).save("a.caffemodel")
    assert "ip[/bold][0]" in minicaffe("show", "a.caffemodel")


def test_tables(minicaffe, files, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    out = minicaffe("show", "a.caffemodel")
    row = next(line.split() for line in out.splitlines() if line.startswith("conv[0]"))
    weights = files.params["conv"][0].data
    assert row[1] == "5x3x3x3" and float(row[2]) == pytest.approx(weights.min(), rel=1e-3)
    assert float(row[6]) == pytest.approx(np.linalg.norm(weights), rel=1e-3) and out.splitlines()[-1] == "4 parameters, 502 values"
    assert [line.split()[0] for line in minicaffe("show", "a.caffemodel", "--layer", "ip").splitlines()[1:3]] == ["ip[0]", "ip[1]"]
    assert "no parameters of a layer 'cnv'" in minicaffe("show", "a.caffemodel", "--layer", "cnv", status=2)
    files.params["conv"][0].data[2, 1, 0, 0] = np.nan
    files.save("nan.caffemodel")
    assert "conv[0]: 1 values are not finite, the first at [2, 1, 0, 0]" in minicaffe("show", "nan.caffemodel")
    rows = {line.split()[0]: line for line in minicaffe("show", "a.caffemodel", "b.caffemodel").splitlines()}
    assert rows["conv[0]"].split()[-1] == "same" and "[1, 7]" in rows["ip[0]"] and "0.3% of the values" in rows["ip[0]"]
    assert float(rows["ip[0]"].split()[2]) == pytest.approx(0.25, rel=1e-3) and rows["3"].startswith("3 parameters are the same, 1 differ")
    assert "4 parameters are the same, 0 differ" in minicaffe("show", "a.caffemodel", "a.h5")
    (tmp_path / "other.prototxt").write_text(NET.replace('"conv" type', '"conv2" type').replace("num_output: 2", "num_output: 3"))
    caffe.Net("other.prototxt", caffe.TEST).save("c.caffemodel")
    out = minicaffe("show", "a.caffemodel", "c.caffemodel")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "only in a.caffemodel" in rows["conv[0]"] and "only in c.caffemodel" in rows["conv2[0]"]
    assert "2x180 and 3x180" in rows["ip[0]"] and "shapes differ" in rows["ip[0]"]
    files.params["conv"][1].data[3] = np.inf
    files.save("inf.caffemodel")
    row = next(line for line in minicaffe("show", "a.caffemodel", "inf.caffemodel").splitlines() if line.startswith("conv[1]"))
    assert row.split()[2] == "inf" and "[3]: 0 and inf" in row


def test_values_that_are_not_finite(minicaffe, tmp_path):
    """NaN against infinity is a difference; NaN in both files is none, and does not make the others one."""
    for name, values in {"a": [1, np.nan, 2], "b": [1, np.inf, 2], "c": [1.5, np.nan, 2]}.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["data/scale/0"] = np.float32(values)
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    line = next(line for line in minicaffe("show", a, b).splitlines() if line.startswith("scale[0]"))
    assert line.split()[2:5] == ["inf", "[1]:", "nan"]
    line = next(line for line in minicaffe("show", a, c).splitlines() if line.startswith("scale[0]"))
    assert line.split()[2:4] == ["0.5", "[0]:"] and f"{0.5 / 5 ** 0.5:.2e}" in line
