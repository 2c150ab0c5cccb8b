"""Files that are something else: every reader names what the file is and what was expected there."""

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile

import h5py
import numpy as np
import pytest

from minicaffe.addons.caffe2.serialization import read_file
from minicaffe.addons.plotting.parse_log import no_log_error, read_run
from minicaffe.addons.ssd.label_map import read_label_map, read_name_sizes
from minicaffe.addons.trace import load
from minicaffe.data.db import open_db
from minicaffe.data.image_list import ImageList, decode_picture
from minicaffe.data.mean_file import read_mean
from minicaffe.data.window_batches import WindowList
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.layers.data.hdf5_data import _read_list
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.binary import read_blob, read_solver_state
from minicaffe.proto.files import read_lines
from minicaffe.proto.hdf5 import reading
from minicaffe.proto.text import read_text
from minicaffe.proto.upgrade import read_net_file, read_weights
from minicaffe.pycaffe.io import read_npy


def written(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zipped(name):
    return written(lambda file: zipfile.ZipFile(file, "w").writestr(name, b"content" * 20))


def hdf5(file):
    with h5py.File(file, "w") as made:
        made["x"] = np.zeros(3)


def tar(file):
    with tarfile.open(fileobj=file, mode="w") as made:
        made.addfile(tarfile.TarInfo("net.prototxt"))


ARCHIVE = "an archive (zip, gzip, bzip2, xz or tar)"
FILES = {  # a space behind the name is for a further one of that kind
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 243862414\n",
    "text in UTF-16": 'name: "net"\nlayer { name: "a" }\n'.encode("utf-16"),
    "a web page (HTML)": b"\n<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n",
    "an XML file": b'<?xml version="1.0"?>\n<annotation><size/></annotation>\n',
    "a NumPy archive (.npz)": written(lambda file: np.savez(file, a=np.zeros(3))),
    "a NumPy array (.npy)": written(lambda file: np.save(file, np.zeros((3, 2, 2)))),
    "a PyTorch checkpoint": zipped("archive/data.pkl"),
    ARCHIVE: zipped("net.prototxt"),
    ARCHIVE + " ": gzip.compress(b"name: 'net'"),
    ARCHIVE + "  ": written(tar),
    "an HDF5 file": written(hdf5),
    "an ONNX model": b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\x80\x01",
    "a Python pickle": pickle.dumps({"a": 1}),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(20),
    "a picture ": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(20),
    "a file of an LMDB database": b"\xde\xc0\xef\xbe" + bytes(60),
    "a file of an LMDB database ": bytes(10) + b"\x08\0\0\0\0\0\xde\xc0\xef\xbe" + bytes(60),
    "a JSON file": json.dumps({"layers": [1, 2]}).encode(),
    "text": b"a training of a net\n",
    "a prototxt": b'# a net\nname: "net"\nlayer { name: "a" type: "Silence" }\n',
    "a solver state": caffe_pb2.SolverState(iter=700, learned_net="net.caffemodel").SerializeToString(),
    "filled with zeros": bytes(400),
    "empty": b"",
}


@pytest.mark.parametrize("what", FILES)
def test_kinds_by_first_bytes(what):
    assert kinds.kind_of(FILES[what]).what == what.rstrip()


@pytest.mark.parametrize("head", [b"<!---->" * 146, b"/**/" * 256, b"# a\n" * 256 + b"\1", b"a:\n" + b"#\n" * 500 + b"\1"],
                         ids=["html", "c", "shell", "yaml"])
def test_a_hostile_head_takes_no_time(head):
    command = f"from minicaffe.proto import kinds; print(kinds.kind_of({head!r}))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60)  # an exponential rule takes years
    assert (done.stdout, done.stderr, done.returncode) == (f"{kinds.kind_of(head)}\n", "", 0)


@pytest.mark.parametrize("lists", ["x" * 11 + "food/mustard/0001.jpg 3\n" * 40, "fil/ftyp/a.jpg 0\n", "aeroTFL3/1.jpg 0\n"])
def test_lists_with_marks_of_archives(tmp_path, lists):
    (tmp_path / "list.txt").write_text(lists)
    assert read_lines(tmp_path / "list.txt") == lists.splitlines()


def hdf5_file(path):
    with reading(path):
        pass


def log(path):
    read_run(path)
    raise no_log_error(path, "holds no outputs")


# Reader -> what it expects, and the files of `FILES` that are right or that look like right ones.
READERS = {
    "prototxt": (lambda path: read_text(path, caffe_pb2.NetParameter), "a prototxt", ("a prototxt", "text", "empty")),
    "net": (read_net_file, "a prototxt", ("a prototxt", "text", "empty")),
    "weights": (read_weights, "a .caffemodel, the weights of a net,", ()),
    "blob": (read_blob, "a single blob (binaryproto)", ()),
    "state": (read_solver_state, "the state of a solver (.solverstate)", ("a solver state",)),
    "mean": (read_mean, "a single blob (binaryproto)", ()),
    "hdf5": (hdf5_file, "an HDF5 file", ("an HDF5 file",)),
    "label map": (read_label_map, "a prototxt", ("a prototxt", "text", "empty")),
    "name sizes": (read_name_sizes, "a list of names, heights and widths", ("empty", "text")),
    "image list": (ImageList, "an image list", ("empty", "text")),
    "window file": (lambda path: WindowList(str(path), "", 0.5, 0.5), "a window file", ("empty", "text", "a JSON file", "a prototxt", "a solver state")),
    "hdf5 list": (_read_list, "a list of HDF5 files", ("empty", "text", "a JSON file", "a prototxt", "a solver state")),
    "database": (lambda path: open_db(path, "LMDB"), "the folder of a database of kind LMDB", ()),
    "trace": (load, "a trace (minicaffe trace NET --json FILE)", ("a JSON file", "text")),
    "log": (log, "the log of a training", ("empty", "text", "a JSON file")),
    "npy": (read_npy, "a NumPy array (.npy)", ("a NumPy array (.npy)",)),
    "workspace": (read_file, "a file of Workspace.save", ()),
    "picture": (lambda path: decode_picture(path.read_bytes(), path), "a picture", ("a picture",)),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_name_both_kinds(tmp_path, reader):
    read, wanted, own = READERS[reader]
    path = tmp_path / "file"
    for what, content in FILES.items():
        if what.rstrip() in own:
            continue
        path.write_bytes(content)
        with pytest.raises((ConfigError, DataError, FileError)) as caught:
            read(path)
        assert f"is {what.rstrip()}, where {wanted} is expected; " in str(caught.value), reader
        assert str(path) in str(caught.value)


def test_right_kinds_are_accepted(tmp_path):
    """A byte order mark, and lists whose names look like other kinds of files."""
    path = tmp_path / "list"
    for content, entries in ((b"\xef\xbb\xbfa.png 1\n", [("a.png", 1)]), (b"import this.png 1\n", [("import this.png", 1)]),
                             (b"[1].png 3\n", [("[1].png", 3)]), (b"name: a 4\n", [("name: a", 4)])):
        path.write_bytes(content)
        assert ImageList(path).entries == entries
    path.write_bytes(b"\xef\xbb\xbf/data/a.h5\n")
    assert _read_list(path) == ["/data/a.h5"]
    path.write_bytes(b"\xef\xbb\xbf# 0\na.png\n3\n5\n5\n0\n")
    assert WindowList(str(path), "", 0.5, 0.5).images == ["a.png"]
    blob = caffe_pb2.BlobProto(num=1, channels=3, height=1, width=1, data=[1, 2, 3])
    assert kinds.kind_of(blob.SerializeToString()).name == "mean"
    layer = {"name": "a", "type": "InnerProduct", "blobs": [{"shape": {"dim": [3]}, "data": [1, 2, 3]}]}
    for name in ("", "a net"):
        assert kinds.kind_of(caffe_pb2.NetParameter(name=name, layer=[layer]).SerializeToString()).name == "caffemodel"
    assert kinds.kind_of("a.png 3\n").name == "text" and kinds.kind_of("b\udcff.png 4\n") is None
    assert kinds.kind_of("\ud800").name == "text" and kinds.kind_of(b"\x01\x02\x03") is None
    os.mkfifo(tmp_path / "pipe")
    assert kinds.head_of(tmp_path / "pipe") is None     # without a writer, open would block
