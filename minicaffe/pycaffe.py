"""The pycaffe face: Net, solvers and module functions under the names and rules of BVLC Caffe's ``python/caffe``.

Different from pycaffe: wrong input raises instead of ending the process, and a view of a blob keeps its memory alive.
"""

import logging
import os
import sys
import time
from collections import OrderedDict
from itertools import zip_longest

import numpy as np

from minicaffe import cuda
from minicaffe import solver as solver_room
from minicaffe.common import TEST, TRAIN, caffe
from minicaffe.errors import ConfigError, FileError, ShapeError
from minicaffe.layer import layer_types
from minicaffe.net import net as net_room
from minicaffe.proto import upgrade

log_ = logging.getLogger("minicaffe")


class Net(net_room.Net):
    """A network read from a prototxt.

    Parameters
    ----------
    network_file : str
        Prototxt of any age.
    phase : int
        TRAIN or TEST.
    level : int
        For `min_level` and `max_level` rules.
    stages : list of str, optional
        For `stage` and `not_stage` rules.
    weights : str, optional
        A .caffemodel or HDF5 file.

    The older form ``Net(network_file, weights_file, phase)`` works too.

    Raises
    ------
    FileError, ConfigError, ShapeError, DataError
        Naming file, line, layer and field.
    """

    def __init__(self, network_file, phase, *args, level=0, stages=None, weights=None, **options):
        if isinstance(phase, (str, os.PathLike)):
            if len(args) != 1:
                raise ConfigError("Net(network_file, weights_file, phase) takes exactly three arguments")
            weights, phase = phase, args[0]
        elif args:
            level, stages, weights, *rest = [*args, *(None, None, None)[len(args):]]
            level = level or 0
            if rest:
                raise ConfigError("Net takes network_file, phase, level, stages and weights")
        if phase not in (TRAIN, TEST):
            raise ConfigError(f"must be TRAIN (0) or TEST (1), got {phase!r}", field="phase")
        if not isinstance(network_file, (str, os.PathLike)):  # a NetParameter, from a solver
            super().__init__(network_file, **options)
            return
        if weights is not None and not os.path.exists(weights):
            raise FileError("no such weights file; check the path", file=str(weights))
        param, positions = net_room.read_net(network_file, phase, level, stages)
        super().__init__(param, file=str(network_file), positions=positions, **options)
        if weights is not None:
            self.copy_from(weights)

    # ---- looking inside

    @property
    def blobs(self):
        """Blobs by name, in the order in which layers made them, those of splits included."""
        return OrderedDict(zip(self.blob_names, self.blob_list))

    @property
    def blob_loss_weights(self):
        """Loss weight of each blob by name, 0 for most."""
        return OrderedDict(zip(self.blob_names, self.blob_loss_weight_list))

    @property
    def params(self):
        """Parameter blobs of the layers that have any, by layer name."""
        return OrderedDict((name, layer.blobs) for name, layer in zip(self.layer_names, self.layers) if layer.blobs)

    @property
    def inputs(self):
        """Names of the tops of Input layers."""
        return [self.blob_names[i] for i in self.input_ids]

    @property
    def outputs(self):
        """Names of the blobs that nothing consumes, sorted."""
        return [self.blob_names[i] for i in self.output_ids]

    @property
    def top_names(self):
        """Names of the tops of each layer by layer name."""
        return OrderedDict((n, [self.blob_names[i] for i in ids]) for n, ids in zip(self.layer_names, self.top_ids))

    @property
    def bottom_names(self):
        """Names of the bottoms of each layer by layer name."""
        return OrderedDict((n, [self.blob_names[i] for i in ids]) for n, ids in zip(self.layer_names, self.bottom_ids))

    @property
    def _layer_names(self):
        return self.layer_names

    @property
    def _blob_names(self):
        return self.blob_names

    @property
    def _blobs(self):
        return self.blob_list

    @property
    def _inputs(self):
        return self.input_ids

    @property
    def _outputs(self):
        return self.output_ids

    @property
    def _blob_loss_weights(self):
        return self.blob_loss_weight_list

    def _top_ids(self, index):
        return self.top_ids[index]

    def _bottom_ids(self, index):
        return self.bottom_ids[index]

    # ---- running

    def forward(self, blobs=None, start=None, end=None, **kwargs):
        """Run the net forward.

        Parameters
        ----------
        blobs : list of str, optional
            Blobs to return besides the outputs.
        start, end : str, optional
            First and last layer to run, by name; all unless given.
        **kwargs : array
            Values for all of `inputs`; the first dimension must be the blob's.

        Returns
        -------
        dict
            The outputs (or the tops of `end`) and `blobs`, as live views: copy them before the next forward.

        Raises
        ------
        MissingNameError
            For an unknown layer or blob name.
        ConfigError, ShapeError
            If the keywords are not exactly the inputs, or a first dimension differs.
        """
        first = 0 if start is None else self.layer_index(start)
        last = len(self.layers) - 1 if end is None else self.layer_index(end)
        wanted = self.outputs if end is None else self.top_names[end]
        self._feed(kwargs, self.inputs, "inputs", "data")
        self.forward_from_to(first, last)
        return {name: self.blob_by_name(name).data for name in dict.fromkeys([*wanted, *(blobs or [])])}

    def backward(self, diffs=None, start=None, end=None, **kwargs):
        """Run the net backward, from layer `start` (the last) down to `end` (the first).

        Parameters
        ----------
        diffs : list of str, optional
            Blobs whose diff to return besides those of the inputs (or of the bottoms of `end`).
        **kwargs : array
            Diffs for all of `outputs`.

        Returns
        -------
        dict
            Live views of diffs. Without ``force_backward: true`` those of inputs are usually not computed.
        """
        first = len(self.layers) - 1 if start is None else self.layer_index(start)
        last = 0 if end is None else self.layer_index(end)
        wanted = self.inputs if end is None else self.bottom_names[end]
        self._feed(kwargs, self.outputs, "outputs", "diff")
        self.backward_from_to(first, last)
        return {name: self.blob_by_name(name).diff for name in dict.fromkeys([*wanted, *(diffs or [])])}

    def _feed(self, arrays, names, what, part):
        """Copy arrays into the data or diff of the blobs `names`, which they must match exactly."""
        if not arrays:
            return
        if set(arrays) != set(names):
            raise ConfigError(f"give arrays for exactly the net's {what} {names}, got {sorted(arrays)}", field=what)
        for name, array in arrays.items():
            blob = self.blob_by_name(name)
            if np.ndim(array) == 0 or len(array) != (blob.shape[0] if blob.shape else 1):
                raise ShapeError(f"'{name}' has {np.shape(array)}, the blob {blob.shape}: the first dimension (batch) must be "
                                 "equal; reshape the blob first", field=what)
            getattr(blob, part)[...] = array

    def forward_all(self, blobs=None, **kwargs):
        """Run forward in batches over arrays of any common length N; returns arrays of length N, not views."""
        if not kwargs:
            raise ConfigError(f"forward_all needs an array for each input: {self.inputs}")
        parts = {}
        for batch in self._batch(kwargs):
            for name, value in self.forward(blobs=blobs, **batch).items():
                parts.setdefault(name, []).extend(value.copy())
        return _join(parts, kwargs)

    def forward_backward_all(self, blobs=None, diffs=None, **kwargs):
        """Run forward and backward in batches; input and output names select what each keyword feeds.

        Returns
        -------
        tuple of (dict, dict)
            Values of the outputs and `blobs`, and diffs of the inputs and `diffs`, of the length of the arrays given.
        """
        ahead = {name: value for name, value in kwargs.items() if name in self.inputs}
        back = {name: value for name, value in kwargs.items() if name in self.outputs}
        values, gradients = {}, {}
        batches = zip_longest(self._batch(ahead), self._batch(back), fillvalue={})
        for forward_batch, backward_batch in batches:
            for name, value in self.forward(blobs=blobs, **forward_batch).items():
                values.setdefault(name, []).extend(value.copy())
            for name, value in self.backward(diffs=diffs, **backward_batch).items():
                gradients.setdefault(name, []).extend(value.copy())
        return _join(values, kwargs), _join(gradients, kwargs)

    def _batch(self, blobs):
        """Yield dicts of arrays of the net's batch size; the last one is padded with zeros."""
        if not blobs:
            return
        total = len(next(iter(blobs.values())))
        size = self.blob_list[0].shape[0]
        for begin in range(0, total, size):
            batch = {name: np.asarray(value)[begin:begin + size] for name, value in blobs.items()}
            missing = size - min(total - begin, size)
            if missing:
                batch = {name: np.concatenate([part, np.zeros((missing,) + part.shape[1:], part.dtype)])
                         for name, part in batch.items()}
            yield batch

    def _forward(self, start, end):
        return self.forward_from_to(start, end)

    def _backward(self, start, end):
        self.backward_from_to(start, end)

    def reshape(self):
        """Propagate new input shapes to all blobs without computing."""
        self.reshape_all()

    def set_input_arrays(self, data, labels):
        """Feed a net whose first layer is MemoryData, without a copy.

        Parameters
        ----------
        data : array, shape (N, C, H, W), float32, C-contiguous
            N must be a multiple of the batch size.
        labels : array, shape (N,) or (N, 1, 1, 1), float32
        """
        if not self.layers or self.layers[0].type != "MemoryData":
            raise ConfigError("set_input_arrays needs a net whose first layer is MemoryData")
        self.layers[0].reset(data, labels)

    # ---- hooks

    def before_forward(self, hook):
        """Call ``hook(layer index)`` before each layer's forward."""
        self.add_hook(net_room.BEFORE_FORWARD, hook)

    def after_forward(self, hook):
        """Call ``hook(layer index)`` after each layer's forward."""
        self.add_hook(net_room.AFTER_FORWARD, hook)

    def before_backward(self, hook):
        """Call ``hook(layer index)`` before each layer's backward."""
        self.add_hook(net_room.BEFORE_BACKWARD, hook)

    def after_backward(self, hook):
        """Call ``hook(layer index)`` after each layer's backward."""
        self.add_hook(net_room.AFTER_BACKWARD, hook)


def _join(parts, given):
    """Make arrays of lists of rows, without the rows that padded the last batch."""
    total = len(next(iter(given.values()))) if given else None
    return {name: np.asarray(rows)[:total] for name, rows in parts.items()}


class _FromFile:
    """What pycaffe's solver classes add to the solver room's: made from a file, with pycaffe's Net.

    As in pycaffe, a restored solver reads its data from the beginning; set `exact_resume` to go on where they stood.
    """

    exact_resume = False

    def __init__(self, solver_file):
        param, positions = upgrade.read_solver_file(solver_file)
        super().__init__(param, file=str(solver_file), positions=positions)

    def make_net(self, param, **options):
        return Net(param, param.state.phase, **options)

    @property
    def lr(self):
        """The current learning rate; evaluating it can advance the multistep counter."""
        return self.learning_rate()


class SGDSolver(_FromFile, solver_room.SGDSolver):
    """SGD with momentum, from a solver prototxt; the file's `type` is not looked at."""


class NesterovSolver(_FromFile, solver_room.NesterovSolver):
    """Nesterov's accelerated gradient, from a solver prototxt."""


class AdaGradSolver(_FromFile, solver_room.AdaGradSolver):
    """AdaGrad, from a solver prototxt."""


class RMSPropSolver(_FromFile, solver_room.RMSPropSolver):
    """RMSProp, from a solver prototxt."""


class AdaDeltaSolver(_FromFile, solver_room.AdaDeltaSolver):
    """AdaDelta, from a solver prototxt."""


class AdamSolver(_FromFile, solver_room.AdamSolver):
    """Adam, from a solver prototxt."""


_SOLVERS = {cls.__name__.removesuffix("Solver"): cls for cls in (
    SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}


def get_solver(solver_file):
    """Return the solver of the type that the prototxt names."""
    param, _ = upgrade.read_solver_file(solver_file)
    if param.type not in _SOLVERS:
        raise ConfigError(f"unknown solver type '{param.type}'; known are {', '.join(_SOLVERS)}", field="type",
                          file=str(solver_file))
    return _SOLVERS[param.type](solver_file)


class Timer:
    """A stop watch: `start`, `stop`, and `ms`, the milliseconds between them."""

    def __init__(self):
        self._start = self._elapsed = None

    def start(self):
        """Start anew."""
        self._start, self._elapsed = time.perf_counter(), None

    def stop(self):
        """Stop; later calls change nothing."""
        if self._start is not None and self._elapsed is None:
            self._elapsed = time.perf_counter() - self._start

    @property
    def ms(self):
        """Milliseconds from start to stop; stops if running, 0 if never started."""
        self.stop()
        return 0.0 if self._elapsed is None else self._elapsed * 1000


def set_mode_cpu():
    """Compute on the CPU, which is the default."""
    if caffe.mode != "cpu":
        cuda.use_cpu()


def set_mode_gpu():
    """Compute on the GPU that `set_device` chose, by default the first; with MINICAFFE_DEVICE=sim on the simulated one.

    Different from Caffe: threads started later compute there too.

    Raises
    ------
    DependencyError, DeviceError
        If there is no CUDA driver, or the GPU cannot be used.
    """
    cuda.use_gpu()


def set_device(device_id):
    """Choose the GPU of GPU mode, at once if that is the present mode.

    Raises
    ------
    DependencyError, DeviceError
        If there is no CUDA driver or no such GPU.
    """
    cuda.select(device_id)


def set_random_seed(seed):
    """Start this thread's random numbers anew from an integer >= 0."""
    caffe.seed(seed)


def solver_count():
    """Return how many solvers train together."""
    return caffe.solver_count


def set_solver_count(count):
    """Say how many solvers train together; a Data layer in phase TRAIN reads every count-th record."""
    if count < 1:
        raise ConfigError(f"must be at least 1, got {count}", field="solver_count")
    caffe.solver_count = count


def solver_rank():
    """Return which of the `solver_count` solvers this process is."""
    return caffe.solver_rank


def set_solver_rank(rank):
    """Say which of the `solver_count` solvers this process is, from 0."""
    if rank < 0:
        raise ConfigError(f"must be at least 0, got {rank}", field="solver_rank")
    caffe.solver_rank = rank


def set_multiprocess(flag):
    """Say that the solvers of a parallel training run in processes of their own."""
    caffe.multiprocess = bool(flag)


def has_nccl():
    """Return False: this version trains on one device."""
    return False


def layer_type_list():
    """Return the names of all layer types, sorted."""
    return list(layer_types())


def init_log(level=0, to_stderr=True):
    """Show log messages from severity `level` (0 info, 1 warning, 2 error, 3 fatal) on, on stderr.

    Without it, Python's logging decides: warnings and errors only.
    """
    if not 0 <= level <= 3:
        raise ConfigError(f"must be 0 to 3, got {level}", field="level")
    log_.setLevel((logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)[level])
    if to_stderr and not log_.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname).1s%(asctime)s %(process)d %(filename)s:%(lineno)d] %(message)s",
                                               "%m%d %H:%M:%S"))
        log_.addHandler(handler)


def log(message):
    """Log one line at severity info."""
    log_.info(message)
