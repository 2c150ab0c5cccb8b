"""Text about steps and events of a trace, for the terminal (table.py) and the page (html.py). Words for states: model.py."""

from collections import Counter

from minicaffe.addons.trace.model import device_ns, launch_of, place_text, state_word
from minicaffe.memory.sizes import size_text

ALLOCATOR_ACTIONS = {"cache hit": "from the cache", "split": "the rest split off", "merge": "joined with its free neighbours",
                     "segment taken": "a new segment", "segment given back": "a segment given back", "pool taken": "a new pool",
                     "pool given back": "a pool given back"}
ALLOC_KINDS, FREE_KINDS = {"cache hit", "split", "segment taken", "pool taken"}, {"merge", "segment given back", "pool given back"}
BUDDY_ACTIONS = {**ALLOCATOR_ACTIONS, "split": "cut in halves", "merge": "joined with its buddy"}


def step_lines(trace, number):
    """Return lines about step `number`: which it is, its times and speeds, its loss."""
    step = trace.steps[number]
    what = {"update": "update of " + ", ".join(step.get("parameters", ())), "between": "between layers"}
    line = what.get(step["kind"]) or f"layer {step['layer']}, {step['kind']}"
    lines = [f"step {number} of {len(trace.steps)}, iteration {step['iteration']}: {line}"]
    if step["with"]:
        lines.append(f"fused: computed with {step['with']}")
    else:
        spent, on_device = step["end"] - step["begin"], device_ns(trace.events[step["first"]:step["last"]])
        lines.append(times(trace, [milliseconds(spent), *([f"{milliseconds(on_device)} of it on the device"] if on_device else []),
                                   *speeds(trace, step["flops"], step["bytes"], on_device or spent)]))
    return lines + ([f"loss {float(step['loss']):g}"] if step["loss"] is not None else [])


def changes(touched):
    """Return the state of a memory before and after a step, in words."""
    before, after = state_word(touched["before"]), state_word(touched["after"])
    return before if before == after else f"{before} -> {after}"


def changed_states(trace, step):
    """Return texts about the memories whose state a step changed."""
    return [f"{trace.titles.get(one['memory'], one['memory'])}: {changes(one)}"
            for one in step["touched"] if one["before"] != one["after"]]


def event_text(trace, number):
    """Return the word for the kind of an event, and a list of lines about it."""
    event = trace.events[number]
    kind, size, title = event.kind, size_text(event.nbytes), trace.titles.get(event.name, event.name)
    if kind in ("alloc", "free"):
        name, how = trace.block_titles.get(event.name, event.name) or "no name", decision(trace, number)
        return kind, [f"{'+' if kind == 'alloc' else '-'}{size} {place_text(event.place)}: {name}" + (f" ({how})" if how else "")]
    if kind in ("copy", "reorder"):
        speed = [milliseconds(event.took), *([f"{event.nbytes / event.took:.1f} GB/s"] if event.took else [])]
        return kind, [f"{event.detail}: {title}, {size}, {times(trace, speed)}"]
    if kind == "call":
        return kind, [f"{event.name}, {milliseconds(event.took)}"]
    if kind == "launch":
        launch = launch_of(event)
        grid = " x ".join(str(n) for i, n in enumerate(launch.grid) if i == 0 or n > 1)
        arrays = [trace.block_titles.get(name, name) or "no name" for name, _ in launch.arrays]
        return "kernel", [f"{event.name}, {grid} blocks of {launch.threads} threads",
                          times(trace, [milliseconds(event.took), *speeds(trace, None, event.nbytes, event.took)]),
                          *([f"arrays: {', '.join(arrays)}"] if arrays else [])]
    if kind == "head":
        change, _, call = event.detail.partition(" by ")
        before, _, after = change.partition(" -> ")
        return "state", [f"{title}: {state_word(before)} -> {state_word(after)}" + (f" ({call})" if call else "")]
    if kind in ("begin", "end"):
        return kind, ["update" if event.detail == "update" else f"{event.name} {event.detail}"]
    if kind == "travel":
        return "transfer", [f"{size} of gradients, {title}, to and from other processes"]
    if kind in ALLOCATOR_ACTIONS:
        return kind, [f"{size}, {ALLOCATOR_ACTIONS[kind]}"]
    return kind, [": ".join(text for text in (event.name, event.detail) if text)]


def decision(trace, number):
    """Return the allocator's actions for event `number`, an ``alloc`` or ``free``, from the events next to it."""
    events, place, kinds = trace.events, trace.events[number].place, []
    # An allocator records its actions before the ``alloc`` and after the ``free``.
    direction, accepted = (-1, ALLOC_KINDS) if events[number].kind == "alloc" else (1, FREE_KINDS)
    i = number + direction
    while 0 <= i < len(events) and events[i].kind in accepted and events[i].place == place:
        kinds.append(events[i].kind)
        i += direction
    kinds = kinds[::direction]
    buddy = any(arena["place"] == place and arena["allocator"] == "buddy" for arena in trace.document["start"]["arenas"])
    words = BUDDY_ACTIONS if buddy else ALLOCATOR_ACTIONS
    return ", ".join(words[kind] + (f" {times} times" if times > 1 else "") for kind, times in Counter(kinds).items())


def milliseconds(ns):
    """Return a time as text."""
    return f"{ns / 1e6:.3f} ms"


def times(trace, parts):
    """Return a line of times and speeds. Those of the simulated device begin with "simulated:"; they are printed grey."""
    return ("simulated: " if trace.simulated else "") + ", ".join(parts)


def speeds(trace, flops, nbytes, spent):
    """Return texts of operations and bytes that took `spent` ns, with their speeds, and the share of a large copy's bandwidth."""
    parts = []
    if flops:
        parts.append(f"{flops / 1e6:,.2f} MFLOP" + (f" ({flops / spent:.1f} GFLOP/s)" if spent else ""))
    if nbytes:
        parts.append(size_text(nbytes))
        copy_bandwidth = trace.document["device"]["copy_bandwidth"]     # bytes per second, or None
        if spent:
            share = f", {nbytes / spent * 1e9 / copy_bandwidth:.0%} of a large copy's" if copy_bandwidth else ""
            parts[-1] += f" ({nbytes / spent:.1f} GB/s{share})"
    return parts
