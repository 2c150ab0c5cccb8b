"""A trace as text on a terminal: a table of the steps, a summary, and one step in full. Words for states and places: model.py."""

import os
import sys

from rich.table import Table
from rich.text import Text

from minicaffe.addons.trace.model import device_ns, place_text, state_word
from minicaffe.addons.trace.words import event_text, step_lines
from minicaffe.memory.sizes import size_text

WIDE_TERMINAL = 112     # characters; a narrower one shows neither speeds nor the memories whose state changed
TIME_COLUMNS = "ms", "on device", "GFLOP/s", "GB/s"     # grey if the device is simulated
MIN_NAME_WIDTH = 12     # characters for the name of a layer, and for the names of memories
STEP_MARKS = {"forward": ">", "backward": "<", "update": "=", "between": ""}
SHOWN_KINDS = {"alloc", "free", "copy", "reorder", "call", "launch"}    # of events, in a step in full


def show(trace, out):
    """Print a Trace on a rich Console: a line for each step, then the summary. Names that are too long for the terminal are cut."""
    wide = out.width >= WIDE_TERMINAL
    heads = ["step", "layer", "ms", *(("on device", "GFLOP/s", "GB/s") if wide else ()), "copies", "memory", "kernels",
             *(["states that changed"] if wide else [])]
    rows, styles, iteration = [], [], None
    for number, step in enumerate(trace.steps):
        if step["iteration"] != iteration:
            iteration = step["iteration"]
            rows.append(["", f"iteration {iteration}", *[""] * (len(heads) - 2)])
            styles.append("bold")
        rows.append(row(trace, number, wide))
        styles.append(None)
    titles = ["sim ms" if trace.simulated and head == "ms" else head for head in heads]
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    names = widths.pop() if wide else 0
    left = out.width - 2 * (len(heads) - 1) - sum(widths) + widths[1]
    widths[1] = min(widths[1], max(MIN_NAME_WIDTH, left - min(names, MIN_NAME_WIDTH)))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head, title in zip(heads, titles):
        table.add_column(title, justify="left" if head in ("step", "layer", "states that changed") else "right", no_wrap=True,
                         style="dim" if trace.simulated and head in TIME_COLUMNS else None)
    for cells, style in zip(rows, styles):
        cells[1] = cut_middle(cells[1], widths[1])
        cells[9:] = [truncate(cell, max(MIN_NAME_WIDTH, left - widths[1])) for cell in cells[9:]]
        table.add_row(*map(Text, cells), style=style)
    out.print(table)
    for line in _wrapped(trace, summary(trace), out):
        out.print(line)


def cut_middle(text, width):
    """Return `text` in at most `width` characters: without its middle, since names of layers differ at their ends."""
    return text if len(text) <= width else f"{text[: (width - 1) // 2]}…{text[len(text) - width // 2 :]}"


def truncate(text, width):
    """Return `text` in at most `width` characters, without its end."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def row(trace, number, wide=True):
    """Return the cells of the table row of step `number`.

    With `wide` it has speeds, the number of copies and changed states, and bytes taken and freed apart, not their difference.
    """
    step = trace.steps[number]
    events = trace.events[step["first"]:step["last"]]
    copies = [event for event in events if event.kind in ("copy", "reorder")]
    taken, freed = (sum(event.nbytes for event in events if event.kind == kind) for kind in ("alloc", "free"))
    if not wide:
        taken, freed = max(0, taken - freed), max(0, freed - taken)
    memory = [f"{sign}{size_text(nbytes)}" for sign, nbytes in (("+", taken), ("-", freed)) if nbytes]
    launches = sum(event.kind in ("launch", "call") for event in events)
    states = [f"{trace.titles.get(touched['memory'], touched['memory'])}: {changes(touched)}"
              for touched in step["touched"] if touched["before"] != touched["after"]]
    spent, on_device = step["end"] - step["begin"], device_ns(events)
    busy = on_device or spent
    speeds = [f"{on_device / 1e6:.3f}" if on_device else "",
              *(f"{of / busy:.1f}" if of and busy and not step["with"] else "" for of in (step["flops"], step["bytes"]))]
    moved = (f"{len(copies)}: " if wide else "") + size_text(sum(event.nbytes for event in copies)) if copies else ""
    return [str(number), f"{STEP_MARKS[step['kind']]} {step['layer'] or step['kind']}".strip(),
            "fused" if step["with"] else f"{spent / 1e6:.3f}", *(speeds if wide else ()), moved, " ".join(memory),
            str(launches or ""), *([", ".join(states)] if wide else [])]


def changes(touched):
    """Return the state of a memory before and after a step, in words."""
    before, after = state_word(touched["before"]), state_word(touched["after"])
    return before if before == after else f"{before} -> {after}"


def describe(trace, number, why=True):
    """Return the lines about step `number`: memories and their states, then events in order; `why` adds reasons of copies."""
    step = trace.steps[number]
    lines = step_lines(trace, number)
    if step["touched"]:
        names = [trace.titles.get(touched["memory"], touched["memory"]) for touched in step["touched"]]
        width = max(map(len, names))
        sizes = {memory["name"]: memory["bytes"] for memory in trace.memories}
        lines += [f"  {name:<{width}}  {size_text(sizes.get(touched['memory'], 0)):>9}  {changes(touched)}"
                  for name, touched in zip(names, step["touched"])]
    for i in range(step["first"], step["last"]):
        lines += _event_lines(trace, i, why)
    return lines


def sources(trace, number):
    """Return the source code of the kernels of step `number`, as lines."""
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


def _event_lines(trace, number, why):
    """Return the lines about one event; none if it is part of another event or is reported above."""
    kind = trace.events[number].kind
    if kind not in SHOWN_KINDS:
        return []
    word, (first, *more) = event_text(trace, number)
    reason = trace.document["why"].get(str(number)) if why and kind in ("copy", "reorder") else None
    return [f"  {first}" if kind in ("alloc", "free") else f"  {word} {first}", *(f"    {line}" for line in more),
            *([f"    {reason}"] if reason is not None else [])]


KEYS = "Enter next, p back, w why, s source, m more, q quit, number or layer"


def walk(trace, read, out):
    """Show the steps that the user selects by typed lines (KEYS). On a terminal, one screen of lines at once.

    Parameters
    ----------
    trace : Trace
    read : callable
        ``read(prompt)`` returns a typed line without its end; EOFError ends the walk.
    out : rich.console.Console
    """
    number = 0
    rows = out.height - 2 if out.is_terminal or "LINES" in os.environ else sys.maxsize      # the prompt may need two lines
    lines = _wrapped(trace, describe(trace, number, why=False), out) if trace.steps else []
    while lines:
        more = len(lines) > rows
        shown, lines = lines[: rows - more], lines[rows - more :] if more else []
        for line in shown:
            out.print(line)
        if more:
            out.print(f"… {len(lines)} more lines: m")
        try:
            typed = read(f"step {number} [{KEYS}]: ").strip()
        except EOFError:
            return
        if typed == "q":
            return
        if typed == "m":
            lines = lines or ["there are no more lines of this step"]
            continue
        if typed in ("w", "s"):
            found = why_lines(trace, number) if typed == "w" else sources(trace, number)
        else:
            to = _chosen(trace, number, typed)
            if 0 <= to < len(trace.steps):
                number = to
                found = describe(trace, number, why=False)
            elif typed in ("", "n", "p"):
                found = [f"this is the {'first' if to < 0 else 'last'} step"]
            else:
                found = [f"there is no step {typed!r}; there are 0 to {len(trace.steps) - 1}, and layers by name"]
        lines = _wrapped(trace, found, out)


def _chosen(trace, number, typed):
    """Return the number of the step that a typed line selects; less than 0, or too large, if there is none."""
    if typed in ("", "n", "p"):
        return number - 1 if typed == "p" else number + 1
    if typed.isdecimal():
        return int(typed)
    later = [*range(number + 1, len(trace.steps)), *range(number + 1)]
    return next((i for i in later if trace.steps[i]["layer"] == typed), -1)


def _wrapped(trace, lines, out):
    """Return lines as Texts that fit a terminal; times of the simulated device are grey."""
    found = []
    for line in lines:
        text = Text(line)
        if trace.simulated:
            text.highlight_regex(r"\bsimulated: .*|[\d.]+ ms simulated", "dim")
        found += text.wrap(out, out.width) or [text]
    return found


def why_lines(trace, number):
    """Return the reasons of the copies and reorders of step `number`."""
    step, why = trace.steps[number], trace.document["why"]
    return [why[str(i)] for i in range(step["first"], step["last"]) if str(i) in why] or ["this step copies nothing"]


def summary(trace):
    """Return the lines about a whole trace: steps, copies, kernels, and the peak of live memory by role."""
    events = trace.events
    copies, reorders, launches, calls = ([event for event in events if event.kind == kind]
                                         for kind in ("copy", "reorder", "launch", "call"))
    iterations, ms = len({step["iteration"] for step in trace.steps}), "ms simulated" if trace.simulated else "ms"
    lines = [f"{len(trace.steps)} steps in {iterations} iteration{'s' if iterations != 1 else ''}, {len(events)} events",
             *(f"{what}: {len(those)}, {size_text(sum(e.nbytes for e in those))}, {sum(e.took for e in those) / 1e6:.3f} {ms}"
               for what, those in (("copies", copies), ("reorders", reorders)) if those or what == "copies"),
             *(f"{what}: {len(those)}, {device_ns(those) / 1e6:.3f} {ms}"
               for what, those in (("kernels", launches), ("calls of libraries", calls)) if those), *gradient_transfers(trace)]
    for place, (total, roles) in peaks(trace).items():
        parts = ", ".join(f"{role} {size_text(n)}" for role, n in sorted(roles.items(), key=lambda item: -item[1]) if n)
        lines.append(f"live memory, {place_text(place)}: at most {size_text(total)} ({parts})")
    if trace.simulated:
        lines.append("times and speeds are those of the simulated device, which is no GPU")
    return lines


def gradient_transfers(trace):
    """Return the line about gradients sent between processes, and the time that overlaps backward; [] for one process."""
    transfers = [event for event in trace.events if event.kind == "travel"]
    if not transfers:
        return []
    total, overlapped, end = 0, 0, 0
    backward = [(step["begin"], step["end"]) for step in trace.steps if step["kind"] == "backward"]
    for begin, finish in sorted((event.time - event.took, event.time) for event in transfers):
        begin, end = max(begin, end), max(finish, end)     # concurrent transfers count once
        total += max(0, end - begin)
        overlapped += sum(max(0, min(end, last) - max(begin, first)) for first, last in backward)
    return [f"gradients sent between processes: {len(transfers)}, {size_text(sum(e.nbytes for e in transfers))}, "
            f"{total / 1e6:.3f} ms, {overlapped / 1e6:.3f} of them while layers ran backward"]


def peaks(trace):
    """Return ``{place: (bytes, {role: bytes})}``: the largest number of live bytes, and how roles divide it at that moment."""
    largest = {}
    for _, place, roles in trace.live_bytes():
        total = sum(roles.values())
        if total > largest.get(place, (-1, {}))[0]:
            largest[place] = total, roles
    return largest
