"""Slots and workspaces, and random walks over three generations with a model beside them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minicaffe.errors import ConfigError, MissingNameError, WrongTypeError
from minicaffe.workspace import Slot, Workspace


def test_slot_knows_its_type():
    slot = Slot("data")
    assert slot.type is None
    slot.reset(3)
    assert (slot.type, slot.get(int), slot.get()) == (int, 3, 3)
    with pytest.raises(WrongTypeError, match="data: holds int, asked for str"):
        slot.get(str)
    assert slot.get(int) == 3
    slot.reset()
    with pytest.raises(TypeError, match="is empty, asked for int"):
        slot.get(int)


def test_get_mutable_replaces_what_has_another_type():
    slot = Slot()
    first = slot.get_mutable(list)
    first.append(1)
    assert slot.get_mutable(list) is first
    assert slot.get_mutable(dict) == {}
    assert slot.type is dict


def test_lookup_goes_own_then_parents():
    root = Workspace(name="solver")
    train, test = root.child("train"), root.child("test")
    weights = root.set("conv1 weights", [1, 2])
    assert train.slot("conv1 weights") is weights is test.slot("conv1 weights")
    train.set("data", 1)
    assert not test.has("data") and not root.has("data")
    train.set("conv1 weights", [3])  # an own slot hides the parent's
    assert (train.blob("conv1 weights"), test.blob("conv1 weights", list)) == ([3], [1, 2])
    train.remove("conv1 weights")
    assert train.slot("conv1 weights") is weights
    with pytest.raises(MissingNameError, match="belongs to a parent; remove it there"):
        train.remove("conv1 weights")
    assert train.names() == ["data", "conv1 weights"] and train.local_names() == ["data"]


def test_missing_name_names_the_near_ones_of_all_generations():
    root = Workspace()
    root.set("conv1", 0)
    leaf = root.child("a").child("b")
    leaf.set("conv2", 0)
    with pytest.raises(MissingNameError, match=r"workspace 'b': no blob 'conv3'; did you mean 'conv2' or 'conv1'\?"):
        leaf.slot("conv3")
    with pytest.raises(KeyError):
        leaf.remove("conv3")
    with pytest.raises(WrongTypeError):
        leaf.create_slot("empty") and leaf.blob("empty")


def test_forwarded_name_stands_for_the_parents():
    root = Workspace()
    there = root.set("shared", 1)
    leaf = root.child("leaf")
    leaf.forward("mine", "shared")
    assert leaf.slot("mine") is leaf.create_slot("mine") is there
    leaf.set("mine", 2)
    assert root.blob("shared") == 2 and leaf.local_names() == []
    leaf.forward("mine", "shared")
    root.remove("shared")
    assert not leaf.has("mine") and leaf.names() == []
    with pytest.raises(MissingNameError, match="no blob 'mine' .forwarded to 'shared', gone there"):
        leaf.slot("mine")
    leaf.remove("mine")
    leaf.set("mine", 3)
    with pytest.raises(ConfigError, match="an own slot has that name"):
        leaf.forward("mine", "mine")
    with pytest.raises(MissingNameError):
        leaf.forward("other", "nowhere")
    with pytest.raises(ConfigError, match="there is no parent"):
        root.forward("a", "b")


def test_nets_belong_to_one_workspace():
    root = Workspace(name="solver")
    root.nets["train"] = net = object()
    assert root.net("train") is net
    with pytest.raises(MissingNameError, match="no net 'trian'; did you mean 'train'"):
        root.net("trian")
    with pytest.raises(MissingNameError):
        root.child("c").net("train")


NAMES = st.sampled_from("abcd")
LEVELS = st.integers(0, 2)


class WorkspaceMachine(RuleBasedStateMachine):
    """The model: for each of three generations, {name: [value]} and {own name: parent's name}."""

    def __init__(self):
        super().__init__()
        root = Workspace(name="0")
        child = root.child("1")
        self.spaces = [root, child, child.child("2")]
        self.own = [{}, {}, {}]
        self.forwarded = [{}, {}, {}]

    def cell(self, level, name):
        while level >= 0:
            if name in self.own[level]:
                return self.own[level][name]
            name = self.forwarded[level].get(name, name)
            level -= 1
        return None

    @rule(level=LEVELS, name=NAMES, value=st.integers())
    def set(self, level, name, value):
        if name in self.forwarded[level]:
            cell = self.cell(level, name)
            if cell is None:
                with pytest.raises(MissingNameError):
                    self.spaces[level].set(name, value)
                return
        else:
            cell = self.own[level].setdefault(name, [None])
        self.spaces[level].set(name, value)
        cell[0] = value

    @rule(level=LEVELS, name=NAMES)
    def remove(self, level, name):
        if name in self.own[level] or name in self.forwarded[level]:
            self.spaces[level].remove(name)
            (self.forwarded if name in self.forwarded[level] else self.own)[level].pop(name)
        else:
            with pytest.raises(MissingNameError):
                self.spaces[level].remove(name)

    @rule(level=LEVELS, name=NAMES, there=NAMES)
    def forward(self, level, name, there):
        if level == 0 or name in self.own[level]:
            with pytest.raises(ConfigError):
                self.spaces[level].forward(name, there)
        elif self.cell(level - 1, there) is None:
            with pytest.raises(MissingNameError):
                self.spaces[level].forward(name, there)
        else:
            self.spaces[level].forward(name, there)
            self.forwarded[level][name] = there

    @invariant()
    def agrees(self):
        for level, space in enumerate(self.spaces):
            visible = {n: self.cell(level, n) for n in "abcd" if self.cell(level, n) is not None}
            assert sorted(space.names()) == sorted(visible)
            assert sorted(space.local_names()) == sorted(self.own[level])
            for name in "abcd":
                assert space.has(name) == (name in visible)
                if name in visible:
                    assert space.blob(name, int) == visible[name][0]
                else:
                    with pytest.raises(MissingNameError):
                        space.slot(name)


TestWorkspaceMachine = WorkspaceMachine.TestCase
TestWorkspaceMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
