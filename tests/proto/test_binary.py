"""Binary and HDF5 files: what is read equals what protobuf reads, without copies; what is broken raises and takes no memory."""

import io
import struct
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError
from minicaffe.proto import binary, binary_writer, caffe_pb2, wire
from minicaffe.proto.binary import read_blob, read_net, read_solver_state
from minicaffe.proto.binary_writer import length_delimited, varint, write_net, write_solver_state
from minicaffe.proto.files import is_hdf5
from minicaffe.proto.hdf5 import is_numbers, read_array, reading
from minicaffe.proto.stored import LayerBlobs, StoredBlob, parse_blob, read_dims
from minicaffe.proto.upgrade import read_weights

RNG = np.random.default_rng(7)


def blob_proto(shape, **fields):
    count = int(np.prod(shape))
    fields = fields or {"data": np.arange(count, dtype=np.float32)}
    return caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=shape), **fields)


def stored(path, message):
    path.write_bytes(message.SerializeToString())
    return path


def model():
    """Return a NetParameter with layers of all three ages; no real file has them together."""
    net = caffe_pb2.NetParameter(name="all ages", input=["x"])
    layer = net.layer.add(name="conv", type="Convolution", bottom=["x"], top=["y"])
    layer.convolution_param.num_output = 2
    layer.blobs.add().CopyFrom(blob_proto((2, 3, 2, 2)))
    layer.blobs.add().CopyFrom(blob_proto((2,), double_data=[1.5, 2.5], double_diff=[0.25, 0.5]))
    old = net.layers.add(name="ip", type=caffe_pb2.V1LayerParameter.INNER_PRODUCT, blobs_lr=[1, 2])
    old.blobs.add(num=1, channels=1, height=2, width=3, data=range(6), diff=range(6))
    oldest = net.layers.add(bottom=["y"]).layer
    oldest.name, oldest.type = "old", "innerproduct"
    oldest.blobs.add(num=1, channels=1, height=1, width=2, data=[7, 8])
    return net


def test_read_net_of_every_age(tmp_path):
    path = stored(tmp_path / "w.caffemodel", model())
    net, layers = read_net(path)
    bare = model()
    for layer in [*bare.layer, *bare.layers, bare.layers[1].layer]:
        layer.ClearField("blobs")
    assert net == bare
    assert {layer.name: layer.type for layer in layers} == {"conv": "Convolution", "ip": "INNER_PRODUCT", "old": "innerproduct"}
    weight, bias = layers[0].blobs
    assert (weight.shape, weight.legacy, weight.has_shape, weight.diff) == ((2, 3, 2, 2), False, True, None)
    np.testing.assert_array_equal(weight.data, np.arange(24, dtype=np.float32))
    assert bias.data.dtype == np.float64
    np.testing.assert_array_equal(bias.diff, [0.25, 0.5])
    ip, old = layers[1].blobs[0], layers[2].blobs[0]
    assert (ip.shape, ip.legacy, ip.has_shape) == ((1, 1, 2, 3), True, False)
    np.testing.assert_array_equal(ip.diff, np.arange(6))
    np.testing.assert_array_equal(old.data, [7, 8])
    assert [layer.type for layer in read_weights(path)] == ["Convolution", "InnerProduct", "InnerProduct"]
    for parts in ({"layer": net.layer}, {"layers": net.layers[:1]}, {"layers": net.layers[1:]}):    # files of one age
        stored(path, caffe_pb2.NetParameter(**parts))
        assert [layer.type for layer in read_weights(path)] == ["Convolution" if "layer" in parts else "InnerProduct"]


def peak_of(work):
    """Return what work() returns and how many bytes were in use at most during the call."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def packed(number, values):
    return varint(number << 3 | 2) + varint(4 * len(values)) + np.float32(values).tobytes()


def unpacked(number, values):
    return b"".join(varint(number << 3 | 5) + struct.pack("<f", value) for value in values)


def test_numbers_in_pieces():
    shape = blob_proto((6,), data=[]).SerializeToString()
    unknown = b"\xfa\x7f\x03abc" + b"\xf8\x7f\x01"  # a string and a number
    pieces = [
        unpacked(5, range(6)),
        unpacked(5, [0]) + unpacked(6, range(6)) + unpacked(5, [1, 2, 3, 4, 5]),
        packed(5, [0, 1]) + unknown + packed(5, []) + unpacked(5, [2]) + packed(5, [3, 4, 5]),
        unpacked(21, [7, 8]) + unpacked(5, [0, 1]) + unpacked(21, [9, 9]) + unpacked(5, [2, 3, 4, 5]),  # a tag of two bytes
        unpacked(5, [0, 1, 2]) + unknown + unpacked(5, [3, 4, 5]),  # one run for the eye, two in the file
        unpacked(5, [0]) + unknown + unpacked(5, [1]) + unknown[:6] + unpacked(5, [2, 3, 4, 5]),
        b"\x29" + b"\0" * 8 + packed(5, range(6)),  # eight bytes where floats should be: unknown to protobuf
    ]
    for content in pieces:
        for message in (shape + content, content + shape):
            blob = parse_blob(message)
            np.testing.assert_array_equal(blob.data, range(6))
            np.testing.assert_array_equal(blob.data, caffe_pb2.BlobProto.FromString(message).data)
    for number, kind in (6, "f"), (9, "d"):     # differences
        parts = (b"".join(length_delimited(number, [struct.pack(f"{len(part)}{kind}", *part)])) for part in ((0, 1), (2, 3, 4, 5)))
        blob = parse_blob(blob_proto((6,), data=range(6)).SerializeToString() + b"".join(parts))
        np.testing.assert_array_equal(blob.diff, range(6))


def test_shapes_and_views(tmp_path):
    blob = parse_blob(blob_proto((2,), data=[1, 2], double_data=[3, 4]).SerializeToString())
    np.testing.assert_array_equal(blob.data, [3, 4])
    blob = parse_blob(caffe_pb2.BlobProto(data=[5]).SerializeToString())
    assert (blob.shape, blob.has_shape, blob.data.tolist()) == ((), False, [5])
    assert parse_blob(blob_proto((3, 0)).SerializeToString()).shape == (3, 0)
    longest = b"\x08\x81" + b"\x80" * 8 + b"\0"     # a size of 1 in 11 bytes
    assert read_dims(longest * 32) == (1,) * 32
    for dims in (2**31 - 1,), (2**31 - 1, 1), (0, 2**31 - 1):
        assert parse_blob(caffe_pb2.BlobProto(shape={"dim": dims}).SerializeToString(), need_data=False).shape == dims
        with pytest.raises(DataError, match="at most 2147483647"):
            parse_blob(caffe_pb2.BlobProto(shape={"dim": [dim + (dim > 1) for dim in dims]}).SerializeToString(), need_data=False)
    path = stored(tmp_path / "mean.binaryproto", blob_proto((1, 3, 300, 300)))
    blob, peak = peak_of(lambda: read_blob(path))
    assert peak < 400_000  # the numbers are 1,080,000 bytes; from Python 3.14 on a file's buffer is 128 KiB
    assert not blob.data.flags.owndata
    assert not blob.data.flags.writeable
    assert blob.data.sum(dtype=np.int64) == 270000 * 269999 // 2


def raw(number, content, kind=None):
    """Return the fields of raw numbers (NVIDIA's fork, OpenCV): the type, a varint, is two fields before the bytes."""
    kind = b"" if kind is None else varint(number - 2 << 3) + varint(kind)
    return kind + b"".join(length_delimited(number, [content]))


@pytest.mark.parametrize(("kind", "dtype"), [(None, "<f8"), (0, "<f8"), (1, "<f4"), (2, "<f2")])
def test_raw_numbers(kind, dtype):
    want = np.array([0.5, -2, 65504, 6e-8], dtype)
    shape = caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=[2, 2])).SerializeToString()
    blob = parse_blob(shape + raw(12, want.tobytes(), kind) + raw(13, want[::-1].tobytes(), kind))
    np.testing.assert_array_equal(blob.data, want)
    np.testing.assert_array_equal(blob.diff, want[::-1])
    assert blob.data.dtype == (np.float64 if dtype == "<f8" else np.float32)  # what blobs can hold
    beside = caffe_pb2.BlobProto(data=[9] * 4).SerializeToString()
    np.testing.assert_array_equal(parse_blob(shape + beside + raw(12, want.tobytes(), kind)).data, want)
    twice = raw(12, b"123") + raw(12, want.tobytes(), kind)
    np.testing.assert_array_equal(parse_blob(shape + twice).data, want)  # as protobuf has it, the last one counts
    lone_type = varint(10 << 3) + varint(kind or 99)
    np.testing.assert_array_equal(parse_blob(shape + beside + lone_type).data, [9] * 4)
    doubles = caffe_pb2.BlobProto(double_data=[9] * 4).SerializeToString()
    np.testing.assert_array_equal(parse_blob(shape + doubles + raw(12, want.tobytes(), kind)).data, [9] * 4)


@pytest.mark.parametrize(("blob", "words"), [
    (blob_proto((2**30, 2**30), data=[1]), "1073741824x1073741824, 1152921504606846976 numbers"),
    (blob_proto((2**62, 2**62, 0), data=[1]), "at most 2147483647"),
    (blob_proto((2, -3), data=[1]), "-3 is negative"),
    (blob_proto((2, 3), data=[1]), "holds 1 number in data, its shape 2x3 needs 6"),
    (blob_proto((2, 3), data=[0] * 6, diff=[0] * 5), "holds 5 numbers in diff, its shape 2x3 needs 6"),
    (blob_proto((2, 3), data=[]), "holds no numbers, its shape 2x3 needs 6"),
    (blob_proto([1] * 33, data=[1]), "more than 32 axes"),
    (caffe_pb2.BlobProto(data=[1, 2]), "its shape () needs 1"),
    (caffe_pb2.BlobProto(num=-1, data=[1]), "-1x0x0x0: -1 is negative"),
])
def test_impossible_blobs(tmp_path, blob, words):
    net = caffe_pb2.NetParameter()
    net.layer.add(name="fc", type="InnerProduct", blobs=[blob_proto((1,)), blob])
    path = stored(tmp_path / "w.caffemodel", net)

    def read():
        with pytest.raises(DataError) as caught:
            read_net(path)
        return caught
    caught, peak = peak_of(read)
    assert peak < 400_000
    assert str(caught.value).startswith(f"{path}: layer 'fc' (InnerProduct): blobs[1]: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(("content", "words"), [
    (b"".join(length_delimited(900, [bytes(10_000_000)])) + packed(5, [1]), "holds 1 number in data, its shape 2 needs 2"),
    (unpacked(5, [1]) * 20_000, "holds 20000 numbers in data, its shape 2 needs 2"),
    (b"".join(length_delimited(5, [bytes(3)]) + length_delimited(5, [bytes(5)])), "is no BlobProto or is damaged"),
    (b"".join(length_delimited(5, [bytes(3)])), "data has 3 bytes, no multiple of 4"),
    (b"".join(length_delimited(8, [bytes(7)])), "double_data has 7 bytes, no multiple of 8"),
    (unpacked(5, [1]), "holds 1 number in data, its shape 2 needs 2"),
    (packed(5, [1, 2]) + unpacked(5, [3]), "holds 3 numbers in data"),
    (packed(5, [1]) + packed(5, [1, 2]), "holds 3 numbers in data"),
    (b"".join(length_delimited(7, [b"\x0a\x01\x01" * 40])), "more than 32 axes"),
    (b"".join(length_delimited(7, [b"\x08\x01" * 5000])), "more than 32 axes"),
    (raw(12, b"1234", 3), "raw_data of type 3; double .0., float .1. and half precision .2."),
    (raw(12, b"123", 2), "raw_data has 3 bytes, no multiple of 2"),
    (raw(12, b"123456", 2), "holds 3 numbers in raw_data, its shape 2 needs 2"),
    (raw(12, b"1234", 2) + raw(13, b"12", 2), "holds 1 number in raw_diff"),
])
def test_blobs_in_pieces_that_cannot_be(content, words):
    message = caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=[2])).SerializeToString() + content

    def read():
        with pytest.raises(DataError, match=words):
            parse_blob(message)
    assert peak_of(read)[1] < 400_000


@pytest.mark.parametrize(("single", "kind"), [(5, "f"), (8, "d")])
def test_numbers_with_a_tag_each(single, kind):
    width = struct.calcsize(kind)
    numbers = b"".join(varint(single << 3 | (5 if width == 4 else 1)) + struct.pack(kind, value) for value in range(1000))
    content = caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=[10, 100])).SerializeToString() + numbers
    blob = parse_blob(content)
    np.testing.assert_array_equal(blob.data, range(1000))
    assert blob.data.dtype == kind and not blob.data.flags.writeable
    with pytest.raises(DataError, match="holds 999 numbers"):
        parse_blob(content[:-1 - width])
    with pytest.raises(DataError, match="is no BlobProto or is damaged"):
        parse_blob(content[:-1])


def test_truncated_and_other_files(tmp_path):
    path = tmp_path / "w.caffemodel"
    whole = model().SerializeToString()
    path.write_bytes(whole[:-40])
    with pytest.raises(DataError, match="w.caffemodel: .*is cut off or damaged: field .* are left; fetch the file again"):
        read_net(path)
    for content, words in [
        (b"", "is empty, where a .caffemodel, the weights of a net, is expected; fetch the file again"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "HDF5"),
        (b'name: "lenet"\nlayer { }\n', "is a prototxt, where a .caffemodel, the weights of a net, is expected; it defines a net"),
        (caffe_pb2.NetParameter(name="x").SerializeToString(), "no layer"),
        (caffe_pb2.SolverState(iter=7, learned_net="net.caffemodel").SerializeToString(), "is a solver state, where a .caffemodel"),
        (caffe_pb2.BlobProto(num=1, channels=3, data=[1, 2, 3]).SerializeToString(), "is a mean file or another single blob"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_net(path)
    with pytest.raises(DataError, match="is a .caffemodel, the weights of a net, where the state of a solver"):
        read_solver_state(stored(path, model()))
    with pytest.raises(FileError, match="did you mean 'w.caffemodel'"):
        read_net(tmp_path / "x.caffemodel")


def test_signature_and_strings(tmp_path, caplog):
    path = tmp_path / "w.caffemodel"
    for start, expected in [(0, True), (100, False)]:
        path.write_bytes(b"\0" * start + b"\x89HDF\r\n\x1a\n")
        assert is_hdf5(path) is expected
    path.write_bytes(b"\xa2\x06\x08\x0a\x06name\xb2\xe2")
    assert [layer.name for layer in read_net(path)[1]] == ["name\\xb2\\xe2"]
    # One string, and one of several, at any depth
    caplog.clear()
    layer = b"\x0a\x03a\xffb" + b"\x1a\x02\xfec" + b"\x1a\x02ok" + b"\x22\x01\xfd"       # name, bottom, bottom, top
    message = wire.parse_message(caffe_pb2.NetParameter, b"\xa2\x06" + bytes([len(layer)]) + layer)
    made = message.layer[0]
    assert (made.name, list(made.bottom), list(made.top)) == ("a\\xffb", ["\\xfec", "ok"], ["\\xfd"])
    assert [record.getMessage().rpartition(" is not")[0].split(" ")[0] for record in caplog.records] == [
        "minicaffe.LayerParameter.name", "minicaffe.LayerParameter.bottom", "minicaffe.LayerParameter.top"]


def test_written_net_is_what_protobuf_reads(tmp_path):
    weight = RNG.standard_normal((4, 3, 2, 2)).astype(np.float32)
    bias = RNG.standard_normal(4)
    turned = np.asfortranarray(weight[:, :, 0, 0])
    net = caffe_pb2.NetParameter(name="n", layer=[{"name": "a", "type": "Convolution"}, {"name": "b"}])
    net.layer[0].blobs.add(data=[9])  # left out
    layers = [
        LayerBlobs("a", "", [StoredBlob((4, 3, 2, 2), weight, weight + 1), StoredBlob((4,), bias)]),
        LayerBlobs("b", "", [StoredBlob((4, 3), turned), StoredBlob((), bias[:1].reshape(())), StoredBlob((0,), bias[:0])]),
    ]
    file = io.BytesIO()
    write_net(file, net, layers)
    read = caffe_pb2.NetParameter.FromString(file.getvalue())
    first, second = read.layer[0].blobs
    np.testing.assert_array_equal(first.data, weight.ravel())
    np.testing.assert_array_equal(first.diff, weight.ravel() + 1)
    assert (list(first.shape.dim), first.HasField("num")) == ([4, 3, 2, 2], False)
    np.testing.assert_array_equal(second.double_data, bias)
    assert len(second.data) == len(second.double_diff) == 0
    np.testing.assert_array_equal(read.layer[1].blobs[0].data, turned.ravel())
    assert [len(layer.blobs) for layer in read.layer] == [2, 3]
    path = tmp_path / "w.caffemodel"
    path.write_bytes(file.getvalue())
    for wrote, found in zip(layers, read_net(path)[1], strict=True):
        for one, other in zip(wrote.blobs, found.blobs, strict=True):
            assert one.shape == other.shape
            np.testing.assert_array_equal(one.data.ravel(), other.data)


def test_unreadable_nets_are_not_written(monkeypatch):
    net = caffe_pb2.NetParameter(layer=[{"name": "a", "type": "Scale"}])

    def refused(blob, words):
        file = io.BytesIO()
        with pytest.raises(DataError, match=words):
            write_net(file, net, [LayerBlobs("a", "Scale", [blob])])
        assert file.getvalue() == b""

    refused(StoredBlob((2,), np.arange(2)), r"layer 'a' \(Scale\): blobs\[0\]: holds int64")
    refused(StoredBlob((3,), np.zeros(2)), "holds 2 numbers, its shape 3")
    monkeypatch.setattr(binary_writer, "MAX_FILE", 1000)
    refused(StoredBlob((1000,), np.zeros(1000)), "would have 80.. bytes, protobuf reads 1000 at most")


def test_solver_state(tmp_path):
    path = tmp_path / "a.solverstate"
    history = [StoredBlob((2, 3), RNG.standard_normal((2, 3)).astype(np.float32)), StoredBlob((2,), RNG.standard_normal(2))]
    with open(path, "wb") as file:
        write_solver_state(file, caffe_pb2.SolverState(iter=12, learned_net="a.caffemodel", current_step=3, resume_state='{"seed": 1}'), history)
    state = read_solver_state(path)
    assert (state.iter, state.learned_net, state.current_step) == (12, "a.caffemodel", 3)
    assert state.resume_state == '{"seed": 1}'
    for wrote, found in zip(history, state.history, strict=True):
        assert wrote.shape == found.shape
        np.testing.assert_array_equal(wrote.data.ravel(), found.data)
    assert caffe_pb2.SolverState.FromString(path.read_bytes()).history[0].shape.dim == [2, 3]
    stored(path, caffe_pb2.SolverState(iter=1, history=[blob_proto((2,)), blob_proto((3,), data=[1])]))
    with pytest.raises(DataError, match=r"a.solverstate: history\[1\]: holds 1 number"):
        read_solver_state(path)


def damaged(content):
    """Strategy: `content` cut short and with some bytes replaced."""
    def damage(changes, length):
        made = bytearray(content)
        for at, value in changes:
            made[at] = value
        return bytes(made[:length or None])

    change = st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255))
    return st.builds(damage, st.lists(change, max_size=4), st.integers(0, len(content)))


NET = model().SerializeToString()
STATE = caffe_pb2.SolverState(iter=5, learned_net="a", history=[blob_proto((2, 2))]).SerializeToString()


@given(damaged(NET) | damaged(NET[-120:]) | st.binary(max_size=60))
@settings(max_examples=200)
def test_damaged_models_raise_our_errors_only(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.caffemodel"
    path.write_bytes(content)
    try:
        layers = read_weights(path)
    except Error as error:
        assert str(path) in str(error)
    else:
        for blob in (blob for layer in layers for blob in layer.blobs):
            assert blob.data.size == np.prod(blob.shape, dtype=np.int64)
            blob.data.sum()


@given(damaged(STATE) | st.binary(max_size=40))
def test_damaged_states_raise_our_errors_only(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.solverstate"
    path.write_bytes(content)
    for read in (read_solver_state, read_blob):
        try:
            read(path)
        except Error as error:
            assert str(path) in str(error)


def test_limits_of_definitions(tmp_path, monkeypatch):
    content = caffe_pb2.NetParameter(layer=[{"name": "a", "type": "b"}] * 3).SerializeToString()    # 9 fields
    binary.split_net(content)
    with monkeypatch.context() as within:
        within.setattr(wire, "MAX_PARTS", 8)
        within.setattr(binary, "MAX_PARTS", 8)
        with pytest.raises(DataError, match=r"layer\[2\]: has more than 8 parts"):
            binary.split_net(content)
    net = caffe_pb2.NetParameter(layer=[{"name": "n" * 8}])
    path = stored(tmp_path / "w.caffemodel", net)
    monkeypatch.setattr(binary, "MAX_DEFINITION", net.ByteSize())
    assert read_net(path)[0] == net
    monkeypatch.setattr(binary, "MAX_DEFINITION", net.ByteSize() - 1)
    with pytest.raises(DataError, match="the net would have more than 12 bytes without its numbers"):
        read_net(path)


@pytest.mark.parametrize("field", ["layer", "layers"])
def test_count_of_layers(tmp_path, monkeypatch, field):
    monkeypatch.setattr(binary, "MAX_LAYERS", 3)
    net = caffe_pb2.NetParameter(**{field: [{"name": "a"}] * 3})
    binary.split_net(net.SerializeToString())
    assert len(read_net(stored(tmp_path / "w", net))[1]) == 3
    getattr(net, field).add()
    for read in (lambda: binary.split_net(net.SerializeToString()), lambda: read_net(stored(tmp_path / "w", net))):
        with pytest.raises(DataError, match="has 4 layers, a net has at most 3; fetch the file again$"):
            read()
    with pytest.raises(DataError, match="is cut off"):
        binary.split_net(net.SerializeToString()[:-1])


# ---- HDF5


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
