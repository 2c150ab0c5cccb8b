"""Nets and solvers in several threads at once (docs/threads.md): a net for each thread, one net or blob for all of them."""

import signal
import sys
import threading
import time

import numpy as np
import pytest
from helpers import in_threads, layer_text, make_net, net_solver

import minicaffe as caffe
from minicaffe.blob import Blob
from minicaffe.errors import BusyError, ShapeError
from minicaffe.net.run import BEFORE_FORWARD

NET = layer_text("DummyData", "in", "", "data label", """dummy_data_param { shape { dim: 6 dim: 2 dim: 10 dim: 10 } shape { dim: 6 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 } }""") + layer_text(
    "Convolution", "conv", "data", more='convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } }') + layer_text(
    "BatchNorm", "norm", "conv") + layer_text("Pooling", "pool", "norm", more="pooling_param { kernel_size: 2 stride: 2 }") + layer_text(
    "Dropout", "drop", "pool", "pool") + layer_text("InnerProduct", "ip", "pool", more='inner_product_param { num_output: 5 weight_filler { type: "xavier" } }'
    ) + layer_text("SoftmaxWithLoss", "loss", "ip label")
def test_a_training_in_each_thread():
    """Threads draw from generators of their own and share no memory: each result is that of a thread alone."""
    def train(seed):
        solver, losses = net_solver(NET, random_seed=seed), []
        for _ in range(30):
            solver.step(1)
            losses.append(solver.smoothed_loss)
        return [losses, *(np.array(blob.data) for blob in solver.net.learnable_params)]

    seeds = [1, 2, 3, 4]
    alone = {seed: train(seed) for seed in seeds}
    for seed, found in in_threads(train, seeds).items():
        for ours, theirs in zip(found, alone[seed], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert alone[1][0] != alone[2][0]


def test_nets_made_and_dropped_in_threads():
    def work(number):
        for _ in range(10):
            caffe.set_random_seed(number)
            net = make_net(NET, caffe.TRAIN)
            net.forward_backward()
        return float(np.abs(net.learnable_params[0].diff).sum())

    assert in_threads(work, list(range(4))) == {number: work(number) for number in range(4)}


def test_python_runs_while_a_layer_does(on_cpu):
    """The lock of Python's interpreter is free while a layer computes: this thread counts at the same time."""
    net = make_net(layer_text("DummyData", "x", more="dummy_data_param { shape { dim: 16 dim: 32 dim: 96 dim: 96 } }")
                   + layer_text("Convolution", "y", "x", more="convolution_param { num_output: 64 kernel_size: 5 }"))
    net.forward_from_to(0, 1)
    thread, counted = started(lambda: net.forward_from_to(1, 1)), 0
    while thread.is_alive():
        counted += 1
    assert counted > 1000   # with the lock held it is a handful

# ---- one blob or net for several threads


def test_threads_reshape_one_blob():
    """Each view has a shape that a thread asked for, and memory of its own while it lives."""
    blob = Blob((2, 1, 8, 8))
    shapes = {(2 + k % 5, 1, 120 + k, 12) for k in range(700)} | {blob.shape}

    def work(first):
        for k in range(first, 700, 3):
            try:
                blob.reshape(2 + k % 5, 1, 120 + k, 12)
                for view in (blob.data, blob.cpu_diff):
                    assert view.shape in shapes
                blob.data[...] = k
                blob.fill_diff(k)
                blob.asum_diff()
                if k % 50 == 0:
                    blob.share_diff(Blob(blob.shape))
            except (BusyError, ShapeError):     # another thread computes with it, or has reshaped it between two lines
                pass

    in_threads(work, list(range(8)))


def small_net():
    return make_net("force_backward: true " + layer_text("Input", "x", more="input_param { shape { dim: 4 dim: 3 } }") + layer_text(
        "InnerProduct", "ip", "x", "y", 'inner_product_param { num_output: 2 weight_filler { type: "xavier" } }') + layer_text(
        "Reduction", "sum", "y", more="loss_weight: 1"))


@pytest.fixture
def running():
    """A net in the middle of a forward pass of another thread, which ends when the second value is set."""
    net, inside, resume = small_net(), threading.Event(), threading.Event()

    def stop(index):
        if threading.current_thread() is thread:
            inside.set()
            resume.wait()

    net.add_hook(BEFORE_FORWARD, stop)
    thread = threading.Thread(target=net.forward_from_to, args=(0, 2))
    thread.start()
    inside.wait()
    yield net, resume
    resume.set()
    thread.join()


def started(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_in_line(net, count):
    """Return when `count` threads wait for the net."""
    while len(net.lock.waiting) < count:
        time.sleep(0.001)


def test_a_running_net_keeps_its_shapes(running):
    net, resume = running
    data, weight, other = net.blob_by_name("x"), net.learnable_params[0], make_net(layer_text("Input", "p"))
    for change in (lambda: data.reshape(8, 3), lambda: data.reshape(2, 3), lambda: weight.reshape(7, 7),
                   lambda: data.share_data(Blob((4, 3))), lambda: data.share_diff(Blob((4, 3))),
                   lambda: data.set_cpu_data(np.zeros((4, 3), np.float32)), lambda: data.set_gpu_data(64), data.release,
                   lambda: data.release(gone=True), lambda: data.reshape_like(Blob()), lambda: data.reshape_like(weight)):  # fmt: skip
        with pytest.raises(BusyError, match="another thread computes with it.*net.lock"):
            change()
    other.lock.add([weight])        # a parameter that another net shares
    with other.lock, pytest.raises(BusyError):
        weight.reshape(1)
    with pytest.raises(BusyError):
        weight.reshape(1)
    data.reshape(4, 3)  # changes nothing
    assert data.shape == (4, 3) and data.data.shape == (4, 3)  # to look is allowed
    resume.set()
    with net.lock:  # when it has run
        data.reshape(8, 3)
        net.forward_from_to(0, 2)
        assert net.blob_by_name("y").shape == (8, 2)
    data.reshape(4, 3)


def test_threads_take_turns_in_order(running):
    """The thread that runs the net again and again comes after those that wait."""
    (net, resume), order, threads = running, [], []

    def work(name):
        with net.lock:
            net.forward_from_to(0, 2)
            order.append(name)

    for number, name in enumerate("abc"):
        threads.append(started(lambda name=name: work(name)))
        wait_in_line(net, number + 1)
    resume.set()
    work("d")
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "d"]


def test_python_threads_yield_to_net():
    (first, second), seen, usual = (make_net(NET, caffe.TRAIN) for _ in range(2)), [], sys.getswitchinterval()
    first.add_hook(BEFORE_FORWARD, lambda index: seen.append(sys.getswitchinterval()))
    first.forward_from_to(0, len(first.nodes) - 1)
    assert seen and max(seen) < 1e-4 < usual == sys.getswitchinterval()
    with first.lock, first.lock:
        with second.lock:
            assert sys.getswitchinterval() < 1e-4
        assert sys.getswitchinterval() < 1e-4
    assert sys.getswitchinterval() == usual
    try:
        for mine in 1e-5, 0.02:     # shorter, and set while a net runs
            with first.lock:
                sys.setswitchinterval(mine)
                first.forward_from_to(0, len(first.nodes) - 1)
            assert sys.getswitchinterval() == pytest.approx(mine)
        sys.setswitchinterval(1e-5)
        with first.lock:
            assert sys.getswitchinterval() == pytest.approx(1e-5)
    finally:
        sys.setswitchinterval(usual)


def test_an_interrupted_wait_leaves_the_line(running):
    net, resume = running

    def interrupt():
        wait_in_line(net, 1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = started(interrupt)
    with pytest.raises(KeyboardInterrupt):
        net.forward_from_to(0, 2)
    thread.join()
    assert not net.lock.waiting
    resume.set()
    net.forward_from_to(0, 2)  # no thread keeps the lock


@pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")
def test_threads_run_one_net():
    net = small_net()
    net.blob_by_name("x").data[...] = 1
    expected = net.forward_backward()

    def work(number):
        return [net.forward_backward() if k % 2 else net.forward_from_to(0, 2) for k in range(100)]

    for losses in in_threads(work, list(range(4))).values():
        assert losses == [expected] * 100


def test_solver_iteration_is_one_turn():
    solver, seen = net_solver(NET, random_seed=1), []

    def look():
        with solver.net.lock:
            seen.append(solver.iter)

    def on_gradients_ready():
        if solver.iter == 1:
            thread.start()
            wait_in_line(solver.net, 1)

    thread = threading.Thread(target=look)
    solver.add_callback(lambda: None, on_gradients_ready)
    solver.step(3)
    thread.join()
    assert seen == [2]  # after the update of iteration 1, before iteration 2 is done
    in_threads(lambda n: solver.step(10), [1, 2])
    assert 13 <= solver.iter <= 23 and np.isfinite(solver.smoothed_loss)


@pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")
def test_reshaped_net_and_parameters():
    """A bottom that became larger since forward: backward would read and write beyond the tops' memory."""
    net = small_net()
    net.forward_backward()
    net.blob_by_name("x").reshape(4000, 3)
    for place in "layer 'ip' .*", "the net was ", "the net was ":      # the last reshape finds nothing to change
        with pytest.raises(ShapeError, match=place + "reshaped since the last forward; run forward before backward"):
            net.backward_from_to(2, 0)
        net.reshape_all()
    net.forward_backward()
    assert net.blob_by_name("x").diff.shape == (4000, 3)
    # Layers have loops and memory for the parameters that they made; a reshaped one would lead them beyond
    net = small_net()
    weight = net.learnable_params[0]
    for shape in ((20, 3), (1, 3)):
        weight.reshape_to(shape)
        for run in (lambda: net.forward_from_to(0, 2), lambda: net.backward_from_to(2, 0), net.forward_backward):
            with pytest.raises(ShapeError, match="layer 'ip' blobs.0. was reshaped to .*made for 6 values"):
                run()
    weight.reshape(1, 1, 2, 3)  # the same values
    net.forward_backward()
