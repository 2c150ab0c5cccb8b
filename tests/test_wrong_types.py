"""Arguments of wrong types in public functions: each is an error of minicaffe's own that names the argument, and no text is long."""

import array
import collections

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import errors, memory
from minicaffe.addons.caffe2.plan import Plan, Step
from minicaffe.addons.caffe2.workspace import Workspace
from minicaffe.blob import Blob
from minicaffe.common import Generator
from minicaffe.errors import LONGEST_VALUE, ConfigError, Error, FileError, WrongTypeError, shown
from minicaffe.filler import fill
from minicaffe.layer import Layer, layer_class
from minicaffe.memory.zeros import mark_zero
from minicaffe.proto import binary, caffe_pb2, text, upgrade

NET = """name: "net" force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "data" top: "loss" }
"""


def check_errors(*calls, kind=WrongTypeError, match=None):
    for call in calls:
        with pytest.raises(kind, match=match):
            call()


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
    check_errors(lambda: net.blob_by_name(wrong), lambda: net.layer_index(wrong), lambda: net.forward(blobs=[wrong]),
                 lambda: net.backward(diffs=[wrong]), lambda: caffe.Net("net.prototxt", caffe.TEST, keep=[wrong]),
                 lambda: caffe.Net("net.prototxt", caffe.TEST, stages=[wrong]), lambda: Workspace().child(wrong),
                 lambda: Workspace().create_slot(wrong), lambda: Workspace().rename(wrong, "x"), lambda: Workspace().net(wrong))
    if wrong is not None:
        check_errors(lambda: net.forward(end=wrong), lambda: net.forward(start=wrong), lambda: net.backward(start=wrong),
                     lambda: net.backward(end=wrong), match="name must be the name of a layer, got")
    assert not Workspace().has(wrong)


@pytest.mark.parametrize("wrong", ["ip", 5, b"ip"])
def test_lists_of_names(net, wrong):
    check_errors(lambda: net.forward(blobs=wrong), lambda: net.backward(diffs=wrong),
                 lambda: caffe.Net("net.prototxt", caffe.TEST, keep=wrong),
                 lambda: caffe.Net("net.prototxt", caffe.TEST, stages=wrong), match="must be a list of names, got")
    assert list(net.forward(blobs=("ip",))) == ["loss", "ip"]


@pytest.mark.parametrize("wrong", [None, 5, [], object(), 1.5], ids=lambda value: type(value).__name__)
def test_paths_that_are_none(net, files, wrong):
    check_errors(lambda: caffe.Net(wrong, caffe.TEST), lambda: caffe.SGDSolver(wrong), lambda: caffe.get_solver(wrong),
                 lambda: net.copy_from(wrong), lambda: net.load_hdf5(wrong), lambda: net.save(wrong), lambda: net.save_hdf5(wrong),
                 lambda: Workspace().save(wrong), lambda: Workspace().load(wrong), lambda: binary.read_net(wrong))
    if wrong is not None:
        with pytest.raises(WrongTypeError, match="a path is a str or an os.PathLike, got"):
            caffe.Net("net.prototxt", caffe.TEST, weights=wrong)


def test_other_arguments(net, files):
    solver = caffe.SGDSolver("solver.prototxt")
    check_errors(lambda: net.share_with(None), lambda: caffe.Net("net.prototxt", caffe.TEST, level="x"), lambda: solver.step(None),
                 lambda: solver.step("3"), lambda: solver.test(None), lambda: solver.share_weights(None), lambda: text.write_text(None),
                 lambda: text.parse_text(None, object), lambda: upgrade.upgrade_net(None), lambda: upgrade.upgrade_solver(None),
                 lambda: Plan(None), lambda: Step("a", None), lambda: memory.make_allocator(None, None),
                 lambda: Workspace().create_net(5, caffe.TEST), lambda: Workspace().save("x", 5))
    with pytest.raises(ConfigError, match="i: must be from 0 to -1, the solver has 0 test nets, got 0"):
        solver.test(0)
    check_errors(lambda: caffe.set_precision([]), lambda: memory.allocator_of([]), lambda: caffe.register_layer(None, Layer),
                 lambda: layer_class(None), lambda: memory.SyncedMemory(8, None), lambda: Blob((2,), 0, None))
    assert memory.used(memory.CPUPlace()) >= 0     # its provider is still there
    check_errors(lambda: net.add_hook(9, print), lambda: net.remove_hook(-1, print), lambda: net.backward_layer(-1),
                 lambda: net.backward_layer(10**6), kind=ConfigError, match="must be from 0 to")     # these numbers led outside of a list in memory
    with pytest.raises((errors.MissingNameError, WrongTypeError)):
        caffe.NetSpec()[None]


@pytest.mark.parametrize("wrong", [-1, 1 << 64, None, "5", 1.5, [], True], ids=lambda value: type(value).__name__)
def test_numbers_of_bytes(wrong):
    system = memory.SystemAllocator()
    check_errors(lambda: system.alloc(wrong), lambda: memory.CachingAllocator(system).alloc(wrong),
                 lambda: memory.BuddyAllocator(system).malloc(wrong, 0), lambda: system.malloc(wrong, 0),
                 lambda: memory.Buffer(system, wrong), lambda: memory.SyncedMemory(wrong), lambda: memory.LimitAllocator(system, wrong),
                 lambda: memory.FailAllocator(system, wrong), lambda: memory.BuddyAllocator(system, wrong),
                 lambda: memory.BuddyAllocator(system, 256, wrong), match="must be an int from 0 to below 2.64, got")
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


def test_shown_values():
    class Bad:
        def __repr__(self):
            raise ValueError

    assert shown("a") == "'a'" and shown(5) == "5" and shown(None) == "None" and shown(b"x") == "b'x'" and shown(Bad()) == "a Bad"
    assert shown("x" * 10**6) == f"'{'x' * LONGEST_VALUE}'... (1000000 characters)"
    assert shown(bytes(10**6)).endswith("... (1000000 bytes of bytes)") and shown(memoryview(b"abc")) == "b'abc'"
    for value in (list(range(10**6)), {i: i for i in range(10**5)}, 10**5000, np.zeros(10**6), [[["x" * 10**6]]], (None,) * 10**6):
        assert len(shown(value)) < 2 * LONGEST_VALUE
    for value in (memoryview(np.array(3.0)), memoryview(np.zeros((9, 9))), type("Text", (str,), {"__getitem__": None})("a"),
                  collections.deque(range(10**6)), array.array("i", range(10**6)), np.zeros((9, 9)), caffe_pb2.LayerParameter(name="a\n"),
                  type("Lines", (), {"__repr__": lambda self: "a\n  b\x1b[31m\x9b\u202e"})()):
        assert len(shown(value)) < 6 * LONGEST_VALUE and shown(value).isprintable()
    assert errors.check_type(3, int, "n", "a number") == 3
    assert errors.names_of(None, "x") == [] and errors.names_of(("a",), "x") == ["a"]
    with pytest.raises(WrongTypeError, match=r"n must be a number, got True \(bool\)"):
        errors.check_type(True, int, "n", "a number")


@pytest.mark.parametrize("wrong", [None, 5, "x", [], object(), np.zeros(2)], ids=lambda value: type(value).__name__)
def test_no_blobs_and_no_messages(net, wrong):
    blob, synced, layer = Blob((2, 3)), memory.SyncedMemory(8), net.layer_dict["ip"]
    check_errors(lambda: blob.share_data(wrong), lambda: blob.share_diff(wrong), lambda: blob.copy_from(wrong),
                 lambda: blob.reshape_like(wrong), lambda: blob.take_pushed(wrong), lambda: blob.from_proto(wrong),
                 lambda: blob.to_proto(wrong), lambda: Layer(wrong),
                 lambda: layer.add_param((1,), wrong, "f"), lambda: layer.set_up([wrong], [blob]), lambda: layer.set_up(5, []),
                 lambda: layer.forward_cpu([wrong], [blob]), lambda: layer.backward_cpu([blob], [True], [wrong]),
                 lambda: fill(wrong, caffe.proto.caffe_pb2.FillerParameter(), Generator(1)), lambda: fill(blob, wrong, Generator(1)),
                 lambda: fill(blob, caffe.proto.caffe_pb2.FillerParameter(), wrong), lambda: synced.exchange_private(wrong),
                 lambda: synced.copy_on_device(wrong, 4), lambda: synced.private_data(wrong), lambda: caffe.io.blobproto_to_array(wrong),
                 lambda: caffe.io.datum_to_array(wrong))
    assert blob.shape == (2, 3)


def test_changed_lists_of_blobs(net):
    layer = net.layer_dict["ip"]
    check_errors(lambda: layer.forward_cpu([], []), lambda: layer.backward_cpu([], [], []), lambda: layer.flops([], []),
                 lambda: layer.backward_flops([], [], []), lambda: layer.forward_cpu(None, None), match="was set up with 1 bottoms and 1 tops")     # these ended the process
    with pytest.raises(WrongTypeError, match="propagate_down must be a list"):
        layer.backward_cpu([Blob((1, 2))], [], [Blob((1, 2))])
    layer = net.layer_dict["ip"]
    kept = list(layer.blobs)
    for change in (lambda: layer.blobs.__setitem__(0, np.zeros((2, 2))), layer.blobs.clear):
        layer.blobs[:] = kept
        change()
        for call in (net.forward, net.backward, net.reshape, lambda: net.backward_layer(1)):
            with pytest.raises(WrongTypeError, match=r"layer 'ip' \(InnerProduct\): blobs: .*net.params\['ip'\]\[i\].data\[...\] = array"):
                call()
    layer.blobs[:] = kept
    net.forward()


@pytest.mark.parametrize("wrong", [None, 1.5, "5", [], True, object(), np.zeros(2), 1 << 80], ids=lambda one: type(one).__name__)
def test_what_is_no_integer(net, wrong):
    """Or is too large."""
    blob, system, large = Blob((2, 3)), memory.SystemAllocator(), type(wrong) is int
    check_errors(lambda: blob.canonical_axis(wrong), lambda: blob.count_from(wrong), lambda: blob.legacy_shape(wrong),
                 lambda: net.forward_from_to(wrong, 1), lambda: net.backward_from_to(1, wrong), lambda: net.backward_layer(wrong),
                 lambda: net.add_hook(wrong, print), lambda: caffe.set_num_threads(wrong), lambda: caffe.set_random_seed(wrong),
                 lambda: Generator(1).reserve_counters(wrong), lambda: system.free(wrong), lambda: Blob((2,), wrong),
                 kind=Error if large else WrongTypeError)
    if not large:
        check_errors(lambda: caffe.set_solver_count(wrong), lambda: caffe.set_solver_rank(wrong),
                     lambda: system.record_stream(wrong, 0), lambda: mark_zero(memory.SyncedMemory(8), wrong),
                     lambda: memory.CachingAllocator(system).base_allocation(wrong))
    if wrong is not None and not large:
        with pytest.raises(WrongTypeError, match="level must be an int, got"):
            caffe.init_log(wrong)
    if wrong is None or type(wrong) is list:
        check_errors(lambda: blob.scale_data(wrong), lambda: blob.scale_diff(wrong), lambda: blob.fill_diff(wrong), match="must be a number")
    with pytest.raises(Error):
        blob.shape_equals(5)
    assert blob.canonical_axis(np.int64(-1)) == 1
    assert errors.int_of(np.int32(3), "n") == 3 and errors.float_of(np.float32(0.5), "x") == 0.5


@pytest.mark.parametrize("wrong", [None, 5, "x"], ids=lambda value: type(value).__name__)
def test_hooks_that_cannot_be_called(net, files, wrong):
    solver = caffe.SGDSolver("solver.prototxt")
    calls = [lambda: net.before_forward(wrong), lambda: net.after_backward(wrong), lambda: net.add_hook(0, wrong)]
    if wrong is not None:
        calls += [lambda: solver.add_callback(print, wrong), lambda: solver.add_callback(wrong, print),
                  lambda: net.forward_backward(on_loss=wrong)]
    for call in calls:
        with pytest.raises(WrongTypeError, match="must be callable, got"):
            call()
    with pytest.raises(ConfigError, match="was not added there"):
        net.remove_hook(0, print)
    net.forward()
    assert errors.check_callable(print, "x") is print and not solver.callbacks


@pytest.mark.parametrize("name, text", [("a\nb", r"a\nb"), ("\x1b[31ma\x9b", r"\x1b[31ma\x9b"), ("a\u202eb", r"a\u202eb"),
                                        ("\udcff", r"\udcff"), ("\u5199\u3000\xe9", "\u5199\u3000\xe9")])
def test_control_characters_in_names(name, text):
    error = FileError(f"no '{name[-1:]}'", file=name, layer=name, field=name)
    assert str(error).startswith(f"{text}: layer '{text}': {text}: ") and error.file == name
    assert not set(str(error)) & set("\x1b\x9b\u202e\udcff")
    with pytest.raises(FileError) as caught:
        caffe.Net(f"{name}.prototxt", caffe.TEST)
    assert f"{text}.prototxt: no such file" in str(caught.value)
