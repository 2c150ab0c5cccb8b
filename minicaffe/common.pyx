"""The state of Caffe's common.hpp: mode, random generator, and the rank in a parallel training.

Different from Caffe: the mode belongs to the process, so that new threads inherit it; the random numbers are
counter-based (kernels/random.hpp), so that the state of a generator is two integers that a snapshot can hold.
"""

from minicaffe.device.context cimport on_device

import contextlib
import os
import threading
import weakref

from minicaffe import entry_points
from minicaffe.errors import ConfigError, int_of, shown
from minicaffe.proto.files import REMEDY, is_below, working_directory

TRAIN, TEST = 0, 1  # minicaffe.proto Phase


cdef class Generator:
    """A stream of random numbers: a `seed` and how many counters of its stream were used, `offset`."""

    def __init__(self, seed=None):
        self.seed = int.from_bytes(os.urandom(8), "little") if seed is None else int_of(seed, "seed") & 0xFFFFFFFFFFFFFFFF
        self.offset = 0

    cdef unsigned long long reserve(self, long long count) noexcept:
        """Reserve the next `count` counters, each for one draw or some, and return the first; no other draw gets them."""
        cdef unsigned long long start = self.offset
        self.offset += count
        return start

    def reserve_counters(self, count=1):
        """Reserve the next `count` counters of the stream and return the first; raise ConfigError if they are too many to count."""
        if not 0 <= int_of(count, "count") < 1 << 63:
            raise ConfigError(f"must be from 0 to below 2^63, got {shown(count)}", field="count")
        return self.reserve(count)


class Caffe:
    """The state of this process as far as pycaffe shows it."""

    def __init__(self):
        self.solver_count = 1       # solvers that train together; a program sets the first three, or `join_group`
        self.solver_rank = 0
        self.multiprocess = False   # each of them is in a process of its own
        self._group = None  # a weak reference to the Group, or None
        # Which modules a model file's Python layers may import: True any, False none, None the program's own
        # (layers/python.py).
        self.allow_python_layers = None
        self._local = threading.local()     # `generator` and `within` of each thread

    @property
    def mode(self):
        """``"cpu"`` or ``"gpu"``: where nets compute (minicaffe.cuda.use_gpu)."""
        return "gpu" if on_device() else "cpu"

    @property
    def group(self):
        """The processes that train with this one (minicaffe.parallel.group.Group), see `join_group`; None: it trains alone."""
        return self._group and self._group()

    def join_group(self, group):
        """Count this process as one of `group` until that object is deleted, with its solver."""
        self.solver_count, self.solver_rank, self.multiprocess = group.size, group.rank, True
        self._group = weakref.ref(group, self.leave_group)

    def leave_group(self, _=None):      # `_`: the dead weak reference
        """Train alone again."""
        self.solver_count, self.solver_rank, self.multiprocess, self._group = 1, 0, False, None

    @property
    def generator(self):
        """The calling thread's generator; seeded by the system until `seed` is called."""
        if not hasattr(self._local, "generator"):
            self._local.generator = Generator()
        return self._local.generator

    @property
    def existing_generator(self):
        """The calling thread's generator, None before its first use."""
        return getattr(self._local, "generator", None)

    @property
    def within(self):
        """The folder that files named by the net that the calling thread is building must lie in; None if it is trusted.

        A layer that opens files later, in forward or in a thread of its own, keeps it for them (minicaffe/proto/files.py).
        """
        return getattr(self._local, "within", None)

    @property
    def trusted(self):
        """Whether the net that the calling thread is building may touch what its file names: see `check_path`."""
        return self.within is None

    def trusting(self, trusted):
        """Build nets in this ``with`` block as trusted or not; a net within a net is trusted no further than the outer one."""
        return self.confined(None if trusted else working_directory())

    @contextlib.contextmanager
    def confined(self, within):
        """Confine nets built in this ``with`` block to files in the folder `within`; None: no change. An outer folder holds on."""
        before = self.within
        self._local.within = within if before is None else before
        try:
            with contextlib.nullcontext() if within is None else entry_points.restricted():
                yield
        finally:
            self._local.within = before

    def check_path(self, path, field, writes=False, who="net"):
        """Raise unless the net being built may use a path that its file names.

        One that came with ``trusted=False`` writes no files, and reads only those below the working directory, wherever ``..``
        and links lead. Every path that a model file names goes through here or through `check_listed` before it is used.

        Raises
        ------
        ConfigError
            Names `field`.
        """
        if self.trusted:
            return
        if writes:
            raise ConfigError(f"the {who} is not trusted, and asks to write the file '{path}'; {REMEDY}", field=field)
        if not is_below(os.path.realpath(path), self.within):
            raise ConfigError(f"the {who} is not trusted, and asks to read '{path}' outside the working directory; {REMEDY}",
                              field=field)

    def check_listed(self, paths, source, field):
        """As `check_path`, for the paths in the file `source`, such as a list of pictures, which the net names in `field`.

        Parameters
        ----------
        paths : iterable of str
        """
        if self.trusted:
            return
        folders = {}  # a list has many files in few folders
        for path in paths:
            folder, name = os.path.split(path)
            if folder not in folders:
                folders[folder] = os.path.realpath(folder or os.curdir)
            real = os.path.join(folders[folder], name)
            if name in ("", ".", "..") or os.path.islink(real):
                real = os.path.realpath(real)
            if not is_below(real, self.within):
                raise ConfigError(f"the net is not trusted, and '{source}' names '{path}' outside the working directory; "
                                  f"{REMEDY}", field=field)

    def seed(self, seed):
        """Seed the calling thread's random numbers with an integer >= 0.

        Raises
        ------
        ConfigError
            If the seed is negative, or 2^64 or more.
        WrongTypeError
            If it is no int.
        """
        seed = int_of(seed, "seed")
        if not 0 <= seed < 1 << 64:
            raise ConfigError(f"a random seed must be 0 or more, and below 2^64, got {shown(seed)}", field="random_seed")
        self.generator.seed = seed
        self.generator.offset = 0


caffe = Caffe()
