"""Watch: norms of gradients and activations of every layer over a training, and shares of zero, saturated and not finite values.

Iterations that are watched run layer by layer, without plan and CUDA graph, and are read back to the host; the others cost nothing.
"""

import math

import numpy as np

from minicaffe.errors import ConfigError
from minicaffe.net.run import AFTER_FORWARD

# Where an activation hardly changes any more: from its values and the layer's parameter the number of elements there.
NEAR = 0.01     # of the end of a sigmoid's or tanh's range
SATURATED = {
    "Sigmoid": lambda y, param: np.count_nonzero((y < NEAR) | (y > 1 - NEAR)),
    "TanH": lambda y, param: np.count_nonzero(np.abs(y) > 1 - NEAR),
    "Clip": lambda y, param: np.count_nonzero((y <= param.clip_param.min) | (y >= param.clip_param.max)),
}


class Watch:
    """A listener of a solver that measures the first iteration and those after it whose number is a multiple of `every`.

    Parameters
    ----------
    solver : Solver
        Gets the listener; `close` takes it away.
    every : int
    on_samples : callable, optional
        Called with (solver, iteration, samples) when the iteration is done.
    keep : bool
        Whether `records` collects all of them.

    Attributes
    ----------
    samples : list of dict
        Those of the last watched iteration, in the order of the layers. Of a top: ``layer``, ``blob``, ``norm`` (L2, of what is
        finite), and the shares ``zeros``, ``saturated`` (of Sigmoid, TanH and Clip, else None) and ``not_finite``. Of a
        parameter's gradient: ``layer``, ``parameter`` (``conv1[0]``), ``norm``, ``zeros``, ``saturated`` (None), ``not_finite``,
        and the norms of the parameter itself, ``data``, and of what the iteration subtracted from it, ``update``.
    records : list of (iteration, samples)

    Raises
    ------
    ConfigError
        If `every` is less than 1.
    """

    def __init__(self, solver, every=100, on_samples=None, keep=True):
        if every < 1:
            raise ConfigError(f"must be at least 1, got {every}", field="every")
        self.solver, self.every, self.on_samples, self.keep = solver, every, on_samples, keep
        self.samples, self.records = [], []
        self.armed = False
        solver.listeners.append(self)
        self._arm()

    def close(self):
        """Watch no longer; harmless a second time."""
        self._disarm()
        if self in self.solver.listeners:
            self.solver.listeners.remove(self)

    def on_iteration(self, solver):
        """Take what the update has done, tell, and get ready for the next watched iteration."""
        iteration = solver.iter - 1
        if self.armed:
            self._disarm()
            self._measure_updates()
            self.samples, self._running = self._running, []
            if self.keep:
                self.records.append((iteration, self.samples))
            if self.on_samples is not None:
                self.on_samples(solver, iteration, self.samples)
        if solver.iter % self.every == 0:
            self._arm()

    def _arm(self):
        self._running = []
        self._callback = (lambda: None, self._measure_gradients)
        self.solver.net.add_hook(AFTER_FORWARD, self._measure_tops)
        self.solver.callbacks.append(self._callback)
        self.armed = True

    def _disarm(self):
        if self.armed:
            self.solver.net.remove_hook(AFTER_FORWARD, self._measure_tops)
            self.solver.callbacks.remove(self._callback)
            self.armed = False

    def _measure_tops(self, index):
        """Measure what a layer has computed, before a layer in place overwrites it; of several batches of an iteration the last."""
        node = self.solver.net.nodes[index]
        if index == 0:      # of an earlier batch, or of an iteration that failed
            self._running.clear()
        if node.type == "Split":
            return
        for blob in node.tops:
            self._running.append({"layer": node.name, "blob": blob.name, **measure(blob.cpu_data, node.type, node.param)})

    def _measure_gradients(self):
        """Measure the gradients of the iteration, before the update."""
        for name, parameter, blob in self._parameters():
            self._running.append({"layer": name, "parameter": parameter, **measure(blob.cpu_diff), "data": norm(blob.cpu_data)})

    def _measure_updates(self):
        by_name = {parameter: blob for _, parameter, blob in self._parameters()}
        for sample in self._running:
            if "parameter" in sample:
                sample["update"] = norm(by_name[sample["parameter"]].cpu_diff)

    def _parameters(self):
        """Yield layer, name and blob of the learnable parameters that get a gradient."""
        net = self.solver.net
        learnable = set(net.learnable_params)
        for node in net.nodes:
            for i, blob in enumerate(node.blobs):
                if blob in learnable and node.needs_backward and node.layer.param_propagate_down[i]:
                    learnable.discard(blob)
                    yield node.name, f"{node.name}[{i}]", blob


def norm(array):
    """Return the L2 norm of the finite values."""
    flat = array.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.dot(flat, flat))
    if not math.isfinite(total):    # in float32 it may overflow, too
        flat = flat[np.isfinite(flat)].astype(np.float64)
        total = float(np.dot(flat, flat))
    return math.sqrt(total)


def measure(array, kind=None, param=None):
    """Return norm and shares of an array; `kind` and `param` are of the layer that computed it."""
    size = max(1, array.size)
    found = norm(array)
    wrong = size - np.count_nonzero(np.isfinite(array)) if array.size else 0
    saturated = SATURATED[kind](array, param) / size if kind in SATURATED else None
    zeros = array.size - np.count_nonzero(array)
    return {"norm": found, "zeros": zeros / size, "saturated": saturated, "not_finite": wrong / size}
