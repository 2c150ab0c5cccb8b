"""Memory of one device, the owner, that another one, the user, uses.

It is inaccessible to kernels of the user unless `enable_peer_access` was called. Then the computing streams are synchronized:
the user's waits for the owner's (`use_peer_memory`), and the owner's waits for the user's before its next work
(`wait_for_peer_users`). The host does not wait.
"""

from cuda.bindings cimport cydriver

from minicaffe.cuda.device cimport Device, Event, Stream, computing, get_device
from minicaffe.cuda.driver cimport check
from minicaffe.device.context cimport current_gpu

from minicaffe.errors import DeviceError, WrongDeviceError


cdef int wait_for_device(Stream target_stream, Device other) except -1:
    """Make `target_stream`, whose device is current afterwards, wait for the work now queued on the computing stream of `other`."""
    cdef Event event
    if target_stream.device is other and <void*> target_stream.handle == other.stream.handle:
        return 0        # the same stream: nothing to wait for, and the current device stays
    event = Event(other)
    event.record(computing(other))
    target_stream.wait(event)


cdef int wait_for_peer_users(Device owner) except -1:
    """Make the computing stream of `owner` wait for the devices that use memory of it, before new work on it."""
    for user in owner.peer_users:
        wait_for_device(computing(owner), user)


cdef int wait_for_device_and_peer_users(Stream target_stream, Device other) except -1:
    """As `wait_for_device`, and also wait for other devices that use memory of `other` now."""
    wait_for_peer_users(other)
    return wait_for_device(target_stream, other)


cdef int use_peer_memory(Device user, Device owner, str name) except -1:
    """Synchronize the computing stream of `user` with `owner`, whose memory it uses next; raise WrongDeviceError without access."""
    if user is owner:
        return 0
    if user.peer_access(owner) != 1:
        raise WrongDeviceError(f"{name or 'the memory'} is on GPU {owner.index}, the current GPU is {user.index}; select its GPU "
                               f"(minicaffe.set_device({owner.index})), copy it (blob.copy_from), or let GPU {user.index} use it "
                               f"(cuda.enable_peer_access({user.index}, {owner.index}))")
    wait_for_device_and_peer_users(computing(user), owner)
    if user not in owner.peer_users:
        owner.peer_users.append(user)


def enable_peer_access(device, peer):
    """Let kernels and copies of `device` use the memory of `peer` (indices); the opposite direction needs a second call.

    Raises DeviceError if the two are not peers (``get_device(device).reaches(get_device(peer))``), or are the same.
    """
    cdef Device user = get_device(device), owner = get_device(peer)
    if user is owner or not user.reaches(owner):
        user.peers[owner.index] = 0
        raise DeviceError(f"GPU {device} cannot use the memory of GPU {peer}: " + (
            "a GPU is not a peer of itself, and needs no access to its own memory" if user is owner else
            "they are not peers; nvidia-smi topo -p2p r shows which are. Copies between them work without peer access"),
            code="CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")
    user.activate()
    code = cydriver.cuCtxEnablePeerAccess(owner.context, 0)
    if code != cydriver.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:     # another library may have done it
        check(code, "cuCtxEnablePeerAccess", (device, peer))
    user.peers[owner.index] = 1


def disable_peer_access(device, peer):
    """Undo `enable_peer_access`, after `device` has finished its work. Raises DeviceError if it was not enabled."""
    cdef Device user = get_device(device), owner = get_device(peer)
    user.synchronize()
    check(cydriver.cuCtxDisablePeerAccess(owner.context), "cuCtxDisablePeerAccess", (device, peer))
    user.peers[owner.index] = 0


def check_owner(int owner, str name):
    """Raise WrongDeviceError unless the current GPU may use memory `name` of GPU `owner` (-1: all GPUs may); order their work."""
    if owner not in (-1, current_gpu):
        use_peer_memory(get_device(current_gpu), get_device(owner), name)
