"""Node: a layer in a net, with the blobs that it reads and writes, and which of them get a gradient.

A net is a list of nodes, in the order in which they run; it calls its layers through them only. Caffe's Net has a list for each
of these things instead (layers_, bottom_vecs_, bottom_need_backward_ and so on).
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport context, cpu_context, on_device
from minicaffe.device.threads cimport num_threads
from minicaffe.layer cimport DeviceLayer, Layer
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.states cimport RECYCLED
from minicaffe.memory.synced cimport SyncedMemory

from minicaffe.device.threads import computing
from minicaffe.errors import Error, WrongTypeError, check_type, shown
from minicaffe.memory.reporter import reporter

cdef Reporter _reporter = reporter

PASSES = {"forward", "forward_cpu", "forward_gpu", "backward", "backward_cpu", "backward_gpu"}


cdef class Node:
    """A layer and its blobs; errors of the layer get its place in the file.

    Parameters
    ----------
    layer : Layer
    bottoms, tops : list of Blob
        Of the shapes that the layer accepts. Kept, not copied: a net appends to them while it is built.
    file : str, optional
    line : int, optional
    """

    def __init__(self, layer, bottoms, tops, file=None, line=None):
        self.layer = check_type(layer, Layer, "layer", "a Layer")
        self.bottoms, self.tops = (check_type(blobs, list, name, "a list of Blob")
                                   for blobs, name in ((bottoms, "bottoms"), (tops, "tops")))
        self.file, self.line = file, line
        self.name, self.type, self.param = layer.name, layer.type, layer.param
        self.fused_into = -1
        self.has_builtin_passes = all(getattr(type(layer), name) is getattr(DeviceLayer, name)
                                      for name in PASSES if hasattr(DeviceLayer, name))
        self.attributes = getattr(layer, "__dict__", None) if self.has_builtin_passes else None

    @property
    def blobs(self):
        """The layer's parameters."""
        return self.layer.blobs

    @property
    def loss_weights(self):
        """The loss weight of each top."""
        return self.layer.loss_weights

    cdef bint is_patched(self) except -1:
        """Return whether a program assigned a pass to the layer object (``net.layers[1].forward_cpu = function``)."""
        return self.attributes is not None and not PASSES.isdisjoint(self.attributes)

    cdef int forward(self, bint upload=False) except -1:
        """Run the layer alone, not in a fused step, and report begin and end; `upload`: copy its tops to the present device."""
        cdef Blob top
        self.report("begin", "forward")
        try:
            self.compute_tops()
            if upload:
                for top in self.tops:
                    top.data_on(context())
        finally:        # events after an error do not belong to the layer
            self.report("end", "forward")

    cdef int compute_tops(self) except -1:
        """Reshape the layer if a blob changed, and compute its tops."""
        cdef Layer layer = self.layer
        if self.parameter_free and num_threads().pool.dry():      # a dry run computes it: labels and others are checked on the host
            with computing():
                return self.compute_tops()
        self.fused_into = -1
        try:
            self.reallocate_tops()
            layer.refresh(self.bottoms, self.tops)
            if self.has_builtin_passes and not on_device() and not self.is_patched():     # its `forward_cpu`, called directly
                layer.check_blobs(self.bottoms, self.tops)
                (<DeviceLayer> layer).forward_on(cpu_context(), self.bottoms, self.tops)
                layer.finish_forward(self.bottoms, self.tops)
            else:
                layer.run_forward(self.bottoms, self.tops)
        except Error as error:
            raise self.with_place(error)

    cdef int backward(self) except -1:
        """Run the layer backward, and report when it begins and ends."""
        self.report("begin", "backward")
        try:
            self.compute_gradients(False)
        finally:
            self.report("end", "backward")

    cdef int compute_gradients(self, bint fused) except -1:
        """Add to the diffs of parameters, overwrite those of bottoms that need one; `fused`: also for the layers fused into it."""
        cdef Layer layer = self.layer
        cdef Blob bottom
        if self.fused_into >= 0 and not fused:
            remedy = ("run forward to the end again, with a plan make the net without it" if self.needs_backward
                      else "set force_backward: true")
            raise self.with_place(Error("was fused into an earlier layer, which saved nothing for its backward; "
                                        f"{remedy}, or run this layer by itself with forward(start=..., end=...)"))
        try:
            for bottom, needed in zip(self.bottoms, self.bottom_needs):
                if needed:
                    renew_recycled(bottom.diff_memory, self.tops)
            layer.check_forward_done(self.bottoms, self.tops)
            layer.run_backward(self.tops, self.bottom_needs, self.bottoms)
        except Error as error:
            raise self.with_place(error)

    cdef int report(self, str kind, str detail) except -1:
        """Report the event "begin", "end" or "loss", if events are recorded; this object's address distinguishes equal names."""
        if _reporter.recording:
            _reporter.event(kind, None, <size_t> <void*> self, 0, self.name, detail)

    cdef int check_params(self, Py_ssize_t made) except -1:
        """Raise unless the layer's list of parameters, which Python may change, still has the `made` blobs or more."""
        cdef list blobs = self.layer.blobs
        wrong = blobs is None or len(blobs) < made
        for blob in blobs or ():
            wrong = wrong or not isinstance(blob, Blob)
        if wrong:
            got = [f"a {type(blob).__name__}" for blob in blobs or ()]
            raise self.with_place(WrongTypeError(f"the layer was made with {made} blobs, "
                                                 f"its list has {', '.join(got) or 'none'} now; "
                                                 f"to set values write net.params['{self.name}'][i].data[...] = array",
                                                 field="blobs"))
        return 0

    cdef int reallocate_tops(self) except -1:
        """Make tops writable that a plan has recycled (freed after their last use): forward overwrites them."""
        cdef Blob top
        for top in self.tops:
            renew_recycled(top.data_memory, self.bottoms)

    cdef int reshape(self) except -1:
        """Give the tops their shapes, if a blob changed."""
        try:
            self.layer.refresh(self.bottoms, self.tops)
        except Error as error:
            raise self.with_place(error)

    cdef int inspect(self) except -1:
        """Run the layer's checks on the host, such as of labels, before the replay of a CUDA graph, which leaves them out."""
        try:
            self.layer.inspect(self.bottoms)
        except Error as error:
            raise self.with_place(error)

    cdef double loss(self, list tops=None) except? -1:
        """Return the layer's share of the loss from its tops, or from copies of them (`LateLoss`); the host waits for a GPU."""
        cdef double loss
        if not self.layer.has_loss:
            return 0
        try:
            loss = self.layer.loss_of(self.tops if tops is None else tops)
        except Error as error:
            raise self.with_place(error)
        if _reporter.recording and tops is None:
            self.report("loss", repr(loss))
        return loss

    def with_place(self, error):
        """Add the layer's place to an error, and return it; raise WrongTypeError for another object."""
        if not isinstance(error, Error):
            raise WrongTypeError(f"places an Error of minicaffe, got {shown(error)} ({type(error).__name__})")
        return error.at(file=self.file, line=self.line, layer=self.name, layer_type=self.type)


cdef int renew_recycled(SyncedMemory memory, list read) except -1:
    """Make a recycled memory writable, unless a blob of `read` has it, too, as in place: then its old values are needed."""
    cdef Blob blob
    if memory.head == RECYCLED:
        for blob in read:
            if blob.data_memory is memory or blob.diff_memory is memory:
                return 0
        memory.renew()
    return 0


def overwrites_outputs(Layer layer not None):
    """Return whether the passes write tops and diffs of bottoms whole, so that a plan may give these memory with old values.

    It is what the class declares (`Layer.overwrites_outputs`); False for a user's class with a forward or backward of its own.
    """
    return layer.overwrites_outputs and all(cls.__module__.startswith("minicaffe.") or PASSES.isdisjoint(vars(cls))
                                            for cls in type(layer).__mro__)
