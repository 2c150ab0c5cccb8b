"""A net as a page (``minicaffe draw NET net.html``): a drawing whose layers and blobs show, when chosen, what they are.

A layer shows its definition, the shapes of its blobs, and of each parameter shape, multipliers and statistics. The page is one file
that fetches nothing.
"""

import json
import re
from html import escape
from pathlib import Path

from minicaffe.cli.show import statistics
from minicaffe.proto import text
from minicaffe.inspection.drawing import Drawing

PAGE = Path(__file__).with_name("net_page.html")
STATISTICS = "min", "max", "mean", "std", "norm"


def page(net, rankdir="TB", display_lrm=False, replaced=None, fold=False, weights=None):
    """Return the page of a net and how many layers are in folded blocks.

    Parameters
    ----------
    net : minicaffe.net.net.Net
    rankdir, display_lrm, fold
        As of `minicaffe.inspection.drawing.net_svg`; the page has the whole drawing, too.
    replaced : dict of str to LayerParameter, optional
        By name the layers that other layers replace in `net`.
    weights : str, optional
        The file that the values of the parameters are from; without it the page has no statistics.

    Returns
    -------
    str, int
    """
    replaced = replaced or {}
    types = {name: layer.type for name, layer in replaced.items()}
    folded = Drawing(net, rankdir, display_lrm=display_lrm, types=types, fold=fold)
    whole = Drawing(net, rankdir, display_lrm=display_lrm, types=types) if folded.folded else folded
    layers = [describe(node, replaced.get(node.name, node.param), weights) for node in net.nodes]
    data = {"layers": layers, "folded": folded.folded, "weights": weights,
            "aliases": {alias: name for name, some in whole.aliases.items() for alias in some},
            "shapes": {name: times(shape) for name, shape in whole.shapes.items()}}
    phase = "TEST" if net.phase else "TRAIN"
    count = sum(node.type != "Split" for node in net.nodes)
    about = f"{net.file or ''}, phase {phase}, {count} layers" + (f", weights of {weights}" if weights else "")
    parts = {"title": escape(f"{net.name or 'net'}: a drawing of minicaffe"), "name": escape(net.name or "net"),
             "about": escape(about.removeprefix(", ")),
             "folded": folded.svg(False) if folded.folded else "", "whole": whole.svg(False),
             "data": json.dumps(data).replace("<", "\\u003c")}     # no name can end the script
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], PAGE.read_text(encoding="utf-8")), folded.folded


def describe(node, param, weights):
    """Return what the page shows of a layer, whose definition is `param`."""
    return {"name": node.name, "type": param.type, "place": "in place" if list(param.bottom) == list(param.top) else "",
            "text": text.write_text(param),
            "bottoms": [blob.name for blob in node.bottoms], "bottom_shapes": [times(blob.shape) for blob in node.bottoms],
            "tops": [blob.name for blob in node.tops], "top_shapes": [times(blob.shape) for blob in node.tops],
            "parameters": [parameter(node, i, weights) for i in range(len(node.blobs))]}


def parameter(node, i, weights):
    """Return what the page shows of blob `i` of a layer."""
    blob, spec = node.blobs[i], node.param.param[i] if i < len(node.param.param) else None
    found = statistics(blob.data) if weights else {"counts": []}
    rows = [[name, f"{found[name]:.6g}"] for name in STATISTICS] + [["zeros", f"{found['zeros']:.2%}"]] if weights else []
    if found.get("not_finite"):
        rows.append(["not finite", f"{found['not_finite']:,}"])
    return {"name": f"blobs[{i}]" + (f" ({spec.name})" if spec and spec.name else ""), "shape": times(blob.shape),
            "count": blob.count, "lr_mult": f"{spec.lr_mult if spec else 1:g}", "decay_mult": f"{spec.decay_mult if spec else 1:g}",
            "statistics": rows, "histogram": found["counts"]}


def times(shape):
    """Return a shape as text."""
    return "×".join(map(str, shape)) or "scalar"
