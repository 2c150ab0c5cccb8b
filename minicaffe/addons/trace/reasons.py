"""The reasons of copies and reorders, as text: the last write of the data, and the access that needed them."""

import numbers
import re
from bisect import bisect_left
from collections import defaultdict

from minicaffe.addons.trace.model import STATES, Trace
from minicaffe.errors import ConfigError, WrongTypeError, check_type

SIDES = {"cpu": "on the host", "gpu": "on the device", "device": "on the device", "private": "in an engine's layout"}
WRITES = re.compile(r"(?:^UNINITIALIZED .* by | by (?=(?:mutable|overwrite|set|copy_on|exchange)_))(\w+)$")  # first: zeros


def why(trace, number):
    """Return sentences about the reason of event `number` of a trace.

    Parameters
    ----------
    trace : Trace
    number : int
        Of a ``copy`` or ``reorder``.

    Returns
    -------
    str

    Raises
    ------
    WrongTypeError
        If the event is neither, or `trace` or `number` has another type.
    ConfigError
        If there is no such event.
    """
    check_type(trace, Trace, "trace", "a Trace")
    check_type(number, numbers.Integral, "number", "the number of an event")
    if not 0 <= number < len(trace):
        raise ConfigError(f"must be from 0 to {len(trace) - 1}, got {number}", field="number")
    if trace.events[number].kind not in ("copy", "reorder"):
        raise WrongTypeError(f"event {number} is not a copy or reorder but '{trace.events[number].kind}'")
    return CopyReasons(trace).of(number)


class CopyReasons:
    """Finds the writes of each memory in a Trace, and from them the reasons of copies."""

    def __init__(self, trace):
        self.trace = trace
        self.heads = defaultdict(list)      # memory -> numbers of its head events
        for number, event in enumerate(trace.events):
            if event.kind == "head":
                self.heads[event.name].append(number)
        self.named_steps = [number for number, step in enumerate(trace.steps) if step["kind"] != "between"]
        self.writers = defaultdict(list)    # memory -> numbers of the steps that wrote it
        for number, step in enumerate(trace.steps):
            written = [trace.owners[name]["name"] if name in trace.owners else name for name in _written(trace, step)]
            for name in dict.fromkeys(written):
                self.writers[name].append(number)

    def all(self):
        """Return the sentences of all copies and reorders, by number of the event."""
        return {number: self.of(number) for number, event in enumerate(self.trace.events) if event.kind in ("copy", "reorder")}

    def of(self, number):
        """Return the sentences of one."""
        event = self.trace.events[number]
        source, _, target = event.detail.partition(" to ")
        # The head event of the call that made the copy is the next one, unless the head stayed.
        access = next((after for after in self.trace.events[number + 1:number + 2]
                       if (after.kind, after.name) == ("head", event.name)), None)
        call = access.detail.rpartition(" by ")[2] if access is not None else ""
        verb = "copied" if event.kind == "copy" else "reordered"
        title = self.trace.titles.get(event.name, event.name) or "A memory"
        step = self._step_name(self.trace.step_at(number))
        if source == "device" and target != "host":     # what this memory held before does not matter
            return f"{title} was {verb} from another memory, {event.detail} ({event.nbytes:,} bytes), by {step}."
        sentences = [f"{title} was {verb} from {source} to {target} ({event.nbytes:,} bytes): {step} accessed it "
                     + (_side(call) or "there") + (f" ({call})." if call else "."), self._writer(event.name, number)]
        if access is not None:
            before, _, after = access.detail.rpartition(" by ")[0].partition(" -> ")
            sentences.append(f"Its head was {before}, {_meaning(before)}; since then it is {after}, {_meaning(after)}.")
        return " ".join(sentences)

    def _step_name(self, number):
        """Return the name of a step for a sentence."""
        steps = self.trace.steps
        if number is None or not self.named_steps:
            return "your code"
        if steps[number]["kind"] == "update":
            return "the solver's update"
        if steps[number]["kind"] != "between":
            return f"layer {steps[number]['layer']} ({steps[number]['kind']})"
        at = bisect_left(self.named_steps, number)
        if at == 0:
            return f"what runs before {self._step_name(self.named_steps[0])}"
        if at == len(self.named_steps):
            return f"what runs after {self._step_name(self.named_steps[-1])}"
        return f"what runs between {self._step_name(self.named_steps[at - 1])} and {self._step_name(self.named_steps[at])}"

    def _writer(self, name, number):
        """Return the sentence about the last write of a memory before an event."""
        steps, at = self.trace.steps, self.trace.step_at(number)
        before = bisect_left(self.writers[name], at) if at is not None else 0
        step = self.writers[name][before - 1] if before else None
        if step is not None:
            when = "" if steps[step]["iteration"] == steps[at]["iteration"] else f" in iteration {steps[step]['iteration']}"
            return f"It was written last by {self._step_name(step)}{when}."
        heads = self.heads[name]
        for i in reversed(heads[: bisect_left(heads, number)]):
            call = WRITES.search(self.trace.events[i].detail)
            if call:
                return f"It was written last {_side(call[1]) or 'there'}, by a call of {call[1]}."
        return "It was written before the record began."


def _meaning(head):
    return STATES[head][2] if head in STATES else "which this minicaffe does not know"


def _side(call):
    """Return the side that a call of SyncedMemory accesses."""
    return next((words for key, words in SIDES.items() if key in call), "")


def _written(trace, step):
    """Return the names of the memories that a step writes, by the names of its blobs."""
    if step["kind"] == "update":
        return [touched["memory"] for touched in step["touched"]]
    if step["node"] is None:
        return []
    node = trace.nodes[step["node"]]
    if step["kind"] == "forward":
        return [f"{blob} data" for blob in node["tops"]]
    return [f"{blob} diff" for blob in [*node["bottoms"], *node["params"]]]
