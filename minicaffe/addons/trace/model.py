"""Trace: a recording as the document of docs/trace.md, and the state of the memory at any moment of it."""

import copy
import functools
import json
import numbers
import os
import re
from bisect import bisect_right
from typing import NamedTuple

from minicaffe.errors import ConfigError, DataError, WrongTypeError, check_type, shown
from minicaffe.memory.reporter import Event
from minicaffe.proto import kinds
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.files import read_bytes
from minicaffe.addons.trace import schema

WANTED = "a trace (minicaffe trace NET --json FILE)"
EMPTY = {"format": schema.FORMAT, "minicaffe": "", "device": {"kind": "cpu", "name": "", "threads": 1, "copy_bandwidth": None},
         "net": {"name": "", "file": "", "phase": "", "nodes": []}, "memories": [],
         "start": {"time": 0, "heads": {}, "blocks": [], "arenas": []}, "strings": [],
         "events": {key: [] for key in schema.COLUMNS},
         "steps": [], "why": {}, "kernels": {}, "samples": []}
# States of a memory: the word for it in tables and on the page, the sides that are valid, and what that means.
STATES = {
    "UNINITIALIZED": ("no data", (), "no side has data yet"),
    "HEAD_AT_CPU": ("host", ("host",), "only the host's side is valid"),
    "HEAD_AT_GPU": ("device", ("device",), "only the device's side is valid"),
    "SYNCED": ("host+device", ("host", "device"), "host and device hold the same"),
    "HEAD_AT_PRIVATE": ("private", ("private",), "only the side in an engine's layout is valid"),
    "SYNCED_PRIVATE": ("host+private", ("host", "private"),
                       "the host's plain side and the one in an engine's layout hold the same"),
    "HEAD_AT_GPU_PRIVATE": ("private on device", ("private",), "only the device's side in an engine's layout is valid"),
    "SYNCED_GPU_PRIVATE": ("device+private", ("device", "private"),
                           "the device's plain side and the one in an engine's layout hold the same"),
    "RECYCLED": ("recycled", (), "its memory is used by other blobs"),
}
PLACES = {"CPUPlace()": "host", "PinnedPlace()": "host, page-locked"}


class Moment(NamedTuple):
    """The state after the first events of a trace.

    Attributes
    ----------
    heads : dict
        Name of the head by name of the memory.
    blocks : list of dict
        Live blocks: `place`, `address`, `bytes`, `name`.
    arenas : list of dict
        Of each allocator that cuts blocks from segments: `place`, `allocator`, and `segments`, each with `address`, `bytes` and
        `blocks` (`address`, `bytes`, `used`), by address.
    """

    heads: dict
    blocks: list
    arenas: list


class Launch(NamedTuple):
    """A kernel launch: blocks by axis, threads of a block, and name and bytes of its arrays."""

    grid: tuple
    threads: int
    arrays: list


class Trace:
    """A recording.

    Parameters
    ----------
    document : dict or None
        As docs/trace.md describes it; None: an empty trace.

    Attributes
    ----------
    document : dict

    Raises
    ------
    DataError
        If `document` is no such document; names the place in it.
    """

    def __init__(self, document):
        self.document = None
        self.fill(copy.deepcopy(EMPTY) if document is None else document)

    def fill(self, document):
        """Replace the document, as when a record ends; raise DataError and keep the old one if it is no document of a trace."""
        schema.check(document)
        vars(self).clear()      # all other attributes are cached properties of the old one
        self.document = document

    @property
    def steps(self):
        """list of dict: the steps of layers and updates, in order."""
        return self.document["steps"]

    @property
    def nodes(self):
        """list of dict: the layers of the net."""
        return self.document["net"]["nodes"]

    @property
    def memories(self):
        """list of dict: name, blob, part, bytes, role and aliases of each memory."""
        return self.document["memories"]

    @property
    def simulated(self):
        """bool: whether its times are those of the simulated device, which is no GPU."""
        return self.document["device"]["kind"] == "sim"

    @functools.cached_property
    def owners(self):
        """dict: the memory that each name means. A memory's own name comes before an alias of another, such as a second history."""
        found = {memory["name"]: memory for memory in self.memories}
        for memory in self.memories:
            for alias in memory["aliases"]:
                found.setdefault(alias, memory)
        return found

    @functools.cached_property
    def titles(self):
        """dict: what each memory is, such as ``scratch of conv1``, by its name in heads and copies."""
        # Older traces have no titles.
        return {name: memory.get("title") or memory["name"] for name, memory in self.owners.items()}

    @functools.cached_property
    def roles(self):
        """dict: the role of each memory, by its name and by its aliases."""
        return {name: memory["role"] for name, memory in self.owners.items()}

    @functools.cached_property
    def block_titles(self):
        """dict: the same by the name of a block, which several memories may have: ``scratch``."""
        return {name: re.sub(r"^\[(.*)\]$", r"\1", name.removesuffix(" data")) if f"{name} #2" in self.titles else title
                for name, title in self.titles.items()}

    @functools.cached_property
    def events(self):
        """list of Event: all of them, with times since the start; places are strings."""
        columns, strings = self.document["events"], self.document["strings"]
        rows = zip(*(columns[key] for key in schema.COLUMNS[:-1]), columns.get("took") or [0] * len(columns["time"]))
        return [Event(time, strings[kind], strings[place], address, nbytes, strings[name], strings[detail], took)
                for time, kind, place, address, nbytes, name, detail, took in rows]

    def __len__(self):
        return len(self.document["events"]["time"])

    def at(self, moment):
        """Return the state after the first `moment` events.

        Parameters
        ----------
        moment : int
            From 0 to ``len(trace)``.

        Returns
        -------
        Moment

        Raises
        ------
        ConfigError
            If there is no such moment.
        """
        self.check_moment(moment)
        start = self.document["start"]
        replay = Replay(start["heads"], start["blocks"], start["arenas"])
        for event in self.events[:moment]:
            replay.apply(event)
        return replay.moment()

    def step_at(self, moment):
        """Return the number of the step to which event `moment` belongs; None if there is no step. Raises ConfigError as `at`."""
        self.check_moment(moment)
        return max(0, bisect_right(self._firsts, moment) - 1) if self.steps else None

    def check_moment(self, moment):
        """Raise WrongTypeError or ConfigError unless `moment` is a number from 0 to ``len(trace)``."""
        check_type(moment, numbers.Integral, "moment", f"a number from 0 to {len(self)}")
        if not 0 <= moment <= len(self):
            raise ConfigError(f"must be from 0 to {len(self)}, got {moment}", field="moment")

    @functools.cached_property
    def _firsts(self):
        return [step["first"] for step in self.steps]

    def to_json(self):
        """Return the document as a string of JSON; raise DataError for values that JSON lacks, such as nan in a sample."""
        return json_text(self.document)

    def save(self, path):
        """Write the document as JSON; a file of that name is replaced when the new one is complete.

        Raises
        ------
        FileError
            If it cannot be written.
        """
        write_text(path, self.to_json())

    def __repr__(self):
        return f"<Trace of '{self.document['net']['name']}', {len(self.steps)} steps, {len(self)} events>"


def load(path):
    """Read what `Trace.save` wrote.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Trace

    Raises
    ------
    DataError
        If the file holds no trace, or one of a later format.
    FileError
        If it cannot be read.
    """
    content = read_bytes(path)
    try:
        document = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        error = DataError(f"is no trace: {error}; `minicaffe trace NET --json FILE` writes one", file=os.fspath(path))
        raise kinds.with_kind(error, content, WANTED, ("trace", "json", "text")) from None
    made = Trace(None)
    try:
        made.fill(document)     # null is no empty trace
        return made
    except DataError as error:
        raise kinds.with_kind(error.at(file=os.fspath(path)), content, WANTED, ("trace", "json", "text"))


def write_text(path, text):
    """Write a text to a file; characters that are not UTF-8 become JSON escapes. Raises FileError as `Trace.save`."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def step_title(step):
    """Return the title of a step: the layer and its direction, or an update."""
    return f"{step['layer']} {step['kind']}" if step["layer"] not in ("", step["kind"]) else step["kind"]


def state_word(head):
    """Return the word for the name of a head, ``HEAD_AT_CPU``; None: not known."""
    return STATES[head][0] if head in STATES else head or "?"


def place_text(place):
    """Return the name of a place, ``CUDAPlace(0)``, for people."""
    return PLACES.get(place) or re.sub(r"CUDAPlace\((\d+)\)", r"device \1", place)


def json_text(document):
    """Return a document as JSON; raise DataError for values that JSON lacks and `schema` does not check."""
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as cause:
        raise DataError(f"the document of a trace holds a value that JSON lacks: {cause}") from None


def _no_constant(name):
    raise ValueError(f"{name} is no number of JSON")


class Replay:
    """Heads, blocks and arenas, updated by each event; docs/trace.md has the rules."""

    def __init__(self, heads, blocks, arenas):
        self.heads = dict(heads)
        self.blocks = {(block["place"], block["address"]): dict(block) for block in blocks}
        self.arenas = copy.deepcopy(arenas)

    def moment(self):
        """Return a copy of the present state as a `Moment`."""
        return Moment(dict(self.heads), [dict(block) for block in self.blocks.values()], copy.deepcopy(self.arenas))

    def apply(self, event):
        """Apply the next event."""
        rule = self.RULES.get(event.kind)
        if rule is not None:
            rule(self, event)

    def _head(self, event):
        self.heads[event.name] = event.detail.partition(" -> ")[2].partition(" by ")[0]

    def _alloc(self, event):
        block = {"place": event.place, "address": event.address, "bytes": event.nbytes, "name": event.name}
        self.blocks[event.place, event.address] = block
        self._mark(event, True)

    def _free(self, event):
        self.blocks.pop((event.place, event.address), None)
        self._mark(event, False)

    def _mark(self, event, used):
        segment, i = self._find(event)
        if segment is not None:
            segment["blocks"][i]["used"] = used

    def _taken(self, event):
        arena = next((arena for arena in self.arenas if arena["place"] == event.place), None)
        if arena is None:
            arena = {"place": event.place, "allocator": "buddy" if event.kind == "pool taken" else "caching", "segments": []}
            self.arenas.append(arena)
        whole = {"address": event.address, "bytes": event.nbytes}
        arena["segments"].append({**whole, "blocks": [{**whole, "used": False}]})
        arena["segments"].sort(key=lambda segment: segment["address"])

    def _given_back(self, event):
        for arena in self.arenas:
            if arena["place"] == event.place:
                arena["segments"] = [segment for segment in arena["segments"] if segment["address"] != event.address]

    def _split(self, event):
        segment, i = self._find(event)
        if segment is not None and segment["blocks"][i]["bytes"] > event.nbytes:
            block = segment["blocks"][i]
            rest = {"address": block["address"] + event.nbytes, "bytes": block["bytes"] - event.nbytes, "used": False}
            segment["blocks"][i : i + 1] = [{**block, "bytes": event.nbytes}, rest]

    def _merge(self, event):
        segment, _ = self._find(event)
        if segment is not None:
            end = event.address + event.nbytes
            others = [block for block in segment["blocks"] if not event.address <= block["address"] < end]
            others.append({"address": event.address, "bytes": event.nbytes, "used": False})
            segment["blocks"] = sorted(others, key=lambda block: block["address"])

    def _find(self, event):
        """Return the segment around an event's address, and the number of the block there; None twice if none is."""
        for arena in self.arenas:
            if arena["place"] != event.place:
                continue
            for segment in arena["segments"]:
                if segment["address"] <= event.address < segment["address"] + segment["bytes"]:
                    at = bisect_right([block["address"] for block in segment["blocks"]], event.address) - 1
                    return (segment, at) if at >= 0 else (None, None)
        return None, None

    RULES = {"head": _head, "alloc": _alloc, "free": _free, "split": _split, "merge": _merge,
             "segment taken": _taken, "pool taken": _taken, "segment given back": _given_back, "pool given back": _given_back}


class LiveBytes:
    """Bytes in use at each place, ``live[place][role]``: first at the start of a trace, then after each event that `apply` gets.

    `roles` has the role of each block by its name; other blocks have the role "other".
    """

    def __init__(self, trace, roles):
        self.roles, self.live, self.blocks = roles, {}, {}
        blocks = {(block["place"], block["address"]): block for block in trace.document["start"]["blocks"]}
        for block in blocks.values():
            self._add_block(block["place"], block["address"], block["name"], block["bytes"])

    def _add_block(self, place, address, name, nbytes):
        by_role, role = self.live.setdefault(place, {}), self.roles.get(name, "other")
        by_role[role] = by_role.get(role, 0) + nbytes
        self.blocks[place, address] = role, nbytes

    def apply(self, event):
        """Apply the next event; return whether the bytes in use at its place changed."""
        if event.kind not in ("alloc", "free"):
            return False
        before = self.blocks.pop((event.place, event.address), None)
        if before is not None:
            self.live[event.place][before[0]] -= before[1]
        if event.kind == "alloc":
            self._add_block(event.place, event.address, event.name, event.nbytes)
        return before is not None or event.kind == "alloc"


def device_ns(events):
    """Return the nanoseconds that kernels and calls of libraries among some events took on their devices."""
    return sum(event.took for event in events if event.kind in ("launch", "call"))


def launch_of(event):
    """Return the Launch in the detail of a ``launch`` Event: ``8x1x1 blocks of 256 threads; conv1 data (320000 bytes)``.

    Raises WrongTypeError for anything else.
    """
    check_type(event, Event, "event", "an Event")
    shape, _, arrays = event.detail.partition("; ")
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+) blocks of (\d+) threads", shape)
    if found is None:
        raise WrongTypeError(f"{shown(event.kind)} is no launch: {shown(event.detail)}")
    *grid, threads = map(int, found.groups())
    named = re.findall(r"(.*?) \((\d+) bytes\)(?:; |\Z)", arrays, re.DOTALL)     # names may contain any character
    return Launch(tuple(grid), threads, [(name, int(nbytes)) for name, nbytes in named])
