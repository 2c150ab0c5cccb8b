"""``minicaffe device_query``: the devices of this computer (Caffe tools/caffe.cpp, device_query; there GPUs only)."""

import os
import platform

import click

from minicaffe import cuda
from minicaffe.cli import options
from minicaffe.device.processor import cpuinfo_value
from minicaffe.device.threads import get_num_threads
from minicaffe.errors import DependencyError, DeviceError
from minicaffe.ops.gemm.blas import load_blas

VECTOR_UNITS = ("avx512f", "avx2", "avx", "sse4_2", "asimd", "neon")  # the widest first
# Caffe's lines for a device, and the driver's attributes (CUdevice_attribute).
ATTRIBUTES = (
    ("Total shared memory per block", "MAX_SHARED_MEMORY_PER_BLOCK"),
    ("Total registers per block", "MAX_REGISTERS_PER_BLOCK"),
    ("Warp size", "WARP_SIZE"),
    ("Maximum memory pitch", "MAX_PITCH"),
    ("Maximum threads per block", "MAX_THREADS_PER_BLOCK"),
    ("Maximum dimension of block", ("MAX_BLOCK_DIM_X", "MAX_BLOCK_DIM_Y", "MAX_BLOCK_DIM_Z")),
    ("Maximum dimension of grid", ("MAX_GRID_DIM_X", "MAX_GRID_DIM_Y", "MAX_GRID_DIM_Z")),
    ("Total constant memory", "TOTAL_CONSTANT_MEMORY"),
    ("Texture alignment", "TEXTURE_ALIGNMENT"),
    ("Number of multiprocessors", "MULTIPROCESSOR_COUNT"),
    ("L2 cache", "L2_CACHE_SIZE"),
)
LIBRARIES = (("NVRTC", "nvrtc", "nvidia-cuda-nvrtc"), ("cuBLAS", "cublas", "nvidia-cublas"),
             ("cuDNN", "cudnn", "nvidia-cudnn-cu13"))


@click.command(cls=options.CaffeCommand)
@options.threads
@options.common
def device_query():
    """Show the processor, the BLAS library, the CUDA libraries, and the GPUs."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = cpuinfo_value("flags", "Features").split()
    facts = {
        "Processor": cpuinfo_value("model name") or platform.processor() or platform.machine(),
        "Cores": f"{os.cpu_count()}, of which this process may use {usable}",
        "Threads used": get_num_threads(),
        "Instruction sets": ", ".join(unit for unit in VECTOR_UNITS if unit in flags) or platform.machine(),
        "BLAS": blas(),
        **{name: library(short, package) for name, short, package in LIBRARIES},
    }
    try:
        facts["CUDA driver"] = "CUDA {}.{}".format(*cuda.version())
        facts["GPUs"] = cuda.count()
    except (DependencyError, DeviceError) as error:
        facts["CUDA driver"] = f"none: {error}"
    for table in (facts, *map(device_facts, range(facts.get("GPUs", 0)))):
        if table is not facts:
            click.echo()
        for label, value in table.items():      # in two columns, as Caffe's device_query has them
            click.echo(f"{label + ':':<32}{value}")


def device_facts(index):
    """Return the properties of a GPU by label; a GPU that cannot be used has its number and the error: others are still shown."""
    from cuda.bindings.driver import CUdevice_attribute
    facts = {"Device id": index}
    try:
        device = cuda.get_device(index)
        free, total = device.memory_info()
    except DeviceError as error:
        return {**facts, "Error": error}
    facts |= {"Name": device.name, "Compute capability": "{}.{}".format(*device.capability),
              "Total global memory": f"{total:,} bytes", "Free global memory": f"{free:,} bytes"}
    for label, names in ATTRIBUTES:
        numbers = [device.attribute(getattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}").value)
                   for name in ([names] if isinstance(names, str) else names)]
        facts[label] = ", ".join(f"{number:,}" for number in numbers)
    facts["Peers that it reaches"] = ", ".join(str(other) for other in range(cuda.count())
                                              if other != index and device.reaches(cuda.get_device(other))) or "none"
    return facts


def library(short, package):
    """Return the path of a CUDA library, by cuda-pathfinder's name `short`, or how to install it: by pip's name `package`."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
        return load_nvidia_dynamic_lib(short).abs_path
    except ImportError:
        return "not found: pip install cuda-bindings"
    except RuntimeError:  # cuda-pathfinder's DynamicLibNotFoundError
        return f"not found: pip install {package}"


def blas():
    """Return the path of the BLAS library, or why there is none."""
    try:
        return load_blas()
    except DependencyError as error:
        return f"none: {error}"
