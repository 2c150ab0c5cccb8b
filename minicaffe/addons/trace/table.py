"""A trace as text on a terminal: a table of steps and a summary, or each step in full. Words for states and places: model.py."""

from contextlib import nullcontext

from rich.table import Table
from rich.text import Text

from minicaffe.addons.trace.model import device_ns, place_text
from minicaffe.addons.trace.words import changed_states, changes, event_text, step_lines
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
        texts = [Text(cell) for cell in cells]
        for text in texts[9:]:
            text.truncate(max(MIN_NAME_WIDTH, left - widths[1]), overflow="ellipsis")
        table.add_row(*texts, style=style)
    out.print(table)
    for line in _wrapped(trace, summary(trace), out):
        out.print(line)


def cut_middle(text, width):
    """Return `text` in at most `width` characters: without its middle, since names of layers differ at their ends."""
    return text if len(text) <= width else f"{text[: (width - 1) // 2]}…{text[len(text) - width // 2 :]}"


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
    spent, on_device = step["end"] - step["begin"], device_ns(events)
    busy = on_device or spent
    speeds = [f"{on_device / 1e6:.3f}" if on_device else "",
              *(f"{of / busy:.1f}" if of and busy and not step["with"] else "" for of in (step["flops"], step["bytes"]))]
    moved = (f"{len(copies)}: " if wide else "") + size_text(sum(event.nbytes for event in copies)) if copies else ""
    return [str(number), f"{STEP_MARKS[step['kind']]} {step['layer'] or step['kind']}".strip(),
            "fused" if step["with"] else f"{spent / 1e6:.3f}", *(speeds if wide else ()), moved, " ".join(memory),
            str(launches or ""), *([", ".join(changed_states(trace, step))] if wide else [])]


def show_steps(trace, out):
    """Print each step in full on a rich Console, on a terminal through the pager."""
    with out.pager() if out.is_terminal else nullcontext():
        for number in range(len(trace.steps)):
            for line in _wrapped(trace, describe(trace, number), out):
                out.print(line)


def describe(trace, number):
    """Return the lines about step `number`: memories and their states, then events in order, with reasons of copies."""
    step = trace.steps[number]
    lines = step_lines(trace, number)
    if step["touched"]:
        names = [trace.titles.get(touched["memory"], touched["memory"]) for touched in step["touched"]]
        width = max(map(len, names))
        sizes = {memory["name"]: memory["bytes"] for memory in trace.memories}
        lines += [f"  {name:<{width}}  {size_text(sizes.get(touched['memory'], 0)):>9}  {changes(touched)}"
                  for name, touched in zip(names, step["touched"])]
    for i in range(step["first"], step["last"]):
        lines += _event_lines(trace, i)
    return lines


def _event_lines(trace, number):
    """Return the lines about one event; none if it is part of another event or is reported above."""
    kind = trace.events[number].kind
    if kind not in SHOWN_KINDS:
        return []
    word, (first, *more) = event_text(trace, number)
    reason = trace.document["why"].get(str(number))
    return [f"  {first}" if kind in ("alloc", "free") else f"  {word} {first}", *(f"    {line}" for line in more),
            *([f"    {reason}"] if reason is not None else [])]


def _wrapped(trace, lines, out):
    """Return lines as Texts that fit a terminal; times of the simulated device are grey."""
    found = []
    for line in lines:
        text = Text(line)
        if trace.simulated:
            text.highlight_regex(r"\bsimulated: .*|[\d.]+ ms simulated", "dim")
        found += text.wrap(out, out.width) or [text]
    return found


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
        lines.append("times and speeds are those of the simulated device, which is not a GPU")
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
