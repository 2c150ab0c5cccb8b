"""Training steps of nets that a program feeds, against steps on data that are on the device already, by turns in one run.

    python tools/bench/feeding.py [--device gpu|sim|cpu] [--net NAME ...] [--rounds 7] [--json FILE]

For each net: the step with resident data, with `net.feed` before each step, with feed of arrays on the device, and with plain
assignment. The aim: feed adds at most a tenth. And how fast arrays of the host are copied, by our threads and by NumPy. With
``--device sim`` the batches are tiny and the figures mean nothing: a rehearsal of the script.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 128, "googlenet": 64, "resnet50": 64, "mobilenet": 64}
MIB = 79  # of the array that is copied: a batch of CaffeNet


def copies(options, rows):
    """Copy an array within the host's memory: into the page-locked array of an upload, on a GPU."""
    from turns import turns

    from minicaffe.data.upload import pinned_array
    from minicaffe.device.parallel_copy import copy_array
    shape = ((1 if options.device == "sim" else MIB) << 18,)
    source = np.ones(shape, np.float32)
    target = np.zeros(shape, np.float32) if options.device == "cpu" else pinned_array(shape, np.float32)
    times = turns({"minicaffe": lambda: copy_array(target, source), "NumPy": lambda: np.copyto(target, source)}, lambda: None,
                  options.rounds)
    rows.add(f"copy of {source.nbytes >> 20} MiB", source.nbytes / times["minicaffe"] / 1e9, "GB/s",
             {"NumPy": source.nbytes / times["NumPy"] / 1e9})


def steps(name, options, rows):
    """Measure the step of one net."""
    import bench
    import nets
    from turns import turns

    import minicaffe
    from minicaffe import cuda
    batch = 2 if options.device == "sim" else BATCHES[name]
    solver = bench.Minicaffe(nets.training_net(name, batch), minicaffe.get_num_threads(), nets.PLAN).solver
    net, random = solver.net, np.random.default_rng(0)
    batches = [{blob.name: random.standard_normal(blob.shape, np.float32) if len(blob.shape) > 1 else
                random.integers(0, 10, blob.shape) for blob in net.input_blobs} for _ in range(2)]
    on_device = {}

    def fed(number=[0]):  # noqa: B006 (counts the calls)
        number[0] += 1
        net.feed(**batches[number[0] % 2])
        solver.step(1)

    def assigned():
        for blob in net.input_blobs:
            blob.data[...] = batches[0][blob.name]
        solver.step(1)

    def fed_on_device():
        net.feed(**on_device)
        solver.step(1)

    runners = {"resident": lambda: solver.step(1), "fed": fed, "assigned": assigned}
    for _ in range(5):
        fed()
    if options.device != "cpu":
        from minicaffe.blob import Blob
        for blob in net.input_blobs:
            copy = Blob(blob.shape, blob.dtype)
            copy.copy_from(blob)
            on_device[blob.name] = copy.gpu_data
        runners["fed on the device"] = fed_on_device
    times = turns(runners, cuda.current().synchronize if options.device != "cpu" else lambda: None, options.rounds, 0.2)
    ratio = times["fed"] / times["resident"]
    rows.add(f"{name}, batch {net.input_blobs[0].shape[0]}, step with feed", 1e3 * times["fed"], "ms",
             {what: 1e3 * t for what, t in times.items() if what != "fed"}, "at most 1.1x resident data", ratio <= 1.1, ratio=ratio,
             graph=solver.training_step.recorded.graph is not None, loss=float(solver.smoothed_loss))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["gpu", "sim", "cpu"], default="gpu")
    parser.add_argument("--net", action="append", choices=list(BATCHES), help="only this one; may be given several times")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", default="bench_feeding.json")
    options = parser.parse_args()
    os.environ["MINICAFFE_DEVICE"] = options.device
    import minicaffe
    if options.device != "cpu":
        minicaffe.set_mode_gpu()
    from turns import Rows, write_json
    write_json(options.json, {"rows": []})
    rows = Rows(options.json, "feeding", options.device == "sim")
    if rows.rehearsal:
        print("rehearsal on the simulated device: the figures mean nothing", flush=True)
    copies(options, rows)
    for name in options.net or BATCHES:
        steps(name, options, rows)


if __name__ == "__main__":
    main()
