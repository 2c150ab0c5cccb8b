"""What a training iteration of nets asks of a GPU, without one: steps, conversions of layout, bytes, and the time of the latter.

A net is built with made-up data and run dry on the simulated device (docs/design/devices.md), so that engines and layouts are those
of a GPU. Name a cuDNN: the real one, or the tests' (tests/cuda/fake_cudnn.cpp), by MINICAFFE_CUDNN. Bytes are those that the
kernels of a step read and write: an array of BatchNorm is read or written 8 times in all, others once for each use
(inspection/cost.py). Convolutions are apart, as their time is that of cuDNN's plans.

    MINICAFFE_DEVICE=sim MINICAFFE_SIM=memory=64GiB MINICAFFE_CUDNN=libfake.so FAKE_LOG=/dev/null MINICAFFE_CUDNN_TUNE=0 \\
        python tools/bench/device_costs.py --precision tf32 resnet50:64 mobilenet:64
"""

import argparse
import logging
from pathlib import Path

import minicaffe
from minicaffe import memory
from minicaffe.device.threads import dry_run
from minicaffe.engines.engine import set_precision
from minicaffe.inspection import cost
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.memory import CUDAPlace
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.solver import create_solver

MODELS = Path(__file__).resolve().parent.parent.parent / "models"
PASSES = {"forward": 3, "backward": 5}  # of BatchNorm over its array
CONVOLUTIONS = ("Convolution", "Deconvolution")


def train_dry(name, batch, plan):
    """Run three iterations of a model dry; return the solver, the events of the last, and the most bytes on the device."""
    path = MODELS / name / "net.prototxt"
    param = upgrade.read_net_file(str(path))[0]
    param.state.phase = caffe_pb2.TRAIN
    made, _ = replace_sources(param, str(path), {}, batch)
    solver_param = caffe_pb2.SolverParameter(base_lr=1e-5, lr_policy="fixed", momentum=0.9, type="SGD", max_iter=10)
    solver_param.net_param.CopyFrom(made)
    with dry_run():
        solver = create_solver(solver_param, plan=plan)
        solver.use_graphs = False
        solver.step(2)
        for node in solver.net.nodes:
            for blob in node.tops if not node.bottoms else ():
                blob.data_memory.mutable_cpu_data()     # new data
        with memory.record() as events:
            solver.step(1)
    return solver, events, memory.stats(CUDAPlace(0)).peak


def bytes_of(net):
    """Return the bytes that convolutions move in an iteration, and those of all other steps, the update included."""
    nodes = {node.name: node for node in net.nodes}
    convolutions = others = 0
    for row in net.schedule().rows:
        step = [nodes[layer] for layer in row.layers]
        moved = cost.step(step, row.direction).bytes
        if step[0].type == "BatchNorm":
            top = step[0].tops[0]
            layout = top.layout_of_data()
            moved = PASSES[row.direction] * (layout.nbytes if layout is not None else 4 * top.count)
        if step[0].type in CONVOLUTIONS:
            convolutions += moved
        else:
            others += moved
    parameters = sum(4 * blob.count for blob in net.learnable_params)
    return convolutions, others + 6 * parameters    # zeros; gradient, weight and history read, weight and history written


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="+", metavar="NAME:BATCH")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--bandwidth", type=float, default=4200, help="GB/s of the GPU; an H200 copies with 4200")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    minicaffe.set_mode_gpu()
    set_precision(options.precision)
    print(f"precision {options.precision}, {options.bandwidth:g} GB/s")
    names = {"steps": 7, "conversions": 13, "GB of convolutions": 20, "GB of others": 14, "ms of others": 14, "GiB at most": 13}
    print(f"{'net, batch':<22}" + "".join(f"{name:>{width}}" for name, width in names.items()))
    for name, batch in (net.split(":") for net in options.nets):
        _, events, peak = train_dry(name, int(batch), "memory")
        solver, _, _ = train_dry(name, int(batch), None)    # in which all arrays keep their layouts
        convolutions, others = bytes_of(solver.net)
        conversions = sum(event.kind == "reorder" for event in events)
        print(f"{name + ', ' + batch:<22}{len(solver.net.schedule().rows):>7}{conversions:>13}{convolutions / 1e9:>20.2f}"
              f"{others / 1e9:>14.2f}{others / options.bandwidth / 1e6:>14.2f}{peak / 2**30:>13.2f}")


if __name__ == "__main__":
    main()
