"""The engines, in the order in which they are tried.

A new engine is a description here and, for each operation that it computes, a file ``engine_NAME.pyx`` in the folder of that with a
class of primitives and up to two functions: ``refuses(operation)`` returns why the engine cannot compute it, ``slower(operation)``
why those behind the engine take less time; None: neither. The second holds only where no engine was named.
"""

from dataclasses import dataclass, field

from minicaffe.onednn.library import check_bf16


@dataclass(eq=False)
class Engine:
    """What holds for all operations that an engine computes."""

    name: str
    layer_field: int | None = None      # the value of the field `engine` by which a layer names it
    on_cpu: bool = True
    on_gpu: bool = False
    takes_empty: bool = False           # arrays without elements
    no_float64: str = ""                # why it computes float32 only
    # Those in which it computes from blobs of float32; a value that is not None raises DependencyError where it does not.
    precisions: dict = field(default_factory=lambda: {"float32": None})
    absent: bool = False                # without a library: only where it is named is it tried, for the warning
    kinds: dict = field(default_factory=dict)   # class of operations -> make, refuses, slower

    def computes(self, kind, make, refuses=lambda operation: None, slower=lambda operation: None):
        """Let the engine compute operations of class `kind` by the primitives that ``make(operation)`` returns.

        `make` raises Refusal or DependencyError where it turns out only there that the engine cannot.
        """
        self.kinds[kind] = make, refuses, slower


CUDNN = Engine("CUDNN", 2, on_cpu=False, on_gpu=True, precisions={"float32": None, "tf32": None, "bf16": None})
WINOGRAD = Engine("WINOGRAD", no_float64="float64 data: its results would be no better than those of float32")
ONEDNN = Engine("ONEDNN", no_float64="float64 data: oneDNN computes float32 only", precisions={"float32": None, "bf16": check_bf16})
CAFFE = Engine("CAFFE", 1, on_gpu=True, takes_empty=True, precisions={"float32": None, "tf32": None})
ENGINES = {engine.name: engine for engine in (CUDNN, WINOGRAD, ONEDNN, CAFFE)}
LAST = CAFFE        # refuses nothing
