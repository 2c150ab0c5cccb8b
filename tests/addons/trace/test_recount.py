"""What a trace and its other forms say in sums and rows, against counts of its events that share no code with them."""

import copy

import pytest

from minicaffe import memory
from minicaffe.addons import trace
from minicaffe.addons.trace import perfetto
from minicaffe.addons.trace.model import STATES

MIB = 1 << 20


@pytest.fixture(scope="module")
def kept():
    """Traces by the device that they are of: they stay as they are, so one of each serves all tests."""
    return {}


@pytest.fixture
def made(where, make_solver, kept):
    """A record of two iterations and of some blocks, from an allocator that cuts segments."""
    if where in kept:
        return kept[where]
    place = memory.CPUPlace() if where == "cpu" else memory.CUDAPlace(0)
    before = memory.use(place, "caching")
    try:
        solver = make_solver(plan="memory")
        with trace.record(solver) as found:
            solver.step(2)
            blocks = [memory.Buffer(memory.allocator_of(place), nbytes, f"block of {nbytes}") for nbytes in (100, 3 * MIB, 700)]
            blocks.pop()
        return kept.setdefault(where, found)
    finally:
        memory.use(place, before)


def bytes_in_use(made):
    """Yield time, place and bytes by role: at the begin, then after each event that changed them."""
    roles = {name: one["role"] for one in made.memories for name in [one["name"], *one["aliases"]]}
    live = {(block["place"], block["address"]): block for block in made.document["start"]["blocks"]}

    def now(place):
        totals = {}
        for (at, _), block in live.items():
            if at == place:
                role = roles.get(block["name"], "other")
                totals[role] = totals.get(role, 0) + block["bytes"]
        return totals

    for place in dict.fromkeys(place for place, _ in live):
        yield 0, place, now(place)
    for event in made.events:
        key = event.place, event.address
        if event.kind == "alloc":
            live[key] = {"bytes": event.nbytes, "name": event.name}
        elif event.kind != "free" or live.pop(key, None) is None:
            continue
        yield event.time, event.place, now(event.place)


def renamed(made):
    """The trace of memories that have other names, by which its blocks are aliases."""
    document = copy.deepcopy(made.document)
    for one in document["memories"]:
        one["name"], one["aliases"] = f"new {one['name']}", [one["name"], *one["aliases"]]
    return trace.Trace(document)


def test_bytes_in_use_by_role(made):
    for one in made, renamed(made):
        counters = [row for row in perfetto.events(one) if row["ph"] == "C"]
        found = sorted((row["ts"], row["name"], sorted((role, n) for role, n in row["args"].items() if n)) for row in counters)
        wanted = sorted((time / 1000, f"bytes in use, {place}", sorted((role, n) for role, n in totals.items() if n))
                        for time, place, totals in bytes_in_use(one))
        assert found == wanted
        assert {role for _, _, totals in found for role, _ in totals} >= {"parameter", "activation", "gradient", "history", "workspace"}


def test_slices_are_steps_kernels_and_copies(made):
    rows = perfetto.events(made)
    steps = {(row["ts"], row["name"]): row for row in rows if row["ph"] == "X" and row["tid"] == perfetto.STEPS}
    assert len(steps) == len(made.steps)
    for step in made.steps:
        node = made.nodes[step["node"]] if step["node"] is not None else {"type": None, "line": None, "engine": None}
        states = [f"{made.titles[t['memory']]}: {STATES[t['before']][0]} -> {STATES[t['after']][0]}" for t in step["touched"] if t["before"] != t["after"]]
        wanted = {"iteration": step["iteration"], "type": node["type"], "line": node["line"], "engine": node["engine"],
                  "flops": step["flops"], "with": step["with"], "loss": step["loss"], "states": states or None}
        title = step["kind"] if step["layer"] in ("", step["kind"]) else f"{step['layer']} {step['kind']}"
        assert steps[step["begin"] / 1000, title]["args"] == {key: value for key, value in wanted.items() if value is not None}
    copies = [event for event in made.events if event.kind in ("copy", "reorder")]
    found = [row for row in rows if row["ph"] == "X" and row["tid"] == perfetto.COPIES]
    assert sorted((row["ts"], row["dur"], row["args"]["bytes"], row["args"]["place"], row["args"]["way"]) for row in found) == sorted(
        ((event.time - event.took) / 1000, event.took / 1000, event.nbytes, event.place, event.detail) for event in copies)
    instants = [(row["ts"], row["name"], row["args"]["bytes"], row["args"]["address"]) for row in rows if row["ph"] == "i"]
    assert sorted(instants) == sorted((event.time / 1000, event.kind, event.nbytes, hex(event.address)) for event in made.events if event.kind in (
        "cache hit", "split", "merge", "segment taken", "segment given back", "pool taken", "pool given back"))
    assert {name for _, name, _, _ in instants} >= {"split", "segment taken"}


def test_bytes_of_memories_and_costs_of_steps(made):
    """Bytes of an update, of the parameters' memories, and of what a layer reads and writes."""
    memories = {one["name"]: one for one in made.memories}
    shapes = {name: shape for node in made.nodes for name, shape in node["shapes"].items()}
    for one in made.memories:
        if one["role"] in ("parameter", "gradient", "activation", "input"):
            count = 1
            for n in shapes[one["blob"]]:
                count *= n
            assert one["bytes"] == 4 * count, one
    updates = [step for step in made.steps if step["kind"] == "update"]
    assert updates
    for step in updates:    # each of them is read and written
        moved = [memories[f"{name} {part}"]["bytes"] for name in step["parameters"] for part in ("data", "diff", "history data")]
        assert step["bytes"] == 2 * sum(moved) and step["flops"] is None
    for before, step in zip([{"end": 0}, *made.steps], made.steps):
        if step["node"] is not None:
            node = made.nodes[step["node"]]
            assert (step["flops"], step["bytes"]) == (node["flops"][step["kind"]], node["bytes"][step["kind"]])
        first = made.events[step["first"]]
        assert (step["begin"], step["end"]) == (max(before["end"], first.time - first.took), made.events[step["last"] - 1].time)
