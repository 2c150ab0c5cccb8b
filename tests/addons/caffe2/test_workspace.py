"""Workspaces: names, sizes, and random walks over three generations with a model beside them."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minicaffe.addons.caffe2.workspace import Workspace
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, MissingNameError, WrongTypeError


def test_names_of_slots():
    root = Workspace(name="solver")
    train, test = root.child("train"), root.child("test")
    weights = root.set("conv1 weights", [1, 2])
    assert train.slot("conv1 weights") is weights is test.slot("conv1 weights")
    train.set("data", 1)
    with pytest.raises(MissingNameError, match="belongs to a parent; remove it there"):
        train.remove("conv1 weights")
    assert train.names() == ["data", "conv1 weights"] and train.local_names() == ["data"]
    root = Workspace()
    root.set("conv1", 0)
    leaf = root.child("a").child("b")
    leaf.set("conv2", 0)
    for call in leaf.slot, leaf.remove, lambda name: leaf.rename(name, "x"):
        with pytest.raises(KeyError, match=r"workspace 'b': no blob 'conv3'; did you mean 'conv2' or 'conv1'\?") as caught:
            call("conv3")
        assert caught.type is MissingNameError
    with pytest.raises(WrongTypeError):
        leaf.create_slot("empty") and leaf.blob("empty")


def test_names_are_texts():
    workspace = Workspace()
    workspace.set("a", 1)
    child = workspace.child("c")
    for call in (lambda: workspace.set(3, 1), lambda: workspace.create_slot(None), lambda: workspace.rename("a", 3), lambda: workspace.rename([], "b"),
                 lambda: workspace.slot(3), lambda: workspace.remove([]), lambda: workspace.net(None), lambda: workspace.run_net(3),
                 lambda: workspace.save("file", [3]), lambda: workspace.load("file", [[]]), lambda: child.forward(3, "a"), lambda: child.forward("b", 3)):
        with pytest.raises(WrongTypeError, match="workspace.*: a name is a str, got|each of names must be a str, got"):
            call()
    assert workspace.local_names() == child.names() == ["a"]
    assert not any(child.has(name) for name in (3, None, [], b"a"))


def test_forwarded_name_is_the_parents():
    root = Workspace()
    there, leaf = root.set("shared", 1), root.child("leaf")
    leaf.forward("mine", "shared")
    assert leaf.slot("mine") is leaf.create_slot("mine") is there
    root.remove("shared")
    with pytest.raises(MissingNameError, match="no blob 'mine' .forwarded to 'shared', gone there"):
        leaf.slot("mine")
    leaf.remove("mine")
    leaf.set("mine", 3)
    for call, words in ((lambda: leaf.forward("mine", "mine"), "an own slot has that name"), (lambda: root.forward("a", "b"), "there is no parent")):
        with pytest.raises(ConfigError, match=words):
            call()


def test_renamed_slots():
    root = Workspace(name="root")
    slot, leaf = root.set("old", 0), root.child("leaf")
    assert root.rename("old", "new") is slot is root.slot("new") and slot.name == "new" and root.names() == ["new"]
    with pytest.raises(WrongTypeError, match="new: holds int, asked for str"):
        root.blob("new", str)
    root.set("above", 1)
    leaf.set("mine", 2)
    leaf.set("other", 3)
    leaf.forward("alias", "above")

    def check_refused(old, new, error, words):
        with pytest.raises(error, match=words):
            leaf.rename(old, new)

    for taken in ("mine", "other", "above", "alias"):
        check_refused("mine", taken, ConfigError, f"workspace 'leaf': cannot rename blob 'mine', there is a '{taken}' already")
    root.rename("above", "elsewhere")  # a forwarding whose aim is gone keeps its name
    check_refused("mine", "alias", ConfigError, "there is a 'alias' already")
    check_refused("alias", "x", MissingNameError, "'alias' is forwarded to 'above'; remove it, forward the new name")
    check_refused("elsewhere", "x", MissingNameError, "blob 'elsewhere' belongs to a parent; rename it there")
    check_refused("mime", "x", MissingNameError, "no blob 'mime'; did you mean 'mine'")
    assert leaf.blob("mine") == 2 and leaf.local_names() == ["mine", "other"]


def test_blob_sizes(device, capsys):
    workspace, each = Workspace(), 80 if device == "cpu" else 160
    blob = workspace.set("blob", Blob((5, 4))).get()
    blob.data[...] = 1
    blob.scale_data(2)  # where the process computes: the device side counts
    workspace.set("same", Blob((5, 4))).get().share_data(blob)
    workspace.set("array", np.zeros((10, 10)))
    workspace.set("untouched", Blob((1000,)))
    workspace.create_slot("empty")
    workspace.create_slot("theirs").share_external(np.zeros(1000))
    workspace.child("c").set("not here", np.zeros(1000))
    assert workspace.blob_sizes() == {"array": 800, "blob": each, "same": each, "untouched": 0, "empty": 0, "theirs": 0}
    assert list(workspace.blob_sizes())[:1] == ["array"]
    workspace.print_blob_sizes()
    printed, file = capsys.readouterr().out, io.StringIO()
    assert [line.split(None, 2) for line in printed.splitlines()] == [
        ["name", "bytes", "type"], ["array", "800", "ndarray"], ["blob", str(each), "Blob"], ["same", str(each), "Blob"],
        ["untouched", "0", "Blob"], ["empty", "0", "empty"], ["theirs", "0", "ndarray, external"], ["total", str(800 + each)]]
    workspace.print_blob_sizes(file)
    assert file.getvalue() == printed and capsys.readouterr().out == ""
    Workspace().print_blob_sizes()
    assert capsys.readouterr().out.split() == ["name", "bytes", "type", "total", "0"]


def test_a_file_of_some_slots(tmp_path, caplog):
    """A name alone is a list of it, each slot is written once, and what is left out is said."""
    workspace, other, path = Workspace(name="w"), Workspace(), tmp_path / "slots"
    for name in "first", "second":
        workspace.set(name, [name])
    with caplog.at_level("INFO", "minicaffe.workspace"):
        assert workspace.save(path) == ["first", "second"] and not caplog.messages
        for name in "theirs", "also theirs":
            workspace.create_slot(name).share_external([name])
        assert workspace.save(path) == ["first", "second"]
    assert caplog.messages == [f"2 slots of workspace 'w' show objects of others and are left out of {path}; name them to save them"]
    assert workspace.save(path, ["theirs", "first", "theirs"]) == ["theirs", "first"] and workspace.save(path, "second") == ["second"]
    assert other.load(path, "second") == other.names() == other.blob("second") == ["second"]


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
        cell = self.cell(level, name) if name in self.forwarded[level] else self.own[level].setdefault(name, [None])
        with pytest.raises(MissingNameError) if cell is None else contextlib.nullcontext():
            self.spaces[level].set(name, value)
        if cell is not None:
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

    @rule(level=LEVELS, old=NAMES, new=NAMES)
    def rename(self, level, old, new):
        if old not in self.own[level]:
            with pytest.raises(MissingNameError):
                self.spaces[level].rename(old, new)
        elif new in self.forwarded[level] or self.cell(level, new) is not None:
            with pytest.raises(ConfigError):
                self.spaces[level].rename(old, new)
        else:
            assert self.spaces[level].rename(old, new).name == new
            self.own[level][new] = self.own[level].pop(old)

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
TestWorkspaceMachine.settings = settings(stateful_step_count=30)
