"""Write docs/layers.md, a table of every layer type; ``--check`` compares.

What a class says of itself is asked of the class (is it a `DeviceLayer`, is it `host_only`); which methods it defines, and for
which operations it asks engines, is read in its source, as Cython's methods leave no trace in the class. The numbers of conformance
cases are counted where those cases are (``--conformance DIR``, by default beside the repository); elsewhere they stay as the page
has them. `minicaffe layers TYPE` prints what a type computes and its fields.

minicaffe must be installed: the classes are those of the installed package.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.engines.table import CUDNN
from minicaffe.layer import DeviceLayer, layer_types

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "layers.md"
CASES = ROOT.parent / "shared" / "conformance"
HEAD = """# Which layer types are there, and which run on a GPU?

Written by `tools/layers_table.py` from the registry and the sources; do not edit. `minicaffe layers` lists the types,
and `minicaffe layers TYPE` prints what a type computes, its bottoms and tops, and its fields with their defaults. The
comments of [caffe.proto](../proto/caffe.proto) describe these, and the fields of every layer (`loss_weight`, `param`,
`include`). All types run on the CPU, in float32 and float64.

- *backward*: yes; "zero": the gradient is zero; "shared memory": bottom and top are one memory, so the gradient is
  there already; or why there is none: "source", "sink", or "no gradient", which is an error where one is needed.
- *GPU*: "kernels" are compiled from the same functors as the CPU's loops; "layers inside" decide where they run; "no
  computing": it reads, names or reshapes memory; "CPU": it computes on the host, and its blobs are copied.
- *fast engine*: a library that computes the layer on a GPU, unless `engine: CAFFE` chooses our kernels.
- *cases*: conformance cases with numbers of BVLC Caffe in which the type occurs.

BatchNorm: in training of several processes mean and variance are those of each process's batch, or of all batches
([clusters.md](clusters.md#batchnorm)). RNN and LSTM, as in Caffe: a NaN in the state that is carried on stays beyond
the start of a sequence, as 0 NaN is NaN.

| type | source | backward | GPU | fast engine | cases |
|---|---|---|---|---|---|
"""


def source_of(module):
    """Return the path below the repository of a module of minicaffe."""
    path = ROOT / module.replace(".", "/")
    return next(p for p in (path.with_suffix(".pyx"), path.with_suffix(".py")) if p.exists())


def body_of(cls):
    """Return the source text of a class."""
    text = source_of(cls.__module__).read_text()
    start = re.search(rf"^(?:cdef )?class {cls.__name__}\b.*\n", text, re.M)
    end = re.search(r"^\S", text[start.end():], re.M)
    return text[start.start():start.end() + end.start() if end else len(text)]


def method(bodies, *names):
    """Return the first body of a method with one of these names, without docstring and comments; None if no class defines one."""
    for body in bodies:
        for name in names:
            found = re.search(rf"^    (?:def|cpdef|cdef \w+) {name}\(.*?:\n(.*?)(?=^    \S|\Z)", body, re.M | re.S)
            if found:
                return re.sub(r'""".*?"""| *#[^\n]*', "", found[1], flags=re.S).strip()
    return None


def facts(cls):
    """Return the cells backward, GPU and fast engine of a layer class."""
    if cls.__name__ == "PythonLayer":
        return ["the user's", "CPU", "-"]
    chain = [base for base in cls.__mro__ if base.__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))]
    bodies = [body_of(base) for base in chain]
    forward = method(bodies, "forward_on", "forward_cpu")
    backward = method(bodies, "backward_on", "backward_cpu")
    if issubclass(cls, ForkLayer):
        backward = method(bodies[:chain.index(ForkLayer) + 1], "backward")
    if backward is None or re.fullmatch(r"if any\(propagate_down\):\s*raise .*|.*\bLayer\.backward_cpu\(self.*", backward, re.S):
        backward = "no gradient"
    elif re.fullmatch(r"for .*:\s*if wanted:\s*blob\.fill_diff\(0\)", backward):
        backward = "zero"
    elif backward:
        backward = "yes"
    else:  # it is defined, and has nothing to do
        backward = "source" if cls.exact_num_bottom_blobs == 0 else "sink" if cls.exact_num_top_blobs == 0 else "shared memory"
    if issubclass(cls, DeviceLayer) or issubclass(cls, ForkLayer) and cls.capture_obstacle is not ForkLayer.capture_obstacle:
        gpu = "kernels"
    else:
        gpu = "layers inside" if "self.inside" in (forward or "") else "no computing" if cls.host_only or not forward else "CPU"
    kinds = "|".join(kind.__name__ for kind in CUDNN.computed_kinds())
    fast = "cuDNN" if any(re.search(rf"\b(cudnn_\w+|{kinds})\(", body) for body in bodies) else ""
    return [backward, gpu, fast]


def count_cases(folder):
    """Return how many conformance cases name each layer type."""
    counts = Counter()
    for case in Path(folder).glob("cases/*/*/case.json"):
        counts.update(set(json.loads(case.read_text())["layers"]))
    return counts


def counts_on_page():
    """Return the numbers of cases that the page holds."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return {row[0]: int(row[1]) for row in re.findall(r"^\| (\w+) \|.*\| (\d+) \|$", text, re.M)}


def render(counts):
    """Return the text of the page."""
    rows = []
    for name, cls in sorted(layer_types().items(), key=lambda item: item[0].lower()):
        if not cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons.")):
            continue
        source = source_of(cls.__module__).relative_to(ROOT).as_posix()
        backward, gpu, engine = facts(cls)
        cells = name, f"[{source.rpartition('/')[2]}](../{source})", backward, gpu, engine or "-", str(counts.get(name, 0))
        rows.append("| " + " | ".join(cells) + " |")
    return HEAD + "\n".join(rows) + f"\n\n{len(rows)} types.\n"


def main():
    """Write the page, or with ``--check`` exit with 1 if one differs from what would be written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 on a difference")
    parser.add_argument("--conformance", metavar="DIR", default=CASES if CASES.exists() else None, help="count the cases in DIR")
    options = parser.parse_args()
    if options.check or options.conformance is None:
        counts = counts_on_page()
    else:
        counts = count_cases(options.conformance)
    text = render(counts)
    if not options.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/layers.md does not agree with the layers: run tools/layers_table.py")


if __name__ == "__main__":
    main()
