from cuda.bindings cimport cydriver

cdef int check(cydriver.CUresult code, str call, arguments=*) except -1
cdef error_of(cydriver.CUresult code, str call, arguments=*)
cdef bint may_call() noexcept nogil
cdef cydriver.CUcontext exchange_context(cydriver.CUcontext context) noexcept
