"""HDF5Data: the order of rows across files and epochs, and files that do not fit; HDF5Output: what it writes, when, and what it refuses."""

import os

import numpy as np
import pytest
from gradient import forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

import minicaffe
from minicaffe.blob import Dtype
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

h5py = pytest.importorskip("h5py")


@pytest.fixture
def make_net(tmp_path, monkeypatch):
    """Return ``make(files, **fields)``: a net over files of rows, each given as an array."""
    monkeypatch.chdir(tmp_path)

    def make(*files, batch_size=3, shuffle="false", tops="x"):
        for i, rows in enumerate(files):
            with h5py.File(f"{i}.h5", "w") as file:
                for name, array in (rows if isinstance(rows, dict) else {"x": rows}).items():
                    file[name] = array
        (tmp_path / "list.txt").write_text("\n".join(f"{i}.h5" for i in range(len(files))))
        fields = f'hdf5_data_param {{ source: "list.txt" batch_size: {batch_size} shuffle: {shuffle} }}'
        (tmp_path / "net.prototxt").write_text(layer_text("HDF5Data", "h", tops=tops, more=fields))
        return minicaffe.Net("net.prototxt", minicaffe.TRAIN)
    return make


def test_files_once_and_files_that_do_not_fit(make_net, tmp_path):
    net, rows = make_net(np.arange(4.0), batch_size=2, shuffle="true"), []
    (tmp_path / "0.h5").unlink()
    for _ in range(4):
        net.forward()
        rows += net.blobs["x"].data.ravel().tolist()
    assert sorted(rows[:4]) == sorted(rows[4:]) == [0, 1, 2, 3]
    x = np.zeros((3, 2))
    with pytest.raises(DataError, match="0.h5: has no dataset 'y' for the top of that name; it has x"):
        make_net(x, tops="x y")
    with pytest.raises(DataError, match="0.h5: datasets must have equally many rows and at least one, got {'x': 3, 'y': 2}"):
        make_net({"x": x, "y": np.zeros(2)}, tops="x y")
    net = make_net(np.zeros((2, 3)), np.zeros((2, 4)), batch_size=2)
    net.forward()
    with pytest.raises(DataError, match=r"source: 1.h5: rows have shape \(4,\), those of the file before \(3,\)"):
        net.forward()
    net = make_net(np.arange(2.0), np.arange(2.0), batch_size=2)
    (tmp_path / "1.h5").unlink()
    net.forward()
    with pytest.raises(FileError, match=r"net.prototxt:1: layer 'h' \(HDF5Data\): hdf5_data_param.source: 1.h5: no such file"):
        net.forward()


NO_ROWS = "dataset 'x' must hold numbers and have at least one axis"


@pytest.mark.parametrize("rows, message", [
    (np.array(3.0), NO_ROWS), (np.array([b"1", b"2"]), NO_ROWS), (h5py.Empty("f"), NO_ROWS),
    (np.zeros((0, 2)), "datasets must have equally many rows and at least one, got {'x': 0}")])
def test_wrong_rows_named(make_net, rows, message):
    with pytest.raises(DataError, match=rf"layer 'h' \(HDF5Data\): hdf5_data_param.source: 0.h5: {message}"):
        make_net(rows)
    net = make_net(np.zeros((3, 2)), rows)
    net.forward()
    with pytest.raises(DataError, match=f"1.h5: {message}"):
        net.forward()


# ---- HDF5Output

def text(path):
    return layer_text("HDF5Output", "out", "x l", "", f'hdf5_output_param {{ file_name: "{path}" }}')


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, four", [((3, 2, 4, 2), (3, 2, 4, 2)), ((3, 5), (3, 5, 1, 1)), ((0, 2), (0, 2, 1, 1))])
def test_writes_two_datasets_with_four_axes(tmp_path, shape, four, dtype):
    x, labels = np.random.default_rng(1).standard_normal(shape), np.arange(shape[0])
    (tmp_path / "out.h5").write_bytes(b"old")
    net = layer_net(text(tmp_path / "out.h5"), [x, labels], dtype)
    assert "writes a file" in net.capture_obstacle()     # no graph can hold it
    with h5py.File(tmp_path / "out.h5") as file:
        assert list(file) == []  # made, and emptied, when the net is built
    run_forward(net)
    run_backward(net, [0])
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == ["data", "label"]
        assert file["data"].dtype == (np.float32, np.float64)[dtype] and file["data"].shape == four
        np.testing.assert_allclose(file["data"][()].reshape(shape), x, rtol=1e-6)
        np.testing.assert_array_equal(file["label"][()], labels.reshape(-1, 1, 1, 1))


def test_second_forward_refused(tmp_path, monkeypatch):
    arrays = [np.ones((2, 1)), np.zeros(2)]
    net = forward_net(text(tmp_path / "out.h5"), arrays)
    net.blob_by_name("x").data[...] = 5
    with pytest.raises(FileError, match=r"layer 'out' \(HDF5Output\): .*holds a batch already"):
        run_forward(net)
    with h5py.File(tmp_path / "out.h5") as file:
        assert (file["data"][()] == 1).all()
    monkeypatch.setattr(caffe, "solver_rank", 1)    # only the first process writes
    forward_net(text(tmp_path / "of_another.h5"), arrays)
    assert not (tmp_path / "of_another.h5").exists()


@pytest.mark.parametrize("path, shapes, error", [
    ("{}/out.h5", [(2, 1, 1, 1, 1), (2,)], r"bottom\[0\]: must have at most 4 axes"),
    ("{}/out.h5", [(2, 1), (3,)], r"bottom\[1\]: must have as many records as bottom\[0\], 2, got 3"),
    ("", [(2, 1), (2,)], "hdf5_output_param.file_name: must be given"),
    ("{}/nowhere/out.h5", [(2, 1), (2,)], "hdf5_output_param.file_name: .*nowhere does not exist"),
    ("{}", [(2, 1), (2,)], "hdf5_output_param.file_name: .*cannot be written")])
def test_wrong_outputs_make_no_file(tmp_path, path, shapes, error):
    with pytest.raises((ConfigError, FileError, ShapeError), match=rf"layer 'out' \(HDF5Output\): {error}"):
        layer_net(text(path.format(tmp_path)), [np.zeros(shape) for shape in shapes])
    assert os.listdir(tmp_path) == []


def test_an_untrusted_net_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = "".join(layer_text("Input", name, more="input_param { shape { dim: [2, 1] } }") for name in "xl")
    param = parse_text(inputs + text("out.h5"), caffe_pb2.NetParameter, "test.prototxt")[0]
    with pytest.raises(ConfigError, match=r"layer 'out' \(HDF5Output\): hdf5_output_param.file_name: the net is not trusted"):
        Net(param, trusted=False)
    assert os.listdir(tmp_path) == []
    Net(param)
    assert os.listdir(tmp_path) == ["out.h5"]
