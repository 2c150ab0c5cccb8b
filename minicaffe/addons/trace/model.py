"""Trace: a recording as the document of docs/trace.md, and the state of the memory at any moment of it."""

import copy
import functools
import json
import numbers
import os
import re
from bisect import bisect_right
from typing import NamedTuple

from minicaffe.addons.trace import schema
from minicaffe.addons.trace.lives import Lives
from minicaffe.errors import ConfigError, DataError, WrongTypeError, check_type, shown
from minicaffe.memory.reporter import Event
from minicaffe.proto import kinds
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.files import read_bytes

WANTED = "a trace (minicaffe trace NET --json FILE)"
EMPTY = {"format": schema.FORMAT, "minicaffe": "", "device": {"kind": "cpu", "name": "", "threads": 1, "copy_bandwidth": None},
         "net": {"name": "", "file": "", "phase": "", "nodes": [], "drawing": None}, "memories": [],
         "start": {"time": 0, "heads": {}, "blocks": [], "arenas": []}, "strings": [],
         "events": {key: [] for key in schema.COLUMNS},
         "steps": [], "why": {}, "kernels": {}}
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
        If `document` is not such a document; names the place in it.
    """

    def __init__(self, document):
        self.document = None
        self.fill(copy.deepcopy(EMPTY) if document is None else document)

    def fill(self, document):
        """Replace the document, as when a record ends; raise DataError and keep the old one if it is not a document of a trace."""
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
        """bool: whether its times are those of the simulated device, which is not a GPU."""
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
        return {name: memory["title"] for name, memory in self.owners.items()}

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
        rows = zip(*(columns[key] for key in schema.COLUMNS))
        return [Event(time, strings[kind], strings[place], address, nbytes, strings[name], strings[detail], took)
                for time, kind, place, address, nbytes, name, detail, took in rows]

    @functools.cached_property
    def lives(self):
        """Lives: what lives in memory from when to when."""
        return Lives(self.document["start"], self.events)

    def live_bytes(self):
        """Yield moments with places and live bytes by role, as `Lives.live_bytes`."""
        return self.lives.live_bytes(self.roles)

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
        return self.lives.at(moment)

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
    content, made = read_bytes(path), Trace(None)
    try:
        made.fill(json.loads(content, parse_constant=_no_constant))     # null is not an empty trace
        return made
    except (ValueError, RecursionError) as error:
        if not isinstance(error, DataError):
            error = DataError(f"is not a trace: {error}; `minicaffe trace NET --json FILE` writes one")
        raise kinds.with_kind(error.at(file=os.fspath(path)), content, WANTED, ("json", "text")) from None


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
    raise ValueError(f"{name} is not a number of JSON")


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
        raise WrongTypeError(f"{shown(event.kind)} is not a launch: {shown(event.detail)}")
    *grid, threads = map(int, found.groups())
    named = re.findall(r"(.*?) \((\d+) bytes\)(?:; |\Z)", arrays, re.DOTALL)     # names may contain any character
    return Launch(tuple(grid), threads, [(name, int(nbytes)) for name, nbytes in named])
