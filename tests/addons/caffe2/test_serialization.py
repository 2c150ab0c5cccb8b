"""What slots hold as bytes: exact round trips, refusals by name, hostile bytes, files."""

import enum
import fractions
import math
import os
import signal
import struct
import sys
from unittest import mock

import numpy as np
import pytest
from helpers import layer_text
from hypothesis import given, settings
from hypothesis import strategies as st

import minicaffe as caffe
from minicaffe.addons.caffe2 import serialization
from minicaffe.addons.caffe2.serialization import deserialize, register_serializer, serialize
from minicaffe.addons.caffe2.slot import Slot
from minicaffe.addons.caffe2.tensor import Tensor
from minicaffe.addons.caffe2.workspace import Workspace
from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError, DataError, Error, FileError, MissingNameError, ShapeError, WrongTypeError
from minicaffe.proto import caffe_pb2, wire

NAN_WITH_PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_DEAD_BEEF))[0]


def again(value, name="x"):
    stored, result = deserialize(serialize(value, name))
    assert stored == name
    return result


def same(a, b):
    """Equal in type and in every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype.str == b.dtype.str and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


@pytest.mark.parametrize("value", [
    None, True, False, 0, -1, 127, 128, -128, -129, 2**63 - 1, -2**63, 2**64, -2**100, 10**1000, 0.0, -0.0, 0.1, 5e-324, sys.float_info.max,
    math.inf, -math.inf, math.nan, NAN_WITH_PAYLOAD, "", "ä\0", "\ud800 alone", "𝄞", b"", b"\xff\0", [], (), [[], [1]],
    [None, True, 1, 1.0, "1", b"1", (1, [2.5])], np.float32(0.1), np.float64(-0.0), np.int64(-5), np.bool_(True), np.float16(2), np.complex64(1j)],
    ids=lambda value: repr(value)[:20])
def test_plain_objects_and_scalars(value):
    assert same(again(value), value) and same(again([value, 1]), [value, 1])


@pytest.mark.parametrize("dtype", [*"?bBhHiIqQefdFD", ">f4", "<f4", ">i2", ">c16", ">f2"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3), (1,) * 32])
def test_arrays(dtype, shape):
    value = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    result = again(value)
    assert same(result, value) and result.flags.writeable and result.flags.owndata and result.flags.aligned


def test_layouts_and_bits():
    value = np.arange(24).reshape(2, 3, 4)
    for array in np.array([np.nan, -np.nan, np.inf, -0.0, 1e-45, NAN_WITH_PAYLOAD], np.float32), value.T, value[:, ::-2]:
        assert same(again(array), array) and again(array).flags.c_contiguous
    value.flags.writeable = False
    assert again(value).flags.writeable
    tensor = Tensor((3,), np.float64)
    tensor.mutable_data(np.float64)[...] = [NAN_WITH_PAYLOAD, -0.0, np.inf]
    tensor.reserve(100)
    result = again(tensor)
    assert result.data(np.float64).tobytes() == tensor.data(np.float64).tobytes() and result.capacity_nbytes == 24


class MyInt(int):
    pass


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("value, said", [
    (np.array([object()]), "x: an array of object cannot be stored"),
    (np.array(["a"]), "x: an array of <U1 cannot be stored"),
    (np.array([b"a"]), r"x: an array of \|S1 cannot be stored"),
    (np.zeros(1, np.longdouble), "x: an array of float128 cannot be stored"),
    (np.zeros(1, "M8[s]"), "x: an array of datetime64"),
    (np.zeros(1, [("a", "f4")]), "x: an array of .*'a'.* cannot be stored"),
    (np.datetime64("2020-01-01"), "x: an array of datetime64"),
    (np.str_("a"), "x: an array of <U1 cannot be stored"),
    (np.ma.zeros(3), "x: an object of type numpy.*MaskedArray cannot be stored"),
    (np.zeros((2, 2)).view(np.matrix), "x: an object of type numpy.matrix"),
    (np.zeros((1,) * 33), "x: an array of 33 axes cannot be stored"),
    (MyInt(3), r"x: an object of type .*\.MyInt cannot be stored; say how with .*register_serializer\(MyInt, to, from_\)"),
    (Colour.RED, "x: an object of type .*Colour cannot be stored"),
    ({}, "x: an object of type builtins.dict"),
    (bytearray(b"a"), "x: an object of type builtins.bytearray"),
    (1j, "x: an object of type builtins.complex"),
    ([1, [2, {3}]], r"x\[1\]\[1\]: an object of type builtins.set"),
    (caffe.Workspace(), "x: an object of type minicaffe.addons.caffe2.workspace.Workspace"),
    (Tensor((2,), [("a", "f4")]), r"x: an array of \[\('a'.* cannot be stored")])
def test_what_is_refused_is_named(value, said):
    with pytest.raises((WrongTypeError, ShapeError), match=said):
        serialize(value, "x")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_names_and_limits(monkeypatch):
    for name in ("", "conv1[0]", "ä", "a\nb"):
        assert again(1, name) == 1
    for name in (3, "\ud800", None):
        with pytest.raises(WrongTypeError, match="the name of a slot that is stored must be a str"):
            serialize(1, name)
    assert again(nested(serialization.MAX_DEPTH)) == nested(serialization.MAX_DEPTH) and serialization.MAX_PARTS == wire.MAX_PARTS == 500_000
    for module in serialization, wire:
        monkeypatch.setattr(module, "MAX_PARTS", 5000)
    fits, deep, endless = [0] * 1600, b"", []
    assert again(fits) == fits
    endless.append(endless)
    for _ in range(10_000):
        deep = b"".join(serialization.length_delimited(serialization.ITEM, [b"\x12\4list" + deep]))
    lists = b"".join(serialization.length_delimited(serialization.ITEM, [b"\x12\4list" + b"\x22\0" * 4000])) * 2
    for call, value, words in (
            (serialize, endless, r"x(\[0\])+: is nested more than 32 deep"), (serialize, nested(33), "nested more than 32"),
            (serialize, [0] * 2000, r"x.*: has more than 5000 parts, .* keep numbers in an array"),
            (deserialize, b"\x12\4list" + deep, "nested more than 32 deep"), (deserialize, b"\x12\4list" + b"\x22\0" * 6000, "parts"),
            (deserialize, b"\x12\4list" + lists, "parts|which is not registered")):
        with pytest.raises(DataError, match=words):
            call(value, *["x"] * (call is serialize))


# ---- blobs

@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("shape", [None, (), (0,), (2, 3), (2, 0, 1)])
def test_blobs(dtype, shape):
    blob = Blob(shape, dtype, "old")
    for with_diff in [False, True][:1 + bool(blob.count)]:
        if blob.count:
            blob.data[...] = np.arange(blob.count).reshape(blob.shape) - 1
            if dtype != Dtype.INT:
                blob.scale_data(2)      # on the device
        if with_diff:
            blob.diff[...] = -1
        result = again(blob)
        assert (result.shape, result.count, result.dtype, result.name) == (blob.shape, blob.count, dtype, "x")
        assert np.array_equal(result.data, blob.data) and np.array_equal(result.diff, blob.diff) and result.diff.any() == with_diff


def test_blob_that_was_never_written(on_cpu):
    blob = Blob((1000, 1000))
    data = serialize(blob)
    result = deserialize(data)[1]
    assert len(data) < 50 and blob.data_memory.head == result.data_memory.head == caffe.memory.SyncedHead.UNINITIALIZED
    assert result.shape == (1000, 1000) and not result.data.any()


# ---- registered types

class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


@pytest.fixture
def registry(monkeypatch):
    for name in ("_by_type", "_by_name"):
        monkeypatch.setattr(serialization, name, {})


def test_registered_types(registry):
    register_serializer(Point, lambda p: [p.x, p.y], lambda xy: Point(*xy))
    result = again([Point(1, np.ones(2)), Point(None, Point(3, 4))])
    assert (result[0].x, result[0].y.tolist(), result[1].y.x, result[1].y.y) == (1, [1, 1], 3, 4)
    register_serializer(fractions.Fraction, str, fractions.Fraction, name="fraction")
    assert again(fractions.Fraction(1, 3)) == fractions.Fraction(1, 3)
    data = serialize(Point(1, 2), "p")
    serialization._by_name.clear()
    with pytest.raises(DataError, match=r"p: holds an object of type '.*\.Point', which is not registered; call .*register_serializer"):
        deserialize(data)
    register_serializer(Point, lambda p: 1, lambda one: Point(1, 1), name="point")
    register_serializer(Point, lambda p: 2, lambda two: Point(two, two), name="point2")
    assert again(Point(0, 0)).x == 2 and set(serialization._by_name) == {"point2"}

    class Other(Point):
        pass

    register_serializer(Other, lambda p: 3, lambda three: Other(three, three), name="point2")
    assert type(again(Other(0, 0))) is Other
    with pytest.raises(WrongTypeError):
        serialize(Point(0, 0))
    for to, from_, x, error, words in (
            (lambda p: 1 / p.x, None, 0, DataError, "a: to of point failed: ZeroDivisionError: division by zero"),
            (lambda p: 1, lambda x: x["no"], 1, DataError, "a: from_ of point failed: TypeError"),
            (lambda p: {}, None, 1, WrongTypeError, "a: an object of type builtins.dict"), (lambda p: p, None, 1, DataError, "nested more than 32"),
            (lambda p: 1, lambda x: 5, 1, WrongTypeError, "a: from_ of point made an object of type int")):
        register_serializer(Point, to, from_ or (lambda x: x), name="point")
        with pytest.raises(error, match=words):
            deserialize(serialize(Point(x, 0), "a"))


def test_what_cannot_be_registered(registry):
    for kind, name, error, words in (
            *((kind, None, ConfigError, "is stored by minicaffe itself") for kind in (int, list, np.ndarray, np.float32, Blob)),
            *((Point, name, ConfigError, "is stored by minicaffe itself") for name in ("int", "Blob")), (3, None, WrongTypeError, "takes a type, got 3"),
            *((Point, name, WrongTypeError, "the name of a registered type must be a str that UTF-8 can hold") for name in (3, "\ud800"))):
        with pytest.raises(error, match=words):
            register_serializer(kind, str, str, name)


# ---- bytes that no serializer wrote

def slot_proto(**fields):
    return caffe_pb2.SlotProto(name="x", **fields).SerializeToString()


def array_proto(dtype="<f4", dim=(2,), data=b"\0" * 8):
    message = caffe_pb2.ArrayProto(dtype=dtype)
    message.shape.dim.extend(dim)
    if data is not None:
        message.data = data
    return message


def test_messages_of_the_proto():
    message = caffe_pb2.SlotProto.FromString(serialize([1, "a", np.arange(3, dtype=">i2")], "x"))
    assert (message.name, message.type, [item.type for item in message.item]) == ("x", "list", ["int", "str", "ndarray"])
    assert message.item[2].array[0] == array_proto(">i2", (3,), b"\0\0\0\1\0\2")
    assert deserialize(message.SerializeToString())[1][:2] == [1, "a"]
    assert caffe_pb2.SlotProto.FromString(serialize(Blob((2,)))).array[0].shape.dim == [2]


@pytest.mark.parametrize("data, said", [
    (b"", "holds an object of type ''"),
    (b"\xff", "cut off"),
    (b"\x08\x01", "fields that version 1 does not have"),
    (slot_proto(type="int", content=b"\1") + b"\x72\0", "fields that version 1 does not have"),
    (slot_proto(type="float", content=b"\1"), "x: is not a float"),
    (slot_proto(type="float"), "x: is not a float"),
    (slot_proto(type="bool", content=b"\2"), "x: is not a bool"),
    (slot_proto(type="str", content=b"\xff"), "x: is not a str"),
    (slot_proto(type="Int", content=b"\1"), "x: holds an object of type 'Int', which is not registered; .*did you mean 'int'"),
    (slot_proto(type="os.system", content=b"\1"), "x: holds an object of type 'os.system', which is not registered"),
    (slot_proto(type="object", item=[caffe_pb2.SlotProto(type="int")]), "x: holds an object of type 'object', which is not registered"),
    (slot_proto(type="list", item=[caffe_pb2.SlotProto(type="int"), caffe_pb2.SlotProto(type="float")]), r"x\[1\]: is not a float"),
    (slot_proto(type="list", item=[caffe_pb2.SlotProto(name="y", type="int")]), r"x\[0\]: has fields that version 1 does not have"),
    (slot_proto(type="ndarray"), "x: holds 0 arrays in the place of one"),
    (slot_proto(type="ndarray", array=[array_proto(), array_proto()]), "x: holds 2 arrays"),
    (slot_proto(type="ndarray", array=[caffe_pb2.ArrayProto(dtype="<f4")]), "x: is an array without a shape"),
    (slot_proto(type="ndarray", array=[array_proto(dim=(3,))]), r"x: has 8 bytes, its shape \[3\] of float32 needs 12"),
    (slot_proto(type="ndarray", array=[array_proto(dim=(2**62, 8))]), "x: has 8 bytes, its shape"),
    (slot_proto(type="ndarray", array=[array_proto(dim=(-1, -2))]), "x: has the shape .* negative"),
    (slot_proto(type="ndarray", array=[array_proto(dim=(1,) * 33)]), "x: .*32 axes"),
    (slot_proto(type="ndarray", array=[array_proto(dim=(0, 2**62, 2**62), data=b"")]), "x: has the shape"),
    (slot_proto(type="ndarray", array=[array_proto("|b1", (1,), b"\2")]), "x: holds 2 where a bool must be 0 or 1"),
    *((slot_proto(type="ndarray", array=[array_proto(dtype)]), "x: has elements of type")
      for dtype in ("O", "|O8", "f4", "<f16", "<U2", "|V8", "f4,f4", "", "<M8[s]", "=f4")),
    (slot_proto(type="scalar", array=[array_proto()]), r"x: is a number with the shape \[2\]"),
    (slot_proto(type="Blob"), "x: is a blob of 0 arrays"),
    (slot_proto(type="Blob", array=[array_proto()] * 3), "x: is a blob of 3 arrays"),
    (slot_proto(type="Blob", array=[array_proto("<f2", (4,))]), "x: is a blob of float16"),
    (slot_proto(type="Blob", array=[array_proto(">f4")]), "x: is a blob of >f4"),
    (slot_proto(type="Blob", array=[array_proto(), array_proto(dim=(2, 1))]), "x: is a blob of float32, or its diff has another"),
    (slot_proto(type="Blob", array=[array_proto(dim=(2**31,), data=None)]), "x: axis 0 must have a size from 0 to"),
    (slot_proto(type="Blob", array=[array_proto(dim=(3,))]), "x: has 8 bytes")])
def test_damaged_bytes(data, said):
    with pytest.raises((DataError, ShapeError), match=said):
        deserialize(data)


def test_the_budget(monkeypatch):
    array, text, blob = serialize(np.zeros(1000), "x"), serialize(b"a" * 5000, "x"), serialize(Blob((2000,)), "x")
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "4000")
    for data in (array, text, blob):
        with pytest.raises(ShapeError, match=r"x: .*would take \d+ bytes, the budget for one blob is 4000"):
            deserialize(data)


def test_all_kinds_of_bytes():
    for kind in bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8):
        assert deserialize(kind(serialize(7, "x"))) == ("x", 7)
    for wrong in "text", 3, None, memoryview(b"12345678")[::2]:
        with pytest.raises(WrongTypeError, match="a slot is read from bytes, got"):
            deserialize(wrong)


EVERYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary()
    | st.integers(0, 4).map(lambda n: np.arange(n, dtype=np.float32)),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple), max_leaves=12)


@given(EVERYTHING)
def test_everything_comes_back(value):
    assert same(again(value), value)


@given(EVERYTHING, st.data())
@settings(max_examples=300)
def test_changed_bytes(value, draw):
    data = bytearray(serialize(value, "x"))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    del data[draw.draw(st.integers(0, 2 * len(data))):]
    try:
        name, found = deserialize(bytes(data))
    except Error:
        return
    assert same(again(found, name), found)      # it is an object that could have been written


# ---- slots and workspaces

def test_slots_to_bytes_and_back():
    one, two = Slot("one"), Slot("two")
    one.reset([1, 2])
    two.share_external("theirs")
    two.deserialize(one.serialize())
    assert two.get() == [1, 2] and two.get() is not one.get() and two.name == "two" and not two.is_external
    with pytest.raises(DataError):
        two.deserialize(b"nothing")
    assert two.get() == [1, 2]
    two.deserialize(Slot().serialize())
    assert two.type is None
    workspace = Workspace(name="w")
    workspace.set("a", 0)
    data = workspace.serialize("a")
    assert Workspace().deserialize(data).name == "a"
    assert workspace.deserialize(data, "b").get() == 0 and workspace.names() == ["a", "b"]
    with pytest.raises(MissingNameError, match="no blob 'c'"):
        workspace.serialize("c")
    with pytest.raises(WrongTypeError, match="a name is a str, got 3"):
        workspace.deserialize(data, 3)
    leaf = workspace.child("leaf")
    leaf.forward("alias", "a")
    assert deserialize(leaf.serialize("alias")) == ("alias", 0)


@pytest.mark.parametrize("held", [None, 3, Blob(), Tensor()], ids=["nothing", "int", "blob", "tensor"])
def test_tensors_in_slots(held):
    """Only a tensor of the slot stays, and gets what was read."""
    slot, source = Slot("x"), Tensor((2,), np.int32)
    source.mutable_data(np.int32)[...] = 7
    slot.reset(held)
    slot.deserialize(serialize(source))
    tensor = slot.get(Tensor)
    assert tensor.data(np.int32).tolist() == [7, 7] and (tensor is held) == isinstance(held, Tensor)
    slot.share_external(tensor)
    slot.deserialize(serialize(Tensor((1,), np.int8)))
    assert slot.get() is not tensor and tensor.is_type(np.int32)
    slot.deserialize(serialize(5))
    assert slot.get() == 5


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_blobs_in_slots(shape):
    slot, blob, source = Slot("x"), Blob(shape), Blob(shape)
    slot.reset(blob)
    source.data[...], source.diff[...] = 5, 6
    slot.deserialize(serialize(source))
    assert slot.get() is blob and blob.shape == shape and (blob.data == 5).all() and (blob.diff == 6).all()
    slot.deserialize(serialize(Blob(shape)))
    assert slot.get() is blob and not blob.data.any() and not blob.diff.any()
    blob.data[...] = 1
    for value, error, said in ((Blob((3, 2)), ShapeError, r"x: holds a blob of shape \[.*\] and FLOAT, .* remove the slot first"),
                               (Blob(shape, Dtype.DOUBLE), ShapeError, "and DOUBLE"),
                               (Blob((1,)), ShapeError, r"bytes hold one of \[1\]"), (5, WrongTypeError, "x: holds a Blob, .*hold int")):
        with pytest.raises(error, match=said):
            slot.deserialize(serialize(value))
    assert slot.get() is blob and (blob.data == 1).all()
    slot.share_external(blob)
    slot.deserialize(serialize(source))
    assert slot.get() is not blob and (blob.data == 1).all()
    slot.reset(without := Blob())  # without a shape yet
    slot.deserialize(serialize(source))
    assert slot.get() is not without and slot.get().shape == shape and without.count == 0 and (slot.get().data == 5).all()


@pytest.fixture
def filled():
    workspace = Workspace(name="w")
    workspace.set("n", 0)
    workspace.set("empty", None)
    workspace.set("array", np.arange(3))
    workspace.set("blob", Blob((2,), name="blob")).get().data[...] = 7
    return workspace


def test_save_and_load(filled, tmp_path):
    path, names, other = tmp_path / "w.slots", ["n", "empty", "array", "blob"], Workspace()
    assert filled.save(path) == other.load(str(path)) == other.names() == names
    assert (other.blob("n"), other.slot("empty").type, other.blob("array").tolist()) == (0, None, [0, 1, 2])
    assert other.blob("blob", Blob).data.tolist() == [7, 7] and other.slot("blob").name == "blob"
    message = caffe_pb2.WorkspaceProto.FromString(path.read_bytes())
    assert message.version == 1 and [slot.name for slot in message.slot] == names
    Workspace().save(path)
    assert Workspace().load(path) == []


def test_saved_and_chosen_slots(filled, tmp_path):
    path, leaf, other, root = tmp_path / "w.slots", filled.child("leaf"), Workspace(), Workspace()
    leaf.forward("alias", "array")
    leaf.set("own", 1)
    leaf.create_slot("theirs").share_external([1])
    assert leaf.save(path) == ["own"] and leaf.save(path, ["alias", "n", "theirs"]) == ["alias", "n", "theirs"]
    assert other.load(path, ["n"]) == ["n"] and other.names() == ["n"]
    assert other.load(path, "alias") == ["alias"] and other.blob("alias").tolist() == [0, 1, 2]
    with pytest.raises(MissingNameError, match="w.slots: holds no slot 'theirss'; did you mean 'theirs'"):
        other.load(path, ["theirss"])
    with pytest.raises(MissingNameError, match="no blob 'nowhere'"):
        leaf.save(path, ["nowhere"])
    filled.save(path)
    root.set("n", 1)
    leaf = root.child("leaf")
    leaf.load(path, ["n"])
    assert (leaf.blob("n"), root.blob("n"), leaf.local_names()) == (0, 1, ["n"])
    leaf.remove("n")
    leaf.forward("n", "n")
    for call, words in ((lambda: leaf.load(path), "w.slots: n: workspace 'leaf': 'n' is forwarded to 'n' of the parent"),
                        (lambda: leaf.deserialize(filled.serialize("n")), "is forwarded")):
        with pytest.raises(ConfigError, match=words):
            call()
    assert root.blob("n") == 1 and leaf.local_names() == []


def test_a_load_that_fails_changes_nothing(filled, tmp_path):
    path = tmp_path / "w.slots"
    filled.save(path)
    for change in (lambda data: data[:-1], lambda data: data + b"\x08\2", lambda data: data + data[2:], lambda data: b"", lambda data: b"x",
                   lambda data: data.replace(b"ndarray", b"narrays"), lambda data: caffe_pb2.NetParameter(name="net").SerializeToString()):
        (tmp_path / "broken").write_bytes(change(path.read_bytes()))
        other = Workspace()
        with pytest.raises(DataError, match="broken: "):
            other.load(tmp_path / "broken")
        assert other.names() == []
    other = Workspace()
    other.set("n", 5)
    blob = other.set("blob", Blob((3,))).get()
    with pytest.raises(ShapeError, match=r"w.slots: blob: holds a blob of shape \[3\]"):
        other.load(path)
    assert other.names() == ["n", "blob"] and other.blob("n") == 5 and other.blob("blob") is blob
    with pytest.raises(FileError, match="no such file"):
        other.load(tmp_path / "nowhere")


def test_save_that_fails(filled, tmp_path, monkeypatch):
    path = tmp_path / "w.slots"
    filled.save(path)
    before = path.read_bytes()
    filled.set("thing", object())
    with pytest.raises(WrongTypeError, match="w.slots: thing: an object of type builtins.object cannot be stored; say how with"):
        filled.save(path)
    filled.remove("thing")
    filled.set("n", 6)
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=OSError(28, "full")))
    with pytest.raises(FileError, match="no room left"):
        filled.save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["w.slots"]


def test_ctrl_c_while_slots_are_filled(filled, tmp_path, monkeypatch):
    filled.save(tmp_path / "w.slots")
    reset = Slot.reset

    def interrupted(self, value=None):
        if self.name == "n" and value is not None:
            os.kill(os.getpid(), signal.SIGINT)
        reset(self, value)

    other = Workspace()
    monkeypatch.setattr(Slot, "reset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.load(tmp_path / "w.slots")
    assert other.names() == ["n", "empty", "array", "blob"] and other.blob("n") == 0 and other.blob("blob").data[0] == 7


def test_nets_see_what_is_loaded(tmp_path):
    text = 'name: "n" ' + layer_text("Input", "x", more="input_param { shape { dim: 1 dim: 2 } }") + layer_text(
        "InnerProduct", "ip", "x", more="inner_product_param { num_output: 1 }")
    first, second = Workspace(), Workspace()
    one, two = (workspace.create_net(text, caffe.TEST) for workspace in (first, second))
    one.params["ip"][0].data[...] = [[2, 3]]
    first.save(tmp_path / "w.slots")
    two.forward()
    second.load(tmp_path / "w.slots")
    two.blobs["x"].data[...] = 1
    assert two.forward()["ip"] == 5


# ---- tensors

def state(tensor):
    """What a tensor is: type, shape, elements."""
    held = tensor.memory is not None or tensor.capacity_nbytes
    return str(tensor.dtype), tensor.size, tensor.shape, tensor.data(tensor.dtype).tolist() if held else None


@pytest.mark.parametrize("arguments", [
    (), ((2, 3),), ((),), (None, np.float32), ((2,), np.float16), ((0, 3),), ((0, 3), np.int8), ((2, 2), bool), ((), np.complex128)], ids=repr)
def test_tensors(arguments):
    tensor = Tensor(*arguments)
    for _ in range(2):
        assert state(again(tensor)) == state(tensor)
        if tensor.size > 0 and tensor.dtype is not None:
            tensor.free_memory()


@pytest.mark.parametrize("stored", [
    3, [], ["O", [1]], ["f4,f4", None], ["<f4", [-1]], ["<f4", [2**31]], ["<f4", [1], None], ["str", [2]], ["os.system", [1]],
    [["str"], [1]], [3, None], [0, None], [None, ["a"]], [">f4", [1]]], ids=repr)
def test_what_is_no_tensor(stored, monkeypatch):
    registered = serialization._by_name["Tensor"]
    monkeypatch.setitem(serialization._by_type, Tensor, registered._replace(to=lambda tensor: stored))
    data = serialize(Tensor(), "x")
    with pytest.raises((DataError, ShapeError, WrongTypeError), match="x: "):
        deserialize(data)
