"""A trace as one self-contained page (docs/trace.md): style, scripts and the trace itself are in the file.

The page is made of the files of the folder view/ as they are: no build step, no framework, and nothing is fetched when it is
opened. Lives of blocks, states, live bytes and texts are computed here once; the scripts draw them.
"""

import re
from collections import Counter
from html import escape
from importlib import resources

from minicaffe.addons.trace.lives import Lives
from minicaffe.addons.trace.model import STATES, Trace, json_text, place_text, write_text
from minicaffe.addons.trace.words import event_text, step_lines
from minicaffe.errors import check_type

SCRIPTS = "model.js", "draw.js", "net.js", "page.js"
ROLES = ("parameter", "activation", "gradient", "history", "input", "workspace", "other")   # of memory, in the order of the chart
SIDES = {"host": 0, "plain": 0, "device": 1, "peer": 1}     # others are an engine's layout, side 2


def page(trace):
    """Return the page of a Trace as text."""
    check_type(trace, Trace, "trace", "a Trace")
    view = resources.files(__package__) / "view"

    def text(name):
        return (view / name).read_text(encoding="utf-8")

    net = trace.document["net"]["name"] or "a net"
    parts = {
        "title": escape(f"{net}: a trace of minicaffe"),
        "style": text("page.css"),
        # Escaped, so that no name can end the script.
        "trace": json_text(data(trace)).replace("<", "\\u003c"),
        "script": "\n".join([f"const HEADS = {json_text(STATES)}, ROLES = {json_text(ROLES)};", *map(text, SCRIPTS)]),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text("page.html"))


def write(trace, path):
    """Write the `page` of a Trace to a file, as `Trace.save`."""
    write_text(path, page(trace))


def data(trace):
    """Return the data of the page of a Trace, a dict for JSON. Moments are those of lives.py."""
    document, texts, number_of = trace.document, {}, []
    for number in range(len(trace)):
        word, lines = event_text(trace, number)
        number_of.append(texts.setdefault((word.partition(" ")[0], "; ".join(lines)), len(texts)))
    kernels = {name: kernel for name, kernel in document["kernels"].items() if kernel["source"] is not None}
    return {
        "about": about(trace), "simulated": trace.simulated,
        "name": document["net"]["name"] or ("a net" if trace.nodes else "memory"), "drawing": document["net"]["drawing"],
        "nodes": [node["name"] for node in trace.nodes],
        "memories": memories(trace), "places": [place(trace, name) for name in place_names(trace)],
        "blocks": {name: [trace.block_titles.get(name, name), _role(trace.roles.get(name))]
                   for name in dict.fromkeys(block.name for block in trace.lives.blocks)},
        "events": number_of, "texts": list(texts),
        "steps": [{**step, "name": step["layer"] or (step["kind"] if trace.nodes else "the record"),
                   "lines": step_lines(trace, number)}
                  for number, step in enumerate(trace.steps)],
        "why": document["why"], "kernels": kernels,
        "launches": {i: event.name for i, event in enumerate(trace.events) if event.kind == "launch" and event.name in kernels}}


def about(trace):
    """Return the line about a whole trace."""
    document, count = trace.document, len({step["iteration"] for step in trace.steps})
    device, net = document["device"], document["net"]
    where = {"cpu": "the CPU", "sim": "the simulated device"}.get(device["kind"], device["name"])
    what = f"{plural(count, 'iteration')} {'forward' if net['phase'] == 'TEST' else 'of training'}"
    parts = [f"{what if trace.nodes else 'a record without a net,'} on {where}", plural(len(trace.steps), "step")]
    return " · ".join([*parts, f"{len(trace):,} events", *([net["file"]] if net["file"] else [])])


def memories(trace):
    """Return the memories, each with the moments at which its state changes and its copies: event, and the sides from and to."""
    states = list(STATES)
    found = {memory["name"]: {**memory, "changes": [[0, states.index("UNINITIALIZED")]], "copies": []} for memory in trace.memories}
    for name, changes in trace.lives.heads.items():
        if name in trace.owners:
            known = [[moment, states.index(head)] for moment, head in changes if head in STATES]
            owner = found[trace.owners[name]["name"]]
            owner["changes"] = sorted([*owner["changes"], *known], key=lambda change: change[0])
    for number, event in enumerate(trace.events):
        if event.kind in ("copy", "reorder") and event.name in trace.owners:
            source, _, target = event.detail.partition(" to ")
            found[trace.owners[event.name]["name"]]["copies"].append([number, SIDES.get(source, 2), SIDES.get(target or "host", 2)])
    return list(found.values())


def place_names(trace):
    """Return the places with memory: a GPU on which something happens first, then those on which the most happens."""
    # A state of a SyncedMemory names the device that the memory is for, also where it has no block there.
    changes = Counter(event.place for event in trace.events if event.kind in Lives.RULES and event.kind != "head" and event.place)
    names = dict.fromkeys([*(name for name, _, _ in trace.lives.arenas), *(block.place for block in trace.lives.blocks), *changes])
    return sorted(names, key=lambda name: (not (name.startswith("CUDA") and changes[name]), -changes[name])) or ["CPUPlace()"]


def place(trace, name):
    """Return the memory of a place.

    ``segments``: address, bytes, whether it is a buddy allocator's pool, first, last. ``cells``: number of the segment (-1: a block
    in no segment), address, bytes, whether it is used, bytes and name of its block, first, last. ``usage``: for each role, and for
    what the allocator holds, the moments at which the bytes change, and the bytes.
    """
    lives = trace.lives
    segments = sorted((one for one in lives.segments if one.place == name), key=lambda one: one.address)
    numbers = {segment: number for number, segment in enumerate(segments)}
    loose = [block for block in lives.blocks if block.place == name and not block.is_cell]
    cells = [[numbers[cell.segment], cell.address, cell.bytes, cell.used, cell.block.bytes if cell.block else 0,
              cell.block.name if cell.block else "", cell.first, cell.last] for cell in lives.cells if cell.segment in numbers]
    cells += [[-1, block.address, block.bytes, True, block.bytes, block.name, block.first, block.last] for block in loose]
    usage, reserved = {role: [] for role in ROLES}, Counter()
    for moment, where, bytes_of in trace.live_bytes():
        if where == name:
            by_role = Counter()
            for role, nbytes in bytes_of.items():
                by_role[_role(role)] += nbytes
            for role, changes in usage.items():
                if by_role[role] != (changes[-1][1] if changes else 0):
                    changes.append([moment, by_role[role]])
    for one in (*segments, *loose):
        reserved[one.first] += one.bytes
        reserved[one.last] -= one.bytes
    total, usage["held"] = 0, []
    for moment in sorted(reserved):
        total += reserved[moment]
        usage["held"].append([moment, total])
    return {"name": name, "title": place_text(name), "usage": usage, "cells": sorted(cells, key=lambda cell: cell[:2]),
            "segments": [[one.address, one.bytes, one.is_pool, one.first, one.last] for one in segments]}


def _role(role):
    return role if role in ROLES else "other"


def plural(count, noun):
    """Return a number with its noun: ``1 step``, ``2 steps``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
