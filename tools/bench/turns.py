"""Measuring by turns: wall-clock times around loops that end with the device, where there is one, idle."""

import statistics
import time


def turns(runners, sync, rounds=9, seconds=0.05):
    """Return the median seconds of one call of each runner, as `samples` measures them."""
    return {name: statistics.median(values) for name, values in samples(runners, sync, rounds, seconds).items()}


def samples(runners, sync, rounds, seconds):
    """Return the seconds of one call of each runner ({name: function}) in each round; they take turns, forwards and backwards."""
    repeats, times = {}, {name: [] for name in runners}
    for name, run in runners.items():
        for _ in range(3):
            run()
        sync()
        start = time.perf_counter()
        for _ in range(3):
            run()
        sync()
        repeats[name] = max(1, int(seconds / max(1e-7, (time.perf_counter() - start) / 3)))
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


class Rows:
    """What was measured; printed at once, and written as JSON at the end."""

    def __init__(self, rehearsal):
        self.rehearsal = rehearsal
        self.rows = []

    def add(self, what, value, unit, peers=(), aim=None, met=None, **more):
        """Note one row; `peers` is {name: value or why it is missing}, `aim` says in words what is wanted."""
        row = {"what": what, "minicaffe": value, "unit": unit, "peers": dict(peers), "aim": aim,
               "met": None if self.rehearsal or met is None else bool(met), **more}
        self.rows.append(row)
        others = ", ".join(f"{name} {v:.4g}" if isinstance(v, float) else f"{name}: {v}" for name, v in row["peers"].items())
        verdict = {None: "", True: "; met", False: "; MISSED"}[row["met"]]
        shown = f"{value:.4g} {unit}" if isinstance(value, float) else str(value)
        print(f"{what}: {shown} ({others or 'no peer'})" + (f" [{aim}{verdict}]" if aim else ""), flush=True)


def find(name):
    """Return a peer's module, or a text that says why there is none."""
    try:
        module = __import__(name)
        if name == "torch" and not module.cuda.is_available():
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
        if torch is not None:
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
