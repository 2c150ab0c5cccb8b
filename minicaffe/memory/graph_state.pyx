"""State of a SyncedMemory that a CUDA graph needs: the side on the device that was valid at its recording (net/recorded.py)."""

from minicaffe.memory.buffer cimport Buffer
from minicaffe.memory.states cimport HEAD_AT_CPU, HEAD_AT_GPU_PRIVATE, RECYCLED, SYNCED, SYNCED_GPU_PRIVATE, SyncedHead
from minicaffe.memory.synced cimport SyncedMemory


cdef tuple device_state(SyncedMemory memory):
    """Return (head, address of the plain block, address of the private block) on the device, 0 for none; None if recycled.

    Not the blocks themselves: a reference to a block would count as a view (`is_shared`).
    """
    if memory.head == RECYCLED:
        return None
    return memory.head, address_of(memory.device), address_of(memory.private_block_on_device())


cdef bint has_same_blocks(SyncedMemory memory, tuple state) except -1:
    """Whether the blocks of a `device_state` are still those of this memory."""
    _, device, private = state
    return device in (0, address_of(memory.device)) and private in (0, address_of(memory.private_block_on_device()))


cdef bint has_same_plain_block(SyncedMemory memory, tuple state) except -1:
    """Whether the plain block of a `device_state` is still that of this memory; True for None."""
    return state is None or state[1] in (0, address_of(memory.device))


cdef bint make_device_only(SyncedMemory memory, tuple state) except -1:
    """Make the side on the device, if there is one, the only valid one; return whether its block is that of `state`.

    With a `device_state`, it is the side that was valid then; otherwise the private side if that is valid, or was valid before
    the host accessed the array.
    """
    cdef size_t private_address = address_of(memory.private_block_on_device())
    cdef bint was_private = HEAD_AT_GPU_PRIVATE <= memory.head <= SYNCED_GPU_PRIVATE, private = was_private
    if state is None:
        private = private or private_address and memory.head in (HEAD_AT_CPU, SYNCED)
    elif memory.head != RECYCLED and (state[2] == private_address or state[1] and not state[2]):     # not exchanged since
        private = private_address and state[0] == HEAD_AT_GPU_PRIVATE
    if private:
        memory.mutable_private_data_ptr(memory.private_layout)
    elif memory.device is not None or was_private:
        memory.mutable_gpu_data_ptr()
    return private or has_same_plain_block(memory, state)


cdef int restore_head(SyncedMemory memory, tuple state) except -1:
    """Restore the head of a `device_state`: after a CUDA graph wrote or converted a side on the device, or a recording failed."""
    cdef SyncedHead head = state[0]
    if (HEAD_AT_GPU_PRIVATE <= head <= SYNCED_GPU_PRIVATE or HEAD_AT_GPU_PRIVATE <= memory.head <= SYNCED_GPU_PRIVATE) \
            and head != memory.head and memory.head != RECYCLED and has_same_blocks(memory, state):
        memory.set_head(head, "a CUDA graph")
    return memory.publish_private()


cdef size_t address_of(Buffer block) noexcept:
    return 0 if block is None else <size_t>block.ptr
