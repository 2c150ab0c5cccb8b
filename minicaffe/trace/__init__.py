"""A recording of a net, step by step: layers, head changes, copies, allocations and kernels, as one `Trace` (docs/trace.md).

Its only source is the events of `minicaffe.memory.record`; new events are added there, not here. `record.py` collects them,
`build.py` makes the document of docs/trace.md from them, and `model.py` reads it.
"""

from minicaffe.trace.model import Moment, Trace, load
from minicaffe.trace.record import Recorder, record
from minicaffe.trace.why import why

__all__ = ["Moment", "Recorder", "Trace", "load", "record", "why"]
