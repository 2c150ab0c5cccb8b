"""Weights in half precision: what `Net.save` writes with ``half=True`` is read as float16 of the originals."""

import numpy as np
import pytest

from minicaffe import errors
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary import read_net
from minicaffe.proto.binary_writer import bytes_of
from minicaffe.proto.stored import StoredBlob, parse_blob
from minicaffe.proto.text import parse_text

NET = parse_text("""name: "n" layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 40 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 30 weight_filler { type: "gaussian" std: 1 } } }
""", caffe_pb2.NetParameter)[0]
EDGES = np.array([0, -0.0, 1, 1 / 3, 65504, 65519, -65504, 6e-8, 1e-8, 2049, np.inf, -np.inf, np.nan], np.float32)


@pytest.fixture
def net():
    return Net(NET)


def test_values_are_those_of_float16(net, tmp_path):
    weight, bias = net.layer_dict["ip"].blobs
    weight.data[0, :len(EDGES)] = EDGES
    bias.data[...] = np.random.default_rng(0).normal(size=30)
    weight.diff[...] = 0.1
    wanted = [blob.data.astype(np.float16).astype(np.float32) for blob in (weight, bias)]
    net.save(tmp_path / "half.caffemodel", half=True)
    net.save(tmp_path / "whole.caffemodel")
    other = Net(NET)
    other.copy_from(tmp_path / "half.caffemodel")
    for blob, values in zip(other.layer_dict["ip"].blobs, wanted):
        np.testing.assert_array_equal(blob.data, values)
    assert (other.layer_dict["ip"].blobs[0].data != weight.data).mean() > 0.5     # they were rounded
    half, whole = ((tmp_path / f"{name}.caffemodel").stat().st_size for name in ("half", "whole"))
    assert 2 * 1230 - 20 < whole - half < 2 * 1230 + 20
    net.save(tmp_path / "diff.caffemodel", True, half=True)     # diffs are not rounded
    blob = read_net(tmp_path / "diff.caffemodel")[1][1].blobs[0]
    np.testing.assert_array_equal(blob.diff, np.full(1200, 0.1, np.float32))
    np.testing.assert_array_equal(blob.data, wanted[0].ravel())


def test_a_number_without_room_is_refused(net, tmp_path):
    net.layer_dict["ip"].blobs[1].data[7] = -70000
    path = tmp_path / "w.caffemodel"
    path.write_bytes(b"old")
    with pytest.raises(errors.DataError, match=r"w.caffemodel: layer 'ip' \(InnerProduct\): blobs\[1\]: holds -70000, half precision ends at 65504; "
                                               "save it in single precision"):
        net.save(path, half=True)
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["w.caffemodel"]


def test_bytes_are_those_of_nvcaffe():
    """Field 10 is the type, 2 of them FLOAT16; 12 the numbers (NVCaffe's proto/caffe.proto)."""
    values = np.array([[1, -2]], np.float16)
    content = bytes_of(StoredBlob((1, 2), values, values))
    assert content == bytes([0x3A, 4, 0x0A, 2, 1, 2, 0x50, 2, 0x62, 4]) + values.tobytes() + bytes([0x58, 2, 0x6A, 4]) + values.tobytes()
    assert parse_blob(content).data.tolist() == [1, -2] and parse_blob(content).diff.tolist() == [1, -2]
