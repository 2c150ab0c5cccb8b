"""How far training on many machines carries: measured here with 1, 2 and 4 ranks, predicted for up to 1,024 machines.

    python tools/scaling.py RESULT.json [--only NET] [--seconds 2] [--minutes 6] [--write]

Measures what RESULT.json lacks, or the net that `--only` names, and writes the file after each measurement, so that a run that was
stopped continues where it was; prints the tables, and with `--write` puts those of docs/clusters.md and the picture there.

Measured here, by ranks that mpiexec starts (tools/bench/exchanged.py): a training step of one process and its parts (forward,
backward, when each bucket of gradients is complete, updates, copies); the same step of 2 and 4 processes at once, each on its own
and as ranks, by turns, whose gradients are sent during backward, or after it; the all-reduce of 4 bytes to 64 MiB with 2 and 4
ranks by the carriers of both, to which latency and bandwidth are fitted; how fast a processor adds.

The model. An all-reduce of s bytes of n ranks takes the lesser of

    log2 n (latency + s / bandwidth)                        recursive doubling
    2 log2 n latency + 2 (n-1)/n s / bandwidth              Rabenseifner's: reduce-scatter by halving, all-gather by doubling

between which MPICH chooses by size, too (Thakur, Rabenseifner and Gropp, 2005, "Optimization of collective communication operations
in MPICH"); for bf16, and Open MPI for all, only with the settings of docs/clusters.md. Buckets are sent one after the other, each
from when its last gradient is complete; the update of those that have arrived runs before backward continues. What a processor has
to do for a bucket, copies, update and (n-1)/n s additions, is never hidden.
"""

import argparse
import collections
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import time
import typing
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "bench"))
import distributed  # noqa: E402
import nets  # noqa: E402
import report  # noqa: E402

BATCHES = {"lenet": 64, "googlenet": 8, "resnet50": 4, "vgg16": 1}      # of each rank
HERE = (2, 4)       # ranks
MACHINES = tuple(2 ** k for k in range(1, 11))
WHEN = {"during": True, "after": False}      # gradients are sent during backward, or after it
WIRES = {"float32": 1, "bf16": 2}       # by how much what is sent is smaller
# Gbit/s: bandwidth in bytes a second, and latency in seconds. A tenth of the bandwidth is taken as lost to headers and gaps. The
# latency is that of a message from program to program through one or two switches: 25 us by TCP over Ethernet, 2 us by RDMA.
NETWORKS = {10: (0.9 * 10e9 / 8, 25e-6), 100: (0.9 * 100e9 / 8, 2e-6), 400: (0.9 * 400e9 / 8, 2e-6)}
IN_TABLE = (10, 100)        # networks; the picture has all
PICTURE = "![Efficiency by number of machines, for each net and network](clusters.svg)\n"
COLOURS = {"float32": "#d9603b", "bf16": "#3b78d9"}


class Step(typing.NamedTuple):
    """A training step of one process; all times are seconds.

    `single` is that of a process that trains alone, `rest` what a rank does besides forward and backward, in proportion to bytes:
    updates, and copies to and from buckets. `buckets` has for each bucket, in the order in which they are sent, the time of
    backward until it is complete, and its bytes.
    """

    single: float
    forward: float
    backward: float
    rest: float
    buckets: tuple

    def scaled(self, factor):
        """The same on a machine that needs `factor` times as long."""
        return Step(*(factor * value for value in self[:4]), tuple((factor * ready, size) for ready, size in self.buckets))


def ways(size, n):
    """The algorithms of an all-reduce: [(messages one after the other, bytes one after the other), ...]."""
    rounds = math.ceil(math.log2(n))
    return [(rounds, rounds * size), (2 * rounds, 2 * (n - 1) / n * size)]


def allreduce(size, n, bandwidth, latency):
    """Seconds of an all-reduce of `size` bytes; bandwidth in bytes a second, latency in seconds."""
    return min(messages * latency + sent / bandwidth for messages, sent in ways(size, n)) if n > 1 else 0.0


def fit(times, n):
    """(bandwidth, latency) that fit [[bytes, seconds], ...] of `n` ranks best, by the squares of relative errors."""
    latency, slope = times[0][1], times[-1][1] / times[-1][0]
    for _ in range(20):     # which algorithm is the faster one depends on the result
        rows = np.array([min(ways(size, n), key=lambda way: way[0] * latency + way[1] * slope) for size, _ in times], float)
        rows /= np.array([[seconds] for _, seconds in times])
        scale = np.linalg.norm(rows, axis=0)
        latency, slope = np.maximum(np.linalg.lstsq(rows / scale, np.ones(len(rows)), rcond=None)[0] / scale, 1e-13)
    return 1 / slope, latency


def predict(step, transfer, add, overlap=True):
    """Seconds of a step of ranks.

    Parameters
    ----------
    step : Step
    transfer, add : callable
        Seconds on the network, and of a processor that adds, for a bucket of so many bytes.
    overlap : bool
        False: buckets are sent when backward has ended.
    """
    total = sum(size for _, size in step.buckets)

    def work(size):
        return step.rest * size / total + add(size)

    clock = done = free = 0.0       # time since backward began; of it for buckets; when the network is free
    in_flight = collections.deque()
    for ready, size in step.buckets:
        clock = (ready if overlap else step.backward) + done
        free = max(free, clock) + transfer(size)
        in_flight.append((free, size))
        while in_flight and in_flight[0][0] <= clock:
            done += work(in_flight.popleft()[1])
    clock = step.backward + done
    for arrived, size in in_flight:
        clock = max(clock, arrived) + work(size)
    return step.forward + clock


def step_of(known, net, wire="float32"):
    """What was measured of one process that trains a net, as a Step; its parts are made to sum up to it."""
    found = known[f"{net} 1"]
    share = found["alone"] / (found["forward"] + found["backward"] + found["update"])
    forward, backward, update = (share * found[part] for part in ("forward", "backward", "update"))
    buckets = tuple((share * ready, size / WIRES[wire]) for ready, size in found["buckets"])
    return Step(found["alone"], forward, backward, update + found["copies"][wire], buckets)


def predicted(known, net, wire, network, n, overlap=True):
    """(seconds of a step, efficiency) on `n` machines like this one."""
    step, adding = step_of(known, net, wire), known[f"allreduce 2 {wire} during"]["adding"]
    seconds = predict(step, lambda size: allreduce(size, n, *NETWORKS[network]), lambda size: adding * (n - 1) / n * size, overlap)
    return seconds, step_of(known, net).single / seconds


def predicted_here(known, net, n, when):
    """Seconds of a step of `n` ranks of this machine: processors that other ranks use, and the all-reduce as fitted."""
    step, busy = step_of(known, net), known[f"{net} {n} {when}"]["alone"]
    transfer = functools.partial(_fitted, n=n, constants=fit(known[f"allreduce {n} float32 {when}"]["times"], n))
    return predict(step.scaled(busy / step.single), transfer, lambda size: 0.0, WHEN[when])   # the all-reduce adds, too


def _fitted(size, n, constants):
    return allreduce(size, n, *constants)


# ---- measuring

def measurements(processors):
    """{name: (ranks, what, arguments without the seconds)} of all there is to measure."""
    made = {f"allreduce {n} {wire} {when}": (n, "allreduce", [wire, overlap])
            for n in HERE for wire in WIRES for when, overlap in WHEN.items()}
    for net, batch in BATCHES.items():
        made[f"{net} 1"] = 1, "parts", [net, batch, processors]
        made |= {f"{net} {n} {when}": (n, "steps", [net, batch, max(1, processors // n), overlap])
                 for n in HERE for when, overlap in WHEN.items()}
    return made


def measure(n, what, arguments, seconds):
    """What `n` ranks measure, for JSON."""
    program = Path(distributed.__file__).with_name("exchanged.py")
    command = distributed.mpiexec(n, program, json.dumps([what, [*arguments, seconds]]))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **distributed.ENVIRONMENT})
    return {**nets.host(), **json.loads(done.stdout.splitlines()[-1])}


# ---- the report

def shown(known):
    """The nets of which everything is known."""
    return [net for net in BATCHES if all(name in known for name in measurements(1) if name.startswith((net, "allreduce")))]


def predictions(known):
    """All predictions, as rows for JSON."""
    rows = []
    for net in shown(known):
        for network in NETWORKS:
            for wire in WIRES:
                for overlap in (True, False):
                    for n in MACHINES:
                        seconds, efficiency = predicted(known, net, wire, network, n, overlap)
                        rows.append({"net": net, "gbit": network, "wire": wire, "overlap": overlap, "machines": n,
                                     "ms": round(1e3 * seconds, 3), "efficiency": round(efficiency, 4)})
    return rows


def tables(known):
    """{name: table in Markdown} for docs/clusters.md."""
    return {"scaling measured": report.measured(known.values()),
            "scaling here": _here_table(known), "scaling machines": f"{_machines_table(known)}\n{PICTURE}"}


def _markdown(head, rows):
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def _label(net):
    return f"{report.NAMES[net]}, {BATCHES[net]}"


def _here_table(known):
    rows = []
    for net in shown(known):
        for n, when in itertools.product(HERE, WHEN):
            busy, real = (known[f"{net} {n} {when}"][what] for what in ("alone", "together"))
            predicted = predicted_here(known, net, n, when)
            rows.append([_label(net), n, f"{when} backward", *(f"{1e3 * value:.1f}" for value in (busy, predicted, real)),
                         f"{real / predicted:.2f}x"])
    return _markdown(["net, batch of each rank", "ranks", "gradients sent", "processes that do not exchange, ms", "predicted, ms",
                      "measured, ms", "measured by predicted"], rows)


def _machines_table(known):
    rows = []
    for net in shown(known):
        for network in IN_TABLE:
            for wire in WIRES:
                cells = [" / ".join(f"{100 * predicted(known, net, wire, network, n, overlap)[1]:.0f}" for overlap in (True, False))
                         for n in MACHINES[::3]]
                rows.append([_label(net), f"{1e3 * step_of(known, net).single:.1f}", network, wire, *cells])
    return _markdown(["net, batch of each machine", "alone, ms", "Gbit/s", "wire", *(f"{n:,}" for n in MACHINES[::3])], rows)


WIDTH, HEIGHT, LEFT, TOP = 190, 90, 110, 46     # pixels of a panel; of the picture's margins


def svg(known):
    """The picture: efficiency by machines, a row for each net, a column for each network; dashed lines without overlap."""
    parts = []
    for column, network in enumerate(NETWORKS):
        middle = LEFT + column * (WIDTH + 30) + WIDTH / 2
        parts.append(f'<text x="{middle:.0f}" y="{TOP - 8}" text-anchor="middle">{network} Gbit/s</text>')
    chosen = shown(known)
    for row, net in enumerate(chosen):
        top = TOP + row * (HEIGHT + 26)
        parts.append(f'<text x="{LEFT - 34}" y="{top + HEIGHT / 2:.0f}" text-anchor="end">{escape(report.NAMES[net])}</text>')
        for column, network in enumerate(NETWORKS):
            parts.append(_panel(known, net, network, LEFT + column * (WIDTH + 30), top, row == len(chosen) - 1))
    legend = []
    for i, (wire, overlap) in enumerate((wire, overlap) for wire in WIRES for overlap in (True, False)):
        x = LEFT + 165 * i
        legend.append(f'<line x1="{x}" x2="{x + 22}" y1="13" y2="13" {_stroke(wire, overlap)}/>'
                      f'<text x="{x + 27}" y="17">{wire}{"" if overlap else ", no overlap"}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + len(NETWORKS) * (WIDTH + 30)}" '
            f'height="{TOP + len(chosen) * (HEIGHT + 26) + 16}" font-family="sans-serif" font-size="12" fill="#888">'
            f'{"".join(legend + parts)}</svg>\n')


def _stroke(wire, overlap):
    return f'stroke="{COLOURS[wire]}" stroke-width="2"' + ("" if overlap else ' stroke-dasharray="5 3"')


def _panel(known, net, network, left, top, last):
    """One panel: the grid, and a line for each wire with and without overlap."""
    def x(n):
        return left + (math.log2(n) - 1) / (math.log2(MACHINES[-1]) - 1) * WIDTH

    def y(efficiency):
        return top + (1 - min(1.0, efficiency)) * HEIGHT
    parts = []
    for share in (0, 0.5, 1):
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#8884"/>'
                     f'<text x="{left - 4}" y="{y(share) + 4:.1f}" text-anchor="end" font-size="9">{share:.0%}</text>')
    for n in (2, 16, 128, 1024) if last else ():
        parts.append(f'<text x="{x(n):.1f}" y="{top + HEIGHT + 13}" text-anchor="middle" font-size="9">{n:,}</text>')
    if last:
        parts.append(f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 27}" text-anchor="middle" font-size="9">machines</text>')
    for wire in WIRES:
        for overlap in (False, True):
            points = " ".join(f"{x(n):.1f},{y(predicted(known, net, wire, network, n, overlap)[1]):.1f}" for n in MACHINES)
            parts.append(f'<polyline points="{points}" fill="none" {_stroke(wire, overlap)}/>')
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument("--only", choices=BATCHES, action="append", help="measure this net, known or not; may be repeated")
    parser.add_argument("--seconds", type=float, default=2, help="of each of the measurements, about")
    parser.add_argument("--minutes", type=float, default=6, help="no measurement begins later")
    parser.add_argument("--write", action="store_true", help="into docs/clusters.md and docs/clusters.svg")
    options = parser.parse_args()
    known = json.loads(options.result.read_text())["measured"] if options.result.exists() else {}
    made = measurements(len(os.sched_getaffinity(0)))

    def wanted(name):
        return name.split()[0] in options.only if options.only and not name.startswith("allreduce") else name not in known

    names, start = list(filter(wanted, made)), time.monotonic()
    for i, name in enumerate(names):
        if time.monotonic() - start > 60 * options.minutes:
            sys.exit(f"{len(names) - i} measurements are left; run the same command again")
        known[name] = measure(*made[name], options.seconds)
        options.result.write_text(json.dumps({"measured": known, "predicted": predictions(known)}, indent=1) + "\n")
        print(f"{time.monotonic() - start:4.0f} s  {name}", flush=True)
    if not shown(known):
        sys.exit("no net is measured yet: run it without --only, or with another")
    page = (report.DOCS / "clusters.md").read_text()
    for name, text in tables(known).items():
        print(f"{name}\n\n{text}")
        if f"<!-- table {name} -->" in page:
            page = report.written(page, name, text)
    if options.write:
        (report.DOCS / "clusters.md").write_text(page)
        (report.DOCS / "clusters.svg").write_text(svg(known))


if __name__ == "__main__":
    main()
