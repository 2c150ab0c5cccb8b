"""Node: one layer in its place in a net: the blobs that it reads and writes, and who gets a gradient.

A net is a list of nodes, in the order in which they run; it calls its layers through them only. Caffe's Net has a list for each
of these things instead (layers_, bottom_vecs_, bottom_need_backward_ and so on).
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Layer
from minicaffe.memory.synced cimport RECYCLED

from minicaffe.errors import Error


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

    def __init__(self, Layer layer not None, list bottoms not None, list tops not None, file=None, line=None):
        self.layer, self.bottoms, self.tops, self.file, self.line = layer, bottoms, tops, file, line
        self.name, self.type, self.param = layer.name, layer.type, layer.param

    @property
    def blobs(self):
        """The layer's parameters."""
        return self.layer.blobs

    @property
    def loss_weights(self):
        """The loss weight of each top."""
        return self.layer.loss_weights

    cdef int forward(self) except -1:
        """Compute the tops."""
        try:
            self.layer.run_forward(self.bottoms, self.tops)
        except Error as error:
            raise self.placed(error)
        return 0

    cdef int backward(self) except -1:
        """Compute the gradients of the parameters and of the bottoms that need one."""
        try:
            self.layer.run_backward(self.tops, self.bottom_needs, self.bottoms)
        except Error as error:
            raise self.placed(error)
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
        return 0

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
        return 0

    cdef unsigned long long stamp(self) noexcept:
        """A number that changes whenever one of the blobs gets another shape or memory."""
        cdef unsigned long long total = 0
        cdef Blob blob
        for blob in self.bottoms:
            total += blob.stamp
        for blob in self.tops:
            total += blob.stamp
        return total

    cdef int reshape(self) except -1:
        """Give the tops their shapes, if a blob changed."""
        try:
            self.layer.refresh(self.bottoms, self.tops)
        except Error as error:
            raise self.placed(error)
        return 0

    cdef int inspect(self) except -1:
        """Let the layer check on the host what a CUDA graph does not."""
        try:
            self.layer.inspect(self.bottoms)
        except Error as error:
            raise self.placed(error)
        return 0

    cdef double loss(self) except? -1:
        """The layer's share of the loss."""
        if not self.layer.has_loss:
            return 0
        try:
            return self.layer.loss_of(self.tops)
        except Error as error:
            raise self.placed(error)

    def placed(self, error):
        """Tell an error where the layer is, and return it."""
        return error.at(file=self.file, line=self.line, layer=self.name, layer_type=self.type)
