"""What the document of a trace must look like (docs/trace.md), checked once, when a `Trace` gets it.

A trace file is input like any other: it may be cut, edited or made by another program. What this accepts all of minicaffe.trace can
read, so that nothing behind it looks for missing keys, other types, or numbers that lead outside of a list.
"""

from minicaffe.errors import DataError, shown

FORMAT = 1
NONE = type(None)
LARGEST = 1 << 64   # of an address; times and sizes stay below it, too


class Each:
    """A list of items, or with `keys` a dict from str to items, each as the rule `item`."""

    def __init__(self, item, keys=False):
        self.item, self.keys = item, keys


class Some:
    """A dict with keys of str: a rule for each, of which `optional` ones may be missing; there may be others."""

    def __init__(self, optional=(), **rules):
        self.optional, self.rules = optional, rules


COST = Some(forward=(int, float, NONE), backward=(int, float, NONE))
BLOCK = Some(place=str, address=int, bytes=int, name=str)
PART = Some(address=int, bytes=int, used=bool)
ARENA = Some(place=str, allocator=str, segments=Each(Some(address=int, bytes=int, blocks=Each(PART))))
NODE = Some(name=str, type=str, line=(int, NONE), bottoms=Each(str), tops=Each(str), params=Each(str), shapes=Each(Each(int), True),
            engine=(str, NONE), layout=(str, NONE), flops=COST, bytes=COST)
STEP = Some(("parameters",), iteration=int, kind=str, layer=str, node=(int, NONE), first=int, last=int, begin=(int, float),
            end=(int, float), flops=(int, float, NONE), bytes=(int, float, NONE), loss=(int, float, str, NONE),
            touched=Each(Some(memory=str, before=(str, NONE), after=(str, NONE))), parameters=Each(str), **{"with": (str, NONE)})
KERNEL = Some(functor=str, source=(str, NONE), header=(str, NONE), ptx=(str, NONE))
ROW = Some(direction=str, layers=Each(str), types=Each(str), part_of=(str, NONE), engine=(str, NONE), layout=(str, NONE), reads=int,
           writes=int, saves=Each(str), frees=Each(str), updates=Each(str), live=int)
COLUMNS = ("time", "kind", "place", "address", "bytes", "name", "detail")
DOCUMENT = Some(
    ("schedule",), format=int, minicaffe=str,
    device=Some(kind=str, name=str, threads=int, copy_bandwidth=(int, float, NONE)),
    net=Some(("drawing",), name=str, file=str, phase=str, nodes=Each(NODE), drawing=(str, NONE)),
    memories=Each(Some(name=str, blob=str, part=str, bytes=int, role=str, aliases=Each(str))),
    start=Some(time=int, heads=Each(str, True), blocks=Each(BLOCK), arenas=Each(ARENA)),
    strings=Each(str), events=Some(("took",), **{key: Each(int) for key in (*COLUMNS, "took")}), steps=Each(STEP),
    why=Each(str, True), kernels=Each(KERNEL, True), samples=Each(Some()),
    schedule=Some(plan=bool, peak=int, observed=(str, NONE), rows=Each(ROW)))
NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NONE: "null"}


def check(document):
    """Raise `DataError`, which names the place, unless a document is as docs/trace.md says."""
    found = document.get("format") if isinstance(document, dict) else None
    if type(found) is int and found > FORMAT:
        raise DataError(f"has format {shown(found)}, this minicaffe reads traces of format {FORMAT}; update it", field="format")
    _check(document, DOCUMENT, "")
    events, nodes = document["events"], document["net"]["nodes"]
    count, strings = len(events["time"]), len(document["strings"])
    for key, column in events.items():
        if isinstance(column, list) and len(column) != count and (column or key != "took"):
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
        before = step["first"]


def _check(value, rule, path):
    """Check a value by a rule: a type or some of them, `Each` or `Some`."""
    if isinstance(rule, Some):
        _is(value, dict, path, "an object")
        for key, inner in rule.rules.items():
            if key in value:
                _check(value[key], inner, f"{path}.{key}" if path else key)
            elif key not in rule.optional:
                raise _wrong(path, f"lacks '{key}'")
    elif isinstance(rule, Each) and rule.keys:
        _is(value, dict, path, "an object")
        for key, item in value.items():
            _is(key, str, path, "an object whose keys are texts")
            _check(item, rule.item, f"{path}[{shown(key)}]")
    elif isinstance(rule, Each):
        _is(value, list, path, "a list")
        if rule.item in (int, str) and set(map(type, value)) <= {rule.item} and (
                rule.item is str or not value or -LARGEST < min(value) <= max(value) < LARGEST):
            return      # at once, as columns of events are long
        for i, item in enumerate(value):
            _check(item, rule.item, f"{path}[{i}]")
    else:
        kinds = rule if isinstance(rule, tuple) else (rule,)
        if type(value) not in kinds:
            raise _wrong(path, f"must be {' or '.join(NAMES[kind] for kind in kinds)}, got {shown(value)}")
        if isinstance(value, int | float) and not -LARGEST < value < LARGEST:   # not of nan, either
            raise _wrong(path, f"must be between -2^64 and 2^64, got {shown(value)}")


def _is(value, kind, path, what):
    if type(value) is not kind:
        raise _wrong(path, f"must be {what}, got {shown(value)}")


def _wrong(path, message):
    return DataError(f"{message}; it is no trace, or was changed: `minicaffe trace NET --json FILE` writes one", field=path or None)
