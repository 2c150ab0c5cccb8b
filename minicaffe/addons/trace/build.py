"""Build the document of a trace (docs/trace.md) from recorded events: the owner of each memory, and the step of each event."""

import functools
import importlib.metadata
import math
import os
import timeit
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minicaffe import cuda, public_modules, sim
from minicaffe.addons.trace import kernels
from minicaffe.addons.trace.schema import COLUMNS, FORMAT
from minicaffe.common import caffe
from minicaffe.device.processor import cpuinfo_value
from minicaffe.device.threads import get_num_threads
from minicaffe.errors import OutOfMemoryError
from minicaffe.inspection import cost
from minicaffe.memory import Buffer, CUDAPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.states import SyncedHead
from minicaffe.proto import caffe_pb2


class Memory(NamedTuple):
    """A SyncedMemory of a net or solver; `called` is its name in events, `name` a unique one."""

    name: str
    called: str
    blob: str
    part: str
    bytes: int
    role: str
    head: object
    aliases: list


def memories_of(net, solver=None):
    """Return the memories of a net's blobs and parameters, and of a solver's history, as `Memory` by their id.

    The result must not keep a memory alive: a net with a plan recycles only memories without another owner.
    """
    found, names = {}, set()

    def add(blob, part, role):
        memory = blob.diff_memory if part == "diff" else blob.data_memory
        title = f"{blob.name} {part}"
        entry = found.get(id(memory))
        if entry is None:
            name = _unused(memory.name or title, names)
            entry = found[id(memory)] = Memory(name, memory.name, blob.name, part, memory.size, role, memory.head, [])
        if title != entry.name and title not in entry.aliases:
            entry.aliases.append(title)

    if net is None:
        return found
    for blob in net.param_table.params:
        add(blob, "data", "parameter")
        add(blob, "diff", "gradient")
    for node in net.nodes:
        for blob in node.tops:
            add(blob, "data", "activation" if node.bottoms else "input")
            add(blob, "diff", "gradient")
    for blob in solver.history if solver is not None else ():
        add(blob, "data", "history")
    return found


def _unused(name, names):
    """Return `name`, or `name #2`, `name #3`, ... if it is in the set `names`; add the result to `names`."""
    repeat, free = 1, name
    while free in names:
        repeat += 1
        free = f"{name} #{repeat}"
    names.add(free)
    return free


def document(parts, net, solver, device):
    """Return the document of a `Recorder`, a dict for JSON.

    `parts` is a list of at least one Part (recorder.py), `device` is from `present_device`; net and solver may be None.
    """
    memories = memories_of(net, solver)
    start, began = parts[0], parts[0].time
    events, heads, called = _with_unique_names([event for part in parts for event in part.events], start.heads, memories)
    steps = _StepBuilder(net, solver, memories, began)
    for part in parts:
        steps.add_iteration(part)
    _set_touched(steps.found, events, heads, steps.uses)
    known = {entry.name: {key: value for key, value in entry._asdict().items() if key not in ("head", "called")}
             for entry in memories.values()}
    for event in events:
        if event.kind in ("alloc", "head") and event.name and event.name not in known:
            old_name = called.get(event.name, event.name)
            blob, _, part = old_name.rpartition(" ")
            role = known[old_name]["role"] if old_name in known else "workspace"  # a blob's memory before it grew, or another net's
            known[event.name] = {"name": event.name, "blob": blob, "part": part, "bytes": event.nbytes, "role": role, "aliases": []}
    _set_titles(known, steps.found, net.nodes if net is not None else [])
    nodes = [_node(node, fused) for node, fused in zip(net.nodes, net.fused())] if net is not None else []
    for step, used in zip(steps.found, steps.uses):
        if step["node"] is not None:
            step["flops"], step["bytes"] = (nodes[step["node"]][key][step["kind"]] for key in ("flops", "bytes"))
        else:       # an update reads and writes parameter, gradient and history
            step["bytes"] = sum(known[name]["bytes"] for name in used) * 2
    strings = {}

    def number(text):
        return strings.setdefault(text, len(strings))

    rows = [(event.time - began, number(event.kind), number("" if event.place is None else repr(event.place)), event.address,
             event.nbytes, number(event.name), number(event.detail), event.took) for event in events]
    launched = dict.fromkeys(event.name for event in events if event.kind == "launch")
    draw = public_modules.attribute("draw") if nodes else None      # of another add-on, which may be missing
    return {
        "format": FORMAT,
        "minicaffe": importlib.metadata.version("minicaffe"),
        "device": device,
        "net": {"name": net.name if net is not None else "", "file": getattr(net, "file", None) or "",
                "phase": caffe_pb2.Phase.Name(net.phase) if net is not None else "", "nodes": nodes,
                "drawing": draw and draw.net_svg(net, standalone=False)},
        "memories": list(known.values()),
        "start": {"time": began, "heads": heads, "blocks": start.blocks, "arenas": start.arenas},
        "strings": list(strings),
        "events": {key: [row[i] for row in rows] for i, key in enumerate(COLUMNS)},
        "steps": steps.found,
        "why": {},
        "kernels": {name: kernels.source_of(name) for name in launched},
    }


@dataclass(slots=True)
class _MemoryEvents:
    """The events of one SyncedMemory: numbers of its head events, its head before the first and after the last."""

    address: int
    called: str
    first: str
    head: str
    numbers: list
    name: str = ""


def _with_unique_names(events, start, memories):
    """Rename memories so that each has a unique name, also in its head and copy events.

    Scratch memories and blobs of other nets may have names of this net's memories. An address may also be used again, for example
    after a blob grew. `start` has the names and heads of the memories before the first event, by address; `memories` the Memory of
    the present ones, by id. Return the events, and two dicts by new name: the heads before the first event, and the old names.
    """
    present = {address: _MemoryEvents(address, called, head, head, []) for address, (called, head) in start.items()}
    lives, named = list(present.values()), list(events)
    for i, event in enumerate(events):
        if event.kind == "head":
            before, _, after = event.detail.rpartition(" by ")[0].partition(" -> ")
            life = present.get(event.address)
            if life is None or (life.called, life.head) != (event.name, before):    # the address is used again
                life = present[event.address] = _MemoryEvents(event.address, event.name, before, before, [])
                lives.append(life)
            life.head = after
            life.numbers.append(i)
    names, used, heads, called = {}, {one.name for one in memories.values()}, {}, {}
    for life in lives:
        memory = memories.get(life.address)
        if memory is not None and present[life.address] is life and memory.called == life.called \
                and (memory.head != SyncedHead.UNINITIALIZED or life.head == "UNINITIALIZED"):
            life.name = memory.name
        elif life.numbers:
            key = life.address, life.called
            if key not in names:
                names[key] = _unused(life.called, used)
            life.name = names[key]
        else:       # a memory without events
            continue
        heads.setdefault(life.name, life.first)
        called[life.name] = life.called
        for i in life.numbers if life.name != life.called else ():
            named[i] = events[i]._replace(name=life.name)
            before = events[i - 1] if i else events[i]      # the copy that set this head
            if before.kind in ("copy", "reorder") and before.name == life.called:
                named[i - 1] = before._replace(name=life.name)
    return named, {one.name: str(one.head) for one in memories.values()} | heads, called


class _StepBuilder:
    """Group events into steps: the events of a layer or update, and those between two of them (kind ``between``).

    `found` has the steps as dicts for the document, `uses` the names of the memories that each step reads or writes.
    """

    def __init__(self, net, solver, memories, began):
        self.began, self.solver = began, solver
        self.found, self.uses = [], []
        self.node_numbers = {id(node): i for i, node in enumerate(net.nodes)} if net is not None else {}
        self.iteration = 0
        self.open = None            # the begin event of the step that has not ended; None between steps
        self.last = None            # kind and number of the node of the last step of the net
        self.forwards = {}          # id of a node -> its last forward step
        self.uses_of_nodes = [_uses(node, memories) for node in net.nodes] if net is not None else []
        self.uses_of_parameters = {}
        if net is not None:
            history = solver.history if solver is not None else []
            count = len(net.learnable_params)
            for i, blob in enumerate(net.learnable_params):
                of = [blob.data_memory, blob.diff_memory, *(one.data_memory for one in history[i::count])]
                self.uses_of_parameters[blob.name] = [memories[id(memory)].name for memory in of if id(memory) in memories]

    def add_iteration(self, part):
        """Add the events of an iteration; a step that an error interrupted ends with it."""
        if self.solver is not None:
            self.iteration = part.iteration
        for event in part.events:
            self.add_event(event)
        self.open = None

    def add_event(self, event):
        """Add the next event to the present step; it may begin or end a step."""
        kind, of_net = event.kind, event.address in self.node_numbers
        if kind == "begin" and (self.open is None or of_net):
            self.begin_step(event)
        elif self.open is None and (not self.found or self.found[-1]["kind"] != "between"
                                    or self.found[-1]["iteration"] != self.iteration):
            self.add_step("between", "", None, event)
        step = self.found[-1]
        step["last"] += 1
        step["end"] = event.time - self.began
        if kind == "end" and self.open is not None and (event.address, event.name) == (self.open.address, self.open.name):
            step["with"] = event.detail.partition(" with ")[2] or None
            self.open = None
        elif kind == "loss" and event.address in self.forwards:
            loss = float(event.detail)
            self.forwards[event.address]["loss"] = loss if math.isfinite(loss) else event.detail    # JSON has no nan

    def begin_step(self, event):
        """Add the step that a begin event starts: a layer of the net, one of another net (without a number), or an update.

        Without a solver an iteration begins with the first forward step after a step of another kind, or after a later layer.
        """
        node, kind = self.node_numbers.get(event.address), event.detail
        if self.solver is None and kind == "forward" and node is not None:
            if self.last is not None and (self.last[0] != "forward" or node <= self.last[1]):
                self.iteration += 1
        if node is not None or kind == "update":
            self.last = kind, node
        self.open = event
        name = event.name if node is not None or not self.node_numbers else f"{event.name} (another net)"
        step = self.add_step(kind, "update" if kind == "update" else name, node, event)
        if kind == "update":
            step["parameters"] = self.parameters(event.name)
            self.uses[-1] = [name for parameter in step["parameters"] for name in self.uses_of_parameters.get(parameter, ())]
        elif node is not None:
            self.uses[-1] = self.uses_of_nodes[node][kind]
        if kind == "forward":
            self.forwards[event.address] = step

    def parameters(self, names):
        """Return the names of an update's parameters, separated by commas; a name may contain commas."""
        found, name = [], ""
        for part in names.split(", ") if names else ():
            name = f"{name}, {part}" if name else part
            if name in self.uses_of_parameters or not self.uses_of_parameters:
                found.append(name)
                name = ""
        return [*found, name] if name else found

    def add_step(self, kind, layer, node, event):
        """Append a step without events, and return it; `event` is its first one, which is added later."""
        # A transfer of gradients may have begun in an earlier step, or before the record; steps must not overlap.
        first, earliest = (self.found[-1]["last"], self.found[-1]["end"]) if self.found else (0, 0)
        begin = max(event.time - event.took - self.began, earliest)
        self.found.append({"iteration": self.iteration, "kind": kind, "layer": layer, "node": node, "first": first, "last": first,
                           "begin": begin, "end": begin, "with": None, "flops": None, "bytes": 0, "touched": [], "loss": None})
        self.uses.append([])
        return self.found[-1]


def _uses(node, memories):
    """Return the names of the memories that a node's forward and backward read or write, by kind of step."""
    layer = node.layer
    params = list(node.blobs)
    needed = [blob for blob, needs in zip(node.bottoms, node.bottom_needs) if needs]
    read = [*(node.bottoms if layer.backward_reads_bottoms else ()), *(node.tops if layer.backward_reads_tops else ())]
    uses = {
        "forward": [blob.data_memory for blob in [*node.bottoms, *params, *node.tops]],
        "backward": [*(blob.diff_memory for blob in node.tops), *(blob.data_memory for blob in [*read, *params]),
                     *(blob.diff_memory for blob in [*params, *needed])] if node.needs_backward else [],
    }
    return {kind: list(dict.fromkeys(memories[id(one)].name for one in used if id(one) in memories)) for kind, used in uses.items()}


def _set_touched(steps, events, start, uses):
    """Set the memories that each step touched, with their heads before and after."""
    heads = dict(start)
    for step, used in zip(steps, uses):
        before = {}
        here = events[step["first"]:step["last"]]
        changed = [event.name for event in here if event.kind in ("head", "copy", "reorder") and event.name]
        for name in dict.fromkeys([*used, *changed]):
            before[name] = heads.get(name)
        for event in here:
            if event.kind == "head":
                heads[event.name] = event.detail.partition(" -> ")[2].partition(" by ")[0]
        step["touched"] = [{"memory": name, "before": head, "after": heads.get(name)} for name, head in before.items()]


def _set_titles(known, steps, nodes):
    """Give each memory a unique `title` that says what it is: ``conv1``, ``conv1 diff``, ``next batch (label)``.

    Scratch memories and staging buffers of batches have one name for all layers: the step that touches them has the layer.
    """
    titles = {}
    for step in steps:
        staged = iter(nodes[step["node"]].tops if step["node"] is not None else ())
        for name in (touched["memory"] for touched in step["touched"]):
            blob = known[name]["blob"] if name in known else None
            if blob == "next batch":
                titles.setdefault(name, f"next batch ({top.name})" if (top := next(staged, None)) is not None else blob)
            elif blob in ("scratch", "[kept for backward]") and step["layer"]:
                titles.setdefault(name, f"{blob.strip('[]')} of {step['layer']}")
    used = set()
    for name, entry in known.items():
        entry["title"] = _unused(titles.get(name) or (entry["blob"] if entry["part"] == "data" else name) or name, used)


def _node(node, fused):
    """Return the document's entry of a node."""
    operations = list(node.layer.operations())
    blobs = [*node.bottoms, *node.tops, *node.blobs]
    layout = next((layout.name for blob in node.tops if (layout := blob.layout_of_data()) is not None), None)
    costs = {direction: cost.of_node(node, direction) for direction in ("forward", "backward")}
    engines = dict.fromkeys(engine for operation in operations if (engine := operation.describe()["engine"]) is not None)
    return {
        "name": node.name, "type": node.type, "line": node.line,
        "bottoms": [blob.name for blob in node.bottoms], "tops": [blob.name for blob in node.tops],
        "params": [blob.name for blob in node.blobs], "shapes": {blob.name: list(blob.shape) for blob in blobs},
        "engine": " ".join(engines) or None, "layout": layout,
        "fused": fused,
        "flops": {kind: of.flops for kind, of in costs.items()}, "bytes": {kind: of.bytes for kind, of in costs.items()},
    }


def present_device():
    """Return the document's entry of the processor or GPU that computes."""
    threads = get_num_threads()
    if caffe.mode == "cpu":
        name = cpuinfo_value("model name") or os.uname().machine
        return {"kind": "cpu", "name": name, "threads": threads, "copy_bandwidth": host_bandwidth(threads)}
    device = cuda.current()
    try:
        bandwidth = device_bandwidth(device.index)
    except OutOfMemoryError:
        bandwidth = None
    return {"kind": "sim" if sim.selected() else "gpu", "name": device.name, "threads": threads, "copy_bandwidth": bandwidth}


@functools.cache
def host_bandwidth(threads):
    """Measure how fast `threads` threads copy large arrays, in bytes each second, read and written."""
    source, target = np.ones(1 << 23, np.float32), np.zeros(1 << 23, np.float32)    # 32 MiB each: more than caches of a core hold
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    with ThreadPoolExecutor(threads) as pool:
        return _peak_rate(lambda: list(pool.map(lambda part: np.copyto(*part), parts)), 2 * source.nbytes)


@functools.cache
def device_bandwidth(index):
    """Measure how fast device `index` copies within its memory. Raises OutOfMemoryError if there is none for them."""
    place = CUDAPlace(index)
    nbytes = 1 << 20 if sim.selected() else 1 << 28
    allocator, side, device = registry.allocator(place, "plain"), registry.device_side(place), cuda.get_device(index)
    source, target = Buffer(allocator, nbytes), Buffer(allocator, nbytes)
    side.zero(source.address, nbytes)

    def copies():
        for _ in range(10):
            side.copy_within(target.address, source.address, nbytes)
        device.synchronize()

    return _peak_rate(copies, 20 * nbytes)


def _peak_rate(work, amount):
    """Return the amount each second of the fastest of some runs."""
    return int(amount / min(timeit.repeat(work, number=1, repeat=6)))
