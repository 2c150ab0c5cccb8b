"""Times and bytes of traces: documents of random events, and what each form makes of them, against sums that the test makes itself."""

import re

import numpy as np
import pytest

from minicaffe.addons.trace import Trace, perfetto, table
from minicaffe.addons.trace.model import EMPTY, device_ns
from minicaffe.memory.sizes import size_text

MICROSECOND = 1000  # ns: times are whole microseconds, so that a set of them is a set of intervals
KINDS = ["travel", "travel", "launch", "call", "copy", "reorder", "alloc", "free", "cache hit"]
PLACES = ["CPUPlace()", "CUDAPlace(0)"]
ROLES = {"w data": "parameter", "y data": "activation"}


def random_trace(seed):
    """Return a Trace of steps, some of them backward, and of events that may have begun long before they are reported."""
    random = np.random.default_rng(seed)
    count, now, strings = int(random.integers(0, 60)), 0, [*KINDS, *PLACES, *ROLES, "1x1x1 blocks of 32 threads", ""]
    columns = {key: [] for key in ("time", "kind", "place", "address", "bytes", "name", "detail", "took")}
    lives = {}
    for _ in range(count):
        now += int(random.integers(0, 9)) * MICROSECOND
        kind, place, name = (str(random.choice(some)) for some in (KINDS, PLACES, list(ROLES)))
        address, nbytes = int(random.integers(1, 9)) * 64, int(random.integers(1, 5000))
        if kind == "free" and lives:
            (place, address), (name, nbytes) = sorted(lives.items())[int(random.integers(0, len(lives)))]
            del lives[place, address]
        elif kind in ("alloc", "free"):
            if (place, address) in lives:
                continue
            kind = "alloc"
            lives[place, address] = name, nbytes
        took = min(now, int(random.integers(0, 30)) * MICROSECOND) if kind in ("travel", "launch", "call", "copy", "reorder") else 0
        detail = "1x1x1 blocks of 32 threads" if kind == "launch" else ""
        for key, value in zip(columns, (now, strings.index(kind), strings.index(place), address, nbytes, strings.index(name),
                                        strings.index(detail), took)):
            columns[key].append(value)
    steps, at, before = [], 0, 0
    while at < len(columns["time"]):
        end = min(len(columns["time"]), at + int(random.integers(1, 6)))
        steps.append({"iteration": 0, "kind": str(random.choice(["forward", "backward", "between"])), "layer": "l", "node": None, "first": at,
                      "last": end, "begin": before, "end": columns["time"][end - 1], "with": None, "flops": None, "bytes": 0, "loss": None,
                      "touched": []})
        at, before = end, columns["time"][end - 1]
    memories = [{"name": name, "blob": name[0], "part": "data", "bytes": 1, "role": role, "aliases": [], "title": name} for name, role in ROLES.items()]
    start = {"time": int(random.integers(0, 10**9)) * MICROSECOND, "heads": {}, "blocks": [], "arenas": []}
    return Trace({**EMPTY, "strings": strings, "events": columns, "steps": steps, "memories": memories, "start": start})


def microseconds(begin, end):
    return set(range(begin // MICROSECOND, end // MICROSECOND))


SEEDS = pytest.mark.parametrize("seed", range(20))


@SEEDS
def test_perfetto_has_each_event_at_its_time_in_microseconds(seed):
    made = random_trace(seed)
    rows = [row for row in perfetto.events(made) if row["ph"] not in ("M", "C")]
    steps, wanted = [(("X", step["begin"] / 1e3, (step["end"] - step["begin"]) / 1e3)) for step in made.steps], []
    for event in made.events:
        begin, took = (event.time - event.took) / 1e3, event.took / 1e3
        if event.kind == "travel":
            wanted += [("b", begin, None), ("e", event.time / 1e3, None)]
        elif event.kind in ("launch", "call", "copy", "reorder"):
            wanted.append(("X", begin, took))
        elif event.kind == "cache hit":
            wanted.append(("i", begin, None))
    found = [(row["ph"], row["ts"], row.get("dur")) for row in rows]
    assert sorted(found, key=str) == sorted([*steps, *wanted], key=str)
    times = [row["ts"] for row in rows]
    assert times == sorted(times)


def test_perfetto_has_names_and_an_order_of_tracks():
    made = random_trace(1)
    rows = perfetto.events(made)
    about = [row for row in rows if row["ph"] == "M"]
    assert rows[:len(about)] == about and {row["pid"] for row in rows} == {1}
    assert about[0] == {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"minicaffe: {made.document['net']['name'] or 'a net'}"}}
    names = ["layers", "kernels", "copies and reorders", "allocators", "gradient transfers"]
    assert about[1:] == [{"ph": "M", "pid": 1, "tid": track, **about} for track, name in enumerate(names, 1) for about in (
        {"name": "thread_name", "args": {"name": name}}, {"name": "thread_sort_index", "args": {"sort_index": track}})]
    assert perfetto.events(Trace(None))[0]["args"] == {"name": "minicaffe: a net"}


@SEEDS
def test_transfers_at_one_time_count_once(seed):
    made = random_trace(seed)
    ways = [event for event in made.events if event.kind == "travel"]
    there = set().union(*(microseconds(event.time - event.took, event.time) for event in ways))
    backward = set().union(*(microseconds(step["begin"], step["end"]) for step in made.steps if step["kind"] == "backward"))
    lines = table.gradient_transfers(made)
    assert lines == ([f"gradients sent between processes: {len(ways)}, {size_text(sum(event.nbytes for event in ways))}, "
                      f"{len(there) / 1e3:.3f} ms, {len(there & backward) / 1e3:.3f} of them while layers ran backward"] if ways else [])


@SEEDS
def test_sums_and_peaks_of_the_summary(seed):
    made = random_trace(seed)
    lines = table.summary(made)
    for kind, what in (("copy", "copies"), ("reorder", "reorders"), ("launch", "kernels"), ("call", "calls of libraries")):
        those = [event for event in made.events if event.kind == kind]
        line = next((line for line in lines if line.startswith(f"{what}: ")), None)
        if those:
            assert line.startswith(f"{what}: {len(those)}, ") and line.endswith(f", {sum(event.took for event in those) / 1e6:.3f} ms" if kind in
                               ("copy", "reorder") else f" {device_ns(those) / 1e6:.3f} ms")
    live, most = {}, {}
    for event in made.events:
        if event.kind in ("alloc", "free"):
            live[event.place, event.address] = (event.nbytes if event.kind == "alloc" else 0), ROLES[event.name]
            here = [one for (place, _), one in live.items() if place == event.place]
            total = sum(nbytes for nbytes, _ in here)
            if total > most.get(event.place, (-1, None))[0]:
                most[event.place] = total, {role: sum(nbytes for nbytes, of in here if of == role) for role in ROLES.values()}
    found = {place: (total, {role: roles.get(role, 0) for role in ROLES.values()}) for place, (total, roles) in table.peaks(made).items()}
    assert found == most
    assert sum(bool(re.match("live memory", line)) for line in lines) == len(most)
