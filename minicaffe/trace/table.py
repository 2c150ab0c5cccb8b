"""A trace on a terminal: a line for each step, a summary, and one step in full."""

import os
import re
from collections import Counter

from rich.console import Console
from rich.table import Table

from minicaffe.memory.sizes import size_text
from minicaffe.trace.model import LiveBytes, device_ns, launch_of

WIDE = 112      # columns for speeds and the names of memories whose head changed
SIDES = {"UNINITIALIZED": "-", "HEAD_AT_CPU": "host", "HEAD_AT_GPU": "device", "SYNCED": "both", "HEAD_AT_PRIVATE": "private",
         "SYNCED_PRIVATE": "host+private", "HEAD_AT_GPU_PRIVATE": "device private", "SYNCED_GPU_PRIVATE": "device+private",
         "RECYCLED": "gone", None: "?"}
PLACES = {"CPUPlace()": "on the host", "PinnedPlace()": "in the host's page-locked memory"}
MARKS = {"forward": ">", "backward": "<", "update": "=", "between": ""}
ALLOCATOR_ACTIONS = {"cache hit": "from the cache", "split": "the rest split off", "merge": "joined with its free neighbours",
             "segment taken": "a new segment", "segment given back": "a segment given back", "pool taken": "a new pool",
             "pool given back": "a pool given back"}
ALLOC_KINDS, FREE_KINDS = {"cache hit", "split", "segment taken", "pool taken"}, {"merge", "segment given back", "pool given back"}
BUDDY_ACTIONS = {**ALLOCATOR_ACTIONS, "split": "cut in halves", "merge": "joined with its buddy"}


def console():
    """Return the rich Console of standard output: as wide as the terminal; where there is none, it is plain and lines are whole."""
    plain = {"highlight": False, "markup": False, "emoji": False}
    found = Console(**plain)
    if found.is_terminal or "COLUMNS" in os.environ:
        return found
    return Console(**plain, file=WithoutPadding(found.file), width=10_000)


class WithoutPadding:
    """A text file that leaves out spaces at the ends of lines: a rich table pads each line to the width of the longest.

    Parameters
    ----------
    file : file
        What is written to.
    """

    def __init__(self, file):
        self.file = file

    def write(self, text):
        return self.file.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name):
        return getattr(self.file, name)


def show(trace):
    """Print a Trace: a line for each step, then the summary."""
    out = console()
    wide = out.width >= WIDE
    table = Table("step", box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", overflow="fold")
    for column in ("ms", *(("on device", "GFLOP/s", "GB/s") if wide else ()), "copies", "memory", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("heads that changed" if wide else "heads", overflow="fold")
    iteration = None
    for number, step in enumerate(trace.steps):
        if step["iteration"] != iteration:
            iteration = step["iteration"]
            table.add_row("", f"iteration {iteration}", style="bold")
        table.add_row(*row(trace, number, wide))
    out.print(table)
    for line in summary(trace):
        out.print(line)


def row(trace, number, wide=True):
    """Return the cells of the line of step `number`.

    With `wide` they have speeds, and the names of memories whose head changed instead of their number.
    """
    step = trace.steps[number]
    events = trace.events[step["first"]:step["last"]]
    copies = [event for event in events if event.kind in ("copy", "reorder")]
    memory = [f"{sign}{size_text(nbytes)}" for kind, sign in (("alloc", "+"), ("free", "-"))
              if (nbytes := sum(event.nbytes for event in events if event.kind == kind))]
    launches = sum(event.kind in ("launch", "call") for event in events)
    heads = [f"{touched['memory']}: {SIDES[touched['before']]} -> {SIDES[touched['after']]}"
             for touched in step["touched"] if touched["before"] != touched["after"]]
    spent, there = step["end"] - step["begin"], device_ns(events)
    busy = there or spent
    speeds = [f"{there / 1e6:.3f}" if there else "",
              *(f"{of / busy:.1f}" if of and busy and not step["with"] else "" for of in (step["flops"], step["bytes"]))]
    moved = f"{len(copies)}: {size_text(sum(event.nbytes for event in copies))}" if copies else ""
    return [str(number), f"{MARKS[step['kind']]} {step['layer'] or step['kind']}".strip(),
            f"with {step['with']}" if step["with"] else f"{spent / 1e6:.3f}", *(speeds if wide else ()), moved, " ".join(memory),
            str(launches or ""), ", ".join(heads) if wide else str(len(heads) or "")]


def describe(trace, number):
    """Return the lines about step `number`: memories and their heads, then what happened, in order."""
    step = trace.steps[number]
    spent = step["end"] - step["begin"]
    what = {"update": "update of " + ", ".join(step.get("parameters", ())), "between": "between layers"}
    line = what.get(step["kind"]) or f"layer {step['layer']}, {step['kind']}"
    lines = [f"step {number} of {len(trace.steps)}, iteration {step['iteration']}: {line}"]
    if step["with"]:
        lines.append(f"computed with {step['with']}")
    else:
        there = device_ns(trace.events[step["first"]:step["last"]])
        lines.append(", ".join([f"{spent / 1e6:.3f} ms", *([f"{there / 1e6:.3f} ms of it on the device"] if there else []),
                                *_speeds(trace, step["flops"], step["bytes"], there or spent)]))
    if step["loss"] is not None:
        lines.append(f"loss {float(step['loss']):g}")
    if step["touched"]:
        width = max(len(touched["memory"]) for touched in step["touched"])
        sizes = {memory["name"]: memory["bytes"] for memory in trace.memories}
        for touched in step["touched"]:
            before, after = touched["before"] or "?", touched["after"] or "?"
            lines.append(f"  {touched['memory']:<{width}}  {size_text(sizes.get(touched['memory'], 0)):>9}  "
                         + (before if before == after else f"{before} -> {after}"))
    for i in range(step["first"], step["last"]):
        lines += _event_lines(trace, i)
    return lines


def sources(trace, number):
    """Return the lines of the sources of the kernels of step `number`."""
    step, names = trace.steps[number], {}
    for event in trace.events[step["first"]:step["last"]]:
        if event.kind == "launch":      # kernels of one template have one source
            kernel = trace.document["kernels"][event.name]
            names.setdefault((kernel["source"], kernel["header"]), {})[event.name] = None
    lines = []
    for (source, header), which in names.items():
        lines += [f"{'; '.join(which)}: " + (f"in {header}" if source else "its source is not in minicaffe's headers"),
                  *(source or "").splitlines(), ""]
    return lines or ["this step launches no kernels"]


def _event_lines(trace, number):
    """Return the lines about one event; none if it is part of another event or is reported above."""
    event = trace.events[number]
    if event.kind in ("alloc", "free"):
        sign = "+" if event.kind == "alloc" else "-"
        how = decision(trace, number)
        return [f"  {sign}{size_text(event.nbytes)} {event.place}: {event.name or 'no name'}" + (f" ({how})" if how else "")]
    if event.kind in ("copy", "reorder"):
        speed = f", {event.nbytes / event.took:.1f} GB/s" if event.took else ""
        return [f"  {event.kind} {event.detail}: {event.name}, {size_text(event.nbytes)} in {event.took / 1e6:.3f} ms{speed}",
                *([f"    {trace.document['why'][str(number)]}"] if str(number) in trace.document["why"] else [])]
    if event.kind == "call":
        return [f"  call {event.name}, {event.took / 1e6:.3f} ms"]
    if event.kind == "launch":
        launch = launch_of(event)
        grid = " x ".join(str(n) for i, n in enumerate(launch.grid) if i == 0 or n > 1)
        parts = [f"{grid} blocks of {launch.threads} threads", f"{event.took / 1e6:.3f} ms"]
        return [f"  kernel {event.name}", f"    {', '.join([*parts, *_speeds(trace, None, event.nbytes, event.took)])}",
                *([f"    arrays: {', '.join(name or 'no name' for name, _ in launch.arrays)}"] if launch.arrays else [])]
    return []


def _speeds(trace, flops, nbytes, spent):
    """Return the amounts of work in a time (ns), with speeds and the share of a copy's speed."""
    parts = []
    if flops:
        parts.append(f"{flops / 1e6:,.2f} MFLOP" + (f" ({flops / spent:.1f} GFLOP/s)" if spent else ""))
    if nbytes:
        parts.append(size_text(nbytes))
        whole = trace.document["device"]["copy_bandwidth"]
        if spent:
            share = f", {nbytes / spent * 1e9 / whole:.0%} of a large copy's" if whole else ""
            parts[-1] += f" ({nbytes / spent:.1f} GB/s{share})"
    return parts


def decision(trace, number):
    """Return the allocator's actions for event `number`, an ``alloc`` or ``free``, from the events next to it."""
    events, place, kinds = trace.events, trace.events[number].place, []
    towards, those = (-1, ALLOC_KINDS) if events[number].kind == "alloc" else (1, FREE_KINDS)
    at = number + towards
    while 0 <= at < len(events) and events[at].kind in those and events[at].place == place:
        kinds.append(events[at].kind)
        at += towards
    kinds = kinds[::towards]
    buddy = any(arena["place"] == place and arena["allocator"] == "buddy" for arena in trace.document["start"]["arenas"])
    words = BUDDY_ACTIONS if buddy else ALLOCATOR_ACTIONS
    return ", ".join(words[kind] + (f" {times} times" if times > 1 else "") for kind, times in Counter(kinds).items())


def walk(trace, read, write):
    """Show steps that typed lines select: see HELP.

    ``read(prompt)`` gives a line without its end, EOFError ends the walk; ``write(line)`` shows one.
    """
    number, wanted = 0, ""
    if not trace.steps:
        return
    lines = describe(trace, number)
    while True:
        for line in lines:
            write(line)
        try:
            wanted = read(f"step {number} ({HELP}): ").strip()
        except EOFError:
            return
        if wanted == "q":
            return
        found = number
        if wanted in ("", "n"):
            found = number + 1
        elif wanted == "p":
            found = number - 1
        elif wanted.isdecimal():
            found = int(wanted)
        elif wanted != "s":
            later = [*range(number + 1, len(trace.steps)), *range(number + 1)]
            found = next((i for i in later if trace.steps[i]["layer"] == wanted), -1)
        if not 0 <= found < len(trace.steps):
            lines = [f"there is no step {wanted!r}; there are 0 to {len(trace.steps) - 1}, and layers by name"
                     if wanted not in ("", "n", "p") else f"this is the {'first' if found < 0 else 'last'} step"]
            continue
        number = found
        lines = sources(trace, number) if wanted == "s" else describe(trace, number)


HELP = "n next, p back, number or layer, s source of kernels, q quit"


def summary(trace):
    """Return the lines about a whole trace: steps, copies, kernels, and the peak of live memory by role."""
    events = trace.events
    copies = [event for event in events if event.kind == "copy"]
    reorders = [event for event in events if event.kind == "reorder"]
    launches, calls = ([event for event in events if event.kind == kind] for kind in ("launch", "call"))
    iterations = len({step["iteration"] for step in trace.steps})
    lines = [f"{len(trace.steps)} steps in {iterations} iteration{'s' if iterations != 1 else ''}, {len(events)} events",
             *(f"{what}: {len(those)}, {size_text(sum(e.nbytes for e in those))}, {sum(e.took for e in those) / 1e6:.3f} ms"
               for what, those in (("copies", copies), ("reorders", reorders)) if those or what == "copies"),
             *(f"{what}: {len(those)}, {device_ns(those) / 1e6:.3f} ms"
               for what, those in (("kernels", launches), ("calls of libraries", calls)) if those), *gradient_transfers(trace)]
    for place, (total, roles) in peaks(trace).items():
        parts = ", ".join(f"{role} {size_text(n)}" for role, n in sorted(roles.items(), key=lambda item: -item[1]) if n)
        where = PLACES.get(place) or place.replace("CUDAPlace(", "on device ").rstrip(")")
        lines.append(f"peak {where}: {size_text(total)} in blocks of this record ({parts})")
    return lines


def gradient_transfers(trace):
    """Return the line about gradients sent between processes, and the time that overlaps backward; [] for one process."""
    there = [event for event in trace.events if event.kind == "travel"]
    if not there:
        return []
    total, hidden, end = 0, 0, 0
    backward = [(step["begin"], step["end"]) for step in trace.steps if step["kind"] == "backward"]
    for begin, arrived in sorted((event.time - event.took, event.time) for event in there):
        begin, end = max(begin, end), max(arrived, end)     # concurrent transfers count once
        total += max(0, end - begin)
        hidden += sum(max(0, min(end, last) - max(begin, first)) for first, last in backward)
    return [f"gradients sent between processes: {len(there)}, {size_text(sum(e.nbytes for e in there))}, "
            f"{total / 1e6:.3f} ms, {hidden / 1e6:.3f} of them while layers ran backward"]


def peaks(trace):
    """Return by place the peak of live bytes, and its bytes by role."""
    usage = LiveBytes(trace, {memory["name"]: memory["role"] for memory in trace.memories})
    best = {place: (sum(roles.values()), dict(roles)) for place, roles in usage.live.items()}
    for event in trace.events:
        if usage.take(event):
            roles = usage.live[event.place]
            total = sum(roles.values())
            if total > best.get(event.place, (-1, {}))[0]:
                best[event.place] = total, dict(roles)
    return best
