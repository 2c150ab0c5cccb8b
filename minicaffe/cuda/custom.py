"""Kernels of the user's own, on blobs: CUDA C++ source (CuPy's RawKernel), or one line for an element (ElementwiseKernel).

On the simulated device the source is compiled by the host's C++ compiler (cuda/sim/host_cuda.hpp), which must be there.
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

from minicaffe.blob import Blob
from minicaffe.cuda import compile, device
from minicaffe.errors import ConfigError, DependencyError, DeviceError, Error, ShapeError, WrongTypeError
from minicaffe.proto.atomic import replacing

# What the types of `elementwise` are called in C++; T stands for the type of the blobs.
BLOB_TYPES = ("float", "double", "int")  # by Blob.dtype
TYPES = {"float32": "float", "float64": "double", "float": "float", "double": "double", "T": None, "int32": "int", "int": "int"}


class Kernel:
    """A kernel that is compiled at its first call on each device; made by `kernel`.

    Attributes
    ----------
    name : str
    source : str
    """

    def __init__(self, source, name, options=()):
        self.source, self.name, self.options = source, name, tuple(options)
        self._functions = {}  # device index -> address of the function
        self._keep = []  # libraries of the simulated device

    def __call__(self, grid, block, args=(), shared=0):
        """Start the kernel on the present device; returns before it has run.

        Parameters
        ----------
        grid, block : tuple of 1 to 3 int
            Blocks, and threads of a block.
        args : sequence
            A Blob stands for the address of its data, which counts as written; `Blob.gpu_diff` and whatever has a
            ``__cuda_array_interface__`` for theirs. A NumPy scalar keeps its type, a Python int becomes ``long long``, a
            float ``double``, a bool ``bool``: give ``numpy.float32(x)`` where the kernel takes a float.
        shared : int
            Bytes of dynamic shared memory.

        Raises
        ------
        ConfigError
            In CPU mode.
        DeviceError
            If the source does not compile, or the launch is refused.
        """
        target = device.current()
        if target is None:
            raise ConfigError(f"kernel {self.name} needs GPU mode; call set_mode_gpu() first")
        values = [_argument(value, i) for i, value in enumerate(args)]
        target.launch(self._function(target), tuple(grid), tuple(block), values, shared)

    def _function(self, target):
        if target.index not in self._functions:
            if compile.simulated():
                image, name = self._host_image(), self.name
            else:
                image, name = compile.image(self.source, self.name, target.architecture, self.name, self.options)
            self._functions[target.index] = target.function(target.load_module(image), name)
        return self._functions[target.index]

    def _host_image(self):
        """Compile for the simulated device, or find the result of an earlier run; return the image's bytes."""
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise DependencyError(f"kernel {self.name}: the simulated device runs a kernel of your own only with a C++ compiler "
                                  "on the host; install g++ (apt install g++), or use a computer with a GPU")
        text = re.sub(r"extern\s+__shared__\s+(.+?)\s+(\w+)\s*\[\s*\]\s*;", r"MCSIM_DYNAMIC_SHARED(\1, \2);", self.source)
        text = f'#include "minicaffe/cuda/sim/host_cuda.hpp"\n#line 1 "{self.name}.cu"\n{text}\nMCSIM_KERNEL({self.name})\n'
        root = compile.kernels_folder().parent
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
        headers = [(root / "cuda/sim/host_cuda.hpp").read_text(), (root / "kernels/grid.hpp").read_text()]
        key = hashlib.sha256("\0".join([text, version, *self.options, *headers]).encode()).hexdigest()[:40]
        library = compile.cache_folder() / f"{key}.so"
        try:
            loaded = ctypes.CDLL(os.fspath(library))
        except OSError:  # not there, or damaged
            loaded = self._compile_host(compiler, text, root.parent, library)
        self._keep.append(loaded)
        loaded.mcsim_image.restype = ctypes.c_void_p
        return ctypes.string_at(loaded.mcsim_image(), 8 + 8 + 8)  # HostImage: magic, kernels, count

    def _compile_host(self, compiler, text, include, library):
        """Compile, keep the result as `library` if that can be, and load it."""
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
            source.write_text(text)
            done = subprocess.run([compiler, "-O2", "-std=c++17", "-shared", "-fPIC", "-w", *self.options, f"-I{include}",
                                   os.fspath(source), "-o", os.fspath(made)], capture_output=True, text=True)
            if done.returncode:
                raise DeviceError(f"kernel {self.name} does not compile:\n{done.stderr}{compile.numbered(self.source)}")
            try:
                library.parent.mkdir(parents=True, exist_ok=True)
                with replacing(library) as file:
                    file.write(made.read_bytes())
                return ctypes.CDLL(os.fspath(library))
            except (OSError, Error) as error:
                compile.warn_unkept(error)
                return ctypes.CDLL(os.fspath(made))  # it stays loaded when the file goes


def kernel(source, name, options=()):
    """Make a kernel from CUDA C++ text, in the manner of CuPy's RawKernel.

    Parameters
    ----------
    source : str
        Holds ``extern "C" __global__ void name(...)``.
    name : str
    options : sequence of str
        For NVRTC, such as ``"-DN=4"``.

    Returns
    -------
    Kernel
        Call it as ``k((blocks,), (threads,), (blob, numpy.float32(2), blob.count))``.

    Raises
    ------
    ConfigError
        If no such function stands in the text.
    """
    if not re.search(rf"\b{re.escape(name)}\s*\(", source):
        raise ConfigError(f"the source holds no function '{name}'", field="cuda.kernel.name")
    return Kernel(source, name, options)


class Elementwise:
    """An element-wise operation on blobs of one count; made by `elementwise`."""

    def __init__(self, inputs, outputs, operation, name):
        self.inputs, self.outputs = _parameters(inputs), _parameters(outputs)
        self.operation, self.name = operation, name
        self._kernels = {}  # C++ type of T -> Kernel

    def __call__(self, *args):
        """Apply it: blobs for the inputs, or numbers, then blobs for the outputs, which are written.

        Raises
        ------
        ConfigError, WrongTypeError, ShapeError
            In CPU mode; for arguments of other number or type than declared; if the counts differ.
        """
        names = self.inputs + self.outputs
        if device.current() is None:  # before blobs go to a device
            raise ConfigError(f"{self.name} needs GPU mode; call set_mode_gpu() first")
        if len(args) != len(names):
            raise WrongTypeError(f"{self.name} takes {len(names)} arguments, got {len(args)}")
        blobs = [(a, n) for a, (_, n) in zip(args, names) if isinstance(a, Blob)]
        if not blobs:
            raise WrongTypeError(f"{self.name} needs at least one Blob")
        count = blobs[0][0].count
        for blob, parameter in blobs:
            if blob.count != count:
                raise ShapeError(f"{self.name}: {parameter} has {blob.count} elements, {blobs[0][1]} has {count}", field=parameter)
        for i, argument in enumerate(args[len(self.inputs) :]):
            if not isinstance(argument, Blob):
                raise WrongTypeError(f"{self.name}: output {self.outputs[i][1]} must be a Blob, got {type(argument).__name__}")
        real = self._type_of_t(args)
        scalars = tuple(not isinstance(a, Blob) for a in args)
        run = self._kernels.get((real, scalars))
        if run is None:
            run = self._kernels[real, scalars] = kernel(self._source(real, scalars), self.name)
        width = {"float": np.float32, "double": np.float64, "int": np.int32}
        values = [width[TYPES[t] or real](a) if s else a.gpu_data for (t, _), a, s in zip(names, args, scalars)]
        if count:
            blocks = min(-(-count // 256), 65535)
            run((blocks,), (256,), (*values, np.int64(count)))

    def _type_of_t(self, args):
        """Return the C++ type of the blobs that are declared T, float if there is none; check the types of all blobs."""
        real = None
        for argument, (declared, name) in zip(args, self.inputs + self.outputs):
            if not isinstance(argument, Blob):
                continue
            given = BLOB_TYPES[argument.dtype]
            wanted = TYPES[declared] or real or given
            if given != wanted:
                raise WrongTypeError(f"{self.name}: {name} must be a blob of {wanted}, got one of {given}")
            real = given if declared == "T" else real
        return real or "float"

    def _source(self, real, scalars):
        names = self.inputs + self.outputs
        types = [TYPES[t] or real for t, _ in names]
        declared, loads, stores = [], [], []
        for k, (type_, (_, name), scalar) in enumerate(zip(types, names, scalars)):
            if scalar:
                declared.append(f"{type_} {name}")
            else:
                constant = "const " if k < len(self.inputs) else ""
                declared.append(f"{constant}{type_}* mc_p_{name}")
                loads.append(f"{type_} {name} = mc_p_{name}[mc_i];")
                if k >= len(self.inputs):
                    stores.append(f"mc_p_{name}[mc_i] = {name};")
        return (f'extern "C" __global__ void {self.name}({", ".join(declared)}, long long mc_n) {{\n'
                "  for (long long mc_i = blockIdx.x * (long long)blockDim.x + threadIdx.x; mc_i < mc_n; "
                "mc_i += (long long)gridDim.x * blockDim.x) {\n"
                f"    {' '.join(loads)}\n    {self.operation};\n    {' '.join(stores)}\n  }}\n}}\n")


def elementwise(inputs, outputs, operation, name="elementwise"):
    """Define an element-wise operation in one line, in the manner of CuPy's ElementwiseKernel.

    Parameters
    ----------
    inputs, outputs : str
        Types and names: ``"T x, T y"``. T is the type of the blobs; float32, float64 and int32 are fixed.
    operation : str
        C++ on the names: ``"z = (x - y) * (x - y)"``.
    name : str
        An identifier.

    Returns
    -------
    Elementwise
        Call it as ``f(x, y, z)``.

    Raises
    ------
    ConfigError
        For a type or name that cannot be.
    """
    if not name.isidentifier():
        raise ConfigError(f"must be an identifier, got '{name}'", field="cuda.elementwise.name")
    return Elementwise(inputs, outputs, operation, name)


def _parameters(text):
    found = []
    for part in text.split(","):
        words = part.split()
        if len(words) != 2 or words[0] not in TYPES or not words[1].isidentifier():
            raise ConfigError(f"'{part.strip()}' is no parameter; write a type of {', '.join(TYPES)} and a name",
                              field="cuda.elementwise")
        found.append(tuple(words))
    return found


def _argument(value, position):
    """Return the ctypes object that is passed for a kernel argument."""
    if isinstance(value, (bool, np.bool_)):
        return ctypes.c_bool(value)
    if isinstance(value, np.generic):
        return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())
    if isinstance(value, int):
        return ctypes.c_longlong(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, Blob):
        value = value.gpu_data
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise WrongTypeError(f"argument {position}: a kernel takes blobs, numbers and arrays on the device, got "
                             f"{type(value).__name__}")
    return ctypes.c_void_p(interface["data"][0])
