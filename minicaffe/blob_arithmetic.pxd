from minicaffe.memory.synced cimport SyncedMemory

cdef int check_arithmetic(int dtype) except -1
cdef double total(SyncedMemory memory, int dtype, long long count, bint squares) except? -1
cdef int scale(SyncedMemory memory, int dtype, long long count, double factor) except -1
cdef int subtract(SyncedMemory data, SyncedMemory diff, int dtype, long long count) except -1
