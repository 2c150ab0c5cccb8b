"""A training as scripts for pycaffe start one with several GPUs: the calls of BVLC Caffe's python/train.py, in their order."""

import argparse
import multiprocessing
import pickle

import minicaffe as caffe

Process = multiprocessing.get_context("fork").Process    # as by default before Python 3.14; the children have the log of init_log


def train(solver, snapshot, gpus, timing):
    uid = caffe.NCCL.new_uid()
    caffe.init_log()
    caffe.log(f"Using devices {gpus}")
    processes = []
    for rank in range(len(gpus)):
        process = Process(target=solve, args=(solver, snapshot, gpus, timing, uid, rank))
        process.daemon = True
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    return max(abs(process.exitcode) for process in processes)


def watch(solver, nccl):
    forward = [caffe.Timer() for _ in solver.net.layers]
    backward = [caffe.Timer() for _ in solver.net.layers]
    total, all_reduce = caffe.Timer(), caffe.Timer()

    def show():
        if solver.iter % solver.param.display == 0:
            lines = [f"forw {i} {solver.net._layer_names[i]} : {timer.ms:.2f}" for i, timer in enumerate(forward)]
            lines += [f"back {i} {solver.net._layer_names[i]} : {timer.ms:.2f}" for i, timer in enumerate(backward)]
            caffe.log("\n".join([*lines, f"solver total : {total.ms:.2f}", f"allreduce : {all_reduce.ms:.2f}"]))

    solver.net.before_forward(lambda layer: forward[layer].start())
    solver.net.after_forward(lambda layer: forward[layer].stop())
    solver.net.before_backward(lambda layer: backward[layer].start())
    solver.net.after_backward(lambda layer: backward[layer].stop())
    solver.add_callback(lambda: total.start(), lambda: (total.stop(), all_reduce.start()))
    solver.add_callback(nccl)
    solver.add_callback(lambda: "", lambda: (all_reduce.stop(), show()))


def solve(file, snapshot, gpus, timing, uid, rank):
    caffe.set_device(gpus[rank])
    caffe.set_mode_gpu()
    caffe.set_solver_count(len(gpus))
    caffe.set_solver_rank(rank)
    caffe.set_multiprocess(True)
    solver = caffe.SGDSolver(file)
    if snapshot and len(snapshot) != 0:
        solver.restore(snapshot)
    solver.net.params["ip"][0].data[...] += rank     # not in train.py: bcast has to undo it
    nccl = caffe.NCCL(solver, uid)
    nccl.bcast()
    if timing and rank == 0:
        watch(solver, nccl)
    else:
        solver.add_callback(nccl)
    if solver.param.layer_wise_reduce:
        solver.net.after_backward(nccl)
    solver.step(solver.param.max_iter)
    with open(f"params.{rank}", "wb") as file:       # nor this
        pickle.dump([blob.data.copy() for blob in solver.net.learnable_params], file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--solver", required=True)
    parser.add_argument("--snapshot")
    parser.add_argument("--gpus", type=int, nargs="+", default=[0])
    parser.add_argument("--timing", action="store_true")
    options = parser.parse_args()
    raise SystemExit(train(options.solver, options.snapshot, options.gpus, options.timing))
