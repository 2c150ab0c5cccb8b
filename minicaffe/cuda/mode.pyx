"""The device of GPU mode, chosen for the whole process, and the end of all work on devices at the process's exit."""

import atexit
import gc

from minicaffe.cuda.device cimport Device, get_device
from minicaffe.cuda.driver cimport may_call
from minicaffe.cuda.peers cimport wait_for_peer_users
from minicaffe.device.context cimport choose_gpu, compute_on, current_gpu, on_device

from minicaffe.cuda import driver
from minicaffe.cuda.device import devices_made
from minicaffe.errors import DeviceError
from minicaffe.memory.registry import registry
from minicaffe.memory.synced import device_lock


def use_gpu(index=None):
    """Compute on device `index` (by default the selected one, first 0) from now on, in all threads.

    Raises DependencyError or DeviceError if there is no driver or no such device.
    """
    driver.start()      # raises if this process was forked
    cdef Device chosen = get_device(selected() if index is None else index)
    wait_for_peer_users(chosen)
    chosen.peer_users.clear()   # a device that uses its memory later is listed again (cuda/peers.pyx)
    chosen.activate()
    compute_on(&chosen.stream)


def use_cpu():
    """Compute on the CPU from now on; the next GPU mode uses the GPU selected before."""
    compute_on(NULL)


def select(index):
    """Choose the device of GPU mode, at once if that is the current mode (Caffe's SetDevice)."""
    if on_device():
        use_gpu(index)
    else:
        choose_gpu(get_device(index).index)


def selected():
    """Return the index of the device of GPU mode, also in CPU mode; 0 until one was chosen."""
    return max(current_gpu, 0)


def current():
    """Return the `Device` that GPU mode uses, or None in CPU mode."""
    return get_device(current_gpu) if on_device() else None


def finish():
    """Finish the work of all devices, free their resources, and close the driver; atexit calls it."""
    cdef Device one
    if not may_call():
        return
    gc.collect()            # garbage in cycles would be reported as a leak (MINICAFFE_SIM=leak=1)
    device_lock.acquire()   # never released: no other thread can queue work on a stream from here on
    compute_on(NULL)
    try:
        for one in devices_made().values():
            one.synchronize()
            one.pending_owners.clear()    # before the libraries that own the memory are shut down
        registry.empty_cache()
        for one in devices_made().values():
            one.free_resources()
    except DeviceError:
        pass                # at exit no caller is left for the error; a waiting call has raised it before
    finally:
        driver.close()


atexit.register(finish)
