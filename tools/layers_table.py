"""Write docs/layers.md, a table of every layer type, and docs/layers/, what each computes and its fields; ``--check`` compares.

What a class says of itself is asked of the class (is it a `DeviceLayer`, is it `host_only`); which methods it defines, and for
which operations it asks engines, is read in its source, as Cython's methods leave no trace in the class. The numbers of conformance
cases are counted where those cases are (``--conformance DIR``, by default beside the repository); elsewhere they stay as the page
has them.

`minicaffe layers TYPE` shows the pages of docs/layers/; what they say is found by tools/layer_reference.py.

minicaffe must be installed: the classes are those of the installed package.
"""

import argparse
import json
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.engines.table import CUDNN
from minicaffe.layer import DeviceLayer, layer_types
from minicaffe.layers.base.loss import LossLayer
from minicaffe.layers.base.neuron import ActivationLayer

sys.path.insert(0, str(Path(__file__).resolve().parent))

import layer_reference  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "layers.md"
FOLDER = PAGE.with_suffix("")
WIDTH = 120     # of a line of a page
CASES = ROOT.parent / "shared" / "conformance"
HEAD = """# Layer types

Written by `tools/layers_table.py` from the registry and the sources; do not edit.

- *backward*: yes; "zero": the gradient is zero; "shared memory": bottom and top are one memory, so the gradient is
  there already; or why there is none: a source has nothing to give a gradient to, a sink nothing to take one from, and
  "no gradient" is an error where one is asked for.
- *GPU*: "kernels" are compiled from the same functors as the CPU's loops, for GPUs and for the simulated device;
  "layers inside" decide where they run; "no computing": it reads, names or reshapes memory; "CPU": it computes on the
  host, and its blobs are copied there and back.
- *fast engine*: a library that computes the layer on a GPU, if it is installed, unless `engine: CAFFE` chooses our
  kernels. `engine: CUDNN` in a layer without one, such as ReLU, Softmax, Pooling or BatchNorm, means our kernels.
- *float64*: every type is written for both types; "tested" where a test of `tests/` runs it in float64, mostly as
  gradient check.
- *cases*: conformance cases with numbers of BVLC Caffe in which the type occurs.

A type's name leads to what it computes, its bottoms and tops, and its fields with their defaults. The same is printed
by `minicaffe layers TYPE`, and the list of all types by `minicaffe layers`. The pages:

{pages}

BatchNorm: in training of several processes mean and variance are those of each process's batch, or of all batches
([clusters.md](clusters.md#batchnorm)).

RNN and LSTM, as in Caffe: a NaN in the state that is carried on stays beyond the start of a sequence, as 0 NaN is NaN.

| type | source | forward | backward | CPU | GPU | fast engine | float64 | cases |
|---|---|---|---|---|---|---|---|---|
"""
PAGE_HEAD = """# {title}

Written by `tools/layers_table.py` from the sources and the comments of [caffe.proto](../../proto/caffe.proto); do not
edit. `minicaffe layers TYPE` prints the same. [All types](../layers.md), [messages that several types
share](messages.md).
"""
PAGES = {
    "data": "Layers that bring data into a net, or out of it",
    "weights": "Layers with windows or weights",
    "elementwise": "Layers of element-wise functions",
    "losses": "Losses and metrics",
    "detection": "Layers of detection: the SSD fork",
    "forks": "Layers of other forks",
    "shape": "Layers that select, join, split and reshape, and the others",
    "messages": "Messages that several layer types share",
}
WITH_WEIGHTS = {"BatchNorm", "Bias", "Convolution", "ConvolutionDepthwise", "Deconvolution", "DepthwiseConvolution", "Embed",
                "Im2col", "InnerProduct", "LRN", "LSTM", "LSTMUnit", "MVN", "Pooling", "RNN", "SPP", "Scale"}
SHARED = ["LayerParameter", "ParamSpec", "NetStateRule", "TransformationParameter", "LossParameter"]     # the first on messages.md


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
    """Return the first body of a method with one of these names, without its docstring; None if no class defines one."""
    for body in bodies:
        for name in names:
            found = re.search(rf"^    (?:def|cpdef|cdef \w+) {name}\(.*?:\n(.*?)(?=^    \S|\Z)", body, re.M | re.S)
            if found:
                return re.sub(r'""".*?"""', "", found[1], flags=re.S).strip()
    return None


def facts(cls):
    """Return the cells forward, backward, CPU, GPU and fast engine of a layer class."""
    if cls.__name__ == "PythonLayer":
        return ["the user's", "the user's", "yes", "CPU", "-"]
    chain = [base for base in cls.__mro__ if base.__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))]
    bodies = [body_of(base) for base in chain]
    forward = method(bodies, "forward_on", "forward_cpu")
    backward = method(bodies, "backward_on", "backward_cpu")
    if issubclass(cls, ForkLayer):
        backward = method(bodies[:chain.index(ForkLayer)], "backward")
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
    return ["yes" if forward is not None else "nothing to do", backward, "yes", gpu, fast]


def tested_in_double():
    """Return the names in quotes in tests which compute in float64."""
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "check_gradient" in text or "layer_net" in text or "DOUBLE" in text:
            names |= set(re.findall(r"""["'](\w+)["']""", text)) | set(re.findall(r'type: \\?"(\w+)', text))
    return names


def count_cases(folder):
    """Return how many conformance cases name each layer type."""
    counts = Counter()
    for case in Path(folder).glob("cases/*/*/case.json"):
        counts.update(set(json.loads(case.read_text())["layers"]))
    return counts


def counts_on_page():
    """Return the numbers of cases that the page holds."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return {row[0]: int(row[1]) for row in re.findall(r"^\| \[?(\w+)\b.*\| (\d+) \|$", text, re.M)}


def render(counts):
    """Return the text of the page."""
    double = tested_in_double()
    rows = []
    for name, cls in sorted(layer_types().items(), key=lambda item: item[0].lower()):
        if not cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons.")):
            continue
        source = source_of(cls.__module__).relative_to(ROOT).as_posix()
        forward, backward, cpu, gpu, engines = facts(cls)
        float64 = "tested" if name in double else "yes"
        link = f"[{source.rpartition('/')[2]}](../{source})"
        name_link = f"[{name}](layers/{page_of(name, cls)}.md#{name.lower()})"
        cells = name_link, link, forward, backward, cpu, gpu, engines or "-", float64, str(counts.get(name, 0))
        rows.append("| " + " | ".join(cells) + " |")
    pages = "\n".join(f"- [{title}](layers/{page}.md)" for page, title in PAGES.items())
    return HEAD.replace("{pages}", pages) + "\n".join(rows) + f"\n\n{len(rows)} types.\n"


def page_of(name, cls):
    """Return the page of docs/layers/ that has a type, without its ending."""
    folder = cls.__module__.split(".")[2]
    if folder in ("data", "ssd", "forks"):
        return "detection" if folder == "ssd" else folder
    if issubclass(cls, LossLayer) or name == "Accuracy":
        return "losses"
    if name in WITH_WEIGHTS:
        return "weights"
    return "elementwise" if issubclass(cls, ActivationLayer) or name in ("Dropout", "PReLU", "Softmax") else "shape"


def render_pages():
    """Return the text of each page of docs/layers/, by its name."""
    pages = {page: [PAGE_HEAD.format(title=title)] for page, title in PAGES.items()}
    types = layer_types()
    entries = [entry for entry in layer_reference.entries()
               if types[entry.name].__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))]
    users = Counter(message for entry in entries for message in entry.params.values())
    nested = [message.name for entry in entries for message in entry.messages if message.name not in users]
    there = {}      # where a message has its table
    for entry in entries:
        page = page_of(entry.name, types[entry.name])
        for message in entry.params.values():
            if message not in SHARED:
                there.setdefault(message, (page, entry.name))
    shared = {message: ("messages", message) for message in (*SHARED, *nested)}
    for entry in entries:
        page = page_of(entry.name, types[entry.name])
        pages[page].append(layer_section(entry, page, {**there, **shared}))
    for message in shared:
        found = layer_reference.describe_message(message)
        fields = [each for each in found.fields if message != "LayerParameter" or not each.type.endswith("Parameter")]
        comment = [wrapped(found.comment)] if found.comment else []
        pages["messages"].append("\n\n".join([f"## {message}", *comment, field_table(fields, "messages", shared)]))
    return {page: "\n".join(parts) for page, parts in pages.items()}


def layer_section(entry, page, there):
    """Return the section of a page about a LayerEntry; `there` has the page and heading of each message."""
    parts = [f"## {entry.name}", f"{entry.origin}. Bottoms: {entry.bottoms}. Tops: {entry.tops}."]
    if not entry.text[0].startswith(entry.summary):
        parts.append(f"{entry.summary[0].upper()}{entry.summary[1:]}.")
    parts += [wrapped(paragraph) for paragraph in entry.text]
    if entry.blobs:
        parts.append("\n".join(wrapped(f"- `{name}`: {what}.", "  ") for name, what in entry.blobs.items()))
    if entry.rules:
        parts.append("\n".join(f"- {rule}" for rule in entry.rules))
    for name, message in entry.params.items():
        where, heading = there[message]
        if (where, heading) == (page, entry.name) or message == name:   # of a fork: each type has its own fields
            found = next(each for each in entry.messages if each.name == message)
            kind = f" ({message})" if message != name else ""
            parts.append(wrapped(f"Fields of `{name}`{kind}. {found.comment}".strip()))
            parts.append(field_table(found.fields, page, there).strip())
        else:
            parts.append(f"Fields of `{name}`: {link_to(message, page, there)}.")
    if not entry.params:
        parts.append("It has no fields of its own.")
    return "\n\n".join(parts) + "\n"


def link_to(message, page, there):
    """Return a link from `page` to the table of a message."""
    where, heading = there[message]
    return f"[{message}]({'' if where == page else where + '.md'}#{heading.lower()})"


def wrapped(text, indent=""):
    """Return a paragraph in lines as long as those of other pages."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def field_table(fields, page, there):
    """Return a table of FieldEntry objects."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for each in fields:
        repeated, _, kind = each.type.rpartition(" ")
        kind = f"{repeated} {link_to(kind, page, there) if kind in there else kind}".strip()
        lines = [re.sub(r" {2,}", ": ", line) for line in each.lines()]
        cells = f"`{each.name}`", kind, f"`{each.default}`" if each.default else "", "<br>".join(lines)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def main():
    """Write the pages, or with ``--check`` exit with 1 if one differs from what would be written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 on a difference")
    parser.add_argument("--conformance", metavar="DIR", default=CASES if CASES.exists() else None, help="count the cases in DIR")
    options = parser.parse_args()
    if options.check or options.conformance is None:
        counts = counts_on_page()
    else:
        counts = count_cases(options.conformance)
    texts = {PAGE: render(counts), **{FOLDER / f"{page}.md": text for page, text in render_pages().items()}}
    for path, text in texts.items():
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"docs/{path.relative_to(PAGE.parent)} does not agree with the layers: run tools/layers_table.py")


if __name__ == "__main__":
    main()
