from minicaffe.blob cimport Dtype
from minicaffe.net.lock cimport NetLock

cdef class Net:
    cdef readonly str name
    cdef readonly int phase
    cdef readonly Dtype dtype
    cdef readonly str file
    cdef readonly bint trusted
    cdef readonly object workspace         # owns the blobs by name
    cdef readonly object parameters        # the workspace that owns the parameter blobs
    cdef readonly object state             # the NetState it was built for
    cdef readonly list layers
    cdef readonly list layer_names
    cdef readonly list lines               # where each layer stands in the file
    cdef readonly list blob_list
    cdef readonly list blob_names
    cdef readonly list bottoms             # for each layer its bottom blobs
    cdef readonly list tops
    cdef readonly list bottom_ids          # the same as indices into blob_list
    cdef readonly list top_ids
    cdef readonly list input_ids
    cdef readonly list output_ids
    cdef readonly list blob_loss_weight_list
    cdef readonly list layer_need_backward
    cdef readonly list bottom_need_backward
    cdef readonly object param_table
    cdef readonly list learnable_params
    cdef readonly list params_lr
    cdef readonly list params_weight_decay
    cdef readonly NetLock lock             # held by the thread that runs or changes the net
    cdef public bint debug_info
    cdef int device             # the GPU that it ran on first, -1 if none
    cdef bint loss_at_once      # a loss is overwritten in place, so that it must be read when its layer has run
    cdef list param_counts      # of all parameters, as their layers made them
    cdef list computed          # all blobs but those that sources give, and the learnable parameters
    cdef dict blob_of           # blobs by name, the last of several
    cdef list hooks
    cdef int _check_ready(self) except -1
    cdef double _compute(self, int start, int end, bint sources) except? -1
    cdef double _losses(self, int start, int end) except? -1
    cdef dict __dict__
    cdef object __weakref__    # a workspace lists nets without keeping them alive
    cpdef double forward_from_to(self, int start, int end) except? -1
    cpdef backward_from_to(self, int start, int end)
