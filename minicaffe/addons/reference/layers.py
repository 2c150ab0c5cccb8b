"""``minicaffe layers``: all layer types, or what one computes and takes (layer_reference.py)."""

import click
from rich.markdown import Markdown
from rich.text import Text

from minicaffe.cli import bars, options
from minicaffe.proto.comments import one_line

WIDTH = 100     # of the text, on a terminal that is wider, and in a pipe


@click.command(cls=options.CaffeCommand)
@click.argument("type", required=False)
@options.messages
def layers(type):
    """List the layer types, or show what one of them computes, its bottoms and tops, its fields and their defaults.

    TYPE is a word such as Convolution, as field `type` of a layer has it.
    """
    from minicaffe.addons.reference.layer_reference import describe
    from minicaffe.layer import layer_types  # imports all layers, which --help should not
    if type is not None:
        return show(describe(type))
    entries = [describe(name) for name in sorted(layer_types(), key=str.lower)]
    table = bars.grid("type", "bottoms", "tops", "of", "what it does")
    for entry in entries:
        table.add_row(*(Text(cell) for cell in (entry.name, entry.bottoms, entry.tops, entry.origin, entry.summary)))
    bars.table_console().print(table)
    click.echo(f"{len(entries)} types; minicaffe layers TYPE shows one with its fields")


def show(entry):
    """Print a LayerEntry."""
    console = bars.table_console()
    counts = (f"{count}{' of' * (count == 'any number')} {kind}{'' if count in ('1', 'at least 1') else 's'}"
              for count, kind in ((entry.bottoms, "bottom"), (entry.tops, "top")))
    click.echo(f"{entry.name} ({entry.origin}): {', '.join(counts)}\n")
    console.print(Markdown(text_of(entry)), width=min(console.width, WIDTH))


def text_of(entry):
    """Return what a LayerEntry says as Markdown: summary, paragraphs, lists of blobs and rules, and a table for each message."""
    parts = [] if entry.text[0].startswith(entry.summary) else [f"{entry.summary[0].upper()}{entry.summary[1:]}."]
    parts += entry.text
    parts.append("\n".join(f"- `{name}`: {what}." for name, what in entry.blobs.items()))
    parts.append("\n".join(f"- {rule}" for rule in entry.rules))
    param_of = {message: param for param, message in entry.params.items()}
    for message in entry.messages:
        param, name = param_of.get(message.name), message.name
        title = f"{name}:" if param is None else f"Fields of `{param}`{'' if param == name else f' ({name})'}."
        parts += [f"{title} {message.comment}".rstrip(" :"), table_of(message.fields)]
    if not entry.params and not any("_param" in name for name in entry.blobs):
        parts.append("It has no fields of its own.")
    return "\n\n".join(filter(None, parts))


def table_of(fields):
    """Return a table of FieldEntry objects in Markdown."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for each in fields:
        cells = f"`{each.name}`", each.type, f"`{each.default}`" if each.default else "", one_line(each.comment)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
