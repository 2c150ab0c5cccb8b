"""Report the names of pycaffe that Python programs use and minicaffe lacks: ``python tools/scan_names.py FOLDER-OR-FILE ...``.

Each .py file and each cell of code of an .ipynb is read, not run. Names below ``caffe``, by whatever way they were imported, are
looked up in the installed minicaffe: ``caffe.io.load_image``, ``from caffe import layers as L``, ``import caffe.draw as d``. What a
call returns is not followed. Names that minicaffe leaves out on purpose are in `LEFT_OUT` with the reason. Programs of Python 2,
which Python 3 cannot parse, are searched for ``caffe.`` names by pattern, and are listed.

Exit status: 0, or 1 if a name is missing, 2 if there is nothing to read.
"""

import argparse
import ast
import importlib
import json
import re
import sys
from pathlib import Path

import minicaffe

LEFT_OUT = {
    "caffe.io.skimage": "scikit-image, which caffe.io imported; write import skimage",
    "caffe.io.zoom": "SciPy's, which caffe.io imported; write from scipy.ndimage import zoom",
    "caffe.io.resize": "scikit-image's, which caffe.io imported; write from skimage.transform import resize",
    "caffe.draw.pydot": "pydot, which caffe.draw imported; minicaffe draws without it",
    "caffe.draw.get_pydot_graph": "pydot's graph; write caffe.draw.draw_net(net, rankdir, 'svg')",
    "caffe.draw.get_edge_label": "of pydot's graph",
    "caffe.draw.get_layer_label": "of pydot's graph",
    "caffe.draw.choose_color_by_layertype": "of pydot's graph",
    "caffe.draw.get_pooling_types_dict": "of pydot's graph",
    "caffe.pycaffe.OrderedDict": "of collections, which caffe.pycaffe imported",
    "caffe.net_spec.OrderedDict": "of collections, which caffe.net_spec imported",
    "caffe._caffe.BlobVec": "Boost's; net.params[name] is a tuple of blobs",
    "caffe.NCCL": "write solver.distribute() in each process of mpiexec, or run minicaffe train solver.prototxt --gpu all",
    "caffe.test": "BVLC's own tests",
    "caffe.imagenet": "a folder of data, python/caffe/imagenet of Caffe; give the path of the mean file",
}


def main(args=None):
    """Scan the paths of the command line and print a line for each name that is missing; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, help="folders, .py and .ipynb files")
    options = parser.parse_args(args)
    for path in options.paths:
        if not path.exists():
            print(f"{path}: no such file or folder", file=sys.stderr)
            return 2
    files = sorted({file for path in options.paths for file in ([path] if path.is_file() else path.rglob("*"))
                    if file.suffix in (".py", ".ipynb")})
    if not files:
        print("no .py or .ipynb file there", file=sys.stderr)
        return 2
    missing, left_out, names, programs = 0, 0, set(), 0
    for file in files:
        found = list(names_in(file))
        programs += bool(found)
        for place, name in found:
            names.add(name)
            lacking = first_missing(name)
            reason = next((LEFT_OUT[key] for key in prefixes(name) if key in LEFT_OUT), None)
            if lacking and reason:
                left_out += 1
                print(f"{place}: {name}: left out: {reason}")
            elif lacking:
                missing += 1
                print(f"{place}: {name}: missing: {lacking}")
    print(f"{len(files)} files, {programs} with caffe, {len(names)} names: {missing} missing, {left_out} left out with a reason")
    return 1 if missing else 0


def prefixes(name):
    """Return ``caffe.a``, ``caffe.a.b`` and so on of a name, the longest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 1, -1)]


def first_missing(name):
    """Return the part of a dotted name that minicaffe lacks, or None."""
    value, path = minicaffe, "caffe"
    for part in name.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            try:    # a module that is only found by its import
                value = importlib.import_module(f"minicaffe{path.removeprefix('caffe')}.{part}")
            except ImportError:
                return f"{path} has no {part}"
        path += f".{part}"
        if not isinstance(value, (type, type(sys))) and type(value).__name__ not in ("Layers", "Parameters"):
            return None     # of other objects, such as functions, nothing is known before they are called
        if type(value).__name__ in ("Layers", "Parameters"):
            return None     # any name of a layer type; what P lacks is found when the net is written
    return None


def names_in(file):
    """Yield (place, dotted name below caffe) for each use in a file."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        sources = cells(json.loads(text)) if file.suffix == ".ipynb" else [("", text)]
    except (OSError, ValueError) as error:
        print(f"{file}: cannot be read, left out: {error}", file=sys.stderr)
        return
    known = {}      # a notebook's cells share their names
    for cell, source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            if "caffe" in source:
                print(f"{file}{cell}: is no Python 3, searched by pattern", file=sys.stderr)
                yield from ((f"{file}{cell}:{source.count(chr(10), 0, found.start()) + 1}", found.group())
                            for found in re.finditer(r"(?<![\w./'\"-])caffe(?:\.[A-Za-z_]\w*)+", source))
            continue
        uses = set(uses_in(tree, known))
        yield from ((f"{file}{cell}:{line}", name) for line, name in sorted(uses))


def cells(notebook):
    """Return the cells of code of a notebook, with the numbers of cells as places; lines for IPython are blanked."""
    found = notebook.get("cells") or [cell for sheet in notebook.get("worksheets", []) for cell in sheet["cells"]]
    sources = [(f":cell {number}", "".join(cell.get("source", cell.get("input", ""))))
               for number, cell in enumerate(found, 1) if cell.get("cell_type") == "code"]
    return [(place, re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.M)) for place, source in sources]


def uses_in(tree, known):
    """Yield (line, dotted name below caffe) of a module; `known` maps names of the program to dotted ones and is completed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "caffe":
                    known[alias.asname or "caffe"] = alias.name if alias.asname else "caffe"
                    if "." in alias.name:
                        yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "caffe":
            for alias in node.names:
                if alias.name == "*":
                    if "." in node.module:
                        yield node.lineno, node.module
                else:
                    known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    yield node.lineno, f"{node.module}.{alias.name}"
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner and (name := dotted(node, known)):
            yield node.lineno, name


def dotted(node, known):
    """Return the dotted name of an attribute below caffe, or None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    start = known.get(node.id) if isinstance(node, ast.Name) else None
    return ".".join([start, *reversed(parts)]) if start else None


if __name__ == "__main__":
    sys.exit(main())
