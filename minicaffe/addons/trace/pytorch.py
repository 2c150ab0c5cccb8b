"""A trace in the form of PyTorch's memory snapshots, for its viewer (pytorch.org/memory_viz) and ``torch.cuda._memory_viz``.

Each stack is one frame: the title of the step, with the layer's line in the prototxt. CUDA devices keep their numbers; the host's
places follow as further devices, since the format has only devices. PyTorch is not needed to write it.
"""

import pickle
import re

from minicaffe.errors import check_type
from minicaffe.proto.atomic import write_bytes
from minicaffe.addons.trace.model import Trace, step_title

ACTIONS = {"alloc": ["alloc"], "free": ["free_requested", "free_completed"], "segment taken": ["segment_alloc"],
           "pool taken": ["segment_alloc"], "segment given back": ["segment_free"], "pool given back": ["segment_free"]}


def snapshot(trace):
    """Return the form of ``torch.cuda.memory._snapshot``: the segments at the end of a Trace, and the actions before.

    A dict of `segments`, each with its blocks by address, and `device_traces`, a list of actions for each device.
    """
    check_type(trace, Trace, "trace", "a Trace")
    events, end = trace.events, trace.at(len(trace))
    places = [event.place for event in events if event.place] + [b["place"] for b in end.blocks] + [a["place"] for a in end.arenas]
    number = _numbers(places)
    frames = [_frames(trace, step) for step in trace.steps]
    traces = [[] for _ in range(max(number.values(), default=-1) + 1)]
    taken_by = {}       # place and address of a block -> frames of its allocation
    began = trace.document["start"]["time"] // 1000
    for step, its_frames in zip(trace.steps, frames):
        for event in events[step["first"]:step["last"]]:
            if event.kind == "alloc":
                taken_by[event.place, event.address] = [_frame(event.name or "a block"), *its_frames]
            for action in ACTIONS.get(event.kind, ()):
                of_block = taken_by.get((event.place, event.address), its_frames)
                traces[number[event.place]].append({
                    "action": action, "addr": event.address, "size": event.nbytes, "stream": 0,
                    "time_us": began + event.time // 1000, "frames": of_block if event.kind in ("alloc", "free") else its_frames})
    blocks = {(block["place"], block["address"]): block for block in end.blocks}
    segments = []
    for arena in end.arenas:
        place = arena["place"]
        for segment in arena["segments"]:
            parts = [_block(part["address"], part["bytes"], blocks.pop((place, part["address"]), None), part["used"],
                            taken_by.get((place, part["address"]))) for part in segment["blocks"]]
            segments.append(_segment(number[place], segment["address"], segment["bytes"], parts))
    for (place, address), block in blocks.items():      # a block outside of all segments is its own segment
        part = _block(address, block["bytes"], block, True, taken_by.get((place, address)))
        segments.append(_segment(number[place], address, block["bytes"], [part]))
    segments.sort(key=lambda segment: (segment["device"], segment["address"]))
    return {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def write(trace, path):
    """Write the `snapshot` of a Trace as the pickle that PyTorch's tools read, as `Trace.save`."""
    write_bytes(path, pickle.dumps(snapshot(trace), protocol=4))    # the viewer reads no later protocol


def _numbers(places):
    """Number the places; CUDA devices keep their numbers."""
    places = list(dict.fromkeys(places))
    number = {place: int(found[1]) for place in places if (found := re.fullmatch(r"CUDAPlace\((\d+)\)", place))}
    others = [place for place in places if place not in number]
    first = max(number.values(), default=-1) + 1
    return number | {place: first + i for i, place in enumerate(others)}


def _frames(trace, step):
    """Return the frames of a step: its title and its line in the prototxt."""
    node = trace.nodes[step["node"]] if step["node"] is not None else {}
    return [_frame(f"{step_title(step)}, iteration {step['iteration']}", trace.document["net"]["file"], node.get("line") or 0)]


def _frame(name, filename="", line=0):
    return {"name": name, "filename": filename, "line": line}


def _block(address, nbytes, block, used, frames):
    """Return the entry of a part of a segment; `block` is the live block there, or None."""
    if not used:
        return {"address": address, "size": nbytes, "requested_size": 0, "state": "inactive", "frames": []}
    asked = block["bytes"] if block is not None else nbytes
    named = [_frame(block["name"])] if block is not None and block["name"] else []
    return {"address": address, "size": nbytes, "requested_size": asked, "state": "active_allocated", "frames": frames or named}


def _segment(device, address, nbytes, blocks):
    used = [block for block in blocks if block["state"] == "active_allocated"]
    allocated = sum(block["size"] for block in used)
    return {"device": device, "address": address, "total_size": nbytes, "allocated_size": allocated, "active_size": allocated,
            "requested_size": sum(block["requested_size"] for block in used), "stream": 0,
            "segment_type": "small" if nbytes <= 2 << 20 else "large", "segment_pool_id": (0, 0), "is_expandable": False,
            "frames": [], "blocks": blocks}
