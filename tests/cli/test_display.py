"""The display of a training on a terminal: rows, sizes, speed, and what it costs."""

import contextlib
import io
import math
import os
import re
import signal
import sys
import time

import click
import pytest
from helpers import one_of
from rich.console import Console
from tiny import ESCAPES, LONG, Process, own_solver

from minicaffe.cli.bars import progress
from minicaffe.cli.display import LiveDisplay
from minicaffe.cli.records import Result
from minicaffe.cli.train import train


def display_of(width, height):
    return LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=width, height=height))


@pytest.mark.parametrize("size, environment", one_of(4, [
    ((24, 40), {}), ((24, 80), {}), ((5, 20), {}), ((24, 80), {"NO_COLOR": "1"}), ((50, 200), {"LC_ALL": "C", "PYTHONUTF8": "0"})]))
def test_live_display(folder, size, environment):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder, size=size, **environment)
    process.read_until("iteration")
    process.read_until("iteration")
    process.resize(12, 40)
    process.read_until("iteration")
    process.signal(signal.SIGINT)
    status, _ = process.finish()
    shown = ESCAPES.sub("", process.text)
    assert status == 0 and "Stopped at iteration" in shown and "resume with:" in shown
    assert "Traceback" not in shown and "] Iteration" not in shown  # the log stays away
    assert process.text.rstrip().count("\x1b[?25h") >= 1  # the cursor is back
    if size[0] > 12:
        assert [word for word in ("loss", "speed", "iterations/s", "time left", "test") if word not in shown] == []
    if environment.get("NO_COLOR"):
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", process.text)


def test_rows_of_the_display(folder):
    solver = own_solver()
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=40, height=20))
    display.on_start(solver)
    display.on_display(solver, {"lr": 0.1})
    display.on_test(solver, {"net": 0, "iteration": 7, "outputs": [{"name": f"output{i}", "value": 0.5} for i in range(8)]})
    display.on_snapshot(solver, "a_long_folder/and_a_long_name_iter_7.caffemodel", "x")
    display.close()
    display.console.file = io.StringIO()
    display.console.print(display.table(solver))
    lines = ESCAPES.sub("", display.console.file.getvalue()).splitlines()
    assert [line.split()[0] for line in lines] == ["iteration", "━━━━━━━━━━━━━━━━━━━━━━━━━━━━", "loss", "rate", "speed", "test", "snapshot"]
    assert "at 7: output0 0.5" in lines[5] and "at 0: a_long_folder" in lines[6]


@pytest.mark.parametrize("stopped, state", [(True, "stopped"), (False, "done")])
def test_first_speed_and_last_state(folder, stopped, state):
    solver, display = own_solver(), display_of(40, 20)
    solver.iter = 300       # of an earlier training
    display.on_start(solver)
    display.tick(solver)
    assert display._speed(solver) == ("", "...")
    display.on_end(solver, stopped)
    assert f" of {solver.param.max_iter} {state}" in ESCAPES.sub("", display.console.file.getvalue())


def test_hung_up_display(folder):
    solver, display, drawn = own_solver(), display_of(40, 20), []

    def hung_up():
        drawn.append(solver.iter)
        raise OSError

    display.on_start(solver)
    live, display.live.refresh = display.live, hung_up
    for _ in range(2):
        display.next_draw = 0
        display.tick(solver)
    del live.refresh
    live.stop()
    assert drawn == [0] and display.live is None


@pytest.mark.parametrize("left, text", [(0, "0:00"), (65 * 100, "1:05"), (3725 * 100, "1:02:05")])
def test_speed_and_time_left(folder, left, text):
    solver = own_solver()
    solver.iter, solver.param.max_iter = 300, 300 + left
    display = LiveDisplay(Console(file=io.StringIO()))
    display.images = 8
    display.redraw_times.clear()
    display.redraw_times.extend([(10.0, 100), (11.0, 250), (12.0, 300)])
    assert display._speed(solver) == (text, "100.0 iterations/s, 800 images/s")


def test_sparkline():
    display = LiveDisplay(Console(file=io.StringIO()))
    display.losses.extend([1, math.nan, math.inf, 8, -math.inf, 4.5])
    assert display.sparkline(9) == "▁█▅" and display.sparkline(1) == "▁"


@pytest.mark.slow(1)
def test_display_costs_little(folder):
    """Redraws take at most a tenth of a second in each second, and asking for one at most two microseconds."""
    solver = own_solver()
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=80))
    display.on_start(solver)
    drawing, ticks, begin = 0.0, 0, time.perf_counter()
    while time.perf_counter() - begin < 1:
        before = time.process_time()
        display.on_iteration(solver)
        drawing += time.process_time() - before
        ticks += 1
    display.close()
    assert ticks > 1000 and drawing < 0.1 + 2e-6 * ticks


def test_error_after_the_display(folder):
    (folder / "folder").mkdir()
    process = Process("train", "solver.prototxt", *LONG, "--snapshot-interval", "3000", "--snapshot-prefix", "folder/x",
                      cwd=folder, size=(24, 80))
    process.read_until("iteration")
    (folder / "folder").rename(folder / "moved")
    status, _ = process.finish()
    assert status == 1 and "minicaffe: folder/x_iter_" in ESCAPES.sub("", process.text)
    assert process.text.rindex("\x1b[?25h") < process.text.rindex("minicaffe: ")


def test_hung_up_terminal(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder, size=(24, 80))
    process.read_until("iteration")
    os.close(process.source)  # the system sends SIGHUP
    end = time.monotonic() + 60
    while not list(folder.glob("*.solverstate")) and time.monotonic() < end:
        time.sleep(0.02)
    first = set(folder.glob("*.solverstate"))
    time.sleep(0.5)
    process.signal(signal.SIGINT)
    process.wait()
    assert len(first) == 1 and len(set(folder.glob("*.solverstate"))) == 2


@pytest.mark.parametrize("quiet", [None, False, True])      # None: outside of a command
@pytest.mark.parametrize("terminal", [False, True])
def test_progress_bars(quiet, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    context = contextlib.nullcontext() if quiet is None else click.Context(train)
    if quiet is not None:
        context.meta["quiet"] = quiet
    with context, progress() as report:
        for done in range(4):
            report("pictures of a test", done, 3)
    assert ("pictures of a test" in stream.getvalue()) == (terminal and not quiet) and bool(stream.getvalue()) == (terminal and not quiet)


@pytest.mark.parametrize("terminal, words, shown", [(True, [], True), (True, ["--quiet"], False), (True, ["--verbose"], False), (False, [], False)])
def test_trainings_with_a_display(folder, minicaffe, monkeypatch, terminal, words, shown):
    displays = []

    class Display(Result):
        def __init__(self):
            super().__init__()
            self.ticks, self.closed = 0, 0
            displays.append(self)

        def tick(self, solver):
            self.ticks += 1

        def close(self):
            self.closed += 1

    monkeypatch.setattr("minicaffe.cli.log.is_terminal", lambda stream: terminal)
    monkeypatch.setattr("minicaffe.cli.display.LiveDisplay", Display)
    assert "Finished at iteration 30 of 30" in minicaffe("train", "solver.prototxt", *words)
    assert [(display.ticks > 30, display.closed) for display in displays] == [(True, 1)] * shown
