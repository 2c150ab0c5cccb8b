"""A trace document is checked once, when a Trace gets it: what passes, all readers can read; what does not is a typed error."""

import copy
import json
import random
import re

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.addons import trace
from minicaffe.addons.trace import html, perfetto
from minicaffe.addons.trace.model import Trace, launch_of
from minicaffe.addons.trace.reasons import CopyReasons
from minicaffe.addons.trace.schema import COLUMNS
from minicaffe.errors import ConfigError, DataError, Error, WrongTypeError
from minicaffe.inspection.watch import Watch
from minicaffe.workspace import Workspace

NET = """name: "net" force_backward: true
layer { name: "in" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "y" top: "l" }
"""
WRONG = [None, True, -1, 3, 1.5, float("nan"), 10**400, 2**63, "", "x", "launch", [], [None], [0], {}, {"a": 1}, [[]]]


@pytest.fixture(scope="module")
def solver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(f'net: "{folder}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 9')
    return caffe.SGDSolver(str(folder / "solver.prototxt"))


@pytest.fixture(scope="module")
def document(solver):
    recorder = trace.Recorder(solver)
    recorder.start()
    solver.step(1)
    solver.net.blobs["a"].reshape(3, 3)
    solver.net.blobs["a"].data[...] = 1
    recorder.stop()
    made = recorder.trace().document
    # An arena and a launch, which only allocators of a device and kernels have.
    made["start"]["arenas"].append({"place": "CPUPlace", "allocator": "caching", "segments": [
        {"address": 64, "bytes": 128, "blocks": [{"address": 64, "bytes": 128, "used": False}]}]})
    made["kernels"]["k"] = {"functor": "k", "source": None, "header": None}
    strings, events = made["strings"], made["events"]
    for kind, detail in (("launch", "8x1x1 blocks of 256 threads; conv1 data (2949120 bytes)"), ("split", ""), ("merge", ""),
                         ("copy", "host to device"), ("segment taken", ""), ("segment given back", "")):
        for text in (kind, "k", "CPUPlace", detail):
            if text not in strings:
                strings.append(text)
        for key, value in {"time": events["time"][-1], "kind": strings.index(kind), "place": strings.index("CPUPlace"), "address": 64,
                           "bytes": 32, "name": strings.index("k"), "detail": strings.index(detail), "took": 0}.items():
            events[key].append(value)
        made["steps"][-1]["last"] += 1
    return json.loads(json.dumps(made))


def read_all(made):
    """Everything that reads a trace."""
    json.dumps(perfetto.events(made))
    html.page(made)
    for moment in (0, len(made) // 2, len(made)):
        made.at(moment)
        made.step_at(moment)
    CopyReasons(made).all()
    made.to_json()
    repr(made)
    for event in made.events:
        if event.kind == "launch":
            launch_of(event)


def places(value, path=()):
    """Yield the path of every part of a document; of long lists the first three."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutated(document, path, rng):
    """Return a copy with the part at a path changed, removed, doubled or swapped for another part."""
    made = json.loads(json.dumps(document))
    if not path:
        return rng.choice(WRONG)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    how = rng.randrange(6)
    if how == 0:
        del parent[path[-1]]
    elif how == 1 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[path[-1]]))
    elif how == 2 and isinstance(parent[path[-1]], int):
        parent[path[-1]] += rng.choice([-1, 1, 1000])
    else:
        parent[path[-1]] = rng.choice(WRONG)
    return made


def test_good_and_filled_traces(document):
    made = Trace(document)
    assert {event.kind for event in made.events} >= {"launch", "split", "merge", "copy", "head", "begin", "end", "segment taken"}
    read_all(made)
    def derived(made):
        return [made.events, made.owners, made.titles, made.roles, made.block_titles, [made.step_at(i) for i in range(len(made) + 1)], len(made), made.steps]

    other = {**document, "steps": document["steps"][:1], "memories": document["memories"][1:], "events": {
        key: column[:document["steps"][0]["last"]] for key, column in document["events"].items()}}
    for first, second in ((document, other), (other, document)):
        made = Trace(first)
        assert derived(made) == derived(Trace(first)) != derived(Trace(second))
        made.fill(second)
        assert derived(made) == derived(Trace(second))


def test_mutated_documents(document, tmp_path):
    rng, refused, taken = random.Random(31), 0, 0
    every = list(places(document))
    path = tmp_path / "trace.json"
    for number in range(300):
        changed = mutated(document, rng.choice(every), rng)
        try:
            if number % 10:
                made = Trace(changed)
            else:       # through a file, too
                path.write_text(json.dumps(changed))
                made = trace.load(path)
        except DataError as error:
            assert "trace" in str(error)
            refused += 1
            continue
        taken += 1
        try:
            read_all(made)
        except WrongTypeError as error:     # a launch, the detail of which says no grid
            assert "is not a launch" in str(error)
        except DataError as error:          # nan where the schema leaves a place open
            assert "holds a value that JSON lacks" in str(error)
    assert refused > 100 and taken > 25


MISSING = object()


def changed(document, where, value):
    """Return a copy in which the part at the path `where` is `value`, or is missing."""
    made = copy.deepcopy(document)
    place = made
    for key in where[:-1]:
        place = place[key]
    if value is MISSING:
        del place[where[-1]]
    else:
        place[where[-1]] = value
    return made


@pytest.mark.parametrize("where, value, message", [
    (["steps"], MISSING, "lacks 'steps'; it is not a trace, or was changed"), (["steps", 0, "kind"], MISSING, "steps[0]: lacks 'kind'"),
    (["steps", 0, "node"], 99, "steps[0].node: must be null or from 0 to 2, got 99"),
    (["steps", 0, "first"], 10**6, "steps[0]: must be of events from 0 to"), (["steps", 2, "first"], 0, "steps[2]: must be of events from"),
    (["steps", 0, "loss"], "1", "steps[0].loss: must be a number, nan, inf, -inf or null, got '1'"),
    (["events", "kind", 0], 10**6, "events.kind: must have numbers from 0 to"),
    (["events", "address", 0], -1, "events.address: must have no negative number"), (["events", "bytes", 0], 2**70, "events.bytes[0]: must be between"),
    (["net", "nodes", 0, "line"], "3", "net.nodes[0].line: must be a whole number or null, got '3'"),
    (["memories", 0, "role"], [], "memories[0].role: must be a text, got []"), (["start", "heads"], [], "start.heads: must be an object"),
    (["format"], 2, "format: has format 2, this minicaffe reads traces of format 1; update it"),
    (["net", "nodes", 0, "tops"], "abc", "net.nodes[0].tops: must be a list, got 'abc'"),
    (["net", "nodes", 0, "tops"], ["a", 1], "net.nodes[0].tops[1]: must be a text, got 1"),
    (["net", "nodes", 0, "shapes", "x"], {"3": 4}, "net.nodes[0].shapes['x']: must be a list, got {'3': 4}"),
    (["strings"], {}, "strings: must be a list, got {}"), (["strings", 0], 5, "strings[0]: must be a text, got 5"),
    (["events", "time"], (0,), "events.time: must be a list, got "), (["events", "time", 2], "1", "events.time[2]: must be a whole number, got '1'"),
    (["events", "time", 0], True, "events.time[0]: must be a whole number, got True"),
    (["events", "time", 1], -2**64, "events.time[1]: must be between -2^64 and 2^64, got -18446744073709551616"),
    (["events", "address", 1], 2**64, "events.address[1]: must be between -2^64 and 2^64, got 18446744073709551616"),
    (["events", "theirs"], [1], "events.theirs: has 1 entries, events.time has"), (["events", "time"], [0], "events.kind: has "),
    *((["events", key], [0], f"events.{key}: has 1 entries, events.time has ") for key in COLUMNS[1:]),
    *((where, "text", f"{name}: must be an object whose keys are texts, got 5;") for where, name in (
        (["start", "heads", 5], "start.heads"), (["why", 5], "why"), (["kernels", 5], "kernels"), (["net", "nodes", 0, "shapes", 5], "net.nodes[0].shapes")))])
def test_errors_name_the_place(document, tmp_path, where, value, message):
    wrong, made = changed(document, where, value), Trace(document)
    (tmp_path / "t.json").write_text(json.dumps(wrong))
    for read in (lambda: Trace(wrong), lambda: made.fill(wrong)):
        with pytest.raises(DataError) as caught:
            read()
        assert str(caught.value).startswith(message)
    if json.loads(json.dumps(wrong)) == wrong:
        with pytest.raises(DataError, match="t.json: " + re.escape(message)):
            trace.load(tmp_path / "t.json")
    assert made.document is document
    assert len(Trace(changed(document, ["events", "theirs"], 5))) == len(document["events"]["time"])    # unknown keys are allowed


@pytest.mark.parametrize("text", ['{"format": NaN}', "[" * 100000, '{"format": 1', "[]", "3", "null", '"x"', "", "{}", '{"format": 1}', '{"format": "1"}'])
def test_json_that_is_no_trace(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match="t.json: .*minicaffe trace NET --json FILE"):
        trace.load(tmp_path / "t.json")


def test_wrong_types_are_typed_errors(solver, document, tmp_path):
    made, node = Trace(document), solver.net.nodes[1]
    recorder, watch = trace.Recorder(solver), Watch(solver)
    watch.close()
    calls = [lambda wrong: perfetto.events(wrong), lambda wrong: perfetto.write(wrong, tmp_path / "x"), lambda wrong: html.page(wrong),
             lambda wrong: html.write(wrong, tmp_path / "x"), lambda wrong: trace.why(wrong, 0),
             lambda wrong: launch_of(wrong),
             lambda wrong: node.with_place(wrong), lambda wrong: watch.on_iteration(wrong), lambda wrong: recorder.on_iteration(wrong),
             lambda wrong: Workspace().add_net(wrong), lambda wrong: Watch(wrong), lambda wrong: trace.Recorder(wrong)]
    for call in calls:
        for wrong in (5, "x", [], object(), b"x", np.zeros(3), "x" * 100_000):
            with pytest.raises(WrongTypeError) as caught:
                call(wrong)
            assert len(str(caught.value)) < 400
    for call in (lambda wrong: made.at(wrong), lambda wrong: made.step_at(wrong),
                 lambda wrong: trace.why(made, wrong), lambda wrong: Trace(wrong), lambda wrong: trace.load(wrong),
                 lambda wrong: trace.Recorder(solver, keep=wrong), lambda wrong: Watch(solver, every=wrong)):
        for wrong in ("x", [], 1.5, object(), -1, 10**9):
            if wrong == 10**9 and {"Recorder", "Watch"} & set(call.__code__.co_names):
                continue
            with pytest.raises((WrongTypeError, ConfigError, DataError, Error)):
                call(wrong)
    for listener in [one for one in solver.listeners if isinstance(one, Watch)]:
        listener.close()
