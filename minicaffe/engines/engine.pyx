"""Operations, and the choice of the engine that computes them.

A layer describes a computation as an Operation: plain data, set at reshape. The engines in engines/table.py are tried in order. The
first that is selected, supports the operation and is not slower than later ones makes a Primitive, which gets blobs and fetches
the pointers that it needs. It may still raise Refusal (a library's "not supported") when it is made or computes. Then the next
engine computes that gradient, or the whole operation if forward is refused. The last engine computes every operation.

The choice is made at the first use after a reshape, and again if the settings, the number of threads or the device change.
In a Context `on`, ``on.stream`` is NULL on the CPU, else the stream of a device.
"""

import logging
import os

from minicaffe.blob cimport FLOAT
from minicaffe.device.context cimport context, on_device

from minicaffe.errors import ConfigError, DependencyError, Error, ShapeError, check_type, switched_on
from minicaffe.memory.registry import registry
from minicaffe.engines.table import ENGINES, LAST, load_engines

cdef extern from *:
    """static inline void rethrow() { throw; }"""
    void rethrow() except +     # throw the C++ exception of the `except +refuse` again, for Cython to convert it

DEFAULT = 0     # the field `engine` of layers that name none
# Precision -> where it is available, for errors; float32 is available everywhere.
PRECISIONS = {"float32": "", "tf32": "a GPU of compute capability 8.0 or more",
              "bf16": "the CPU, or a GPU of compute capability 8.0 or more"}
log = logging.getLogger(__name__)
_logged_refusals = set()
_preferred = None   # the engine of layers with engine DEFAULT; "" for none; None: as MINICAFFE_ENGINE says
_precision = None   # of layers over float32; None: as MINICAFFE_PRECISION says
_precision_field = None     # "precision" or "MINICAFFE_PRECISION", whichever set it, for errors
precision_listeners = []    # functions to call after each change of the precision (cuda/libraries.pyx)
_exact = None       # whether the CPU computes convolutions only by sums of products; None: as MINICAFFE_EXACT says
cdef unsigned _epoch = 1


class Refusal(Error):
    """An engine does not compute an operation; the message says why."""


cdef int refuse() except -1:
    """Convert the C++ exception of an engine's header to a Refusal: declare its functions with ``except +refuse``."""
    try:
        rethrow()
    except RuntimeError as error:
        raise Refusal(str(error)) from None


cdef class Primitive:
    """The implementation of one operation by one engine, which overrides the passes that it computes.

    An Operation calls the passes. `bottom` and `top` are the layer's blobs, `weight` and `bias` its parameters, or None.
    """

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Compute the top, with the epilogue of `operation` if there is one that it can compute (engines/epilogue.pyx)."""
        raise Refusal("no forward pass")

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Overwrite the bottom's gradient."""
        raise Refusal("no backward pass")

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Add to the gradients of weight and bias; a blob is None if its gradient is not needed."""
        raise Refusal("no gradients of parameters")

    cdef int backward_both(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """As `backward` and `backward_params`, if `has_backward_both`; bias may be None. It must not raise Refusal."""
        raise Refusal("no gradients at once")


cdef class Operation:
    """The description of a computation, and the primitives that compute it.

    Parameters
    ----------
    dtype : Dtype
        The type of all blobs.
    engine : int
        The layer's field: DEFAULT, or an engine's `layer_field`.
    """

    epilogue_class = None       # the class of epilogues that some engine computes (engines/epilogue.pyx); None: none
    fuses_backward = False             # whether backward of a layer in place can compute the gradients of its epilogue, too
    streams_weight_gradient = False     # whether some engine passes the gradient of the weights to `consumer`, part by part

    def __cinit__(self, Dtype dtype, int engine=DEFAULT):
        self.dtype, self.engine = dtype, engine
        self.refusals = {}

    cdef int changed(self) except -1:
        """Discard the choice of engines: a layer calls it when it has changed the description, in reshape."""
        self.forward_impl = None
        return 0

    cdef bint fuses(self, const Context& on, Blob bottom, Blob top) except -1:
        """Choose the engine; return whether its forward can compute an epilogue: net/compile.pyx calls it for the layers behind."""
        if not self.has_engines():      # the layer itself computes it, with the epilogue
            return True
        self.choose(on, bottom)
        return self.forward_impl.fuses

    cdef bint has_engines(self):
        """Return whether engines compute this operation, at least CAFFE, the last one; if not, its layer does (Eltwise's sum)."""
        return type(self) in LAST.kinds

    cdef bint fuses_sum(self) noexcept:
        """Return whether forward of the chosen engine can compute an epilogue that adds another blob; called after `fuses`."""
        return self.forward_impl is not None and self.forward_impl.fuses_sum

    cdef int forward(self, const Context& on, Blob bottom, Blob top, Blob weight=None, Blob bias=None) except -1:
        """Compute the top; if the chosen engine refuses, by the next one, which then computes the gradients, too."""
        self.choose(on, bottom)
        self.forward_done_by = self.forward_impl
        try:
            return self.forward_impl.forward(on, self, bottom, top, weight, bias)
        except Refusal as refusal:
            self.forward_impl = self.backward_impl = self.weights_impl = self._next_primitive(self.forward_impl, refusal)
        finally:
            end_scratch(self)
        return self.forward(on, bottom, top, weight, bias)

    cdef int backward(self, const Context& on, Blob bottom, Blob top, Blob weight=None, Blob bias=None) except -1:
        """Overwrite the bottom's gradient."""
        self.choose_engines(on, bottom)
        if self.saves_for_backward and self.backward_impl is not self.forward_done_by:      # forward again, to store its data
            self.forward_impl = self.weights_impl = self.backward_impl
            self.forward(on, bottom, top, weight, bias)
        try:
            return self.backward_impl.backward(on, self, bottom, top, weight, bias)
        except Refusal as refusal:
            self.backward_impl = self._next_primitive(self.backward_impl, refusal)
        finally:
            end_scratch(self)
        return self.backward(on, bottom, top, weight, bias)

    cdef int backward_params(self, const Context& on, Blob bottom, Blob top, Blob weight, Blob bias=None) except -1:
        """Add to the gradients of weight and bias; a blob is None if its gradient is not needed."""
        self.choose_engines(on, bottom)
        try:
            return self.weights_impl.backward_params(on, self, bottom, top, weight, bias)
        except Refusal as refusal:
            self.weights_impl = self._next_primitive(self.weights_impl, refusal)
        finally:
            end_scratch(self)
        return self.backward_params(on, bottom, top, weight, bias)

    cdef int backward_both(self, const Context& on, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Do `backward` and `backward_params`, in one call if that takes less time; `bias` may be None."""
        self.choose_engines(on, bottom)
        if self.backward_impl is not self.weights_impl or not self.backward_impl.has_backward_both:
            self.backward(on, bottom, top, weight)      # first, as a consumer of gradients may change the parameters
            return self.backward_params(on, bottom, top, weight, bias)
        try:
            return self.backward_impl.backward_both(on, self, bottom, top, weight, bias)
        finally:
            end_scratch(self)

    cdef int choose(self, const Context& on, Blob bottom) except -1:
        """Choose the engine of the next forward, unless nothing that the choice depends on has changed since the last one."""
        cdef Layout layout = bottom.data_memory.layout() if self.depends_on_layout else None
        if layout is not None and layout.on_device != (on.stream != NULL):
            layout = None       # it is converted to plain order for this mode
        if self.epoch != _epoch or self.threads != on.threads.count or self.layout is not layout:
            self.forward_impl, self.layout = None, layout
        return self.choose_engines(on, bottom)

    cdef int choose_engines(self, const Context& on, Blob bottom) except -1:
        """Choose the engine of all passes if none is chosen for this device; backward keeps that of forward if settings change."""
        cdef bint stale = self.forward_done_by is None and (self.epoch != _epoch or self.threads != on.threads.count)
        if self.forward_impl is None or self.device != (on.stream != NULL) or stale:
            if self.dtype == FLOAT:
                check_place(on)
            self.epoch, self.threads = _epoch, on.threads.count
            self.device, self.empty = on.stream != NULL, bottom.count == 0
            self.refusals = {}
            self.forward_impl = self.backward_impl = self.weights_impl = self._choose(self.device)
        return 0

    def names_engine(self):
        """Return whether the layer or `preferred` names an engine: it is used where it is slower, too; refusals are warnings."""
        return self.engine != DEFAULT or preferred() != ""

    def precision(self):
        """Return the precision of the computation: that of `get_precision` for float32 blobs; float64 counts as "float32"."""
        return get_precision() if self.dtype == FLOAT else "float32"

    def _choose(self, bint device):
        """Return the primitive of the first engine that computes this operation, on a `device` or the CPU, and is not slower.

        Engines of the present precision come first. The last engine computes everything. Reasons of the others go to `refusals`.
        """
        cdef Primitive made
        load_engines()
        requested, precision = preferred(), self.precision()
        for name, engine in sorted(ENGINES.items(), key=lambda item: precision not in item[1].precisions):
            if (not (engine.on_gpu if device else engine.on_cpu) or name in self.refusals or self.empty and not engine.takes_empty
                    or engine is not LAST and not engine.is_wanted(self.engine, requested)
                    or type(self) not in engine.computed_kinds()):
                continue
            make, refuses, slower = engine.kinds[type(self)]
            reason = self.dtype != FLOAT and engine.no_float64 or refuses(self)
            if not reason and not self.names_engine() and (reason := slower(self)):
                reason += f"; MINICAFFE_ENGINE={name.lower()} computes them all the same"
            if not reason:
                try:
                    made = make(self)
                    made.engine = name
                    if engine.plain:
                        made.plain, made.fuses = True, False
                    return made
                except (Refusal, DependencyError) as refusal:
                    reason = refusal.message
            self._record_refusal(name, reason)

    def _next_primitive(self, Primitive primitive, refusal):
        """Return the primitive of the next engine, after `primitive` raised `refusal`; raise that after the last engine."""
        if primitive.engine == LAST.name:
            raise refusal
        self._record_refusal(primitive.engine, refusal.message)
        return self._choose(self.device)

    def _record_refusal(self, engine, reason):
        """Store that `engine` does not compute this, so that it is not tried again; each reason is logged once."""
        self.refusals[engine] = reason
        named = self.names_engine()
        lost = (not self.depends_on_layout and self.precision() in ENGINES[engine].precisions
                and self.precision() not in LAST.precisions)
        level = logging.WARNING if named or lost else logging.DEBUG
        if (engine, reason, level) not in _logged_refusals:
            _logged_refusals.add((engine, reason, level))
            log.log(level, "engine %s refuses: %s; %s", engine, reason,
                    f"engine {LAST.name} computes instead" if named else "float32 instead" if lost else "the next is tried")

    cdef void* scratch(self, const Context& on, long long count) except? NULL:
        """Return scratch memory of at least `count` elements of `dtype`, on the CPU or the device, with undefined contents.

        Primitives call it; `end_scratch` frees it after the pass. NULL if `count` is 0.
        """
        if count == 0:
            return NULL
        if self.memory is None:
            self.memory = Blob((0,), self.dtype, "scratch")
        if self.memory.count < count:
            self.memory.reshape_to((count,))
        return shared_scratch(self.memory).mutable_data_on(on)

    cdef Blob keep(self, shape):
        """Return `kept`, of this shape and to be overwritten, in which a primitive's forward stores data for its backward."""
        if self.kept is None:
            self.kept = Blob((0,), self.dtype, "[kept for backward]")
        self.kept.reshape_to(shape)
        return shared_scratch(self.kept)

    cdef int free_kept(self) except -1:
        """Free the kept data, in a net with a plan (net/schedule.pyx): after backward, or after a forward that is for testing."""
        if self.kept is not None:
            self.kept.data_memory.recycle()
        return 0

    def own_blobs(self):
        """Return the existing blobs of scratch memory and of kept data, whose blocks a recorded CUDA graph must keep alive."""
        return [blob for blob in (self.memory, self.kept) if blob is not None]

    def primitives(self):
        """Return the primitives in use, which a recorded CUDA graph must keep alive."""
        return [made for made in (self.forward_impl, self.backward_impl, self.weights_impl, self.forward_done_by)
                if made is not None]

    def release(self):
        """Free scratch memory, kept data and primitives, for `Layer.release_memory`; the next forward chooses engines again."""
        self.memory = self.kept = None      # delete the blobs, as scratch memory has the size of the largest array so far
        self.forward_impl = self.backward_impl = self.weights_impl = self.forward_done_by = None

    def describe(self):
        """Return a dict for displays (Net.engines, schedules): `operation`, `engine`, and `refused`, the reasons by engine.

        `engine` is None before the first use, and ``ONEDNN/CAFFE`` if CAFFE computes what ONEDNN refused, such as a gradient.
        """
        made = (self.forward_impl, self.backward_impl, self.weights_impl) if self.forward_impl is not None else ()
        names = [one.engine for one in made]
        return {"operation": type(self).__name__, "engine": "/".join(dict.fromkeys(names)) or None, "refused": dict(self.refusals)}


cdef Blob shared_scratch(Blob blob):
    """Return `blob`, to be overwritten, for `scratch` and `keep`: on the CPU in the pool from which plans have their memory."""
    blob.data_memory.renew()
    blob.data_memory.pool, blob.data_memory.skip_zero_fill = registry.host_pool(), True
    return blob


def saved_bottom(Blob kept, Blob bottom):
    """Return `kept`, in which forward left the bottom of a layer in place, for backward.

    Raises ShapeError if it is None, or of another shape: forward has not run since the layer was made, released or reshaped.
    """
    if kept is None or not kept.same_shape(bottom):
        raise ShapeError(f"forward has not run for a bottom of shape {list(bottom.shape)}, and backward of a layer in place needs "
                         "the bottom that it kept; run forward before backward", field="bottom[0]")
    return kept


cdef int end_scratch(Operation operation) except -1:
    """Return the scratch memory of an operation to the pool, at the end of each pass, for others."""
    if operation.memory is not None:
        operation.memory.data_memory.recycle()
    return 0


def get_exact():
    """Return whether convolutions on the CPU are computed only by sums of products, as set by `set_exact` or MINICAFFE_EXACT."""
    global _exact
    if _exact is None:
        _exact = switched_on("MINICAFFE_EXACT")
    return _exact


def set_exact(exact=True):
    """Set whether convolutions on the CPU are computed only by sums of products, without engine WINOGRAD.

    WINOGRAD takes less time, with rounding errors up to four times those of the sums. The setting applies from the next forward
    pass on.
    """
    global _exact, _epoch
    _exact = bool(exact)
    _epoch += 1


def preferred():
    """Return the name of the preferred engine of layers with engine DEFAULT, "" if none was named.

    Raises
    ------
    ConfigError
        If MINICAFFE_ENGINE is not the name of an engine.
    """
    global _preferred
    if _preferred is None:
        load_engines()
        requested = os.environ.get("MINICAFFE_ENGINE", "").upper()
        if requested and requested not in ENGINES:
            raise ConfigError(f"must be {' or '.join(name.lower() for name in sorted(ENGINES))}, got '{requested.lower()}'",
                              field="MINICAFFE_ENGINE")
        _preferred = requested
    return _preferred


def prefer(engine):
    """Set the preferred engine of layers with engine DEFAULT, in place of MINICAFFE_ENGINE, for `cuda.use_cudnn`; "" for none."""
    global _preferred, _epoch
    _preferred = engine
    _epoch += 1


cdef unsigned current_epoch() noexcept:
    """Return `settings_epoch`, for Cython code: a net's schedule is compiled again after it changed."""
    return _epoch


def settings_epoch():
    """Return a number that `prefer`, `set_precision` and `set_exact` increase: recorded CUDA graphs are valid until then."""
    return _epoch


def get_precision():
    """Return the precision in which layers over float32 compute: "float32", "tf32" or "bf16".

    Raises
    ------
    ConfigError, DependencyError
        If `set_precision` rejects the value of MINICAFFE_PRECISION.
    """
    if _precision is None:
        _choose_precision(os.environ.get("MINICAFFE_PRECISION") or "float32", "MINICAFFE_PRECISION")
    return _precision


def set_precision(name):
    """Choose the precision in which layers over float32 compute from now on.

    A training records its CUDA graph again; a `cuda.Graph` of your own replays its recording unchanged.

    Parameters
    ----------
    name : str
        "float32", the default, is Caffe's precision.

        "tf32" is for GPUs of compute capability 8.0 or more: cuBLAS and cuDNN round the factors of matrix products and convolutions
        to 10 bits of mantissa and accumulate in float32, on tensor cores. It is faster, with errors of about 1e-3. All other
        operations run in our own kernels, always in float32.

        "bf16" is for the CPU, and for GPUs of compute capability 8.0 or more. Engines ONEDNN and CUDNN round data and diffs to
        bfloat16; they accumulate in float32 and use a rounded copy of the weights. Layers after a convolution keep bfloat16.
        Parameters, their diffs and history, statistics and losses stay float32. On the CPU float32 is used, with a warning, where
        bf16 is slower: in inner products of few rows whose weights are learned, and for channels that do not fill blocks. On a GPU
        inner products of few rows, or behind float32 arrays, use float32 arrays, as in tf32.

    Raises
    ------
    ConfigError
        If there is no such precision, or MINICAFFE_ENGINE names an engine without bf16. If the CPU or GPU chosen later does not
        support the precision, the first layer that computes there raises.
    DependencyError
        For bf16 on the CPU, if there is no oneDNN, or the processor has neither AVX512_BF16 nor AMX.
    """
    global _epoch
    _choose_precision(name, "precision")
    _epoch += 1
    for listener in precision_listeners:
        listener()


def check_precision():
    """Raise ConfigError if nets compute where the precision that is set is lacking: for commands, before anything is computed."""
    check_place(context())


cdef tuple precisions_of(const Context& on):
    """Return the precisions of the CPU, or of the device of a context."""
    if on.stream == NULL:
        return "float32", "bf16"
    return tuple(PRECISIONS) if on.stream.capability >= 80 else ("float32",)


cdef int check_place(const Context& on) except -1:
    """Raise ConfigError if the present precision is not among `precisions_of` the context, DependencyError as `set_precision`."""
    name, known = get_precision(), precisions_of(on)
    if name not in known:
        place = "the CPU" if on.stream == NULL else (
            f"GPU {on.stream.device} of compute capability {on.stream.capability // 10}.{on.stream.capability % 10}")
        raise ConfigError(f"must be {' or '.join(known)} on {place}, got '{name}'; use float32, or compute on {PRECISIONS[name]}",
                          field=_precision_field)
    if on.stream == NULL:
        for engine in ENGINES.values():
            if engine.on_cpu and (check := engine.precisions.get(name)) is not None:
                check()


def _choose_precision(name, field):
    """Check and store the precision `name`, given by `field`, an argument or MINICAFFE_PRECISION; errors as `set_precision`."""
    global _precision, _precision_field
    if check_type(name, str, field, "a str") not in PRECISIONS:
        raise ConfigError(f"must be {' or '.join(PRECISIONS)}, got '{name}'", field=field)
    able = {} if name in LAST.precisions else {e.name: e.precisions[name] for e in ENGINES.values() if name in e.precisions}
    if able and preferred() not in ("", *able):
        raise ConfigError(f"only engine {' or '.join(able)} computes in {name}, and MINICAFFE_ENGINE is {preferred().lower()}; "
                          "unset one of them", field=field)
    if not on_device():
        for check in filter(None, able.values()):
            check()
    _precision, _precision_field = name, field
