"""``minicaffe addons``: the installed add-ons, and what each adds."""

import importlib.metadata

import click

from minicaffe import entry_points
from minicaffe.cli import options


@click.command(cls=options.CaffeCommand)
@options.messages
def addons():
    """List the installed add-ons and what each adds.

    An add-on is what a package adds to minicaffe by entry points (docs/writing_an_addon.md).
    """
    added = {}      # (package, add-on): lines
    for group, kind in entry_points.GROUPS.items():
        loaded = {(package, addon): names for addon, package, names in entry_points.objects(group)}
        for addon, package, target in entry_points.entries(group):
            names = loaded.get((package, addon))
            text = f"{target} cannot be imported" if names is None else ", ".join(names) if isinstance(names, dict) else target
            added.setdefault((package, addon), []).append(f"{kind}: {text}")
    if not added:
        click.echo("no add-ons are installed")
    for (package, addon), lines in sorted(added.items()):
        click.echo(f"{addon} ({package} {importlib.metadata.version(package)})")
        for line in lines:
            click.echo(f"  {line}")
