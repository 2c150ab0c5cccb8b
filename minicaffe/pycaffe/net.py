"""pycaffe's Net, under the names and rules of BVLC Caffe's ``python/caffe/pycaffe.py`` and ``_caffe.cpp``.

Different from pycaffe: wrong input raises instead of ending the process, and a view of a blob keeps its memory alive.
"""

import functools
import logging
import os
from itertools import zip_longest
from numbers import Integral

import numpy as np

from minicaffe.blob import Blob
from minicaffe.common import TEST, TRAIN, caffe
from minicaffe.errors import ConfigError, FileError, ShapeError, names_of, shown
from minicaffe.net import net as base_net
from minicaffe.net import run
from minicaffe.net.net import NamedDict, cached_view
from minicaffe.proto.files import path_of
from minicaffe.proto.upgrade import Definition, load_net
from minicaffe.pycaffe import settings

log = logging.getLogger(__name__)


class Net(base_net.Net):
    """A network read from a prototxt, with pycaffe's methods.

    This is ``minicaffe.Net`` and ``caffe.Net``. Its base, ``minicaffe.net.net.Net``, is built from a NetParameter and lacks
    pycaffe's methods; solvers and commands build that one.

    Parameters
    ----------
    network_file : str
        Prototxt of any age; or a NetParameter, which keeps its own level unless one is given, or a Definition, whose state is set.
    phase : int
        TRAIN or TEST.
    level : int
        For `min_level` and `max_level` rules.
    stages : list of str, optional
        For `stage` and `not_stage` rules.
    weights : str, optional
        A .caffemodel or HDF5 file.
    force_backward : bool, optional
        By keyword only: True computes the gradients of all blobs, also of inputs and of layers that learn nothing, as
        ``force_backward: true`` in the prototxt does; False overrides that line.
    trusted, skip_unknown_fields : bool
        As of `minicaffe.net.net.Net`; by keyword only.

    The older forms ``Net(network_file, weights_file, phase)`` and ``Net(network_file, weights_file)`` work, too. The last one, of
    2014, has phase TEST unless ``caffe.set_phase_train()`` was called before.

    Raises
    ------
    FileError, ConfigError, ShapeError, DataError
        Naming file, line, layer and field.
    """

    default_phase = TEST    # of ``Net(network_file, weights_file)``

    def __init__(self, network_file, phase, *args, level=0, stages=None, weights=None, force_backward=None, **options):
        if isinstance(phase, (str, os.PathLike)):
            if len(args) > 1:
                raise ConfigError("Net(network_file, weights_file, phase) takes exactly three arguments")
            if weights is not None:
                raise ConfigError(f"is given twice, {shown(str(phase))} and {shown(str(weights))}; give one file", field="weights")
            weights, phase = phase, args[0] if args else self.default_phase
            log.warning("DEPRECATION WARNING - deprecated use of Python interface; use Net(%s, %s, weights=%s) instead",
                        shown(str(network_file)), "caffe.TRAIN" if phase == TRAIN else "caffe.TEST", shown(str(weights)))
        elif args:
            level, stages, weights, *rest = [*args, *(None, None, None)[len(args):]]
            level = level or 0
            if not isinstance(level, Integral):
                raise ConfigError(f"must be an integer, got {level!r}; weights come by name: weights={level!r}", field="level")
            if rest:
                raise ConfigError("Net takes network_file, phase, level, stages and weights")
        if weights is not None and not os.path.exists(path_of(weights)):
            raise FileError("no such weights file; check the path", file=str(weights))
        if not isinstance(network_file, Definition):
            with caffe.trusting(options.get("trusted", True)):
                network_file = load_net(network_file, phase, level or None, stages, options.get("skip_unknown_fields", False))
        super().__init__(network_file, force_backward=force_backward, **options)
        self._warned_of = set()
        if weights is not None:
            self.copy_from(weights)

    # ---- looking inside

    @cached_view
    def blob_loss_weights(self) -> dict[str, float]:
        """Loss weight of each blob by name, 0 for most."""
        return NamedDict(((blob.name, weight) for blob, weight in self.loss_weights.items()), "blob")

    @cached_view
    def params(self) -> dict[str, tuple[Blob, ...]]:
        """Parameter blobs of the layers that have any, by layer name: weight, bias."""
        return NamedDict(((node.name, tuple(node.blobs)) for node in self.nodes if node.blobs), "layer with parameters named")

    @cached_view
    def inputs(self) -> list[str]:
        """Names of the tops of Input layers."""
        return [blob.name for blob in self.input_blobs]

    @cached_view
    def outputs(self) -> list[str]:
        """Names of the blobs that nothing consumes, sorted."""
        return [blob.name for blob in self.output_blobs]

    @cached_view
    def top_names(self) -> dict[str, list[str]]:
        """Names of the tops of each layer by layer name."""
        return NamedDict(((node.name, [blob.name for blob in node.tops]) for node in self.nodes), "layer")

    @cached_view
    def bottom_names(self) -> dict[str, list[str]]:
        """Names of the bottoms of each layer by layer name."""
        return NamedDict(((node.name, [blob.name for blob in node.bottoms]) for node in self.nodes), "layer")

    _layer_names = property(lambda self: self.layer_names)
    _blob_names = property(lambda self: self.blob_names)
    _blobs = property(lambda self: self.blob_list)
    _blob_loss_weights = property(lambda self: list(self.loss_weights.values()))
    _forward, _backward = base_net.Net.forward_from_to, base_net.Net.backward_from_to

    _inputs, _outputs = property(lambda self: self._ids(self.input_blobs)), property(lambda self: self._ids(self.output_blobs))

    def _top_ids(self, index):
        """Return the indices in `blob_list` of the tops of layer `index`, as pycaffe's method of this name."""
        return self._ids(self.nodes[index].tops)

    def _bottom_ids(self, index):
        """Return the indices in `blob_list` of the bottoms of layer `index`."""
        return self._ids(self.nodes[index].bottoms)

    def _ids(self, blobs):
        """Return the indices of blobs in `blob_list`, as pycaffe's names that begin with an underscore give them."""
        return [self.blob_list.index(blob) for blob in blobs]

    # ---- running

    def forward(self, blobs=None, start=None, end=None, **kwargs) -> dict[str, np.ndarray]:
        """Run the net forward.

        Parameters
        ----------
        blobs : list of str, optional
            Blobs to return besides the outputs.
        start, end : str, optional
            First and last layer to run, by name; all unless given.
        **kwargs : array
            Values for all of `inputs`, of their shapes; the first dimension must be the blob's.

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
        WrongTypeError
            If a name is no str.
        """
        first = 0 if start is None else self.layer_index(start)
        last = len(self.layers) - 1 if end is None else self.layer_index(end)
        names = [*(self.outputs if end is None else self.top_names[end]), *names_of(blobs, "blobs")]
        wanted = {name: self.blobs[name] for name in names}
        with self.lock:
            self._feed(kwargs, self.inputs, "inputs", "data")
            self.forward_from_to(first, last)
            return {name: blob.data for name, blob in wanted.items()}

    def backward(self, diffs=None, start=None, end=None, **kwargs) -> dict[str, np.ndarray]:
        """Run the net backward, from layer `start` (the last) down to `end` (the first).

        Parameters
        ----------
        diffs : list of str, optional
            Blobs whose diff to return besides those of the inputs (or of the bottoms of `end`).
        **kwargs : array
            Diffs for all of `outputs`, of their shapes.

        Returns
        -------
        dict
            Live views of diffs. Those of inputs are usually not computed without ``force_backward``: of `Net`, or in the prototxt.
            If no layer computes a gradient, one warning is logged.
        """
        first = len(self.layers) - 1 if start is None else self.layer_index(start)
        last = 0 if end is None else self.layer_index(end)
        names = [*(self.inputs if end is None else self.bottom_names[end]), *names_of(diffs, "diffs")]
        wanted = {name: self.blobs[name] for name in names}
        with self.lock:
            self._feed(kwargs, self.outputs, "outputs", "diff")
            self._warn_without_gradients(last, first)
            self.backward_from_to(first, last)
            return {name: blob.diff for name, blob in wanted.items()}

    def _warn_without_gradients(self, first, last):
        """Warn once, for a range of layers, that backward computes nothing: the diffs that the caller reads are then 0."""
        if (first, last) in self._warned_of or any(node.needs_backward for node in self.nodes[first:last + 1]):
            return
        self._warned_of.add((first, last))
        log.warning("%s: backward computes nothing: no layer from '%s' down to '%s' needs a gradient, as none lies between a loss "
                    "and a parameter; for the gradients of all blobs build the net by caffe.Net(..., force_backward=True)",
                    self.file or self.name, self.layer_names[last], self.layer_names[first])

    def _feed(self, arrays, names, what, part):
        """Copy arrays, none or one for each of `names`, into the `part`, "data" or "diff", of these blobs; `what` is for errors."""
        if not arrays:
            return
        if set(arrays) != set(names):
            raise ConfigError(f"give arrays for exactly the net's {what} {names}, got {sorted(arrays)}", field=what)
        whole = {}
        for name, array in arrays.items():
            blob = self.blob_by_name(name)
            shape = np.shape(array)
            sides = zip_longest(shape[::-1], blob.shape[::-1], fillvalue=1)
            if shape[:1] != (blob.shape[:1] or (1,)) or any(given not in (1, wanted) for given, wanted in sides):
                is_whole = part == "data" and shape and len(shape) >= len(blob.shape)
                remedy = f", or call net.blobs['{name}'].reshape{shape} first" if is_whole else ""
                if len(shape) == len(blob.shape) - 1 and shape[:1] == blob.shape[1:2]:
                    remedy = "; array[None] adds the first axis, which is the batch"
                raise ShapeError(f"'{name}' has {shape}, the blob {blob.shape}: the first dimension (batch) must be equal, others "
                                 f"equal or 1; give such an array{remedy}", field=what)
            if part == "data" and shape == blob.shape:
                whole[name] = blob, array   # net/feed.py copies it, by several threads if it is large
            else:  # NumPy broadcasts it
                getattr(blob, part)[...] = array
        self._feeder.feed(whole, overlap=False)

    def forward_all(self, blobs=None, **kwargs):
        """Run forward in batches over arrays of any common length N; returns arrays of length N, not views."""
        if not kwargs:
            raise ConfigError(f"forward_all needs an array for each input: {self.inputs}")
        parts = {}
        for batch in self._batch(kwargs):
            for name, value in self.forward(blobs=blobs, **batch).items():
                parts.setdefault(name, []).extend(value.copy())
        return _stack_rows(parts, kwargs)

    def forward_backward_all(self, blobs=None, diffs=None, **kwargs):
        """Run forward and backward in batches; input and output names select what each keyword feeds.

        Returns
        -------
        tuple of (dict, dict)
            Values of the outputs and `blobs`, and diffs of the inputs and `diffs`, of the length of the arrays given.
        """
        ahead = {name: value for name, value in kwargs.items() if name in self.inputs}
        back = {name: value for name, value in kwargs.items() if name in self.outputs}
        if kwargs.keys() - {*ahead, *back}:
            raise ConfigError(f"give arrays for the net's inputs {self.inputs} and outputs {self.outputs}, got {sorted(kwargs)}")
        values, gradients = {}, {}
        batches = zip_longest(self._batch(ahead), self._batch(back), fillvalue={})
        for forward_batch, backward_batch in batches:
            for name, value in self.forward(blobs=blobs, **forward_batch).items():
                values.setdefault(name, []).extend(value.copy())
            for name, value in self.backward(diffs=diffs, **backward_batch).items():
                gradients.setdefault(name, []).extend(value.copy())
        return _stack_rows(values, kwargs), _stack_rows(gradients, kwargs)

    def _batch(self, blobs):
        """Yield parts of arrays, by blob name, in the batch size of the net's first blob; the last part is padded with zeros."""
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
        self.add_hook(run.BEFORE_FORWARD, hook)

    def after_forward(self, hook):
        """Call ``hook(layer index)`` after each layer's forward."""
        self.add_hook(run.AFTER_FORWARD, hook)

    def before_backward(self, hook):
        """Call ``hook(layer index)`` before each layer's backward."""
        self.add_hook(run.BEFORE_BACKWARD, hook)

    def after_backward(self, hook):
        """Call ``hook(layer index)`` after each layer's backward."""
        self.add_hook(run.AFTER_BACKWARD, hook)

    # ---- methods of 2014; today caffe.io.Transformer prepares pictures

    set_mode_cpu, set_mode_gpu, set_device = map(staticmethod, (settings.set_mode_cpu, settings.set_mode_gpu, settings.set_device))

    def set_phase_test(self):
        """Raise ConfigError if the net was not built for phase TEST, which it keeps."""
        self._check_phase(TEST, "caffe.TEST")

    def set_phase_train(self):
        """Raise ConfigError if the net was not built for phase TRAIN, which it keeps."""
        self._check_phase(TRAIN, "caffe.TRAIN")

    def _check_phase(self, phase, name):
        """Raise ConfigError for a net of the other phase: a script of 2014 expects it to change."""
        if self.phase != phase:
            raise ConfigError(f"a net keeps its phase; build it by caffe.Net(file, {name}, weights=model)", file=self.file,
                              field="phase")

    @functools.cached_property
    def transformer(self):
        """Transformer: of the inputs; pictures (H, W, K) become (K, H, W)."""
        from minicaffe.pycaffe import io
        made = io.Transformer({name: self.blobs[name].shape for name in self.inputs})
        for name in self.inputs:
            if len(self.blobs[name].shape) == 4:
                made.set_transpose(name, (2, 0, 1))
        return made

    def set_mean(self, input_, mean, mode="elementwise"):
        """Set the mean that `preprocess` subtracts: an array, or an .npy file; with mode "channel" its mean of each channel."""
        from minicaffe.pycaffe import io
        mean = io.read_npy(os.fspath(mean)) if isinstance(mean, (str, os.PathLike)) else np.asarray(mean)
        if mode not in ("elementwise", "channel"):
            raise ConfigError(f"must be 'elementwise' or 'channel', got {mode!r}", field="mode")
        self._transformer_of(input_).set_mean(input_, mean.mean(axis=(1, 2)) if mode == "channel" and mean.ndim == 3 else mean)

    def set_input_scale(self, in_, scale):
        """As of `minicaffe.io.Transformer.set_input_scale`."""
        self._transformer_of(in_).set_input_scale(in_, scale)

    def set_raw_scale(self, in_, scale):
        """As of `minicaffe.io.Transformer.set_raw_scale`."""
        self._transformer_of(in_).set_raw_scale(in_, scale)

    def set_channel_swap(self, in_, order):
        """As of `minicaffe.io.Transformer.set_channel_swap`."""
        self._transformer_of(in_).set_channel_swap(in_, order)

    def preprocess(self, in_, data):
        """As of `minicaffe.io.Transformer.preprocess`."""
        return self._transformer_of(in_).preprocess(in_, data)

    def deprocess(self, in_, data):
        """As of `minicaffe.io.Transformer.deprocess`."""
        return self._transformer_of(in_).deprocess(in_, data)

    def _transformer_of(self, in_):
        """Return `transformer` after setting the present shape of the input `in_`, as a net may be reshaped."""
        shape = self.blobs[in_].shape
        if in_ in self.inputs:
            self.transformer.inputs[in_] = shape
        return self.transformer


def set_phase_test():
    """Build the nets of ``Net(file, weights)`` for phase TEST from now on, which is the default."""
    Net.default_phase = TEST


def set_phase_train():
    """Build the nets of ``Net(file, weights)`` for phase TRAIN from now on."""
    Net.default_phase = TRAIN


def _stack_rows(parts, given):
    """Return lists of rows as arrays, without the padding rows of the last batch (`Net._batch`)."""
    total = len(next(iter(given.values()))) if given else None
    return {name: np.asarray(rows)[:total] for name, rows in parts.items()}
