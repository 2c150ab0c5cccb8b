from minicaffe.blob cimport Dtype
from minicaffe.common cimport Generator
from minicaffe.device.context cimport Context

cdef class Layer:
    cdef readonly object param             # its LayerParameter; the layer may change it
    cdef readonly str name
    cdef readonly str type
    cdef readonly int phase                # 0 TRAIN, 1 TEST
    cdef readonly Dtype dtype
    cdef public list blobs                 # learned parameters, in storage order
    cdef public list param_propagate_down  # a bool for each: whether it gets a gradient; empty: all do
    cdef readonly list loss_weights        # one number a top, 0 if it is no part of the loss
    cdef readonly Generator generator      # random numbers of fillers, dropout and others: that of the thread
    cdef readonly object parameters        # the workspace that owns the parameter blobs, or None
    cdef readonly str key                  # the layer's name there
    cdef readonly bint has_loss            # whether a loss weight is not 0
    cdef int num_bottoms                   # number of bottoms at `set_up`; -1 before it
    cdef int num_tops
    cdef unsigned long long reshaped_stamp           # the stamps of bottoms and tops at the last reshape, added up
    cdef unsigned long long forward_counts          # hash of their counts at the last reshape or forward; 0: backward must not run
    cpdef layer_setup(self, list bottom, list top)
    cpdef reshape(self, list bottom, list top)
    cpdef forward_cpu(self, list bottom, list top)
    cpdef backward_cpu(self, list top, list propagate_down, list bottom)
    cpdef forward_gpu(self, list bottom, list top)
    cpdef backward_gpu(self, list top, list propagate_down, list bottom)
    cdef int check_blobs(self, list bottom, list top) except -1
    cdef int refresh(self, list bottom, list top) except -1
    cdef int finish_forward(self, list bottom, list top) except -1
    cdef double loss_of(self, list top) except? -1
    cpdef inspect(self, list bottom)
    cdef int check_forward_done(self, list bottom, list top) except -1
    cdef int finish_backward(self, list bottom) except -1
    cdef int run_forward(self, list bottom, list top) except -1
    cdef int run_backward(self, list top, list propagate_down, list bottom) except -1
    cdef bint needs_gradient(self, int index)


cdef class DeviceLayer(Layer):
    cdef int forward_on(self, const Context& on, list bottom, list top) except -1
    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1
    cdef bint starts_backward(self, list top, list propagate_down, list bottom) except -1


cdef unsigned long long stamps(list bottom, list top)
