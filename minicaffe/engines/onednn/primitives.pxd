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
    cdef Weighted* steps                    # of the derived class
    cdef Layout bottom_layout, weight_layout, top_layout     # of forward; None: plain
    cdef Layout dx, dy                      # of the bottom's gradient
    cdef Layout weights_x, weights_dy, dw
    cdef bint data_made, params_made        # whether the primitives of the gradients exist; they are made at first use
    cdef bint biased                        # whether that of the parameters computes the gradient of a bias, too
    cdef int bind_primitives(self, Weighted* steps) except -1


cdef class OnednnWorkspacePrimitive(Primitive):
    cdef WorkspacePrimitive steps
    cdef Layout bottom_layout, top_layout
    cdef long long workspace    # floats that forward keeps for backward
    cdef int set_layouts(self) except -1
