"""The BLAS for all matrix products on the CPU: that of the wheel `scipy-openblas32`, or another one named by the user.

It is loaded at run time, so the build does not need it. It runs on one thread: the loops around it are parallel
(ops/gemm/blas.hpp), and two thread pools on the same processors slow each other down.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

from minicaffe.errors import DependencyError

from libc.stdint cimport uintptr_t

cdef Blas _blas
_library = None  # the ctypes handle, kept open


cdef const Blas* blas() except NULL:
    """Return the functions of the BLAS, for the `gemm` of C++; the first call loads it, with the GIL."""
    if _library is None:
        load_blas()
    return &_blas


def load_blas(path=None):
    """Load a BLAS library with the CBLAS interface and 32-bit integers, in place of the one before; return its path.

    By default it is that of the environment variable MINICAFFE_BLAS, else of the wheel `scipy-openblas32`. Raises DependencyError
    if there is none or it has no ``cblas_sgemm`` and ``cblas_dgemm``.
    """
    global _library
    path = path or os.environ.get("MINICAFFE_BLAS") or _wheel_library()
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read while the library loads: so it starts no idle thread pool
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise DependencyError(f"cannot load the BLAS library {path} ({error}); pip install scipy-openblas32, or name one in "
                              "MINICAFFE_BLAS") from None
    finally:
        if threads is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = threads
    for prefix in ("scipy_", ""):
        if hasattr(library, prefix + "cblas_sgemm") and hasattr(library, prefix + "cblas_dgemm"):
            break
    else:
        raise DependencyError(f"{path} has no cblas_sgemm and cblas_dgemm; pip install scipy-openblas32, or name another "
                              "library in MINICAFFE_BLAS")
    _blas.sgemm = <sgemm_t> <uintptr_t> ctypes.cast(getattr(library, prefix + "cblas_sgemm"), ctypes.c_void_p).value
    _blas.dgemm = <dgemm_t> <uintptr_t> ctypes.cast(getattr(library, prefix + "cblas_dgemm"), ctypes.c_void_p).value
    if hasattr(library, prefix + "openblas_set_num_threads"):
        getattr(library, prefix + "openblas_set_num_threads")(1)
    _library = library
    return path


def _wheel_library():
    """Return the path of the BLAS in the wheel `scipy-openblas32`; raise DependencyError if it is not installed."""
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is not None and spec.origin:
        for library in sorted((Path(spec.origin).parent / "lib").glob("libscipy_openblas*")):
            return str(library)
    raise DependencyError("no BLAS library found; pip install scipy-openblas32, or name one in MINICAFFE_BLAS")
