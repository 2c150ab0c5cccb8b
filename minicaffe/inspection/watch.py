"""Watch: norms of gradients and activations of every layer over a training, and shares of zero, saturated and not finite values.

Iterations that are watched run layer by layer, without plan and CUDA graph, and are read back to the host; the others cost nothing.
"""

import math
import numbers
import sys

import numpy as np

from minicaffe.errors import ConfigError, WrongTypeError, check_callable, check_type, shown
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD

NEAR = 0.01     # of the end of a sigmoid's or tanh's range
# Where an activation hardly changes any more: from its values and the layer's parameter the number of elements there.
SATURATED = {
    "Sigmoid": lambda y, param: np.count_nonzero((y < NEAR) | (y > 1 - NEAR)),
    "TanH": lambda y, param: np.count_nonzero(np.abs(y) > 1 - NEAR),
    "Clip": lambda y, param: np.count_nonzero((y <= param.clip_param.min) | (y >= param.clip_param.max)),
}
# Numbers of `rows`, and their format in `lines`.
COLUMNS = {"activations": ".4g", "zeros": ".0%", "saturated": ".0%", "diff": ".4g", "gradient": ".4g", "weights": ".4g",
           "update/weights": ".2e"}


class Watch:
    """A listener of a solver that measures the first iteration and those after it whose number is a multiple of `every`.

    Parameters
    ----------
    solver : Solver
        Gets the listener; `close` removes it.
    every : int
    on_samples : callable, optional
        Called with (solver, iteration, samples) when the iteration is done.
    keep : bool
        Whether `records` collects all of them.

    Attributes
    ----------
    samples : list of dict
        Those of the last watched iteration, in the order of the layers: first what each computed, then the gradients. Of a top:
        ``layer``, ``blob``, ``norm`` (L2, of what is finite), and the shares ``zeros``, ``saturated`` (of Sigmoid, TanH and Clip,
        else None) and ``not_finite``; ``min`` and ``max`` of what is finite (None if nothing is), and of what is not how many there
        are, ``wrong``, and the index of the first, ``first`` (None). Of a top's gradient, where one is computed, the same with
        ``diff`` in place of ``blob``, and of a parameter's with ``parameter`` (``conv1[0]``); the latter also with ``data``, the
        norm of the parameter itself before the update, ``values``, its ``min``, ``max``, ``wrong`` and ``first``, ``update``, the
        norm of what the iteration subtracted from it, and ``update_wrong``, how many values of that are not finite. With
        ``iter_size`` tops and their gradients are those of one ``batch``: the first with values that are not finite, else the last.
    records : list of (iteration, samples)

    Raises
    ------
    ConfigError
        If `every` is less than 1.
    """

    def __init__(self, solver, every=100, on_samples=None, keep=True):
        if not hasattr(solver, "listeners"):
            raise WrongTypeError(f"solver must be a Solver, got {shown(solver)} ({type(solver).__name__})")
        check_type(every, numbers.Integral, "every", "a number of iterations")
        if every < 1:
            raise ConfigError(f"must be at least 1, got {every}", field="every")
        if on_samples is not None:
            check_callable(on_samples, "on_samples")
        self.solver, self.every, self.on_samples, self.keep = solver, every, on_samples, keep
        self.samples, self.records = [], []
        solver.listeners.append(self)
        self._arm()

    def close(self):
        """Stop watching; a second call does nothing."""
        self._disarm()
        if self in self.solver.listeners:
            self.solver.listeners.remove(self)

    def on_iteration(self, solver):
        """Measure the update, report the samples, and prepare for the next watched iteration; the solver calls it after each."""
        if solver is not self.solver:
            raise WrongTypeError(f"is called by the solver that it watches, got {shown(solver)}")
        iteration = solver.iter - 1
        if self.armed:
            self._disarm()
            by_name = {parameter: blob for _, parameter, blob in self._parameters()}
            for sample in self._running:
                if "parameter" in sample:       # after an update the diffs have what it subtracted
                    update = by_name[sample["parameter"]].cpu_diff
                    sample["update"], sample["update_wrong"] = norm(update), extremes(update)["wrong"]
            self.samples, self._running = self._running, []
            if self.keep:
                self.records.append((iteration, self.samples))
            if self.on_samples is not None:
                self.on_samples(solver, iteration, self.samples)
        if solver.iter % self.every == 0 and self in solver.listeners:      # `on_samples` may have closed it
            self._arm()

    def _arm(self):
        """Add the hooks for the next iteration, which then runs layer by layer."""
        self._begin()
        self._callback = (self._begin, self._measure_gradients)
        self.solver.net.add_hook(AFTER_FORWARD, self._measure_tops)
        self.solver.net.add_hook(BEFORE_BACKWARD, self._measure_top_gradients)
        self.solver.callbacks.append(self._callback)
        self.armed = True

    def _disarm(self):
        """Remove the hooks, so that iterations that are not watched run as without a Watch."""
        if self.armed:
            self.solver.net.remove_hook(AFTER_FORWARD, self._measure_tops)
            self.solver.net.remove_hook(BEFORE_BACKWARD, self._measure_top_gradients)
            self.solver.callbacks.remove(self._callback)
            self.armed = False

    def _begin(self):
        """Begin the samples of an iteration, as the solver's callback before forward; drop those of a failed one.

        `_batch` is the number of the present batch; `_kept`: an earlier batch had values that are not finite, its samples remain.
        """
        self._running, self._batch, self._kept = [], -1, False

    def _measure_tops(self, index):
        """Measure the tops of layer `index`, as a hook after its forward: before a layer in place overwrites them."""
        node = self.solver.net.nodes[index]
        if index == 0:      # of a batch
            self._kept = any(sample["wrong"] for sample in self._running)
            if not self._kept:
                self._running.clear()
                self._batch += 1
        if not self._kept and node.type != "Split":
            for blob in node.tops:
                self._add({"layer": node.name, "blob": blob.name, **measure(blob.cpu_data, node.type, node.param)})

    def _measure_top_gradients(self, index):
        """Measure the gradients of the tops of layer `index`, as a hook before its backward, which may overwrite them in place."""
        node = self.solver.net.nodes[index]
        if self._kept:
            return
        if index == len(self.solver.net.nodes) - 1:
            self._computed = set()      # blobs whose gradients layers behind this one have computed
        for blob in reversed(node.tops):    # `_measure_gradients` turns them round
            if blob in self._computed and node.type != "Split":
                self._add({"layer": node.name, "diff": blob.name, **measure(blob.cpu_diff)})
        self._computed.difference_update(node.tops)
        if node.needs_backward:
            self._computed.update(blob for blob, needed in zip(node.bottoms, node.bottom_needs) if needed)

    def _add(self, sample):
        """Keep a sample of this iteration; with iter_size it has the number of its batch."""
        if self.solver.param.iter_size > 1:
            sample["batch"] = self._batch
        self._running.append(sample)

    def _measure_gradients(self):
        """Measure the gradients of the parameters, as the solver's callback before the update; sort those of tops by layer."""
        gradients = [sample for sample in self._running if "diff" in sample]
        self._running = [sample for sample in self._running if "blob" in sample] + gradients[::-1]
        for name, parameter, blob in self._parameters():
            data = blob.cpu_data
            self._running.append({"layer": name, "parameter": parameter, **measure(blob.cpu_diff), "data": norm(data),
                                  "values": extremes(data)})

    def _parameters(self):
        """Yield layer, name and blob of the learnable parameters that get a gradient, shared ones once."""
        net = self.solver.net
        learnable = set(net.learnable_params)
        for node in net.nodes:
            for i, blob in enumerate(node.blobs):
                if blob in learnable and node.needs_backward and node.layer.param_propagate_down[i]:
                    learnable.discard(blob)
                    yield node.name, f"{node.name}[{i}]", blob


def norm(array):
    """Return the L2 norm of the finite values: one NaN must not hide how large the others are."""
    flat = array.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.dot(flat, flat))
    if math.isfinite(total):
        return math.sqrt(total)
    flat = flat[np.isfinite(flat)].astype(np.float64)
    largest = float(np.abs(flat).max(initial=0)) or 1.0     # squares of large values overflow, too
    return min(largest * float(np.linalg.norm(flat / largest)), sys.float_info.max)


def extremes(array):
    """Return ``min`` and ``max`` of the finite values, how many others there are, ``wrong``, and the index of the ``first``."""
    low = high = first = None
    wrong = 0
    if array.size:
        with np.errstate(invalid="ignore"):
            low, high = float(array.min()), float(array.max())      # NaN, if one is
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = np.isfinite(array)
            left = array[finite]
            wrong = array.size - left.size
            first = [int(i) for i in np.unravel_index(int(finite.argmin()), array.shape)]
            low, high = (float(left.min()), float(left.max())) if left.size else (None, None)
    return {"min": low, "max": high, "wrong": wrong, "first": first}


def measure(array, kind=None, param=None):
    """Return the numbers of a sample (`Watch.samples`): norm, shares, extremes; `kind` and `param` are of the layer of `array`."""
    size = max(1, array.size)
    found = extremes(array)
    saturated = SATURATED[kind](array, param) / size if kind in SATURATED else None
    return {"norm": norm(array), "zeros": (array.size - np.count_nonzero(array)) / size, "saturated": saturated,
            "not_finite": found["wrong"] / size, **found}


# ---- samples as text, for the log and the live display

def rows(samples):
    """Return a dict for each layer of the `samples` of an iteration: ``layer``, `COLUMNS`, and ``not_finite``, a text or "".

    ``diff`` is the gradient of the activations, ``gradient`` that of the weights.
    """
    found = {}
    for sample in samples:
        row = found.setdefault(sample["layer"], {"layer": sample["layer"], **dict.fromkeys(COLUMNS), "not_finite": ""})
        size = sample["norm"]
        if "parameter" in sample:
            for key, value in (("gradient", size), ("weights", sample.get("data")), ("update", sample.get("update"))):
                if value is not None:
                    row[key] = math.hypot(row.get(key) or 0.0, value)
        elif "diff" in sample:
            row["diff"] = size if row["diff"] is None or size != size else row["diff"]
        elif row["activations"] is None or size != size:
            row["activations"], row["zeros"], row["saturated"] = size, sample.get("zeros"), sample.get("saturated")
        if sample.get("not_finite") or size != size or math.isinf(size):
            row["not_finite"] = row["not_finite"] or sample.get("parameter") or sample.get("blob") or f"{sample['diff']} diff"
        elif sample.get("update_wrong"):
            row["not_finite"] = row["not_finite"] or f"update of {sample['parameter']}"
    for row in found.values():
        if row.get("weights") and row.get("update") is not None:
            row["update/weights"] = row["update"] / row["weights"]
    return list(found.values())


def lines(samples):
    """Yield a line of text for each layer, for the log and the live display."""
    for row in rows(samples):
        parts = [f"{name} {row[name]:{form}}" for name, form in COLUMNS.items() if row[name] is not None]
        bad = f"; {row['not_finite']} is not finite" if row["not_finite"] else ""
        yield f"    [Watch] Layer {row['layer']}: {', '.join(parts)}{bad}"
