"""Arguments of wrong types in public functions: each is an error of minicaffe's own that names the argument, and no text is long."""

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import memory, proto
from minicaffe.errors import (
    LONGEST_VALUE,
    ConfigError,
    Error,
    FileError,
    MissingNameError,
    WrongTypeError,
    check_type,
    names_of,
    shown,
)
from minicaffe.plan import Plan, Step
from minicaffe.workspace import Workspace

NET = """name: "net" force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "data" top: "loss" }
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 9')


@pytest.fixture
def net(files):
    return caffe.Net("net.prototxt", caffe.TRAIN)


@pytest.mark.parametrize("wrong", [5, None, b"x", [], object(), np.zeros(2)], ids=lambda value: type(value).__name__)
def test_names_that_are_no_strings(net, wrong):
    for call in (lambda: net.blob_by_name(wrong), lambda: net.layer_index(wrong), lambda: net.forward(blobs=[wrong]),
                 lambda: net.backward(diffs=[wrong]), lambda: caffe.Net("net.prototxt", caffe.TEST, keep=[wrong]),
                 lambda: caffe.Net("net.prototxt", caffe.TEST, stages=[wrong]), lambda: Workspace().child(wrong),
                 lambda: Workspace().create_slot(wrong), lambda: Workspace().rename(wrong, "x"), lambda: Workspace().net(wrong)):
        with pytest.raises(WrongTypeError):
            call()
    if wrong is not None:
        for call in (lambda: net.forward(end=wrong), lambda: net.forward(start=wrong), lambda: net.backward(start=wrong),
                     lambda: net.backward(end=wrong)):
            with pytest.raises(WrongTypeError, match="name must be the name of a layer, got"):
                call()
    assert not Workspace().has(wrong)


@pytest.mark.parametrize("wrong", ["ip", 5, b"ip"])
def test_lists_of_names(net, wrong):
    for call in (lambda: net.forward(blobs=wrong), lambda: net.backward(diffs=wrong),
                 lambda: caffe.Net("net.prototxt", caffe.TEST, keep=wrong), lambda: caffe.Net("net.prototxt", caffe.TEST, stages=wrong)):
        with pytest.raises(WrongTypeError, match="must be a list of names, got"):
            call()
    assert list(net.forward(blobs=("ip",))) == ["loss", "ip"]


@pytest.mark.parametrize("wrong", [None, 5, [], object(), 1.5], ids=lambda value: type(value).__name__)
def test_paths_that_are_none(net, files, wrong):
    for call in (lambda: caffe.Net(wrong, caffe.TEST), lambda: caffe.SGDSolver(wrong), lambda: caffe.get_solver(wrong),
                 lambda: net.copy_from(wrong), lambda: net.load_hdf5(wrong), lambda: net.save(wrong), lambda: net.save_hdf5(wrong),
                 lambda: Workspace().save(wrong), lambda: Workspace().load(wrong), lambda: proto.read_net(wrong)):
        with pytest.raises(WrongTypeError):
            call()
    if wrong is not None:
        with pytest.raises(WrongTypeError, match="a path is a str or an os.PathLike, got"):
            caffe.Net("net.prototxt", caffe.TEST, weights=wrong)


def test_other_arguments(net, files):
    solver = caffe.SGDSolver("solver.prototxt")
    for call in (lambda: net.share_with(None), lambda: caffe.Net("net.prototxt", caffe.TEST, level="x"), lambda: solver.step(None),
                 lambda: solver.step("3"), lambda: solver.test(None), lambda: solver.share_weights(None), lambda: proto.write_text(None),
                 lambda: proto.parse_text(None, object), lambda: proto.upgrade_net(None), lambda: proto.upgrade_solver(None),
                 lambda: Plan(None), lambda: Step("a", None), lambda: memory.make_allocator(None, None),
                 lambda: Workspace().create_net(5, caffe.TEST), lambda: Workspace().save("x", 5)):
        with pytest.raises(WrongTypeError):
            call()
    with pytest.raises(ConfigError, match="i: must be from 0 to -1, the solver has 0 test nets, got 0"):
        solver.test(0)
    for call in (lambda: net.add_hook(9, print), lambda: net.remove_hook(-1, print), lambda: net.backward_layer(-1),
                 lambda: net.backward_layer(10**6)):     # these numbers led outside of a list in memory
        with pytest.raises(ConfigError, match="must be from 0 to"):
            call()
    with pytest.raises((MissingNameError, WrongTypeError)):
        caffe.NetSpec()[None]


@pytest.mark.parametrize("wrong", [-1, 1 << 64, None, "5", 1.5, [], True], ids=lambda value: type(value).__name__)
def test_numbers_of_bytes(wrong):
    system = memory.SystemAllocator()
    for call in (lambda: system.alloc(wrong), lambda: memory.CachingAllocator(system).alloc(wrong),
                 lambda: memory.BuddyAllocator(system).malloc(wrong, 0), lambda: system.malloc(wrong, 0),
                 lambda: memory.Buffer(system, wrong), lambda: memory.SyncedMemory(wrong), lambda: memory.LimitAllocator(system, wrong),
                 lambda: memory.FailAllocator(system, wrong), lambda: memory.BuddyAllocator(system, wrong),
                 lambda: memory.BuddyAllocator(system, 256, wrong)):
        with pytest.raises(WrongTypeError, match="must be an int from 0 to below 2.64, got"):
            call()
    if wrong is not True:
        with pytest.raises(WrongTypeError, match="memory.alloc needs a number of bytes"):
            memory.alloc(memory.CPUPlace(), wrong)


def test_long_values_are_cut(net, files):
    text = NET * 300
    for call, most in ((lambda: caffe.Net(text, caffe.TEST), 400), (lambda: net.blob_by_name("x" * 10**6), 3000),
                       (lambda: net.copy_from("y" * 100_000), 3000), (lambda: net.load_hdf5("y" * 100_000), 3000),
                       (lambda: caffe.Net("net.prototxt", text), 3000), (lambda: caffe.Net("net.prototxt", caffe.TEST, weights=text), 3000),
                       (lambda: Workspace().slot(b"x" * 10**6), 400), (lambda: net.forward(end=[0] * 10**6), 400)):
        with pytest.raises(Error) as caught:
            call()
        assert len(str(caught.value)) < most, str(caught.value)[:300]
    with pytest.raises(FileError, match=r"is the text of a prototxt and not a path \(\d+ characters\); .* Workspace\(\).create_net"):
        caffe.Net(NET, caffe.TEST)
    assert len(Workspace().create_net(NET, caffe.TEST).layers) > 2


def test_what_a_message_shows_of_a_value():
    class Bad:
        def __repr__(self):
            raise ValueError

    assert shown("a") == "'a'" and shown(5) == "5" and shown(None) == "None" and shown(b"x") == "b'x'" and shown(Bad()) == "a Bad"
    assert shown("x" * 10**6) == f"'{'x' * LONGEST_VALUE}'... (1000000 characters)"
    assert shown(bytes(10**6)).endswith("... (1000000 bytes of bytes)") and shown(memoryview(b"abc")) == "b'abc'"
    for value in (list(range(10**6)), {i: i for i in range(10**5)}, 10**5000, np.zeros(10**6), [[["x" * 10**6]]], (None,) * 10**6):
        assert len(shown(value)) < 2 * LONGEST_VALUE
    assert check_type(3, int, "n", "a number") == 3 and names_of(None, "x") == [] and names_of(("a",), "x") == ["a"]
    with pytest.raises(WrongTypeError, match=r"n must be a number, got True \(bool\)"):
        check_type(True, int, "n", "a number")
