"""Node: one layer in its place in a net: the blobs that it reads and writes, and who gets a gradient.

A net is a list of nodes, in the order in which they run; it calls its layers through them only. Caffe's Net has a list for each
of these things instead (layers_, bottom_vecs_, bottom_need_backward_ and so on).
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Layer, stamps
from minicaffe.memory.synced cimport RECYCLED
from minicaffe.ops.engine cimport Operation
from minicaffe.ops.epilogue cimport Epilogue

from minicaffe.errors import Error, WrongTypeError, check_type, shown
from minicaffe.layer import DeviceLayer


cdef class Node:
    """A layer and its blobs; errors of the layer get its place in the file.

    Parameters
    ----------
    layer : Layer
    bottoms, tops : list of Blob
        Kept, not copied: a net appends to them while it is built.
    file : str, optional
    line : int, optional
    """

    def __init__(self, layer, bottoms, tops, file=None, line=None):
        self.layer = check_type(layer, Layer, "layer", "a Layer")
        self.bottoms, self.tops = (check_type(blobs, list, name, "a list of Blob") for blobs, name in ((bottoms, "bottoms"), (tops, "tops")))
        self.file, self.line = file, line
        self.name, self.type, self.param = layer.name, layer.type, layer.param
        self.followers = []

    @property
    def blobs(self):
        """The layer's parameters."""
        return self.layer.blobs

    @property
    def loss_weights(self):
        """The loss weight of each top."""
        return self.layer.loss_weights

    @property
    def computes(self):
        """Names of the layers that it computed, too, when it ran last: followers, and one that joins its result with others."""
        return [node.name for node in self.followers[:self.fused]] + ([self.into] if self.into is not None else [])

    cpdef bint carries(self) noexcept:
        """Whether its backward computes that of the followers, too, which it computed when it ran last."""
        return self.fused and (<Node> self.followers[0]).ran == CARRIED

    cdef int forward_with(self, int most, bint lasting, list parts) except -1:
        """Compute the tops, and of the followers those that the layer's operation can compute, too, `most` at most; return how many.

        `lasting` says that backward may be run after it. What a follower with a top of its own reads is not computed, and recycled; so
        is a result that is written into another blob, of which `parts` has the Part or None for the node and each of these followers.
        """
        cdef Operation operation
        cdef Node node
        cdef int joined = 0
        if self.carries():
            for node in self.followers[:self.fused]:
                node.ran = LOST
        self.fused, self.into = 0, None
        if not most and parts is None:
            return self.forward()
        operation = self.layer.operations()[0]
        if not operation.fuses():
            return self.forward()
        self.reshape()
        # Not every operation leaves in the diff of a top of its own what the followers' backward leaves there.
        carries = operation.carries if self.bottoms == self.tops else operation.carries_own_top
        carries = carries and lasting and self.needs_backward and any(self.bottom_needs)
        cdef Epilogue epilogue = operation.takes_epilogue(self.tops[0], carries, operation.adds())
        for node in self.followers[:most]:
            node.reshape()
            if epilogue.carries and not node.bottom_needs[0]:
                break
            if not node.layer.join(epilogue, node.bottoms, node.needs_backward and lasting and not epilogue.carries):
                break
            node.renew_tops()
            epilogue.top = node.tops[0]
            joined += 1
        epilogue.part = parts[joined] if parts is not None else None
        if epilogue.part is not None:
            epilogue.part.written = False
        operation.epilogue = epilogue if joined or epilogue.part is not None else None
        try:
            self.forward()
            if operation.epilogue is None:      # taken
                self.fused = joined
                for node in self.followers[:joined]:
                    node.ran = CARRIED if epilogue.carries else JOINED if node.needs_backward and lasting else LOST
                written = epilogue.part is not None and epilogue.part.written
                if written:
                    self.into = epilogue.part.by
                if written or joined > self.in_place:
                    epilogue.top.data_memory.show_private()
                    for node in (self, *self.followers[:joined]):
                        if written or node.tops[0] is not epilogue.top:
                            (<Blob> node.tops[0]).data_memory.recycle()
        finally:
            operation.epilogue = None
        return self.fused

    cdef int separate(self) except -1:
        """Compute the followers one by one after all, where somebody looks between their gradients."""
        cdef Node node
        cdef Blob top = self.tops[0]
        if not self.carries():
            return 0
        cdef bint gone = top.data_memory.head == RECYCLED
        data = None if gone else top.data.copy()
        top.data_memory.renew()
        try:
            self.layer.separate(self.bottoms, self.tops)
            for node in self.followers[:self.fused]:
                node.forward()
            self.fused = 0
        except BaseException:
            if gone:
                top.data_memory.recycle()
            raise
        if data is not None:
            top.data[...] = data        # what layers in place behind them have made of it

    cdef int forward(self) except -1:
        """Compute the tops."""
        self.ran = ALONE
        try:
            self.layer.run_forward(self.bottoms, self.tops)
        except Error as error:
            raise self.placed(error)

    cdef int backward(self) except -1:
        """Compute the gradients of the parameters and of the bottoms that need one."""
        try:
            if self.ran == LOST:
                remedy = ("run forward to the end again, with a plan make the net without it" if self.needs_backward
                          else "ask for force_backward: true")
                raise Error(f"a layer below computed this one, too, and kept nothing for its backward; {remedy}, or run it by itself "
                            "with forward(start=..., end=...)")
            self.layer.run_backward(self.tops, self.bottom_needs, self.bottoms)
        except Error as error:
            raise self.placed(error)

    cdef int check_params(self, Py_ssize_t made) except -1:
        """Raise unless the layer's list of parameters, which Python may change, still has the `made` blobs or more."""
        cdef list blobs = self.layer.blobs
        wrong = blobs is None or len(blobs) < made
        for blob in blobs or ():
            wrong = wrong or not isinstance(blob, Blob)
        if wrong:
            got = [f"a {type(blob).__name__}" for blob in blobs or ()]
            raise self.placed(WrongTypeError(f"the layer was made with {made} blobs, its list has {', '.join(got) or 'none'} now; to set "
                                             f"values write net.params['{self.name}'][i].data[...] = array", field="blobs"))
        return 0

    cdef int renew_tops(self) except -1:
        """Let the layer write data that was recycled; not of a top that is a bottom, too, and would be read first."""
        cdef Blob top, bottom
        for top in self.tops:
            if top.data_memory.head == RECYCLED:
                for bottom in self.bottoms:
                    if bottom.data_memory is top.data_memory:
                        break
                else:
                    top.data_memory.renew()

    cdef int renew_bottoms(self) except -1:
        """The same for diffs, which backward writes."""
        cdef Blob top, bottom
        for bottom, needed in zip(self.bottoms, self.bottom_needs):
            if needed and bottom.diff_memory.head == RECYCLED:
                for top in self.tops:
                    if bottom.diff_memory is top.diff_memory:
                        break
                else:
                    bottom.diff_memory.renew()

    cdef unsigned long long stamp(self) noexcept:
        """A number that changes whenever one of the blobs gets another shape or memory."""
        return stamps(self.bottoms, self.tops)

    cdef int reshape(self) except -1:
        """Give the tops their shapes, if a blob changed."""
        try:
            self.layer.refresh(self.bottoms, self.tops)
        except Error as error:
            raise self.placed(error)

    cdef int inspect(self) except -1:
        """Let the layer check on the host what a CUDA graph does not."""
        try:
            self.layer.inspect(self.bottoms)
        except Error as error:
            raise self.placed(error)

    cdef double loss(self, list tops=None) except? -1:
        """The layer's share of the loss, from its tops or copies of them."""
        if not self.layer.has_loss:
            return 0
        try:
            return self.layer.loss_of(self.tops if tops is None else tops)
        except Error as error:
            raise self.placed(error)

    def placed(self, error):
        """Tell an error where the layer is, and return it; raise WrongTypeError for what is no error of minicaffe."""
        if not isinstance(error, Error):
            raise WrongTypeError(f"places an Error of minicaffe, got {shown(error)} ({type(error).__name__})")
        return error.at(file=self.file, line=self.line, layer=self.name, layer_type=self.type)


def link_followers(nodes):
    """Find the followers of each node: those that come next, are no user's, and work in place on its only top.

    Of an operation whose epilogues may end elsewhere they may also have tops of their own.
    """
    cdef Node node
    for i, node in enumerate(nodes):
        kinds = [kind for operation in node.layer.operations() if (kind := operation.takes_epilogue) is not None]
        if not kinds or not _may_fuse(node):
            continue
        node.moves = any(kind.moves for kind in kinds)
        top = node.tops
        for follower in nodes[i + 1:]:
            in_place = follower.bottoms == follower.tops == top
            if not _may_fuse(follower) or not (in_place or (node.moves and top[0] in follower.bottoms and top[0] not in follower.tops)):
                break
            node.in_place += top == node.tops and in_place
            top = follower.tops
            node.followers.append(follower)


def _may_fuse(Node node):
    return len(node.tops) == 1 and unchanged(node.layer)


def unchanged(Layer layer not None):
    """Return whether a layer's forward and backward are those of its operations, which no user's class has changed."""
    return all(getattr(type(layer), name) is getattr(DeviceLayer, name)
               for name in ("forward_cpu", "forward_gpu", "backward_cpu", "backward_gpu"))
