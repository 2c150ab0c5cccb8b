"""A recording of a net, step by step: layers, head changes, copies, allocations and kernels, as one `Trace` (docs/trace.md).

Its only source is the events of `minicaffe.memory.record`; new events are added there, not here. `recorder.py` collects them,
`build.py` makes the document of docs/trace.md from them, and `model.py` reads it.
"""

import importlib

COMMANDS = {
    "trace": ("Look into a net", f"{__name__}.command:trace", "Show what a net does in memory, step by step.", "training"),
    "convolution": ("Learn", f"{__name__}.convolution_command:convolution", "Show convolution up close, on a page."),
}
MODULES = {"trace": __name__}
_MODULE_OF = {"Moment": "lives", "Trace": "model", "load": "model", "Recorder": "recorder", "record": "recorder", "why": "reasons"}

__all__ = list(_MODULE_OF)


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
