"""``minicaffe layers``: all layer types, or what one computes, takes and has for fields (inspection/layer_reference.py)."""

import dataclasses
import json
import textwrap

import click
from rich.text import Text

from minicaffe.cli import bars, options

WIDTH = 100     # of paragraphs, on a terminal that is wider, and in a pipe


@click.command(cls=options.CaffeCommand)
@click.argument("type", required=False)
@click.option("--json", "as_json", is_flag=True, help="Write JSON: a list of all types, or what is known of one.")
@options.common
def layers(type, as_json):
    """List the layer types, or show what one of them computes, its bottoms and tops, its fields and their defaults.

    TYPE is a word such as Convolution, as field `type` of a layer has it. docs/layers/ has the same text.
    """
    from minicaffe.inspection import layer_reference  # imports all layers, which --help should not
    if type is None:
        entries = layer_reference.entries()
        if as_json:
            keys = ("name", "summary", "bottoms", "tops", "origin")
            click.echo(json.dumps([{key: getattr(entry, key) for key in keys} for entry in entries]))
            return
        table = bars.grid("type", "bottoms", "tops", "of", "what it does")
        for entry in entries:
            table.add_row(*map(Text, (entry.name, entry.bottoms, entry.tops, entry.origin, entry.summary)))
        bars.table_console().print(table)
        click.echo(f"{len(entries)} types; minicaffe layers TYPE shows one with its fields")
        return
    entry = layer_reference.describe(type)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(entry)))
        return
    show_layer(entry)


def show_layer(entry):
    """Print a LayerEntry."""
    console = bars.table_console()
    width = min(console.width, WIDTH)
    click.echo(f"{entry.name} ({entry.origin}): {entry.bottoms} {plural('bottom', entry.bottoms)}, "
               f"{entry.tops} {plural('top', entry.tops)}")
    first = [] if entry.text[0].startswith(entry.summary) else [f"{entry.summary[0].upper()}{entry.summary[1:]}."]
    for paragraph in (*first, *entry.text):
        click.echo("\n" + textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False))
    if entry.blobs:
        click.echo()
        table = bars.grid("blob or field", "what it is")
        for name, what in entry.blobs.items():
            table.add_row(Text(name), Text(what))
        console.print(table)
    if entry.rules:
        click.echo()
    for rule in entry.rules:
        click.echo(f"- {rule}")
    fields = {}
    for name, message in entry.params.items():
        fields.setdefault(message, name)
    for message in entry.messages:
        name = fields.get(message.name)
        head = f"{name} ({message.name})" if name not in (None, message.name) else message.name
        click.echo("\n" + textwrap.fill(f"{head}: {message.comment}" if message.comment else head, width))
        table = bars.grid("field", "type", "default", "meaning")
        for each in message.fields:
            table.add_row(*map(Text, (f"  {each.name}", each.type, each.default, "\n".join(each.lines()))))
        console.print(table)
    if not entry.messages:
        click.echo("\nIt has no fields of its own.")


def plural(noun, count):
    """Return the noun for a number of them, ``1`` or ``2 to 3``."""
    return noun if count in ("1", "at least 1") else f"{noun}s"
