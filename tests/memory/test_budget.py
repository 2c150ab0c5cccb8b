"""The byte budget: what it compares, what its error says, and that nothing is taken before it."""

import io
import os

import pytest

import minicaffe
from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.memory import sizes
from minicaffe.memory.sizes import DEFAULT, check_bytes, max_blob_bytes, parse_size


@pytest.fixture
def budget(monkeypatch):
    """A function that sets the budget for one test."""
    return lambda text: monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", text)


def test_sizes(budget, monkeypatch):
    """By default what Caffe could count, or less where there is less memory."""
    for text, nbytes in ("512", 512), ("512B", 512), ("64KiB", 65536), ("2 gib", 2 << 30), ("1.5MiB", 3 << 19), ("20GiB", 20 << 30):
        budget(text)
        assert max_blob_bytes() == nbytes, text
    budget("much")
    with pytest.raises(ConfigError, match="MINICAFFE_MAX_BLOB_BYTES: 'much' is not a size"):
        max_blob_bytes()
    budget("")
    for there in DEFAULT - 1, DEFAULT, DEFAULT + 1:
        monkeypatch.setattr(sizes, "host_memory", lambda there=there: there)
        assert max_blob_bytes() == min(there, DEFAULT)
    assert DEFAULT == 4 * 2**31 and parse_size("0") == 0


@pytest.mark.parametrize("text", ["1000000\n", "max\n", "", "9" * 30, None])
def test_memory_of_a_container(monkeypatch, text):
    def opened(path):
        if text is None:
            raise FileNotFoundError(path)
        return io.StringIO(text)

    monkeypatch.setattr(sizes, "open", opened, raising=False)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes.host_memory.cache_clear()
    try:
        assert sizes.host_memory() == (1000000 if text == "1000000\n" else machine)
    finally:
        sizes.host_memory.cache_clear()


def test_refused_blob_stays_as_it_was(budget):
    budget("1KiB")
    for dtype, most in (Dtype.FLOAT, 256), (Dtype.DOUBLE, 128), (Dtype.INT, 256):
        Blob((most,), dtype)
        with pytest.raises(ShapeError, match="would take"):
            Blob((most + 1,), dtype)
    with pytest.raises(ShapeError, match=str(2**200)):      # no number wraps around
        check_bytes(2**200, "x")
    blob = Blob((2, 3), Dtype.FLOAT, "b")
    blob.data[...] = 5
    stamp = blob.stamp
    with pytest.raises(ShapeError) as caught:
        blob.reshape(1000, 2)
    assert str(caught.value) == (
        "blob 'b' of shape [1000, 2] would take 8000 bytes, the budget for one blob is 1024; make it smaller, or if the file is "
        "right, set the environment variable MINICAFFE_MAX_BLOB_BYTES=8000 or more")
    assert blob.shape == (2, 3) and (blob.data == 5).all() and blob.stamp == stamp


@pytest.mark.parametrize("part", ["data", "diff"])
def test_memory_of_one_part(budget, part):
    """What is there is used."""
    large, blob = Blob((1000,)), Blob((4,))
    large.reshape(4)
    getattr(blob, "share_" + part)(large)
    budget("1KiB")
    with pytest.raises(ShapeError, match=r"^a blob of shape \[1000\] would take 4000 bytes"):
        blob.reshape(1000)
    getattr(blob, "share_" + ("diff" if part == "data" else "data"))(large)
    for one in large, blob:
        one.reshape(10, 100)
        assert one.count == 1000


def test_net_names_layer_and_line(budget, tmp_path):
    budget("1MiB")
    file = tmp_path / "net.prototxt"
    file.write_text('layer { name: "d" type: "Input" top: "x" input_param { shape { dim: 10 dim: 10 } } }\n'
                    'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 100000 } }\n')
    with pytest.raises(ShapeError, match=r"net.prototxt:2: layer 'ip' \(InnerProduct\): inner_product_param.num_output: blob "
                                         r"'ip\[0\]' of shape \[100000, 10\] would take 4000000 bytes"):
        minicaffe.Net(str(file), minicaffe.TEST)
    budget("8MiB")
    minicaffe.Net(str(file), minicaffe.TEST)
