"""pycaffe's NCCL: processes with a GPU each train together, as BVLC Caffe's python/train.py has them (Caffe parallel.cpp).

Each process sets its rank (`set_solver_count`, `set_solver_rank`), makes its solver, and then an `NCCL` with the id that one of
them made. `Solver.distribute`, which needs MPI, does more: its ranks test together, stop together and report the rank that failed.
"""

import ctypes

from minicaffe import sim
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DependencyError


class NCCL:
    """Joins this process to those that train together; its solver then updates with the means of all gradients.

    ``nccl.bcast()`` sends the parameters of rank 0 to the others, ``solver.add_callback(nccl)`` averages the gradients before each
    update, and with ``solver.net.after_backward(nccl)`` those of a layer are sent while backward continues. Only rank 0
    tests, displays and makes snapshots. All processes call the same in the same order.

    Different from Caffe: parameters are not moved in the device's memory, and layers may share them with
    `layer_wise_reduce`, too. Gradients that `after_backward(nccl)` did not send are sent before the update; with `iter_size`
    they are sent once.

    Parameters
    ----------
    solver : Solver
        In GPU mode, on a GPU of its own.
    uid : bytes
        What `new_uid` returned in one of the processes.

    Raises
    ------
    DependencyError
        If nccl4py or NCCL is missing.
    ConfigError
        If nets compute on the CPU, or the ranks of `Solver.distribute` train together already.
    DeviceError
        If NCCL refuses: two processes with the same GPU, processes that cannot reach each other.
    """

    def __init__(self, solver, uid):
        from minicaffe.parallel.nccl import Communicator  # not needed by a single process
        if caffe.group is not None:
            raise ConfigError("this process trains together with others by distribute(), which uses NCCL; leave caffe.NCCL out")
        self._params, self._backward_passes = solver.net.learnable_params, solver.param.iter_size
        learned = {id(blob) for blob, there in zip(self._params, solver.net.learned(), strict=True) if there}
        # A shared parameter belongs to the first of its layers, whose backward runs last.
        self._gradients_of_layer = [[blob for blob in layer.blobs if id(blob) in learned] for layer in solver.net.layers]
        self._runs = None       # backward runs of each layer in this iteration; None between iterations
        self._pending_sums = []
        self._communicator = Communicator(caffe.solver_count, caffe.solver_rank, bytes(uid))

    @staticmethod
    def new_uid():
        """Return the bytes by which processes find each other. One process makes them; it must live until all have joined.

        Raises
        ------
        DependencyError, DeviceError
            If there is no NCCL, or it finds no network.
        """
        from minicaffe.parallel.nccl import new_uid
        return new_uid()

    def bcast(self):
        """Broadcast the parameters of rank 0."""
        blobs = [blob for blob in self._params if blob.count]
        self._communicator.wait(self._communicator.broadcast([blob.mutable_gpu_data for blob in blobs]))

    def on_start(self):
        """Begin an iteration."""
        self._runs = [0] * len(self._gradients_of_layer)

    def __call__(self, layer):
        """Start to send the gradients of a layer, if this was its last backward before the update."""
        if self._runs is not None:
            self._runs[layer] += 1
            if self._runs[layer] == self._backward_passes:
                self._send(self._gradients_of_layer[layer])

    def on_gradients_ready(self):
        """Send the remaining gradients, and make the update wait for all."""
        self._send([blob for runs, blobs in zip(self._runs, self._gradients_of_layer)
                    if runs < self._backward_passes for blob in blobs])
        for arrived in self._pending_sums:
            self._communicator.wait(arrived)
        self._pending_sums, self._runs = [], None

    def _send(self, blobs):
        arrays = [blob.mutable_gpu_diff for blob in blobs if blob.count]
        if arrays:
            self._pending_sums.append(self._communicator.sum(arrays, mean=True))


def has_nccl():
    """Return whether processes with a GPU each can train together here: nccl4py, NCCL and a CUDA driver can be loaded.

    The GPU is not used, so processes may be forked afterwards. False with the simulated device, which NCCL does not support.
    """
    from minicaffe.parallel.nccl import library
    try:
        library()
        ctypes.CDLL("libcuda.so.1")
    except (DependencyError, OSError):
        return False
    return not sim.selected()
