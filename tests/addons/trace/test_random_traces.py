"""Random records as traces and as the page of a trace: what they hold is counted again, by plain code that shares none with minicaffe.addons.trace."""

import json
from types import SimpleNamespace

import pytest
from random_traces import BEGAN, Story

from minicaffe.addons import trace
from minicaffe.addons.trace import build, html
from minicaffe.addons.trace.model import STATES
from minicaffe.addons.trace.words import step_lines


@pytest.fixture(scope="module", params=[*range(12), *(pytest.param(seed, marks=pytest.mark.slow(1)) for seed in range(12, 60))])
def counted(request):
    """A recount, with the trace that minicaffe makes of the same record."""
    found = Recount(Story(request.param))
    device = {"kind": "gpu", "name": "made up", "threads": 1, "copy_bandwidth": 3e9}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "cost", SimpleNamespace(of_node=lambda node, direction: node.costs[direction]))
        patch.setattr("minicaffe.addons.drawing.draw.net_svg", lambda net, standalone: "<svg/>")
        found.made = trace.Trace(build.document(found.story.parts, found.story.net, found.story.solver, device))
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


def test_events_steps_and_memories(counted):
    document, story = counted.made.document, counted.story
    columns, strings = document["events"], document["strings"]
    found = [{key: strings[value] if key in ("kind", "place", "name", "detail") else value for key, value in zip(columns, row)}
             for row in zip(*columns.values(), strict=True)]
    assert found == counted.events and document["steps"] == counted.steps
    assert document["memories"] == [{**one, "title": counted.titles[name]} for name, one in counted.memories.items()]
    assert document["start"] == {"time": BEGAN, "heads": counted.heads[0], "blocks": story.start.blocks, "arenas": story.start.arenas}
    assert list(document["kernels"]) == list(dict.fromkeys(e["name"] for e in counted.events if e["kind"] == "launch"))
    for node, made, fused in zip(story.nodes, document["net"]["nodes"], story.fused, strict=True):
        assert made == {
            "name": node.name, "type": node.type, "line": node.line, "bottoms": [b.name for b in node.bottoms], "tops": [b.name for b in node.tops],
            "params": [b.name for b in node.blobs], "shapes": {b.name: b.shape for b in node.bottoms + node.tops + node.blobs}, "fused": fused,
            "engine": " ".join(dict.fromkeys(engine for engine in node.engines if engine)) or None,
            "layout": "nChw16c" if any(b.layout for b in node.tops) else None,
            "flops": {kind: of.flops for kind, of in node.costs.items()}, "bytes": {kind: of.bytes for kind, of in node.costs.items()}}


def test_moments_of_trace_and_page(counted):
    made, page = counted.made, html.page(counted.made)
    shown, _ = json.JSONDecoder().raw_decode(page[page.index('{"about":'):])
    assert shown == json.loads(json.dumps(html.data(made)))
    assert [memory["name"] for memory in shown["memories"]] == list(counted.memories)
    for memory in shown["memories"]:
        assert [i for i, _, _ in memory["copies"]] == [i for i, event in enumerate(counted.events) if event["kind"] in ("copy", "reorder")
                                                       and counted.owners().get(event["name"]) == memory["name"]]
    sources = {name: kernel for name, kernel in made.document["kernels"].items() if kernel["source"] is not None}
    assert shown["kernels"] == sources and set(sources) <= {"Each<ReluForward<float>>"} and len(shown["events"]) == len(counted.events)
    launches = {str(i): event["name"] for i, event in enumerate(counted.events) if event["kind"] == "launch"}
    assert shown["launches"] == {number: name for number, name in launches.items() if name in sources}
    assert [step["lines"] for step in shown["steps"]] == [step_lines(made, number) for number in range(len(counted.steps))]
    for moment in {0, len(made), *counted.story.dice.sample(range(len(made) + 1), min(10, len(made)))}:
        assert made.at(moment).heads == counted.heads[moment]
        inside = [i for i, step in enumerate(counted.steps) if step["first"] <= moment < step["last"]]
        assert made.step_at(moment) == (inside[0] if inside else len(counted.steps) - 1 if counted.steps else None)
        for memory in shown["memories"]:
            _, state = max(((first, k), state) for k, (first, state) in enumerate(memory["changes"]) if first <= moment)
            assert list(STATES)[state] == counted.heads[moment].get(memory["name"], "UNINITIALIZED")
