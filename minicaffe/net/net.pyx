"""Net: layers connected by named blobs, and the loops that run them forward and backward (Caffe net.cpp).

Building: rules, splits, then layer by layer: create, connect, set up. The blobs live in a workspace of the net's own, the
parameters in its parent, which several nets may share. Different from Caffe: every fault raises and names file, line,
layer and field, a layer's reshape runs only when a blob changed (see layer.pyx), and threads take turns at a net (lock.pyx).
"""

import logging
import math
from collections import Counter, OrderedDict

from minicaffe.blob cimport Blob, Dtype, FLOAT
from minicaffe.device.context cimport Context, context
from minicaffe.layer cimport Layer
from minicaffe.net.lock cimport NetLock

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, MissingNameError, ShapeError, WrongTypeError, close_matches
from minicaffe.layer import layer_class
from minicaffe.net import weights
from minicaffe.net.build import chosen_layers, cut_backward, insert_splits
from minicaffe.net.share import ParamTable
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.proto.atomic import replacing
from minicaffe.workspace import Workspace


log = logging.getLogger("minicaffe.net")
BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD, AFTER_BACKWARD = range(4)


cdef class Net:
    """A network built from a NetParameter, which is taken as it is (`read_net` reads and upgrades files).

    Parameters
    ----------
    param : NetParameter
        Its `state` says phase, level and stages; not changed.
    dtype : Dtype
        FLOAT or DOUBLE.
    workspace : Workspace, optional
        Owns the parameters; nets with the same one share parameters of layers with the same name. The net's blobs go
        into a child of it. It lists the net (`Workspace.nets`) without owning it, which `Workspace.create_net` is for.
    file : str, optional
        Named in errors.
    positions : Positions, optional
        Gives the line of each layer.
    trusted : bool
        False: the net may write no files, read none outside the working directory, and import no modules
        (`minicaffe.common.Caffe.check_path`, layers/python.py).
    skip_unknown_fields : bool
        Leave out, with a warning, fields of forks without which the net computes the same (proto/forks.py).

    Raises
    ------
    ConfigError, ShapeError
        For anything that BVLC Caffe aborts on.
    """

    def __init__(self, param, Dtype dtype=FLOAT, workspace=None, file=None, positions=None, bint trusted=True,
                 bint skip_unknown_fields=False):
        self.name = param.name
        self.file = file
        self.dtype = dtype
        self.state = caffe_pb2.NetState()
        self.state.CopyFrom(param.state)
        self.phase = param.state.phase
        self.debug_info = param.debug_info
        self.device = -1
        self.parameters = workspace if workspace is not None else Workspace()
        self.workspace = self.parameters.child(self.name)
        self.layers, self.layer_names, self.lines = [], [], []
        self.blob_list, self.blob_names, self.blob_loss_weight_list = [], [], []
        self.bottoms, self.tops, self.bottom_ids, self.top_ids = [], [], [], []
        self.input_ids, self.layer_need_backward, self.bottom_need_backward = [], [], []
        self.param_table = ParamTable()
        self.hooks = [[], [], [], []]
        self.times_named, self.produced = {}, set()  # layer names and blob names so far; unrolled nets have thousands

        layers = chosen_layers(param, positions, file, skip_unknown_fields)
        with caffe.trusting(trusted):
            self.trusted = caffe.trusted
            self._build(insert_splits(layers, file), param.force_backward)
        self.param_counts = [blob.count for blob in self.param_table.params]
        self.lock = NetLock([*self.blob_list, *self.param_table.params])
        self.parameters.add_net(self)
        log.info("Network initialization done.")

    def _build(self, layers, bint force_backward):
        cdef Layer layer  # typed, as a user's Python layer may have attributes of its own called param, name or type
        available = {}  # name of each blob not consumed so far -> its index
        blob_needs = []
        elements = 0
        for layer_def in layers:
            index = len(self.layers)
            try:
                layer = self._create(layer_def)
                for i, name in enumerate(layer.param.bottom):
                    self._connect_bottom(index, i, name, available)
                self._connect_tops(index, layer, available)
                log.info("Setting up %s", layer.name)
                layer.set_up(self.bottoms[index], self.tops[index])
                elements += sum(blob.count for blob in self.tops[index])
                self._report_tops(index, layer, elements)
                blob_needs += [False] * (len(self.blob_list) - len(blob_needs))
                self._append_params(index, layer, blob_needs)
            except Error as error:
                raise error.at(file=self.file, line=layer_def.line, layer=layer_def.param.name,
                               layer_type=layer_def.param.type)
        cut_backward(self.layer_need_backward, self.bottom_need_backward,
                     [[self.blob_names[i] for i in ids] for ids in self.bottom_ids],
                     [[self.blob_names[i] for i in ids] for ids in self.top_ids],
                     [any(layer.loss_weights) for layer in self.layers])
        if force_backward:
            self._force_backward(blob_needs)
        for layer, needs in zip(self.layers, self.layer_need_backward):
            log.info("%s %s backward computation.", layer.name, "needs" if needs else "does not need")
        self.output_ids = [available[name] for name in sorted(available, key=str.encode) if name != "(automatic)"]
        for i in self.output_ids:
            log.info("This network produces output %s", self.blob_names[i])
        self.blob_of = dict(zip(self.blob_names, self.blob_list))
        written = Counter([i for ids in self.top_ids for i in ids])
        self.loss_at_once = any(weight and written[i] > 1 for i, weight in enumerate(self.blob_loss_weight_list))
        self.share_weights()
        self.learnable_params = [self.param_table.params[i] for i in self.param_table.learnable]
        given = {i for bottoms, ids in zip(self.bottoms, self.top_ids) if not bottoms for i in ids}
        self.computed = [blob for i, blob in enumerate(self.blob_list) if i not in given] + self.learnable_params
        self.params_lr = self.param_table.multipliers("lr_mult")
        self.params_weight_decay = self.param_table.multipliers("decay_mult")

    def _create(self, layer_def):
        """Make the layer and its lists of blobs."""
        param = caffe_pb2.LayerParameter()
        param.CopyFrom(layer_def.param)
        if not param.HasField("phase"):
            param.phase = self.phase
        if len(param.propagate_down) not in (0, len(param.bottom)):
            raise ConfigError(f"give none or one for each of the {len(param.bottom)} bottoms, got {len(param.propagate_down)}",
                              field="propagate_down")
        log.info("Creating Layer %s", param.name)
        repeats = self.times_named.get(param.name, 0)
        self.times_named[param.name] = repeats + 1
        layer = layer_class(param.type)(param, self.dtype, self.parameters,
                                        f"{param.name}#{repeats}" if repeats else param.name)
        self.layers.append(layer)
        self.layer_names.append(param.name)
        self.lines.append(layer_def.line)
        for lists in (self.bottoms, self.tops, self.bottom_ids, self.top_ids):
            lists.append([])
        return layer

    def _connect_bottom(self, index, i, name, available):
        if name not in available:
            raise ConfigError(f"unknown bottom blob '{name}': no earlier layer has this top, or it was consumed"
                              f"{close_matches(name, available)}", field=f"bottom[{i}]")
        blob_id = available.pop(name)
        log.info("%s <- %s", self.layer_names[index], name)
        self.bottom_ids[index].append(blob_id)
        self.bottoms[index].append(self.blob_list[blob_id])

    def _connect_tops(self, index, layer, available):
        param = layer.param
        names = list(param.top)
        if layer.auto_top_blobs:
            names += ["(automatic)"] * (max(layer.min_top_blobs, layer.exact_num_top_blobs) - len(names))
        for i, name in enumerate(names):
            if i < len(param.top) and i < len(param.bottom) and name == param.bottom[i]:
                log.info("%s -> %s (in-place)", layer.name, name)
                blob_id = self.bottom_ids[index][i]
            else:
                if i < len(param.top) and name in self.produced:
                    raise ConfigError(f"blob '{name}' is produced by more than one layer; in-place needs the same name at the "
                                      "same index of bottom and top", field=f"top[{i}]")
                log.info("%s -> %s", layer.name, name)
                blob_id = len(self.blob_list)
                blob = Blob(None, self.dtype, name)
                self.blob_list.append(blob)
                self.blob_names.append(name)
                self.produced.add(name)
                self.blob_loss_weight_list.append(0.0)
                if i < len(param.top):
                    self.workspace.set(name, blob)
                if param.type == "Input":
                    self.input_ids.append(blob_id)
            if i < len(param.top):
                available[name] = blob_id
            self.top_ids[index].append(blob_id)
            self.tops[index].append(self.blob_list[blob_id])

    def _report_tops(self, index, Layer layer, elements):
        for blob_id, weight in zip(self.top_ids[index], layer.loss_weights):
            self.blob_loss_weight_list[blob_id] = weight
            log.info("Top shape: %s", self.blob_list[blob_id].shape_string())
            if weight:
                log.info("    with loss weight %g", weight)
        log.info("Memory required for data: %d", elements * (4 if self.dtype == FLOAT else 8))

    def _append_params(self, index, Layer layer, blob_needs):
        """Note who needs a gradient, and enter the layer's parameters into the table."""
        specs = layer.param.param
        if len(specs) > len(layer.blobs):
            raise ConfigError(f"too many param entries: {len(specs)} for {len(layer.blobs)} parameter blobs", field="param")
        forced = list(layer.param.propagate_down)
        bottom_needs = [blob_needs[i] for i in self.bottom_ids[index]]
        layer.param_propagate_down = [i >= len(specs) or specs[i].lr_mult != 0 for i in range(len(layer.blobs))]
        needs = any(bottom_needs) or any(layer.param_propagate_down)
        self.layer_need_backward.append(needs)
        self.bottom_need_backward.append(forced or bottom_needs)
        for i in self.top_ids[index]:
            blob_needs[i] = blob_needs[i] or needs
        for i, blob in enumerate(layer.blobs):
            self.param_table.append(layer.name, i, blob, specs[i] if i < len(specs) else None)

    def _force_backward(self, blob_needs):
        """Apply NetParameter.force_backward: a gradient for every bottom whose layer allows it."""
        for index, layer in enumerate(self.layers):
            self.layer_need_backward[index] = True
            layer.param_propagate_down = [True] * len(layer.blobs)
            self.bottom_need_backward[index] = [
                needs or layer.allow_force_backward(i) for i, needs in enumerate(self.bottom_need_backward[index])]

    # ---- running

    cpdef double forward_from_to(self, int start, int end) except? -1:
        """Run layers `start` to `end`, both included; return the sum of their losses.

        Raises
        ------
        ConfigError
            If `start` is negative or `end` is not a layer's index.
        """
        if start < 0 or end >= len(self.layers):
            raise ConfigError(f"layers {start}..{end} are out of range, the net has {len(self.layers)}")
        with self.lock:
            return self._compute(start, end, True) + self._losses(start, end)

    cdef double _compute(self, int start, int end, bint sources) except? -1:
        """Run layers forward, those without bottoms only if `sources`; return the losses that cannot be read later."""
        cdef double loss = 0
        cdef Layer layer
        cdef int i
        self._check_ready()
        for i in range(start, end + 1):
            if not sources and not len(<list> self.bottoms[i]):
                continue
            if self.hooks[0]:
                self._call_hooks(BEFORE_FORWARD, i)
            layer = <Layer> self.layers[i]
            try:
                layer.run_forward(<list> self.bottoms[i], <list> self.tops[i])
                if self.loss_at_once and layer.has_loss:
                    loss += layer.loss_of(<list> self.tops[i])
            except Error as error:
                raise self._place(error, i)
            if self.debug_info:
                self._log_forward(i)
            if self.hooks[1]:
                self._call_hooks(AFTER_FORWARD, i)
        return loss

    cdef int _check_ready(self) except -1:
        """Raise if a parameter's count is not what its layer was made for, or the net's memory lies on another GPU."""
        cdef Context on = context()
        cdef list params = self.param_table.params
        cdef Blob blob
        cdef int i
        for i in range(len(params)):
            blob = <Blob> params[i]
            if blob.count != <long long> self.param_counts[i]:
                raise ShapeError(f"{self.param_table.places[i]} was reshaped to {list(blob.shape)}, its layer was made for "
                                 f"{self.param_counts[i]} values; change the prototxt and build the net anew")
        if on.stream == NULL:
            return 0
        if self.device < 0:
            self.device = on.stream.device
        if self.device != on.stream.device:
            raise ConfigError(f"the net's memory is on GPU {self.device}, the present one is GPU {on.stream.device}; call "
                              f"set_device({self.device}) before using it, or make the net anew")
        return 0

    cdef double _losses(self, int start, int end) except? -1:
        """The sum of the losses of layers that have run; read last, since a GPU is waited for then."""
        cdef double loss = 0
        cdef Layer layer
        cdef int i
        for i in range(start, end + 1 if not self.loss_at_once else start):
            layer = <Layer> self.layers[i]
            if layer.has_loss:
                loss += layer.loss_of(<list> self.tops[i])
        return loss

    cpdef backward_from_to(self, int start, int end):
        """Run the backward of layers `start` down to `end`, both included, where it is needed."""
        cdef Layer layer
        cdef int i
        if end < 0 or start >= len(self.layers):
            raise ConfigError(f"layers {start}..{end} are out of range, the net has {len(self.layers)}")
        with self.lock:
            self._check_ready()
            for i in range(start, end - 1, -1):
                if self.hooks[2]:
                    self._call_hooks(BEFORE_BACKWARD, i)
                if self.layer_need_backward[i]:
                    layer = <Layer> self.layers[i]
                    try:
                        layer.run_backward(<list> self.tops[i], <list> self.bottom_need_backward[i], <list> self.bottoms[i])
                    except Error as error:
                        raise self._place(error, i)
                    if self.debug_info:
                        self._log_backward(i)
                if self.hooks[3]:
                    self._call_hooks(AFTER_BACKWARD, i)

    def backward_layer(self, int index):
        """Run the backward of one layer, whether the net needs it or not."""
        cdef Layer layer = <Layer> self.layers[index]
        with self.lock:
            self._check_ready()
            try:
                layer.run_backward(<list> self.tops[index], <list> self.bottom_need_backward[index], <list> self.bottoms[index])
            except Error as error:
                raise self._place(error, index)

    def forward_backward(self, bint run_sources=True, bint read_loss=True):
        """Run the whole net forward and backward.

        Parameters
        ----------
        run_sources : bool
            False: `run_sources` was called already for this batch.
        read_loss : bool
            False: return 0, as while a CUDA graph is recorded, when there is no loss yet.

        Returns
        -------
        float
            The loss.
        """
        cdef int last = len(self.layers) - 1
        cdef double loss
        with self.lock:
            loss = self._compute(0, last, run_sources)
            if read_loss:
                loss += self._losses(0, last)
            self.backward_from_to(last, 0)
            if self.debug_info:
                self._log_norms()
            return loss

    # ---- for CUDA graphs (solver/graph.py)

    def run_sources(self):
        """Run the layers without bottoms, and put what they give on the present device."""
        cdef Context on = context()
        cdef Layer layer
        cdef Blob blob
        cdef int i
        for i in range(len(self.layers)):
            if not len(<list> self.bottoms[i]):
                layer = <Layer> self.layers[i]
                try:
                    layer.run_forward(<list> self.bottoms[i], <list> self.tops[i])
                    for blob in <list> self.tops[i]:
                        blob.data_on(on)
                except Error as error:
                    raise self._place(error, i)

    def watcher(self):
        """Return who looks into each layer's run, which a CUDA graph cannot allow, or None."""
        if any(self.hooks):
            return "callbacks run between layers"
        if self.debug_info:
            return "debug_info looks at every blob"
        return None

    def capture_obstacle(self):
        """Return why a CUDA graph cannot hold a run of this net, or None."""
        if (reason := self.watcher()) is not None:
            return reason
        if self.loss_at_once:
            return "a layer overwrites a loss in place"
        for layer, bottoms in zip(self.layers, self.bottoms):
            reason = layer.capture_obstacle()
            if reason is not None:
                return f"layer '{layer.name}' ({layer.type}): {reason}"
        return None

    def inspect_inputs(self):
        """Let layers check on the host what replaying does not check, such as labels."""
        cdef Layer layer
        cdef int i
        for i in range(len(self.layers)):
            layer = <Layer> self.layers[i]
            try:
                layer.inspect(<list> self.bottoms[i])
            except Error as error:
                raise self._place(error, i)

    def stamp(self):
        """Return a number that changes whenever a blob gets another shape or memory."""
        cdef unsigned long long total = 0
        cdef Blob blob
        for blob in self.blob_list:
            total += blob.stamp
        for blob in self.learnable_params:
            total += blob.stamp
        return total

    def own_on_device(self, list others):
        """Make the device's copy the only valid one of every blob that is there, but for what sources give; of `others` too."""
        cdef Blob blob
        for blob in self.computed + others:
            if blob.data_memory.device is not None:
                blob.data_memory.mutable_gpu_data_ptr()
            if blob.diff_memory.device is not None:
                blob.diff_memory.mutable_gpu_data_ptr()

    def loss_of_outputs(self):
        """Return the loss of the last run, from the tops."""
        return self._losses(0, len(self.layers) - 1)

    def reshape_all(self):
        """Propagate changed input shapes through the layers without computing (Caffe Net::Reshape)."""
        cdef Layer layer
        with self.lock:
            for i in range(len(self.layers)):
                layer = self.layers[i]
                try:
                    layer.refresh(self.bottoms[i], self.tops[i])
                except Error as error:
                    raise self._place(error, i)

    def clear_param_diffs(self):
        """Set the gradient of every learnable parameter to zero."""
        cdef Blob blob
        cdef Context on = context()
        with self.lock:
            for blob in self.learnable_params:
                blob.fill_diff_on(on, 0)

    def update(self):
        """Subtract each learnable parameter's diff from its data."""
        with self.lock:
            for blob in self.learnable_params:
                blob.update()

    def share_weights(self):
        """Point parameters that share a name at their owner's memory."""
        self.param_table.share()

    def add_hook(self, int when, hook):
        """Call ``hook(layer index)`` at BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD or AFTER_BACKWARD of every layer."""
        self.hooks[when].append(hook)

    def _call_hooks(self, int when, int index):
        for hook in self.hooks[when]:
            hook(index)

    def _place(self, error, int index):
        return error.at(file=self.file, line=self.lines[index], layer=self.layer_names[index],
                        layer_type=self.layers[index].type)

    # ---- looking inside

    @property
    def layer_dict(self):
        """Layers by name, in order; of layers with one name the last."""
        return OrderedDict(zip(self.layer_names, self.layers))

    def blob_by_name(self, name):
        """Return the blob called `name`.

        Raises
        ------
        MissingNameError
            Lists near names.
        """
        if name not in self.blob_of:
            raise MissingNameError(f"the net has no blob '{name}'{close_matches(name, self.blob_names)}")
        return self.blob_of[name]

    def layer_index(self, name):
        """Return the index of the layer called `name`, the last of several.

        Raises
        ------
        MissingNameError
            Lists near names.
        """
        if name not in self.layer_names:
            raise MissingNameError(f"the net has no layer '{name}'{close_matches(name, self.layer_names)}")
        return len(self.layer_names) - 1 - self.layer_names[::-1].index(name)

    def _log_forward(self, int index):
        name = self.layer_names[index]
        for blob_id in self.top_ids[index]:
            blob = self.blob_list[blob_id]
            log.info("    [Forward] Layer %s, top blob %s data: %g", name, self.blob_names[blob_id], _mean(blob, blob.asum_data()))
        for blob, shown in zip(self.layers[index].blobs, self._param_names(index)):
            log.info("    [Forward] Layer %s, param blob %s data: %g", name, shown, _mean(blob, blob.asum_data()))

    def _log_backward(self, int index):
        name = self.layer_names[index]
        for blob_id, needs in zip(self.bottom_ids[index], self.bottom_need_backward[index]):
            blob = self.blob_list[blob_id]
            if needs:
                log.info("    [Backward] Layer %s, bottom blob %s diff: %g", name, self.blob_names[blob_id],
                         _mean(blob, blob.asum_diff()))
        for i, blob in enumerate(self.layers[index].blobs):
            if self.layers[index].param_propagate_down[i]:
                log.info("    [Backward] Layer %s, param blob %d diff: %g", name, i, _mean(blob, blob.asum_diff()))

    def _log_norms(self):
        params = self.learnable_params
        log.error("    [Backward] All net params (data, diff): L1 norm = (%g, %g); L2 norm = (%g, %g)",
                  sum(b.asum_data() for b in params), sum(b.asum_diff() for b in params),
                  math.sqrt(sum(b.sumsq_data() for b in params)), math.sqrt(sum(b.sumsq_diff() for b in params)))

    def _param_names(self, int index):
        first = sum(len(layer.blobs) for layer in self.layers[:index])
        return self.param_table.names[first:first + len(self.layers[index].blobs)]

    # ---- weights (net/weights.py)

    def copy_from(self, path):
        """Load weights by layer name from a .caffemodel or an HDF5 file; layers the file lacks keep theirs.

        The log says which layers got weights, and which did not; ConfigWarning if none did.
        """
        with self.lock:
            weights.load(self, path).tell()

    def load_hdf5(self, path):
        """Load weights from an HDF5 file; every parameter of a layer that it names must be there."""
        with self.lock:
            weights.load_hdf5(self, path).tell()

    def save(self, path, write_diff=False):
        """Write a .caffemodel; a file of that name is replaced when the new one is whole."""
        with self.lock, replacing(path) as file:
            weights.save(self, file, write_diff)

    def save_hdf5(self, path, write_diff=False):
        """Write the weights as HDF5; a file of that name is replaced when the new one is whole."""
        try:
            with self.lock, replacing(path) as file:
                weights.save_hdf5(self, file, write_diff)
        except Error as error:
            raise error.at(file=str(path))

    def share_with(self, other):
        """Use the parameter memory of `other` for layers with the same name."""
        with self.lock:
            weights.share(self, other)

    def __reduce__(self):
        raise WrongTypeError("a net cannot be copied or pickled: it holds memory that others may share; build a second one from the "
                             "same file, then other.share_with(net) for the same weights, or net.save(path) and other.copy_from(path) "
                             "for a copy of them")


def _mean(blob, total):
    return total / blob.count if blob.count else 0.0


def read_net(path, phase, level=0, stages=(), skip_unknown_fields=False):
    """Read a prototxt of any age for building: upgraded, with `phase` and `level` set and `stages` appended.

    `skip_unknown_fields` is for fields of the net itself; `Net` looks at those of its layers.

    Returns
    -------
    tuple of (NetParameter, Positions)
    """
    param, positions = upgrade.read_net_file(path, skip_unknown_fields=skip_unknown_fields)
    param.state.phase = phase
    param.state.level = level
    param.state.stage.extend(stages or ())
    return param, positions
