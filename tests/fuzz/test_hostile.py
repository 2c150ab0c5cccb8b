"""Hostile files by name: the error of each. That nothing worse happens with others is the fuzzer's business."""

import json
import os
import resource
import subprocess
import time
import tracemalloc

import numpy as np
import pytest

import minicaffe
from minicaffe.cli.upgrade import parse_binary
from minicaffe.data.datum import decode_image, has_overlong_png_chunk
from minicaffe.data.db import open_db
from minicaffe.data.image_list import ImageList, decode_picture, read_content
from minicaffe.data.mean_file import read_mean
from minicaffe.data.window_batches import WindowList
from minicaffe.errors import ConfigError, DataError, DeviceError, Error, FileError, ShapeError, close_matches
from minicaffe.layers.data.hdf5_data import _read_list as hdf5_list
from minicaffe.proto import binary, caffe_pb2
from minicaffe.proto.atomic import check_writable, replacing
from minicaffe.proto.binary import MAX_DEFINITION
from minicaffe.proto.binary_writer import varint
from minicaffe.proto.files import MAX_LAYERS, PIECE, is_hdf5, map_bytes, read_bytes, read_lines
from minicaffe.proto.text import parse_text, read_text
from minicaffe.proto.text_parser import MAX_TOKENS
from minicaffe.proto.upgrade import load, read_net_file, read_weights, upgrade_net
from minicaffe.proto.wire import MAX_PARTS
from minicaffe.pycaffe.io import load_image, read_npy
from minicaffe.solver import load_solver

INPUT = 'layer {{ name: "d" type: "Input" top: "x" input_param {{ shape {{ {} }} }} }}\n'
RECORDS = 3


@pytest.fixture
def here(tmp_path, monkeypatch, on_cpu):
    """A folder with an LMDB of three records, an HDF5 file and its list."""
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    with open_db("lmdb", "LMDB", "w") as db:
        for i in range(RECORDS):
            db.put(b"%d" % i, caffe_pb2.Datum(channels=1, height=2, width=2, data=b"abcd", label=i).SerializeToString())
    with h5py.File("data.h5", "w") as file:
        file["data"] = np.zeros((4, 2), np.float32)
    (tmp_path / "h5.txt").write_text("data.h5")
    return tmp_path


def build(text):
    """Build the net of a prototxt and run it forward."""
    with open("net.prototxt", "w") as file:
        file.write(text)
    net = minicaffe.Net("net.prototxt", minicaffe.TRAIN)
    net.forward()
    return net


def data_layer(fields):
    return f'layer {{ name: "d" type: "Data" top: "x" data_param {{ source: "lmdb" backend: LMDB {fields} }} }}'


@pytest.mark.parametrize("text, words", [
    (data_layer("batch_size: 4294967295"), r"\(Data\): data_param.batch_size: must be at most 2\^31 - 1, got 4294967295"),
    (data_layer("batch_size: 500000000"), r"\(Data\): data_param.batch_size: .* would take \d+ bytes"),
    (data_layer("batch_size: 100000000"), r"\(Data\): data_param.batch_size: the records of a batch of 100000000 would take"),
    (data_layer("batch_size: 1 prefetch: 4294967295"), r"\(Data\): data_param.prefetch: must be at most 2\^31 - 1"),
    (data_layer("batch_size: 1 prefetch: 2147483647"), r"\(Data\): data_param.prefetch: 2147483647 batches made ready would take"),
    ('layer { name: "d" type: "HDF5Data" top: "data" hdf5_data_param { source: "h5.txt" batch_size: 4294967295 } }',
     r"\(HDF5Data\): hdf5_data_param.batch_size: must be at most 2\^31 - 1"),
    (INPUT.format("dim: 2 dim: 3") + 'layer { name: "t" type: "Tile" bottom: "x" top: "y" tile_param { tiles: 1000000000 } }',
     r"2: layer 't' \(Tile\): tile_param.tiles: axis 1"),
    (INPUT.format("dim: 2 dim: 3") + 'layer { name: "c" type: "Concat" bottom: "x" top: "y" concat_param { concat_dim: 4294967295 } }',
     r"2: layer 'c' \(Concat\): concat_param.concat_dim: axis 4294967295 is out of range"),
    (INPUT.format("dim: 2 dim: 3") + 'layer { name: "s" type: "Slice" bottom: "x" top: "y" slice_param { slice_dim: 2147483648 } }',
     r"2: layer 's' \(Slice\): slice_param.slice_dim: axis 2147483648 is out of range"),
    ('layer { name: "d" type: "HDF5Data" top: "data" hdf5_data_param { source: "a\\000b" batch_size: 1 } }',
     r"\(HDF5Data\): hdf5_data_param.source: .*is no usable path"),
    (INPUT.format("dim: 2 dim: 3") + INPUT.format("dim: 2").replace('"x"', '"l"')
     + 'layer { name: "o" type: "HDF5Output" bottom: "x" bottom: "l" hdf5_output_param { file_name: "a\\000b" } }',
     r"3: layer 'o' \(HDF5Output\): hdf5_output_param.file_name: .*is no usable path"),
    *((f'layer {{ name: "d" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: 2 }} data_filler {{ {fields} }} }} }}',
       rf"1: layer 'd' \(DummyData\): dummy_data_param.data_filler\[0\].{words}") for fields, words in (
        ('type: "uniform" min: nan', "min: must be at most max, got min nan"), ('type: "gaussian" std: nan', "std: must be more than 0"),
        ('type: "uniform" max: -inf', "min: must be at most max"), ('type: "gaussian" sparse: 2147483647', "sparse: must be at most"))),
    (INPUT.format("dim: 1") + 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" blobs { data: 1 } blobs { data: 1 } }',
     r"2: layer 'r' \(ReLU\): blobs: give none or 0, got 2")])
def test_wrong_nets(here, text, words):
    with pytest.raises((ConfigError, ShapeError, FileError), match=r"net.prototxt:.*" + words):
        build(text)


def test_large_numbers_and_windows(here):
    started = time.process_time()       # these loop over nothing
    build(INPUT.format("dim: 0 dim: 3") + 'layer { name: "t" type: "Tile" bottom: "x" top: "y" tile_param { tiles: 700000000 axis: 1 } }')
    window = 'layer { name: "n" type: "LRN" bottom: "x" top: "y" lrn_param { local_size: %d norm_region: WITHIN_CHANNEL } }'
    build(INPUT.format("dim: 1 dim: 2 dim: 30 dim: 30") + window % 2147483647)
    assert time.process_time() - started < 5
    net = build(INPUT.format("dim: 2") + 'layer { name: "e" type: "Exp" bottom: "x" top: "y" exp_param { shift: 1e30 } }')
    assert np.isinf(net.blobs["y"].data).all()
    net = build(INPUT.format("dim: 1 dim: 1 dim: 4 dim: 5") + window % 21)
    x = net.blobs["x"].data
    x[...] = np.arange(20).reshape(x.shape)
    net.forward()
    np.testing.assert_allclose(net.blobs["y"].data, x * (1 + np.square(x).sum() / 21**2) ** -0.75, rtol=1e-5)


@pytest.mark.parametrize("text", [
    "9" * 200_000 + "x", "1e" * 100_000, "." * 200_000, '"\\' * 100_000, "'\"\\" * 70_000, "layer {" * 10_000, "#" * 200_000,
    "input_dim: 0x" + "f" * 5000, "input_dim: 0" + "7" * 5000, "\x1c", "name: \u2028"], ids=lambda text: ascii(text[:12]))
def test_texts_slow_to_reject(text):
    started = time.process_time()
    try:
        parse_text(text, caffe_pb2.NetParameter)
    except ConfigError:
        pass
    assert time.process_time() - started < 2


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is no /dev/zero")
@pytest.mark.parametrize("read", [read_bytes, map_bytes, read_mean, binary.read_net, binary.read_blob])
def test_devices_are_not_read(read):
    with pytest.raises(FileError, match="neither a file nor a pipe"):
        read("/dev/zero")


@pytest.mark.parametrize("read", [
    lambda path: read_text(path, caffe_pb2.NetParameter), load, read_net_file, parse_binary, read_bytes, read_lines,
    ImageList, read_content, hdf5_list, lambda path: WindowList(path, "", 0.5, 0.5)])
def test_files_beyond_the_budget(tmp_path, read):
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, 60 << 30)  # sparse: nothing of it is on the disk
    before = resident()
    with pytest.raises(FileError, match=r"has more than \d+ bytes, the most that is read of such a file \(64424509440\); correct the path"):
        read(str(path))
    assert resident() - before < 64 << 20


def test_memory_of_a_small_file(tmp_path):
    """Also of address space: a process may be limited to less than the budget."""
    (tmp_path / "small").write_bytes(b"abc" * 1000)
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / "small") == b"abc" * 1000
        assert tracemalloc.get_traced_memory()[1] < 4 * PIECE
    finally:
        tracemalloc.stop()


def resident():
    """Return the most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_pipes_and_lines_beyond_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "1MiB")
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bytes, map_bytes):
        with subprocess.Popen(["sh", "-c", 'exec cat /dev/zero > "$0"', str(tmp_path / "pipe")]) as writer:
            try:
                with pytest.raises(FileError, match=r"has more than 1048576 bytes, .*\(a pipe\).* MINICAFFE_MAX_BLOB_BYTES to more"):
                    read(tmp_path / "pipe")
            finally:
                writer.kill()
    path = tmp_path / "list.txt"
    for end in "\n", "\r", "\v", "\x1c":
        path.write_text(f"a 1{end}" * 4096, newline="")
        assert ImageList(path).entries == [("a", 1)] * 4096
        path.write_text(f"a 1{end}" * 4097, newline="")
        with pytest.raises(FileError, match="list.txt: has 4097 lines, the budget is enough for 4096; .*=1048832 or"):
            ImageList(path)


@pytest.mark.parametrize("text, words", [
    ("layer{}" * (MAX_LAYERS + 1), rf":1:{7 * MAX_LAYERS + 1}: layer\[{MAX_LAYERS}\]: a net has at most {MAX_LAYERS} layers"),
    ("net_param{" + "layer{}" * (MAX_LAYERS + 1) + "}", f"a net has at most {MAX_LAYERS} layers"),
    pytest.param("input_dim:[" + "1," * (MAX_TOKENS // 2) + "1]", f"the text has more than {MAX_TOKENS} words, numbers and marks", marks=pytest.mark.slow(1))])
def test_texts_beyond_any_net(tmp_path, text, words):
    """Smaller limits are in test_text.py; those of weights in test_binary.py."""
    (tmp_path / "f").write_text(text)
    started = time.process_time()
    with pytest.raises(ConfigError, match=words):
        read_text(tmp_path / "f", caffe_pb2.SolverParameter if "net_param" in text else caffe_pb2.NetParameter)
    assert time.process_time() - started < 10


def entry(content, tag=b"\xa2\x06"):
    """Return a field of NetParameter, by default `layer`."""
    return tag + varint(len(content)) + content


@pytest.mark.parametrize("content, words", [
    (entry(b"") * (MAX_LAYERS + 1), f"has {MAX_LAYERS + 1} layers, a net has at most {MAX_LAYERS}"),
    pytest.param(entry(b"\x3a\x00" * (MAX_PARTS + 1)), f"more than {MAX_PARTS} parts", marks=pytest.mark.slow(1)),
    (entry(entry(bytes(MAX_DEFINITION), b"\x92\x3f")), f"more than {MAX_DEFINITION} bytes without its numbers"),
    (entry(entry(bytes(1000), b"\x92\x3f")) * (MAX_DEFINITION // 1000), f"more than {MAX_DEFINITION} bytes without its numbers")])
def test_weights_beyond_any_net(tmp_path, content, words):
    (tmp_path / "f").write_bytes(content)
    before = resident()
    with pytest.raises(DataError, match=words):
        read_weights(tmp_path / "f")
    assert resident() - before < 400 << 20


def solver_with_state(change):
    """Return the solver of net.prototxt; bad.solverstate is its state with a `change` of the text of the sources' states."""
    with open("solver.prototxt", "w") as file:
        file.write('net: "net.prototxt" base_lr: 1 lr_policy: "fixed" snapshot_prefix: "s"')
    solver = load_solver("solver.prototxt")
    with open(solver.snapshot()[1], "rb") as file:
        stored = caffe_pb2.SolverState.FromString(file.read())
    stored.resume_state = change(stored.resume_state)
    with open("bad.solverstate", "wb") as file:
        file.write(stored.SerializeToString())
    return solver


@pytest.mark.parametrize("text, words", [
    ("[" + "[]," * 6_000_000 + "[]]", "has 18000004 characters, at most 16777216 are read"), ("[" * 100_000, "is not what minicaffe writes")], ids=["long", "deep"])
def test_resume_state(here, text, words):
    build(data_layer("batch_size: 1"))
    with pytest.raises(DataError, match=f"bad.solverstate: resume_state: {words}"):
        solver_with_state(lambda _: text).restore("bad.solverstate")


@pytest.mark.parametrize("text", [
    'layer { name: "NN" type: "TT" bottom: "BB" }'.replace("NN", "n" * 500_000).replace("TT", "t" * 500_000),
    INPUT.format("dim: 2") + 'layer { name: "s" type: "Slice" bottom: "x" TOPS slice_param { POINTS } }'.replace(
        "TOPS", "".join(f'top: "{i}"' for i in range(50_000))).replace("POINTS", "slice_point: 7 " * 49_990),
    "a" * 1_000_000 + ": 1", 'layer { pooling_param { pool: "' + "p" * 1_000_000 + '" } }'])
def test_errors_are_short(here, text):
    started = time.process_time()
    with pytest.raises(Error) as error:
        build(text)
    assert len(str(error.value)) < 10_000 and time.process_time() - started < 5


def test_short_messages():
    assert str(Error("m" * 2000)) == "m" * 2000
    error = Error("a" * 1500 + "b" * 1500, field="f" * 2001, layer="l" * 2001)
    assert f"layer '{'l' * 1000} ... (1 characters are left out) ... {'l' * 1000}': {'f' * 1000} ... (1 char" in str(error)
    assert str(error).endswith("a" * 1000 + " ... (1000 characters are left out) ... " + "b" * 1000)
    assert str(DeviceError("m" * 5000)) == "m" * 5000  # a compiler's log
    started = time.process_time()
    assert close_matches("ab" * 200_000, ["ba" * 200_000]) == close_matches("abc", ["c" * 200_000]) == ""
    assert close_matches("abcd", ["abce", *map(str, range(1_000_000))]) == "; did you mean 'abce'?"
    assert time.process_time() - started < 2


def test_paths_and_budgets_that_cannot_be(tmp_path, monkeypatch):
    for use in (read_bytes, map_bytes, is_hdf5, read_mean, check_writable, lambda path: replacing(path).__enter__()):
        with pytest.raises(FileError, match="is no usable path"):
            use("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="a device or pipe is there"), replacing(tmp_path / "pipe") as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == ["pipe"]
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "abc")
    for read in read_bytes, read_content:
        with pytest.raises(ConfigError, match="^MINICAFFE_MAX_BLOB_BYTES"):
            read(tmp_path / "file")


@pytest.mark.parametrize("layer, state, words", [
    ("d", {"seed": 1}, "'position' from 0"), ("d", {"seed": "1", "position": 0}, "'seed' from 0"),
    ("d", {"seed": 1, "position": -1}, "'position' from 0"), ("d", [], "'seed' from 0"),
    ("h", {"seed": 1, "position": -1}, "'position' from 0"), ("h", {"seed": 1, "position": True}, "'position' from 0"),
    ("h", {"seed": 1, "position": 1.5}, "'position' from 0")])
def test_states_of_layers(here, layer, state, words):
    build('layer { name: "h" type: "HDF5Data" top: "data" hdf5_data_param { source: "h5.txt" batch_size: 3 } }' + data_layer("batch_size: 1"))

    def change(text):
        resume = json.loads(text)
        resume["train"][layer] = state
        return json.dumps(resume)

    solver = solver_with_state(change)
    before = {one.name: one.get_state() for one in solver.net.layers}
    with pytest.raises(DataError, match=rf"bad.solverstate: layer '{layer}' .*{words}"):
        solver.restore("bad.solverstate")
    assert {one.name: one.get_state() for one in solver.net.layers} == before


def test_large_pictures(here, monkeypatch):
    cv2 = pytest.importorskip("cv2")
    picture = cv2.imencode(".png", np.zeros((300, 300), np.uint8))[1].tobytes()
    with open_db("pictures", "LMDB", "w") as db:
        for i in range(5):
            db.put(b"%d" % i, caffe_pb2.Datum(encoded=True, data=picture).SerializeToString())
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "200KiB")
    layer = ('layer { name: "d" type: "Data" top: "x" transform_param { crop_size: 5 } '
             'data_param { source: "pictures" backend: LMDB batch_size: %d } }')
    build(layer % 2)
    with pytest.raises(ShapeError, match="pictures: layer 'd' .*record 2 .*: the 3 first decoded pictures of a batch would take 270000 bytes"):
        build(layer % 5)


def test_png_chunks_beyond_the_file():
    cv2 = pytest.importorskip("cv2")
    whole = cv2.imencode(".png", np.arange(900, dtype=np.uint8).reshape(30, 30))[1].tobytes()
    assert not any(map(has_overlong_png_chunk, (whole, whole + b"more", b"", b"BM")))
    np.testing.assert_array_equal(decode_image(whole)[:, :, 0], decode_picture(whole, "x", color=False))
    at = whole.index(b"IDAT")
    rest = len(whole) - at - 4      # behind length and name
    for more in range(1, 13):       # a chunk may not be longer than the rest by a single byte
        assert not has_overlong_png_chunk(whole[:at - 4] + rest.to_bytes(4, "big") + whole[at:])
        assert has_overlong_png_chunk(whole[:at - 4] + (rest + more).to_bytes(4, "big") + whole[at:])
    for content in (whole[:at - 4] + b"\x7f\xff\xff\xff" + whole[at:], whole[:at + 20]):
        assert has_overlong_png_chunk(content)
        for decode, error, words in (
                (decode_image, DataError, "OpenCV cannot decode its"), (load_image, FileError, "cannot be read as a picture, OpenCV cannot decode its"),
                (lambda content: decode_picture(content, "x"), DataError, f"'x' is no picture: OpenCV cannot decode its {len(content)} bytes; replace")):
            with pytest.raises(error, match=words):
                decode(content)


def test_names_that_are_not_utf8(here):
    for name in ("", ".", "a/b", "a\\000b"):
        net = build(INPUT.format("dim: 2").replace('"d"', f'"{name}"'))
        with pytest.raises(FileError, match="cannot be saved as HDF5: layer names must be"):
            net.save_hdf5("x.h5")
    net = caffe_pb2.NetParameter()
    net.layers.add(name="AAAA", type=caffe_pb2.V1LayerParameter.RELU)
    (here / "old").write_bytes(net.SerializeToString().replace(b"AAAA", b"\xff\xfeAA"))
    assert upgrade_net(parse_binary("old"))[0].layer[0].name == "\\xff\\xfeAA"
    (here / "old").write_bytes(b"\xff\xff")
    with pytest.raises(FileError, match="old: is no binary NetParameter"):
        parse_binary("old")


@pytest.mark.slow(1)
def test_time_of_many_layers(here):
    """What looks every name up in a list takes a minute."""
    started = time.process_time()
    net = build(INPUT.format("dim: 2") + "".join(
        f'layer {{ name: "l{i}" type: "EuclideanLoss" bottom: "x" bottom: "x" top: "y{i}" }}\n' for i in range(2500)))
    net.save_hdf5("many.h5")
    net.copy_from("many.h5")
    net.save("many.caffemodel")
    net.copy_from("many.caffemodel")
    assert time.process_time() - started < 6


@pytest.mark.parametrize("content, words", [
    (b"", r"empty, where a NumPy array \(.npy\) is expected"), (b"\x93NUMPY\x01\x00" + b"\xff" * 80, "no .npy file"), (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', "
     b"'fortran_order': False, 'shape': (1099511627776,), }".ljust(128) + b"\n", "no .npy file")])
def test_arrays_of_impossible_shapes(tmp_path, content, words):
    (tmp_path / "mean.npy").write_bytes(content)
    with pytest.raises(FileError, match="mean.npy: is " + words):
        read_npy(str(tmp_path / "mean.npy"))
    for shape in (-1, -1), (2**32, 2**32), (2**63 - 1, 2):
        with pytest.raises(Error):
            minicaffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[1], shape={"dim": shape}))
    with pytest.raises(DataError):
        minicaffe.io.blobprotovector_str_to_arraylist(b"\xff\xff")


@pytest.mark.parametrize("fields, words", [
    ('lr_policy: "fixed" base_lr: nan', "solver.prototxt:1: base_lr: must be a number, got nan"),
    ('lr_policy: "fixed" base_lr: 1 momentum: nan', "momentum: must be a number"),
    ('lr_policy: "poly" base_lr: 1 power: inf max_iter: 1', "poly with power inf has no rate beyond max_iter 1, got iteration 2")])
def test_solver_numbers(here, fields, words):
    build(INPUT.format("dim: 1") + 'layer { name: "l" type: "EuclideanLoss" bottom: "x" bottom: "x" top: "y" }')
    (here / "solver.prototxt").write_text(f'{fields} net: "net.prototxt"')
    with pytest.raises(ConfigError, match=words):
        load_solver("solver.prototxt").step(3)
