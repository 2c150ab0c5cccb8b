"""The allocator of each place (PaddlePaddle's ``memory::Alloc``, ``Free`` and ``Used``).

Host memory is registered from the start. The modules that provide pinned and CUDA memory call `register`, so this package
does not need a driver.
"""

from collections import namedtuple
from numbers import Integral
from threading import RLock

from minicaffe.device import context
from minicaffe.errors import ConfigError, DependencyError, PointerError, WrongTypeError, shown
from minicaffe.memory import reporter
from minicaffe.memory.allocator import Allocator, SystemAllocator
from minicaffe.memory.buffer import Buffer
from minicaffe.memory.caching import CachingAllocator
from minicaffe.memory.named import make_allocator
from minicaffe.memory.place import CPUPlace, CUDAPlace, PinnedPlace, check_place

Provider = namedtuple("Provider", "factory side streams default")   # the arguments of `Registry.register`
HOST_PLACES = CPUPlace(), PinnedPlace()


class Registry:
    """One allocator for each place, and one device side for each CUDA place, made on first use; `registry` is the process's."""

    def __init__(self):
        self._providers = {CPUPlace: Provider(SystemAllocator, None, None, "plain")}  # place type -> Provider
        self._allocators = {}  # place -> Allocator
        self._sides = {}  # place -> DeviceSide
        self._pool = None  # see host_pool; None: not made for the present allocator
        self._blocks = {}  # (place, address) -> Buffer, for alloc and free
        self._lock = RLock()  # reentrant: a factory may use the allocator of another place

    def register(self, place_type, factory, side=None, streams=None, default="plain"):
        """Register the provider of memory for a kind of place; a later call replaces an earlier one.

        Parameters
        ----------
        place_type : type
            PinnedPlace, CUDAPlace or CPUPlace.
        factory : callable
            ``factory(place)`` returns a new plain Allocator of `place`, on which the named allocators are built.
        side : callable, optional
            ``side(place)`` returns the DeviceSide that copies to and from `place`.
        streams : callable, optional
            ``streams(place)`` returns the StreamOrder that caching allocators use.
        default : str
            Name of the default allocator, as for `use`.
        """
        with self._lock:
            self.unregister(place_type)
            self._providers[place_type] = Provider(factory, side, streams, default)

    def unregister(self, place_type):
        """Remove the provider of a kind of place, its allocators and device sides; live blocks keep their allocator."""
        with self._lock:
            self._providers.pop(place_type, None)
            for made in self._allocators, self._sides:
                for place in [p for p in made if type(p) is place_type]:
                    del made[place]
            if place_type is CPUPlace:
                self._pool = None

    def use(self, place, allocator):
        """Let `allocator` serve `place` from now on; None restores the registered one. Live blocks keep their allocator.

        Parameters
        ----------
        place : place
        allocator : Allocator, str or None
            A name is one of `make_allocator`, such as ``"caching"`` or ``"buddy+limit:2GiB"``.

        Returns
        -------
        Allocator or None
            The one in use before, if any.

        Raises
        ------
        ConfigError
            If the allocator is of another place, or the name is unknown.
        DependencyError
            If no provider of such memory is registered (names only).
        """
        check_place(place, "memory.use")
        if isinstance(allocator, str):
            allocator = self._new_allocator(place, allocator)
        if not isinstance(allocator, Allocator | None):
            raise WrongTypeError(f"memory.use needs an Allocator, its name or None, got {shown(allocator)}")
        if allocator is not None and allocator.place != place:
            raise ConfigError(f"memory.use: an allocator of {allocator.place} cannot serve {place}")
        with self._lock:
            before = self._allocators.pop(place, None)
            if allocator is not None:
                self._allocators[place] = allocator
            if place == CPUPlace():
                self._pool = None
            return before

    def allocator(self, place, name=None):
        """Return the allocator of `place`; with a `name`, as for `use`, a new one, such as ``"plain"`` to be wrapped.

        Raises
        ------
        ConfigError
            If the name is unknown.
        DependencyError
            If no provider of such memory is registered.
        """
        if name is not None:
            return self._new_allocator(place, name)
        with self._lock:
            if type(place).__hash__ is None:
                check_place(place, "memory.allocator_of")
            if place not in self._allocators:
                self._allocators[place] = self._new_allocator(place, self._provider(place).default)
            return self._allocators[place]

    def host_pool(self):
        """Return the host allocator for memory reused within an iteration: blobs under a plan, scratch memory.

        Above the C library's allocator it is a CachingAllocator that works as an arena. Another allocator of the user is returned
        as it is: the free blocks of a cache above it would count as used in its limit.
        """
        pool = self._pool   # a fast path: several operations of each iteration call this
        if pool is None:
            with self._lock:
                upstream = self.allocator(CPUPlace())
                alone = not isinstance(upstream, SystemAllocator)
                pool = self._pool = upstream if alone else CachingAllocator(upstream, constants="arena")
        return pool

    def in_use(self, place):
        """Return the allocator of `place` if it exists already, else None: for displays of the memory, which make none."""
        return self._allocators.get(place)

    def all_in_use(self):
        """List all existing allocators, including that of `host_pool`, for `empty_cache` and traces."""
        with self._lock:
            return list(dict.fromkeys([*self._allocators.values(), *([self._pool] if self._pool is not None else [])]))

    def _new_allocator(self, place, name):
        """Make the allocator `name`, as of `make_allocator`, on a new plain one of the provider, for `use` and `allocator`."""
        with self._lock:
            made = self._provider(place).factory(place)
            return made if name == "plain" else make_allocator(name, made, self.stream_order(place))

    def device_side(self, place):
        """Return the DeviceSide that copies to and from `place`; errors as `allocator`."""
        with self._lock:
            if place not in self._sides:
                side = self._provider(place).side
                if side is None:
                    raise ConfigError(f"{place}: its provider registered an allocator, but no DeviceSide to copy to it")
                self._sides[place] = side(place)
            return self._sides[place]

    def stream_order(self, place):
        """Return a new StreamOrder of `place`, or None if its provider has none; errors as `allocator`."""
        streams = self._provider(place).streams
        return streams(place) if streams else None

    def block_at(self, place, address):
        """Return the Buffer of the block from `alloc` in which `address` lies, for `memory.copy`; None if there is none."""
        return self._blocks.get((place, address)) or next((
            block for (where, start), block in list(self._blocks.items())
            if where == place and start <= address < start + block.nbytes), None)

    def _provider(self, place):
        """Return the Provider of a kind of place; DependencyError, with what to install, if none is registered."""
        if type(place) not in self._providers:
            check_place(place, "minicaffe.memory")
            raise DependencyError(
                f"{place}: no CUDA provider is registered; install one with `pip install 'minicaffe[cuda]'` and switch "
                "to GPU mode, or set MINICAFFE_DEVICE=sim"
            )
        return self._providers[type(place)]

    @property
    def host_place(self):
        """CPUPlace or PinnedPlace: where new host sides of SyncedMemory are allocated (device/context.pyx)."""
        return HOST_PLACES[context.host_is_pinned()]

    @property
    def device_place(self):
        """CUDAPlace: the device of SyncedMemory created from now on (device/context.pyx)."""
        return CUDAPlace(context.gpu_of_memory())

    def set_host_place(self, place):
        """Choose where new host sides are allocated: CPUPlace() or PinnedPlace()."""
        check_place(place, "memory.set_host_place")
        if not place.on_host:
            raise ConfigError(f"memory.set_host_place: must be CPUPlace() or PinnedPlace(), got {place}")
        context.set_memory_placement(pinned=place == PinnedPlace())

    def set_device_place(self, place):
        """Choose the device of SyncedMemory created from now on."""
        check_place(place, "memory.set_device_place")
        if place.on_host:
            raise ConfigError(f"memory.set_device_place: must be a CUDAPlace, got {place}")
        context.set_memory_placement(gpu=place.device)

    def alloc(self, place, nbytes, name="", stream=None):
        """Allocate `nbytes` bytes at `place` and return the address (int), 64-byte aligned; pair it with `free`.

        Parameters
        ----------
        place : place
        nbytes : int
        name : str
            What the block serves, for the reporter.
        stream : int or cuda.Stream, optional
            The stream that will use it, see `Allocator.malloc`; None: the current one.

        Raises
        ------
        OutOfMemoryError, DependencyError, ConfigError
        """
        check_place(place, "memory.alloc")
        if not isinstance(nbytes, Integral) or not 0 <= nbytes < 1 << 64:
            raise WrongTypeError(f"memory.alloc needs a number of bytes, an int of at least 0, got {shown(nbytes)}")
        block = Buffer(self.allocator(place), nbytes, name, stream)
        self._blocks[place, block.address] = block
        return block.address

    def free(self, place, address):
        """Free a block from `alloc`.

        Raises
        ------
        PointerError
            If no such block lives at `place`.
        """
        check_place(place, "memory.free")
        if not isinstance(address, Integral):
            raise WrongTypeError(f"memory.free needs an address, as memory.alloc gave it, got {shown(address)}")
        if self._blocks.pop((place, address), None) is None:
            raise PointerError(
                f"memory.free: {address:#x} is not a live block of {place}; it was freed before, or memory.alloc never gave it"
            )

    def empty_cache(self, place=None):
        """Return the unused memory in the cache of `place`'s allocator (None: of all allocators) to its upstream."""
        if place is not None:
            check_place(place, "memory.empty_cache")
        for allocator in self.all_in_use():
            if place in (None, allocator.place):
                allocator.empty_cache()

    def used(self, place):
        """Count the bytes of all blocks that live at `place`."""
        return self.stats(place).live

    def stats(self, place):
        """Return the `Stats` of `place`; `reserved` is what its current allocator holds from its upstream."""
        check_place(place, "memory.used and memory.stats")
        used = reporter.stats().get(place, reporter.Stats(0, 0, 0, 0, 0))
        allocator = self._allocators.get(place)
        return used._replace(reserved=allocator.stats().reserved if allocator else 0)


registry = Registry()
