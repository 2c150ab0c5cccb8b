"""Net: layers connected by named blobs (Caffe net.cpp).

A net is a list of nodes (node.pyx). build.py makes them, run.pyx runs them; this file has views of them, inputs and weights. The
blobs are in a workspace of the net's own, the parameters in its parent, which several nets may share. Different from Caffe: every
fault raises and names file, line, layer and field.
"""

import functools
import logging

from minicaffe import entry_points
from minicaffe.blob import Dtype
from minicaffe.common import caffe
from minicaffe.errors import (
    ConfigError,
    MissingNameError,
    WrongTypeError,
    check_callable,
    check_type,
    close_matches,
    int_of,
    located,
    names_of,
    shown,
)
from minicaffe.memory import SyncedHead, empty_cache
from minicaffe.net import weights
from minicaffe.net.build import Builder
from minicaffe.net.definitions import chosen_layers, insert_splits
from minicaffe.net.run import Runner
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import replacing
from minicaffe.proto.fields import copy_of
from minicaffe.proto.upgrade import Definition
from minicaffe.proto.upgrade import load_net as read_net  # noqa: F401
from minicaffe.workspace import Workspace

log = logging.getLogger("minicaffe.net.build")


class cached_view(functools.cached_property):   # noqa: N801
    """A property that is computed at first access and kept: the nodes of a built net do not change."""

    def __set__(self, net, value):
        raise AttributeError(f"'{self.attrname}' of a net cannot be assigned")


class NamedDict(dict):
    """Parts of a net by name, in order. The error about a name that the net lacks says `what` it lacks, and near names.

    An item cannot be assigned: that would not change what the net computes.
    """

    def __init__(self, items, what):
        super().__init__(items)
        self._what = what

    def __missing__(self, name):
        raise MissingNameError(f"the net has no {self._what} {shown(name)}{close_matches(name, self)}")

    def __setitem__(self, name, value):
        raise WrongTypeError(f"Invalid assignment: the {self._what} {shown(name)} is the net's own; to set values write "
                             f"net.blobs[{name!r}].data[...] = array, of a parameter net.params[{name!r}][0].data[...] = array")

    def __reduce__(self):       # for copy and pickle: a copy is the program's own dict, which may be changed
        return dict, (list(self.items()),)


views = {}  # method -> ``module:class`` of its result; minicaffe/__init__.py sets it, as this folder imports no inspection


class Net(Runner):
    """A network built from a NetParameter, which is taken as it is (`read_net` reads and upgrades files).

    ``minicaffe.net.net.Net``, the base of the other class of this name: ``minicaffe.Net`` (``caffe.Net``, of pycaffe/net.py) reads
    prototxts of any age and has pycaffe's methods; it is the one for programs. Solvers and commands build this one.

    Parameters
    ----------
    param : NetParameter or Definition
        Its `state` says phase, level and stages; not changed. A Definition, which `read_net` returns, has file and positions, too.
    dtype : Dtype
        FLOAT or DOUBLE.
    workspace : Workspace, optional
        Owns the parameters (`parameters` of a net); nets with the same one share those of layers with one name. The net's blobs go
        into a child of it. It lists the net (`Workspace.nets`) without owning it.
    file : str, optional
        Named in errors.
    positions : Positions, optional
        Gives the line of each layer.
    trusted : bool
        False: the net may write no files, read none outside the working directory, and import no modules
        (`minicaffe.common.Caffe.check_path`, layers/python.py).
    skip_unknown_fields : bool
        Leave out, with a warning, fields of forks without which the net computes the same (docs/forks.md).
    plan : str, optional
        Permission for whole runs without hooks and `debug_info`: with ``"memory"`` blobs that are never needed at the same
        time share memory. Reading a blob whose memory was reused raises RecycledError.
    keep : sequence of str
        Names of blobs that stay readable with a plan, besides parameters, inputs, outputs and losses.
    force_backward : bool, optional
        In place of the message's.

    Attributes
    ----------
    nodes : list of Node
        The layers with their blobs, in the order in which they run; all other lists of layers and blobs are views of them.
    workspace, parameters : Workspace
        The owner of the blobs, and its parent, the owner of the parameters, by name.

    Raises
    ------
    ConfigError, ShapeError
        For anything that BVLC Caffe aborts on.
    WrongTypeError
        If `param`, `workspace` or `keep` is something else.
    """

    def __init__(self, param, dtype=Dtype.FLOAT, workspace=None, file=None, positions=None, trusted=True,
                 skip_unknown_fields=False, plan=None, keep=(), force_backward=None):
        if isinstance(param, Definition):
            param, positions, file = param.param, param.positions or positions, param.file or file
        check_type(param, caffe_pb2.NetParameter, "a net", "made from a NetParameter, or the Definition that read_net returns")
        keep = names_of(keep, "keep")
        if workspace is not None:
            check_type(workspace, Workspace, "workspace", "a Workspace")
        self.name, self.file, self.dtype, self.phase = param.name, file, dtype, param.state.phase
        self.state = copy_of(param.state)
        self.parameters = workspace if workspace is not None else Workspace()
        self.workspace = self.parameters.child(self.name)
        builder = Builder(self)
        with caffe.trusting(trusted):
            layers = chosen_layers(param, positions, file, skip_unknown_fields)
        if not layers:
            phase, count = caffe_pb2.Phase.Name(self.phase), len(param.layer)
            why = f"none of its {count} is for phase {phase}, its level and stages" if count else "there are none in the file"
            log.warning("%s: the net has no layers: %s", file or f"net '{self.name}'", why)
        with caffe.trusting(trusted):
            self.trusted = caffe.trusted
            for definition in insert_splits(layers, file, param):
                builder.add(definition)
        builder.finish(param.force_backward if force_backward is None else force_backward)
        self.output_blobs = [builder.available[name] for name in sorted(builder.available, key=str.encode)]
        for blob in self.output_blobs:
            log.info("This network produces output %s", blob.name)
        super().__init__(builder.nodes, builder.param_table, builder.overwritten, param.debug_info)
        self.set_plan(plan, [*self.output_blobs, *map(self.blob_by_name, keep)], self.phase == caffe_pb2.TRAIN)
        self.params_lr = self.param_table.multipliers("lr_mult")
        self.params_weight_decay = self.param_table.multipliers("decay_mult")
        try:
            weights.check_names(self)
        except ConfigError as error:
            log.warning("%s", error)
        self.parameters.add_net(self)
        log.info("Network initialization done.")

    def learned(self):
        """Return for each of `learnable_params` whether a layer computes its gradient: processes exchange no others."""
        wanted = {id(blob.diff_memory) for layer in self.layers
                  for blob, wants in zip(layer.blobs, layer.param_propagate_down) if wants}
        return [id(blob.diff_memory) in wanted for blob in self.learnable_params]

    # ---- views of the nodes

    @cached_view
    def layers(self):
        """The layers, in order."""
        return tuple(node.layer for node in self.nodes)

    @cached_view
    def layer_names(self):
        """The names of the layers."""
        return [node.name for node in self.nodes]

    @cached_view
    def layer_dict(self):
        """Layers by name, in order; of layers with one name the last."""
        return NamedDict(zip(self.layer_names, self.layers), "layer")

    @cached_view
    def bottoms(self):
        """For each layer the blobs that it reads."""
        return [node.bottoms for node in self.nodes]

    @cached_view
    def tops(self):
        """For each layer the blobs that it writes."""
        return [node.tops for node in self.nodes]

    @cached_view
    def blob_names(self):
        """The names of `blob_list`."""
        return [blob.name for blob in self.blob_list]

    @cached_view
    def blobs(self):
        """Blobs by name, in the order in which layers made them, those of splits included."""
        return NamedDict(((blob.name, blob) for blob in self.blob_list), "blob")

    @cached_view
    def input_blobs(self):
        """The tops of Input layers."""
        return [blob for node in self.nodes if node.type == "Input" for blob in node.tops]

    @cached_view
    def loss_weights(self):
        """The loss weight of each blob, 0 for most."""
        return {blob: weight for node in self.nodes for blob, weight in zip(node.tops, node.loss_weights)}

    def blob_by_name(self, name):
        """Return the blob called `name`. Raises MissingNameError, with near names, or WrongTypeError if `name` is no str."""
        return self.blobs[check_type(name, str, "name", "the name of a blob")]

    def layer_index(self, name):
        """Return the index of the layer called `name`, the last of several. Raises as `blob_by_name`."""
        return self.layers.index(self.layer_dict[check_type(name, str, "name", "the name of a layer")])

    def engines(self):
        """Return which engine computes each operation of the layers, in order (engines/engine.pyx).

        Returns
        -------
        list of dict
            `layer` and `operation` are names, `engine` is ``CAFFE``, ``CUDNN`` and so on, ``CUDNN/CAFFE`` where another engine
            computes a gradient, None before the first use; `refused` has by engine the reason why it does not compute this;
            `fused` names the later layers that the last run fused into this one, and the Concat whose slice it wrote.
        """
        return [{"layer": node.name, **operation.describe(), "fused": fused}
                for node, fused in zip(self.nodes, self.fused()) for operation in node.layer.operations()]

    def schedule(self):
        """Return what the net does in an iteration, step by step, as it is compiled for the present shapes, device and settings.

        Returns
        -------
        Listing
            See `minicaffe.inspection.schedule_table.Listing`; ``print(net.schedule())`` shows it.

        Raises
        ------
        ConfigError
            If the net cannot compute in the precision that is set.
        """
        with self.lock:
            return entry_points.import_target(views["schedule"])(self)

    def summary(self):
        """Return the table of the layers (`minicaffe.inspection.summary.Summary`), which ``print(net)`` and notebooks show.

        Returns
        -------
        Summary
            Engines and fused layers are those of `schedule`, layouts those of the last run.
        """
        return entry_points.import_target(views["summary"])(self)

    def __str__(self):
        return str(self.summary())

    def __repr__(self):
        inputs = ", ".join(f"{blob.name} {blob.shape}" for blob in self.input_blobs)
        return (f"<{type(self).__name__} {shown(self.name)}: phase {caffe_pb2.Phase.Name(self.phase)}, "
                f"{f'inputs {inputs}' if inputs else 'no inputs'}, {len(self.nodes)} layers>")

    def _repr_html_(self):      # called by notebooks
        return self.summary()._repr_html_()

    def release(self):
        """Free what the net needs only while it runs: blobs, scratch memory, batches made ready; all but parameters and inputs.

        The next forward allocates what the present shapes need; without `release` a net keeps the memory of its largest input so
        far. Before that forward, reading the data of a blob that a layer computes, as backward does, raises RecycledError, and
        the diffs of blobs are zeros, as in a new net. Inputs (tops of Input layers), losses, parameters, their gradients and the
        state of recurrent layers keep their values. Views of blobs that were taken before keep the old memory.
        """
        with self.lock:
            kept = {id(memory) for blob in self.param_table.params for memory in (blob.data_memory, blob.diff_memory)}
            inputs = set(self.input_blobs)      # a layer in place may have one as its top
            for node in self.nodes:
                node.layer.release_memory()
                for blob, weight in zip(node.tops, node.loss_weights):
                    if weight or id(blob.data_memory) in kept:  # a loss's weight is stored in its diff; a Parameter layer's top
                        continue
                    given = blob.cpu_data if blob in inputs and blob.data_memory.head != SyncedHead.UNINITIALIZED else None
                    blob.release(gone=blob not in inputs)
                    if given is not None:
                        blob.data[...] = given
            self.__dict__.pop("_feeder", None)
            self.forget_schedule()
        empty_cache()

    # ---- hooks

    def add_hook(self, when, hook):
        """Call ``hook(layer index)`` at BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD or AFTER_BACKWARD of every layer.

        Raises
        ------
        ConfigError
            If `when` is another number.
        WrongTypeError
            If `hook` cannot be called.
        """
        self._hooks_at(when).append(check_callable(hook, "hook"))

    def remove_hook(self, when, hook):
        """Remove a hook that `add_hook` added; without hooks a plan or a CUDA graph can be used again.

        Raises
        ------
        ConfigError
            If it was not added there.
        """
        hooks = self._hooks_at(when)
        if hook not in hooks:
            raise ConfigError(f"this hook was not added there, or was removed before: {shown(hook)}", field="hook")
        hooks.remove(hook)

    def _hooks_at(self, when):
        """Return the list of hooks called at `when`, BEFORE_FORWARD and so on; raise ConfigError for another number."""
        when = int_of(when, "when")
        if not 0 <= when < len(self.hooks):
            raise ConfigError(f"must be from 0 to {len(self.hooks) - 1}, BEFORE_FORWARD to AFTER_BACKWARD, got {shown(when)}",
                              field="when")
        return self.hooks[when]

    # ---- inputs (net/feed.py)

    @functools.cached_property
    def _feeder(self):
        """The Feeder, which keeps page-locked memory for the next batches; `release` frees it."""
        from minicaffe.net.feed import Feeder
        return Feeder()

    def feed(self, /, **arrays):
        """Copy arrays to inputs, on a GPU while earlier work still runs.

        The last write counts, by this or by ``net.blobs[name].data[...] = array``; views of `data` that were taken before may
        show the old values. Reading an input shows what was fed.

        Parameters
        ----------
        **arrays : array
            By the names of inputs, the tops of Input layers, of exactly their shapes. An array of the host, of any library and
            type of real numbers, may be changed or freed afterwards. One on the GPU (``__cuda_array_interface__``)
            must be contiguous and of the input's type; it is copied on the device, in order with the work of the stream that its
            interface names, or else of the legacy default stream.

        Raises
        ------
        MissingNameError
            If the net has no blob of that name.
        ConfigError, ShapeError, WrongTypeError, DeviceError
            If the blob is no input, or the array does not fit; then nothing was copied.
        """
        with self.lock:
            self._feeder.feed({name: (self._input(name), array) for name, array in arrays.items()})

    def _input(self, name):
        """Return the input called `name`, for `feed`: other blobs are overwritten by forward."""
        blob = self.blob_by_name(name)
        if blob not in self.input_blobs:
            raise ConfigError(f"must be an input of the net, a top of an Input layer; these are "
                              f"{[blob.name for blob in self.input_blobs]}", field=name)
        return blob

    # ---- weights (net/weights.py)

    def copy_from(self, path):
        """Load weights by layer name from a .caffemodel or an HDF5 file; layers the file lacks keep theirs.

        The log says which layers got weights, and which did not; ConfigWarning if none did.
        """
        with self.lock:
            weights.load(self, path).log_summary()

    def load_hdf5(self, path):
        """Load weights from an HDF5 file; every parameter of a layer that it names must be there."""
        with self.lock:
            weights.load(self, path, hdf5=True).log_summary()

    def save(self, path, write_diff=False, half=False):
        """Write a .caffemodel; a file of that name is replaced when the new one is whole.

        With `half` the parameters are rounded to float16, two bytes each, and stored as NVIDIA's fork and OpenCV store them. BVLC
        Caffe does not read such a file. DataError for a number beyond 65504.
        """
        with self.lock, replacing(path) as file, located(file=str(path)):
            weights.save(self, file, write_diff, half)

    def save_hdf5(self, path, write_diff=False):
        """Write the weights as HDF5; a file of that name is replaced when the new one is whole."""
        with located(file=str(path)), self.lock, replacing(path) as file:
            weights.save_hdf5(self, file, write_diff)

    def share_with(self, other):
        """Use the parameter memory of `other` for layers with the same name."""
        check_type(other, Net, "other", "a net")
        with self.lock:
            weights.share(self, other)
