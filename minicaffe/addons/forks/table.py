"""Facts of Caffe's forks: which of them have a layer type, field or enum value that BVLC Caffe lacks, and the remedy.

The facts are kept in forks.tsv beside this file, which tools/gen_forks.py writes; they are read when an error is to be raised, or a
field skipped, for the first time. Nothing here changes how a file is read.
"""

import functools
import re
from collections import namedtuple
from pathlib import Path

from minicaffe.proto.unknown import Found

TABLE = Path(__file__).with_name("forks.tsv")
MAX_FORKS_SHOWN = 6  # forks named in an error; of the others the number

Row = namedtuple("Row", "skip default forks")
Row.__doc__ = """A row: the forks that have a field, value or layer type, and the default of a field.

`skip`: when a field or value may be skipped (yes, always, test, default or empty); or what a type is for (`USES`, infer, alias).
"""

USES = {
    "identity": "; it does nothing at inference: for that take it out, and let the next layer read its bottom",
    "train": "; it is for training and scoring: a net that only computes its outputs does without it",
    "data": "; it is a source of data: for inference put a layer of type Input in its place",
}


@functools.cache
def _table():
    """Return the table as a dict from (kind, message or enum, name) to `Row`; of layer types from ("layer", "", type)."""
    rows = {}
    for line in TABLE.read_text().splitlines()[1:]:
        kind, of, names, skip, default, forks = line.split("\t")
        for name in names.split(","):
            rows[kind, "" if kind == "layer" else of, name] = Row(skip, default, tuple(forks.split(",")))
    return dict(sorted(rows.items()))


def fork_of(name):
    """Return the fork from which a layer type is: SSD, or "fork NAME"; "" if BVLC Caffe has it."""
    known = _table().get(("layer", "", name))
    return "" if known is None else "SSD" if "ssd" in known.forks else f"fork {known.forks[0]}"


@functools.cache
def name_of(word):
    """Return today's name of a layer type that a fork's V1 files write as `word`: ROIPOOLING is ROIPooling; None: unknown."""
    plain = word.replace("_", "").lower()
    return next((key[2] for key in _table() if key[0] == "layer" and key[2].lower() == plain), None)


def find_field(message, name, value):
    """Return the `Found` of a field that a message of this name has in a fork."""
    return _found(_table().get(("field", message, name)), "it", value)


def find_value(enum, value):
    """Return the `Found` of a value that an enum has in a fork, such as PRE_FIXED of ``LossParameter.NormalizationMode``."""
    return _found(_table().get(("value", enum, str(value))), value, value)


def _found(row, what, value):
    if row is None:
        return None
    return Found(f"; {_forks_have(row.forks, what)}; {_advice(row, value)}", functools.partial(may_skip, row, value))


def _advice(found, value):
    """Return the advice for a field or value, of the row `found`, that has `value` in the file."""
    if found.skip == "yes":
        return "it changes no result, and skip_unknown_fields leaves it out"
    if found.skip == "always":
        return "it changes no result"
    if found.skip == "test":
        return "it changes training only, and skip_unknown_fields leaves it out of a net of phase TEST"
    if may_skip(found, value):
        return f"at {found.default}, its default, it changes nothing, and skip_unknown_fields leaves it out"
    but = f" unless it is {found.default}, its default" if found.skip == "default" else ", so it cannot be skipped"
    return f"results depend on it{but}: see docs/forks.md"


def about_layer(name):
    """Return the hint of an error about a layer type that some fork has; "" if none is known."""
    if (found := _table().get(("layer", "", name))) is not None:
        return f"; {_forks_have(found.forks, 'it')}{USES.get(found.skip, '')}"
    wanted = re.sub(r"\W|_", "", name).lower() + "param"    # the field of LayerParameter that is called as the type is
    for (kind, of, field), found in _table().items():
        if (kind, of, field.replace("_", "")) == ("field", "LayerParameter", wanted):
            return f"; {_forks_have(found.forks, f'a field {field}')}"
    return ""


def _forks_have(forks, what):
    """Return ``the fork tsn has WHAT``, or ``the forks tsn, intel and 4 more have WHAT``."""
    if len(forks) == 1:
        return f"the fork {forks[0]} has {what}"
    shown = list(forks[:MAX_FORKS_SHOWN]) + ([f"{len(forks) - MAX_FORKS_SHOWN} more"] if len(forks) > MAX_FORKS_SHOWN else [])
    return f"the forks {', '.join(shown[:-1])} and {shown[-1]} have {what}"


def may_skip(known, value, training=True, asked=True):
    """Return whether a net computes the same without a field; with `training`, whether training does, too.

    `known` is a row of the table, `value` as in `minicaffe.proto.fields.Fields`. `asked`: by skip_unknown_fields.
    """
    if known.skip == "" or not asked and known.skip != "always":
        return False
    if known.skip == "default":
        return _equal(value, known.default)
    return known.skip != "test" or not training


def _equal(value, default):
    """Return whether a value read from a file is the default that the table writes as text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return value == float(default)
        except ValueError:
            return False
    return default == (str(value).lower() if isinstance(value, bool) else value)
