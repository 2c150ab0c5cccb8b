"""``minicaffe convert_annoset``: pictures and the boxes on them as a database for AnnotatedData (SSD's convert_annoset.cpp)."""

import click

from minicaffe.addons.ssd.annosets import convert_annotated
from minicaffe.cli import bars, options
from minicaffe.cli.data import from_list


@click.command(cls=options.CaffeCommand)
@click.argument("root")
@click.argument("list_file", metavar="LIST")
@click.argument("db")
@click.option("--label-map-file", "label_map", metavar="FILE", help="A LabelMap: numbers of the names.")
@click.option("--label-type", type=click.Choice(["xml", "json", "txt"]), default="xml", show_default=True)
@from_list
@click.option("--min-dim", type=click.IntRange(0, options.INT_MAX), default=0, help="Scale the shorter side to this; 0: do not.")
@click.option("--max-dim", type=click.IntRange(0, options.INT_MAX), default=0,
              help="The longer side gets no longer than this; 0: any length.")
@options.messages
def convert_annoset(root, list_file, db, **more):
    """Make DB of pictures and the boxes on them, for AnnotatedData.

    Each line of LIST is the path of a picture, a space and that of its annotation: VOC's xml, COCO's json, or lines of a label's
    number and four corners in pixels. ROOT is put before both unchanged.
    """
    with bars.progress() as progress:
        written, skipped = convert_annotated(root, list_file, db, progress=progress, **more)
    click.echo(f"{db}: {written} records" + (f", {skipped} pictures could not be read" if skipped else ""))
