"""Replay a trace of allocations on the allocators, and compare time, peaks and fragmentation.

    python tools/bench/replay.py TRACE [--allocator caching buddy plain limit:2GiB ...] [--place device|host]
    python tools/bench/replay.py TRACE --record [--iterations 3]     write the trace of LeNet on the CPU first
    python tools/bench/replay.py TRACE --synthetic SEED              write an invented trace first

Memory always comes from the host; with ``--place device`` the allocators get it as a device's, which makes the
buddy allocator keep no guard words. `plain` is then the C library's, far cheaper than the driver's calls that the others
save: so look at the column of upstream calls, too. Times are of calls from Python; allocators.py measures calls from C.
"""

import argparse
import gc
import sys
from functools import partial
from pathlib import Path

from minicaffe import memory
from minicaffe.errors import Error, OutOfMemoryError
from minicaffe.memory import CPUPlace, CUDAPlace, SystemAllocator

sys.path.insert(0, str(Path(__file__).resolve().parent))

import allocation_trace as trace  # noqa: E402


def record_lenet(iterations):
    """Trace the life of LeNet: build, train, change the batch size as a user would, train again, drop."""
    from minicaffe.net.net import read_net
    from minicaffe.proto import caffe_pb2
    from minicaffe.solver import create_solver

    param, _ = read_net("models/lenet/net.prototxt", caffe_pb2.TRAIN)
    with memory.record() as events:
        for batch in (64, 16, 100):
            for layer in param.layer:
                if layer.type == "Data":
                    layer.data_param.batch_size = batch
            settings = caffe_pb2.SolverParameter(
                type="SGD", base_lr=0.01, lr_policy="fixed", momentum=0.9, max_iter=iterations, snapshot_after_train=False
            )
            settings.net_param.CopyFrom(param)
            solver = create_solver(settings)
            solver.step(iterations)
            del solver
            gc.collect()
    return trace.from_events(events, CPUPlace())


def table(steps, names, place):
    """Replay `steps` on the allocators of these names and give the table as text."""
    lines = [f"{'allocator':<20}{'ns/call':>9}{'upstream calls':>16}{'peak live':>16}{'peak reserved':>16}{'ratio':>7}{'idle':>7}"]
    for name in names:
        try:
            result = trace.replay(steps, partial(memory.make_allocator, name), SystemAllocator(place))
        except OutOfMemoryError as error:
            lines.append(f"{name:<20} out of memory: {error.nbytes:,} bytes asked, {error.live:,} live")
            continue
        ratio = result.peak_reserved / max(result.peak_live, 1)
        lines.append(
            f"{name:<20}{result.nanoseconds:>9.0f}{result.upstream_calls:>16,}{result.peak_live:>16,}"
            f"{result.peak_reserved:>16,}{ratio:>7.2f}{result.idle:>7.1%}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--allocator", nargs="+", default=["caching", "buddy", "plain"])
    parser.add_argument("--place", choices=["device", "host"], default="device")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--synthetic", type=int, metavar="SEED")
    options = parser.parse_args()
    try:
        if options.record:
            trace.save(record_lenet(options.iterations), options.trace)
        elif options.synthetic is not None:
            trace.save(trace.synthetic(options.synthetic), options.trace)
        steps = trace.load(options.trace)
        print(f"{options.trace}: {len(steps):,} steps")
        print(table(steps, options.allocator, CUDAPlace(0) if options.place == "device" else CPUPlace()))
        print("ratio: peak reserved over peak live; idle: share of reserved bytes that is not live, mean over the calls")
    except (Error, OSError) as error:
        raise SystemExit(f"replay: {error}")


if __name__ == "__main__":
    main()
