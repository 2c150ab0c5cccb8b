"""``minicaffe cache``: the kernels that were compiled at run time, and measured choices, which are kept on disk."""

import time

import click

from minicaffe.cli import options
from minicaffe.cuda import compile


@click.command(cls=options.CaffeCommand)
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@options.messages
def cache(action):
    """Show the folder of compiled kernels and measured choices with its size, or clear it."""
    folder = compile.cache_folder()
    if action == "clear":
        click.echo(f"removed {compile.clear()} files from {folder}")
        return
    files = compile.cached()
    click.echo(f"{folder}: {len(files)} files, {sum(size for _, size, _ in files):,} bytes of at most {compile.LIMIT:,}")
    for path, size, used in files:
        click.echo(f"{size:>12,}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(used))}  {compile.cache_entry_name(path)}")
