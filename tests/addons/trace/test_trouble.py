"""Trouble: which array it names as the first that is not finite, who computed it, and what it was computed from."""

import random

import pytest

from minicaffe.errors import FileError
from minicaffe.proto import caffe_pb2, parse_text
from minicaffe.solver import create_solver
from minicaffe.addons.trace import load
from minicaffe.addons.trace.trouble import KEPT_ITERATIONS, MAX_INPUTS, Trouble, first_not_finite

NET = """net_param {
layer { name: "in" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 8 dim: 6 } shape { dim: 8 dim: 4 }
  data_filler { type: "uniform" min: 1 max: 2 } data_filler { type: "constant" } } }
layer { name: "first" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 5 weight_filler { type: "uniform" min: 0.5 max: 1 } } }
%s
layer { name: "loss" type: "EuclideanLoss" bottom: "r" bottom: "y" top: "loss" }
} base_lr: 0.0001 lr_policy: "fixed" max_iter: 10 random_seed: 5"""
ROOT = """layer { name: "second" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 4 weight_filler { type: "constant" value: 1 } } }
layer { name: "root" type: "Power" bottom: "b" top: "r" power_param { power: 0.5 } }"""


def trouble_of(tmp_path, middle, spoil):
    """Return the trace of two good iterations and one after ``spoil(net)``."""
    solver = create_solver(parse_text(NET % middle, caffe_pb2.SolverParameter)[0])
    Trouble(solver, tmp_path / "t.json")
    solver.step(2)
    assert not (tmp_path / "t.json").exists()
    spoil(solver.net)
    solver.step(1)
    return load(tmp_path / "t.json")


def test_the_first_gradient_is_that_of_the_last_layer(tmp_path, device):
    """All gradients below a square root of 0 are NaN, while everything forward is finite; backward begins at the end."""
    def spoil(net):
        for blob in net.layers[2].blobs:
            blob.data[...] = 0

    trace = trouble_of(tmp_path, ROOT, spoil)
    found = trace.document["trouble"]
    assert (found["iteration"], found["layer"], found["diff"]) == (2, "root", "b")
    assert (found["wrong"], found["not_finite"], found["first"]) == (32, 1.0, [0, 0])
    assert found["before"]["layer"] == "second" and found["before"]["iteration"] == 1 and found["before"]["wrong"] == 0
    assert {sample["iteration"] for sample in trace.document["samples"]} == {0, 1, 2} <= {step["iteration"] for step in trace.steps}
    step = trace.steps[found["step"]]
    assert (step["kind"], step["layer"], step["iteration"], step["last"]) == ("backward", "root", 2, found["event"])
    assert [(one["name"], one["part"]) for one in found["inputs"]] == [("r", "diff"), ("b", "data")] and found["left_out"] == 0
    b = found["inputs"][1]
    assert (b["min"], b["max"], b["wrong"]) == (0, 0, 0) and b["before"]["max"] >= b["before"]["min"] > 10


def test_no_more_than_the_last_iterations_is_kept(tmp_path):
    """However long the training was before."""
    solver = create_solver(parse_text(NET % ROOT, caffe_pb2.SolverParameter)[0])
    trouble = Trouble(solver, tmp_path / "t.json")
    solver.step(6)
    for blob in solver.net.layers[2].blobs:
        blob.data[...] = 0
    assert len(trouble.watch.records) <= KEPT_ITERATIONS + 1 >= len(trouble.recorder.parts)
    solver.step(1)
    trace = load(tmp_path / "t.json")
    kept = set(range(6 - KEPT_ITERATIONS, 7))
    assert {sample["iteration"] for sample in trace.document["samples"]} == kept
    steps = {step["iteration"] for step in trace.steps}
    assert kept <= steps <= kept | {7}      # on a device the wait for the numbers of iteration 6 can come after its end
    assert trace.document["trouble"]["before"]["iteration"] == 5


def test_a_gradient_above_a_layer_in_place_is_of_the_layer_that_reads_it(tmp_path):
    """The sample of a blob is of the layer in place that wrote it last; its gradient comes from the next reader."""
    def spoil(net):
        for blob in net.layers[2].blobs:
            blob.data[...] = 0

    middle = ROOT.replace('layer { name: "root"', 'layer { name: "relu" type: "ReLU" bottom: "b" top: "b" } layer { name: "root"')
    found = trouble_of(tmp_path, middle, spoil).document["trouble"]
    assert (found["layer"], found["diff"], found["before"]["layer"]) == ("root", "b", "relu")
    assert [(one["name"], one["part"]) for one in found["inputs"]] == [("r", "diff"), ("b", "data")]


def test_inputs_of_a_layer_in_place_and_behind_a_split(tmp_path):
    """What a layer in place reads is what the layer before it gave; statistics, which have no gradient, are reported, too."""
    middle = """layer { name: "norm" type: "BatchNorm" bottom: "a" top: "a" batch_norm_param { use_global_stats: true } }
        layer { name: "side" type: "InnerProduct" bottom: "a" top: "r" inner_product_param { num_output: 4 } }
        layer { name: "other" type: "InnerProduct" bottom: "a" top: "unused" inner_product_param { num_output: 4 } }"""

    def begin(net):
        net.layers[2].blobs[1].data[...] = net.layers[2].blobs[2].data[...] = 1

    solver = create_solver(parse_text(NET % middle, caffe_pb2.SolverParameter)[0])
    begin(solver.net)
    trouble = Trouble(solver, tmp_path / "t.json")
    solver.step(1)
    solver.net.layers[2].blobs[1].data[3] = float("nan")
    solver.step(1)
    found = trouble.first
    assert (found["layer"], found["blob"], found["wrong"], found["first"]) == ("norm", "a", 8, [0, 3])
    names = [(one["name"], one["part"]) for one in found["inputs"]]
    assert names == [("a", "data"), ("norm[0]", "data"), ("norm[1]", "data"), ("norm[2]", "data")]
    a, _, variance, _ = found["inputs"]
    assert a["wrong"] == 0 and a["min"] > 1 and a["before"]["min"] > 1      # not what BatchNorm made of it
    assert (variance["wrong"], variance["first"], variance["before"]) == (1, [3], None)


@pytest.mark.parametrize("count", [2, 20])
def test_inputs_are_bounded(tmp_path, count):
    slices = "\n".join(f'layer {{ name: "p{i}" type: "Power" bottom: "a" top: "p{i}" }}' for i in range(count))
    bottoms = " ".join(f'bottom: "p{i}"' for i in range(count))
    middle = f"""{slices} layer {{ name: "all" type: "Concat" {bottoms} top: "c" }}
        layer {{ name: "last" type: "InnerProduct" bottom: "c" top: "r" inner_product_param {{ num_output: 4 }} }}"""
    solver = create_solver(parse_text(NET % middle, caffe_pb2.SolverParameter)[0])
    trouble = Trouble(solver, tmp_path / "t.json")
    all_index = next(i for i, node in enumerate(solver.net.nodes) if node.name == "all")

    def spoil(index):
        if index == all_index:
            solver.net.blobs["p0"].data[0, 0] = float("inf")

    solver.net.add_hook(0, spoil)
    solver.step(1)
    assert (trouble.first["layer"], trouble.first["blob"]) == ("all", "c")
    assert len(trouble.first["inputs"]) == min(count, MAX_INPUTS) and trouble.first["left_out"] == max(0, count - MAX_INPUTS)


def test_a_folder_is_refused_before_the_training(tmp_path):
    solver = create_solver(parse_text(NET % ROOT, caffe_pb2.SolverParameter)[0])
    with pytest.raises(FileError, match="is a folder"):
        Trouble(solver, tmp_path)
    assert solver.listeners == [] and solver.net.observer_reason() is None


def test_a_file_of_the_present_folder_and_folders_that_lack(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solver = create_solver(parse_text(NET % ROOT, caffe_pb2.SolverParameter)[0])
    with pytest.raises(FileError, match="^none/t.json: cannot be written: there is no such folder, or no permission"):
        Trouble(solver, "none/t.json")
    assert solver.listeners == [] and solver.net.observer_reason() is None
    trouble = Trouble(solver, "t.json")
    solver.step(1)
    for blob in solver.net.layers[2].blobs:
        blob.data[...] = 0
    solver.step(1)
    assert load("t.json").document["trouble"] == trouble.first


@pytest.mark.parametrize("name", ["t.json", "t.html"])
def test_a_training_continues_without_a_trace_that_cannot_be_written(tmp_path, caplog, name):
    """The reason is logged once; what was found is there, and nothing watches the training any longer."""
    solver = create_solver(parse_text(NET % ROOT, caffe_pb2.SolverParameter)[0])
    (tmp_path / "folder").mkdir()
    trouble = Trouble(solver, tmp_path / "folder" / name)
    solver.step(1)
    for blob in solver.net.layers[2].blobs:
        blob.data[...] = 0
    (tmp_path / "folder").rmdir()
    solver.step(2)
    said = [record.getMessage() for record in caplog.records if record.name == "minicaffe.addons.trace"]
    assert len(said) == 1 and str(tmp_path / "folder" / name) in said[0] and "is the first that is not finite" not in said[0]
    assert (trouble.first["layer"], trouble.first["diff"], solver.iter) == ("root", "b", 3)
    assert solver.listeners == [] and solver.net.observer_reason() is None and not (tmp_path / "folder").exists()


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_inputs_behind_a_split_are_those_of_the_blob_that_is_split(tmp_path, way):
    """A Split has no samples of its own; its tops hold what its bottom holds."""
    middle = """layer { name: "second" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 4 weight_filler { type: "constant" value: 1 } } }
        layer { name: "root" type: "Power" bottom: "b" top: "r" power_param { power: 0.5 scale: 1 } }
        layer { name: "side" type: "Power" bottom: "b" top: "unused" power_param { scale: 0 } }"""

    def spoil(net):
        second, root = (next(i for i, node in enumerate(net.nodes) if node.name == name) for name in ("second", "root"))
        for blob in net.layers[second].blobs:
            blob.data[...] = 0 if way == "backward" else -1     # the gradient of the root, or the root, is not finite
        assert net.nodes[root].bottoms[0].name == "b_second_0_split_0"

    found = trouble_of(tmp_path, middle, spoil).document["trouble"]
    name = "b_second_0_split_0"
    inputs = {(one["name"], one["part"]): one for one in found["inputs"]}
    if way == "forward":
        assert (found["layer"], found["blob"]) == ("root", "r") and list(inputs) == [(name, "data")]
    else:       # the Split adds up the gradients of its tops, of which there are no samples
        assert found["diff"] == "b" and found["before"]["layer"] == "second"
        assert [part for _, part in inputs] == ["data"], inputs
    value = inputs[(name if way == "forward" else "b"), "data"]
    assert value["max"] == (0 if way == "backward" else pytest.approx(value["min"], abs=30)) and value["wrong"] == 0
    assert value["before"]["min"] > 10
    if way == "forward":
        assert value["max"] < 0


@pytest.mark.parametrize("seed", range(60))
def test_the_first_of_random_samples(seed):
    """A chain of layers, some in place, of which each batch of an iteration is a step; arrays from the dice are not finite."""
    dice = random.Random(seed)
    count, batches, iteration = dice.randint(2, 6), dice.randint(1, 3), dice.randint(1, 9)
    tops = ["b0"]
    for i in range(1, count):
        tops.append(tops[-1] if dice.random() < 0.3 else f"b{i}")
    nodes = [{"name": f"l{i}", "type": "Power", "bottoms": [tops[i - 1]] if i else [], "tops": [tops[i]], "params": [f"l{i}[0]"] if i else []}
             for i in range(count)]
    steps = []
    for number in (iteration - 1, iteration):
        work = [one for _ in range(batches) for one in [*((i, "forward") for i in range(count)), *((i, "backward") for i in reversed(range(1, count)))]]
        for i, kind in [*work, (None, "update")]:
            steps.append({"iteration": number, "kind": kind, "node": i, "last": 3 * len(steps) + 3, "parameters": [f"l{k}[0]" for k in range(1, count)]})

    def sample(number, i, key, name, wrong=0):
        found = {"iteration": number, "layer": f"l{i}", key: name, "min": dice.random(), "max": 1 + dice.random(), "wrong": wrong,
                 "not_finite": wrong / 10, "first": [wrong] if wrong else None, "batch": batches - 1}
        if key == "parameter":
            found |= {"values": {"min": dice.random(), "max": 2.0, "wrong": 0, "first": None}, "update_wrong": 0}
        return found

    def samples(number):
        # Backward runs from the last layer; the gradient of a top comes from the layer that reads it.
        forward = [sample(number, i, "blob", tops[i]) for i in range(count)]
        return forward, [sample(number, i, "diff", tops[i]) for i in range(count - 1)], [sample(number, i, "parameter", f"l{i}[0]") for i in range(1, count)]

    ago, (forward, diffs, params) = samples(iteration - 1), samples(iteration)
    kind = dice.choice(["forward", "backward", "update"])
    batch = dice.randrange(batches)
    if kind == "forward":
        at = dice.randrange(count)
        first, key, name, layer = forward[at], "blob", tops[at], at
        spoiled = [forward[at], *(dice.choice(forward[at:]) for _ in range(2)), *diffs[:1]]
        inputs = [(tops[at - 1], "data"), (f"l{at}[0]", "data")] if at else []
    elif kind == "backward":
        at = dice.randrange(1, count)
        first, key, name, layer = params[at - 1], "parameter", f"l{at}[0]", at
        spoiled = [first, *(params[i - 1] for i in range(1, at)), *diffs[:at - 1]]
        inputs = [(tops[at], "diff"), (tops[at - 1], "data")]
    else:
        at = dice.randrange(1, count)
        first, key, name, layer, spoiled = params[at - 1], "update", f"l{at}[0]", at, []
        first["update_wrong"] = 4
        inputs = [(name, "diff"), (name, "data")]
    for one in spoiled:
        one |= {"wrong": 3, "not_finite": 0.3, "first": [3]}
    for one in [*forward, *diffs, *params]:
        one["batch"] = batch
    now = [*forward, *diffs, *params]
    found = first_not_finite({"samples": [*(one for some in ago for one in some), *now], "net": {"nodes": nodes}, "steps": steps})
    of_kind = [i for i, step in enumerate(steps) if step["iteration"] == iteration and step["kind"] == kind and (kind == "update" or step["node"] == layer)]
    assert len(of_kind) == (1 if kind == "update" else batches)
    wanted = of_kind[0 if kind == "update" else batch]
    assert (found["iteration"], found["layer"], found[key], found["step"], found["event"]) == (iteration, f"l{layer}", name, wanted, 3 * wanted + 3)
    assert (found["wrong"], found["not_finite"], found["first"]) == ((4, None, None) if kind == "update" else (3, 0.3, [3]))
    earlier = {(one["layer"], one.get("blob"), one.get("diff"), one.get("parameter")): one for some in ago for one in some}
    assert found["before"] == earlier[f"l{layer}", first.get("blob"), None, first.get("parameter")]

    def extremes(some, name, part):
        if part == "diff" and kind == "update":
            one = next(one for one in some[2] if one["parameter"] == name)
        elif part == "diff":
            one = next((one for one in some[1] if (one["diff"], one["layer"]) == (name, f"l{layer}")), None)
        elif "[" in name:
            one = next(one for one in some[2] if one["parameter"] == name)["values"]
        else:       # a layer forward reads what an earlier one gave, a layer backward what is there in the end
            one = [one for i, one in enumerate(some[0]) if one["blob"] == name and (kind != "forward" or i < layer)][-1]
        return one and {key: one[key] for key in ("min", "max", "wrong", "first")}

    now = forward, diffs, params
    assert found["inputs"] == [{"name": name, "part": part, **here, "before": extremes(ago, name, part)}
                               for name, part in inputs if (here := extremes(now, name, part))]
    assert found["left_out"] == 0
