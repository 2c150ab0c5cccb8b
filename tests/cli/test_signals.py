"""Signals to ``minicaffe train``: each becomes an action, and a training that was stopped can be resumed."""

import random
import shlex
import signal
from types import SimpleNamespace

import pytest
from tiny import LONG, Process, run, snapshot_iteration

from minicaffe import cli
from minicaffe.cli import signals
from minicaffe.proto import binary

SEEDS = pytest.mark.parametrize("seed", range(20))


@SEEDS
def test_actions_of_signals(seed, monkeypatch):
    """The most urgent first; each once, however often it came. A second Ctrl-C, not one sent twice, interrupts where the first stops."""
    dice, now, handlers = random.Random(seed), [100.0], {}
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signals.signal, "signal", lambda number, handler: handlers.update({number: handler}) or f"before {number}")
    order = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT]
    on_int, on_hup = dice.choice(signals.EFFECTS), dice.choice(signals.EFFECTS)
    effects = dict(zip(order, ["stop", "stop", on_hup, on_int], strict=True))
    waiting, first, terminated = set(), None, False
    with signals.Signals(on_int, on_hup) as found:
        assert set(handlers) == set(order)
        for _ in range(30):
            now[0] += dice.choice([0.0, 0.4, 0.7, 3.0])
            if dice.random() < 0.6:
                number = dice.choice(order)
                waiting.add(number)
                try:
                    handlers[number](number, None)
                    assert not (number == signal.SIGINT and on_int == "stop" and first is not None and now[0] - first > 1)
                except KeyboardInterrupt:
                    assert number == signal.SIGINT and on_int == "stop" and first is not None and now[0] - first > 1
                if number == signal.SIGINT and first is None:
                    first = now[0]
            else:
                number = next((one for one in order if one in waiting), None)
                waiting.discard(number)
                terminated |= number == signal.SIGTERM
                assert found.poll() == effects.get(number, "none") and found.terminated == terminated
    assert handlers == {number: f"before {number}" for number in order}


def test_ctrl_c_and_resume(folder):
    process = Process("train", "-solver", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Optimization stopped early." in process.text and out.startswith("Stopped at iteration")
    command = shlex.split(out.splitlines()[-1].partition("resume with: ")[2])
    state = command[-1].removeprefix("--snapshot=")
    stopped = snapshot_iteration(folder / state)
    assert command[:3] == ["minicaffe", "train", "--solver=solver.prototxt"] and f"Stopped at iteration {stopped} " in out
    resumed = run(*command[1:], f"--max-iter={stopped + 5}", cwd=folder)
    assert resumed.returncode == 0 and snapshot_iteration(folder / f"tiny_iter_{stopped + 5}.solverstate") == stopped + 5


@pytest.mark.parametrize("snapshot", ["true", "false"])
def test_sigterm(folder, snapshot):
    process = Process("train", "solver.prototxt", "--sigint-effect=none", "--sighup-effect=none", f"--snapshot-after-train={snapshot}", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGINT)
    process.signal(signal.SIGTERM)
    status, out = process.finish()
    assert status == 143
    if snapshot == "true":
        state, = folder.glob("*.solverstate")
        assert f"Stopped at iteration {snapshot_iteration(state)} of" in out and f"--snapshot={state.name}" in out
    else:
        assert out.endswith("wrote no snapshot: snapshot_after_train is false\n") and not list(folder.glob("*.solverstate"))


def test_handlers_and_tests_interrupted(folder):
    numbers = signal.SIGINT, signal.SIGHUP, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 0
    assert [signal.getsignal(number) for number in numbers] == before
    process = Process("train", "solver.prototxt", "--max-iter=10", "--test-iter=100000000", cwd=folder)
    process.read_until("Testing net (#0)")
    process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Test interrupted." in process.text and out.startswith("Stopped at iteration 0")


def test_many_ctrl_c(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    for _ in range(5):
        process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Traceback" not in process.text
    state, = folder.glob("*.solverstate")
    assert snapshot_iteration(state) >= 1000 and binary.read_net(str(state.with_suffix(".caffemodel")))
    assert not list(folder.glob(".*.tmp"))


def test_sighup(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGHUP)
    process.read_until("Snapshotting solver state")
    process.read_until("Iteration ")
    process.signal(signal.SIGINT)
    assert process.finish()[0] == 0 and len(list(folder.glob("*.solverstate"))) == 2
