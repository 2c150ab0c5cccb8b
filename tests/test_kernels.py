"""Every kernel text compiles with NVRTC for each supported GPU, on any machine (needs the wheel nvidia-cuda-nvrtc)."""

import re

import pytest
from compile_kernels import HEADERS, ROOT, compile_for

# A header says with which arguments a functor of several template parameters is checked: // e.g. Map<Scaled<T>, T, 1>
EXAMPLE = re.compile(r"^// e\.g\. (\w+)<(.*)>$", re.M)
STRUCT = re.compile(r"template <([^>]*)>\s*struct (\w+)[^;{]*\{(?!\})(.*?)\n\};", re.S)
OPERATOR = re.compile(r"MC_HD (\w+) operator\(\)\(([^)]*)\)")


def kernels(header):
    """CUDA source in which each functor of the header is called by kernels for float and double."""
    yield f'#include "{header.relative_to(ROOT)}"'
    yield '#include "minicaffe/kernels/pointwise.hpp"'
    yield "using namespace mc;"
    yield "template <class T> struct TripleSum { MC_HD T operator()(T a, T b, T c) const { return a + b + c; } };"
    text = header.read_text()
    examples = dict(EXAMPLE.findall(text))
    for parameters, name, body in STRUCT.findall(text):
        call = OPERATOR.search(body)
        if call is None:
            continue
        result, arguments = call.groups()
        types = arguments.split(",") if arguments.strip() else []
        single = [p.split()[-1] for p in parameters.split(",")] == ["T"]
        for element in ("float", "double"):
            full = examples.get(name, "T" if single else None)
            assert full, f"{header.name}: struct {name} has parameters <{parameters}>: give an example line, // e.g. {name}<...>"
            functor = f"{name}<" + re.sub(r"\bT\b", element, full) + ">"
            values = ", ".join("Two<double>()" if "Two<" in type_ else "i" if result == "void" else f"out[{k}]" if "&" in type_
                               else f"in[{k}]" for k, type_ in enumerate(types))
            run = f"f({values});" if result == "void" else f"out[i] = f({values});"
            yield (f'extern "C" __global__ void {name}_{element}({functor} f, const {element}* in, {element}* out) '
                   f"{{ mc::index_t i = blockIdx.x * (long long)blockDim.x + threadIdx.x; {run} }}")


@pytest.mark.parametrize("header", HEADERS, ids=lambda h: f"{h.parent.name}/{h.name}")
def test_compiles(nvrtc, header, architecture):
    size, log = compile_for(nvrtc, "\n".join(kernels(header)), architecture)
    assert size > 0, log


def test_a_standard_header_is_refused(nvrtc):
    size, log = compile_for(nvrtc, "#include <vector>\n", "sm_75")
    assert size == 0 and "vector" in log
