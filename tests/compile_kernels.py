"""NVRTC as the tests call it: kernel texts to cubins for any GPU, on any machine (needs the wheel nvidia-cuda-nvrtc)."""

import ctypes
import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = sorted([*ROOT.glob("minicaffe/kernels/*.hpp"), *ROOT.glob("minicaffe/**/kernel*.hpp")])
ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_100"]
# What ptxas says of each kernel, for `--ptxas-options=-v`.
RESOURCES = re.compile(r"Function properties for (\w+)\n.* (\d+) bytes stack frame, (\d+) bytes spill stores, "
                       r"(\d+) bytes spill loads\n.*Used (\d+) registers")


def find_nvrtc():
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        for library in sorted(Path(root).glob("*/lib/libnvrtc.so.*")):
            if "alt" not in library.name:
                for second in library.parent.glob("libnvrtc-builtins.so*"):     # which some wheels do not find
                    ctypes.CDLL(str(second))
                return ctypes.CDLL(str(library))
    return None


def compile_program(nvrtc, source, architecture, options, names, inspect):
    """Compile; return (inspect(program), or None after an error, and the log)."""
    program, size, result = ctypes.c_void_p(), ctypes.c_size_t(), None
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    for name in names:
        assert nvrtc.nvrtcAddNameExpression(program, name) == 0
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={ROOT}", *options]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    log = log.value.decode()
    if code == 0:
        result = inspect(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return result, log


def compile_for(nvrtc, source, architecture):
    """Compile to a cubin; return its size, 0 after an error, and the log."""
    def cubin_size(program, log):
        size = ctypes.c_size_t()
        assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        return size.value

    size, log = compile_program(nvrtc, source, architecture, [], [], cubin_size)
    return size or 0, log


def compile_all(nvrtc, kernels, architecture):
    """Compile {type: size} for one GPU; return {type: (stack, stores, loads, registers)}, empty after an error, and the log."""
    headers = "\n".join(f'#include "{h.relative_to(ROOT)}"' for h in HEADERS)
    names = {k: f"mc::run<{k}, {size}>".encode() for k, size in kernels.items()}

    def resources(program, log):
        found = {name: tuple(map(int, numbers)) for name, *numbers in RESOURCES.findall(log)}
        table, lowered = {}, ctypes.c_char_p()
        for kernel, name in names.items():
            assert nvrtc.nvrtcGetLoweredName(program, name, ctypes.byref(lowered)) == 0
            table[kernel] = found[lowered.value.decode()]
        return table

    source = headers + '\n#include "functors.hpp"\nusing namespace mc;\n'
    options = ["-default-device", f"--include-path={ROOT / 'tests' / 'kernels'}", "--ptxas-options=-v"]
    table, log = compile_program(nvrtc, source, architecture, options, names.values(), resources)
    return table or {}, log
