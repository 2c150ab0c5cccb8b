"""Gradients of parameters: set to zero before backward adds to them, and passed on when they are complete."""

from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context, settle
from minicaffe.engines.engine cimport Operation
from minicaffe.engines.layouts cimport diff_layout, stored
from minicaffe.kernels.types cimport item_size
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.states cimport RECYCLED
from minicaffe.memory.zeros cimport mark_zero
from minicaffe.net.node cimport Node
from minicaffe.net.schedule cimport Schedule
from minicaffe.net.step cimport FusedStep

import functools

from minicaffe.memory.synced import device_lock


cdef extern from "minicaffe/ops/update/caffe.hpp" namespace "mc" nogil:
    void zero_all(const Context&, int n, void** at, const long long* nbytes)

cdef enum:
    UPDATE_CHUNK = 1 << 19      # least elements of gradients in one update: below, the call costs more than its memory traffic


def clear_gradients(list params not None):
    """Set the diffs of parameters to zero, as backward adds to them: in one launch, or lazily at the next access (mark_zero)."""
    cdef Blob blob
    cdef Context on = context()
    cdef Layout layout
    cdef vector[void*] at           # on a device, for one launch
    cdef vector[long long] nbytes
    with device_lock:
        for blob in params:
            if blob.diff_memory.head == RECYCLED:
                blob.diff_memory.renew()        # new memory, which is zeros
            elif on.stream == NULL:
                blob.fill_diff_on(on, 0)
            elif blob.count and not mark_zero(blob.diff_memory, blob.count * item_size(blob.dtype), True):
                layout = diff_layout(on, [blob])
                at.push_back(blob.mutable_diff_in_layout(on, layout))
                nbytes.push_back(stored(layout, blob) * item_size(blob.dtype))
        zero_all(on, <int> at.size(), at.data(), nbytes.data())
        settle(on)


cdef class GradientReports:
    """Passes complete gradients to `on_gradients` of `Runner.forward_backward` while backward runs, and frees those it has used."""

    cdef object on_gradients
    cdef list params                # the learnable parameters
    cdef Schedule schedule          # of the backward
    cdef bint stream_large          # pass on a large gradient part by part, and small ones together
    cdef list complete              # parameters, by number, whose complete gradients wait for others
    cdef long long elements         # of these gradients

    def __init__(self, on_gradients, list params not None, Schedule schedule, bint stream_large):
        self.on_gradients, self.params, self.schedule, self.stream_large = on_gradients, params, schedule, stream_large
        self.complete, self.elements = [], 0

    def add(self, list numbers not None, bint last=False):
        """Add complete gradients; pass on all that wait if together they are large enough, or if no more follow (`last`)."""
        for i in numbers:
            self.complete.append(i)
            self.elements += (<Blob> self.params[i]).count
        if last or self.elements >= (UPDATE_CHUNK if self.stream_large else 1):
            self.schedule.free_updated_gradients(self.on_gradients(self.complete, None, last) or [])
            self.complete, self.elements = [], 0

    def pass_part(self, int number, part):
        """Pass on a part of a gradient, ``(blob, first, count)``; a primitive calls this as `Operation.consumer`."""
        return self.on_gradients([number], part, False)

    def run_backward(self, FusedStep step not None):
        """Run a step of backward; return the parameters, by number, whose complete gradients are not passed on yet.

        A large gradient is passed on part by part, while each is in the cache, unless a view needs all of it.
        """
        cdef Node node = step.nodes[0]
        cdef Operation operation
        if step.large is None or not self.stream_large or (<Blob> self.params[step.large]).diff_memory.has_external_view():
            node.compute_gradients(step.fused_backward)
            return step.updates
        operation = node.layer.operations()[0]
        operation.consumer = functools.partial(self.pass_part, step.large)
        try:
            node.compute_gradients(False)
            streamed = operation.consumer is None       # a primitive that calls it sets it to None
        finally:
            operation.consumer = None
        if not streamed:
            return step.updates
        self.schedule.free_updated_gradients([step.large])
        return [i for i in step.updates if i != step.large]
