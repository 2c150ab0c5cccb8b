"""Progress bars on a terminal, nothing elsewhere; and tables."""

import contextlib

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from minicaffe.addons.trace.table import table_console as table_console

RIGHT_ALIGNED = {"min", "max", "mean", "std", "norm", "zeros", "relative", "compared", "backward", "differences"}   # columns


def grid(*names):
    """Return a table without lines with these columns, `RIGHT_ALIGNED` to the right."""
    table = Table.grid(padding=(0, 1))
    for name in names:
        table.add_column(justify="right" if name in RIGHT_ALIGNED else "left", overflow="fold")
    table.add_row(*(Text(name, "dim") for name in names))
    return table


@contextlib.contextmanager
def progress():
    """Yield ``report(text, done, total)``, which draws a bar for each text; with --quiet it draws nothing."""
    console = Console(stderr=True)
    context = click.get_current_context(silent=True)
    drawn = console.is_terminal and not (context is not None and context.meta.get("quiet"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks = {}
    with Progress(*columns, console=console, transient=True, disable=not drawn) as bars:

        def report(text, done, total):
            if text not in tasks:
                tasks[text] = bars.add_task(text, total=total)
            bars.update(tasks[text], completed=done, total=total)

        yield report
