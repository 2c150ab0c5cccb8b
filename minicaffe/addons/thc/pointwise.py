"""One line of C++ for each element (CuPy's ElementwiseKernel, THC's pointwiseApply): on blobs, and on arrays in any strides.

A kernel is generated for each kind of iteration (walk.py): contiguous data, 1, 2, 3 and any number of axes, with
indices of 32 or 64 bits. docs/elementwise.md explains and measures it. Different from THC: any number of operands, of several
types, some of them numbers. If operands overlap so that the result depends on the order of the threads, the call raises.
"""

import itertools

import numpy as np

from minicaffe.addons.thc.kernel import Kernel
from minicaffe.addons.thc.walk import CONTIGUOUS, Walk, broadcast, may_overlap_itself, overlap
from minicaffe.cuda.foreign_array import check_memory, interface_stream
from minicaffe.cuda.mode import current
from minicaffe.device.strided import DeviceArray, HasDeviceArray, device_array
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError

# Types of `Elementwise` -> their names in C++; T is the type of the arrays.
TYPES = {"float32": "float", "float64": "double", "float": "float", "double": "double", "T": None, "int32": "int", "int": "int"}
NUMPY_TYPES = {"float": np.dtype(np.float32), "double": np.dtype(np.float64), "int": np.dtype(np.int32)}
C_TYPES = {numpy_type: c for c, numpy_type in NUMPY_TYPES.items()}


class Elementwise:
    """An element-wise operation in one line, in the manner of CuPy's ElementwiseKernel.

    Call it as ``f(x, y, z)``, with blobs, ``x.gpu_data[:, 1:3]``, ``z.mutable_gpu_data``, or arrays of other libraries.

    Parameters
    ----------
    inputs, outputs : str
        Types and names: ``"T x, T y"``. T is the type of the arrays; float32, float64 and int32 are fixed.
    operation : str
        C++ on the names: ``"z = (x - y) * (x - y)"``.
    name : str
        An identifier.

    Raises
    ------
    ConfigError
        For an invalid type or name.
    """

    def __init__(self, inputs, outputs, operation, name="elementwise"):
        if not name.isidentifier():
            raise ConfigError(f"must be an identifier, got '{name}'", field="cuda.elementwise.name")
        self.inputs, self.outputs = _parameters(inputs), _parameters(outputs)
        names = [parameter for _, parameter in self.inputs + self.outputs]
        if len(set(names)) < len(names):
            raise ConfigError(f"a name comes twice in {', '.join(names)}; an output holds its old value, and may "
                              "be the same array as an input", field="cuda.elementwise")
        self.operation, self.name = operation, name
        self._kernels = {}  # type of T, which operands are numbers, kind of walk, type of indices -> Kernel

    def __call__(self, *args):
        """Apply it to the inputs and write the outputs, which follow them in `args`; returns before it has run.

        An operand is a Blob (its data), or any object with ``__cuda_array_interface__``: ``x.gpu_data[:, ::2]``, arrays of CuPy
        and PyTorch. An output is written, so take it from ``y.mutable_gpu_data``. An input may be a number. Blobs of one count
        are processed element by element whatever their shapes; otherwise inputs are broadcast to the shape of the outputs. An
        output may be the same array as an input.

        Raises
        ------
        ConfigError, WrongTypeError, ShapeError, DeviceError
            In CPU mode; if number or types of the arguments are not as declared; if an output is read-only; if shapes do not fit;
            if an output overlaps itself, another output or, unless in place, an input; if memory is on another device, or an
            array reaches beyond its allocation.
        """
        names = self.inputs + self.outputs
        target = current()
        if target is None:  # before blobs are copied to a device
            raise ConfigError(f"{self.name} needs GPU mode; call set_mode_gpu() first")
        if len(args) != len(names):
            raise WrongTypeError(f"{self.name} takes {len(names)} arguments, got {len(args)}")
        first = len(self.inputs)
        operands = [self._operand(a, name, i >= first) for i, (a, (_, name)) in enumerate(zip(args, names))]
        real = self._type_of_t(operands)
        scalars = tuple(array is None for array in operands)
        array_indices = [i for i, array in enumerate(operands) if array is not None]
        if all(isinstance(args[i], HasDeviceArray) for i in array_indices) and len({operands[i].size for i in array_indices}) == 1:
            flat = (operands[-1].size,)
            arrays = [DeviceArray(a.address, flat, a.dtype, a) for a in (operands[i] for i in array_indices)]
        else:
            arrays = self._of_one_shape(operands, array_indices)
        if not arrays[-1].size:
            return
        for i, array in zip(array_indices, arrays):
            if not isinstance(args[i], HasDeviceArray):
                check_memory(array, f"{self.name}: {names[i][1]}")
                if (stream := interface_stream(args[i])) is not None:
                    target.wait_for(stream)
        self._check_overlaps([names[i][1] for i in array_indices], arrays, sum(i < first for i in array_indices))
        walk = Walk(arrays)
        key = real, scalars, walk.kind, walk.index
        run = self._kernels.get(key)
        if run is None:
            run = self._kernels[key] = Kernel(self._source(*key), self.name)
        values = [self._number(a, t, name, real) if s else array for (t, name), a, array, s in zip(names, args, operands, scalars)]
        info = [] if walk.kind == CONTIGUOUS else [walk.pack()]
        run((min(-(-walk.count // 256), 65535),), (256,), (*values, *info, np.int64(walk.count)))

    def _operand(self, value, name, written):
        """Return the DeviceArray of an argument, None for a number."""
        if isinstance(value, HasDeviceArray):
            return value.mutable_gpu_data if written else value.gpu_data
        if hasattr(value, "__cuda_array_interface__"):
            array = device_array(value, f"{self.name}: {name}")
        elif written:
            raise WrongTypeError(f"{self.name}: output {name} must be a Blob or an array on the device, got {type(value).__name__}")
        else:
            return None
        if written and array.readonly:
            raise WrongTypeError(f"{self.name}: output {name} is read-only; take blob.mutable_gpu_data, or a copy")
        return array

    def _type_of_t(self, operands):
        """Return the C++ type of the arrays that are declared T, float if there is none; check the types of all arrays."""
        real = None
        for array, (declared, name) in zip(operands, self.inputs + self.outputs):
            if array is None:
                continue
            given = C_TYPES.get(array.dtype) or str(array.dtype)
            wanted = TYPES[declared] or real or (given if given in NUMPY_TYPES else "float, double or int")
            if given != wanted:
                raise WrongTypeError(f"{self.name}: {name} must be an array of {wanted}, got one of {given}")
            real = given if declared == "T" else real
        return real or "float"

    def _of_one_shape(self, operands, array_indices):
        """Return the arrays, inputs broadcast to the shape of the outputs."""
        names, shape = self.inputs + self.outputs, operands[-1].shape
        arrays = []
        for i in array_indices:
            if i >= len(self.inputs) and operands[i].shape != shape:
                raise ShapeError(f"has shape {operands[i].shape}, output {names[-1][1]} has {shape}",
                                 field=f"{self.name}.{names[i][1]}")
            try:
                arrays.append(broadcast(operands[i], shape))
            except ShapeError as error:
                raise ShapeError(f"{error.message}, the shape of {names[-1][1]}", field=f"{self.name}.{names[i][1]}") from None
        return arrays

    def _check_overlaps(self, names, arrays, first):
        """Raise if the result would depend on the order of the threads; arrays from `first` on are written."""
        for output, written in zip(names[first:], arrays[first:]):
            if may_overlap_itself(written):
                raise ShapeError(f"elements of the output share memory, its strides are {written.strides}; write to an array in "
                                 "which each has its own", field=f"{self.name}.{output}")
        for i, j in itertools.combinations(range(len(arrays)), 2):
            array, written = arrays[i], arrays[j]
            in_place = i < first and (array.address, array.strides) == (written.address, written.strides)
            if j >= first and not in_place and overlap(array, written):
                raise ShapeError(f"overlaps {names[i]}; only an input may overlap an output, and only if it is the very same array "
                                 "(in place); copy one of them", field=f"{self.name}.{names[j]}")

    def _number(self, value, declared, name, real):
        """Return a number as a NumPy scalar of its parameter's type."""
        wanted = NUMPY_TYPES[TYPES[declared] or real]
        if not isinstance(value, (int, float, np.bool_, np.integer, np.floating)):
            raise WrongTypeError(f"{self.name}: {name} must be a number, a Blob or an array on the device, got "
                                 f"{type(value).__name__}")
        value = value.item() if isinstance(value, np.generic) else value  # NumPy's own integers would wrap around
        try:
            if wanted.kind == "i" and value != int(value):
                raise OverflowError
            with np.errstate(over="raise"):
                return wanted.type(value)
        except (OverflowError, ValueError, FloatingPointError):
            raise WrongTypeError(f"{self.name}: {name} is of type {wanted.name}, which cannot hold {value!r}") from None

    def _source(self, real, scalars, kind, index):
        names = self.inputs + self.outputs
        number = scalars.count(False)
        declared, loads, stores = [], [], []
        for k, ((type_, name), scalar) in enumerate(zip(names, scalars)):
            type_ = TYPES[type_] or real
            if scalar:
                declared.append(f"{type_} {name}")
                continue
            declared.append(f"{'const ' if k < len(self.inputs) else ''}{type_}* mc_p_{name}")
            at = "mc_i" if kind == CONTIGUOUS else f"mc_at[{len(loads)}]"
            loads.append(f"{type_} {name} = mc_p_{name}[{at}];")
            if k >= len(self.inputs):
                stores.append(f"mc_p_{name}[{at}] = {name};")
        head = place = ""
        if kind != CONTIGUOUS:
            head = '#include "minicaffe/loops/strided/kernel.hpp"\n'
            declared.append(f"const mc::OffsetInfo<{index}, {number}, {kind}> mc_info")
            place = f"mc::index_t mc_at[{number}]; mc_info.offsets(mc_i, mc_at);\n    "
        return (f'{head}extern "C" __global__ void {self.name}({", ".join(declared)}, long long mc_n) {{\n'
                f"  for ({index} mc_i = blockIdx.x * ({index})blockDim.x + threadIdx.x; mc_i < ({index})mc_n; "
                f"mc_i += ({index})gridDim.x * blockDim.x) {{\n"
                f"    {place}{' '.join(loads)}\n    {self.operation};\n    {' '.join(stores)}\n  }}\n}}\n")


def _parameters(text):
    found = []
    for part in text.split(","):
        words = part.split()
        if len(words) != 2 or words[0] not in TYPES or not words[1].isidentifier():
            raise ConfigError(f"'{part.strip()}' is not a parameter; write a type of {', '.join(TYPES)} and a name",
                              field="cuda.elementwise")
        found.append(tuple(words))
    return found
