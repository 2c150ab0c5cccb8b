"""Measuring by turns: wall-clock times around loops that end with the device, where there is one, idle."""

import json
import os
import statistics
import time
from pathlib import Path


def turns(runners, sync, rounds=9, seconds=0.05, first=3):
    """Return the median seconds of one call of each runner, as `samples` measures them."""
    return {name: statistics.median(values) for name, values in samples(runners, sync, rounds, seconds, first).items()}


def samples(runners, sync, rounds, seconds, first=3):
    """Return the seconds of one call of each runner ({name: function}) in each round; they take turns, forwards and backwards.

    Before that each is called `first` times, and as often again to measure how often it is called in a turn of some `seconds`.
    """
    repeats, times = {}, {name: [] for name in runners}
    for name, run in runners.items():
        for _ in range(first):
            run()
        sync()
        start = time.perf_counter()
        for _ in range(first):
            run()
        sync()
        repeats[name] = max(1, int(seconds / max(1e-7, (time.perf_counter() - start) / first)))
    for turn in range(rounds):
        for name in list(runners)[:: -1 if turn % 2 else 1]:
            run, n = runners[name], repeats[name]
            run()
            sync()
            start = time.perf_counter()
            for _ in range(n):
                run()
            sync()
            times[name].append((time.perf_counter() - start) / n)
    return times


def host_time(run, sync, calls=400, rounds=15):
    """Return the median seconds that the host spends on one call; few enough calls that it never waits for the device."""
    for _ in range(50):
        run()
    found = []
    for _ in range(rounds):
        sync()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        found.append((time.perf_counter() - start) / calls)
    sync()
    return statistics.median(found)


def write_json(path, value):
    """Write a file whole or not at all."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(part, path)


class Rows:
    """What a part measures: each row is printed at once and added to the "rows" of a JSON file."""

    def __init__(self, path, part, rehearsal):
        self.path, self.part, self.rehearsal = Path(path), part, rehearsal

    def add(self, what, value, unit, peers=(), aim=None, met=None, **more):
        """Note one row; `peers` is {name: value or why it is missing}, `aim` says in words what is wanted."""
        row = {"part": self.part, "what": what, "minicaffe": value, "unit": unit, "peers": dict(peers), "aim": aim,
               "met": None if self.rehearsal or met is None else bool(met), **more}
        results = json.loads(self.path.read_text())
        results["rows"].append(row)
        write_json(self.path, results)
        others = ", ".join(f"{name} {v:.4g}" if isinstance(v, float) else f"{name}: {v}" for name, v in row["peers"].items())
        verdict = {None: "", True: "; met", False: "; MISSED"}[row["met"]]
        shown = f"{value:.4g} {unit}" if isinstance(value, float) else str(value)
        print(f"{what}: {shown} ({others or 'no peer'})" + (f" [{aim}{verdict}]" if aim else ""), flush=True)


def find(name, gpu=True):
    """Return a peer's module, or a text that says why there is none; without `gpu` PyTorch may be one that computes on the CPU."""
    try:
        module = __import__(name)
        if name == "torch" and gpu and not module.cuda.is_available():
            return "PyTorch sees no GPU"
        if name == "cupy":
            module.cuda.runtime.getDeviceCount()
        return module
    except Exception as error:  # a broken installation is a reason as good as a missing one
        return f"{type(error).__name__}: {error}".split("\n")[0][:120]


def sync_all(modules):
    """Return a function that waits for the device; all libraries share its primary context."""
    from minicaffe import cuda
    device = cuda.current()
    torch = modules.get("torch")

    def sync():
        device.synchronize()
        if torch is not None and torch.cuda.is_available():
            torch.cuda.synchronize()

    return sync


def peers_of(options, *names):
    """Return ({name: module}, {name: why it is missing})."""
    found = {name: "the simulated device has no peers" if options.device == "sim" else find(name) for name in names}
    return ({name: module for name, module in found.items() if not isinstance(module, str)},
            {name: reason for name, reason in found.items() if isinstance(reason, str)})


def best(times, names):
    """Return the least time among the peers named so, None without any."""
    there = [times[name] for name in times if name.split(" ")[0] in names]
    return min(there) if there else None
