"""HDF5Output: what it writes, when, and what it refuses."""

import os

import h5py
import numpy as np
import pytest
from gradient import forward_net, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, FileError, ShapeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2


def text(path):
    return f'layer {{ name: "out" type: "HDF5Output" bottom: "x" bottom: "l" hdf5_output_param {{ file_name: "{path}" }} }}'


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


def test_second_forward_refused(tmp_path):
    net = forward_net(text(tmp_path / "out.h5"), [np.ones((2, 1)), np.zeros(2)])
    net.blob_by_name("x").data[...] = 5
    with pytest.raises(FileError, match=r"layer 'out' \(HDF5Output\): .*holds a batch already"):
        run_forward(net)
    with h5py.File(tmp_path / "out.h5") as file:
        assert (file["data"][()] == 1).all()


def test_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(caffe, "solver_rank", 1)
    run_forward(layer_net(text(tmp_path / "out.h5"), [np.ones((2, 1)), np.zeros(2)]))
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("shapes, error", [
    ([(2, 1, 1, 1, 1), (2,)], r"bottom\[0\]: must have at most 4 axes"),
    ([(2, 1), (3,)], r"bottom\[1\]: must have as many records as bottom\[0\], 2, got 3"),
])
def test_wrong_shapes_make_no_file(tmp_path, shapes, error):
    with pytest.raises(ShapeError, match=rf"layer 'out' \(HDF5Output\): {error}"):
        layer_net(text(tmp_path / "out.h5"), [np.zeros(shape) for shape in shapes])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path, error", [
    ("", "must be given"), ("{}/nowhere/out.h5", "nowhere does not exist"), ("{}", "cannot be written"),
])
def test_where_nothing_can_be_written(tmp_path, path, error):
    with pytest.raises((ConfigError, FileError), match=rf"layer 'out' \(HDF5Output\): hdf5_output_param.file_name: .*{error}"):
        layer_net(text(path.format(tmp_path)), [np.zeros((2, 1)), np.zeros(2)])


def test_an_untrusted_net_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    param = caffe_pb2.NetParameter()
    for name in ("x", "l"):
        param.layer.add(name=name, type="Input", top=[name]).input_param.shape.add(dim=[2, 1])
    param.layer.add(name="out", type="HDF5Output", bottom=["x", "l"]).hdf5_output_param.file_name = "out.h5"
    with pytest.raises(ConfigError, match=r"layer 'out' \(HDF5Output\): hdf5_output_param.file_name: the net is not trusted"):
        Net(param, trusted=False)
    assert os.listdir(tmp_path) == []
    Net(param)
    assert os.listdir(tmp_path) == ["out.h5"]
