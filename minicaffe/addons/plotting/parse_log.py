"""Read what a training logged: glog's lines, of Caffe or minicaffe, or the lines of ``minicaffe train --json``.

Caffe: tools/extra/parse_log.py and .sh, extract_seconds.py.

Different from Caffe: ``nan`` and ``inf`` are read, a row may lack outputs, and seconds count from the first line with a time
if no line says "Solving".
"""

import datetime
import json
import math
import os
import re
from dataclasses import dataclass

from minicaffe.errors import DataError
from minicaffe.proto import kinds
from minicaffe.proto.files import file_error

NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))"
ITERATION = re.compile(r"Iteration (\d+)")
RATE = re.compile(rf"lr = {NUMBER}", re.I)
OUTPUT = re.compile(rf"(Train|Test) net output #\d+: (\S+) = {NUMBER}", re.I)
OUTPUT_END = re.compile(r" loss\)\s*$|Optimization Done\.\s*$")  # lines that are complete without a line end
MOMENT = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+)")
COLUMNS = ("NumIters", "Seconds", "LearningRate")


@dataclass
class Run:
    """The records of one training that a file holds.

    `tables` is ``{"train": rows, "test": rows}``; a row is a dict with `COLUMNS` and the outputs. `samples` are those of
    `minicaffe.inspection.watch.Watch.samples` in records of ``train --watch --json``, with ``NumIters`` and ``Seconds``. `cut`
    describes what is missing at the end of the file.
    """

    path: str
    tables: dict
    samples: list
    cut: str | None = None


def no_log_error(path, message):
    """Return the error for a file given to plot that has no training: the kind of the file if it is known, else `message`."""
    own = "text", "json", "empty"
    return kinds.with_kind(DataError(message, file=path), kinds.head_of(path), "the log of a training", own)


def read_run(path):
    """Return the Run of a log or of lines of --json; a last line that is cut off is left out."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            kinds.check(file.buffer.peek(kinds.HEAD), "the log of a training", path)
            lines = file.readlines()
        year = datetime.datetime.fromtimestamp(os.path.getctime(path)).year
    except OSError as error:
        raise file_error(path, error) from error
    run = Run(str(path), {"train": [], "test": []}, [])
    cut = bool(lines) and not lines[-1].endswith("\n")
    if next((line for line in lines if line.strip()), "").startswith("{"):
        _read_json(lines, run, cut)
        return run
    if cut and not OUTPUT_END.search(lines[-1]):    # the line may lack digits of its number
        run.cut = "its last line is cut off"
        lines.pop()
    iteration, rate, moments = None, None, times_of(lines, year)
    begin = next((moment for line, moment in zip(lines, moments) if moment and "Solving" in line), None)
    for line, moment in zip(lines, moments):
        begin = begin or moment
        seconds = (moment - begin).total_seconds() if moment else None
        if found := ITERATION.search(line):
            iteration = int(found[1])
        if iteration is None:
            continue
        if found := RATE.search(line):
            rate = float(found[1])
            _set_rate(run.tables, iteration, rate)
        elif found := OUTPUT.search(line):
            rows = run.tables[found[1].lower()]
            if not rows or rows[-1]["NumIters"] != iteration or found[2] in rows[-1]:
                rows.append({"NumIters": iteration, "Seconds": seconds, "LearningRate": rate})
            rows[-1][found[2]] = float(found[3])
    if run.cut is None and not any("Optimization Done" in line or "Optimization stopped" in line for line in lines[-50:]):
        run.cut = "the training does not end in it"
    return run


def _read_json(lines, run, cut):
    """Put the records of ``minicaffe train --json`` into `run`; with `cut` the last line may be incomplete."""
    begin = rate = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            moment = record.get("time")
            begin = moment if begin is None else begin
            seconds = None if moment is None else moment - begin
            if record["event"] == "watch":
                run.samples += [{"NumIters": record["iteration"], "Seconds": seconds, **sample, "layer": sample["layer"],
                                 "norm": sample["norm"]} for sample in record["samples"]]
                continue
            rate = record.get("lr", rate)
            row = {"NumIters": record["iteration"], "Seconds": seconds, "LearningRate": rate}
            row.update((output["name"], math.nan if output["value"] is None else output["value"]) for output in record["outputs"])
            run.tables[record["event"]].append(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if cut and number == len(lines) and isinstance(error, json.JSONDecodeError):
                run.cut = "its last line is cut off"
                return
            raise DataError(f"is no record of minicaffe train --json: {error}", file=run.path, line=number) from None
        if record["event"] == "train":
            _set_rate(run.tables, row["NumIters"], rate)


def _set_rate(tables, iteration, rate):
    """Give its rate to the rows of this iteration, whose outputs are logged before the rate, and to rows without any."""
    for rows in tables.values():
        for row in rows:
            if row["NumIters"] == iteration or row["LearningRate"] is None:
                row["LearningRate"] = rate


def times_of(lines, year):
    """Return the time of each line of glog, which says no year, and None for other lines; `year` is about that of the first.

    An earlier year is taken where the lines have a 29 February that `year` lacks, as a copied log is younger than its training.
    """
    for first in range(year, year - 8, -1):
        now, last, lacks, times = first, 1, False, []
        for line in lines:
            found = MOMENT.match(line)
            moment = None
            if found:
                month, day, hour, minute, second = map(int, found.groups()[:5])
                now += month < last
                last = month
                try:
                    moment = datetime.datetime(now, month, day, hour, minute, second, int(found[6][:6].ljust(6, "0")))
                except ValueError:
                    lacks |= (month, day) == (2, 29)
            times.append(moment)
        if not lacks:
            break
    return times
