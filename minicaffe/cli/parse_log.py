"""``minicaffe parse_log``: a training log as two CSV files (Caffe tools/extra/parse_log.py and .sh, extract_seconds.py).

Different from Caffe: ``nan`` and ``inf`` are read, a row may lack outputs, and seconds count from the first line with a time
if no line says "Solving".
"""

import csv
import datetime
import io
import json
import math
import os
import re
from pathlib import Path

import click

from minicaffe.cli import options
from minicaffe.data.db import check_free
from minicaffe.errors import ConfigError, DataError
from minicaffe.proto.atomic import replacing
from minicaffe.proto.files import file_error

NUMBER = r"([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))"
ITERATION = re.compile(r"Iteration (\d+)")
RATE = re.compile(rf"lr = {NUMBER}", re.I)
OUTPUT = re.compile(rf"(Train|Test) net output #\d+: (\S+) = {NUMBER}", re.I)
MOMENT = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+)")
COLUMNS = ("NumIters", "Seconds", "LearningRate")


@click.command(cls=options.CaffeCommand)
@click.argument("log_file", metavar="LOG")
@click.argument("folder")
@click.option("--delimiter", default=",", show_default=True, help="Between the columns.")
@click.option("--verbose", is_flag=True, help="Show the rows.")
@options.force
@options.debug
def parse_log(log_file, folder, delimiter, verbose, force):
    """Write FOLDER/<LOG>.train and FOLDER/<LOG>.test: iteration, seconds, learning rate and every output of the net.

    LOG is the log of a training, by Caffe or minicaffe, or the lines that minicaffe train --json writes.
    """
    if len(delimiter) != 1:
        raise ConfigError(f"must be one character, got '{delimiter}'", field="--delimiter")
    tables = read_log(log_file)
    if not any(tables.values()):
        raise DataError("holds no outputs of a net; is it the log of a training (minicaffe train net.prototxt 2> LOG, or "
                        "--json LOG)?", file=log_file)
    for phase, rows in tables.items():
        path = Path(folder) / f"{Path(log_file).name}.{phase}"
        if not rows:
            continue
        check_free(path, force)
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, list(dict.fromkeys(name for row in rows for name in row)), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        with replacing(path) as file:
            file.write(table.getvalue().encode())
        if verbose:
            click.echo(table.getvalue(), nl=False)
        click.echo(f"{path}: {len(rows)} rows")


def read_log(path):
    """Return ``{"train": rows, "test": rows}`` of a log or of lines of --json; a row is a dict with `COLUMNS` and the outputs."""
    try:
        with open(path, errors="replace") as file:
            lines = file.readlines()
        year = datetime.datetime.fromtimestamp(os.path.getctime(path)).year
    except OSError as error:
        raise file_error(path, error) from error
    if next((line for line in lines if line.strip()), "").startswith("{"):
        return _read_json(lines, path)
    tables = {"train": [], "test": []}
    iteration, rate, clock = None, None, Clock(year)
    begin = next((m for m in (Clock(year).read(line) for line in lines if "Solving" in line) if m), None)
    for line in lines:
        moment = clock.read(line)
        begin = begin or moment
        if found := ITERATION.search(line):
            iteration = int(found[1])
        if iteration is None:
            continue
        if found := RATE.search(line):
            rate = float(found[1])
            _set_rate(tables, iteration, rate)
        elif found := OUTPUT.search(line):
            rows = tables[found[1].lower()]
            if not rows or rows[-1]["NumIters"] != iteration or found[2] in rows[-1]:
                seconds = (moment - begin).total_seconds() if moment and begin else None
                rows.append({"NumIters": iteration, "Seconds": seconds, "LearningRate": rate})
            rows[-1][found[2]] = float(found[3])
    return tables


def _read_json(lines, path):
    """Return what `read_log` does for the records of ``minicaffe train --json``."""
    tables = {"train": [], "test": []}
    begin = rate = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            moment = record.get("time")
            begin = moment if begin is None else begin
            seconds = None if moment is None else moment - begin
            rate = record.get("lr", rate)
            row = {"NumIters": record["iteration"], "Seconds": seconds, "LearningRate": rate}
            row.update((output["name"], math.nan if output["value"] is None else output["value"]) for output in record["outputs"])
            tables[record["event"]].append(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break  # the training was killed while it wrote this line
            raise DataError(f"is no record of minicaffe train --json: {error}", file=path, line=number) from None
        if record["event"] == "train":
            _set_rate(tables, row["NumIters"], rate)
    return tables


def _set_rate(tables, iteration, rate):
    """Give its rate to the rows of this iteration, whose outputs are logged before the rate, and to rows without any."""
    for rows in tables.values():
        for row in rows:
            if row["NumIters"] == iteration or row["LearningRate"] is None:
                row["LearningRate"] = rate


class Clock:
    """Reads the times of glog's lines, which hold no year."""

    def __init__(self, year):
        self.year = year
        self.month = 1

    def read(self, line):
        """Return the time of a line, or None."""
        found = MOMENT.match(line)
        if not found:
            return None
        month, day, hour, minute, second = map(int, found.groups()[:5])
        self.year += month < self.month
        self.month = month
        try:
            return datetime.datetime(self.year, month, day, hour, minute, second, int(found[6][:6].ljust(6, "0")))
        except ValueError:
            return None
