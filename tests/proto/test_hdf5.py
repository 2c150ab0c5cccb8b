"""HDF5 files that are damaged, hostile or of another kind: each is one error that names the file."""

import h5py
import numpy as np
import pytest

from minicaffe.errors import ConfigError, FileError, ShapeError
from minicaffe.proto.hdf5 import is_numbers, read_array, reading


def make(path, fill):
    """Write an HDF5 file by ``fill(file)`` and return its path."""
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def test_no_or_damaged_hdf5_file(tmp_path):
    path = tmp_path / "x.h5"
    for content in b"", b"no HDF5", b"\x89HDF\r\n\x1a\n" + bytes(100):
        path.write_bytes(content)
        with pytest.raises(FileError, match="x.h5: cannot read the HDF5 file|x.h5: is (empty|text), where an HDF5 file is expected"), reading(path):
            pass
    with pytest.raises(FileError, match="no such file.*x.h5"), reading(tmp_path / "y.h5"):
        pass
    make(path, lambda file: file.create_dataset("a", data=np.arange(10_000)))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(FileError, match="x.h5: cannot read"), reading(path) as file:
        read_array(file["a"])
    make(path, lambda file: file.__setitem__("a", h5py.SoftLink("/nowhere")))
    with pytest.raises(FileError, match="x.h5: cannot read"), reading(path) as file:
        file["a"]
    with pytest.raises(ConfigError, match=r"x.h5: wrong$"), reading(path):
        raise ConfigError("wrong")


@pytest.mark.parametrize("value, expected", [
    (np.zeros(2), True), (np.arange(3), True), (np.array([b"x"]), False), (np.array([1j]), False), (h5py.Empty("f4"), False)])
def test_is_numbers(tmp_path, value, expected):
    path = make(tmp_path / "x.h5", lambda file: file.create_dataset("a", data=value))
    with reading(path) as file:
        assert is_numbers(file["a"]) is expected
        assert not is_numbers(file)


@pytest.mark.parametrize("options, words", [
    ({"shape": (1 << 40,), "chunks": (64,)}, r"dataset '/a' of shape \[1099511627776\] would take 4398046511104 bytes"),
    ({"shape": (4,), "maxshape": (None,), "chunks": (1 << 28,)}, r"a chunk of dataset '/a' of shape \[268435456\]")])
def test_budget_is_met_before_reading(tmp_path, monkeypatch, options, words):
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "1MiB")
    path = make(tmp_path / "x.h5", lambda file: file.create_dataset("a", dtype="f4", **options))
    with pytest.raises(ShapeError, match="x.h5: field: " + words), reading(path) as file:
        read_array(file["a"], "field")
