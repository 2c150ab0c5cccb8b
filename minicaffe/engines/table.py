"""The engines, in the order in which they are tried.

A new engine is a description here and, for each operation that it computes, a file ``engine_NAME.pyx`` in the operation's folder.
That file has a class of primitives and up to two functions: ``refuses(operation)`` returns why the engine cannot compute it,
``slower(operation)`` why later engines take less time; None if neither. `slower` applies only if no engine was named.
"""

import functools
import importlib
import threading
from dataclasses import dataclass, field

from minicaffe import entry_points
from minicaffe.engines.onednn.library import check_bf16
from minicaffe.errors import ConfigError

_imports = threading.RLock()


@dataclass(eq=False)
class Engine:
    """The properties of an engine that hold for all its operations."""

    name: str
    layer_field: int | None = None      # the value of a layer's field `engine` that names it; None: no value does. (0 is DEFAULT)
    on_cpu: bool = True
    on_gpu: bool = False
    takes_empty: bool = False           # whether it accepts arrays without elements
    no_float64: str = ""                # why it refuses float64; "": it computes both
    # Precision in which it computes from float32 blobs -> None, or a check that raises DependencyError if this machine lacks it.
    precisions: dict = field(default_factory=lambda: {"float32": None})
    absent: bool = False                # its library is missing (set by cuda/): it is tried only if named, for the warning
    on_request: bool = False            # it is tried only if MINICAFFE_ENGINE names it, then also for layers that name another
    plain: bool = False                 # it computes by the formulas, with the primitives of engine CAFFE, and fuses nothing
    kinds: dict = field(default_factory=dict)   # class of operations -> (make, refuses, slower), see `computes`
    modules: list = field(default_factory=list) # names of ``engine_NAME`` modules to import before the engine's first use

    def computes(self, kind, make, refuses=lambda operation: None, slower=lambda operation: None):
        """Register the engine for operations of class `kind`, at the end of a module; ``make(operation)`` returns a Primitive.

        `make` may raise Refusal or DependencyError if only it can find out that the engine cannot compute the operation.
        """
        self.kinds[kind] = make, refuses, slower

    def is_wanted(self, layer_field, requested):
        """Return whether to try it for a layer with this field `engine` (0: DEFAULT), if MINICAFFE_ENGINE is `requested` or ""."""
        if self.on_request or layer_field == 0 and requested:
            return requested == self.name
        return layer_field == self.layer_field or layer_field == 0 and not self.absent

    def computed_kinds(self):
        """Import the rest of `modules`, which add to `kinds`; return `kinds`."""
        with _imports:      # another thread may be about to use it, too
            while self.modules:
                importlib.import_module(self.modules[-1])
                self.modules.pop()
        return self.kinds


CUDNN = Engine("CUDNN", 2, on_cpu=False, on_gpu=True, precisions={"float32": None, "tf32": None, "bf16": None})
WINOGRAD = Engine("WINOGRAD", no_float64="float64 data: its results would be no better than those of float32")
ONEDNN = Engine("ONEDNN", no_float64="float64 data: oneDNN computes float32 only", precisions={"float32": None, "bf16": check_bf16})
PLAIN = Engine("PLAIN", on_request=True, plain=True)
CAFFE = Engine("CAFFE", 1, on_gpu=True, takes_empty=True, precisions={"float32": None, "tf32": None})
ENGINES = {engine.name: engine for engine in (CUDNN, WINOGRAD, ONEDNN, PLAIN, CAFFE)}
LAST = CAFFE        # computes every operation


def add_engine(engine):
    """Let an `Engine` of an add-on be tried before the last one. Raises ConfigError if there is one of its name."""
    if ENGINES.setdefault(engine.name, engine) is not engine:
        raise ConfigError(f"there is an engine '{engine.name}' already", field="name")
    ENGINES[LAST.name] = ENGINES.pop(LAST.name)


@functools.cache
def load_engines():
    """Import the modules of the entry points minicaffe.engines, which call `add_engine`; the first call does it."""
    entry_points.objects("engines")
