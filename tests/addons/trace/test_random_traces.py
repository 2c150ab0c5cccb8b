"""Random records through all forms of a trace: each number is counted again, by plain code that shares none with minicaffe.addons.trace."""

import copy
import json
import random
import re
from functools import cache
from types import SimpleNamespace

import pytest
from random_traces import BEGAN, Story

from minicaffe.addons import trace
from minicaffe.addons.trace import build, html, panels, perfetto, table
from minicaffe.addons.trace.reasons import CopyReasons
from minicaffe.addons.trace.words import decision
from minicaffe.memory.sizes import size_text

SEEDS = range(60)
WORDS = {"UNINITIALIZED": "no data", "HEAD_AT_CPU": "host", "HEAD_AT_GPU": "device", "SYNCED": "host+device", "HEAD_AT_PRIVATE": "private",
         "SYNCED_PRIVATE": "host+private", "HEAD_AT_GPU_PRIVATE": "private on device", "SYNCED_GPU_PRIVATE": "device+private", "RECYCLED": "recycled"}
PLACES = {"CPUPlace()": "host", "PinnedPlace()": "host, page-locked", "CUDAPlace(0)": "device 0"}


@cache
def recount(seed):
    return Recount(Story(seed))


@pytest.fixture(params=SEEDS)
def counted(request, monkeypatch):
    """A recount, with the trace that minicaffe makes of the same record."""
    found = recount(request.param)
    if not hasattr(found, "made"):
        monkeypatch.setattr(build, "cost", SimpleNamespace(of_node=lambda node, direction: node.costs[direction]))
        monkeypatch.setattr("minicaffe.addons.drawing.draw.net_svg", lambda net, standalone: "<svg/>")
        story = found.story
        device = {"kind": story.dice.choice(["cpu", "sim", "gpu"]), "name": "made up", "threads": 1, "copy_bandwidth": 3e9}
        found.made = trace.Trace(build.document(story.parts, story.net, story.solver, device))
    return found


class Recount:
    """What the trace of a story must have: `events` (dicts), `steps`, `memories`, `titles`, `roles`."""

    def __init__(self, story):
        self.story = story
        self.count_events()
        self.count_memories()
        self.count_steps()
        self.count_titles()

    def count_events(self):
        self.events = [{"time": e.time - BEGAN, "kind": e.kind, "place": "" if e.place is None else repr(e.place), "address": e.address,
                        "bytes": e.nbytes, "name": e.name, "detail": e.detail, "took": e.took} for e in self.story.events]
        for i, one, _, _ in self.story.changes:
            self.events[i]["name"] = one.unique
            if i and self.events[i - 1]["kind"] in ("copy", "reorder"):     # in a story one is always of the head change behind it
                self.events[i - 1]["name"] = one.unique
        self.heads = [dict(self.story.first_heads)]     # before each event
        changed = {i: (one.unique, after) for i, one, _, after in self.story.changes}
        for i in range(len(self.events)):
            name, after = changed.get(i, (None, None))
            self.heads.append({**self.heads[-1], name: after} if name else self.heads[-1])

    def count_memories(self):
        story, self.memories = self.story, {}
        roles = [(b.name, part, role, getattr(b, f"{part}_memory")) for b in story.params for part, role in (("data", "parameter"), ("diff", "gradient"))]
        roles += [(b.name, part, role, getattr(b, f"{part}_memory")) for node in story.nodes for b in node.tops
                  for part, role in (("data", "activation" if node.bottoms else "input"), ("diff", "gradient"))]
        roles += [(b.name, "data", "history", b.data_memory) for b in story.history]
        for blob, part, role, one in roles:
            own = f"{blob} {part}"
            entry = self.memories.setdefault(one.unique, {"name": one.unique, "blob": blob, "part": part, "bytes": one.size, "role": role, "aliases": []})
            if own != one.unique and own not in entry["aliases"]:
                entry["aliases"].append(own)
        called = {one.unique: one.name for _, one, _, _ in story.changes}
        for event in self.events:
            name = event["name"]
            if event["kind"] in ("alloc", "head") and name and name not in self.memories:
                own = called.get(name, name)
                blob, part = own.rsplit(" ", 1) if " " in own else ("", own)
                self.memories[name] = {"name": name, "blob": blob, "part": part, "bytes": event["bytes"], "aliases": [],
                                       "role": self.memories[own]["role"] if own in self.memories else "workspace"}
        self.roles = {name: self.memories[own]["role"] for name, own in self.owners().items()}

    def owners(self):
        """The memory that a name means: that of this name, else the first one that has it as an alias."""
        found = {name: name for name in self.memories}
        for name, one in self.memories.items():
            for alias in one["aliases"]:
                found.setdefault(alias, name)
        return found

    def uses(self, step):
        """The names of the memories that a step reads or writes."""
        if step["kind"] == "update":
            used = []
            for name in step["parameters"]:
                blob = next(b for b in self.story.params if b.name == name)
                used += [blob.data_memory, blob.diff_memory, *(h.data_memory for h in self.story.history if h.name == f"{name} history")]
            return [one.unique for one in used]
        if step["node"] is None:
            return []
        node = self.story.nodes[step["node"]]
        if step["kind"] == "forward":
            used = [b.data_memory for b in node.bottoms + node.blobs + node.tops]
        elif not node.needs_backward:
            used = []
        else:
            used = [b.diff_memory for b in node.tops]
            used += [b.data_memory for b in node.bottoms] if node.layer.backward_reads_bottoms else []
            used += [b.data_memory for b in node.tops] if node.layer.backward_reads_tops else []
            used += [b.data_memory for b in node.blobs] + [b.diff_memory for b in node.blobs]
            used += [node.bottoms[i].diff_memory for i in range(len(node.bottoms)) if node.bottom_needs[i]]
        return list(dict.fromkeys(one.unique for one in used))

    def count_steps(self):
        self.steps, end = [], 0
        for written in self.story.steps:
            numbers = [i for i, tag in enumerate(self.story.tags) if tag is written]
            first, last = numbers[0], numbers[-1] + 1
            assert numbers == list(range(first, last))
            step = {**written, "first": first, "last": last}
            if written["kind"] != "update":
                del step["parameters"]
            event = self.events[first]
            step["begin"] = max(end, event["time"] - event["took"])     # a transfer may have begun in an earlier step
            step["end"] = end = self.events[last - 1]["time"]
            used = self.uses(step)
            changed = [e["name"] for e in self.events[first:last] if e["kind"] in ("head", "copy", "reorder")]
            step["touched"] = [{"memory": name, "before": self.heads[first].get(name), "after": self.heads[last].get(name)}
                               for name in dict.fromkeys(used + changed)]
            for touched in step["touched"]:     # its first head is known from the start on
                assert touched["before"] is not None
            step["flops"], step["bytes"] = None, 2 * sum(self.memories[name]["bytes"] for name in used)
            if step["node"] is not None:
                cost = self.story.nodes[step["node"]].costs[step["kind"]]
                step["flops"], step["bytes"] = cost.flops, cost.bytes
            self.steps.append(step)

    def count_titles(self):
        special, self.titles, used = {}, {}, set()
        for step in self.steps:
            tops = [b.name for b in self.story.nodes[step["node"]].tops] if step["node"] is not None else []
            staged = 0
            for touched in step["touched"]:
                name = touched["memory"]
                blob = self.memories[name]["blob"]
                if blob == "next batch":
                    special.setdefault(name, f"next batch ({tops[staged]})" if staged < len(tops) else "next batch")
                    staged += 1
                elif blob in ("scratch", "[kept for backward]") and step["layer"]:
                    special.setdefault(name, f"{'scratch' if blob == 'scratch' else 'kept for backward'} of {step['layer']}")
        for name, one in self.memories.items():
            title = special.get(name) or (one["blob"] if one["part"] == "data" else name) or name
            number = 1
            while (found := title if number == 1 else f"{title} #{number}") in used:
                number += 1
            used.add(found)
            self.titles[name] = found
        self.titles |= {alias: self.titles[own] for alias, own in self.owners().items()}

    def of(self, step, *kinds):
        return [event for event in self.events[step["first"]:step["last"]] if event["kind"] in kinds]

    def live(self):
        """Yield time, place and bytes by role: at the start of each place with blocks, then after each event that changed them."""
        def now(blocks, place):
            totals = {}
            for (at, _), (nbytes, name) in blocks.items():
                if repr(at) == place:
                    role = self.roles.get(name, "other")
                    totals[role] = totals.get(role, 0) + nbytes
            return totals

        moments = [blocks for blocks, _ in self.story.moments]
        for place in dict.fromkeys(repr(at) for at, _ in moments[0]):
            yield 0, place, now(moments[0], place)
        for event, before, after in zip(self.events, moments[:-1], moments[1:], strict=True):
            if event["kind"] in ("alloc", "free") and before != after:
                yield event["time"], event["place"], now(after, event["place"])

    def changed_states(self, step):
        return [f"{self.titles.get(t['memory'], t['memory'])}: {WORDS[t['before']]} -> {WORDS[t['after']]}"
                for t in step["touched"] if t["before"] != t["after"]]

    def step_name(self, step):
        return step["kind"] if step["kind"] in ("between", "update") else f"{step['layer']} {step['kind']}"


    def titled(self, name):
        return self.titles.get(name, name)

    def block_titled(self, name):
        """A block may be of any of the memories of its name: then the title is the name itself."""
        if name in self.titles and f"{name} #2" in self.titles:
            return name.removesuffix(" data").removeprefix("[").removesuffix("]") if name.startswith("[") else name.removesuffix(" data")
        return self.titles.get(name, name)

    def written(self, step):
        """The memories that a step writes."""
        if step["kind"] == "update":
            return [touched["memory"] for touched in step["touched"]]
        if step["node"] is None:
            return []
        node = self.story.nodes[step["node"]]
        if step["kind"] == "forward":
            return [blob.data_memory.unique for blob in node.tops]
        return [blob.diff_memory.unique for blob in node.bottoms + node.blobs]

    def step_of(self, number):
        return next(i for i, step in enumerate(self.steps) if step["first"] <= number < step["last"])

    def in_a_sentence(self, number):
        """What a sentence calls a step."""
        named = [i for i, step in enumerate(self.steps) if step["kind"] != "between"]
        if not named:
            return "your code"
        if number in named:
            return "the solver's update" if self.steps[number]["kind"] == "update" else f"layer {self.steps[number]['layer']} ({self.steps[number]['kind']})"
        before, after = [i for i in named if i < number], [i for i in named if i > number]
        if not before:
            return f"what runs before {self.in_a_sentence(min(after))}"
        if not after:
            return f"what runs after {self.in_a_sentence(max(before))}"
        return f"what runs between {self.in_a_sentence(max(before))} and {self.in_a_sentence(min(after))}"

    def last_write(self, name, number):
        """The sentence about the last write of a memory before an event."""
        here = self.step_of(number)
        writers = [i for i in range(here) if name in self.written(self.steps[i])]
        if writers:
            of = self.steps[writers[-1]]["iteration"]
            return f"by {self.in_a_sentence(writers[-1])}" + (f" in iteration {of}" if of != self.steps[here]["iteration"] else "")
        for event in reversed(self.events[:number]):
            call = event["detail"].split(" by ")[-1]
            first = event["detail"].startswith("UNINITIALIZED ")     # it wrote zeros
            if (event["kind"], event["name"]) == ("head", name) and (first or call.startswith(("mutable", "overwrite"))):
                return f"{'on the device' if 'gpu' in call else 'on the host'}, by a call of {call}"
        return None


MEANINGS = {"UNINITIALIZED": "no side has data yet", "HEAD_AT_CPU": "only the host's side is valid", "HEAD_AT_GPU": "only the device's side is valid",
            "SYNCED": "host and device hold the same", "HEAD_AT_PRIVATE": "only the side in an engine's layout is valid",
            "SYNCED_PRIVATE": "the host's plain side and the one in an engine's layout hold the same",
            "HEAD_AT_GPU_PRIVATE": "only the device's side in an engine's layout is valid",
            "SYNCED_GPU_PRIVATE": "the device's plain side and the one in an engine's layout hold the same", "RECYCLED": "its memory is used by other blobs"}


def busy(events):
    return sum(event["took"] for event in events if event["kind"] in ("launch", "call"))


def test_events_steps_and_memories(counted):
    document = counted.made.document
    columns, strings = document["events"], document["strings"]
    found = [{key: strings[value] if key in ("kind", "place", "name", "detail") else value for key, value in zip(columns, row)}
             for row in zip(*columns.values(), strict=True)]
    assert found == counted.events
    assert document["steps"] == counted.steps
    assert document["memories"] == [{**one, "title": counted.titles[name]} for name, one in counted.memories.items()]
    assert document["start"] == {"time": BEGAN, "heads": counted.heads[0], "blocks": counted.story.start.blocks, "arenas": counted.story.start.arenas}
    assert list(document["kernels"]) == list(dict.fromkeys(e["name"] for e in counted.events if e["kind"] == "launch"))
    for node, made, fused in zip(counted.story.nodes, document["net"]["nodes"], counted.story.fused, strict=True):
        blobs = node.bottoms + node.tops + node.blobs
        assert made == {
            "name": node.name, "type": node.type, "line": node.line, "bottoms": [b.name for b in node.bottoms], "tops": [b.name for b in node.tops],
            "params": [b.name for b in node.blobs], "shapes": {b.name: b.shape for b in blobs}, "fused": fused,
            "engine": " ".join(dict.fromkeys(engine for engine in node.engines if engine)) or None,
            "layout": "nChw16c" if any(b.layout for b in node.tops) else None,
            "flops": {kind: of.flops for kind, of in node.costs.items()}, "bytes": {kind: of.bytes for kind, of in node.costs.items()}}


def test_moments(counted):
    for moment in {0, len(counted.events), *counted.story.dice.sample(range(len(counted.events) + 1), min(10, len(counted.events)))}:
        found, (blocks, segments) = counted.made.at(moment), counted.story.moments[moment]
        assert found.heads == counted.heads[moment]
        assert sorted((b["place"], b["address"], b["bytes"], b["name"]) for b in found.blocks) == sorted(
            (repr(place), at, nbytes, name) for (place, at), (nbytes, name) in blocks.items())
        assert found.arenas == [{"place": "CUDAPlace(0)", "allocator": "caching", "segments": segments}]
        inside = [i for i, step in enumerate(counted.steps) if step["first"] <= moment < step["last"]]
        assert counted.made.step_at(moment) == (inside[0] if inside else len(counted.steps) - 1 if counted.steps else None)


@pytest.mark.parametrize("wide", [True, False])
def test_cells_of_the_table(counted, wide):
    marks = {"forward": "> ", "backward": "< ", "update": "= ", "between": ""}
    for number, step in enumerate(counted.steps):
        spent, device = step["end"] - step["begin"], busy(counted.of(step, "launch", "call"))
        copies = counted.of(step, "copy", "reorder")
        taken, freed = (sum(event["bytes"] for event in counted.of(step, kind)) for kind in ("alloc", "free"))
        if not wide:
            taken, freed = max(taken - freed, 0), max(freed - taken, 0)
        memory = ([f"+{size_text(taken)}"] if taken else []) + ([f"-{size_text(freed)}"] if freed else [])
        speeds = [f"{amount / (device or spent):.1f}" if amount and (device or spent) and not step["with"] else "" for amount in (step["flops"], step["bytes"])]
        moved = size_text(sum(event["bytes"] for event in copies)) if copies else ""
        launches = len(counted.of(step, "launch", "call"))
        wanted = [str(number), marks[step["kind"]] + (step["layer"] or "between"), "fused" if step["with"] else f"{spent / 1e6:.3f}"]
        wanted += [f"{device / 1e6:.3f}" if device else "", *speeds] if wide else []
        wanted += [f"{len(copies)}: {moved}" if wide and copies else moved, " ".join(memory), str(launches) if launches else ""]
        wanted += [", ".join(counted.changed_states(step))] if wide else []
        assert table.row(counted.made, number, wide) == wanted


def union(intervals):
    """The moments of some intervals, each once, as intervals that do not touch."""
    marks, found, depth = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals], key=lambda m: (m[0], -m[1])), [], 0
    for time, sign in marks:
        if depth == 0:
            found.append([time, time])
        depth += sign
        found[-1][1] = time
    return found


def test_summary(counted):
    simulated = counted.made.document["device"]["kind"] == "sim"
    ms, iterations = "ms simulated" if simulated else "ms", len({step["iteration"] for step in counted.steps})
    wanted = [f"{len(counted.steps)} steps in {iterations} iteration{'' if iterations == 1 else 's'}, {len(counted.events)} events"]
    for kind, title in (("copy", "copies"), ("reorder", "reorders"), ("launch", "kernels"), ("call", "calls of libraries")):
        those = [event for event in counted.events if event["kind"] == kind]
        size = f" {size_text(sum(event['bytes'] for event in those))}," if kind in ("copy", "reorder") else ""
        if those or kind == "copy":
            wanted.append(f"{title}: {len(those)},{size} {sum(event['took'] for event in those) / 1e6:.3f} {ms}")
    transfers = [event for event in counted.events if event["kind"] == "travel"]
    if transfers:
        spans = union([(max(0, event["time"] - event["took"]), event["time"]) for event in transfers])
        overlap = sum(max(0, min(end, step["end"]) - max(begin, step["begin"])) for begin, end in spans for step in counted.steps if step["kind"] == "backward")
        wanted.append(f"gradients sent between processes: {len(transfers)}, {size_text(sum(e['bytes'] for e in transfers))}, "
                      f"{sum(end - begin for begin, end in spans) / 1e6:.3f} ms, {overlap / 1e6:.3f} of them while layers ran backward")
    most = {}
    for _, place, roles in counted.live():
        if sum(roles.values()) > sum(most.get(place, {"": -1}).values()):
            most[place] = roles
    lines = table.summary(counted.made)
    assert lines[: len(wanted)] == wanted
    for line, (place, roles) in zip(lines[len(wanted):], most.items()):
        head, parts = re.fullmatch(r"(.*?) \((.*)\)", line).groups()
        assert head == f"live memory, {PLACES[place]}: at most {size_text(sum(roles.values()))}"
        assert sorted(parts.split(", ")) == sorted(f"{role} {size_text(n)}" for role, n in roles.items() if n) or not any(roles.values())
    assert lines[len(wanted) + len(most):] == (["times and speeds are those of the simulated device, which is not a GPU"] if simulated else [])
    assert {place: (total, {role: n for role, n in roles.items() if n}) for place, (total, roles) in table.peaks(counted.made).items()} == {
        place: (sum(roles.values()), roles) for place, roles in most.items()}


def test_chrome_s_rows(counted):
    def row(track, name, begin, took, **args):
        return {"ph": "X", "pid": 1, "tid": track, "name": name, "ts": begin / 1000, "dur": took / 1000, "args": args}

    wanted = []
    for step in counted.steps:
        node = counted.story.nodes[step["node"]] if step["node"] is not None else None
        args = {"iteration": step["iteration"], "flops": step["flops"], "with": step["with"], "loss": step["loss"], "states": counted.changed_states(step) or None}
        if node:
            args |= {"type": node.type, "line": node.line, "engine": " ".join(dict.fromkeys(engine for engine in node.engines if engine)) or None}
        args = {key: value for key, value in args.items() if value is not None}
        wanted.append({**row(1, counted.step_name(step), step["begin"], step["end"] - step["begin"], **args), "cat": step["kind"]})
    for e in counted.events:
        kind, begin = e["kind"], e["time"] - e["took"]
        if kind == "launch":
            grid, threads, arrays = re.fullmatch(r"(\S+) blocks of (\d+) threads(.*)", e["detail"]).groups()
            arrays = {text[: text.rindex(" (")]: int(text[text.rindex("(") + 1:].split()[0]) for text in arrays.split("; ")[1:] if text}
            wanted.append({**row(2, e["name"], begin, e["took"], grid=[int(n) for n in grid.split("x")], block=int(threads), arrays=arrays), "cat": kind})
        elif kind == "call":
            wanted.append({**row(2, e["name"], begin, e["took"]), "cat": kind})
        elif kind in ("copy", "reorder"):
            name = f"{counted.titles.get(e['name'], e['name'])}, {e['detail']}"
            wanted.append({**row(3, name, begin, e["took"], bytes=e["bytes"], place=e["place"], way=e["detail"]), "cat": kind})
        elif kind in ("cache hit", "split", "merge", "segment taken", "segment given back"):
            wanted.append({"ph": "i", "pid": 1, "tid": 4, "cat": kind, "name": kind, "ts": e["time"] / 1000, "s": "t", "args": {
                "bytes": e["bytes"], "place": e["place"], "address": hex(e["address"]), "detail": e["detail"]}})
        elif kind == "travel":
            for phase, time in (("b", begin), ("e", e["time"])):
                wanted.append({"ph": phase, "pid": 1, "tid": 5, "cat": kind, "id": e["time"], "name": e["name"], "ts": time / 1000, "args": {"bytes": e["bytes"]}})
    wanted += [{"ph": "C", "pid": 1, "name": f"bytes in use, {place}", "ts": time / 1000, "args": roles} for time, place, roles in counted.live()]
    rows = perfetto.events(counted.made)
    found = [r for r in rows if r["ph"] != "M"]
    for r in found:     # a role without bytes is 0 or missing
        if r["ph"] == "C":
            r["args"] = {role: n for role, n in r["args"].items() if n}
    as_text = [[json.dumps(r, sort_keys=True) for r in some] for some in (found, wanted)]
    assert sorted(as_text[0]) == sorted(as_text[1])
    assert [r["ts"] for r in found] == sorted(r["ts"] for r in found)
    slices = sorted((r["ts"], r["dur"]) for r in found if r["ph"] == "X" and r["tid"] == 1)
    for (begin, took), (after, _) in zip(slices, slices[1:]):       # the steps are one track: its slices must not overlap
        assert 0 <= begin and begin + took <= after + 1e-6
    about = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"minicaffe: {counted.made.document['net']['name'] or 'a net'}"}}]
    for track, name in enumerate(["layers", "kernels", "copies and reorders", "allocators", "gradient transfers"], 1):
        about += [{"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}},
                  {"ph": "M", "pid": 1, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}]
    assert rows[:len(about)] == about and len(rows) == len(about) + len(found)


def test_the_page_has_each_moment(counted):
    page = html.page(counted.made)
    shown, _ = json.JSONDecoder().raw_decode(page[page.index('{"about":'):])
    assert shown == json.loads(json.dumps(panels.data(counted.made)))
    places, order = {place["name"]: place for place in shown["places"]}, list(WORDS)
    assert {place["title"] for place in shown["places"]} == {PLACES[name] for name in places}
    assert [memory["name"] for memory in shown["memories"]] == list(counted.memories)
    for memory in shown["memories"]:
        assert [i for i, _, _ in memory["copies"]] == [i for i, event in enumerate(counted.events) if event["kind"] in ("copy", "reorder")
                                                       and counted.owners().get(event["name"]) == memory["name"]]
    for moment in {0, len(counted.events), *counted.story.dice.sample(range(len(counted.events) + 1), min(10, len(counted.events)))}:
        for memory in shown["memories"]:
            _, state = max(((first, k), state) for k, (first, state) in enumerate(memory["changes"]) if first <= moment)
            assert order[state] == counted.heads[moment].get(memory["name"], "UNINITIALIZED")
        blocks, segments = counted.story.moments[moment]
        for name, place in places.items():
            here = {address: block for (at, address), block in blocks.items() if repr(at) == name}
            cells = [cell[:-2] for cell in place["cells"] if cell[-2] <= moment < cell[-1]]
            known = {address: (nbytes, title) for _, address, _, used, nbytes, title in cells if used and nbytes}
            assert known == here
            for block in (title for _, title in here.values()):
                assert shown["blocks"][block] == [counted.block_titled(block), counted.roles.get(block, "other")]
            inside = [[number, *cell] for number, *cell in cells if number >= 0]
            wanted = [(part["address"], part["bytes"], part["used"]) for segment in segments for part in segment["blocks"]] if name == "CUDAPlace(0)" else []
            assert sorted(tuple(cell[1:4]) for cell in inside) == sorted(wanted)
            there = [tuple(one[:2]) for one in place["segments"] if one[-2] <= moment < one[-1]]
            assert there == ([(one["address"], one["bytes"]) for one in segments] if name == "CUDAPlace(0)" else [])
            loose = [(address, nbytes) for number, address, nbytes, *_ in cells if number < 0]
            usage = {role: ([n for first, n in changes if first <= moment] or [0])[-1] for role, changes in place["usage"].items()}
            assert usage.pop("held") == sum(n for _, n in there) + sum(n for _, n in loose)
            totals = dict.fromkeys(usage, 0)
            for nbytes, title in here.values():
                totals[counted.roles.get(title, "other")] += nbytes
            assert usage == totals


def test_page_steps_and_kernels(counted):
    shown = panels.data(counted.made)
    for number, (step, made) in enumerate(zip(counted.steps, shown["steps"], strict=True)):
        assert made["lines"] and table.describe(counted.made, number)[: len(made["lines"])] == made["lines"]
        assert len(made["lines"]) == 2 + (step["loss"] is not None)
    sources = {name: kernel for name, kernel in counted.made.document["kernels"].items() if kernel["source"] is not None}
    assert shown["kernels"] == sources
    assert shown["launches"] == {i: event["name"] for i, event in enumerate(counted.events) if event["kind"] == "launch" and event["name"] in sources}
    assert len(shown["events"]) == len(counted.events)
    for number, event in enumerate(counted.events):
        word, text = shown["texts"][shown["events"][number]]
        if event["kind"] == "head":
            before, after = event["detail"].split(" by ")[0].split(" -> ")
            assert (word, text.partition(" (")[0]) == ("state", f"{counted.titled(event['name'])}: {WORDS[before]} -> {WORDS[after]}".partition(" (")[0])


@pytest.mark.parametrize("heads", ["whole", "with gaps"])
def test_reasons_of_copies(counted, heads):
    made = counted.made
    if heads == "with gaps":
        counted, dice = copy.copy(counted), counted.story.dice
        counted.events = [dict(event) for event in counted.events]
        for event in counted.events:
            if event["kind"] == "head" and dice.random() < 0.4:
                event.update({"kind": "mark"} if dice.random() < 0.5 else {"name": dice.choice(list(counted.memories))})
        document = json.loads(json.dumps(made.document))
        strings = document["strings"] = list(dict.fromkeys([*document["strings"], "mark", *counted.memories]))
        for key in ("kind", "name"):
            document["events"][key] = [strings.index(event[key]) for event in counted.events]
        made = trace.Trace(document)
    found = CopyReasons(made).all()
    assert list(found) == [i for i, event in enumerate(counted.events) if event["kind"] in ("copy", "reorder")]
    for number, text in found.items():
        event, access = counted.events[number], counted.events[number + 1]
        source, target = event["detail"].split(" to ")
        written = counted.last_write(event["name"], number)
        where, last = "there.", ""
        if (access["kind"], access["name"]) == ("head", event["name"]):
            states, call = access["detail"].split(" by ")
            before, after = states.split(" -> ")
            where = f"{'on the device' if 'gpu' in call else 'on the host'} ({call})."
            last = f" Its head was {before}, {MEANINGS[before]}; since then it is {after}, {MEANINGS[after]}."
        assert text == (
            f"{counted.titled(event['name'])} was {'copied' if event['kind'] == 'copy' else 'reordered'} from {source} to {target} ({event['bytes']:,} bytes): "
            f"{counted.in_a_sentence(counted.step_of(number))} accessed it {where} "
            f"It was written {f'last {written}' if written else 'before the record began'}.{last}")


@pytest.mark.parametrize("allocator", ["caching", "buddy"])
def test_a_step_in_full(counted, allocator):
    document = json.loads(json.dumps(counted.made.document))
    document["start"]["arenas"][0]["allocator"] = allocator
    document["device"]["copy_bandwidth"] = bandwidth = counted.story.dice.choice([None, 3e9])
    document["why"] = {str(i): f"because of {i}" for i, event in enumerate(counted.events) if event["kind"] in ("copy", "reorder") and i % 3}
    made, simulated = trace.Trace(document), document["device"]["kind"] == "sim"

    def times(*parts):
        return ("simulated: " if simulated else "") + ", ".join(part for part in parts if part)

    def speeds(flops, nbytes, spent):
        share = f", {nbytes / spent * 1e9 / bandwidth:.0%} of a large copy's" if bandwidth and spent and nbytes else ""
        return (flops and f"{flops / 1e6:,.2f} MFLOP" + (f" ({flops / spent:.1f} GFLOP/s)" if spent else ""),
                nbytes and size_text(nbytes) + (f" ({nbytes / spent:.1f} GB/s{share})" if spent else ""))

    def lines_of(number):
        event = counted.events[number]
        kind, took = event["kind"], f"{event['took'] / 1e6:.3f} ms"
        if kind in ("alloc", "free"):
            step, kinds = (-1, ("cache hit", "split", "segment taken")) if kind == "alloc" else (1, ("merge", "segment given back"))
            around, at = [], number + step
            while 0 <= at < len(counted.events) and counted.events[at]["kind"] in kinds and counted.events[at]["place"] == event["place"]:
                around.insert(0 if kind == "alloc" else len(around), counted.events[at]["kind"])
                at += step
            buddy = allocator == "buddy" and event["place"] == "CUDAPlace(0)"
            words = {"cache hit": "from the cache", "split": "cut in halves" if buddy else "the rest split off", "segment taken": "a new segment",
                     "merge": "joined with its buddy" if buddy else "joined with its free neighbours", "segment given back": "a segment given back"}
            how = ", ".join(words[one] for one in around)
            return [f"  {'+' if kind == 'alloc' else '-'}{size_text(event['bytes'])} {PLACES[event['place']]}: {counted.block_titled(event['name']) or 'no name'}"
                    + (f" ({how})" if how else "")]
        if kind in ("copy", "reorder"):
            speed = f"{event['bytes'] / event['took']:.1f} GB/s" if event["took"] else ""
            reason = [f"    because of {number}"] if number % 3 else []
            return [f"  {kind} {event['detail']}: {counted.titled(event['name'])}, {size_text(event['bytes'])}, {times(took, speed)}", *reason]
        if kind == "call":
            return [f"  call cublasSgemm, {took}"]
        if kind == "launch":
            shape, _, arrays = event["detail"].partition("; ")
            grid, threads = re.fullmatch(r"(\S+) blocks of (\d+) threads", shape).groups()
            first, *more = grid.split("x")
            names = [text[: text.rindex(" (")] for text in arrays.split("; ") if text]
            named = [f"    arrays: {', '.join(counted.block_titled(name) for name in names)}"] if names else []
            return [f"  kernel {event['name']}, {' x '.join([first, *(n for n in more if n != '1')])} blocks of {threads} threads",
                    f"    {times(took, *speeds(None, event['bytes'], event['took']))}", *named]
        return []

    for number, step in enumerate(counted.steps):
        spent, device = step["end"] - step["begin"], busy(counted.of(step, "launch", "call"))
        what = {"update": f"update of {', '.join(step.get('parameters', []))}", "between": "between layers"}.get(step["kind"], f"layer {step['layer']}, {step['kind']}")
        wanted = [f"step {number} of {len(counted.steps)}, iteration {step['iteration']}: {what}"]
        on_device = f"{device / 1e6:.3f} ms of it on the device" if device else ""
        fused = step["with"] and f"fused: computed with {step['with']}"
        wanted.append(fused or times(f"{spent / 1e6:.3f} ms", on_device, *speeds(step["flops"], step["bytes"], device or spent)))
        wanted += [f"loss {float(step['loss']):g}"] if step["loss"] is not None else []
        width = max((len(counted.titled(touched["memory"])) for touched in step["touched"]), default=0)
        for touched in step["touched"]:
            before, after = WORDS[touched["before"]], WORDS[touched["after"]]
            wanted.append(f"  {counted.titled(touched['memory']).ljust(width)}  {size_text(counted.memories[touched['memory']]['bytes']).rjust(9)}  "
                          + (before if before == after else f"{before} -> {after}"))
        wanted += [line for i in range(step["first"], step["last"]) for line in lines_of(i)]
        assert table.describe(made, number) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_allocator_actions_of_blocks(seed):
    """Its actions are the events beside that of the block, of its place alone; a buddy allocator may split several times."""
    dice, places = random.Random(seed), ["CPUPlace()", "CUDAPlace(0)", "CUDAPlace(1)"]
    before = {"cache hit": "from the cache", "split": "the rest split off", "segment taken": "a new segment", "pool taken": "a new pool"}
    after = {"merge": "joined with its free neighbours", "segment given back": "a segment given back", "pool given back": "a pool given back"}
    kinds = ["alloc", "free", "launch", *before, "split", *after, "merge"]
    place, events = places[0], []
    for _ in range(60):
        place = place if dice.random() < 0.9 else dice.choice(places)
        events.append((dice.choice(kinds), place))
    strings = [*dict.fromkeys(kinds), *places, ""]
    columns = {key: [0] * len(events) for key in ("time", "kind", "place", "address", "bytes", "name", "detail", "took")}
    columns["kind"], columns["place"] = [strings.index(kind) for kind, _ in events], [strings.index(place) for _, place in events]
    buddies = dice.sample(places, dice.randint(0, 2))
    arenas = [{"place": place, "allocator": "buddy" if place in buddies else "caching", "segments": []} for place in places]
    made = trace.Trace({**trace.model.EMPTY, "strings": strings, "events": columns, "start": {**trace.model.EMPTY["start"], "arenas": arenas}})
    for number, (kind, place) in enumerate(events):
        if kind not in ("alloc", "free"):
            continue
        words = dict(before if kind == "alloc" else after)
        if place in buddies:
            words |= {"split": "cut in halves"} if kind == "alloc" else {"merge": "joined with its buddy"}
        run = []        # outwards from the block
        for other, where in events[number - 1 :: -1] if kind == "alloc" and number else events[number + 1 :] if kind == "free" else ():
            if other not in words or where != place:
                break
            run.append(other)
        in_order = list(dict.fromkeys(run[::-1] if kind == "alloc" else run))
        wanted = ", ".join(words[one] + (f" {run.count(one)} times" if run.count(one) > 1 else "") for one in in_order)
        assert decision(made, number) == wanted


@pytest.mark.parametrize("length", range(1, 9))
def test_names_that_are_too_long(length):
    name = "abcdefgh"[:length]
    for width in range(1, 10):
        end, middle = table.truncate(name, width), table.cut_middle(name, width)
        if length <= width:
            assert end == middle == name
        else:
            assert end == name[: width - 1] + "…" and len(middle) == width
            begin, rest = middle.split("…")
            assert name.startswith(begin) and name.endswith(rest) and 0 <= len(rest) - len(begin) <= 1
