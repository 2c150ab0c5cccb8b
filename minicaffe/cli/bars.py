"""Progress bars on a terminal, nothing elsewhere; and the console of tables."""

import contextlib

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def table_console():
    """Return the rich Console of standard output for tables: a pipe gets whole lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=10_000)


@contextlib.contextmanager
def progress():
    """Yield ``report(text, done, total)``, which draws a bar for each text."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def report(text, done, total):
            if text not in tasks:
                tasks[text] = bars.add_task(text, total=total)
            bars.update(tasks[text], completed=done, total=total)

        yield report
