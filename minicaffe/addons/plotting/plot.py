"""``minicaffe plot``: curves of trainings, from logs or ``train --json``, as a picture, or as CSV files.

matplotlib draws; it is in the extra ``plots``. Different from Caffe's tools/extra/plot_training_log.py.example: panels have names,
not numbers, and a picture can have several.
"""

import math
import os
from collections import namedtuple
from pathlib import Path

import click

from minicaffe.addons.plotting.parse_log import COLUMNS, no_log_error, read_run
from minicaffe.cli import options
from minicaffe.cli.inputs import SkippedInputs, csv_bytes, read_each
from minicaffe.errors import ConfigError, DependencyError, FileError
from minicaffe.proto.atomic import replacing, write_bytes

SAMPLE_PANELS = {"gradients": "parameter", "diffs": "diff", "activations": "blob"}   # panels of samples, and what names them
NO_OUTPUTS = "holds no outputs of a net; is it the log of a training (minicaffe train net.prototxt 2> LOG, or --json LOG)?"
PANELS = ("loss", "accuracy", "rate", "outputs", *SAMPLE_PANELS)


class Curve(namedtuple("Curve", "label xs ys run test", defaults=(0, False))):
    """A line of a panel: `run` is the number of its log, `test` whether it is of the test net."""

    def not_finite(self):
        """Return a text with the number of the values that are not finite and the place of the first; "" if all are."""
        lost = [x for x, y in zip(self.xs, self.ys) if not math.isfinite(y)]
        return f"; not finite {len(lost)} times, first at {lost[0]:g}" if lost else ""


@click.command(cls=options.CaffeCommand)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("--out", "picture", metavar="FILE", help="The picture, .png, .svg or .pdf; by default LOG.svg of the first LOG.")
@click.option("--csv", "folder", metavar="FOLDER", help="Write FOLDER/<LOG>.train and FOLDER/<LOG>.test, and draw nothing: "
              "iteration, seconds, learning rate and every output of the net.")
@click.option("--show", "panels", metavar="A,B", help=f"Which panels, of {', '.join(PANELS)}; by default all that the logs have.")
@click.option("--along", type=click.Choice(["iterations", "seconds"]), default="iterations", show_default=True)
@click.option("--output", "column", metavar="NAME", help="The output of the net to draw; by default those that fit the panel.")
@click.option("--log", "logarithmic", is_flag=True, help="Logarithmic values; gradients, diffs and activations are so anyway.")
@options.force
@options.messages
def plot(logs, picture, folder, panels, along, column, logarithmic, force):
    """Draw loss, accuracy and learning rate of trainings from their LOGs, or from what minicaffe train --json wrote."""
    if picture is not None and folder is not None:
        raise click.UsageError("give --out or --csv")
    if folder is None:
        # LOG.svg is named by this command, which draws a log again and again as it grows; only a FILE of --out may be another's.
        picture, force = (picture, force) if picture is not None else (f"{logs[0]}.svg", True)
        if not os.path.splitext(picture)[1]:
            raise ConfigError("has no extension, which says the format: .png, .svg or .pdf", file=picture or "--out")
        options.check_outputs(picture, force=force)
    _, runs, errors = read_each(enumerate(logs), read_run)
    SkippedInputs(len(logs)).report(errors)
    for run in runs:
        if run.cut:     # its curves end early, and the training may still run
            last = max((row["NumIters"] for rows in run.tables.values() for row in rows), default=None)
            click.echo(f"{run.path}: {run.cut}" + (f"; read up to iteration {last}" if last is not None else ""), err=True)
    if folder is not None:
        return write_tables(runs, folder, force)
    wanted = [name.strip() for name in panels.split(",")] if panels else PANELS
    for name in wanted:
        if name not in PANELS:
            raise ConfigError(f"there is no panel '{name}', there are {', '.join(PANELS)}", field="--show")
    key = "NumIters" if along == "iterations" else "Seconds"
    drawn = [(name, found) for name in wanted if (found := curves(runs, name, key, column))]
    if not drawn:
        has = sorted({name for run in runs for rows in run.tables.values() for name in outputs(rows)})
        there = f"its outputs are {', '.join(has)}" if has else f"it {NO_OUTPUTS}"
        raise no_log_error(logs[0], f"has no {column or ', '.join(wanted)} along {along}; {there}")
    figure = new_figure(figsize=(8, 1 + 2.8 * len(drawn)))
    every = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, found) in zip(every, drawn, strict=True):
        plot_panel(axes, name, found, logarithmic or name in SAMPLE_PANELS, len(runs))
    axes.set_xlabel(along)
    figure.align_ylabels(every)
    try:
        with replacing(picture) as file:
            figure.savefig(file, format=os.path.splitext(picture)[1][1:], dpi=120)
    except ValueError as error:     # matplotlib has no such format
        raise ConfigError(f"{picture}: {error}", field="--out") from None
    click.echo(f"wrote {picture}")


def write_tables(runs, folder, force):
    """Write the rows of each run as CSV files, as Caffe's parse_log.py does, to a folder, which is made if it is missing."""
    tables = {}
    for run in runs:
        if not any(run.tables.values()):
            raise no_log_error(run.path, NO_OUTPUTS)
        tables |= {Path(folder) / f"{Path(run.path).name}.{phase}": rows for phase, rows in run.tables.items() if rows}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder cannot be made: {error.strerror}", file=folder) from None
    options.check_outputs(*tables, force=force)
    for path, rows in tables.items():
        names = [*COLUMNS, *outputs(rows)]
        write_bytes(path, csv_bytes(names, (map(row.get, names) for row in rows)))
        click.echo(f"{path}: {len(rows)} rows")


def outputs(rows):
    """Return the names of the outputs that rows have, behind iteration, seconds and rate."""
    return list(dict.fromkeys(name for row in rows for name in row))[len(COLUMNS):]


def curves(runs, panel, along, column=None):
    """Return the Curves of a panel; `along` is ``NumIters`` or ``Seconds``."""
    short = [os.path.basename(run.path) for run in runs]
    labels = short if len(set(short)) == len(short) else [run.path for run in runs]
    found = []
    for number, run in enumerate(runs):
        before = f"{labels[number]}: " if len(runs) > 1 else ""
        for label, test, rows, name in _series(run, panel, column):
            points = [(row[along], rounded(row[name])) for row in rows if row.get(name) is not None and row[along] is not None]
            if points:
                found.append(Curve(before + label, *map(list, zip(*points, strict=True)), number, test))
    return found


def rounded(value):
    """Return a number with six digits, as logs have: else a rate of 0.01 that is 0.0099999998 at times looks like two rates."""
    return float(f"{value:.6g}")


def _series(run, panel, column):
    """Yield for each curve of a panel: its label, whether it is of the test net, its rows, and the name of the value in them."""
    if panel in SAMPLE_PANELS:
        key = SAMPLE_PANELS[panel]
        groups = {}
        for sample in run.samples:
            if key in sample:
                name = sample[key] if key == "parameter" else f"{sample['layer']} {sample[key]}"
                groups.setdefault(name, []).append({**sample, "size": math.nan if sample["norm"] is None else sample["norm"]})
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


def new_figure(**size):
    """Return a new figure of matplotlib, imported on first use. Raises DependencyError if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DependencyError('pictures need matplotlib: pip install "minicaffe[plots]"; minicaffe plot LOG --csv FOLDER writes '
                              "numbers") from None
    return Figure(layout="constrained", **size)


def plot_panel(axes, name, found, logarithmic, runs):
    """Draw the Curves of a panel, tests dashed: a colour a run if there are several of a curve each, else a colour a curve."""
    by_run = runs > 1 and len({(one.run, one.test) for one in found}) == len(found)
    for number, one in enumerate(found):
        axes.plot(one.xs, one.ys, label=one.label + one.not_finite(), color=f"C{(one.run if by_run else number) % 10}",
                  linestyle="--" if one.test else "-", linewidth=1.4, marker="." if len(one.xs) < 50 else None)
    axes.set_ylabel(name)
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    outside = len(found) > 6
    axes.legend(fontsize="small", frameon=False, **({"loc": "upper left", "bbox_to_anchor": (1, 1)} if outside else {}))


