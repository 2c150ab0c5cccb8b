"""LSTMUnit: what an LSTM computes at one step from its gates (Caffe lstm_unit_layer.cpp). The formulas: ops/recurrent/kernel.hpp.

Different from Caffe: the tanh of the update gate is a tanh, not a scaled sigmoid; both have the same value.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.ops.recurrent.caffe cimport lstm_backward, lstm_forward

from minicaffe.errors import ShapeError


cdef class LSTMUnitLayer(DeviceLayer):
    """``c = cont f c_prev + i g``, ``h = o tanh(c)`` with i, f, o the sigmoids and g the tanh of the gates.

    Parameters
    ----------
    bottom[0] : Blob, shape (1, N, D)
        The cells before, c_prev.
    bottom[1] : Blob, shape (1, N, 4 D)
        What goes into the gates i, f, o, g, in that order.
    bottom[2] : Blob, shape (1, N)
        0 where a sequence begins, else 1; has no gradient.
    top[0], top[1] : Blob, shape (1, N, D)
        c and h.
    """

    exact_num_bottom_blobs = 3
    exact_num_top_blobs = 2
    refuses_in_place = True
    no_gradient = {2: "the sequence indicators"}

    cdef Blob acts   # (1, N, 4 D): the gates after their functions, for backward

    cpdef layer_setup(self, list bottom, list top):
        self.acts = self.new_blob(what="gates")

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [self.acts]

    cpdef reshape(self, list bottom, list top):
        shape = bottom[0].shape
        if len(shape) != 3 or shape[0] != 1:
            raise ShapeError(f"must have shape [1, N, D], got {list(shape)}", field="bottom[0]")
        for i, needed in ((1, (1, shape[1], 4 * shape[2])), (2, (1, shape[1]))):
            if bottom[i].shape != needed:
                raise ShapeError(f"must have shape {list(needed)} for cells of shape {list(shape)}, got {list(bottom[i].shape)}",
                                 field=f"bottom[{i}]")
        for blob in top:
            blob.reshape_to(shape)
        self.acts.reshape_like(bottom[1])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob cells = bottom[0]
        cdef Blob gates = bottom[1], cont = bottom[2], c = top[0], h = top[1]
        with nogil:
            lstm_forward(on, self.dtype, cells.dims[1], cells.dims[2], cells.data_on(on), gates.data_on(on), cont.data_on(on),
                         self.acts.mutable_data_on(on), c.mutable_data_on(on), h.mutable_data_on(on))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob cells = bottom[0]
        cdef Blob c = top[0], h = top[1], gates = bottom[1]
        with nogil:
            lstm_backward(on, self.dtype, cells.dims[1], cells.dims[2], cells.data_on(on), self.acts.data_on(on), c.data_on(on),
                          c.diff_on(on), h.diff_on(on), cells.mutable_diff_on(on), gates.mutable_diff_on(on))
