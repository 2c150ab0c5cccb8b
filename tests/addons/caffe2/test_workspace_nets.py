"""Nets of a workspace, and plans that run them."""

import copy
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from helpers import layer_text, net_solver

import minicaffe as caffe
from minicaffe.addons.caffe2.plan import Plan, Step
from minicaffe.addons.caffe2.workspace import Workspace
from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError, DataError, FileError, MissingNameError, ShapeError, WrongTypeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

TEXT = 'name: "small" ' + "".join(itertools.starmap(layer_text, [
    ("Input", "data", "", None, "input_param { shape { dim: 2 dim: 3 } }"),
    ("InnerProduct", "ip", "data", None, 'inner_product_param { num_output: %d weight_filler { type: "xavier" } }'),
    ("EuclideanLoss", "loss", "ip ip", None, "include { phase: TRAIN }"),
    ("Power", "staged", "ip", None, 'include { stage: "extra" min_level: 1 }')]))


def text(num_output=4):
    return TEXT % num_output


def message(num_output=4, name="small"):
    param = parse_text(text(num_output), caffe_pb2.NetParameter)[0]
    param.name = name
    return param


def test_sources_and_names_of_nets(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(text())
    workspace = Workspace(name="w")
    for i, source in enumerate((text(), path, str(path), message())):
        net = workspace.create_net(source, caffe.TEST, name=f"net{i}")
        assert isinstance(net, caffe.Net) and workspace.net(f"net{i}") is net and net.name == f"net{i}"
    assert list(workspace.nets) == ["net0", "net1", "net2", "net3"]
    assert workspace.local_names() == ["ip[0]", "ip[1]"]  # they share
    assert workspace.net("net1").file == str(path)


def test_net_of_a_taken_name():
    workspace = Workspace(name="w")
    first = workspace.create_net(text(), caffe.TEST)
    for num_output in 4, 5:
        with pytest.raises(ConfigError, match=r"workspace 'w': there is a net 'small' already; .* overwrite=True.* or make the net in a Workspace\(\) of its own"):
            workspace.create_net(text(num_output), caffe.TEST)
    with pytest.raises(ShapeError, match=r"layer 'ip' \(InnerProduct\): blobs\[0\]: has shape \[5, 3\] .*; build the nets in a Workspace\(\) each"):
        workspace.create_net(text(5), caffe.TEST, name="second")
    assert workspace.net("small") is first
    second = workspace.create_net(text(), caffe.TRAIN, overwrite=True)
    assert workspace.nets == {"small": second} and second.params["ip"][0] is first.params["ip"][0]
    workspace = Workspace()
    workspace.set("ip[0]", 3)
    with pytest.raises(WrongTypeError, match=r"must be a Blob, got 3 \(int\)"):
        workspace.create_net(text(), caffe.TEST)


def test_state_and_options(tmp_path):
    workspace, param = Workspace(), message()
    train = workspace.create_net(param, caffe.TRAIN, name="train", level=1, stages=["extra"])
    test = workspace.create_net(param, caffe.TEST, name="test")
    assert (train.phase, train.layer_names) == (caffe.TRAIN, ["data", "ip", "ip_ip_0_split", "loss", "staged"])
    assert (test.phase, test.layer_names) == (caffe.TEST, ["data", "ip"])
    assert param == message()
    param.state.level, param.name = 1, "own level"
    param.state.stage.append("extra")
    for options, last in ({}, "staged"), ({"name": "other", "level": 0}, "ip"), ({"name": "no further", "stages": None}, "staged"):
        assert workspace.create_net(param, caffe.TEST, **options).layer_names[-1] == last
    with pytest.raises(WrongTypeError, match="stages must be a list of names, got 'extra'"):
        workspace.create_net(param, caffe.TEST, name="letters", stages="extra")
    test.save(tmp_path / "w.caffemodel")
    other = Workspace().create_net(param, caffe.TEST, weights=str(tmp_path / "w.caffemodel"), trusted=False)
    assert not other.trusted and np.array_equal(other.params["ip"][0].data, test.params["ip"][0].data)


@pytest.mark.parametrize("source, phase, error, message", [
    (3, caffe.TEST, WrongTypeError, r"made from a NetParameter, a prototxt or a path to one, got 3 \(int\)"),
    ("nowhere.prototxt", caffe.TEST, FileError, "no such file"),
    ("layer { type: }", caffe.TEST, ConfigError, "<prototxt>:1:"),
    ("layer { type: 'Silence' bottom: 'x' }", 2, ConfigError, "phase: must be TRAIN"),
    ("layer { type: 'Input' top: 'x' }", caffe.TEST, ConfigError, "<prototxt>: name: workspace 'w': a net .* needs a name")])
def test_what_is_no_net(source, phase, error, message):
    workspace = Workspace(name="w")
    with pytest.raises(error, match=message):
        workspace.create_net(source, phase)
    with pytest.raises(WrongTypeError, match="a name is a str, got 3"):
        workspace.create_net(text(), caffe.TEST, name=3)
    assert workspace.nets == {}


def test_net_that_cannot_be_made(tmp_path):
    workspace, broken = Workspace(), {"weights": str(tmp_path / "wrong.caffemodel")}
    (tmp_path / "wrong.caffemodel").write_bytes(b"nothing")

    def check_refused(error, words, source, net=None, names=(), **options):
        with pytest.raises(error, match=words):
            workspace.create_net(source, caffe.TEST, overwrite=net is not None, **options)
        assert workspace.nets == ({"small": net} if net else {}) and workspace.names() == list(names)

    check_refused(ConfigError, "unknown bottom blob 'missing'", text().replace('bottom: "ip" top: "staged"', 'bottom: "missing" top: "staged"'),
                  level=1, stages=["extra"])
    check_refused(DataError, "wrong.caffemodel", text(5), **broken)     # its slots are new, and the net has them before it loads the weights
    there = workspace.create_net(text(5), caffe.TEST), ["ip[0]", "ip[1]"]
    check_refused(ShapeError, r"in the net that it shares its parameters with.*remove 'ip\[0\]' from the workspace", text(), *there)
    check_refused(ShapeError, "and float64, and .* and float32 in the net", text(5), *there, dtype=Dtype.DOUBLE)
    check_refused(DataError, "wrong.caffemodel", text(5), *there, **broken)
    assert workspace.run_net("small") == 0


def test_run_and_parameters():
    workspace = Workspace()
    net = workspace.create_net(text(), caffe.TRAIN)
    net.blobs["data"].data[...] = [[1, 2, 3], [4, 5, 6]]
    assert workspace.run_net("small") == 0  # a distance to itself
    assert np.allclose(net.blobs["ip"].data, net.blobs["data"].data @ workspace.blob("ip[0]").data.T, atol=1e-5)
    net.blobs["loss"].diff[...] = 1
    workspace.run_net("small", backward=True)
    with pytest.raises(MissingNameError, match="no net 'smal'; did you mean 'small'"):
        workspace.run_net("smal")
    with pytest.raises(MissingNameError):
        workspace.child("c").run_net("small")


def test_parameters_of_a_net():
    workspace = Workspace(name="w")
    net = workspace.create_net(text(), caffe.TEST)
    net.parameters.set("x", 1)
    assert workspace.blob("x") == net.workspace.blob("x") == 1 and net.parameters.nets == workspace.nets
    for call in (lambda: net.parameters.create_net(text(), caffe.TEST), lambda: net.parameters.delete_net("small")):
        with pytest.raises(ConfigError, match="workspace 'w' is what a net refers to and owns no nets"):
            call()
    other = Net(message(), workspace=net.parameters)
    assert workspace.net("small#1") is other and other.learnable_params[0] is net.learnable_params[0]


def test_lives_of_nets(no_gc):
    workspace = Workspace(name="w")
    seen = weakref.ref(workspace.create_net(text(), caffe.TEST))
    assert seen() is workspace.net("small")
    workspace.delete_net("small")
    assert seen() is None and workspace.nets == {} and workspace.local_names() == ["ip[0]", "ip[1]"]
    with pytest.raises(MissingNameError, match="workspace 'w': no net 'small'"):
        workspace.delete_net("small")
    net = weakref.ref(workspace.create_net(text(), caffe.TEST))
    blob = weakref.ref(workspace.slot("ip[0]"))
    of_child = weakref.ref(workspace.child("c").create_net(text(), caffe.TEST))
    assert net() is not None and of_child() is None
    del workspace
    assert net() is None and blob() is None
    workspace = Workspace()
    net, gone = workspace.create_net(text(), caffe.TEST), weakref.ref(workspace)
    del workspace
    assert gone() is None
    net.forward()
    assert net.parameters.has("ip[0]") and net.workspace.has("data")
    nets = [Net(message(name=name)) for name in ("", "", "a", "a")]
    assert [net.parameters.nets for net in nets] == [{net.name: net} for net in nets]
    seen = weakref.ref(nets[0])
    del nets
    assert seen() is None


def test_memory_is_given_back(no_gc, on_cpu):
    place, workspace = caffe.memory.CPUPlace(), Workspace()
    before = caffe.memory.used(place)
    workspace.create_net(text(), caffe.TEST).forward()
    taken = caffe.memory.used(place)
    workspace.delete_net("small")
    left = caffe.memory.used(place)
    del workspace
    assert before == caffe.memory.used(place) < left < taken


def test_nets_of_others(no_gc):
    workspace = Workspace()
    first, second = Net(message(), workspace=workspace), caffe.Net(message(), caffe.TEST, workspace=workspace)
    assert workspace.nets == {"small": first, "small#1": second}
    assert first.learnable_params[0] is second.learnable_params[0]
    workspace.run_net("small#1")
    with pytest.raises(ConfigError, match="there is a net 'small' already"):
        workspace.create_net(text(), caffe.TEST)
    del first
    assert workspace.nets == {"small#1": second}
    workspace.create_net(text(), caffe.TEST)
    workspace.delete_net("small#1")
    assert list(workspace.nets) == ["small"]
    second.forward()


def test_the_nets_of_a_solver(no_gc):
    solver = net_solver(text(), test_iter=[1], test_interval=10)
    assert solver.workspace.nets == {"small": solver.net, "small#1": solver.test_nets[0]}
    seen, workspace = [weakref.ref(net) for net in (solver.net, *solver.test_nets)], solver.workspace
    del solver
    assert [net() for net in seen] == [None, None] and workspace.nets == {}


def test_a_workspace_is_not_copied():
    for copied in copy.copy, copy.deepcopy:
        with pytest.raises(WrongTypeError, match=r"workspace 'w' cannot be copied or pickled; other.load\(path\)"):
            copied(Workspace(name="w"))


def test_nets_in_threads():
    workspace, errors, done = Workspace(), [], threading.Event()

    def look():
        while not done.is_set():
            try:
                assert set(workspace.nets) <= set(map(str, range(50))) | {"small"}
                assert {*workspace.blob_sizes(), *workspace.names()} <= {"ip[0]", "ip[1]"}
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for i in range(50):
        workspace.create_net(text(), caffe.TEST, name=str(i))
        Net(message(), workspace=workspace)
        workspace.delete_net(str(i))
    done.set()
    thread.join()
    assert errors == [] and workspace.nets == {}


def test_net_deleted_while_it_runs():
    workspace, losses = Workspace(), []
    net = workspace.create_net(text(), caffe.TEST)
    started, deleted = threading.Event(), threading.Event()
    net.before_forward(lambda i: i == 1 and (started.set(), deleted.wait(10)))
    seen = weakref.ref(net)
    del net
    thread = threading.Thread(target=lambda: losses.append(workspace.run_net("small")))
    thread.start()
    assert started.wait(10)
    workspace.delete_net("small")
    deleted.set()
    thread.join()
    assert losses == [0] and workspace.nets == {}
    gc.collect()  # the hook's lambda holds no net
    assert seen() is None


NET = """name: "%s" layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }
layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }"""
LOSS = """name: "%s" force_backward: true
layer { name: "in" type: "Input" top: "x" top: "t" input_param { shape { dim: %d } shape { dim: %d } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "x" bottom: "t" top: "loss" }"""


@pytest.fixture
def workspace():
    made = Workspace()
    for name in ("a", "b"):
        made.create_net(NET % name, caffe.TEST)
    return made


@pytest.fixture
def ran(workspace):
    """The names of the nets in the order in which they ran."""
    names = []
    for name, net in workspace.nets.items():
        net.before_forward(lambda i, name=name: names.append(name) if i == 0 else None)
    return names


def test_steps_and_substeps(workspace, ran):
    workspace.run_plan(Plan([Step("one", "a"), Step("two", ["b", "a"], num_iter=2), Step("none", "b", num_iter=0)]))
    assert "".join(ran) == "ababa"
    ran.clear()
    inner = Step("inner", "a", num_iter=np.int64(2))
    workspace.run_plan(Plan(Step("outer", [inner, Step("last", "b")], num_iter=2)))
    assert "".join(ran) == "aabaab"


def test_plan_with_functions_and_nets(workspace, ran):
    blobs, seen = workspace.net("a").blobs, []

    def double(space):
        blobs["x"].data[...] = blobs["y"].data

    blobs["x"].data[...] = 1
    workspace.run_plan(Plan(Step("doubling", ["a", double], num_iter=5)))
    assert blobs["x"].data == 32 and ran == ["a"] * 5
    workspace.run_plan(Plan(Step("s", seen.append, num_iter=2)))    # a function alone
    assert seen == [workspace] * 2


def test_backward():
    workspace = Workspace()
    net = workspace.create_net(LOSS % ("n", 1, 1), caffe.TRAIN)
    net.blobs["x"].data[...] = 3
    for backward, gradient in (False, 0), (True, 3):
        workspace.run_plan(Plan(Step("s", "n", backward=backward)))
        assert net.blobs["x"].diff == gradient


def one_blob():
    blob = Blob((1, 1))
    blob.data[...] = 1
    return blob


@pytest.mark.parametrize("stop", [True, 1, -0.5, np.float32(1), np.ones((1, 1)), np.array(True), one_blob()])
def test_a_slot_stops_a_step(workspace, ran, stop):
    go = np.zeros_like(stop) if isinstance(stop, np.ndarray) else Blob((1, 1)) if isinstance(stop, Blob) else type(stop)(0)
    workspace.set("stop", go)
    step = Step("until", ["a", lambda space: space.set("stop", stop if len(ran) == 3 else go), "b"], should_stop_blob="stop")
    workspace.run_plan(Plan(step))
    assert "".join(ran) == "aba"  # looked at after each


def test_net_blob_stops_a_step(workspace, ran):
    x = workspace.net("a").blobs["x"]

    def third(space):
        x.data[...] = len(ran) == 2

    workspace.run_plan(Plan(Step("until", [third, "a"], should_stop_blob="y")))
    assert ran == ["a"] * 3  # y was 0 twice
    workspace.set("y", 0)  # the net's own comes first
    workspace.run_plan(Plan(Step("until", ["a", "b"], should_stop_blob="y", num_iter=2)))
    assert "".join(ran) == "aaa" + "abab"  # of the nets the last, whose y is 0
    workspace.create_net(NET.replace('"y"', '"only"') % "c", caffe.TEST).blobs["x"].data[...] = 1
    workspace.set("only", 0)
    ran.clear()
    workspace.run_plan(Plan(Step("until", ["c", "a", "b"], should_stop_blob="only")))
    assert ran == []  # c's blob, not the slot that b sees too
    workspace.net("b").blobs["x"].data[...], x.data[...] = 1, 0
    workspace.run_plan(Plan(Step("outer", [Step("one", "a"), Step("two", "b"), Step("never", "a")], should_stop_blob="y")))
    assert "".join(ran) == "ab"


def test_plans_with_missing_nets(workspace, ran):
    plan = Plan([Step("one", "a"), Step("two", [Step("inner", "bb")])], name="p")
    with pytest.raises(MissingNameError, match="plan 'p': step 'two': workspace: no net 'bb'; did you mean 'b'"):
        workspace.run_plan(plan)
    assert ran == []
    plan = Plan(Step("outer", [Step("s", ["a", lambda space: space.delete_net("a")], num_iter=2)]))
    with pytest.raises(MissingNameError, match="plan: step 'outer': step 's': net 'a': workspace: no net 'a'"):
        workspace.run_plan(plan)
    assert ran == ["a"]


def test_net_that_deletes_itself(workspace):
    net = workspace.net("a")
    y = net.blobs["y"]
    net.blobs["x"].data[...] = 4
    net.before_forward(lambda i: "a" in workspace.nets and workspace.delete_net("a"))
    del net
    workspace.run_plan(Plan(Step("s", "a")))
    assert y.data == 8 and list(workspace.nets) == ["b"]


@pytest.mark.parametrize("value, error, message", [
    (np.zeros(2), WrongTypeError, r"must be one number, got ndarray of shape \[2\]"),
    (np.zeros(0), WrongTypeError, "must be one number"),
    ("yes", WrongTypeError, "must be one number, got str"),
    ({}, WrongTypeError, "must be one number, got dict"),
    ([[1], [1, 2]], WrongTypeError, "must be one number, got list"),
    (float("nan"), DataError, "must be a number, got nan"),
    (None, WrongTypeError, "is empty")])
def test_what_is_no_stop_blob(workspace, value, error, message):
    workspace.set("stop", value)
    with pytest.raises(error, match=f"plan: step 's': should_stop_blob 'stop': .*{message}|stop: plan: step 's': .*{message}"):
        workspace.run_plan(Plan(Step("s", "a", should_stop_blob="stop")))
    with pytest.raises(MissingNameError, match="plan: step 's': should_stop_blob 'nowhere': workspace: no blob 'nowhere'"):
        workspace.run_plan(Plan(Step("s", "a", should_stop_blob="nowhere")))


def test_errors_and_notes_of_steps(workspace):
    def divide(space):
        return 1 / 0

    workspace.net("a").blobs["x"].reshape(1, 2)
    workspace.create_net(LOSS % ("c", 2, 2), caffe.TEST).blobs["t"].reshape(3)
    with pytest.raises(caffe.errors.ShapeError, match="layer 'loss' .EuclideanLoss.: .*plan 'p': step 's': net 'c': "):
        workspace.run_plan(Plan(Step("s", ["a", "c"]), name="p"))
    with pytest.raises(ZeroDivisionError) as raised:
        workspace.run_plan(Plan(Step("s", ["a", divide])))
    assert raised.value.__notes__ == ["in function 'divide'", "in step 's'", "in plan"]


@pytest.mark.parametrize("make, error, message", [
    (lambda: Step("s", []), ConfigError, "step 's': needs nets"),
    (lambda: Step("s", "a", num_iter=-1), ConfigError, "num_iter: step 's': must be an integer from 0 on, got -1"),
    (lambda: Step("s", "a", num_iter=True), WrongTypeError, "step 's': num_iter must be an int, got True"),
    (lambda: Step("s", "a", num_iter=1.5), WrongTypeError, "got 1.5"),
    (lambda: Step("s", [3]), WrongTypeError, "step 's': nets are names of nets, functions of the workspace or steps, got 3"),
    (lambda: Step(["a"], "a"), WrongTypeError, "the name of a step must be a str"),
    (lambda: Step("s", "a", should_stop_blob=3), WrongTypeError, "step 's': should_stop_blob must be the name of a number, got 3"),
    (lambda: Step("s", 3), WrongTypeError, "step 's': nets are names of nets, .* got 3"),
    (lambda: Plan(["a"], name="p"), WrongTypeError, "plan 'p': steps are of the type Step, got 'a'"),
    (lambda: Plan(3), WrongTypeError, "plan: steps are of the type Step, got 3"),
    (lambda: Workspace().run_plan(Step("s", "a")), WrongTypeError, "plan must be a Plan, which Plan.steps. makes, got")])
def test_what_is_no_plan(make, error, message):
    with pytest.raises(error, match=message):
        make()
