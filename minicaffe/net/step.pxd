from minicaffe.engines.engine cimport Operation
from minicaffe.engines.epilogue cimport ConcatSlice, Epilogue
from minicaffe.memory.layout cimport Layout
from minicaffe.net.node cimport Node


cdef class FusedStep:
    cdef readonly list nodes        # the first runs, the others are fused into it; all of them in the order of forward
    cdef readonly int first         # the number of nodes[0] in the net
    cdef readonly bint fused_backward      # backward of the first computes that of all
    cdef readonly ConcatSlice concat_slice     # part of a Concat's top, where the result may be written directly; or None
    cdef list operations            # of the nodes' layers; what they save for backward is freed with it
    cdef Operation operation        # computes the other nodes and the slice as its epilogue; None: the first node runs alone
    cdef Epilogue last_epilogue     # of the last forward; None: it had none
    cdef list params                # the parameters of the nodes when it was made
    cdef list skipped_tops          # `Lifetime` of tops that fused layers leave unwritten
    cdef list activations           # (ActivationLayer, its `deferred`: whether a Concat computes its gradient) among the nodes
    cdef list frees                 # `Lifetime` of memories whose last use this step is
    cdef readonly list updates      # learnable parameters, by number, whose gradients are complete after it (backward)
    cdef object large               # of `updates` (backward): the number whose gradient is passed on part by part; or None
    cdef list blobs                 # which the nodes read and write
    cdef unsigned long long stamp   # of their shapes and memories when the net was compiled
    cdef readonly bint ran_fused, wrote_slice    # when forward ran last: the first node computed all; it wrote the slice
    cdef readonly Layout layout     # of the first top after that forward, for `Net.schedule`; None: plain
    cdef bint forward(self, bint compiled, bint may_run_backward) except -1
    cdef int forward_nodes(self, int start) except -1
    cdef int report_others(self, str direction) except -1
    cdef int forget_other_shapes(self) except -1
    cdef int unfuse(self) except -1
    cdef Epilogue epilogue(self, bint may_run_backward)


cdef bint add_to_epilogue(Epilogue epilogue, Node node, bint may_run_backward) except -1
