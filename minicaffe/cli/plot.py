"""``minicaffe plot``: curves of trainings, from logs or ``train --json``, on the terminal or as a picture.

Caffe's tools/extra/plot_training_log.py.example has eight charts by number, one a picture: ``minicaffe plot 6 loss.png LOG`` still
draws those. Pictures need matplotlib (the extra ``plots``), charts on the terminal need nothing.
"""

import math
import os
import re
from dataclasses import dataclass

import click

from minicaffe.cli import bars, options
from minicaffe.cli.chart import draw, widen_range
from minicaffe.cli.inputs import SkippedInputs, read_each
from minicaffe.cli.parse_log import COLUMNS, no_log_error, read_run
from minicaffe.cli.watch_table import table as watch_table
from minicaffe.errors import ConfigError, DataError, DependencyError
from minicaffe.proto.atomic import replacing

# Caffe's chart types: table, what is drawn, along what.
CHARTS = [(table, what, along) for table, what in (("test", "accuracy"), ("test", "loss"), ("train", "rate"), ("train", "loss"))
          for along in ("NumIters", "Seconds")]
NAMES = {"NumIters": "iterations", "Seconds": "seconds"}
LIST = "  ".join(f"{i}: {table} {what} vs. {NAMES[along]}" for i, (table, what, along) in enumerate(CHARTS))
SAMPLE_PANELS = {"gradients": "parameter", "diffs": "diff", "activations": "blob"}   # panels of samples, and what names them
PANELS = ("loss", "accuracy", "rate", "outputs", *SAMPLE_PANELS)
MAX_CURVES = 8    # curves of a panel that are drawn in a terminal


@dataclass
class Curve:
    """A line of a panel: `run` is the number of its log, `test` whether it is of the test net."""

    label: str
    xs: list
    ys: list
    run: int = 0
    test: bool = False


@click.command(cls=options.CaffeCommand, epilog=f"Caffe's form, plot CHART PICTURE LOG..., has the charts {LIST}")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("--out", "picture", metavar="FILE", help="Draw a picture, .png, .svg or .pdf, not in the terminal; needs matplotlib.")
@click.option("--show", "panels", metavar="A,B", help=f"Which panels, of {', '.join(PANELS)}; by default all that the logs have.")
@click.option("--along", type=click.Choice(["iterations", "seconds"]), default="iterations", show_default=True)
@click.option("--output", "column", metavar="NAME", help="The output of the net to draw; by default those that fit the panel.")
@click.option("--log", "logarithmic", is_flag=True, help="Logarithmic values; gradients, diffs and activations are so anyway.")
@click.option("--table", is_flag=True, help="A table of the layers, as last measured by --watch or logged by debug_info.")
@options.force
@options.messages
def plot(logs, picture, panels, along, column, logarithmic, table, force):
    """Draw loss, accuracy and learning rate of trainings from their LOGs, or from what minicaffe train --json wrote."""
    if re.fullmatch(r"\d+", logs[0]) and not os.path.exists(logs[0]):
        return plot_chart(logs, column, force)
    if picture is not None:
        check_picture(picture, force)
    _, runs, errors = read_each(enumerate(logs), read_run)
    SkippedInputs(len(logs)).report(errors)
    for run in runs:
        report_incomplete_log(run)
    if table:
        return show_layers(runs)
    wanted = [name.strip() for name in panels.split(",")] if panels else PANELS
    for name in wanted:
        if name not in PANELS:
            raise ConfigError(f"there is no panel '{name}', there are {', '.join(PANELS)}", field="--show")
    key = "NumIters" if along == "iterations" else "Seconds"
    drawn = [(name, found) for name in wanted if (found := curves(runs, name, key, column))]
    if not drawn:
        has = sorted({name for run in runs for rows in run.tables.values() for name in outputs(rows)})
        there = f"its outputs are {', '.join(has)}" if has else (
            "it holds no outputs of a net; is it the log of a training (minicaffe train net.prototxt 2> LOG, or --json LOG)?")
        raise no_log_error(logs[0], f"has no {column or ', '.join(wanted)} along {along}; {there}")
    scales = [logarithmic or name in SAMPLE_PANELS for name, _ in drawn]
    if picture is None:
        return print_charts(drawn, scales, along)
    figure = new_figure(figsize=(8, 1 + 2.8 * len(drawn)))
    every = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, found), scale in zip(every, drawn, scales, strict=True):
        plot_panel(axes, name, found, scale, len(runs))
    axes.set_xlabel(along)
    figure.align_ylabels(every)
    save(figure, picture)


def show_layers(runs):
    """Print for each run the table of its layers at the last iteration that was measured."""
    console = bars.table_console()
    for run in runs:
        if not run.samples:
            raise DataError("has no measurements of layers; train with --watch --json FILE, or with debug_info: true and a log",
                            file=run.path)
        last = run.samples[-1]["NumIters"]
        samples = list({tuple(sample.get(key) for key in ("layer", *SAMPLE_PANELS.values())): sample for sample in run.samples
                        if sample["NumIters"] == last}.values())    # a training that was resumed may have measured it twice
        what = "mean absolute values, of debug_info" if "mean" in samples[0] else "norms"
        console.print(f"{run.path}: layers at iteration {last} ({what})", markup=False, soft_wrap=True)
        console.print(watch_table(samples, width=console.width))


def plot_chart(arguments, column, force):
    """Draw one of Caffe's charts: arguments are its number, the picture and the logs."""
    if not 0 <= int(arguments[0]) < len(CHARTS) or len(arguments) < 3:
        raise ConfigError(f"give a number from 0 to {len(CHARTS) - 1}, a picture and logs, as in plot 6 loss.png train.log; got "
                          f"{' '.join(arguments)}", field="CHART")
    (table, what, along), picture, logs = CHARTS[int(arguments[0])], arguments[1], arguments[2:]
    check_picture(picture, force)
    _, found, errors = read_each(enumerate(enumerate(logs)), lambda one: curve(one[1], one[0], table, what, along, column))
    SkippedInputs(len(logs)).report(errors)
    figure = new_figure(figsize=(8, 5))
    axes = figure.subplots()
    plot_panel(axes, f"{table} {what}", found, False, len(found))
    axes.set(xlabel=NAMES[along], title=f"{table} {what} vs. {NAMES[along]}")
    save(figure, picture)


def curve(log, number, table, what, along, column=None):
    """Return the Curve of what one of Caffe's charts shows of a log, the run of this number."""
    run = read_run(log)
    report_incomplete_log(run)
    rows = run.tables[table]
    names = outputs(rows)
    name = column or next((n for n in names if what in n.lower()), names[0] if names and what == "accuracy" else None)
    if what == "rate" and not column:
        name = "LearningRate"
    found = drawn(f"{os.path.basename(log)}: {name}", rows, name, along, number, table == "test")
    if found is None:
        has = f"its {table} outputs are {', '.join(names)}; choose one with --output" if names else f"it holds no {table} outputs"
        raise no_log_error(log, f"has no {table} {column or what} along {NAMES[along]}; {has}")
    return found


def outputs(rows):
    """Return the names of the outputs that rows have, behind iteration, seconds and rate."""
    return list(dict.fromkeys(name for row in rows for name in row))[len(COLUMNS):]


def drawn(label, rows, name, along, run, test):
    """Return the Curve of a column of rows along another, None if no row has both."""
    points = [(row[along], row[name]) for row in rows if row.get(name) is not None and row[along] is not None]
    return Curve(label, *map(list, zip(*points, strict=True)), run, test) if points else None


def report_incomplete_log(run):
    """Report a log that ends before its training does."""
    if run.cut:
        last = max((row["NumIters"] for rows in run.tables.values() for row in rows), default=None)
        click.echo(f"{run.path}: {run.cut}" + (f"; read up to iteration {last}" if last is not None else ""), err=True)


def curves(runs, panel, along, column=None):
    """Return the Curves of a panel; `along` is ``NumIters`` or ``Seconds``."""
    short = [os.path.basename(run.path) for run in runs]
    labels = short if len(set(short)) == len(short) else [run.path for run in runs]
    found = []
    for number, run in enumerate(runs):
        before = f"{labels[number]}: " if len(runs) > 1 else ""
        for label, test, rows, name in _series(run, panel, column):
            found.append(drawn(before + label, rows, name, along, number, test))
    return list(filter(None, found))


def _series(run, panel, column):
    """Yield label, whether it is of the test net, rows and name in them of each curve of a panel."""
    if panel in SAMPLE_PANELS:
        key = SAMPLE_PANELS[panel]
        groups = {}
        for sample in run.samples:
            if key in sample:
                name = sample[key] if key == "parameter" else f"{sample['layer']} {sample[key]}"
                size = sample.get("mean", sample.get("norm"))
                groups.setdefault(name, []).append({**sample, "size": math.nan if size is None else size})
        for label, rows in groups.items():
            yield label, False, rows, "size"
    elif panel == "rate":
        if column is None:
            yield "learning rate", False, run.tables["train"], "LearningRate"
    else:
        for table, rows in run.tables.items():
            for name in outputs(rows):
                kind = next((kind for kind in ("loss", "accuracy") if kind in name.lower()), "outputs")
                if (name == column and panel == "outputs") if column else kind == panel:
                    yield f"{table} {name}", table == "test", rows, name


def print_charts(drawn, scales, along):
    """Print the panels, as wide as the terminal."""
    from rich.console import Console
    console = Console(highlight=False, markup=False, emoji=False)     # a name may have brackets
    width = max(40, min(console.width, 120))
    for (name, found), scale in zip(drawn, scales, strict=True):
        if len(found) > MAX_CURVES:
            click.echo(f"{name}: the first {MAX_CURVES} of {len(found)} curves; --out draws all")
        utf8 = console.encoding.startswith("utf")
        console.print(draw(name, found[:MAX_CURVES], width, along=along, logarithmic=scale, utf8=utf8))


def new_figure(**size):
    """Return a new figure of matplotlib. Raises DependencyError if there is none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DependencyError('pictures need matplotlib: pip install "minicaffe[plots]", or pip install matplotlib; without --out '
                              "minicaffe plot draws in the terminal, and minicaffe parse_log writes the numbers as CSV") from None
    return Figure(layout="constrained", **size)


def plot_panel(axes, name, found, logarithmic, runs):
    """Draw the Curves of a panel, tests dashed: a colour a run if there are several of a curve each, else a colour a curve."""
    by_run = runs > 1 and len({(one.run, one.test) for one in found}) == len(found)
    for number, one in enumerate(found):
        axes.plot(one.xs, one.ys, label=one.label, color=f"C{(one.run if by_run else number) % 10}",
                  linestyle="--" if one.test else "-", linewidth=1.4, marker="." if len(one.xs) < 50 else None)
    axes.set_ylabel(name)
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
    drawn = [y for one in found for y in one.ys if math.isfinite(y) and (y > 0 or not logarithmic)]
    if drawn and widen_range(min(drawn), max(drawn)) != (min(drawn), max(drawn)):
        axes.set_ylim(*widen_range(min(drawn), max(drawn)))
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    outside = len(found) > 6
    axes.legend(fontsize="small", frameon=False, **({"loc": "upper left", "bbox_to_anchor": (1, 1)} if outside else {}))


def check_picture(picture, force):
    """Raise ConfigError or FileError, before logs are read, if the file cannot be drawn or would overwrite another."""
    if not os.path.splitext(picture)[1]:
        raise ConfigError("has no extension, which says the format: .png, .svg or .pdf", file=picture or "--out")
    options.check_outputs(picture, force=force)


def save(figure, picture):
    """Write the figure; raises ConfigError or FileError if that cannot be."""
    try:
        with replacing(picture) as file:
            figure.savefig(file, format=os.path.splitext(picture)[1][1:], dpi=120)
    except ValueError as error:
        raise ConfigError(f"{picture}: {error}", field="--out") from None
    click.echo(f"wrote {picture}")
