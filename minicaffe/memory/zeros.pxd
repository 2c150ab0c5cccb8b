from minicaffe.memory.layout cimport Layout
from minicaffe.memory.synced cimport SyncedMemory

cpdef bint mark_zero(SyncedMemory memory, nbytes, bint on_device=*) except -1
cpdef bint claim_lazy_zeros(SyncedMemory memory, bint on_device=*, Layout layout=*) except -1
