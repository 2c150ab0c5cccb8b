"""The samples of `minicaffe.inspection.watch` as lines, one for each layer."""

import math

COLUMNS = ("layer", "activations", "zeros", "saturated", "diff", "gradient", "weights", "update/weights")


def rows(samples):
    """Return one dict for each layer, with `COLUMNS` and ``not_finite``, a text that is empty where all values are finite.

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


def lines(samples):
    """Yield a line of text for each layer, for the log and the live display."""
    for row in rows(samples):
        parts = [f"{name} {_shown(name, row[name])}" for name in COLUMNS[1:] if row[name] is not None]
        bad = f"; {row['not_finite']} is not finite" if row["not_finite"] else ""
        yield f"    [Watch] Layer {row['layer']}: {', '.join(parts)}{bad}"


def _shown(name, value):
    """Return a value of column `name` as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0%}" if name in ("zeros", "saturated") else f"{value:.2e}" if name == "update/weights" else f"{value:.4g}"
