"""Every kernel that the built modules hold compiles for each supported GPU and keeps its values in registers.

The modules hold the C++ name of each kernel that they may launch (mc::spelling) and the bytes of its parameters (mc::SizeOf), so
no list of kernels is kept.
"""

import importlib.util
import re
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compile_kernels import HEADERS, ROOT, compile_all, compile_for

import minicaffe.memory.reporter

SPELLING = re.compile(rb"mc::spelling\(\) \[with K = ([^\0]*)\]\0")
# Which kernels may have a stack frame, of how many bytes at most, and why. None may spill.
FRAMES = {
    # Sixteen lanes of a sum lie in an array that not every architecture's compiler takes apart (kernels/reduce.hpp, block_sum).
    r"Contrastive(Term|Backward)<float>": 64,
    r"Contrastive(Term|Backward)<double>": 128,
}
PARTS = 2  # programs compiled at once, one for each processor


def modules():
    """The extension modules of the minicaffe that runs: in an editable install they lie elsewhere than the sources."""
    folders = {Path(minicaffe.memory.reporter.__file__).parent, *map(Path, importlib.util.find_spec("minicaffe").submodule_search_locations or ())}
    return sorted({path for folder in folders for path in folder.rglob("*.so")})


@pytest.fixture(scope="module")
def instances():
    """The kernels' names as C++ types."""
    names = {name.decode() for path in modules() for name in SPELLING.findall(path.read_bytes())}
    assert len(names) > 200, f"only {len(names)} kernels in {len(modules())} modules"
    return sorted(names)


def test_every_kernel_compiles_and_fits(every_kernel, nvrtc, instances, architecture):
    parts = [{name: f"sizeof({name})" for name in instances[i::PARTS]} for i in range(PARTS)]
    with ThreadPoolExecutor(PARTS) as pool:
        results = list(pool.map(lambda part: compile_all(nvrtc, part, architecture), parts))
    table = {}
    for part, log in results:
        assert part, log[-6000:]
        table.update(part)
    assert sorted(table) == instances
    spilled = {kernel: numbers for kernel, numbers in table.items() if any(numbers[1:3]) or numbers[0] > max(
        (most for pattern, most in FRAMES.items() if re.search(pattern, kernel)), default=0)}
    assert not spilled, f"(stack frame, spill stores, spill loads, registers) on {architecture}: {spilled}"


def sizes_of(path):
    """{kernel: sizeof} as the host compiler sees it, from the symbols of a module."""
    listing = subprocess.run(["nm", "-C", "--defined-only", str(path)], capture_output=True, text=True).stdout
    content = path.read_bytes()
    return {name: struct.unpack_from("<I", content, place(content, int(address, 16)))[0]
            for address, name in re.findall(r"^(\w+) \w mc::SizeOf<(.*)>::value$", listing, re.M)}


def place(content, address):
    """Where in an ELF file the memory at `address` comes from."""
    start, = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for i in range(count):
        kind, _, offset, virtual, _, in_file = struct.unpack_from("<IIQQQQ", content, start + i * size)
        if kind == 1 and virtual <= address < virtual + in_file:
            return offset + address - virtual
    raise AssertionError(f"no segment holds {address:#x}")


@pytest.mark.slow(5)
def test_parameter_sizes_of_both_compilers(nvrtc):
    """A launch gives NVRTC the host compiler's size, and run<K, size> refuses another; here all are asked at once."""
    if shutil.which("nm") is None:
        pytest.skip("no nm (binutils)")
    sizes = {}
    for path in modules():
        sizes.update(sizes_of(path))
    if not sizes:
        pytest.skip("the modules were stripped of their symbols")
    checks = "\n".join(f'static_assert(sizeof({name}) == {size}, "{name}");' for name, size in sorted(sizes.items()))
    headers = "\n".join(f'#include "{header.relative_to(ROOT)}"' for header in HEADERS)
    size, log = compile_for(nvrtc, f"{headers}\n{checks}\n", "sm_90")  # no code is made: quick
    assert size, log[-6000:]
    assert len(sizes) > 200
