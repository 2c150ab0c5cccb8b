"""NCCL on the GPUs of this machine: what can be tried is tried, the rest is named.

    python tools/nccl_check.py [--device gpu|sim] [--iterations 20] [--batch 32]

One GPU: a communicator of one rank, sums checked, also in a CUDA graph. Several: LeNet on all of them, by ``mpiexec`` with
``Solver.distribute``, against one process with the batches of all; and the speed of an all-reduce. Writes lines for people, and at
last one of JSON: `tried`, `failed` and `not_tried` with reasons. Exit status 1 if something failed.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from minicaffe.errors import DependencyError
from minicaffe.parallel import launch

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 150       # for each part
NEAR = 1e-4         # of parameters, relative to the largest: sums in other orders, on GPUs some of them in no order at all


class Report:
    """What was tried, with what it found; what failed; what was not tried, and why."""

    def __init__(self):
        self.found = {"tried": {}, "failed": {}, "not_tried": {}}

    def add(self, kind, part, text):
        self.found[kind][part] = text
        print(f"{part}: {'' if kind == 'tried' else kind.replace('_', ' ') + ': '}{text}", flush=True)

    def attempt(self, part, function):
        try:
            self.add("tried", part, function())
        except Exception as error:
            self.add("failed", part, f"{type(error).__name__}: {error}"[:3000])


def apart(*calls):
    """Run calls, (function, *arguments), in processes of their own, side by side; return what they return."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_call, args=(Path(folder, str(i)), *call), daemon=True) for i, call in enumerate(calls)]
        for process in processes:
            process.start()
        end = time.monotonic() + SECONDS
        while any(process.is_alive() for process in processes) and time.monotonic() < end:
            if any(process.exitcode for process in processes):
                break
            time.sleep(0.05)
        hangs = [i for i, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
        results = {int(path.name): pickle.loads(path.read_bytes()) for path in Path(folder).glob("[0-9]") if path.is_file()}
    for i, (good, result) in results.items():
        if not good:
            raise RuntimeError(f"process {i}: {result}")
    if len(results) < len(calls):
        raise RuntimeError(f"processes {hangs} did not end within {SECONDS} s" if hangs else "a process died")
    return [results[i][1] for i in range(len(calls))]


def _call(path, function, *arguments):
    try:
        result = True, function(*arguments)
    except BaseException as error:
        result = False, f"{type(error).__name__}: {error}"
    path.with_suffix(".part").write_bytes(pickle.dumps(result))
    os.replace(path.with_suffix(".part"), path)


# ---- what the processes do

def look():
    """The number of GPUs, and which NCCL there is."""
    import nccl.core

    from minicaffe import cuda
    from minicaffe.parallel import nccl as ours
    ours.library()
    gpus = [cuda.get_device(i) for i in range(cuda.count())]
    return len(gpus), f"NCCL {nccl.core.get_version().libnccl}; " + ", ".join(f"{gpu.name} at {gpu.bus_id}" for gpu in gpus)


def alone():
    """A communicator of one rank: what it adds stays as it is, in a CUDA graph, too."""
    import minicaffe as caffe
    from minicaffe import cuda
    from minicaffe.blob import Blob
    from minicaffe.parallel.nccl import NcclTransport, new_uid
    caffe.set_mode_gpu()
    transport = NcclTransport(1, 0, new_uid())
    sizes, random = (1, 1000, 100_003), np.random.default_rng(0)
    blobs = [Blob((size,), kind) for size in sizes for kind in (0, 1)]     # float32, float64
    wanted = [random.standard_normal(blob.count).astype(blob.data.dtype) for blob in blobs]
    for blob, values in zip(blobs, wanted):
        blob.data[...] = values
    transport.computing.wait(transport.sum([blob.mutable_gpu_data for blob in blobs]))
    graph = cuda.Graph(cuda.current())
    with graph:
        blobs[0].scale_data(2)
        transport.computing.wait(transport.sum([blob.mutable_gpu_data for blob in blobs]))
        blobs[0].scale_data(2)
    for _ in range(3):
        graph.replay(0.0, 0)
    for blob, values in zip(blobs, [wanted[0] * 64, *wanted[1:]]):
        if not np.array_equal(blob.cpu_data, values):
            raise RuntimeError(f"{blob.count} elements of {values.dtype} came back changed")
    transport.comm.destroy()
    return f"{len(blobs)} arrays, as they were; a graph of {graph.nodes} nodes replayed 3 times"


def solver_of(batch):
    from minicaffe.proto import caffe_pb2
    from minicaffe.proto.text import parse_text
    from minicaffe.proto.upgrade import read_net_file
    from minicaffe.solver import create_solver
    os.chdir(ROOT)
    param = parse_text('type: "SGD" base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 lr_policy: "fixed" random_seed: 1',
                       caffe_pb2.SolverParameter)[0]
    param.net_param.CopyFrom(read_net_file("models/lenet/net.prototxt")[0])
    del param.net_param.layer[1]        # the data of phase TEST
    param.net_param.layer[0].data_param.batch_size = batch
    return create_solver(param)


def params_of(solver):
    return [blob.cpu_data.copy() for blob in solver.net.learnable_params]


def lenet(batch, iterations):
    """LeNet's parameters after a training on one GPU."""
    import minicaffe as caffe
    caffe.set_mode_gpu()
    solver = solver_of(batch)
    solver.step(iterations)
    return params_of(solver)


def rank_of_mpi(batch, iterations, path):
    """The same in each process of mpiexec; rank 0 writes its parameters, and the bytes a second of an all-reduce."""
    from mpi4py import MPI

    import minicaffe as caffe
    from minicaffe.blob import Blob
    caffe.set_device(MPI.COMM_WORLD.rank)
    caffe.set_mode_gpu()
    solver = solver_of(batch)
    solver.distribute(carrier="nccl")
    solver.step(iterations)
    params = params_of(solver)
    if not all(solver.group.gather(all(map(np.array_equal, params, solver.group.broadcast_from_root(params))))):
        raise RuntimeError("the processes end with different parameters")
    transport = solver.exchange.transport
    blob = Blob((25_000_000 if os.environ.get("MINICAFFE_DEVICE") == "gpu" else 1000,))
    blob.data[...] = 1
    for repeats in (2, 10):
        begin = time.perf_counter()
        for _ in range(repeats):
            transport.computing.wait(transport.sum([blob.mutable_gpu_data]))
        transport.computing.synchronize()
        speed = 4 * blob.count * repeats / (time.perf_counter() - begin)
    if solver.group.rank == 0:
        Path(path).write_bytes(pickle.dumps((params, speed)))


# ---- the parts

def distance(ours, theirs):
    far = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))
    if not far <= NEAR:
        raise RuntimeError(f"parameters differ by {far:.2g} of the largest, {NEAR:g} is allowed")
    return far


def by_mpiexec(count, options):
    expected, = apart((lenet, options.batch * count, options.iterations))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "params")
        command = [launch.mpiexec(), "-n", count, sys.executable, __file__, "--as-rank", path, "--batch", options.batch]
        done = subprocess.run([*map(str, command), "--iterations", str(options.iterations)], capture_output=True, text=True,
                              timeout=SECONDS)
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-2500:])
        params, speed = pickle.loads(path.read_bytes())
    return (f"{count} GPUs: parameters as of one process, to {distance(params, expected):.2g}; "
            f"an all-reduce passes {speed / 1e9:.3g} GB/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["gpu", "sim"], default=os.environ.get("MINICAFFE_DEVICE", "gpu"))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="of each process")
    parser.add_argument("--as-rank", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["MINICAFFE_DEVICE"] = options.device
    if options.as_rank:
        return rank_of_mpi(options.batch, options.iterations, options.as_rank)
    report = Report()
    several = "several GPUs, by mpiexec"
    try:
        (count, there), = apart((look,))
    except RuntimeError as error:
        count = 0
        report.add("not_tried" if "DependencyError" in str(error) else "failed", "NCCL", str(error))
    if count:
        print(there, flush=True)
        report.attempt("one GPU", lambda: apart((alone,))[0])
    if count == 1:
        report.add("not_tried", several, "this machine has one GPU")
    if count > 1:
        try:
            launch.mpiexec()
            import mpi4py  # noqa: F401
        except (DependencyError, ImportError) as missing:
            report.add("not_tried", several, str(missing))
        else:
            report.attempt(several, lambda: by_mpiexec(count, options))
    print(json.dumps(report.found))
    return 1 if report.found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
