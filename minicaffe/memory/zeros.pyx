"""Zeros of a SyncedMemory that are written at its next access, or not at all if that overwrites everything.

Nets clear the gradients of all parameters before each backward, and most are then overwritten. The state is UNINITIALIZED.
"""

from minicaffe.device.context cimport current_gpu
from minicaffe.memory.allocator cimport bytes_of
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.states cimport HEAD_AT_CPU, HEAD_AT_GPU, HEAD_AT_PRIVATE, UNINITIALIZED, ZERO_DEVICE, ZERO_HOST
from minicaffe.memory.synced cimport PyObject, SyncedMemory, is_shared

from minicaffe.memory.synced import device_lock


cpdef bint mark_zero(SyncedMemory memory, nbytes, bint on_device=False) except -1:
    """Set all to zeros if `nbytes` is the size and only one side, on the host, is valid; return False if the caller has to.

    With `on_device` any side may be valid, but `claim_lazy_zeros` must have been called since the last time: otherwise the caller
    (`clear_gradients`) fills the memories of all parameters by one launch.
    """
    cdef size_t size = bytes_of(nbytes, "nbytes")
    cdef bint claimed, whole
    with device_lock:
        if on_device and memory.head != UNINITIALIZED:
            claimed, memory.zero_claimed = memory.zero_claimed, False
            if not claimed or size != memory.size or memory.gpu != current_gpu or is_shared(<PyObject*>memory.device):
                return False
            memory.set_head(UNINITIALIZED, "mark_zero")
            return True
        if memory.skip_zero_fill:
            return False
        whole = size == memory.size and (memory.head == HEAD_AT_CPU
                                         or memory.head == HEAD_AT_PRIVATE and memory.private_layout.plain_nbytes == memory.size)
        if not whole or memory.has_external_view():
            return memory.head == UNINITIALIZED
        memory.set_head(UNINITIALIZED, "mark_zero")
    return True


cpdef bint claim_lazy_zeros(SyncedMemory memory, bint on_device=False, Layout layout=None) except -1:
    """Return whether all is zeros that are not written yet: the caller (`Blob.gradient_on`) then overwrites, else adds.

    `layout` is the one in which it does, None for the plain side. A private side is taken by `overwrite_private_data_ptr`.
    """
    with device_lock:
        memory.zero_claimed = True
        if memory.head != UNINITIALIZED:
            return False
        if layout is None:
            memory.set_plain_side(memory.block_for(ZERO_DEVICE if on_device else ZERO_HOST), on_device)
            memory.set_head(HEAD_AT_GPU if on_device else HEAD_AT_CPU, "claim_lazy_zeros")
    return True
