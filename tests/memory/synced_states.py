"""The states of a SyncedMemory: Caffe's table written out by hand, how each state is reached, and its calls by name."""

import ctypes

import numpy as np
from doubles import Backwards

from minicaffe.memory import CUDAPlace, SyncedHead, SyncedMemory
from minicaffe.memory.registry import registry

N = 24
CONTENT = bytes(range(1, N + 1))
LAYOUT, DEVICE_LAYOUT = Backwards(N, 8), Backwards(N, 0, on_device=True)

# Which sides are valid in a state: of the host (C), of the device (G), private ones of the host (P) and of the device (Q).
NAMES = {"U": "UNINITIALIZED", "C": "HEAD_AT_CPU", "G": "HEAD_AT_GPU", "CG": "SYNCED", "P": "HEAD_AT_PRIVATE", "CP": "SYNCED_PRIVATE",
         "Q": "HEAD_AT_GPU_PRIVATE", "GQ": "SYNCED_GPU_PRIVATE", "R": "RECYCLED"}
# The new state of each call, and its steps: z and 0 fill the host's and the device's side with zeros, > and < copy to and from the device,
# ^ pushes, = copies within the device, + reorders. Calls for a layout of the device are named gpu_private_data and so on here.
TABLE = """
call                        U     C     G     CG    P     CP    Q      GQ    R
cpu_data                    Cz    C     CG<   CG    CP+   CP    CG+<   CG<   no
mutable_cpu_data            Cz    C     C<    C     C+    C     C+<    C<    no
gpu_data                    G0    CG>   G     CG    CG+>  CG>   GQ+    GQ    no
mutable_gpu_data            G0    G>    G     G     G+>   G>    G+     G     no
set_cpu_data                C     C     C     C     C     C     C      C     C
set_gpu_data                G     G     G     G     G     G     G      G     G
set_cpu_copy                no    no    CG    CG    no    no    CG+    CG    no
async_gpu_push              no    CG^   no    no    CG+^  CG^   no     no    no
copy_on_device              G=    G=    G=    G=    G=    G=    G=     G=    G=
private_data                P     CP+   CP<+  CP+   P     CP    CP+<+  CP<+  no
mutable_private_data        P     P+    P<+   P+    P     P     P+<+   P<+   no
overwrite_private_data      P     P     P     P     P     P     P      P     no
gpu_private_data            Q0    GQ>+  GQ+   GQ+   GQ+>+ GQ>+  Q      GQ    no
mutable_gpu_private_data    Q0    Q>+   Q+    Q+    Q+>+  Q>+   Q      Q     no
overwrite_gpu_private_data  Q     Q     Q     Q     Q     Q     Q      Q     no
"""
CALLS = [row.split()[0] for row in TABLE.strip().splitlines()[1:]]


def expected():
    """Return the new state and the steps by state and call; None: the call is refused."""
    (_, *states), *rows = [line.split() for line in TABLE.strip().splitlines()]
    found = {}
    for call, *row in rows:
        for state, cell in zip(states, row, strict=True):
            new = cell.rstrip("z0<>^=+")
            found[NAMES[state], call] = None if new == "no" else (NAMES[new], cell.removeprefix(new))
    return found


EXPECTED = expected()
# With the other side allocated before or not.
ROUTES = {
    "UNINITIALIZED": [[]],
    "HEAD_AT_CPU": [["mutable_cpu_data"], ["mutable_gpu_data", "mutable_cpu_data"], ["set_cpu_data"]],
    "HEAD_AT_GPU": [["mutable_gpu_data"], ["mutable_cpu_data", "mutable_gpu_data"], ["set_gpu_data"]],
    "SYNCED": [["mutable_cpu_data", "gpu_data"], ["mutable_gpu_data", "cpu_data"], ["mutable_cpu_data", "async_gpu_push"]],
    "HEAD_AT_PRIVATE": [["mutable_cpu_data", "mutable_private_data"]],
    "SYNCED_PRIVATE": [["mutable_cpu_data", "private_data"]],
    "HEAD_AT_GPU_PRIVATE": [["mutable_gpu_data", "mutable_gpu_private_data"]],
    "SYNCED_GPU_PRIVATE": [["mutable_gpu_data", "gpu_private_data"]],
    "RECYCLED": [["mutable_cpu_data", "private_data", "recycle"]],
}


def read(buffer):
    """Bytes of a side; the device of these tests is host memory, so its address can be read."""
    return ctypes.string_at(buffer.address, buffer.nbytes)


def write(buffer, content):
    ctypes.memmove(buffer.address, content, len(content))


def layout_of(call):
    """The layout that a call for a private side names."""
    return DEVICE_LAYOUT if "gpu_" in call else LAYOUT


def call_side(mem, call):
    """Do one of the calls that give a side."""
    return getattr(mem, call.replace("gpu_", ""))(layout_of(call)) if "private" in call else getattr(mem, call)()


def perform(mem, call, given):
    """Do any call; one that takes bytes gets `given`. Return the bytes of the side that it gives, or None."""
    if call in ("set_cpu_data", "set_cpu_copy"):
        getattr(mem, call)(bytearray(given))
    elif call == "set_gpu_data":
        array = np.frombuffer(bytearray(given), np.uint8)
        mem.set_gpu_data(array.ctypes.data, array)
    elif call == "async_gpu_push":
        mem.async_gpu_push("stream")
        registry.device_side(CUDAPlace(0)).synchronise()
    elif call == "copy_on_device":
        source = SyncedMemory(N, "source")
        write(source.mutable_gpu_data(), given)
        mem.copy_on_device(source, N)
    elif call == "recycle":
        mem.recycle()
    else:
        return read(call_side(mem, call))
    return None


def in_state(state, content=CONTENT, route=None, earlier=b"\xee" * N):
    """A memory in `state` that holds `content`, or zeros if it was never touched; what was written before is `earlier`."""
    mem = SyncedMemory(N, "blob data")
    route = ROUTES[state][0] if route is None else route
    writes = [step for step in route if step in ("mutable_cpu_data", "mutable_gpu_data")]
    for step in route:
        if step in writes:
            write(call_side(mem, step), content if step == writes[-1] else earlier)
        else:
            perform(mem, step, content)
    mem.publish_private()
    assert SyncedHead(mem.head).name == state
    return mem
