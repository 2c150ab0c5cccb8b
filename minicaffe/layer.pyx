"""Layer: the contract between a net and the operations it is made of (Caffe layer.hpp), and the registry of their types.

A layer type is a class with `layer_setup` (once), `reshape` (whenever a shape changed), `forward_cpu` and
`backward_cpu`; in GPU mode `forward_gpu` and `backward_gpu` are called, which by default do the same on the CPU. A
`DeviceLayer` has one implementation for CPU and device. Bottom diffs are overwritten, parameter diffs are added to. Different
from Caffe: `reshape` is called only when the shape or memory of a bottom or top changed since the last call, unless the type sets
``always_reshape``.
"""

import importlib
import logging
import pkgutil

from minicaffe.blob cimport FLOAT, Blob, checked_dtype
from minicaffe.kernels.types cimport is_computed
from minicaffe.device.context cimport Context, context, cpu_context, on_device, settle
from minicaffe.loops.sums.caffe cimport dot
from minicaffe.memory.states cimport UNINITIALIZED

from minicaffe import entry_points
from minicaffe.blob import NUMPY_TYPES
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, RecycledError, ShapeError, WrongTypeError, check_message, check_type, int_of, shown
from minicaffe.filler import fill
from minicaffe.memory.synced import device_lock
from minicaffe.proto import unknown

log = logging.getLogger(__name__)
_warned_types = set()   # layer types that the log has reported as running on the CPU in GPU mode


cdef class Layer:
    """Base of all layer types.

    Parameters
    ----------
    param : LayerParameter
        Kept as the layer's own; its `phase` must be set.
    dtype : Dtype
        FLOAT or DOUBLE: the type of bottoms, tops and parameters.
    parameters : Workspace, optional
        Where the parameter blobs live. A blob that it holds already under ``<key>[<index>]`` is used as it is, so that
        the nets of one workspace share parameters.
    key : str, optional
        The layer's name in `parameters`; its own name unless given.
    """

    exact_num_bottom_blobs = -1     # -1, here and in the next five: no rule
    min_bottom_blobs = -1
    max_bottom_blobs = -1
    exact_num_top_blobs = -1
    min_top_blobs = -1
    max_top_blobs = -1
    equal_num_bottom_top_blobs = False
    auto_top_blobs = False          # the net adds unnamed tops up to the least number (net/build.py)
    refuses_in_place = False        # no top may be a bottom
    default_loss_weight = 0         # of the first top, where the file gives none
    always_reshape = False          # before each forward, as the shapes of the tops depend on values
    takes_unknown_fields = False  # fields that the messages lack (proto/fields.py) and the type reads: their paths, or True for all
    ignores_unit_axes = False   # stored parameters may have more or fewer axes of size 1 (net/weights.py)
    no_gradient = {}        # index of a bottom that gets none -> the word for its contents in an error
    backward_reads_bottoms = True   # their data; False: a plan may recycle it before backward (net/lifetimes.pyx)
    backward_reads_tops = True
    overwrites_outputs = False      # forward writes its tops whole, backward the diffs of its bottoms: a plan may recycle them
    parts = ()              # for each bottom its ConcatSlice of the top, where its layer may write it (engines/epilogue.pyx)
    reads_shapes_only = False   # the values of its bottoms do not matter
    test_outputs = None     # a class as OutputMeans of solver/report.py that reports the tops in a test; None: their means
    host_only = False       # runs on the host by nature, such as a data source: nothing is missing on a GPU

    def __init__(self, param, dtype=FLOAT, parameters=None, key=None):
        self.num_bottoms = self.num_tops = -1
        self.dtype = checked_dtype(dtype)
        if not is_computed(self.dtype):
            raise ConfigError(f"layers do not compute on {NUMPY_TYPES[self.dtype]}; give FLOAT or DOUBLE", field="dtype")
        self.param = check_message(param, "LayerParameter", "param")
        self.name = param.name
        self.type = param.type
        self.phase = param.phase
        self.blobs = []
        self.param_propagate_down = []
        self.loss_weights = []
        self.generator = caffe.generator
        self.parameters = parameters
        self.key = check_type(key, str, "key", "a str") if key else self.name

    # ---- what a layer type defines

    cpdef layer_setup(self, list bottom, list top):
        """Read the layer's parameters, check them, make the parameter blobs. Called once, before the first reshape."""
        return

    cpdef reshape(self, list bottom, list top):
        """Give the tops and the scratch blobs the shapes that follow from the bottoms'; called by `set_up` and `refresh`."""
        raise Error(f"layer type {self.type} does not define reshape(bottom, top)")

    cpdef forward_cpu(self, list bottom, list top):
        """Compute the data of the tops from the data of the bottoms."""
        raise Error(f"layer type {self.type} does not define forward_cpu(bottom, top)")

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        """Overwrite the diffs of the bottoms for which propagate_down is true; add to the diffs of the parameters."""
        raise ConfigError(f"layer type {self.type} has no gradient; cut it off with propagate_down: false, and build the net "
                          "without force_backward")

    cpdef forward_gpu(self, list bottom, list top):
        """Compute the tops in GPU mode; a type without an implementation for it runs on the CPU, which the log says once."""
        if not self.host_only and self.type not in _warned_types:
            _warned_types.add(self.type)
            log.warning("layer type %s has no GPU path; it runs on the CPU (first: layer '%s')", self.type, self.name)
        self.forward_cpu(bottom, top)

    cpdef backward_gpu(self, list top, list propagate_down, list bottom):
        """Compute the gradients in GPU mode; see `forward_gpu`."""
        self.backward_cpu(top, propagate_down, bottom)

    def operations(self):
        """Return the layer's operations, which engines compute (engines/engine.pyx), as a list; [] if no engine computes for it."""
        return []

    def scratch_blobs(self):
        """Return the layer's own blobs that `release_memory` may free, as forward writes them before it or backward reads them."""
        return []

    def scratch_memory(self):
        """Return what a CUDA graph keeps alive (net/recorded.py): blocks of scratch on the device, primitives of engines."""
        cdef Blob blob
        operations = self.operations()
        blobs = [*self.scratch_blobs(), *(blob for operation in operations for blob in operation.own_blobs())]
        blocks = [block for blob in blobs for memory in (blob.data_memory, blob.diff_memory) for block in memory.blocks_on_device()]
        return [*blocks, *(primitive for operation in operations for primitive in operation.primitives())]

    def release_memory(self):
        """Free scratch memory, data for backward and what engines prepared (`Net.release`); the next forward makes them again."""
        for operation in self.operations():
            operation.release()
        for blob in self.scratch_blobs():
            blob.release()
        for blob in self.blobs:
            (<Blob?> blob).data_memory.free_scaled()
        self.reshaped_stamp = self.forward_counts = 0      # backward raises until a forward has made ready for it

    def fuse(self, epilogue, list bottom, bint backward):
        """Fuse this layer into the one below: add its function to the Epilogue (engines/epilogue.pyx), and return True.

        Return False, the default, if the layer must run alone: the epilogue cannot compute it, or its own backward will run
        (`backward`) and needs data that only its own forward saves. Nets call it for a schedule, and before a fused forward if a
        parameter has changed.
        """
        return False

    def counted_shares(self, bottom):
        """Return {index of a top: share of the last batch that its means cover}, if not 1; solver/report.py weights by it."""
        return {}

    def capture_obstacle(self):
        """Return why a CUDA graph cannot hold this layer, as words for a log of the net; None if it can."""
        return None if self.host_only or isinstance(self, DeviceLayer) else "it runs on the CPU"

    cpdef inspect(self, list bottom):
        """Check on the host what forward checks there; called before each replay of a CUDA graph, which checks nothing."""
        return

    def multiply_adds(self, bottom, top):
        """Return how many products of a weight and a value forward adds up, for `flops`; 0 for a type without them."""
        return 0

    def flops(self, bottom, top):
        """Return the floating-point operations of forward: two a multiply-add, else one an element of the largest blob."""
        self.check_blobs(as_blob_list(bottom, "bottom"), as_blob_list(top, "top"))
        return 2 * self.multiply_adds(bottom, top) or (
            0 if self.host_only else max([blob.count for blob in [*bottom, *top]], default=0))

    def backward_flops(self, bottom, top, needs):
        """Return the floating-point operations of backward; `needs`: for each bottom whether it gets a gradient."""
        cdef object products = 2 * self.multiply_adds(bottom, top), values = self.flops(bottom, top)
        cdef object flops = sum(needs) * (products // max(len(bottom), 1) or values)
        if self.needs_gradient(0) and self.blobs:
            flops += values
        for i in range(1, len(self.blobs)):
            if self.needs_gradient(i):
                flops += sum(blob.count for blob in top)    # of a bias
        return flops

    def allow_force_backward(self, bottom_index):
        """Return whether ``force_backward``, the net's field for gradients of all blobs, may compute one of this bottom."""
        return bottom_index not in self.no_gradient

    def get_state(self):
        """Return what a resumed training needs beyond parameters, such as a data position, as a dict for JSON; or None."""
        return None

    def set_state(self, state):
        """Restore what `get_state` returned."""
        raise ConfigError(f"layer type {self.type} keeps no state, the snapshot has {state!r}")

    # ---- what a net calls

    def set_up(self, bottom, top):
        """Check the numbers of blobs, then layer_setup, reshape, and the loss weights (Caffe Layer::SetUp)."""
        bottom, top = as_blob_list(bottom, "bottom"), as_blob_list(top, "top")
        self.check_blob_counts(len(bottom), len(top))
        self.num_bottoms, self.num_tops = len(bottom), len(top)
        self.check_blobs(bottom, top)
        for i, blob in enumerate(top if self.refuses_in_place else ()):
            if any(blob is other for other in bottom):
                raise ConfigError(f"{self.type} cannot work in place; give the top a name of its own", field=f"top[{i}]")
        self.layer_setup(bottom, top)
        if len(self.param.blobs) not in (0, len(self.blobs)):
            raise ConfigError(f"give none or {len(self.blobs)}, got {len(self.param.blobs)}", field="blobs")
        self.reshape(bottom, top)
        self.reshaped_stamp, self.forward_counts = stamps(bottom, top), _sizes(bottom, top)
        self._set_loss_weights(top)

    def check_blob_counts(self, bottoms, tops):
        """Raise ConfigError unless the type takes that many bottoms and tops."""
        bottoms, tops = int_of(bottoms, "bottoms"), int_of(tops, "tops")
        for what, got, exact, least, most in (
                ("bottom", bottoms, self.exact_num_bottom_blobs, self.min_bottom_blobs, self.max_bottom_blobs),
                ("top", tops, self.exact_num_top_blobs, self.min_top_blobs, self.max_top_blobs)):
            if exact >= 0 and got != exact:
                raise ConfigError(f"{self.type} takes exactly {exact}, got {got}", field=what)
            if least >= 0 and got < least:
                raise ConfigError(f"{self.type} takes at least {least}, got {got}", field=what)
            if most >= 0 and got > most:
                raise ConfigError(f"{self.type} takes at most {most}, got {got}", field=what)
        if self.equal_num_bottom_top_blobs and bottoms != tops:
            raise ConfigError(f"{self.type} needs as many tops as bottoms, got {tops} and {bottoms}", field="top")

    def _set_loss_weights(self, list top):
        """Store each non-zero loss weight as the diff of its top, where forward and backward read it."""
        given = list(self.param.loss_weight)
        if not given and self.default_loss_weight and top:
            self.param.loss_weight.append(self.default_loss_weight)
            given = [self.default_loss_weight] + [0] * (len(top) - 1)
        if given and len(given) != len(top):
            raise ConfigError(f"give none or one for each of the {len(top)} tops, got {len(given)}", field="loss_weight")
        self.loss_weights = given or [0] * len(top)
        self.has_loss = any(self.loss_weights)
        for weight, blob in zip(self.loss_weights, top):
            if weight:
                blob.diff[...] = weight

    cdef int check_blobs(self, list bottom, list top) except -1:
        """Raise unless these are as many blobs as `set_up` had: the code that computes indexes the lists without checks."""
        if bottom is None or top is None or len(bottom) != self.num_bottoms or len(top) != self.num_tops:
            if self.num_bottoms < 0:
                raise ConfigError(f"layer '{self.name}' was not set up; call set_up(bottom, top) first, or use it in a net")
            raise WrongTypeError(f"layer '{self.name}' was set up with {self.num_bottoms} bottoms and {self.num_tops} tops; "
                                 f"give it lists of as many blobs, got {shown(bottom)} and {shown(top)}")
        for blobs in (bottom, top):
            for blob in <list> blobs:
                if not isinstance(blob, Blob):
                    raise WrongTypeError(f"bottoms and tops are lists of Blob, got {shown(blob)} ({type(blob).__name__}) in one")
        return 0

    cdef int refresh(self, list bottom, list top) except -1:
        """Reshape if a blob got another shape or memory since the last time; a net calls it before each forward (net/node.pyx)."""
        if self.always_reshape or stamps(bottom, top) != self.reshaped_stamp:
            self.reshape(bottom, top)
            if self.has_loss:
                renew_loss_weights(self.loss_weights, top)
            self.reshaped_stamp, self.forward_counts = stamps(bottom, top), _sizes(bottom, top)

    cdef int finish_forward(self, list bottom, list top) except -1:
        """Update views of tops that an engine wrote in a layout of its own, and store the sizes for which backward has memory."""
        cdef Blob blob
        for blob in top:
            blob.data_memory.publish_private()
        self.forward_counts = _sizes(bottom, top)

    cdef double loss_of(self, list top) except? -1:
        """Return the layer's share of the loss: the sum of its tops times their loss weights, which are their diffs."""
        cdef double loss = 0, share
        cdef Blob blob
        cdef int i
        for i in range(len(top)):
            if self.loss_weights[i]:
                blob = top[i]
                dot(cpu_context(), self.dtype, blob.count, &share, blob.cpu_data_ptr(), blob.cpu_diff_ptr())
                loss += share
        return loss

    cdef int check_forward_done(self, list bottom, list top) except -1:
        """Raise if a blob has another size than at the last forward or reshape; a net calls it before backward."""
        if self.forward_counts == 0:
            raise RecycledError("the data that the last forward kept is gone: after net.release() or a reshape run forward first")
        if _sizes(bottom, top) != self.forward_counts:
            raise ShapeError("a bottom or top was reshaped since the last forward; run forward before backward")

    cdef int finish_backward(self, list bottom) except -1:
        """Update views of gradients, of bottoms and parameters, that an engine wrote in a layout of its own."""
        cdef Blob blob
        for blob in [*bottom, *self.blobs]:
            blob.diff_memory.publish_private()

    cdef int run_forward(self, list bottom, list top) except -1:
        """Compute the tops in the present mode, CPU or GPU, and finish forward; for a net and for layers that contain others."""
        if on_device():
            self.forward_gpu(bottom, top)
        else:
            self.forward_cpu(bottom, top)
        self.finish_forward(bottom, top)

    cdef int run_backward(self, list top, list propagate_down, list bottom) except -1:
        """Compute the gradients in the present mode, CPU or GPU, and finish the backward, as `run_forward`."""
        if on_device():
            self.backward_gpu(top, propagate_down, bottom)
        else:
            self.backward_cpu(top, propagate_down, bottom)
        self.finish_backward(bottom)

    # ---- what layer types use

    cdef bint needs_gradient(self, int index):
        """Return whether parameter `index` gets a gradient: all do, unless a net has set `param_propagate_down` (lr_mult 0)."""
        return index >= len(self.param_propagate_down) or self.param_propagate_down[index]

    def add_param(self, shape, filler, filler_field):
        """Append a parameter blob to `blobs` and return it; for `layer_setup`. `filler_field` is the path of `filler`, for errors.

        Its values come from the layer definition if that embeds blobs, else from the workspace if another net made the
        parameter already, else from `filler`.

        Raises
        ------
        ShapeError, ConfigError
            If the blob found has another shape, or the filler is wrong; names ``blobs[i]`` or the filler's field.
        """
        check_message(filler, "FillerParameter", "filler")
        check_type(filler_field, str, "filler_field", "a str")
        cdef int index = len(self.blobs)
        cdef Blob blob
        key = f"{self.key}[{index}]"
        if index < len(self.param.blobs):
            blob = Blob(shape, self.dtype, f"{self.name}[{index}]")
            try:
                blob.from_proto(self.param.blobs[index], reshape=False)
            except Error as error:
                raise error.at(field=f"blobs[{index}]")
        elif self.parameters is not None and self.parameters.has(key):
            blob = check_type(self.parameters.blob(key), Blob, key, "a Blob")
            if blob.shape != tuple(shape) or blob.dtype != self.dtype:
                raise ShapeError(f"has shape {list(shape)} and {NUMPY_TYPES[self.dtype]}, and {list(blob.shape)} and "
                                 f"{NUMPY_TYPES[blob.dtype]} in the net that it shares its parameters with; build the "
                                 "nets in a Workspace() each if they are to have parameters of their own; to share them, give "
                                 "both inputs of one size and this layer the same parameters and type, or if that net is gone, "
                                 f"remove '{key}' from the workspace", field=f"blobs[{index}]")
            self.blobs.append(blob)
            return blob
        else:
            blob = Blob(shape, self.dtype, f"{self.name}[{index}]")
            fill(blob, filler, self.generator, filler_field)
        if self.parameters is not None:
            self.parameters.set(key, blob)
        self.blobs.append(blob)
        return blob

    def new_blob(self, shape=(0,), what="scratch"):
        """Return a new blob for scratch memory, in `scratch_blobs` if it may be freed; `what` is its name in memory reports."""
        return Blob(shape, self.dtype, f"{self.name} {what}")


cdef class DeviceLayer(Layer):
    """A layer with one implementation for CPU and device: operations of minicaffe/ops take the context on which they run."""

    overwrites_outputs = True

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        """Compute the tops on the device of `on`, or on the CPU if its stream is NULL; `Blob.data_on(on)` etc. give pointers."""
        raise Error(f"layer type {self.type} does not define forward_on")

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        """Compute the gradients where `forward_on` would: overwrite those of bottoms, add to those of parameters."""
        Layer.backward_cpu(self, top, propagate_down, bottom)

    cdef bint starts_backward(self, list top, list propagate_down, list bottom) except -1:
        """Check the lists of a backward (`check_blobs`); raise if `propagate_down` is true for a bottom of `no_gradient`.

        Return whether there is a gradient to compute: without one `backward_on` is not called, unless the layer has parameters.
        """
        self.check_blobs(bottom, top)
        if propagate_down is None or len(propagate_down) < self.num_bottoms:
            raise WrongTypeError(f"propagate_down must be a list of a bool for each of the {self.num_bottoms} bottoms of layer "
                                 f"'{self.name}', got {shown(propagate_down)}")
        for i, what in self.no_gradient.items():
            if propagate_down[i]:
                raise ConfigError(f"{self.type} has no gradient for {what}; set propagate_down: false", field=f"bottom[{i}]")
        return len(self.blobs) or any(propagate_down[:self.num_bottoms])

    cpdef forward_cpu(self, list bottom, list top):
        self.check_blobs(bottom, top)
        self.forward_on(cpu_context(), bottom, top)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if self.starts_backward(top, propagate_down, bottom):
            self.backward_on(cpu_context(), top, propagate_down, bottom)

    cpdef forward_gpu(self, list bottom, list top):    # the kernels run later, in order of the stream
        self.check_blobs(bottom, top)
        cdef Context on = context()
        with device_lock:       # one operation at a time, of all threads
            self.forward_on(on, bottom, top)
            settle(on)      # raises the error of a launch

    cpdef backward_gpu(self, list top, list propagate_down, list bottom):    # as `forward_gpu`
        if not self.starts_backward(top, propagate_down, bottom):
            return
        cdef Context on = context()
        with device_lock:
            self.backward_on(on, top, propagate_down, bottom)
            settle(on)


cdef int renew_loss_weights(list weights, list top) except -1:
    """Store again the loss weights of tops whose diff is new memory after a reshape (Caffe forgot them)."""
    cdef Blob blob
    for weight, blob in zip(weights, top):
        if weight and blob.diff_memory.head == UNINITIALIZED:
            blob.diff[...] = weight
    return 0


cdef list as_blob_list(blobs, str what):
    """Return the argument `what` of a public method; raise WrongTypeError unless it is a list. `check_blobs` checks its items."""
    return check_type(blobs, list, what, "a list of Blob")


cdef unsigned long long stamps(list bottom, list top):
    """Return a number that changes when a blob gets another shape or memory: the sum of their stamps, which only grow."""
    cdef unsigned long long total = 0
    cdef Blob blob
    for blob in bottom:
        total += blob.stamp
    for blob in top:
        total += blob.stamp
    return total


cdef unsigned long long _sizes(list bottom, list top):
    """Return a hash (FNV-1a) of the counts, by which `check_forward_done` recognizes a blob of another size."""
    cdef unsigned long long total = 14695981039346656037ull
    cdef Blob blob
    for blob in bottom:
        total = (total ^ <unsigned long long> blob.count) * 1099511628211ull
    for blob in top:
        total = (total ^ <unsigned long long> blob.count) * 1099511628211ull
    return total


# ---- the registry

_types = {}     # name -> class of the types found so far: in the core's files, in add-ons, registered by the program
_modules = {}   # name of a type of the core in lower case -> its module, imported or not
_all_found = False     # all of `_modules` are imported


def find_types_in(package, path):
    """Make the modules of a package layer types of the core; a type has the name of its module, which its first use imports."""
    _modules.update((name.rpartition(".")[2].replace("_", ""), name) for _, name, _ in pkgutil.walk_packages(path, f"{package}.")
                    if not name.startswith(f"{package}.base"))
    unknown.core_types.update(_modules)


def register_layer(name, layer_class):
    """Make `layer_class`, a subclass of Layer, the layer type called `name`.

    Raises
    ------
    ConfigError
        If the name is taken by another class, or the class is no Layer.
    """
    check_type(name, str, "name", "the name of a layer type")
    if name not in _types:
        _find(name)
    _register(name, layer_class)
    unknown.types_of_program.add(name)


def _register(name, layer_class):
    """Add a type to `_types`, or raise ConfigError, as `register_layer`; the core and add-ons are not searched for the name."""
    if not (isinstance(layer_class, type) and issubclass(layer_class, Layer)):
        raise ConfigError(f"a layer type is a subclass of Layer, got {shown(layer_class)}", field=name)
    if _types.setdefault(name, layer_class) is not layer_class:
        raise ConfigError(f"layer type '{name}' is registered already, by {_types[name].__module__}", field=name)


def layer_types():
    """Return all layer types as a dict from name to class, sorted by name: those of the core, of add-ons and of the program."""
    global _all_found
    if not _all_found:
        for module in _modules.values():
            _load(module)
        _all_found = True
    for name in entry_points.additions("layers"):
        _find(name)
    return dict(sorted(_types.items()))


cdef int _load(str module) except -1:
    """Import a module, and register its type: ``AbsValLayer`` of absval.pyx is the type AbsVal."""
    wanted = module.rpartition(".")[2].replace("_", "") + "layer"
    for name, value in vars(importlib.import_module(module)).items():
        if name.lower() == wanted:
            _register(name.removesuffix("Layer"), value)
    return 0


cdef int _find(str name) except -1:
    """Import the module of a layer type of the core or, if that has none, of an add-on into `_types`; nothing if there is none."""
    if name.lower() in _modules:
        _load(_modules[name.lower()])
    if name not in _types and (found := entry_points.find("layers", name)) is not None:
        try:
            _register(name, entry_points.import_target(found.value))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"'{name}' is of add-on '{found.addon}' of package {found.package}, whose {found.value} fails: "
                              f"{text}", field="type") from error
    return 0


def layer_class(name):
    """Return the class of a layer type.

    Raises
    ------
    ConfigError
        For an unknown type; names the forks that have it, near names, or all.
    """
    check_type(name, str, "name", "the name of a layer type")
    if name not in _types:
        _find(name)
    if name not in _types:
        raise ConfigError(f"unknown layer type '{name}'{unknown.about_layer(name, layer_types())}", field="type")
    return _types[name]
