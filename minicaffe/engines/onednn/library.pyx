"""oneDNN opened at run time, and its layouts: if it is missing, engine CAFFE computes (engines/onednn/dnnl.hpp).

The library is searched at MINICAFFE_ONEDNN; else in ``lib`` of the environment, where the wheel `onednn-cpu-gomp` and conda
install it, and in the system's search path. It computes on the threads of our own loops (engines/onednn/openmp.hpp).
"""

import ctypes
import functools
import itertools
import logging
import math
import os
import sys
import weakref

from libc.stdint cimport uintptr_t

from minicaffe.device.threads cimport Threads, num_threads
from minicaffe.kernels.types cimport BF16, FLOAT

from minicaffe.errors import DependencyError

cdef extern from *:
    """static inline void rethrow() { throw; }"""
    void rethrow() except +     # throw the C++ exception of the `except +fail` again, for Cython to convert it

cdef extern from "minicaffe/engines/onednn/dnnl.hpp" namespace "mc::onednn" nogil:
    const char* kNames[]
    const int kFunctions
    const unsigned kSequential, kOpenMp
    const int kBlocksOf16, kBlocksOf8, kChannelsLast, kBf16, kFloat

cdef extern from "minicaffe/engines/onednn/openmp.hpp" namespace "mc::onednn::openmp" nogil:
    void serve(void* handle, Threads) except +
    void set_threads(int) noexcept

TAGS = {kBlocksOf16: 16, kBlocksOf8: 8, kChannelsLast: 0}   # tag of a layout -> lanes, 0: all channels
MIN_VERSION, AVX2, AVX512_BF16 = (3, 2), 7, 0xe7    # dnnl_cpu_isa_avx2 and so on: a bit for each instruction set that it implies
# The remedy for a library that does not fit.
OTHER_LIBRARY_REMEDY = "pip install onednn-cpu-gomp, or name another in MINICAFFE_ONEDNN"
log = logging.getLogger(__name__)
_path = None            # of the open library
_trouble = None         # why it cannot be used, once that is known
_layouts = {}           # shape -> list of weak references to its layouts in use; equal ones are one object
_numbers = itertools.count()     # of layouts, for their names
cdef Library _library   # filled by `_open`


cdef int fail() except -1:
    """Convert a C++ exception of dnnl.hpp to a DependencyError, for functions declared with ``except +fail``."""
    try:
        rethrow()
    except RuntimeError as error:
        raise DependencyError(f"oneDNN fails ({error}); leave it out by MINICAFFE_ONEDNN=off") from None


cdef const Library* library() except NULL:
    """Return the open library; opens it on the first call.

    Raises DependencyError, with the remedy, if there is none, or it cannot be used.
    """
    global _path, _trouble
    if _trouble is not None:
        raise DependencyError(_trouble)
    if _path is None:
        try:
            _path = _open()
        except DependencyError as error:
            _trouble = error.message
            raise
    return &_library


def version():
    """Return the version of the library and its path, as (``"3.2.0"``, path).

    Raises DependencyError if there is none, or it cannot be used.
    """
    cdef const DnnlVersion* found = library().version()
    return f"{found.major}.{found.minor}.{found.patch}", _path


def check_bf16():
    """Raise DependencyError if bf16 is not available (engines/table.py): without oneDNN, or a processor without AVX512_BF16."""
    if library().get_effective_cpu_isa() & AVX512_BF16 != AVX512_BF16:
        raise DependencyError("precision bf16 needs a processor with AVX512_BF16 or AMX; use float32")


def candidates(named=None, prefixes=None):
    """Return the paths at which the library is searched, in order: only `named`, if the user set it; else ``lib`` of `prefixes`.

    `prefixes` are environments, by default those of Python, of conda, and of this package.
    """
    if named:
        return [named]
    if prefixes is None:
        prefixes = [sys.prefix, os.environ.get("CONDA_PREFIX"), *(os.path.normpath(f"{folder}/../../..") for folder in sys.path
                                                                  if folder.endswith("-packages"))]
    files = dict.fromkeys(os.path.join(prefix, "lib", "libdnnl.so.3") for prefix in prefixes if prefix)
    return [*filter(os.path.exists, files), "libdnnl.so.3"]


def _open():
    """Open the library, check it, and store its functions in `_library`; return its path.

    Raises DependencyError, with the remedy, for what `library` says.
    """
    requested_path = os.environ.get("MINICAFFE_ONEDNN", "")
    if requested_path.lower() == "off":
        raise DependencyError("oneDNN is switched off by MINICAFFE_ONEDNN=off")
    for path in candidates(requested_path):
        try:
            handle = ctypes.CDLL(path)
            break
        except OSError as error:
            reason = error
    else:
        raise DependencyError(f"oneDNN cannot be loaded ({reason}); pip install onednn-cpu-gomp, or name libdnnl.so.3 in "
                              "MINICAFFE_ONEDNN")
    for i in range(kFunctions):
        name = (<bytes> kNames[i]).decode()
        if not hasattr(handle, name):
            raise DependencyError(f"{path} has no {name}: "
                                  f"it is no oneDNN, or older than {_dotted(MIN_VERSION)}; {OTHER_LIBRARY_REMEDY}")
        _library.set_function(i, <void*> <uintptr_t> ctypes.cast(getattr(handle, name), ctypes.c_void_p).value)
    found = _library.version()
    if (found.major, found.minor) < MIN_VERSION or found.major != 3:
        raise DependencyError(f"{path} is oneDNN {found.major}.{found.minor}; version 3 from {_dotted(MIN_VERSION)} on is needed: "
                              f"{OTHER_LIBRARY_REMEDY}")
    if found.cpu_runtime not in (kSequential, kOpenMp):
        raise DependencyError(f"{path} is a oneDNN built for other threads than OpenMP's; {OTHER_LIBRARY_REMEDY}")
    if _library.get_effective_cpu_isa() & AVX2 != AVX2:
        raise DependencyError("oneDNN is slow on a processor without AVX2; engine CAFFE is used")
    if found.cpu_runtime == kOpenMp:
        redirect_openmp(handle, path)
        _library.set_threads = set_threads
    _library.dry = num_threads().pool.dry
    _library.start()
    log.info("oneDNN %d.%d.%d: %s", found.major, found.minor, found.patch, path)
    return path


def redirect_openmp(handle, path):
    """Make a library opened by ctypes, whose file is `path`, run its parallel regions on the threads of our loops.

    Otherwise it would start threads of its own beside these. It holds until the process ends. Raises DependencyError if it was
    built for an OpenMP other than GCC's.
    """
    try:
        serve(<void*> <uintptr_t> handle._handle, num_threads())
    except RuntimeError as error:
        raise DependencyError(f"{path} cannot use the threads of minicaffe ({error}); {OTHER_LIBRARY_REMEDY}") from None


def _dotted(numbers):
    return ".".join(map(str, numbers))


cdef class OnednnLayout(Layout):
    """A layout of oneDNN, such as ``nChw16c``, by `layout_of`. Reorders hold the GIL: one thread at a time uses a primitive."""

    cpdef to_plain(self, size_t plain, size_t private, size_t stream=0):    # overrides, described at Layout (memory/layout.pyx)
        if not self.to_plain_step.made():
            self.to_plain_step.make(&_library, num_threads().count, self.array, self.plain, False, 0)
        self.to_plain_step.run(num_threads().count, <const void*> private, <void*> plain, NULL)

    cpdef from_plain(self, size_t private, size_t plain, size_t stream=0):
        if not self.from_plain_step.made():
            self.from_plain_step.make(&_library, num_threads().count, self.plain, self.array, False, self.factors.size())
        self.from_plain_step.run(num_threads().count, <const void*> plain, <void*> private, self.factors.data())

    cpdef bint from_layout(self, size_t private, Layout source, size_t other) except -1:
        # A conversion that rounds or scales goes through the plain array, which has to be kept.
        if (not isinstance(source, OnednnLayout) or source.dtype != self.dtype or self.scaled
                or not (<OnednnLayout> source).plain == self.plain):
            return False
        if self.source is not source:
            self.direct.make(&_library, num_threads().count, (<OnednnLayout> source).array, self.array, False, 0)
            self.source = source
        self.direct.run(num_threads().count, <const void*> other, <void*> private, NULL)
        return True

    def with_shape(self, shape):
        if self.channels_last or self.lanes and not self.dims[1] % self.lanes and not shape[1] % self.lanes:    # without padding
            return layout_of(tagged_array(&_library, shape, self.array.type(), self.tag))
        return None


cdef Layout lanes_layout(tuple dims, int lanes):
    """Return the layout of float32 images in blocks of 8 or 16 channels, None if that is the plain order; for engine WINOGRAD."""
    return layout_of(tagged_array(library(), dims, kFloat, kBlocksOf16 if lanes == 16 else kBlocksOf8))


cdef Layout layout_of(const Array& array, const Array* plain=NULL):
    """Return the OnednnLayout of an array, one object for equal ones; None if it equals `plain`, by default row-major."""
    cdef OnednnLayout layout
    cdef tuple dims = tuple(array.dims())
    cdef Array flat = plain_array(&_library, dims) if plain == NULL else plain[0]
    if flat == array:
        return None
    for reference in list(_layouts.get(dims, ())):
        layout = reference()
        if layout is not None and layout.array == array and layout.plain == flat:
            return layout
    cdef int lanes = 0, kind = 0
    for tag, width in TAGS.items() if len(dims) == 4 else ():
        if tagged_array(&_library, dims, array.type(), tag) == array:
            kind, lanes = tag, width or dims[1]
    cdef int dtype = BF16 if array.type() == kBf16 else FLOAT
    if dtype == FLOAT and lanes and not dims[1] % lanes and dims[2] == dims[3] == 1 and plain == NULL:
        return None     # one pixel: the blocks are contiguous, as in plain order
    layout = OnednnLayout(array.bytes(), 4 * math.prod(dims), f"oneDNN {next(_numbers)} of {'x'.join(map(str, dims))}", dims, lanes,
                          dtype, False, False, kind == kChannelsLast)
    layout.array, layout.plain, layout.tag = array, flat, kind
    reference = weakref.ref(layout, functools.partial(_forget, dims))
    _layouts.setdefault(dims, []).append(reference)
    return layout


cdef str why_no_image_layout(Layout layout, tuple outer):
    """Return None if `layout` is one of oneDNN's for images of 4 axes whose first two are `outer`; else a reason to refuse."""
    if isinstance(layout, OnednnLayout) and len(layout.dims) == 4 and layout.dims[:2] == outer:
        return None
    return "a bottom in plain order: only blocks of channels are computed"


def _forget(dims, reference):
    """Remove a dead weak reference to a layout of shape `dims` from `_layouts`: the callback of these references."""
    known = _layouts[dims]
    known.remove(reference)
    if not known:
        del _layouts[dims]


cdef OnednnLayout scaled_layout(const Array& array, const Array& plain, const vector[float]& factors):
    """Return a new layout of weights times a factor for each output: a convolution with a fused BatchNorm or Scale uses it."""
    cdef OnednnLayout layout
    cdef tuple dims = tuple(array.dims())
    layout = OnednnLayout(array.bytes(), 4 * math.prod(dims), f"oneDNN scaled {'x'.join(map(str, dims))}", dims, 0,
                           BF16 if array.type() == kBf16 else FLOAT, True)
    layout.array, layout.plain, layout.factors = array, plain, factors
    return layout
