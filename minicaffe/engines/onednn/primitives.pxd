from libcpp.vector cimport vector

from minicaffe.device.threads cimport Threads
from minicaffe.engines.onednn.library cimport Array, Library, library
from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive, refuse

cdef extern from "minicaffe/engines/onednn/weighted.hpp" namespace "mc::onednn" nogil:
    cppclass Weighted:
        Array x, w, y, dx, dy, weights_x, weights_dy, gradient, plain_w
        size_t forward_scratch()
        void forward(const void* x, const void* w, const void* b, void* y, void* scratch) except +refuse
        void make_backward_data() except +refuse
        bint data_reads_plain()
        size_t data_scratch()
        void backward_data(const void* w, const void* dy, void* dx, void* scratch) except +refuse
        void make_backward_weights(bint biased) except +refuse
        bint overwrites()
        size_t weights_scratch()
        void backward_weights(Threads, const void* x, const void* dy, bint overwrite, void* dw, void* db,
                              void* scratch) except +refuse
    cppclass WorkspacePrimitive:
        Array x, y
        bint backward_reads_x
        size_t workspace()
        size_t forward_scratch()
        void forward(const void* x, void* y, void* kept, void* scratch) except +refuse
        void make_backward() except +refuse
        size_t backward_scratch()
        void backward(const void* dy, void* dx, const void* kept, const void* x, void* scratch) except +refuse


cdef class OnednnWeightsPrimitive(Primitive):
    cdef Weighted* steps                    # a member of the derived class
    cdef Layout bottom_layout, weight_layout, top_layout     # of forward; None: plain, here and below
    cdef Layout dx, dy                      # of the gradients of bottom and top, to compute the former
    cdef Layout weights_x, weights_dy, dw   # of bottom and the gradients of top and weight, to compute the last
    cdef bint data_made, params_made        # whether the primitives of the gradients exist; they are made at first use
    cdef bint biased                        # whether that of the parameters computes the gradient of a bias, too
    cdef int bind_primitives(self, Weighted* steps) except -1


cdef class OnednnWorkspacePrimitive(Primitive):
    cdef WorkspacePrimitive steps
    cdef Layout bottom_layout, top_layout       # of data and gradients
    cdef long long workspace    # floats that forward keeps for backward; 0: none
    cdef int set_layouts(self) except -1
