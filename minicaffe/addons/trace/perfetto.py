"""A trace in Chrome's trace format, which ui.perfetto.dev, chrome://tracing and Speedscope read.

Steps are slices of one track, kernels and copies of two more. Transfers of gradients between processes may overlap, so they are
begin and end events. Bytes in use are counters by place and role; allocator events are instants. Times are microseconds since the
start of the trace (Trace Event Format, "JSON Object Format").
"""

from minicaffe.addons.trace.model import Trace, json_text, launch_of, step_title, write_text
from minicaffe.addons.trace.words import changed_states
from minicaffe.errors import check_type

STEPS, KERNELS, COPIES, ALLOCATOR, GRADIENTS = range(1, 6)
TRACKS = {STEPS: "layers", KERNELS: "kernels", COPIES: "copies and reorders", ALLOCATOR: "allocators",
          GRADIENTS: "gradient transfers"}
SLICES = {"launch": KERNELS, "call": KERNELS, "copy": COPIES, "reorder": COPIES}     # kinds of events with a duration
PROCESS = 1


def events(trace):
    """Return a Trace as a list of Chrome's events, by time."""
    check_type(trace, Trace, "trace", "a Trace")
    net = trace.document["net"]
    rows = [{"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": f"minicaffe: {net['name'] or 'a net'}"}}]
    for track, name in TRACKS.items():
        rows.append({"ph": "M", "pid": PROCESS, "tid": track, "name": "thread_name", "args": {"name": name}})
        rows.append({"ph": "M", "pid": PROCESS, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}})
    timed = [_step(trace, step) for step in trace.steps]
    for event in trace.events:
        timed += _rows(event, trace.titles.get(event.name, event.name))
    for moment, place, roles in trace.live_bytes():
        time = trace.events[moment - 1].time if moment else 0
        timed.append({"ph": "C", "pid": PROCESS, "name": f"bytes in use, {place}", "ts": time / 1000, "args": roles})
    return rows + sorted(timed, key=lambda row: (row["ts"], -row.get("dur", 0)))


def write(trace, path):
    """Write the `events` of a Trace to a JSON file, as `Trace.save`."""
    document = {"traceEvents": events(trace), "displayTimeUnit": "ns",
                "otherData": {"minicaffe": trace.document["minicaffe"], "net": trace.document["net"]["file"],
                              "device": trace.document["device"]["name"]}}
    write_text(path, json_text(document))


def _step(trace, step):
    node = trace.nodes[step["node"]] if step["node"] is not None else None
    found = {"iteration": step["iteration"], **({key: node[key] for key in ("type", "line", "engine")} if node else {}),
             "flops": step["flops"], "with": step["with"], "loss": step["loss"], "states": changed_states(trace, step)}
    return {"ph": "X", "pid": PROCESS, "tid": STEPS, "cat": step["kind"], "name": step_title(step), "ts": step["begin"] / 1000,
            "dur": (step["end"] - step["begin"]) / 1000,
            "args": {key: value for key, value in found.items() if value not in (None, [])}}


def _rows(event, title):
    """Yield the rows of a kernel, copy, allocator event or gradient transfer (begin and end); none for other events.

    `title` says what memory it is.
    """
    row = {"pid": PROCESS, "cat": event.kind, "ts": (event.time - event.took) / 1000}
    if track := SLICES.get(event.kind):
        name, args = (event.name, {}) if track == KERNELS else (
            f"{title}, {event.detail}", {"bytes": event.nbytes, "place": event.place, "way": event.detail})
        if event.kind == "launch":
            launch = launch_of(event)
            args = {"grid": list(launch.grid), "block": launch.threads, "arrays": dict(launch.arrays)}
        yield {**row, "ph": "X", "tid": track, "name": name, "dur": event.took / 1000, "args": args}
    elif event.kind in ("cache hit", "split", "merge") or event.kind.endswith((" taken", " given back")):
        args = {"bytes": event.nbytes, "place": event.place, "address": hex(event.address), "detail": event.detail}
        yield {**row, "ph": "i", "tid": ALLOCATOR, "name": event.kind, "s": "t", "args": args}
    elif event.kind == "travel":
        row |= {"tid": GRADIENTS, "id": event.time, "name": event.name, "args": {"bytes": event.nbytes}}
        yield {**row, "ph": "b"}
        yield {**row, "ph": "e", "ts": event.time / 1000}
