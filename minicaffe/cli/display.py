"""The live display of a training on a terminal: progress, loss with a sparkline, rate, speed, last test, last snapshot.

It costs one comparison per iteration, and draws at most `REDRAWS` times a second, in the training thread.
"""

import collections
import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minicaffe.cli.bars import BLOCKS, PLAIN_BLOCKS
from minicaffe.cli.records import Result
from minicaffe.inspection import watch
from minicaffe.solver.report import images_per_iteration

REDRAWS = 5  # a second
SPEED_WINDOW = 3.0  # seconds over which speed is measured
HISTORY = 60  # points that the sparkline can show


class LiveDisplay(Result):
    """A Result that a rich console shows while it grows, by default standard error; a listener of the solver.

    `tick` must be called often: the solver does it after each iteration, train.py also before each batch of a test.
    """

    def __init__(self, console=None):
        super().__init__()
        self.console = console or Console(stderr=True, highlight=False)
        self.live = None
        self.losses = collections.deque(maxlen=HISTORY)
        self.redraw_times = collections.deque([(0.0, 0)], maxlen=int(SPEED_WINDOW * REDRAWS))  # time and iteration of redraws
        self.next_draw = 0.0
        self.snapshot = None
        self.state = ""

    # ---- events of the solver

    def on_start(self, solver):
        super().on_start(solver)
        self.images = images_per_iteration(solver) or 0
        self.redraw_times[0] = time.perf_counter(), solver.iter
        self.live = Live(console=self.console, auto_refresh=False, get_renderable=lambda: self.table(solver))
        self._ignore_hangup(self.live.start)

    def on_snapshot(self, solver, model_path, state_path):
        super().on_snapshot(solver, model_path, state_path)
        self.snapshot = f"at {solver.iter}: {model_path}"

    def on_watch(self, solver, iteration, samples):
        """Print the samples of --watch above the display (`report_samples` of train.py)."""
        text = "\n".join([f"layers at iteration {iteration}", *watch.lines(samples)])
        self._ignore_hangup(lambda: self.console.print(Text(text)))

    def on_end(self, solver, stopped):
        super().on_end(solver, stopped)
        self.state = "stopped" if stopped else "done"
        self.losses.append(solver.smoothed_loss)
        self.close()

    # ---- drawing

    def tick(self, solver):
        """Redraw if a redraw is due."""
        now = time.perf_counter()
        if now < self.next_draw or self.live is None:
            return
        self.next_draw = now + 1 / REDRAWS
        if solver.iter != self.redraw_times[-1][1]:
            self.losses.append(solver.smoothed_loss)
        self.redraw_times.append((now, solver.iter))
        self._ignore_hangup(self.live.refresh)

    on_iteration = tick

    def close(self):
        """Draw a last time and release the terminal; a second call does nothing."""
        if self.live is not None:
            self._ignore_hangup(self.live.stop)
            self.live = None

    def _ignore_hangup(self, draw):
        """Call `draw`, which writes to the terminal; if this fails, nothing is drawn from here on."""
        try:
            draw()
        except OSError:  # the terminal was hung up: the training continues without it
            self.live = None

    def table(self, solver):
        """Return the present content of the display."""
        param = solver.param
        left, speed = self._speed(solver)
        width = self.console.width
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True, style="dim", min_width=9)  # "iteration" is readable in the smallest window
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        loss = Text(f"{solver.smoothed_loss:<8.4g} ")
        rows = [("iteration", f"{solver.iter} of {param.max_iter} {self.state}"),
                ("", ProgressBar(total=max(1, param.max_iter), completed=solver.iter, width=max(4, min(60, width - 12)))),
                ("loss", loss.append(self.sparkline(width - 21), style="cyan"))]
        if self.display is not None:
            rows.append(("rate", f"{self.display['lr']:g}"))
        rows.append(("speed", speed))
        if left:
            rows.append(("time left", left))
        for number, record in sorted(self.tests.items()):
            values = ", ".join(f"{output['name']} {output['value']:.4g}" for output in record["outputs"][:8])
            rows.append((f"test {number}" if len(self.tests) > 1 else "test", Text(f"at {record['iteration']}: {values}")))
        if self.snapshot:
            rows.append(("snapshot", Text(self.snapshot)))
        for row in rows:
            grid.add_row(*row)
        return grid

    def sparkline(self, room):
        """Return the last losses as a row of at most `room` blocks, the highest for the largest."""
        shown = [x for x in list(self.losses)[-max(1, room):] if abs(x) != float("inf") and x == x]
        blocks = BLOCKS if self.console.encoding.startswith("utf") else PLAIN_BLOCKS
        low, high = min(shown, default=0), max(shown, default=0)
        step = (high - low) / (len(blocks) - 1)
        return "".join(blocks[round((x - low) / step) if step else 0] for x in shown)

    def _speed(self, solver):
        """Return time left and speed as text, over the redraws of SPEED_WINDOW; "" and "..." while there is no speed."""
        (begin, first), (end, last) = self.redraw_times[0], self.redraw_times[-1]
        if last <= first or end <= begin:
            return "", "..."
        per_second = (last - first) / (end - begin)
        minutes, seconds = divmod(round(max(0, solver.param.max_iter - solver.iter) / per_second), 60)
        hours, minutes = divmod(minutes, 60)
        left = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        images = f", {self.images * per_second:,.0f} images/s" if self.images else ""
        return left, f"{per_second:,.1f} iterations/s{images}"
