from minicaffe.memory.synced cimport SyncedMemory

cdef tuple device_state(SyncedMemory memory)
cdef bint has_same_blocks(SyncedMemory memory, tuple state) except -1
cdef bint has_same_plain_block(SyncedMemory memory, tuple state) except -1
cdef bint make_device_only(SyncedMemory memory, tuple state) except -1
cdef int restore_head(SyncedMemory memory, tuple state) except -1
