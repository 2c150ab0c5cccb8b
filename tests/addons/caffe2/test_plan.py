"""Plans: what runs, how often, when it stops, and what their errors name."""

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.addons.caffe2.plan import Plan, Step
from minicaffe.addons.caffe2.workspace import Workspace
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, DataError, MissingNameError, WrongTypeError

NET = """name: "%s" layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }
layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }"""


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


def test_steps_run_in_order(workspace, ran):
    workspace.run_plan(Plan([Step("one", "a"), Step("two", ["b", "a"], num_iter=2), Step("none", "b", num_iter=0)]))
    assert "".join(ran) == "ababa"


def test_substeps(workspace, ran):
    inner = Step("inner", "a", num_iter=np.int64(2))
    workspace.run_plan(Plan(Step("outer", [inner, Step("last", "b")], num_iter=2)))
    assert "".join(ran) == "aabaab"


def test_plan_with_functions_and_nets(workspace, ran):
    def double(space):
        space.net("a").blobs["x"].data[...] = space.net("a").blobs["y"].data

    workspace.net("a").blobs["x"].data[...] = 1
    workspace.run_plan(Plan(Step("doubling", ["a", double], num_iter=5)))
    assert workspace.net("a").blobs["x"].data == 32 and ran == ["a"] * 5
    seen = []
    workspace.run_plan(Plan(Step("s", seen.append, num_iter=2)))    # a function alone
    assert seen == [workspace] * 2


def test_backward():
    workspace = Workspace()
    net = workspace.create_net("""name: "n" force_backward: true
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }
        layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 1 } } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "x" bottom: "t" top: "loss" }""", caffe.TRAIN)
    net.blobs["x"].data[...] = 3
    workspace.run_plan(Plan(Step("forward", "n")))
    assert net.blobs["x"].diff == 0
    workspace.run_plan(Plan(Step("both", "n", backward=True)))
    assert net.blobs["x"].diff == 3


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
    ran.clear()
    workspace.net("b").blobs["x"].data[...], x.data[...] = 1, 0
    workspace.run_plan(Plan(Step("outer", [Step("one", "a"), Step("two", "b"), Step("never", "a")], should_stop_blob="y")))
    assert "".join(ran) == "ab"


def test_net_blob_before_a_slot(workspace, ran):
    workspace.create_net(NET.replace('"y"', '"only"') % "c", caffe.TEST).blobs["x"].data[...] = 1
    workspace.set("only", 0)
    workspace.run_plan(Plan(Step("until", ["c", "a", "b"], should_stop_blob="only")))
    assert ran == []  # c's blob, not the slot that b sees too


def test_check_before_the_run(workspace, ran):
    plan = Plan([Step("one", "a"), Step("two", [Step("inner", "bb")])], name="p")
    with pytest.raises(MissingNameError, match="plan 'p': step 'two': workspace: no net 'bb'; did you mean 'b'"):
        workspace.run_plan(plan)
    assert ran == []


def test_net_deleted_during_a_plan(workspace, ran):
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
    (None, WrongTypeError, "is empty"),
])
def test_what_is_no_stop_blob(workspace, value, error, message):
    workspace.set("stop", value)
    with pytest.raises(error, match=f"plan: step 's': should_stop_blob 'stop': .*{message}|stop: plan: step 's': .*{message}"):
        workspace.run_plan(Plan(Step("s", "a", should_stop_blob="stop")))
    with pytest.raises(MissingNameError, match="plan: step 's': should_stop_blob 'nowhere': workspace: no blob 'nowhere'"):
        workspace.run_plan(Plan(Step("s", "a", should_stop_blob="nowhere")))


def test_errors_of_nets_name_the_step(workspace):
    workspace.net("a").blobs["x"].reshape(1, 2)
    workspace.create_net("""name: "c" layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }
        layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 } } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "x" bottom: "t" top: "loss" }""", caffe.TEST).blobs["t"].reshape(3)
    with pytest.raises(caffe.errors.ShapeError, match="layer 'loss' .EuclideanLoss.: .*plan 'p': step 's': net 'c': "):
        workspace.run_plan(Plan(Step("s", ["a", "c"]), name="p"))


def test_other_exceptions_pass_with_a_note(workspace):
    def divide(space):
        return 1 / 0

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
    (lambda: Workspace().run_plan(Step("s", "a")), WrongTypeError, "plan must be a Plan, which Plan.steps. makes, got"),
])
def test_what_is_no_plan(make, error, message):
    with pytest.raises(error, match=message):
        make()
