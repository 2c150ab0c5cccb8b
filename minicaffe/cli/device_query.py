"""``minicaffe device_query``: what this build can compute on (Caffe tools/caffe.cpp, device_query; there GPUs only)."""

import os
import platform

import click

from minicaffe.cli import options
from minicaffe.cpu.blas import load_blas
from minicaffe.cpu.threads import get_num_threads
from minicaffe.errors import DependencyError

VECTOR_UNITS = ("avx512f", "avx2", "avx", "sse4_2", "asimd", "neon")


@click.command(cls=options.CaffeCommand)
@options.threads
@options.common
def device_query():
    """Show the processor, the BLAS library, and the GPUs that this build can use."""
    facts = {
        "Processor": f"{cpu_fact('model name') or platform.processor() or platform.machine()}",
        "Cores": f"{os.cpu_count()}, of which this process may use {usable_cores()}",
        "Threads used": get_num_threads(),
        "Instruction sets": instruction_sets(),
        "BLAS": blas(),
        "GPUs": "none: this build has no CUDA path yet",
    }
    for label, value in facts.items():
        click.echo(f"{label + ':':<20}{value}")


def cpu_fact(label):
    """Return the first value of a line of /proc/cpuinfo; an empty text where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.partition(":")[0].strip() == label), "")
    except OSError:  # not Linux
        return ""


def usable_cores():
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def instruction_sets():
    """Return the vector instruction sets of the processor, widest first."""
    flags = (cpu_fact("flags") or cpu_fact("Features")).split()
    return ", ".join(unit for unit in VECTOR_UNITS if unit in flags) or platform.machine()


def blas():
    """Return the path of the BLAS library, or why there is none."""
    try:
        return load_blas()
    except DependencyError as error:
        return f"none: {error}"
