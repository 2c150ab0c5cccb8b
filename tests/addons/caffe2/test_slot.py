"""Slots: types, what is theirs and what is another's, swaps, and no copies."""

import copy
import pickle
import weakref

import numpy as np
import pytest

from minicaffe.addons.caffe2.slot import Slot, memory_of
from minicaffe.addons.caffe2.tensor import Tensor
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, WrongTypeError


class Thing:
    pass


class Derived(Thing):
    pass


def test_types_of_slots():
    slot = Slot("data")
    assert slot.type is None and not slot.is_type(Thing) and not slot.is_type(type(None)) and repr(slot) == "<Slot 'data': empty>"
    slot.reset(3)
    assert (slot.type, slot.get(int), slot.get()) == (int, 3, 3)
    with pytest.raises(WrongTypeError, match="data: holds int, asked for str; ask for that type, or reset the slot"):
        slot.get(str)
    assert slot.get(int) == 3
    slot.reset()
    for kind in int, object, type(None):
        with pytest.raises(TypeError, match=f"is empty, asked for {kind.__name__}; set it first"):
            slot.get(kind)
    slot.reset(Derived())
    assert slot.is_type(Derived) and not slot.is_type(Thing) and not slot.is_type(object) and isinstance(slot.get(Thing), Derived)
    slot.reset(True)
    assert slot.is_type(bool) and not slot.is_type(int)
    for call in (slot.is_type, slot.get, slot.get_mutable):
        with pytest.raises(WrongTypeError, match="kind must be a type such as int or Blob, got 'int'"):
            call("int")
    for value in 0, 0.0, "", b"", [], False, np.zeros(0), np.zeros(2):      # a falsy value is not empty
        slot.reset(value)
        same, is_new = slot.get_mutable_new(type(value))
        assert slot.type is type(value) and slot.get() is value is same and not is_new


def test_get_mutable():
    class Needs:
        def __init__(self, what):
            self.what = what

    slot = Slot("x")
    first, is_new = slot.get_mutable_new(list)
    assert is_new and first == []
    first.append(1)
    assert slot.get_mutable_new(list) == ([1], False) and slot.get_mutable(list) is first
    assert slot.get_mutable(dict) == {} and slot.type is dict
    for kind in Blob, object:
        made, is_new = slot.get_mutable_new(kind)
        assert is_new and type(made) is kind and slot.get() is made
        slot.reset()
    slot.reset(5)
    with pytest.raises(WrongTypeError, match="x: cannot make a Needs without arguments"):
        slot.get_mutable(Needs)
    assert slot.get() == 5


def test_owners_of_objects(no_gc):
    slot, mine = Slot("x"), np.ones(3)
    assert not slot.is_external
    slot.share_external(mine)
    assert slot.is_external and slot.get() is mine and "external" in repr(slot)
    same, is_new = slot.get_mutable_new(np.ndarray)
    assert same is mine and not is_new and slot.is_external
    assert slot.get_mutable(list) == [] and not slot.is_external
    slot.share_external(mine)
    slot.reset(mine)
    assert not slot.is_external
    with pytest.raises(ConfigError, match="x: cannot share None"):
        slot.share_external(None)
    slot.share_external(Thing())
    seen = weakref.ref(slot.get(Thing))
    slot.reset()
    assert seen() is None
    slot.reset(Thing())
    seen = weakref.ref(slot.get(Thing))
    del slot
    assert seen() is None


def test_swap():
    one, two = Slot("one"), Slot("two")
    thing = Thing()
    one.reset(1)
    two.share_external(thing)
    one.swap(two)
    assert (one.name, one.get(), one.is_external) == ("one", thing, True)
    assert (two.name, two.get(), two.is_external) == ("two", 1, False)
    with pytest.raises(WrongTypeError, match="two: holds int, asked for str"):
        two.get(str)
    two.swap(two)
    assert two.get() == 1
    two.swap(Slot())
    assert two.type is None
    with pytest.raises(WrongTypeError, match="other must be a Slot, got 3"):
        two.swap(3)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies(copied):
    with pytest.raises(WrongTypeError, match=r"x: a slot cannot be copied or pickled; other.deserialize\(slot.serialize\(\)\)"):
        copied(Slot("x"))


def test_memory_of():
    base, endless, deep = np.zeros(100, np.float32), [], []
    both = memory_of([base[10:20], base[:5]])
    assert 400 in both.values() and len(both) == 2  # the list and one array
    endless.append(endless)
    for _ in range(10000):
        deep = [deep]
    assert (len(memory_of(endless)), len(memory_of(deep))) == (1, 10001)


@pytest.mark.parametrize("kind, accesses", [(Blob, ["mutable_cpu_data", "mutable_cpu_diff"]), (Tensor, ["mutable_data"])])
def test_memory_of_blobs_and_tensors(on_cpu, kind, accesses):
    made, other = kind((3, 4)), kind((3, 4))
    assert sum(memory_of(made).values()) == 0
    for number, access in enumerate(accesses, 1):
        getattr(made, access)(np.float32) if kind is Tensor else getattr(made, access)
        assert sum(memory_of(made).values()) == 48 * number
    other.share_data(made)
    assert sum({**memory_of(made), **memory_of(other)}.values()) == 48 * len(accesses) and memory_of(Tensor()) == {}
