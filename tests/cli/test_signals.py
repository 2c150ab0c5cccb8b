"""Signals to ``minicaffe train``: each becomes an action, and a training that was stopped can be resumed."""

import contextlib
import shlex
import signal
from types import SimpleNamespace

import pytest
from tiny import LONG, Process, run, snapshot_iteration

from minicaffe import cli
from minicaffe.cli import signals


@pytest.mark.parametrize("on_int, on_hup", [("stop", "snapshot"), ("snapshot", "none"), ("none", "stop")])
def test_actions_of_signals(monkeypatch, on_int, on_hup):
    """The most urgent first; each once, however often it came. A second Ctrl-C, not one sent twice, interrupts where the first stops."""
    now, handlers = [100.0], {}
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signals.signal, "signal", lambda number, handler: handlers.update({number: handler}) or f"before {number}")
    order = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT]
    with signals.Signals(on_int, on_hup) as found:
        assert set(handlers) == set(order) and found.poll() == "none"
        for number in order[:0:-1] * 2:     # within a second
            handlers[number](number, None)
        assert [found.poll() for _ in range(4)] == ["stop", on_hup, on_int, "none"] and not found.terminated
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        assert (found.poll(), found.terminated, found.poll()) == ("stop", True, "none")
        for now[0] in 101.0, 101.5:
            handlers[signal.SIGTERM](signal.SIGTERM, None)      # interrupts never
            interrupts = pytest.raises(KeyboardInterrupt) if on_int == "stop" and now[0] > 101 else contextlib.nullcontext()
            with interrupts:
                handlers[signal.SIGINT](signal.SIGINT, None)
    assert handlers == {number: f"before {number}" for number in order}


@pytest.mark.parametrize("times", [1, 5])
def test_ctrl_c_and_resume(folder, times):
    process = Process("train", "-solver", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    for _ in range(times):
        process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Optimization stopped early." in process.text and "Traceback" not in process.text
    command = shlex.split(out.splitlines()[-1].partition("resume with: ")[2])
    state = command[-1].removeprefix("--snapshot=")
    stopped = snapshot_iteration(folder / state)
    assert command[:3] == ["minicaffe", "train", "--solver=solver.prototxt"] and f"Stopped at iteration {stopped} " in out
    assert [path.name for path in folder.glob("*.solverstate")] == [state] and not list(folder.glob(".*.tmp"))
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


@pytest.mark.slow(1)
def test_sighup_and_interrupted_tests(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGHUP)
    process.read_until("Snapshotting solver state")
    process.read_until("Iteration ")
    process.signal(signal.SIGINT)
    assert process.finish()[0] == 0 and len(list(folder.glob("*.solverstate"))) == 2
    numbers = signal.SIGINT, signal.SIGHUP, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 0
    assert [signal.getsignal(number) for number in numbers] == before
    process = Process("train", "solver.prototxt", "--max-iter=10", "--test-iter=100000000", cwd=folder)
    process.read_until("Testing net (#0)")
    process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Test interrupted." in process.text and out.startswith("Stopped at iteration 0")
