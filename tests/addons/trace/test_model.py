"""A trace: steps of layers, who touched what, what was where at a moment, JSON and back."""

import itertools
import json
import os
import re
import time

import numpy as np
import pytest
from rich.console import Console
from small_net import NET, recorded

import minicaffe
from minicaffe import memory
from minicaffe.addons import trace
from minicaffe.addons.trace import build, html, kernels, perfetto, table
from minicaffe.addons.trace.lives import Lives
from minicaffe.addons.trace.model import launch_of
from minicaffe.blob import Blob
from minicaffe.cuda import compile
from minicaffe.errors import ConfigError, OutOfMemoryError, WrongTypeError
from minicaffe.memory import SyncedMemory, reporter
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

on_device = pytest.mark.parametrize("where", ["sim"], indirect=True)      # there are no copies and kernels on the CPU
LAYERS = ["in", "conv", "norm", "relu", "ip", "loss"]


def kinds(made, iteration=0):
    return [(step["kind"], step["layer"]) for step in made.steps if step["iteration"] == iteration and step["kind"] != "between"]


def test_steps_of_two_nets(where, make_solver):
    solver, made = recorded(make_solver(), 2)
    wanted = [("forward", name) for name in LAYERS] + [("backward", name) for name in LAYERS[:0:-1]] + [("update", "update")]
    assert kinds(made) == kinds(made, 1) == wanted
    for before, after in zip(made.steps, made.steps[1:]):
        assert before["last"] == after["first"] and before["begin"] <= before["end"] <= after["end"]
    assert (made.steps[0]["first"], made.steps[-1]["last"]) == (0, len(made))
    losses = [step["loss"] for step in made.steps if step["kind"] == "forward" and step["layer"] == "loss"]
    assert len(losses) == 2 and all(np.isfinite(losses)) and losses[1] == solver.net.blobs["loss"].data[()]
    if where == "cpu":      # BatchNorm computes the ReLU in place behind it, and its gradient
        assert {(step["kind"], step["layer"]): step["with"] for step in made.steps if step["with"]} == {
            ("forward", "relu"): "norm", ("backward", "relu"): "norm"}
        assert made.nodes[2]["fused"] == ["relu"]
    assert made.document["device"]["kind"] == where and made.document["device"]["copy_bandwidth"] > 1e6
    assert [node["type"] for node in made.nodes] == [layer.type for layer in solver.net.layers]
    assert made.nodes[1]["shapes"]["conv"] == [4, 4, 4, 4] and made.nodes[1]["params"] == ["conv[0]", "conv[1]"]
    shapes = {name: shape for node in made.nodes for name, shape in node["shapes"].items()}
    for one in made.memories:
        assert one["role"] == "workspace" or one["bytes"] == 4 * np.prod(shapes[one["blob"].removesuffix(" history")]), one
    solver, made = recorded(make_solver(test_iter=[1], test_interval=1), 2)
    own = [(step["kind"], step["layer"]) for step in made.steps if step["node"] is not None]
    assert own == 2 * ([("forward", name) for name in LAYERS] + [("backward", name) for name in LAYERS[:0:-1]])
    others = [step["layer"] for step in made.steps if step["node"] is None and step["kind"] == "forward"]
    assert others == 2 * [f"{name} (another net)" for name in LAYERS]
    heads = made.at(len(made)).heads
    assert {blob.data_memory.name: str(blob.data_memory.head) for blob in solver.net.blob_list}.items() <= heads.items()
    assert "conv data #2" in heads


@pytest.mark.parametrize("plan", [None, "memory"])
def test_heads_before_and_after(where, make_solver, plan):
    solver = make_solver(plan=plan)
    solver.step(1)

    def heads():
        blobs = [*solver.net.blob_list, *solver.net.param_table.params]
        return {memory.name: f"{memory.head}" for blob in blobs for memory in (blob.data_memory, blob.diff_memory)}

    before = heads()
    with trace.record(solver) as made:
        solver.step(1)
    after = heads()
    first, last = made.at(0).heads, made.at(len(made)).heads
    assert {name: first[name] for name in before} == before and {name: last[name] for name in after} == after
    now = dict(first)
    for step in made.steps:
        for touched in step["touched"]:
            assert now[touched["memory"]] == touched["before"], step
            now[touched["memory"]] = touched["after"]
    assert now == last
    step = next(step for step in made.steps if (step["kind"], step["layer"]) == ("backward", "ip"))
    names = {touched["memory"] for touched in step["touched"]}
    assert {"ip diff", "ip[0] data", "ip[0] diff", "conv diff"} <= names and "label data" not in names
    assert step["bytes"] >= 4 * (4 * 5 + 5 * 64)


@pytest.mark.parametrize("allocator", ["caching", "buddy"])
def test_blocks_and_arenas_at_a_moment(where, make_solver, allocator):
    place = memory.CPUPlace() if where == "cpu" else memory.CUDAPlace(0)
    before = memory.use(place, allocator)
    try:
        with trace.record() as made:
            solver = make_solver(plan="memory")
            solver.step(2)
            big = memory.Buffer(memory.allocator_of(place), 3 << 20, "big")
            small, loose = memory.Buffer(memory.allocator_of(place), 100, "small"), memory.Buffer(memory.SystemAllocator(), 1000, "loose")
            del big
            memory.empty_cache()
            del loose
            from minicaffe.addons.trace.recorder import arenas
            live, now = reporter.live(), arenas()
        moment = made.at(len(made))
        assert {(b["place"], b["address"], b["bytes"], b["name"]) for b in moment.blocks} == {
            (repr(b.place), b.address, b.nbytes, b.name) for b in live}
        mine = [next(arena for arena in found if arena["place"] == repr(place)) for found in (moment.arenas, now)]
        assert mine[0]["allocator"] == allocator and max(len(segment["blocks"]) for segment in mine[1]["segments"]) > 1
        assert mine[0] == mine[1]
        assert {event.kind for event in made.events} >= {"alloc", "free", "split", "merge"}
        page = html.data(made)
        for moment in [number + 1 for number, event in enumerate(made.events) if event.kind in ("free", "merge", "split")]:
            check_places(made, page, moment)
        text = "\n".join(line for number in range(len(made.steps)) for line in table.describe(made, number))
        words = {"buddy": ("cut in halves", "joined with its buddy"), "caching": ("the rest split off", "from the cache", "joined with its free neighbours")}
        assert all(one in text for one in words[allocator])
        del small, solver
    finally:
        memory.use(place, before)


def check_places(made, page, moment):
    """Compare the blocks of a moment with the parts of their segments (a free comes before the merges that it leads to), and with the page."""
    then = made.at(moment)
    for place in page["places"]:
        segments = [segment for arena in then.arenas if arena["place"] == place["name"] for segment in arena["segments"]]
        parts = [(part["address"], part["bytes"], part["used"]) for segment in segments for part in segment["blocks"]]
        here = {block["address"]: (block["bytes"], block["name"]) for block in then.blocks if block["place"] == place["name"]}
        assert not here.keys() & {address for address, _, used in parts if not used}
        cells = [cell[:-2] for cell in place["cells"] if cell[-2] <= moment < cell[-1]]
        assert {address: (nbytes, name) for _, address, _, used, nbytes, name in cells if used and nbytes} == here
        assert sorted(tuple(cell[1:4]) for cell in cells if cell[0] >= 0) == sorted(parts)
        there = [tuple(one[:2]) for one in place["segments"] if one[-2] <= moment < one[-1]]
        assert there == sorted((one["address"], one["bytes"]) for one in segments)
        usage = {role: ([n for first, n in changes if first <= moment] or [0])[-1] for role, changes in place["usage"].items()}
        assert usage.pop("held") == sum(n for _, n in there) + sum(nbytes for number, _, nbytes, *_ in cells if number < 0)
        totals = dict.fromkeys(usage, 0)
        for nbytes, name in here.values():
            assert page["blocks"][name] == [made.block_titles.get(name, name), made.roles.get(name, "other")]
            totals[made.roles.get(name, "other")] += nbytes
        assert usage == totals


def test_json_and_moments(where, make_solver, tmp_path):
    solver, made = recorded(make_solver())
    made.save(tmp_path / "trace.json")
    again = trace.load(tmp_path / "trace.json")
    assert again.document == made.document == json.loads(made.to_json())
    assert again.events == made.events and again.at(50) == made.at(50)
    assert again.document.keys() == trace.Trace(None).document.keys() and len(trace.Trace(None)) == 0
    end = len(made)
    assert made.step_at(0) == 0 and made.step_at(end) == made.step_at(np.int64(end)) == len(made.steps) - 1
    for call in made.at, made.step_at:
        for wrong in -1, end + 1:
            with pytest.raises(ConfigError, match=f"moment: must be from 0 to {end}, got {wrong}"):
                call(wrong)
        for wrong in 0.5, "0", None, True:
            with pytest.raises(WrongTypeError, match=f"moment must be a number from 0 to {end}, got"):
                call(wrong)


@pytest.mark.no_plan("adds to gradients that an update has used")
def test_the_last_iterations(where, make_solver):
    solver, other = make_solver(), make_solver()
    recorder = trace.Recorder(solver, keep=2)
    recorder.start()
    with pytest.raises(ConfigError, match="runs already"):
        recorder.start()
    solver.step(5)
    solver.net.forward_backward()
    running = recorder.trace()
    recorder.stop()
    recorder.stop()
    assert solver.listeners == []
    made = recorder.trace()
    assert sorted({step["iteration"] for step in made.steps}) == sorted({step["iteration"] for step in running.steps}) == [3, 4, 5]
    assert made.at(0).heads["conv data"] != "UNINITIALIZED"
    with pytest.raises(ConfigError, match="at least 1"):
        trace.Recorder(solver, keep=0)
    with pytest.raises(ConfigError, match="the target a solver"):
        trace.Recorder(solver.net, keep=1)
    recorder = trace.Recorder(solver, keep=1)
    for _ in range(2):
        with pytest.raises(WrongTypeError, match="is called by the solver that it records while it runs, got <"):
            recorder.on_iteration(solver)
        recorder.start()
        solver.step(3)
        with pytest.raises(WrongTypeError, match="is called by the solver that it records"):
            recorder.on_iteration(other)
        recorder.stop()
        assert {step["iteration"] for step in recorder.trace().steps} == {solver.iter - 1} and len(recorder.parts) == 1


@on_device
def test_kernels(where, make_solver):
    """Each launch has a grid, a time, its arrays and the source of its functor; a seed that equals the address of a block is no array."""
    solver, made = recorded(make_solver())
    launches = [event for event in made.events if event.kind == "launch"]
    assert launches and all(event.took > 0 for event in launches)
    update = launch_of(launches[-1])
    assert update.grid[0] >= 1 and update.threads > 0

    def arrays(kind, layer):
        step = next(step for step in made.steps if (step["kind"], step["layer"]) == (kind, layer))
        return {name for event in made.events[step["first"]:step["last"]] if event.kind == "launch" for name, _ in launch_of(event).arrays}

    assert {"ip[0] data", "ip[0] diff"} <= arrays("update", "update")
    if where == "sim":      # on a GPU cuBLAS multiplies, whose kernels are not events
        assert {"conv data", "ip[0] data", "ip data"} <= arrays("forward", "ip")
    for name, kernel in made.document["kernels"].items():
        assert f"struct {kernel['functor']}" in kernel["source"], name
        assert kernel["source"].count("{") == kernel["source"].count("}") > 0, name
    net = Net(parse_text("""state { phase: TRAIN }
      layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 4 } } }
      layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }""", caffe_pb2.NetParameter)[0])
    other = Blob((8,), name="other")
    minicaffe.set_random_seed(other.gpu_data.address)
    with trace.record(net) as made:
        net.forward_from_to(0, 1)
    assert [re.findall(r"(\w+) data \(", event.detail) for event in made.events if event.kind == "launch"] == [["data", "drop"]]


@pytest.mark.parametrize("plan", [None, "memory"])
def test_a_record_changes_no_number(where, make_solver, plan):
    def train(recorded):
        solver = make_solver(plan=plan)
        solver.step(4)      # on a device the last of them are a CUDA graph's
        if recorded:
            with trace.record(solver) as made:
                solver.step(2)
            assert len(made) > 0
        else:
            solver.step(2)
        solver.step(4)
        return solver, [np.array(blob.data) for blob in solver.net.param_table.params]

    solver, recorded = train(True)
    _, plain = train(False)
    assert all(np.array_equal(a, b) for a, b in zip(recorded, plain, strict=True))
    if where != "cpu":
        assert solver.training_step.recorded.graph is not None
        from minicaffe import cuda
        assert not cuda.current().recording


@on_device
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_two_recorders_of_launches(where, make_solver, order):
    solver = make_solver()
    solver.step(1)      # the first one also fills the gradients with zeros
    recorders = trace.Recorder(solver), trace.Recorder(solver.net if order[0] else solver)
    for recorder in recorders:
        recorder.start()
    for number in order:
        solver.step(1)
        recorders[number].stop()
    launches = [sum(event.kind == "launch" for event in recorders[number].trace().events) for number in order]
    assert launches[1] == 2 * launches[0] > 0 and not minicaffe.cuda.current().recording


@pytest.mark.no_plan("a plan gives and takes blocks in another order")
@pytest.mark.parametrize("name", ["line\\nline", "</script>", *(pytest.param(name, marks=pytest.mark.slow(1)) for name in (
    "a, b", "a; b", "x (3 bytes)", "a -> b by c", "a with b"))])
def test_any_name_will_do(where, make_solver, name):
    solver = make_solver(NET.replace('"ip"', f'"{name}"'))
    ip = name.replace("\\n", "\n")
    with trace.record(solver) as made:
        solver.step(1)
    update = next(step for step in made.steps if step["kind"] == "update")
    assert update["parameters"] == [blob.name for blob in solver.net.learnable_params] and f"{ip}[0]" in update["parameters"]
    assert {f"{ip}[0] data", f"{ip}[0] diff"} <= {touched["memory"] for touched in update["touched"]}
    assert [step["layer"] for step in made.steps if step["kind"] == "forward"] == ["in", "conv", "norm", "relu", ip, "loss"]
    arrays = [name for event in made.events if event.kind == "launch" for name, _ in launch_of(event).arrays]
    # The product of an inner product by cuBLAS has no event; its bias and its gradient's have.
    expected = 0 if where == "cpu" else 1 if minicaffe.cuda.state().devices[0].handles["cuBLAS"] else 2
    assert arrays.count(f"{ip} data") >= expected and len(arrays) == sum(
        event.detail.count(" bytes)") - event.detail.count("(3 bytes)") for event in made.events if event.kind == "launch")
    for number in range(len(made.steps)):
        table.describe(made, number)


@pytest.mark.parametrize("plan", [None, "memory"])
def test_blobs_that_grow_in_the_middle(where, make_solver, plan):
    net = make_solver(NET.replace("DummyData", "Input").replace("dummy_data_param", "input_param").replace(
        'data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 }', ""), plan=plan).net
    net.forward_backward()
    with trace.record(net) as made:
        for batch in (9, 2, 30):
            net.blob_by_name("data").reshape(batch, 1, 6, 6)
            net.blob_by_name("label").reshape(batch)
            net.forward_backward()
    last = made.at(len(made)).heads
    now = {one.name: str(one.head) for one in build.memories_of(net).values()}
    assert {name: last[name] for name in now} == now
    chains = dict(made.at(0).heads)
    for event in made.events:
        if event.kind == "head" and event.name.split(" ")[0] != "scratch":
            before, _, after = event.detail.rpartition(" by ")[0].partition(" -> ")
            assert chains.get(event.name, before) == before, event
            chains[event.name] = after
    assert {memory["part"] for memory in made.memories} <= {"data", "diff"}


def test_snapshots_of_a_record(where, make_solver, monkeypatch):
    """A record whose snapshot fails does not begin; events of a snapshot are left out."""
    solver = make_solver()
    recorder = trace.Recorder(solver)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(recorder, "_snapshot", lambda: 1 / 0)
        recorder.start()
    assert not solver.listeners
    with memory.record() as events:
        reporter.event("mine")
    before = len(recorder._events)
    solver.step(1)
    assert len(events) == 1 and len(recorder._events) == before
    real = build.memories_of
    monkeypatch.setattr(build, "memories_of", lambda *arguments: (reporter.event("of the snapshot"), real(*arguments))[1])
    for keep in (None, 2):
        recorder = trace.Recorder(make_solver(), keep)
        recorder.start()
        recorder.solver.step(4)
        recorder.stop()
        made = recorder.trace()
        assert {one.kind for one in made.events} & {"of the snapshot", "begin"} == {"begin"}
        assert {step["iteration"] for step in made.steps if step["node"] is not None} == set(range(4) if keep is None else (2, 3))


def test_measuring_the_copy(where, make_solver, monkeypatch):
    """It is not recorded; without memory for it there is no bandwidth."""
    solver = make_solver()
    build.host_bandwidth.cache_clear()
    build.device_bandwidth.cache_clear()
    recorder = trace.Recorder(solver)
    recorder.start()
    lengths = [len(recorder.trace()) for _ in range(2)]
    recorder.stop()
    assert lengths == [0, 0]
    def none(*arguments):
        raise OutOfMemoryError("none is left")

    build.device_bandwidth.cache_clear()
    monkeypatch.setattr(build, "Buffer", none)
    with trace.record(make_solver()) as made:
        pass
    assert (made.document["device"]["copy_bandwidth"] is None) == (where != "cpu")
    table.show(made, Console())


def test_a_path_that_is_no_text(where, make_solver, tmp_path):
    """Linux takes any bytes as the name of a file."""
    file = os.fsdecode(os.fsencode(tmp_path) + b"/n\xff.prototxt")
    with open(file, "w") as out:
        out.write(NET)
    net = minicaffe.Net(file, minicaffe.TRAIN)
    with trace.record(net) as made:
        net.forward()
    made.document["net"]["name"] = "Größe \N{SNOWMAN} <b>"
    assert '"Größe \N{SNOWMAN} <b>"' in made.to_json() and ": " not in trace.Trace(None).to_json()
    made.save(tmp_path / "t.json")
    assert rb'n\udcff.prototxt"' in (tmp_path / "t.json").read_bytes()      # an escape of JSON
    assert trace.load(tmp_path / "t.json").document == made.document
    for write in (html.write, perfetto.write):
        write(made, tmp_path / "other")


def test_step_search_of_long_nets():
    made = trace.Trace(None)
    made.document["steps"], made.document["events"]["time"] = [{"first": 2 * i} for i in range(100_000)], [0] * 200_000
    begin = time.perf_counter()
    assert [made.step_at(i) for i in range(0, 200_000, 20)] == list(range(0, 100_000, 10))
    assert time.perf_counter() - begin < 2      # else minutes


def test_an_allocator_of_the_users_own(on_cpu, make_solver):
    class Own(memory.Allocator):
        def alloc(self, nbytes):
            return super().alloc(nbytes)

        def snapshot(self):
            return "something else"

    place = memory.CPUPlace()
    before = memory.use(place, Own(place, memory.CachingAllocator(memory.SystemAllocator())))
    try:
        solver = make_solver()
        with trace.record(solver) as made:
            solver.step(1)
        assert any(arena["allocator"] == "caching" and arena["segments"] for arena in made.at(len(made)).arenas)
    finally:
        memory.use(place, before)


def test_source_of_each_functor():
    begins = re.compile(r"^(?:template <[^\n]*> )?struct (?!alignas)(\w+)\b(?!\s*;)(?!<)", re.MULTILINE)
    checked = 0
    for header, path in compile.kernel_headers().items():
        text = path.read_text()
        for word in begins.findall(text):
            where, source = kernels.definition(word)
            if where != header:
                continue        # defined in two headers
            lines, code = text.splitlines(), [line.partition("//")[0] for line in source.splitlines()]
            first = text.index(source)
            above = lines[text.count("\n", 0, first) - 1].strip() if first else ""
            assert not above.startswith(("//", "template")), word
            open_braces = list(itertools.accumulate(line.count("{") - line.count("}") for line in code))
            assert open_braces[-1] == 0 and "{" in source, word    # its braces are closed by the last line, and by none before
            assert all(depth > 0 or "{" not in "".join(code[:i + 1]) for i, depth in enumerate(open_braces[:-1])), word
            assert re.search(rf"\bstruct {word}\b", source) and code[-1].rstrip().endswith("};"), word
            checked += 1
    assert checked > 100 and kernels.definition("NoSuchStruct") is None
    for name, functor, header in (("Each<ReluForward<float>>", "ReluForward", "minicaffe/ops/activation/kernel.hpp"),
                                  ("Each<TheirOwn>", "Each", "minicaffe/kernels/grid.hpp")):
        assert kernels.source_of(name) == {"functor": functor, "source": kernels.definition(functor)[1], "header": header}
    assert kernels.source_of("their_kernel<float>") == {"functor": "their_kernel", "source": None, "header": None}


@pytest.mark.no_plan("a plan gives up gradients that an update has used")
def test_trace_after_stop(where, make_solver):
    """Each trace of a recorder is a copy of what it has then."""
    solver = make_solver()
    recorder = trace.Recorder(solver)
    with pytest.raises(ConfigError, match="recorded nothing; start it first"):
        recorder.trace()
    recorder.start()
    solver.step(1)
    running, keys = recorder.trace(), trace.Trace(None).document.keys()
    running.document.update(more=1, kernels={})
    recorder.stop()
    made = recorder.trace()
    before, kernels = json.loads(made.to_json()), len(made.document["kernels"])
    made.document.update(more=1, kernels={})
    assert {step["iteration"] for step in before["steps"]} == {0} and before.keys() == keys and (kernels > 0) == (where != "cpu")
    solver.step(1)
    solver.net.blobs["ip"].reshape(9, 5)
    assert json.loads(recorder.trace().to_json()) == before
    solver.net.blobs["ip"].reshape(4, 5)
    recorder.start()
    assert recorder.trace().steps == []
    solver.step(1)
    assert {step["iteration"] for step in recorder.trace().steps} == {2}
    recorder.stop()
    assert {step["iteration"] for step in recorder.trace().steps} == {2}
    with trace.record(solver) as made:
        pass
    assert made.steps == [] and len(made) == 0
    assert made.at(0).heads["ip[0] data"] == str(solver.net.layers[4].blobs[0].data_memory.head)
    assert {block["name"] for block in made.at(0).blocks} >= {"ip[0] data", "ip[0] diff"}


def test_steps_of_nets_without_solver(on_cpu, make_solver):
    """A repeated layer, or one before it, begins an iteration; layers of another net are named so."""
    net = make_solver().net
    net.forward_from_to(0, 5)
    with trace.record(net) as made:
        for first, last in ((1, 1), (1, 1), (2, 3), (3, 3), (4, 5), (0, 1)):
            net.forward_from_to(first, last)
        net.backward_from_to(1, 1)
        net.backward_from_to(5, 5)
        net.forward_from_to(2, 2)
    assert [(step["layer"], step["iteration"]) for step in made.steps if step["kind"] != "between"] == [
        ("conv", 0), ("conv", 1), ("norm", 1), ("relu", 1), ("relu", 2), ("ip", 2), ("loss", 2), ("in", 3), ("conv", 3), ("conv", 3), ("loss", 3),
        ("norm", 4)]
    with trace.record(net) as made:
        net.forward_backward()
        net.update()
    step = made.steps[-1]
    assert (step["kind"], step["parameters"]) == ("update", [blob.name for blob in net.learnable_params])
    assert {"ip[0] data", "ip[0] diff"} <= {touched["memory"] for touched in step["touched"]} and step["bytes"] > 0
    net, other = make_solver().net, make_solver().net
    for target, mark in ((net, " (another net)"), (None, "")):
        with trace.record(target) as made:
            other.forward_from_to(1, 1)
            net.forward_from_to(1, 1)
        steps = [(step["layer"], step["node"]) for step in made.steps if step["kind"] == "forward"]
        assert steps == [(f"conv{mark}", None), ("conv", 1 if target else None)]


def test_records_of_everything(on_cpu, make_solver):
    solver = make_solver()
    solver.step(1)
    with trace.record() as made:
        solver.step(1)
        memory.Buffer(memory.allocator_of(memory.CPUPlace()), 64, "")
        SyncedMemory(64, "").mutable_cpu_data()
    updates = [step["parameters"] for step in made.steps if step["kind"] == "update"]
    assert sorted(name for names in updates for name in names) == sorted(blob.name for blob in solver.net.learnable_params)
    assert not [touched for step in made.steps for touched in step["touched"] if not touched["memory"]]
    document = made.document
    assert (document["net"]["name"], document["net"]["file"], document["net"]["nodes"], document["net"]["drawing"]) == ("", "", [], None)


def test_file_and_drawing_of_the_net(on_cpu, tmp_path, make_solver, monkeypatch):
    from minicaffe.addons.drawing import svg
    (tmp_path / "net.prototxt").write_text(NET)
    for net, file in ((minicaffe.Net(str(tmp_path / "net.prototxt"), minicaffe.TRAIN), str(tmp_path / "net.prototxt")), (make_solver().net, None)):
        with trace.record(net) as made:
            net.forward_from_to(0, 1)
        assert made.document["net"]["drawing"] == svg.net_svg(net, standalone=False)
        assert file is None or made.document["net"]["file"] == file
        assert made.titles["conv data"] == "conv" and html.page(made).count("<title>small: a trace of minicaffe</title>") == 1
    assert "<title>a net: a trace of minicaffe</title>" in html.page(trace.Trace(None))
    monkeypatch.setattr("minicaffe.public_modules.attribute", lambda name: None)    # drawings are of another add-on, which may be missing
    with trace.record(net) as made:
        net.forward_from_to(0, 1)
    assert made.document["net"]["drawing"] is None and len(made.document["net"]["nodes"]) == len(net.nodes)


def test_arenas_of_several_places():
    """Addresses of two devices may be equal."""
    def arena(place):
        return {"place": place, "allocator": "caching", "segments": [
            {"address": at, "bytes": 256, "blocks": [{"address": at, "bytes": 256, "used": False}]} for at in (0, 1024)]}

    def blocks(place):
        return [tuple(block.values()) for one in now.arenas if one["place"] == place for segment in one["segments"] for block in segment["blocks"]]

    places, before = ("CUDAPlace(0)", "CUDAPlace(1)", "CPUPlace()"), [(0, 256, False), (1024, 256, False)]
    start, events, wanted = {"heads": {}, "blocks": [], "arenas": [arena(place) for place in places]}, [], dict.fromkeys(places, before)
    cut = [(0, 256, False), (1024, 64, False), (1088, 192, False)]
    for kind, address, nbytes, after in (
            ("split", 1024, 64, cut), ("split", 1024, 64, cut),    # of this size already
            ("alloc", 1024, 64, [cut[0], (1024, 64, True), cut[2]]), ("free", 1024, 64, cut), ("merge", 1024, 256, before),
            ("free", 13, 99, before), ("alloc", 5000, 99, before), ("alloc", 5000, 64, before),     # a free that is missing, as from another thread
            ("merge", 512, 64, before), ("split", 1280, 64, before),    # of no segment
            ("segment taken", 512, 32, [before[0], (512, 32, False), before[1]]), ("segment given back", 0, 256, [(512, 32, False), before[1]]),
            ("pool taken", 8192, 64, [(512, 32, False), before[1], (8192, 64, False)]), ("pool given back", 8192, 64, [(512, 32, False), before[1]])):
        events.append(reporter.Event(0, kind, "CUDAPlace(1)", address, nbytes, "", "", 0))
        now = Lives(start, events).at(len(events))
        wanted["CUDAPlace(1)"] = after
        assert {place: blocks(place) for place in places} == wanted, kind
    for kind, allocator in (("pool taken", "buddy"), ("segment taken", "caching")):
        events.append(reporter.Event(0, kind, kind, 64, 32, "", "", 0))
        now = Lives(start, events).at(len(events))
        assert now.arenas[-1] == {"place": kind, "allocator": allocator, "segments": [
            {"address": 64, "bytes": 32, "blocks": [{"address": 64, "bytes": 32, "used": False}]}]}
    assert [(block["address"], block["bytes"]) for block in now.blocks] == [(5000, 64)]


@pytest.mark.parametrize("name, copied", [("scratch", "scratch #2"), ("ip data", "ip data")])
@pytest.mark.parametrize("kind", ["copy", "reorder", "alloc"])
def test_copy_before_a_head(name, copied, kind):
    """Two memories have one name; the copy that another thread made in between keeps its own."""
    head = "HEAD_AT_CPU -> SYNCED by gpu_data"
    events = [reporter.Event(0, "head", None, 1, 8, "scratch", head, 0), reporter.Event(1, kind, None, 0, 8, name, "host to device", 0),
              reporter.Event(2, "head", None, 2, 8, "scratch", head, 0)]
    named, heads, called = build._with_unique_names(events, {}, {})
    assert [event.name for event in named] == ["scratch", copied if kind != "alloc" else name, "scratch #2"]
    assert heads == dict.fromkeys(("scratch", "scratch #2"), "HEAD_AT_CPU") and set(called.values()) == {"scratch"}
