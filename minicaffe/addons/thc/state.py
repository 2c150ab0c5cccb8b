"""A snapshot of what this process holds on its devices (THC's THCState): ``print(minicaffe.cuda.state())``.

Different from THC: there every call works with the state. Here `Device` and the allocators' registry do that, and this is a
copy of their numbers. It starts no driver, makes no device, opens no library and draws no random number.
"""

import sys
from typing import NamedTuple

from minicaffe.common import caffe
from minicaffe.memory.place import CUDAPlace, PinnedPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.reporter import Stats


class DeviceState(NamedTuple):
    """One device that this process uses.

    Attributes
    ----------
    index, name, architecture, launches
        As of `Device`.
    streams : dict
        CUstream (int) of ``computing`` and of ``copies``; ``others``, how many further `Stream` objects are alive.
    handles : dict
        Versions of ``cuBLAS`` and ``cuDNN`` (int); None for one that is not open here.
    allocator : str
        Names of the allocators of its memory, the outermost first; empty if none was used.
    stats : Stats
        Live, peak and reserved bytes, live count and number of allocations.
    scratch_bytes, workspace_bytes : int
        Memory of the computing stream, beside the allocator's: for sums in two steps; for long matrix products and cuBLAS.
    """

    index: int
    name: str
    architecture: str
    launches: int
    streams: dict
    handles: dict
    allocator: str
    stats: Stats
    scratch_bytes: int
    workspace_bytes: int

    def __str__(self):
        handles = ", ".join(f"{name} {'not open' if version is None else version}" for name, version in self.handles.items())
        return (f"device {self.index}: {self.name}, {self.architecture}, {self.launches:,} launches\n"
                f"  streams     computing {self.streams['computing']:#x}, copies {self.streams['copies']:#x}, "
                f"{self.streams['others']} others\n"
                f"  libraries   {handles}\n"
                f"  memory      {_memory(self.allocator, self.stats)}\n"
                f"  of its own  scratch {self.scratch_bytes:,} bytes, workspace {self.workspace_bytes:,} bytes")


class State(NamedTuple):
    """The snapshot; `str` formats it for printing.

    Attributes
    ----------
    devices : dict
        Index of each device that was used so far -> `DeviceState`.
    current : int or None
        Where GPU mode computes; None in CPU mode.
    pinned, pinned_stats : str, Stats
        Allocators and counters of page-locked host memory, as in `DeviceState`.
    generator : tuple of int, or None
        Seed, and number of counters used, of the calling thread's random numbers; None before the first.
    peers : list of list of int
        ``peers[i][j]``: 1 if kernels of device i may use the memory of device j, 0 if not, -1 if it was never requested. A row
        for every device that the driver has.
    """

    devices: dict
    current: int | None
    pinned: str
    pinned_stats: Stats
    generator: tuple | None
    peers: list

    def __str__(self):
        lines = [str(one) + ("\n  GPU mode computes here" if index == self.current else "") for index, one in self.devices.items()]
        lines += [] if self.devices else ["no device was used yet"]
        if self.pinned:
            lines.append(f"page-locked host memory: {_memory(self.pinned, self.pinned_stats)}")
        lines.append("random numbers of this thread: " + ("none drawn yet" if self.generator is None else
                                                         "seed {}, {:,} counters used".format(*self.generator)))
        if self.peers:
            lines.append("peer access of kernels on row to memory of column: 1 yes, 0 no, -1 never requested")
            lines.append("".join(f"{j:4}" for j in ("", *range(len(self.peers)))))
            lines += ["".join(f"{number:4}" for number in (i, *row)) for i, row in enumerate(self.peers)]
        return "\n".join(lines)


def state():
    """Return a snapshot of what this process holds on its devices.

    Returns
    -------
    State
        Before GPU mode: without devices.
    """
    made, now, devices, peers = {}, None, {}, []
    if "minicaffe.cuda.device" in sys.modules:  # where it was not imported, no device was used
        from minicaffe.cuda.device import devices_made
        from minicaffe.cuda.mode import current
        made, now = devices_made(), current()
    for index, device in sorted(made.items()):
        streams = {"computing": device.compute_stream, "copies": device.copies.address, "others": device.streams - 1}
        devices[index] = DeviceState(index, device.name, device.architecture, device.launches, streams, device.library_versions,
                                     *_allocators_of(CUDAPlace(index)), device.scratch_bytes, device.workspace_bytes)
    if made:
        from minicaffe.cuda import driver
        every = range(driver.count())
        peers = [[1 if i == j else made[i].peer_access(made[j]) if i in made and j in made else -1 for j in every] for i in every]
    generator = caffe.existing_generator
    return State(devices, now.index if now else None, *_allocators_of(PinnedPlace()),
                 generator and (generator.seed, generator.offset), peers)


def _allocators_of(place):
    """Return the names of the allocators of a place, and its Stats; creates none."""
    names, allocator = [], registry.in_use(place)
    while allocator is not None:
        names.append(type(allocator).__name__)
        allocator = allocator.upstream
    return " on ".join(names), registry.stats(place)


def _memory(allocator, stats):
    return (f"{allocator or 'no allocator yet'}: {stats.live:,} bytes live in {stats.count:,} blocks, {stats.peak:,} at most, "
            f"{stats.reserved:,} reserved")
