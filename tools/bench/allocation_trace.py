"""Traces of allocations: kept in a file, and replayed on any allocator.

A trace is a list of `Step`. In a file each is one line of JSON::

    {"kind": "alloc", "block": 17, "nbytes": 3200, "name": "conv1 data"}
    {"kind": "free", "block": 17}

Addresses come again, block numbers do not, so that a trace says what was asked for and not what one allocator made of it.
"""

import json
import random
from collections import namedtuple
from time import perf_counter_ns

from minicaffe.errors import DataError, OutOfMemoryError

Step = namedtuple("Step", "kind block nbytes name")
Step.__doc__ = """Block number `block` is allocated (`kind` alloc), with bytes and the blob it serves, or freed (free)."""

Replay = namedtuple("Replay", "nanoseconds calls peak_live peak_reserved idle upstream_calls")
Replay.__doc__ = """What `replay` measured: mean time of a call from Python; calls of alloc and free; bytes live and bytes held from
upstream at most; the share of the held bytes that was not live, averaged over the calls (fragmentation and cache); calls
of alloc of upstream."""


def from_events(events, place=None):
    """Make a trace of what ``memory.record()`` collected.

    Parameters
    ----------
    events : list of Event
    place : place, optional
        Only what was allocated there; None: all places. Frees of blocks that are older than the record are left out.
    """
    steps, numbers, count = [], {}, 0
    for event in events:
        where = event.place, event.address
        if event.kind == "alloc" and place in (None, event.place):
            numbers[where] = count
            steps.append(Step("alloc", count, event.nbytes, event.name))
            count += 1
        elif event.kind == "free" and where in numbers:
            steps.append(Step("free", numbers.pop(where), 0, ""))
    return steps


def save(steps, path):
    """Write a trace, one line of JSON for each step."""
    with open(path, "w", encoding="utf-8") as file:
        for step in steps:
            line = step._asdict() if step.kind == "alloc" else {"kind": step.kind, "block": step.block}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def load(path):
    """Read what `save` wrote.

    Raises DataError with file and line, where a line is no step, or allocates or frees a block at the wrong time.
    """
    steps, seen, alive = [], set(), set()
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                fields = json.loads(line)
                step = Step(fields["kind"], int(fields["block"]), int(fields.get("nbytes", 0)), fields.get("name", ""))
                if step.kind == "alloc" and step.block not in seen and 0 <= step.nbytes < 1 << 63 and "nbytes" in fields:
                    seen.add(step.block)
                    alive.add(step.block)
                elif step.kind == "free" and step.block in alive:
                    alive.remove(step.block)
                else:
                    raise ValueError("a block is allocated once, with its bytes, and freed at most once after that")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(f"is no step of an allocation trace: {error!r}", file=str(path), line=number)
            steps.append(step)
    return steps


def synthetic(seed=0, iterations=50, layers=20):
    """Invent a trace that looks like training with shapes that change.

    Weights stay; each iteration allocates activations layer by layer, with short-lived scratch in between, and frees
    them backwards; every few iterations the batch changes, and now and then a block lives on for a while (a snapshot, a
    view that a user keeps).

    Parameters
    ----------
    seed, iterations, layers : int
    """
    rng = random.Random(seed)
    steps = []

    def alloc(nbytes, name):
        steps.append(Step("alloc", len(steps), nbytes, name))  # step numbers serve as block numbers
        return len(steps) - 1

    def free(block):
        steps.append(Step("free", block, 0, ""))

    per_image = [4 * int(rng.lognormvariate(9, 1.5)) for _ in range(layers)]
    for i in range(layers):
        alloc(4 * int(rng.lognormvariate(9, 2)), f"layer{i} weights")
    kept = []
    for iteration in range(iterations):
        if iteration % 8 == 0:
            batch = rng.choice([1, 8, 16, 32, 50, 64])
        tops = []
        for i, image in enumerate(per_image):
            tops.append(alloc(batch * image, f"layer{i} data"))
            if rng.random() < 0.5:
                free(alloc(int(batch * image * rng.uniform(0.1, 3)), f"layer{i} scratch"))
            if rng.random() < 0.05:
                kept.append(alloc(rng.choice(per_image), "kept"))
        for i, top in reversed(list(enumerate(tops))):
            diff = alloc(batch * per_image[i], f"layer{i} diff")
            free(top)
            free(diff)
        while len(kept) > 5:
            free(kept.pop(rng.randrange(len(kept))))
    return steps


def replay(steps, make, upstream, least_seconds=0.2):
    """Run a trace on an allocator and measure.

    Parameters
    ----------
    steps : list of Step
    make : callable
        ``make(upstream)`` gives the Allocator to be measured.
    upstream : Allocator
        New, so that its peak counts.
    least_seconds : float
        After the first run, which measures bytes, the trace runs again and again for at least this long, for the time.

    Returns
    -------
    Replay

    Raises
    ------
    OutOfMemoryError
        If the allocator cannot serve the trace; nothing stays allocated.
    """
    allocator, addresses, idle = make(upstream), {}, 0.0
    freed = {step.block for step in steps if step.kind == "free"}
    calls = [(step.block, step.nbytes if step.kind == "alloc" else None) for step in steps]
    calls += [(step.block, None) for step in steps if step.kind == "alloc" and step.block not in freed]

    def play():
        for block, nbytes in calls:
            if nbytes is None:
                allocator.free(addresses.pop(block))
            else:
                addresses[block] = allocator.alloc(nbytes)
            yield

    try:
        for _ in play():
            now = allocator.stats()
            idle += 1 - now.live / now.reserved if now.reserved else 0
    except OutOfMemoryError:
        for address in addresses.values():
            allocator.free(address)
        raise
    if not calls:
        return Replay(0, 0, 0, 0, 0, 0)
    peak_live, below = allocator.stats().peak, upstream.stats()
    runs, start = 0, perf_counter_ns()
    while runs == 0 or perf_counter_ns() - start < least_seconds * 1e9:
        for _ in play():
            pass
        runs += 1
    spent = perf_counter_ns() - start
    return Replay(spent / (runs * len(calls)), len(calls), peak_live, below.peak, idle / len(calls), below.allocations)
