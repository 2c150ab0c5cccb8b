"""Kernels that the user writes for blobs, from CUDA C++ source (as CuPy's RawKernel); from an expression: pointwise.py.

On the simulated device the source is compiled by the host's C++ compiler (host_cuda.hpp), which must be installed.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import minicaffe.cuda.memory  # noqa: F401 - registers the allocators of devices
from minicaffe import sim
from minicaffe.cuda import compile, driver, peers
from minicaffe.cuda.device import Stream
from minicaffe.cuda.foreign_array import interface_stream
from minicaffe.cuda.mode import current
from minicaffe.device.strided import HasDeviceArray
from minicaffe.errors import ConfigError, DependencyError, DeviceError, WrongTypeError, shown
from minicaffe.inspection.timing import SLEEP
from minicaffe.memory.buffer import wrap


class Kernel:
    """A kernel from CUDA C++ text, in the manner of CuPy's RawKernel; it is compiled at its first call on each device.

    Call it as ``k((blocks,), (threads,), (blob, numpy.float32(2), blob.count))``.

    Parameters
    ----------
    source : str
        Contains ``__global__ void name(...)``, best as ``extern "C"``: profilers then show the plain name.
    name : str
        With its namespace and template arguments: ``"mine::scale<float>"``.
    options : sequence of str
        For NVRTC, such as ``"-DN=4"``.

    Raises
    ------
    ConfigError
        If the text has no such function.
    """

    def __init__(self, source, name, options=()):
        function = re.sub("<.*", "", name, flags=re.DOTALL).rpartition("::")[2]
        if not re.search(rf"\b{re.escape(function)}\s*\(", source):
            raise ConfigError(f"the source holds no function '{name}'", field="cuda.kernel.name")
        self.source, self.name, self.options = source, name, tuple(options)
        self._text, self._function_name = renamed(source, name)
        self._functions = {}  # device index -> address of the function
        self._libraries = []  # shared libraries with the kernel, for the simulated device

    def __call__(self, grid, block, args=(), shared=0, stream=None):
        """Launch the kernel on the current device; returns before it has run.

        Parameters
        ----------
        grid, block : tuple of 1 to 3 int
            Number of blocks of the grid, and of threads of a block, in each dimension.
        args : sequence
            A Blob passes the device address of its data, and the host copy becomes stale. `Blob.gpu_data` (for kernels that only
            read), `Blob.gpu_diff` and any object with ``__cuda_array_interface__`` pass their address. A NumPy scalar keeps its
            type. A Python int becomes ``long long``, a float ``double``, a bool ``bool``: give ``numpy.float32(x)`` where the
            kernel takes a float. A ctypes structure or array is passed by value.
        shared : int
            Bytes of dynamic shared memory.
        stream : Stream
            By default the computing stream, which waits for the streams that arrays of other libraries name. Another stream is
            synchronized with it, and with theirs, only by events that you record.

        Raises
        ------
        ConfigError
            In CPU mode, for a stream of another device, and for an invalid grid or block.
        WrongTypeError
            For an argument of an unsupported type, an int of more than 64 bits, and a stream that is not a `Stream`.
        DeviceError
            If the source does not compile, or the launch is refused; `WrongDeviceError` if an argument is on another GPU.
        """
        target = current()
        if target is None:
            raise ConfigError(f"kernel {self.name} needs GPU mode; call set_mode_gpu() first")
        if stream is not None and not isinstance(stream, Stream):
            raise WrongTypeError(f"kernel {self.name}: the stream must be a cuda.Stream, got {shown(stream)}")
        if stream is not None and stream.device is not target:
            raise ConfigError(f"kernel {self.name}: the stream is of device {stream.device.index}, the current one is "
                              f"{target.index}; make one with cuda.Stream(cuda.current())")
        for field, size in ("grid", grid), ("block", block):
            if not isinstance(size, (tuple, list)) or not 1 <= len(size) <= 3 or not all(
                    isinstance(n, (int, np.integer)) and 0 < n < 2**32 for n in size):
                raise ConfigError(f"kernel {self.name}: must be a tuple of 1 to 3 integers from 1 to 2^32 - 1, got {shown(size)}",
                                  field=field)
        values = [_argument(value, i, target, stream) for i, value in enumerate(args)]
        target.launch(self._function(target), tuple(grid), tuple(block), values, shared, stream)

    def _function(self, target):
        if target.index not in self._functions:
            if sim.selected():
                image, name = self._simulated_image(), self.name
            else:
                image, name = compile.image(self._text, self._function_name, target.architecture, self.name, self.options)
            self._functions[target.index] = target.function(target.load_module(image), name)
        return self._functions[target.index]

    def _simulated_image(self):
        """Compile the source with the host's compiler, or use the cached library; return the bytes of its HostImage."""
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise DependencyError(f"kernel {self.name}: the simulated device runs a kernel of your own only with a C++ compiler "
                                  "on the host; install g++ (apt install g++), or use a computer with a GPU")
        text = re.sub(r"extern\s+__shared__\s+(.+?)\s+(\w+)\s*\[\s*\]\s*;", r"MCSIM_DYNAMIC_SHARED(\1, \2);", self._text)
        text = (f'#include "minicaffe/addons/thc/host_cuda.hpp"\n#line 1 "{self.name}.cu"\n{text}\n'
                f'MCSIM_KERNEL_AS(user, "{self.name}", {self._function_name})\n')
        root = compile.package_folder()
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
        headers = [path.read_text() for path in (root / "addons/thc/host_cuda.hpp", *compile.kernel_headers().values())]
        key = hashlib.sha256("\0".join([text, version, *self.options, *headers]).encode()).hexdigest()[:40]
        library = compile.cache_folder() / f"{key}.so"
        try:
            loaded = ctypes.CDLL(os.fspath(library))
        except OSError:  # not there, or damaged
            loaded = self._compile_host(compiler, text, root.parent, library)
        self._libraries.append(loaded)
        loaded.mcsim_image.restype = ctypes.c_void_p
        return ctypes.string_at(loaded.mcsim_image(), 8 + 8 + 8)  # HostImage: magic, kernels, count

    def _compile_host(self, compiler, text, include, library):
        """Compile `text`, cache the shared library as the file `library` if possible, and load it."""
        with tempfile.TemporaryDirectory() as folder:
            source, compiled = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
            source.write_text(text)
            result = subprocess.run([compiler, "-O2", "-std=c++17", "-shared", "-fPIC", "-w", *self.options, f"-I{include}",
                                     os.fspath(source), "-o", os.fspath(compiled)], capture_output=True, text=True)
            if result.returncode:
                raise DeviceError(f"kernel {self.name} does not compile:\n{result.stderr}{compile.numbered(self.source)}")
            compile.write_file(library, compiled.read_bytes())
            return ctypes.CDLL(os.fspath(compiled))  # it stays loaded after the file is deleted


def renamed(source, name):
    """Return the source with another name for the kernel `name`, and that name: CUDA and the host have functions such as min."""
    other = f"mc_kernel_{name}"
    text = re.sub(rf"(__global__[^;{{}}]*\b){name}(?=\s*\()", rf"\g<1>{other}", source) if name.isidentifier() else source
    return text, name if text == source else other


def sleep(cycles, stream=None):
    """Keep a stream of the current device busy for a number of clock cycles (THC's THCudaSleep); return immediately.

    For tests and demonstrations of concurrency: the kernel has a single thread, so kernels of other streams can run at the same
    time. A device has about ``device.clock_rate`` cycles per second, so ``sleep(cuda.current().clock_rate // 100)`` takes about
    10 ms. A cycle of the simulated device is a nanosecond.

    Parameters
    ----------
    cycles : int
        From 0 to 2^62.
    stream : Stream
        By default the computing stream.

    Raises
    ------
    ConfigError
        In CPU mode; for cycles that are not an integer from 0 to 2^62, and a stream of another device.
    """
    if isinstance(cycles, bool) or not isinstance(cycles, (int, np.integer)) or not 0 <= cycles <= 2**62:
        raise ConfigError(f"must be an integer from 0 to 2^62, got {shown(cycles)}; device.clock_rate is cycles per second",
                          field="cuda.sleep.cycles")
    _sleep((1,), (1,), (int(cycles),), stream=stream)


_sleep = Kernel(SLEEP, "mc_sleep")


def _argument(value, position, target, stream):
    """Return the ctypes object for a kernel argument.

    With `stream` its allocator does not reuse the memory before the work now queued on that stream has finished. Without, the
    computing stream of the device `target` waits for the stream that an array names.
    """
    if isinstance(value, (bool, np.bool_)):
        return ctypes.c_bool(value)
    if isinstance(value, np.generic) and value.dtype.str[1:] in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"):
        return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())
    if isinstance(value, int):
        if not -2**63 <= value < 2**63:
            raise WrongTypeError(f"argument {position}: an int becomes a long long, which cannot hold {value}")
        return ctypes.c_longlong(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, (ctypes.Structure, ctypes.Array)):
        return value
    if isinstance(value, HasDeviceArray):
        value = value.mutable_gpu_data
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise WrongTypeError(f"argument {position}: a kernel takes blobs, numbers and arrays on the device, got "
                             f"{type(value).__name__}")
    address = interface["data"][0] or 0
    found = driver.allocation(address)
    if found is not None:
        peers.check_owner(found[0], f"argument {position}")
    if stream is not None:
        wrap(address, 0, None, value).record_stream(stream.address)
    elif (other := interface_stream(value)) is not None:
        target.wait_for(other)
    return ctypes.c_void_p(address)
