"""Data sets from their original files: formats with every length checked, downloads over a loopback server."""

import gzip
import hashlib
import http.client
import http.server
import io
import os
import struct
import tarfile
import threading
from unittest import mock

import numpy as np
import pytest

from minicaffe.data import datasets
from minicaffe.data.datasets import CIFAR_RECORD, DataSet, make_data_set, read_idx
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.data.download import fetch
from minicaffe.errors import ConfigError, DataError, FileError

RANDOM = np.random.default_rng(4)
IMAGES = {s: RANDOM.integers(0, 256, (n, 28, 28), np.uint8) for s, n in (("train", 30), ("t10k", 20))}
LABELS = {s: RANDOM.integers(0, 10, len(images), np.uint8) for s, images in IMAGES.items()}


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files():
    return {f"{split}-images-idx3-ubyte": idx(images) for split, images in IMAGES.items()} | {
        f"{split}-labels-idx1-ubyte": idx(labels) for split, labels in LABELS.items()}


def cifar_files():
    random, files = np.random.default_rng(5), {}
    for name in *(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin":
        records = random.integers(0, 256, (4, CIFAR_RECORD), np.uint8)
        records[:, 0] %= 10
        files[name] = records.tobytes()
    return files


def write(directory, files, packed=False):
    directory.mkdir()
    for name, content in files.items():
        (directory / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return directory


def cifar_archive(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def records(path):
    with open_db(path, "LMDB") as db:
        return [(bytes(key), read_datum(value)) for key, value in db.records()]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "stem"), [("mnist", "mnist"), ("fashion-mnist", "fashion_mnist")])
def test_mnist_like(tmp_path, packed, name, stem):
    source = write(tmp_path / "in", mnist_files(), packed)
    made = make_data_set(name, tmp_path / "out", source=source)
    assert made == [(tmp_path / "out" / f"{stem}_train_lmdb", 30), (tmp_path / "out" / f"{stem}_test_lmdb", 20)]
    for (path, _), split in zip(made, ("train", "t10k"), strict=True):
        names, found = (path / "labels.txt").read_text().splitlines(), records(path)
        assert len(names) == 10 and names[9] == ("9" if name == "mnist" else "ankle boot")
        assert [key for key, _ in found] == [b"%08d" % i for i in range(len(found))]
        assert (np.concatenate([picture_of(datum) for _, datum in found]) == IMAGES[split]).all()
        assert [datum.label for _, datum in found] == LABELS[split].tolist()


@pytest.mark.parametrize("form", ["archive", "folder", "files", "files beside another folder"])
def test_cifar10(tmp_path, form):
    files, source = cifar_files(), tmp_path / "in"
    if form == "archive":
        write(source, {"cifar-10-binary.tar.gz": cifar_archive(files)})
    elif form == "folder":
        source.mkdir()
        write(source / "cifar-10-batches-bin", files)
    else:
        write(source, files)
        if form != "files":
            write(source / "cifar-10-batches-bin", {"readme.html": b""})
    made = make_data_set("cifar10", tmp_path / "out", source=source)
    assert [(p.name, n) for p, n in made] == [("cifar10_train_lmdb", 20), ("cifar10_test_lmdb", 4)]
    found = records(made[0][0])
    assert [(key, datum.channels, datum.height, datum.width) for key, datum in found] == [(b"%05d" % i, 3, 32, 32) for i in range(20)]
    assert b"".join(bytes([datum.label]) + picture_of(datum).tobytes() for _, datum in found) == b"".join(files[f"data_batch_{i}.bin"] for i in range(1, 6))


def test_limit_and_existing_output(tmp_path):
    (tmp_path / "mnist_test_lmdb").mkdir()
    with pytest.raises(FileError, match="mnist_test_lmdb: exists already; --force"):
        make_data_set("mnist", tmp_path, source=tmp_path / "nowhere")
    source = write(tmp_path / "in", mnist_files())
    for limit in 7, 1:
        assert [n for _, n in make_data_set("mnist", tmp_path, source=source, limit=limit, force=True)] == [limit, limit]
    for limit in 0, -3:
        with pytest.raises(ConfigError, match=f"^limit: must be at least 1, got {limit}$"):
            make_data_set("mnist", tmp_path / "x", source=source, limit=limit)


def test_progress(tmp_path):
    files = {}
    for split in "train", "t10k":
        files[f"{split}-images-idx3-ubyte"] = idx((np.arange(2001) % 250).astype(np.uint8).repeat(784).reshape(2001, 28, 28))
        files[f"{split}-labels-idx1-ubyte"] = idx((np.arange(2001) % 250).astype(np.uint8) % 10)
    seen = []
    make_data_set("mnist", tmp_path, source=write(tmp_path / "in", files), progress=lambda *report: seen.append(report))
    assert seen == [(f"mnist_{split}_lmdb", done, 2001) for split in ("train", "test") for done in (1000, 2000)]
    assert [count for _, count in make_data_set("mnist", tmp_path, source=tmp_path / "in", limit=1001, force=True)] == [1001, 1001]     # without progress


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: b"", "is no IDX file"),
    (lambda c: b"\0\0\x09" + c[3:], "is no IDX file of bytes with 3 axes: it starts with 00 00 09 03"),
    (lambda c: c[:-1], "has only 23519"),
    (lambda c: c + b"x", "and has more"),
    (lambda c: c[:4] + struct.pack(">3I", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF) + c[16:], "are allowed"),
    (lambda c: c[:4] + struct.pack(">3I", 0, 28, 28) + c[16:], "are allowed")])
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_idx_files(tmp_path, change, message, packed):
    files = mnist_files()
    files["train-images-idx3-ubyte"] = change(files["train-images-idx3-ubyte"])
    with pytest.raises(DataError, match="train-images-idx3-ubyte.*" + message):
        make_data_set("mnist", tmp_path, source=write(tmp_path / "in", files, packed))
    assert os.listdir(tmp_path) == ["in"]


def test_other_faults_of_mnist_files(tmp_path):
    labels = "train-labels-idx1-ubyte"
    for name, content, error, words in (
            ("count", idx(LABELS["train"][:-1]), DataError, "holds 29 labels, but train-images-idx3-ubyte holds 30 pictures"),
            ("label", idx(np.full(30, 10, np.uint8)), DataError, "label 10 of record 0 is not from 0 to 9"),
            ("missing", None, FileError, f"missing: holds no {labels}.gz or {labels}"), ("nowhere", b"", FileError, "no such directory")):
        files = mnist_files() | {labels: content}
        if content != b"":
            write(tmp_path / name, {key: value for key, value in files.items() if value is not None})
        with pytest.raises(error, match=words):
            make_data_set("mnist", tmp_path, source=tmp_path / name)


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c[:-1], "data_batch_3.bin: must hold 1 to 10000 records of 3073 bytes, has 12291"),
    (lambda c: b"", "has 0 bytes"),
    (lambda c: b"\x0a" + c[1:], "label 10 of record 0")])
@pytest.mark.parametrize("archive", [False, True])
def test_wrong_cifar_files(tmp_path, change, message, archive):
    files = cifar_files()
    files["data_batch_3.bin"] = change(files["data_batch_3.bin"])
    files = {"cifar-10-binary.tar.gz": cifar_archive(files)} if archive else files
    with pytest.raises(DataError, match=message):
        make_data_set("cifar10", tmp_path, source=write(tmp_path / "in", files))
    for content, words in ((cifar_archive({"other": b"x"}), "holds no cifar-10-batches-bin/data_batch_1.bin"), (b"nothing", "is damaged")) * archive:
        (tmp_path / "in" / "cifar-10-binary.tar.gz").write_bytes(content)
        with pytest.raises(DataError, match=words):
            make_data_set("cifar10", tmp_path, source=tmp_path / "in")


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; sends at most `cut` bytes a connection."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cut, self.requests = files, None, []

    @property
    def base(self):
        return f"http://127.0.0.1:{self.server_address[1]}/sets/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path.removeprefix("/sets/"))
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut])
        return None

    def log_message(self, *_):
        """Keep the test's output clean."""


@pytest.fixture
def server():
    content = {name + ".gz": gzip.compress(data, mtime=0) for name, data in mnist_files().items()}
    serving = Server(content)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_download(tmp_path, server, monkeypatch):
    seen, sums = [], {name: "sha256:" + hashlib.sha256(content).hexdigest() for name, content in server.files.items()}
    monkeypatch.setitem(datasets.DATA_SETS, "mnist", DataSet("mnist", server.base, ("zero",), sums))
    monkeypatch.setattr("minicaffe.data.download.CHUNK", 1000)
    made = make_data_set("mnist", tmp_path, progress=lambda *report: seen.append(report))
    assert [n for _, n in made] == [30, 20]
    size = len(server.files["train-images-idx3-ubyte.gz"])
    assert ("train-images-idx3-ubyte.gz", size, size) in seen
    assert all(done <= total == len(server.files[file]) for file, done, total in seen) and any(done < total for _, done, total in seen)
    make_data_set("mnist", tmp_path, force=True)  # the files are there and whole
    assert len(server.requests) == 4


def test_download_that_breaks_off(tmp_path, server):
    content = server.files["train-images-idx3-ubyte.gz"]
    checksum, url = "md5:" + hashlib.md5(content).hexdigest(), server.base + "train-images-idx3-ubyte.gz"
    server.cut = 5000
    with pytest.raises(FileError, match=f"^{url}: the connection broke off after 5000 of {len(content)} bytes; try again"):
        fetch(url, tmp_path / "new" / "folder" / "file", checksum)
    assert os.listdir(tmp_path / "new" / "folder") == []
    server.cut = None
    fetch(url, str(tmp_path / "new" / "folder" / "file"), checksum)
    assert os.listdir(tmp_path / "new" / "folder") == ["file"] and (tmp_path / "new" / "folder" / "file").read_bytes() == content


def test_wrong_checksum(tmp_path, server):
    with pytest.raises(DataError, match="has sha256 [0-9a-f]{64}, expected b0564c3eed.*try again or another --url"):
        make_data_set("fashion-mnist", tmp_path, url=server.base)
    assert os.listdir(tmp_path / "fashion_mnist_files") == []
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(DataError, match="damaged: remove it"):
        fetch(server.base, tmp_path / "file", "md5:00")


def test_errors_of_the_server(tmp_path, server):
    with pytest.raises(ConfigError, match="http:// or https://"):
        fetch("file:///etc/hostname", tmp_path / "file", "md5:00")
    with pytest.raises(FileError, match=f"^{server.base}nothing: the server answers 404 Not Found; try --url BASE, or --from DIR"):
        fetch(server.base + "nothing", tmp_path / "file", "md5:00")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileError, match="cifar-10-binary.tar.gz: the server answers 404"):
        make_data_set("cifar10", tmp_path, url=server.base)
    address = server.base
    server.server_close()
    with pytest.raises(FileError, match=f"^{address}: cannot be reached: [^<]+; --from DIR uses files you have$"):
        fetch(address, tmp_path / "file", "md5:00")


@pytest.mark.parametrize("fault", [http.client.IncompleteRead(b""), ConnectionResetError("reset"), TimeoutError("timed out")])
def test_connection_that_breaks_off(tmp_path, monkeypatch, fault):
    """An answer without a length."""
    answer = mock.MagicMock(length=None)
    answer.__enter__.return_value = answer
    answer.read.side_effect = [bytes(50), fault]
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: answer)
    with pytest.raises(FileError) as caught:
        fetch("http://host/file", tmp_path / "file", "md5:00")
    assert str(caught.value) == f"http://host/file: cannot be reached: {fault}; --from DIR uses files you have"
    assert os.listdir(tmp_path) == []


def test_heads_of_idx_files(tmp_path):
    whole, path = idx(np.ones((1, 1, 1), np.uint8)), tmp_path / "file"
    for length in range(17):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError) as caught:
            read_idx(path, 3)
        assert str(caught.value) == f"{path}: " + ("declares 1 x 1 x 1 bytes and has only 0" if length == 16 else
                                                   f"is no IDX file of bytes with 3 axes: it starts with {whole[:min(length, 4)].hex(' ')}")
    path.write_bytes(whole)
    assert read_idx(path, 3).tolist() == [[[1]]]
    packed = gzip.compress(bytes(1000), mtime=0)
    for name, content, words in (("file", whole + b"x", "declares 1 x 1 x 1 bytes and has more$"),
                                 *(("x.gz", content, "x.gz: is (damaged|no IDX file)") for content in (b"plain text", packed[:-9], packed[:8]))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_idx(tmp_path / name, 3)
