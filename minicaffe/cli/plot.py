"""``minicaffe plot``: charts of training logs (Caffe tools/extra/plot_training_log.py.example). Needs matplotlib."""

import os

import click

from minicaffe.cli import options
from minicaffe.cli.parse_log import read_log
from minicaffe.errors import ConfigError, DataError, DependencyError

# Caffe's chart types: table, what is drawn, along what.
CHARTS = [(table, what, along) for table, what in (("test", "accuracy"), ("test", "loss"), ("train", "rate"), ("train", "loss"))
          for along in ("NumIters", "Seconds")]
NAMES = {"NumIters": "iterations", "Seconds": "seconds"}
LIST = "  ".join(f"{i}: {table} {what} vs. {NAMES[along]}" for i, (table, what, along) in enumerate(CHARTS))


@click.command(cls=options.CaffeCommand, epilog=LIST)
@click.argument("chart", type=click.IntRange(0, len(CHARTS) - 1))
@click.argument("picture")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("--output", "column", metavar="NAME", help="The output of the net to draw; by default one whose name fits the chart.")
@options.debug
def plot(chart, picture, logs, column):
    """Draw chart number CHART of training logs, or of what minicaffe train --json wrote, to PICTURE: png, svg or pdf."""
    table, what, along = CHARTS[chart]
    curves = [(os.path.basename(log), *curve(log, table, what, along, column)) for log in logs]
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DependencyError("charts need matplotlib: pip install matplotlib; minicaffe parse_log writes the numbers as "
                              "CSV") from None
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot()
    for label, name, xs, ys in curves:
        axes.plot(xs, ys, label=f"{label}: {name}", marker="." if len(xs) < 50 else None)
    axes.set(xlabel=NAMES[along], ylabel=f"{table} {what}", title=f"{table} {what} vs. {NAMES[along]}")
    axes.grid(True)
    axes.legend()
    try:
        figure.savefig(picture)
    except ValueError as error:
        raise ConfigError(f"{picture}: {error}", field="PICTURE") from None
    click.echo(f"wrote {picture}")


def curve(log, table, what, along, column=None):
    """Return name, x and y of what a chart shows of one log."""
    rows = read_log(log)[table]
    names = list(dict.fromkeys(name for row in rows for name in row))[3:]
    if what == "rate" and not column:
        name = "LearningRate"
    else:
        name = column or next((n for n in names if what in n.lower()), names[0] if names and what == "accuracy" else None)
    points = [(row[along], row[name]) for row in rows if row.get(name) is not None and row[along] is not None]
    if not points:
        has = f"its {table} outputs are {', '.join(names)}; choose one with --output" if names else f"it holds no {table} outputs"
        raise DataError(f"has no {table} {column or what} along {NAMES[along]}; {has}", file=log)
    return name, *zip(*points, strict=True)
