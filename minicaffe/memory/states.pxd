cpdef enum SyncedHead:
    UNINITIALIZED = 0       # no side is valid: the first read gives zeros
    HEAD_AT_CPU             # the host side is valid
    HEAD_AT_GPU             # the device side
    SYNCED                  # both
    HEAD_AT_PRIVATE         # the private side, on the host
    SYNCED_PRIVATE          # that and the host side
    HEAD_AT_GPU_PRIVATE     # the private side, on the device
    SYNCED_GPU_PRIVATE      # that and the device side
    RECYCLED                # no side has memory, and each access is an error until all contents are replaced

cpdef enum Action:
    KEEP            # nothing to do
    ZERO_HOST       # fill the host side with zeros; allocate it if there is none
    ZERO_DEVICE     # ... the device side
    TO_HOST         # copy device to host; allocate the host side if there is none
    TO_DEVICE       # copy host to device; allocate the device side if there is none
    PUSH            # TO_DEVICE on a stream, which the caller waits for
    FILL_DEVICE     # copy another memory's device side to the device side; allocate that if there is none
    ADOPT_HOST      # take foreign memory as the host side
    ADOPT_DEVICE    # ... as the device side
    ZERO_PRIVATE    # fill the private side with zeros, which are zeros in any layout; allocate it if there is none
    TO_PRIVATE      # reorder the plain side on the same device to private; allocate the private side if there is none
    TO_PLAIN        # reorder private to the plain side on the same device; allocate that if there is none
    TAKE_PRIVATE    # allocate the private side if there is none; its contents are undefined
    VIA_HOST        # do CPU_DATA first, then the action of this call in the new state
    VIA_DEVICE      # the same with GPU_DATA
    REFUSE          # raise an error

cpdef enum Call:            # methods of SyncedMemory, in lower case there
    CPU_DATA
    MUTABLE_CPU_DATA
    GPU_DATA
    MUTABLE_GPU_DATA
    SET_CPU_DATA
    SET_GPU_DATA
    SET_CPU_COPY
    ASYNC_GPU_PUSH
    COPY_ON_DEVICE
    PRIVATE_DATA
    MUTABLE_PRIVATE_DATA
    OVERWRITE_PRIVATE_DATA
    GPU_PRIVATE_DATA            # the same three for layouts of devices
    MUTABLE_GPU_PRIVATE_DATA
    OVERWRITE_GPU_PRIVATE_DATA

cdef enum:
    STATES = 9
    CALLS = 15
    TO_DEVICE_CALL = 3          # offset from a call for a private side on the host to the one for a device

cdef struct TableEntry:
    Action action
    SyncedHead head     # the new state
    bint idle           # neither action nor a new head: the fast path

cdef TableEntry steps[CALLS][STATES]      # [call][present state]: TABLE for the C compiler
