"""Schema of the document of a trace (docs/trace.md), checked once, when a `Trace` gets it.

A trace file is input like any other: it may be cut, edited or made by another program. All of minicaffe.addons.trace can read a
document that passes here, so later code does not check for missing keys, wrong types or indices out of range.
"""

from minicaffe.errors import DataError, shown

FORMAT = 1
NONE = type(None)
LARGEST = 1 << 64   # of an address; times and sizes stay below it, too


# A rule is a type or a tuple of types, [rule] for a list of such items, {str: rule} for a dict of them, or a dict with a rule for
# each key: keys in `OPTIONAL` may be missing, and unknown keys are allowed.
OPTIONAL = {"parameters"}
COST = {"forward": (int, float, NONE), "backward": (int, float, NONE)}
BLOCK = {"place": str, "address": int, "bytes": int, "name": str}
PART = {"address": int, "bytes": int, "used": bool}
ARENA = {"place": str, "allocator": str, "segments": [{"address": int, "bytes": int, "blocks": [PART]}]}
NODE = {"name": str, "type": str, "line": (int, NONE), "bottoms": [str], "tops": [str], "params": [str], "shapes": {str: [int]},
        "engine": (str, NONE), "layout": (str, NONE), "flops": COST, "bytes": COST}
STEP = {"iteration": int, "kind": str, "layer": str, "node": (int, NONE), "first": int, "last": int, "begin": (int, float),
        "end": (int, float), "with": (str, NONE), "flops": (int, float, NONE), "bytes": (int, float, NONE),
        "loss": (int, float, str, NONE), "parameters": [str],
        "touched": [{"memory": str, "before": (str, NONE), "after": (str, NONE)}]}
KERNEL = {"functor": str, "source": (str, NONE), "header": (str, NONE)}
COLUMNS = ("time", "kind", "place", "address", "bytes", "name", "detail", "took")
DOCUMENT = {
    "format": int, "minicaffe": str,
    "device": {"kind": str, "name": str, "threads": int, "copy_bandwidth": (int, float, NONE)},
    "net": {"name": str, "file": str, "phase": str, "nodes": [NODE], "drawing": (str, NONE)},
    "memories": [{"name": str, "blob": str, "part": str, "bytes": int, "role": str, "aliases": [str], "title": str}],
    "start": {"time": int, "heads": {str: str}, "blocks": [BLOCK], "arenas": [ARENA]},
    "strings": [str], "events": {key: [int] for key in COLUMNS}, "steps": [STEP], "why": {str: str}, "kernels": {str: KERNEL}}
NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NONE: "null"}


def check(document):
    """Raise `DataError`, which names the place, unless a document has the form of docs/trace.md."""
    found = document.get("format") if isinstance(document, dict) else None
    if type(found) is int and found > FORMAT:
        raise DataError(f"has format {shown(found)}, this minicaffe reads traces of format {FORMAT}; update it", field="format")
    _check(document, DOCUMENT, "")
    events, nodes = document["events"], document["net"]["nodes"]
    count, strings = len(events["time"]), len(document["strings"])
    for key, column in events.items():
        if isinstance(column, list) and len(column) != count:
            raise _wrong(f"events.{key}", f"has {len(column)} entries, events.time has {count}")
    for key in ("kind", "place", "name", "detail"):
        if events[key] and not 0 <= min(events[key]) <= max(events[key]) < strings:
            raise _wrong(f"events.{key}", f"must have numbers from 0 to {strings - 1}, of strings")
    for key in ("address", "bytes"):
        if events[key] and min(events[key]) < 0:
            raise _wrong(f"events.{key}", "must have no negative number")
    before = 0
    for i, step in enumerate(document["steps"]):
        if not before <= step["first"] <= step["last"] <= count:
            raise _wrong(f"steps[{i}]", f"must be of events from {before} to {count}, is of {step['first']} to {step['last']}")
        if step["node"] is not None and not 0 <= step["node"] < len(nodes):
            raise _wrong(f"steps[{i}].node", f"must be null or from 0 to {len(nodes) - 1}, got {step['node']}")
        if isinstance(step["loss"], str) and step["loss"] not in ("nan", "inf", "-inf"):
            raise _wrong(f"steps[{i}].loss", f"must be a number, nan, inf, -inf or null, got {shown(step['loss'])}")
        before = step["first"]


def _check(value, rule, path):
    """Check a value by a rule."""
    if isinstance(rule, dict):
        _is(value, dict, path, "an object")
        if str in rule:
            for key, item in value.items():
                _is(key, str, path, "an object whose keys are texts")
                _check(item, rule[str], f"{path}[{shown(key)}]")
            return
        for key, inner in rule.items():
            if key in value:
                _check(value[key], inner, f"{path}.{key}" if path else key)
            elif key not in OPTIONAL:
                raise _wrong(path, f"lacks '{key}'")
    elif isinstance(rule, list):
        _is(value, list, path, "a list")
        kind, = rule
        if kind in (int, str) and set(map(type, value)) <= {kind} and (
                kind is str or not value or -LARGEST < min(value) <= max(value) < LARGEST):
            return      # fast path: columns of events are long
        for i, item in enumerate(value):
            _check(item, kind, f"{path}[{i}]")
    else:
        kinds = rule if isinstance(rule, tuple) else (rule,)
        if type(value) not in kinds:
            raise _wrong(path, f"must be {' or '.join(NAMES[kind] for kind in kinds)}, got {shown(value)}")
        if isinstance(value, int | float) and not -LARGEST < value < LARGEST:   # false for nan, too
            raise _wrong(path, f"must be between -2^64 and 2^64, got {shown(value)}")


def _is(value, kind, path, what):
    if type(value) is not kind:
        raise _wrong(path, f"must be {what}, got {shown(value)}")


def _wrong(path, message):
    return DataError(f"{message}; it is not a trace, or was changed: `minicaffe trace NET --json FILE` writes one",
                     field=path or None)
