"""The samples of `minicaffe.inspection.watch` as a table with a row for each layer."""

import math

from rich.table import Table
from rich.text import Text

COLUMNS = ("layer", "activations", "zeros", "saturated", "diff", "gradient", "weights", "update/weights")
DROPPABLE_COLUMNS = ("weights", "saturated", "zeros", "diff", "activations")   # dropped in a narrow window, in this order


def rows(samples):
    """Return one dict for each layer, with `COLUMNS` and ``not_finite``, a text that is empty where all is finite.

    `samples` are those of one iteration. ``diff`` is the gradient of the activations, ``gradient`` that of the weights.
    """
    found = {}
    for sample in samples:
        row = found.setdefault(sample["layer"], dict.fromkeys(COLUMNS) | {"layer": sample["layer"], "not_finite": ""})
        size = sample["norm"]
        if "parameter" in sample:
            for key, value in (("gradient", size), ("weights", sample.get("data")), ("update", sample.get("update"))):
                if value is not None:
                    row[key] = math.hypot(row.get(key) or 0.0, value)
        elif "diff" in sample:
            row["diff"] = size if row["diff"] is None or size != size else row["diff"]
        elif row["activations"] is None or size != size:
            row["activations"], row["zeros"], row["saturated"] = size, sample.get("zeros"), sample.get("saturated")
        if sample.get("not_finite") or size != size or math.isinf(size):
            row["not_finite"] = row["not_finite"] or sample.get("parameter") or sample.get("blob") or f"{sample['diff']} diff"
        elif sample.get("update_wrong"):
            row["not_finite"] = row["not_finite"] or f"update of {sample['parameter']}"
    for row in found.values():
        if row.get("weights") and row.get("update") is not None:
            row["update/weights"] = row["update"] / row["weights"]
    return list(found.values())


def table(samples, most=None, width=10_000):
    """Return the table, at most `width` wide; of more than `most` rows, those that are not finite and then the last ones."""
    every = rows(samples)
    shown = every
    if most is not None and len(every) > most:
        bad, good = ([i for i, row in enumerate(every) if bool(row["not_finite"]) == wrong] for wrong in (True, False))
        shown = [every[i] for i in sorted([*bad[:most], *good[len(every) - most:]])]
    used = [name for name in COLUMNS if any(row[name] is not None for row in shown)]
    messages = [f"{row['not_finite']} is not finite" if row["not_finite"] else "" for row in shown]
    wide = {name: max(len(text) for text in (name, *(_shown(name, row[name]) for row in shown))) + 1 for name in used}
    for name in DROPPABLE_COLUMNS:
        if sum(wide[name] for name in used) + max(map(len, messages), default=0) > width and name in used:
            used.remove(name)
    grid = Table.grid(padding=(0, 1))
    for name in used:
        grid.add_column(justify="left" if name == "layer" else "right", no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*(Text(name, "dim") for name in used), "")
    for row, bad in zip(shown, messages, strict=True):
        grid.add_row(*(Text(_shown(name, row[name]), "bold red" if bad else "") for name in used),
                     Text(bad, "bold red"))
    return grid


def lines(samples):
    """Yield a line of text for each layer, for a log."""
    for row in rows(samples):
        parts = [f"{name} {_shown(name, row[name])}" for name in COLUMNS[1:] if row[name] is not None]
        bad = f"; {row['not_finite']} is not finite" if row["not_finite"] else ""
        yield f"    [Watch] Layer {row['layer']}: {', '.join(parts)}{bad}"


def _shown(name, value):
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0%}" if name in ("zeros", "saturated") else f"{value:.2e}" if name == "update/weights" else f"{value:.4g}"
