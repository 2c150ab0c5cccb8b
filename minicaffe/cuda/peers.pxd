from minicaffe.cuda.device cimport Device, Stream

cdef int wait_for_device(Stream target_stream, Device other) except -1
cdef int wait_for_peer_users(Device owner) except -1
cdef int wait_for_device_and_peer_users(Stream target_stream, Device other) except -1
cdef int use_peer_memory(Device user, Device owner, str name) except -1
