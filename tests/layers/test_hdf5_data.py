"""HDF5Data: the order of rows across files and epochs, what is read again, and files that do not fit each other."""

import numpy as np
import pytest

import minicaffe
from minicaffe.errors import DataError, FileError

h5py = pytest.importorskip("h5py")


@pytest.fixture
def make_net(tmp_path, monkeypatch):
    """Return ``make(files, **fields)``: a net over files of rows, each given as an array."""
    monkeypatch.chdir(tmp_path)

    def make(*files, batch_size=3, shuffle=False):
        for i, rows in enumerate(files):
            with h5py.File(f"{i}.h5", "w") as file:
                file["x"] = rows
        (tmp_path / "list.txt").write_text("\n".join(f"{i}.h5" for i in range(len(files))))
        (tmp_path / "net.prototxt").write_text(
            f'layer {{ name: "h" type: "HDF5Data" top: "x" hdf5_data_param {{ source: "list.txt" batch_size: {batch_size} '
            f'shuffle: {str(shuffle).lower()} }} }}')
        return minicaffe.Net("net.prototxt", minicaffe.TRAIN)
    return make


def rows_of(net, batches):
    """Return the rows of some batches, which are numbers."""
    found = []
    for _ in range(batches):
        net.forward()
        found += net.blobs["x"].data.ravel().astype(int).tolist()
    return found


def test_the_only_file_is_read_once(make_net, tmp_path):
    net = make_net(np.arange(4.0), batch_size=2, shuffle=True)
    (tmp_path / "0.h5").unlink()
    assert sorted(rows_of(net, 2)) == sorted(rows_of(net, 2)) == [0, 1, 2, 3]


def test_a_later_file_does_not_fit(make_net, tmp_path):
    net = make_net(np.zeros((2, 3)), np.zeros((2, 4)), batch_size=2)
    net.forward()
    with pytest.raises(DataError, match=r"source: 1.h5: rows have shape \(4,\), those of the file before \(3,\)"):
        net.forward()
    net = make_net(np.arange(2.0), np.arange(2.0), batch_size=2)
    (tmp_path / "1.h5").unlink()
    net.forward()
    with pytest.raises(FileError, match=r"net.prototxt:1: layer 'h' \(HDF5Data\): hdf5_data_param.source: 1.h5: no such file"):
        net.forward()


@pytest.mark.parametrize("rows, message", [
    (np.array(3.0), "dataset 'x' must hold numbers and have at least one axis"),
    (np.array([b"1", b"2"]), "dataset 'x' must hold numbers and have at least one axis"),
    (h5py.Empty("f"), "dataset 'x' must hold numbers and have at least one axis"),
    (np.zeros((0, 2)), "datasets must have equally many rows and at least one, got {'x': 0}")])
def test_wrong_rows_named(make_net, rows, message):
    with pytest.raises(DataError, match=rf"layer 'h' \(HDF5Data\): hdf5_data_param.source: 0.h5: {message}"):
        make_net(rows)
    net = make_net(np.zeros((3, 2)), rows)
    net.forward()
    with pytest.raises(DataError, match=f"1.h5: {message}"):
        net.forward()


def test_dataset_names_and_row_counts(make_net, tmp_path):
    make_net(np.zeros((3, 2)))
    text = (tmp_path / "net.prototxt").read_text()
    (tmp_path / "net.prototxt").write_text(text.replace('top: "x"', 'top: "x" top: "y"'))
    with pytest.raises(DataError, match="0.h5: has no dataset 'y' for the top of that name; it has x"):
        minicaffe.Net("net.prototxt", minicaffe.TRAIN)
    with h5py.File("0.h5", "a") as file:
        file["y"] = np.zeros(2)
    with pytest.raises(DataError, match="0.h5: datasets must have equally many rows and at least one, got {'x': 3, 'y': 2}"):
        minicaffe.Net("net.prototxt", minicaffe.TRAIN)
