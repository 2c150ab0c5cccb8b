"""A trace on a terminal: a line for each step, and the summary of all."""

import os

from rich.console import Console
from rich.table import Table

from minicaffe.trace.model import Replay

SIDES = {"UNINITIALIZED": "-", "HEAD_AT_CPU": "host", "HEAD_AT_GPU": "device", "SYNCED": "both", "HEAD_AT_PRIVATE": "private",
         "SYNCED_PRIVATE": "host+private", "RECYCLED": "gone", None: "?"}


def console():
    """Return the rich Console of standard output: as wide as the terminal, plain where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=120)


def show(trace):
    """Print a trace: a line for each step, then the summary.

    Parameters
    ----------
    trace : Trace
    """
    out = console()
    table = Table("step", "layer", box=None, header_style="bold", pad_edge=False)
    for column in ("ms", "copies", "memory", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("heads that changed", overflow="fold")
    events, iteration = trace.events, None
    for number, step in enumerate(trace.steps):
        if step["iteration"] != iteration:
            iteration = step["iteration"]
            table.add_row("", f"iteration {iteration}", style="bold")
        table.add_row(*row(number, step, events[step["first"]:step["last"]]))
    out.print(table)
    for line in summary(trace):
        out.print(line, markup=False)


def row(number, step, events):
    """Return the cells of a step's line.

    Parameters
    ----------
    number : int
    step : dict
    events : list of Event
    """
    mark = {"forward": ">", "backward": "<", "update": "=", "between": ""}.get(step["kind"], "")
    name = f"{mark} {step['layer']}" if step["layer"] else "between"
    copies = [event for event in events if event.kind in ("copy", "reorder")]
    allocs = sum(event.nbytes for event in events if event.kind == "alloc")
    frees = sum(event.nbytes for event in events if event.kind == "free")
    launches = sum(event.kind == "launch" for event in events)
    heads = [f"{touched['memory']}: {SIDES.get(touched['before'])} -> {SIDES.get(touched['after'])}"
             for touched in step["touched"] if touched["before"] != touched["after"]]
    memory = " ".join([*([f"+{size(allocs)}"] if allocs else []), *([f"-{size(frees)}"] if frees else [])])
    ended = f"with {step['with']}" if step["with"] else f"{(step['end'] - step['begin']) / 1e6:.3f}"
    moved = f"{len(copies)}: {size(sum(event.nbytes for event in copies))}" if copies else ""
    return str(number), name, ended, moved, memory, str(launches or ""), ", ".join(heads)


def size(nbytes):
    """Return a number of bytes for people: ``312.5 KiB``.

    Parameters
    ----------
    nbytes : int
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    value, unit = nbytes / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.{0 if value >= 100 else 1}f} {unit}"


def summary(trace):
    """Return the lines about a whole trace: steps, copies, kernels, and the peak of live memory by role.

    Parameters
    ----------
    trace : Trace
    """
    events = trace.events
    copies = [event for event in events if event.kind == "copy"]
    reorders = [event for event in events if event.kind == "reorder"]
    launches = [event for event in events if event.kind == "launch"]
    iterations = len({step["iteration"] for step in trace.steps})
    lines = [f"{len(trace.steps)} steps in {iterations} iteration{'s' if iterations != 1 else ''}, {len(events)} events",
             f"copies: {len(copies)}, {size(sum(e.nbytes for e in copies))}, {sum(e.took for e in copies) / 1e6:.3f} ms",
             f"kernels: {len(launches)}, {sum(e.took for e in launches) / 1e6:.3f} ms"]
    if reorders:
        lines.insert(2, f"reorders: {len(reorders)}, {size(sum(e.nbytes for e in reorders))}")
    for place, (total, roles) in peaks(trace).items():
        parts = ", ".join(f"{role} {size(nbytes)}" for role, nbytes in sorted(roles.items(), key=lambda item: -item[1]) if nbytes)
        lines.append(f"peak at {place}: {size(total)} ({parts})")
    return lines


def peaks(trace):
    """Return by place the most bytes that were live at once, and of those the bytes by role.

    Parameters
    ----------
    trace : Trace
    """
    roles = {memory["name"]: memory["role"] for memory in trace.memories}
    live, best = {}, {}
    replay = Replay({}, trace.document["start"]["blocks"], [])

    def add(block, sign):
        of = live.setdefault(block["place"], {})
        role = roles.get(block["name"], "other")
        of[role] = of.get(role, 0) + sign * block["bytes"]
        total = sum(of.values())
        if total > best.get(block["place"], (-1, {}))[0]:
            best[block["place"]] = total, dict(of)

    for block in replay.blocks.values():
        add(block, 1)
    for event in trace.events:
        before = replay.blocks.get((event.place, event.address))
        replay.take(event)
        if event.kind == "alloc":
            add(replay.blocks[event.place, event.address], 1)
        elif event.kind == "free" and before is not None:
            add(before, -1)
    return best
