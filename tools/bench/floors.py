"""The layers of a training step against their own floor, by layer type: what this machine needs if they are computed as defined.

    python tools/bench/floors.py [lenet cifar10_quick ...] [--json FILE]

The direct floor of a layer is the greater of two times: its multiplications and additions, as it is defined, at the speed of the
machine's fastest product of matrices (`nets.peak`), and each array that it has to read or write, once, at the speed of a copy of as
many bytes. Layers take less where they are computed along with another, find their arrays in a cache, or multiply less often, as
Winograd's convolutions do. They are measured as `minicaffe time` does it.
"""

import argparse
import functools
import json
import math
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import minicaffe
from minicaffe.inspection.timing import measure
from minicaffe.net.net import Net

sys.path.insert(0, str(Path(__file__).parent))
import bench  # noqa: E402
import nets  # noqa: E402


@functools.lru_cache
def copying(megabytes, threads):
    """Bytes a second, read and written, of the fastest copy that moves as many in all, a part by each thread."""
    parts = [(np.ones(megabytes * 2 ** 19 // threads, np.uint8), np.zeros(megabytes * 2 ** 19 // threads, np.uint8))
             for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            start = time.perf_counter()
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))
            best = max(best, megabytes * 2 ** 20 / (time.perf_counter() - start))
    return best


def floor(nbytes, flops, peak, threads):
    """Milliseconds, at least, of an operation that moves `nbytes` and computes `flops`."""
    megabytes = 1 << max(0, math.ceil(math.log2(max(nbytes, 1) / 2 ** 20)))
    return 1e3 * max(nbytes / copying(megabytes, threads), flops / peak / 1e9)


def floors(node, peak, threads):
    """The floors of a node's forward and backward."""
    flops = bench.flops_of(node.layer, node.tops)
    shares = node.type in ("Input", "Split", "Flatten", "Reshape")      # no arrays are touched forward
    params, bottoms, tops = (sum(4 * blob.count for blob in blobs) for blobs in (node.blobs, node.bottoms, node.tops))
    forward = 0.0 if shares else floor(params + bottoms + tops, flops, peak, threads)
    if not node.needs_backward:
        return forward, 0.0
    gradients = sum(4 * blob.count for blob, needed in zip(node.bottoms, node.bottom_needs) if needed)
    values = 0 if shares or node.type in ("Eltwise", "Concat", "Slice", "Dropout") else bottoms  # the gradient is a function of
    flops *= (params > 0) + (gradients > 0)
    return forward, floor(2 * params + values + tops + gradients, flops, peak, threads)


def table(name, options):
    """Rows (type, [layers, forward, its floor, backward, its floor]) of a net's training step, the longest first."""
    minicaffe.set_num_threads(options.threads)
    net = Net(nets.training_net(name, nets.BATCHES[name]))
    for blob, array in zip(net.input_blobs, nets.random_inputs(net)):
        blob.data[...] = array
    peak = nets.peak(options)
    once = measure(net, 1).total_ms
    forward, backward = measure(net, max(options.rounds, int(1e3 * options.seconds / once))).by_layer(len(net.nodes))
    rows = defaultdict(lambda: np.zeros(5))
    for node, there, back in zip(net.nodes, forward, backward):
        low = floors(node, peak, options.threads)
        rows[node.type] += (1, there, low[0], back, low[1])
    rows["all"] = sum(rows.values())
    return sorted(rows.items(), key=lambda row: -row[1][1] - row[1][3])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", default=list(nets.BATCHES), help=f"of {', '.join(nets.BATCHES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="at least")
    parser.add_argument("--seconds", type=float, default=2, help="of a net, at least")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    options.precision = "float32"
    if unknown := set(options.nets) - set(nets.BATCHES):
        parser.error(f"unknown nets {', '.join(sorted(unknown))}; there are {', '.join(nets.BATCHES)}")
    found = {}
    print("| net, batch | layers | forward ms | direct floor | backward ms | direct floor | of the floor |\n" + "|---" * 7 + "|")
    for name in options.nets:
        found[name] = {}
        for type_, (count, there, low, back, low_back) in table(name, options):
            found[name][type_] = [count, there, low, back, low_back]
            ratio = f"{(there + back) / (low + low_back):.1f}x" if low + low_back else "-"
            what = f"{count:.0f} {type_}" if type_ != "all" else "all"
            print(f"| {name}, {nets.BATCHES[name]} | {what} | {there:.2f} | {low:.2f} | {back:.2f} | {low_back:.2f} | {ratio} |",
                  flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
