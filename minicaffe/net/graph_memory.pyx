"""The states of memories with which a CUDA graph of a net begins and ends, and a loss that a GPU may still compute.

A replay changes no `SyncedMemory.head`: recorded.py calls these functions around each replay, and around the recording.
"""

from minicaffe.blob cimport Blob
from minicaffe.memory.buffer cimport Buffer
from minicaffe.memory.states cimport HEAD_AT_CPU, HEAD_AT_GPU_PRIVATE, RECYCLED, SYNCED, SYNCED_GPU_PRIVATE, SyncedHead
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport Node


def make_device_only(list blobs not None, set source_blobs not None, before=None, after=None):
    """Make the device's copy the only valid one of each blob that has one, except data of sources.

    Labels are checked on the host, so data of sources stay valid there, also where tops of a Split or a Reshape share them.

    Parameters
    ----------
    blobs : list of Blob
        Of any shapes.
    source_blobs : set of Blob
        Of any shapes: those with the data of sources.
    before, after : list, optional
        What `device_states` returned before and after a CUDA graph was recorded. Each memory is put into the state of before,
        unless it was recycled afterwards: then it is recycled, since a replay computes it elsewhere.

    Returns
    -------
    bool
        False if a memory has another block than when the graph was recorded, or cannot be recycled.
    """
    cdef Blob blob
    cdef SyncedMemory memory
    cdef bint there
    cdef int i = -1
    for blob in blobs:
        for memory in (blob.data_memory, blob.diff_memory):
            i += 1
            if after is not None and after[i] is None:
                if memory.head != RECYCLED and not memory.recycle():
                    return False
                continue
            state = before[i] if before is not None else None
            if memory is blob.data_memory and blob in source_blobs:
                memory.make_plain_only("a CUDA graph")    # which has to convert each new batch
                there = has_same_plain_block(memory, state)
            else:
                there = make_side_device_only(memory, state)
            if after is not None and not (there and has_same_blocks(memory, after[i])):
                return False
    return True


def device_states(list blobs not None):
    """Return for each memory of the blobs its head and blocks on the device (`state_of`)."""
    cdef Blob blob
    return [state_of(memory) for blob in blobs for memory in (blob.data_memory, blob.diff_memory)]


def restore_heads(list blobs not None, list after not None):
    """Mark the device's copy valid for each memory for which it was valid after the CUDA graph was recorded."""
    cdef Blob blob
    for i, blob in enumerate(blobs):
        for state, memory in zip(after[2 * i:2 * i + 2], (blob.data_memory, blob.diff_memory)):
            if state is not None:
                restore_head(memory, state)


cdef tuple state_of(SyncedMemory memory):
    """Return (head, address of the plain block, address of the private block) on the device, 0 for none; None if recycled.

    Not the blocks themselves: a reference to a block would count as a view (`is_shared`).
    """
    if memory.head == RECYCLED:
        return None
    return memory.head, address_of(memory.device), address_of(memory.private_block_on_device())


cdef bint has_same_blocks(SyncedMemory memory, tuple state) except -1:
    """Return whether the blocks that `state_of` returned are still those of this memory."""
    _, device, private = state
    return device in (0, address_of(memory.device)) and private in (0, address_of(memory.private_block_on_device()))


cdef bint has_same_plain_block(SyncedMemory memory, tuple state) except -1:
    """Return whether the plain block that `state_of` returned is still that of this memory; True for the state None."""
    return state is None or state[1] in (0, address_of(memory.device))


cdef bint make_side_device_only(SyncedMemory memory, tuple state) except -1:
    """Make the side on the device, if there is one, the only valid one; return whether its block is that of `state`.

    With a state from `state_of`, it is the side that was valid then; otherwise the private side if that is valid, or was valid
    before the host accessed the array.
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
    """Restore the head that `state_of` returned, after a replay wrote or converted a side on the device, or a recording failed."""
    cdef SyncedHead head = state[0]
    if (HEAD_AT_GPU_PRIVATE <= head <= SYNCED_GPU_PRIVATE or HEAD_AT_GPU_PRIVATE <= memory.head <= SYNCED_GPU_PRIVATE) \
            and head != memory.head and memory.head != RECYCLED and has_same_blocks(memory, state):
        memory.set_head(head, "a CUDA graph")
    return memory.publish_private()


cdef size_t address_of(Buffer block) noexcept:
    return 0 if block is None else <size_t>block.ptr


class LateLoss:
    """The loss of a net's last run, which a GPU may still compute: copies of the tops, so that later runs leave it."""

    def __init__(self):
        self.copies = {}        # top -> its copy, which later runs use again

    def of(self, net):
        """Return a function that returns the loss of the last run of `net`; it may be called up to the next call of `of`."""
        kept = [(node, [self._copy(top) if weight else top for top, weight in zip(node.tops, node.loss_weights)])
                for node in net.nodes if node.layer.has_loss]

        def read_loss():
            return sum([(<Node?> node).loss(tops) for node, tops in kept], 0.0)

        return read_loss

    def _copy(self, Blob top):
        """Return a blob with a copy of the data of `top` and with its diff, the loss weights; on a GPU the host does not wait."""
        cdef Blob copy = self.copies.get(top)
        if copy is None or copy.shape != top.shape or copy.diff_memory is not top.diff_memory:
            copy = self.copies[top] = Blob(top.shape, top.dtype, top.name)
            copy.share_diff(top)
        copy.copy_from(top)
        return copy
