"""What a rank measures for tools/scaling.py; mpiexec starts it there."""

import json
import statistics
import sys
import time
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent))
import bench  # noqa: E402
import nets  # noqa: E402

from minicaffe.blob import Blob  # noqa: E402
from minicaffe.parallel.bucket import Bucket  # noqa: E402
from minicaffe.parallel.group import Group  # noqa: E402
from minicaffe.parallel.transport import make_transport, sum_of_bf16  # noqa: E402

WORLD = MPI.COMM_WORLD
SIZES = [4 ** k for k in range(1, 14)]      # bytes, 4 to 64 MiB
LEAST = 3       # repetitions


def medians_of(runs, seconds):
    """Median seconds of a call of each of {name: function}, over all ranks, which begin at once; by turns, for some `seconds`."""
    for run in [*runs.values()] * 2:
        run()
    _meet()
    start = time.perf_counter()
    for run in runs.values():
        run()
    rounds = WORLD.bcast(max(LEAST, min(1000, int(seconds / (time.perf_counter() - start)))))
    found = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            _meet()
            start = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - start)
    return {name: statistics.median(sum(WORLD.allgather(times), [])) for name, times in found.items()}


def _meet():
    """Wait for the other ranks, without keeping the processors from those that still compute."""
    there = WORLD.Ibarrier()
    while not there.Test():
        time.sleep(2e-4)


def steps(net, batch, threads, overlap, seconds):
    """Seconds of a step of these processes, each on its own, and as ranks."""
    ours, ranks = (_solver(net, batch, threads) for _ in range(2))
    ranks.solver.distribute(overlap=overlap)
    return medians_of({"alone": ours.step, "together": ranks.step}, seconds)


def _solver(net, batch, threads):
    ours = bench.Minicaffe(nets.training_net(net, batch), threads, plan="memory")
    ours.fill(nets.random_inputs(ours.net))
    return ours


def parts(net, batch, threads, seconds):
    """Seconds of a step of one process and of its parts.

    `backward`, and for each of the `buckets` the time of backward until it is complete, are without the updates in between;
    `update` is that of all parameters, `copies` of all gradients to and from buckets, by wire.
    """
    ours = _solver(net, batch, threads)
    net, solver, rounds = ours.net, ours.solver, []
    rate = solver.constants(solver.learning_rate())[0]

    def complete(which, part=None, last=False):
        now, found = time.perf_counter(), rounds[-1]
        found |= dict.fromkeys(which, now - found["begun"] - found["update"])
        if which:
            solver.update(rate, which)
        found["update"] += time.perf_counter() - now
        return which

    def run():
        net.clear_param_diffs()
        rounds.append({"update": 0.0})
        start = time.perf_counter()
        net.forward_backward(on_loss=lambda loss: rounds[-1].update(begun=time.perf_counter()), on_gradients=complete,
                             stream_large=False)
        found = rounds[-1]
        found["backward"] = time.perf_counter() - found["begun"] - found["update"]
        found["forward"] = found["begun"] - start

    alone = medians_of({"alone": ours.step, "parts": run}, seconds)["alone"]
    median = {what: statistics.median(found[what] for found in rounds[2:]) for what in rounds[0]}
    solver.distribute()
    solver.step(2)      # the first makes the buckets
    buckets, copies = solver.exchange.buckets, {}
    net.clear_param_diffs()     # the plan has used their memory for others
    for wire in ("float32", "bf16"):
        made = [Bucket(bucket.which, bucket.blobs, bucket.layouts, wire == "bf16") for bucket in buckets]

        def copy(made=made):
            for bucket in made:
                bucket.pack()
                bucket.unpack()
        copies[wire] = medians_of({wire: copy}, seconds / 10)[wire]
    return {"alone": alone, **{what: median[what] for what in ("forward", "backward", "update")}, "copies": copies,
            "buckets": [[max(median[i] for i in bucket.which), bucket.nbytes] for bucket in buckets]}


def allreduce(wire, overlap, seconds):
    """[[bytes, seconds of the sum of so many bytes of all ranks], ...], and seconds a byte of adding two arrays."""
    carrier, found = make_transport(Group(), overlap=overlap), []
    for size in SIZES:
        bucket = Bucket([0], [Blob((size // (2 if wire == "bf16" else 4),))], [None], wire == "bf16")
        bucket.pack()

        def run(bucket=bucket):
            carrier.start(bucket)
            carrier.wait()

        found.append([size, medians_of({size: run}, seconds / len(SIZES))[size]])
    kind, add = (carrier.types[True], sum_of_bf16()) if wire == "bf16" else (MPI.FLOAT, MPI.SUM)
    one, two = bytearray(1 << 22), bytearray(1 << 22)
    adding = medians_of({"add": lambda: add.Reduce_local([one, kind], [two, kind])}, seconds / len(SIZES))["add"]
    return {"times": found, "adding": adding / len(one), "library": MPI.Get_library_version().splitlines()[0].strip("\0 ")}


if __name__ == "__main__":
    what, arguments = json.loads(sys.argv[1])
    result = {"steps": steps, "parts": parts, "allreduce": allreduce}[what](*arguments)
    if WORLD.rank == 0:
        print(json.dumps(result), flush=True)
