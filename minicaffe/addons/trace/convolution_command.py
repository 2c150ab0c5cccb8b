"""``minicaffe convolution``: the page "convolution up close". Caffe has none."""

import webbrowser
from pathlib import Path

import click

from minicaffe.cli import options
from minicaffe.errors import DependencyError
from minicaffe.proto.atomic import write_bytes

PAGE = Path(__file__).resolve().parent / "view" / "convolution.html"


@click.command(cls=options.CaffeCommand)
@click.option("--html", metavar="FILE", help="Write the page to FILE in place of opening it.")
@options.force
@options.messages
def convolution(html, force):
    """Open a page that shows convolution window by window.

    It shows which pixels a window reads, the column matrix, and the index of each element, with the arithmetic written out. It is
    one file and needs no network.
    """
    options.check_outputs(html, force=force)
    if html is not None:
        write_bytes(html, PAGE.read_bytes())
        click.echo(f"wrote {html}")
    elif webbrowser.open(PAGE.as_uri()):
        click.echo(f"Opened {PAGE} in a browser")
    else:
        raise DependencyError(f"no browser can be opened here; open {PAGE} in one, or write the page with --html FILE")
