"""A net of four layers that trains in milliseconds, and ways to run the command line as a process."""

import os
import pty
import re
import select
import subprocess
import sys
import time

from minicaffe.cli import app, training_file
from minicaffe.proto import binary, upgrade

NET = """name: "tiny"
layer { name: "in" type: "DummyData" top: "data" top: "target"
  dummy_data_param { shape { dim: 8 dim: 4 } shape { dim: 8 dim: 4 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "scale" type: "Scale" bottom: "data" top: "scaled" scale_param { bias_term: true } }
layer { name: "loss" type: "EuclideanLoss" bottom: "scaled" bottom: "target" top: "loss" }
layer { name: "sum" type: "Reduction" bottom: "scaled" top: "total" include { phase: TEST } }
"""
SOLVER = """net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 30 display: 10
test_iter: 2 test_interval: 10 snapshot_prefix: "tiny" solver_mode: CPU random_seed: 1
"""
LINES = [f"I1121 03:31:{second:02}.000000 1 solver.py:1] {text}\n" for second, text in enumerate((
    "Solving tiny",
    "Iteration 0, Testing net (#0)",
    "    Test net output #0: accuracy = 0.1",
    "    Test net output #1: loss = 2.5 (* 1 = 2.5 loss)",
    "Iteration 0 (0 iter/s, 0s/10 iters), loss = 2.4",
    "    Train net output #0: loss = 2.4 (* 1 = 2.4 loss)",
    "Iteration 0, lr = 0.01",
    "Iteration 10 (0 iter/s, 0s/10 iters), loss = 1.25",
    "    Train net output #0: loss = 1.25 (* 1 = 1.25 loss)",
    "Iteration 10, lr = 1e-3",
    "Optimization Done."))]     # of a log
COMMAND = [sys.executable, "-m", "minicaffe"]
# Runs a command with its standard input as controlling terminal. (pty.fork, which does the same, warns where there are threads.)
ON_TERMINAL = [sys.executable, "-c", "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
               "os.execvp(sys.argv[1], sys.argv[1:])"]  # fmt: skip
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")      # of a terminal
LONG = ["--max-iter", "100000000", "--display", "1000", "--test-interval", "1000000"]
PATIENCE = 60  # seconds that a process may take for what should take one


def commands():
    """Return the words and the click command of each command, those of groups, too."""
    return [(words, one) for name in app.commands() for command in [app.minicaffe.get_command(None, name)]
            for words, one in ([((name, inner), one) for inner, one in command.commands.items()] if hasattr(command, "commands")
                               else [((name,), command)])]


def snapshot_iteration(path):
    """Return the iteration of a snapshot's state."""
    return binary.read_solver_state(str(path)).iter


def own_solver():
    """Return the solver that ``minicaffe train net.prototxt`` makes."""
    net, _ = upgrade.read_net_file("net.prototxt")
    return training_file.build_solver(training_file.default_solver(net, "net.prototxt"))


def run(*arguments, cwd, **options):
    """Run ``minicaffe`` to its end, without a terminal."""
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, **options)


class Process:
    """A running ``minicaffe`` whose standard error is read piece by piece: a pipe, or with `size` a terminal.

    Parameters
    ----------
    size : (rows, columns), optional
        Give it a terminal of this size, as its controlling one and for all three streams.
    """

    running = []  # not finished yet; a failed test leaves its process here for the fixture that ends it

    def __init__(self, *arguments, cwd, size=None, **environment):
        self.running.append(self)
        env = {**os.environ, "TERM": "xterm", **environment}
        for name in ("COLUMNS", "LINES"):   # would count for more than the terminal's size; pytest-xdist sets them
            env.pop(name, None)
        command = [*COMMAND, *map(str, arguments)]
        self.text = ""
        if size is None:
            self.process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.source = self.process.stderr.fileno()
            return
        self.source, terminal = pty.openpty()
        self.resize(*size)
        self.process = subprocess.Popen([*ON_TERMINAL, *command], cwd=cwd, env=env, stdin=terminal, stdout=terminal, stderr=terminal,
                                        start_new_session=True)
        os.close(terminal)

    def resize(self, rows, columns):
        """Change the size of the terminal."""
        import fcntl
        import struct
        import termios
        fcntl.ioctl(self.source, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, wanted):
        """Read until `wanted` is in what came since the last call; return that text."""
        start, end = len(self.text), time.monotonic() + PATIENCE
        while wanted not in self.text[start:]:
            ready = select.select([self.source], [], [], max(0, end - time.monotonic()))[0]
            piece = os.read(self.source, 65536) if ready else b""
            assert piece, f"{wanted!r} did not come; got {self.text[start:][-2000:]!r}"
            self.text += piece.decode("utf-8", "replace")
        return self.text[start:]

    def signal(self, number):
        """Send a signal."""
        self.process.send_signal(number)

    def finish(self):
        """Wait for the end; return exit status, what was on standard output (None on a terminal), and the rest read."""
        if self.process.stdout is not None:
            out, err = self.process.communicate(timeout=PATIENCE)
            self.text += err.decode()
            self.running.remove(self)
            return self.process.returncode, out.decode()
        end = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end and (piece := os.read(self.source, 65536)):
                self.text += piece.decode("utf-8", "replace")
        except OSError:  # how Linux says that the other side of a terminal is closed
            pass
        return self.wait(), None

    def wait(self):
        """Return the exit status of a process on a terminal; kills it if it does not end."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.running.remove(self)
        return status
