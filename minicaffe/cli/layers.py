"""``minicaffe layers``: all layer types, or what docs/layers/ says of one.

tools/layers_table.py writes these pages from the docstrings of the classes and the comments of proto/caffe.proto. A type that they
lack, such as one of a program or of another package, is shown by its docstring.
"""

import inspect
import re
import textwrap

import click
from rich.markdown import Markdown
from rich.text import Text

from minicaffe import entry_points
from minicaffe.cli import bars, options
from minicaffe.cli.course import SOURCE
from minicaffe.errors import FileError
from minicaffe.proto import caffe_pb2

PAGES = SOURCE / "docs" / "layers"
TABLE = "| field | type | default | meaning |\n"
LINK = re.compile(r"\[([^\]]+)\]\([^)]*#\w+\)")
WIDTH = 100     # of the text, on a terminal that is wider, and in a pipe


@click.command(cls=options.CaffeCommand)
@click.argument("type", required=False)
@options.messages
def layers(type):
    """List the layer types, or show what one of them computes, its bottoms and tops, its fields and their defaults.

    TYPE is a word such as Convolution, as field `type` of a layer has it. docs/layers/ has the same text.
    """
    from minicaffe.layer import layer_class, layer_types  # imports all layers, which --help should not
    sections = read_pages()
    if type is not None:
        return show(describe(type, layer_class(type), sections))
    types = layer_types()
    entries = [describe(name, types[name], sections) for name in sorted(types, key=str.lower)]
    table = bars.grid("type", "bottoms", "tops", "of", "what it does")
    for entry in entries:
        table.add_row(*(Text(entry[key]) for key in ("name", "bottoms", "tops", "origin", "summary")))
    bars.table_console().print(table)
    click.echo(f"{len(entries)} types; minicaffe layers TYPE shows one with its fields")


def read_pages():
    """Return the sections of docs/layers/ by their headings, which are layer types: lists of paragraphs, lists and tables."""
    found = {}
    if not PAGES.is_dir():
        raise FileError("the installed minicaffe lacks these pages; install it again", file=str(PAGES))
    for page in sorted(PAGES.glob("*.md")):
        _, *parts = re.split(r"^## (\w+)\n", page.read_text(encoding="utf-8"), flags=re.M)
        found.update((name, body.strip().split("\n\n")) for name, body in zip(parts[::2], parts[1::2]))
    return found


def describe(name, cls, sections):
    """Return the facts of a layer type, from its page or its docstring, as a dict of str; `text` is Markdown."""
    of_addons = entry_points.additions("layers").get(name)
    owner = f"{of_addons[0].package}, {cls.__module__}" if of_addons else cls.__module__
    facts = f"{owner}. Bottoms: {count_blobs(cls, name, 'bottom')}. Tops: {count_blobs(cls, name, 'top')}."
    facts, *blocks = sections.get(name) or [facts, *textwrap.dedent(inspect.getdoc(cls) or "no docstring").split("\n\n")]
    messages, text, seen = tables_of(sections), [], set()
    while blocks:
        block = blocks.pop(0)
        text.append(LINK.sub(r"\1", block).replace(".<br>", ". ").replace("<br>", "; "))
        for message in LINK.findall(block):     # tables that several types share follow
            blocks += messages.get(message, []) if message not in seen else []
            seen.add(message)
    origin, bottoms, tops = re.fullmatch(r"(.*)\. Bottoms: (.*)\. Tops: (.*)\.", facts).groups()
    summary = re.split(r"(?<=[^.])\.(?= [A-Z`]|$)", " ".join(text[0].split()))[0]
    return {"name": name, "summary": summary, "bottoms": bottoms, "tops": tops, "origin": origin, "text": "\n\n".join(text)}


def tables_of(sections):
    """Return the tables of fields by message, with their paragraph: one that layers share is in the section of one of them."""
    found = {}
    for heading, blocks in sections.items():
        for paragraph, table in zip(["", *blocks], blocks):
            message = re.match(r"Fields of `\w+` \((\w+)\)", paragraph)
            if table.startswith(TABLE):
                name = message[1] if message else heading
                found[name] = [paragraph if message else f"{heading}: {paragraph}".rstrip(": "), table]
    return found


def count_blobs(cls, name, which):
    """Return how many bottoms or tops a class takes, as text; if its fields say so, those of a layer whose fields have defaults."""
    values = [getattr(cls, f"{kind}_{which}_blobs") for kind in ("exact_num", "min", "max")]
    if not all(isinstance(value, int) for value in values):
        layer = cls(caffe_pb2.LayerParameter(name=name, type=name))
        values = [getattr(layer, f"{kind}_{which}_blobs") for kind in ("exact_num", "min", "max")]
    exact, low, high = values
    if exact >= 0:
        return str(exact)
    if low < 0 and high < 0:
        return "any number"
    return f"at least {low}" if high < 0 else f"at most {high}" if low < 0 else f"{low} to {high}"


def show(entry):
    """Print the facts of one layer type, as `describe` returns them."""
    console = bars.table_console()
    counts = (f"{entry[kind]} {kind[:-1] if entry[kind] in ('1', 'at least 1') else kind}" for kind in ("bottoms", "tops"))
    click.echo(f"{entry['name']} ({entry['origin']}): {', '.join(counts)}\n")
    console.print(Markdown(entry["text"]), width=min(console.width, WIDTH))
