"""OperationLayer: the base of layers that are one operation, which an engine computes (engines/engine.pyx)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

from minicaffe.proto import caffe_pb2


cdef class OperationLayer(DeviceLayer):
    """`op`, made by layer_setup, computes each top from the bottom of its index, weight blobs[0] and bias blobs[1], if any."""

    def operations(self):       # a net chooses engines and fuses layers by them
        return [self.op] if self.op is not None else []     # Im2col has none

    cdef bint learns_weights(self):     # otherwise an engine may keep blobs[0] in a form that takes time to make
        return self.phase == caffe_pb2.TRAIN and (not self.param.param or self.param.param[0].lr_mult != 0)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Py_ssize_t i, params = len(self.blobs)
        cdef Blob weight = self.blobs[0] if params else None
        cdef Blob bias = self.blobs[1] if params > 1 else None
        for i in range(len(bottom)):
            self.op.forward(on, bottom[i], top[i], weight, bias)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Py_ssize_t i, params = len(self.blobs)
        cdef Blob weight = self.blobs[0] if params and self.needs_gradient(0) else None
        cdef Blob bias = self.blobs[1] if params > 1 and self.needs_gradient(1) else None
        for i in range(len(bottom)):
            if propagate_down[i] and weight is not None:
                self.op.backward_both(on, bottom[i], top[i], weight, bias)      # dx is overwritten, parameters' are added to
                continue
            if propagate_down[i]:
                self.op.backward(on, bottom[i], top[i], self.blobs[0] if params else None)
            if weight is not None or bias is not None:
                self.op.backward_params(on, bottom[i], top[i], weight, bias)
