"""Nets and solvers in several threads at once: one net for each thread is safe, and a net that runs lets Python go on."""

import threading

import numpy as np

import minicaffe as caffe
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, text
from minicaffe.solver import create_solver

NET = """
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 6 dim: 2 dim: 10 dim: 10 } shape { dim: 6 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
ITERATIONS = 30


def train(seed):
    """Return the losses of a training of its own, and the weights at its end."""
    param = caffe_pb2.SolverParameter(type="SGD", base_lr=0.05, momentum=0.9, lr_policy="fixed", random_seed=seed,
                                      snapshot_after_train=False)  # fmt: skip
    param.net_param.CopyFrom(text.parse_text(NET, caffe_pb2.NetParameter)[0])
    solver = create_solver(param)
    losses = []
    for _ in range(ITERATIONS):
        solver.step(1)
        losses.append(solver.smoothed_loss)
    return losses, [np.array(blob.data) for blob in solver.net.learnable_params]


def in_threads(work, arguments):
    """Return work(argument) of each, computed in threads that start together; raise what any of them raised."""
    results, errors, start = {}, [], threading.Barrier(len(arguments))

    def body(argument):
        try:
            start.wait()
            results[argument] = work(argument)
        except BaseException as error:  # shown by the test
            errors.append(error)

    threads = [threading.Thread(target=body, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def test_a_training_in_each_thread():
    """Threads draw from generators of their own and share no memory: each result is that of a thread alone."""
    seeds = [1, 2, 3, 4]
    alone = {seed: train(seed) for seed in seeds}
    for seed, (losses, weights) in in_threads(train, seeds).items():
        np.testing.assert_array_equal(losses, alone[seed][0])
        for ours, theirs in zip(weights, alone[seed][1]):
            np.testing.assert_array_equal(ours, theirs)
    assert alone[1][0] != alone[2][0]


def test_nets_are_made_and_dropped_in_threads():
    param = text.parse_text('state { phase: TRAIN }' + NET, caffe_pb2.NetParameter)[0]

    def work(number):
        for _ in range(10):
            caffe.set_random_seed(number)
            net = Net(param)
            net.forward_backward()
        return float(np.abs(net.learnable_params[0].diff).sum())

    alone = {number: work(number) for number in range(4)}
    assert in_threads(work, list(range(4))) == alone


def test_python_runs_while_a_layer_does(on_cpu):
    """The lock of Python's interpreter is free while a layer computes: this thread counts meanwhile."""
    param = text.parse_text("""
        layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 16 dim: 32 dim: 96 dim: 96 } } }
        layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 64 kernel_size: 5 } }
    """, caffe_pb2.NetParameter)[0]  # fmt: skip
    net = Net(param)
    net.forward_from_to(0, 1)
    done = threading.Event()

    def body():
        net.forward_from_to(1, 1)
        done.set()

    thread = threading.Thread(target=body)
    counted = 0
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 1000   # with the lock held it is a handful
