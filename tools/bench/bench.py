"""minicaffe against PyTorch on the network of a prototxt, alternating in one run.

    python tools/bench/bench.py models/lenet/net.prototxt [--batch 64] [--threads 2] [--rounds 15] [--json FILE]

Prints milliseconds, images per second, GFLOP/s and the ratio for forward, forward + backward, and a whole training step
(SGD, momentum 0.9, weight decay 5e-4). Data layers become inputs that are filled once, on both sides. PyTorch runs in NCHW
and channels-last, its optimiser fused and not; the best counts. Without PyTorch the table has minicaffe's column only.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import minicaffe
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.solver import create_solver

sys.path.insert(0, str(Path(__file__).parent))

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:     # which is read when a library loads
    print(f"{name}={os.environ.pop(name)} is left out: it would slow down matrix products of minicaffe, and not those of its peers",
          file=sys.stderr)


def without_data(path, batch):
    """The TRAIN net of a prototxt with its data layers turned into Input layers of the same shapes."""
    param, _ = read_net(path, caffe_pb2.TRAIN)
    result = caffe_pb2.NetParameter()
    result.CopyFrom(param)
    del result.layer[:]
    for layer in param.layer:
        if layer.type not in ("Data", "Input"):
            result.layer.add().CopyFrom(layer)
            continue
        if layer.include and not any(rule.phase == caffe_pb2.TRAIN for rule in layer.include):
            continue
        if layer.type == "Data":
            layer.data_param.batch_size = batch
        single = Net(caffe_pb2.NetParameter(layer=[layer], state={"phase": caffe_pb2.TRAIN}))
        made = result.layer.add(name=layer.name, type="Input", top=layer.top)
        for blob in single.blob_list:
            made.input_param.shape.add(dim=[batch, *blob.shape[1:]])
    return result


def flops(net):
    """Multiplications and additions of one forward of all convolutions, inner products and LSTMs."""
    return sum(flops_of(layer, tops) for layer, tops in zip(net.layers, net.tops))


def flops_of(layer, tops):
    """The same of one layer."""
    if layer.type in ("Convolution", "InnerProduct"):
        return 2 * math.prod(layer.blobs[0].shape[1:]) * sum(top.count for top in tops)
    if layer.type == "LSTM":
        steps, sequences = tops[0].shape[:2]
        return 2 * steps * sequences * (layer.blobs[0].count + layer.blobs[2].count)
    return 0


class Minicaffe:
    """The phases of a training step in minicaffe."""

    def __init__(self, param, threads, plan=None):
        minicaffe.set_num_threads(threads)
        solver = caffe_pb2.SolverParameter(type="SGD", base_lr=0.01, lr_policy="fixed", momentum=0.9, weight_decay=5e-4,
                                           max_iter=1 << 30, snapshot_after_train=False)
        solver.net_param.CopyFrom(param)
        self.solver = create_solver(solver, plan=plan)
        self.net = self.solver.net
        self.last = len(self.net.layers) - 1

    def fill(self, arrays):
        for blob, array in zip(self.net.input_blobs, arrays):
            blob.data[...] = array

    def forward(self):
        self.net.forward_from_to(0, self.last)

    def forward_backward(self):
        self.net.clear_param_diffs()
        self.net.forward_backward()

    def step(self):
        self.solver.step(1)


class Torch:
    """The same in PyTorch."""

    def __init__(self, net, threads, channels_last, fused, device="cpu"):
        import torch
        from to_torch import TorchNet
        self.torch, self.device = torch, device
        torch.set_num_threads(threads)
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.net = TorchNet(net).to(device)
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=fused,
                                         foreach=not fused)

    def fill(self, arrays):
        torch = self.torch
        self.inputs = []
        for array in arrays:
            tensor = torch.from_numpy(array.copy()).to(self.device)
            if array.ndim == 4:
                tensor = tensor.contiguous(memory_format=self.format)
            self.inputs.append(tensor.long() if array.ndim == 1 else tensor)

    def forward(self):
        with self.torch.no_grad():
            return self.net(*self.inputs)

    def forward_backward(self):
        self.net.zero_grad(set_to_none=True)
        self.net(*self.inputs).backward()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.net(*self.inputs).backward()
        self.optimizer.step()


PHASES = ("forward", "forward_backward", "step")


def runners(path, batch, threads, which="all"):
    """The runners by name, filled with the same pictures and labels."""
    param = without_data(path, batch)
    ours = Minicaffe(param, threads)
    random = np.random.default_rng(0)
    arrays = [random.random(b.shape, np.float32) if b.num_axes > 1 else random.integers(0, 10, b.shape).astype(np.float32)
              for b in ours.net.input_blobs]
    made = {"minicaffe": ours}
    if which != "minicaffe":
        try:
            for name, last, fused in (("PyTorch NCHW", False, False), ("PyTorch NCHW, fused SGD", False, True),
                                      ("PyTorch channels-last", True, False), ("PyTorch channels-last, fused SGD", True, True)):
                made[name] = Torch(ours.net, threads, last, fused)
        except ImportError:
            print("PyTorch is not installed: no comparison (pip install torch)", file=sys.stderr)
    for runner in made.values():
        runner.fill(arrays)
    return ours, made


def measure(made, phase, rounds, seconds):
    """Median milliseconds of `phase` for each runner, the runners taking turns."""
    times = {name: [] for name in made}
    repeats = {}
    for name, runner in made.items():
        run = getattr(runner, phase)
        for _ in range(3):
            run()
        start = time.perf_counter()
        run()
        repeats[name] = max(1, int(seconds / max(1e-6, time.perf_counter() - start)))
    for _ in range(rounds):
        for name, runner in made.items():
            run = getattr(runner, phase)
            run()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            times[name].append((time.perf_counter() - start) / repeats[name] * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def high_water_mark():
    """Peak resident megabytes of this process (ru_maxrss would count the parent's before exec)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def peak_memory(path, batch, threads, who):
    """Peak resident megabytes of a process that trains 30 steps with `who` only."""
    code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import bench\n"
            f"ours, made = bench.runners({path!r}, {batch}, {threads}, {'minicaffe' if who == 'minicaffe' else 'all'!r})\n"
            f"for _ in range(30): made[{who!r}].step()\n"
            "print(bench.high_water_mark())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prototxt")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.15, help="time of one turn")
    parser.add_argument("--memory", action="store_true", help="also the peak memory of a process for each side")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    ours, made = runners(options.prototxt, options.batch, options.threads)
    work = flops(ours.net)
    rows = []
    print(f"{options.prototxt}, batch {options.batch}, {options.threads} threads, float32; median of {options.rounds} turns\n")
    print("| phase | minicaffe ms | images/s | GFLOP/s | best PyTorch ms | which | ratio |")
    print("|---|---|---|---|---|---|---|")
    for phase in PHASES:
        times = measure(made, phase, options.rounds, options.seconds)
        mine = times.pop("minicaffe")
        best = min(times, key=times.get) if times else None
        gflops = work * (1 if phase == "forward" else 3) / mine / 1e6
        row = {"phase": phase, "minicaffe_ms": mine, "images_per_second": options.batch / mine * 1000, "gflops": gflops,
               "torch_ms": times, "best": best, "ratio": mine / times[best] if best else None}
        rows.append(row)
        rest = f"{times[best]:.2f} | {best} | {row['ratio']:.2f}x" if best else "- | - | -"
        print(f"| {phase.replace('_', ' + ')} | {mine:.2f} | {row['images_per_second']:.0f} | {gflops:.0f} | {rest} |", flush=True)
    if options.memory:
        peaks = {who: peak_memory(options.prototxt, options.batch, options.threads, who) for who in made
                 if who in ("minicaffe", "PyTorch NCHW")}
        rows.append({"phase": "peak_memory_mb", **peaks})
        print("\npeak resident memory of a training process: " + ", ".join(f"{who} {mb:.0f} MB" for who, mb in peaks.items()))
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
