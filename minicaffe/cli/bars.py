"""Progress bars on a terminal, nothing elsewhere; tables; and the blocks of sparklines."""

import contextlib
import re

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"  # of sparklines
PLAIN_BLOCKS = "_.-=+*#@"  # for terminals without UTF-8
RIGHT_ALIGNED = {"min", "max", "mean", "std", "norm", "zeros", "relative", "compared", "backward", "differences"}   # columns


def table_console():
    """Return the rich Console of standard output for tables; brackets and colons of names are no markup.

    A pipe gets whole lines, without spaces at their ends.
    """
    plain = {"highlight": False, "markup": False, "emoji": False}
    found = Console(**plain)
    return found if found.is_terminal else Console(**plain, file=WithoutPadding(found.file), width=10_000)


class WithoutPadding:
    """The text file `file` of a rich Console, without spaces at the ends of lines: a rich table pads each to the longest."""

    def __init__(self, file):
        self.file = file

    def write(self, text):
        return self.file.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name):        # rich also uses flush, isatty, encoding
        return getattr(self.file, name)


def grid(*names):
    """Return a rich Table without lines whose columns are `names`, `RIGHT_ALIGNED` to the right; the caller adds rows."""
    table = Table.grid(padding=(0, 1))
    for name in names:
        table.add_column(justify="right" if name in RIGHT_ALIGNED else "left", overflow="fold")
    table.add_row(*(Text(name, "dim") for name in names))
    return table


@contextlib.contextmanager
def progress():
    """Yield ``report(text, done, total)`` for long work (`total` None: not known); it draws a bar for each text.

    Bars are drawn on standard error, if it is a terminal, without --quiet.
    """
    console = Console(stderr=True)
    context = click.get_current_context(silent=True)
    drawn = console.is_terminal and not (context is not None and context.meta.get("quiet"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks = {}
    with Progress(*columns, console=console, transient=True, disable=not drawn) as bars:

        def report(text, done, total):      # `done` of `total` units
            if text not in tasks:
                tasks[text] = bars.add_task(text, total=total)
            bars.update(tasks[text], completed=done, total=total)

        yield report
