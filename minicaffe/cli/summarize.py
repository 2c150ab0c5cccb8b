"""``minicaffe summarize``: the layers of a net in a table (Caffe tools/extra/summarize.py)."""

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minicaffe.cli import options
from minicaffe.net.summary import params, sizes
from minicaffe.proto.upgrade import read_net_file


@click.command(cls=options.CaffeCommand)
@click.argument("net_file", metavar="NET")
@click.option("-w", "--width", type=click.IntRange(min=1), default=30, show_default=True, help="Widest column of bottoms and tops.")
@options.skip_unknown_fields
@options.debug
def summarize(net_file, width):
    """List the layers of NET: name, type, parameters, bottoms, tops, and the sizes of convolutions and poolings.

    A bottom that nothing makes is shown as ``?name``, a top that nothing reads underlined.
    """
    net, _ = read_net_file(net_file, options.net_options()["skip_unknown_fields"])
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=10_000)  # a pipe gets whole lines
    table = Table.grid(padding=(0, 1))
    for limit in (None, None, None, width, None, width, None):
        table.add_column(no_wrap=limit is None or not console.is_terminal, max_width=limit if console.is_terminal else None)
    for row in rows(net):
        table.add_row(*row)
    console.print(table)


def rows(net):
    """Yield the cells of each layer."""
    made, read = set(), {bottom for layer in net.layer for bottom in layer.bottom}
    for layer in net.layer:
        kind = layer.type
        if kind == "Python":
            kind = f"{layer.python_param.module}.{layer.python_param.layer}"
        bottoms = Text(", ").join(Text(name) if name in made else Text(f"?{name}", "bold red") for name in layer.bottom)
        made.update(layer.top)
        tops = []
        for i, name in enumerate(layer.top):
            weight = f"{layer.loss_weight[i]:g} * " if i < len(layer.loss_weight) and layer.loss_weight[i] != 1 else ""
            tops.append(Text(weight + name, "" if name in read else "bold underline"))
        arrow = "->" if tops else ""
        yield Text(layer.name, "cyan"), Text(kind, "green"), params(layer), bottoms, arrow, Text(", ").join(tops), sizes(layer)
