"""Our declarations of NVIDIA's libraries against their headers, where these are installed."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from cplusplus import compiler

ROOT = Path(__file__).resolve().parents[2]
# Two types that are passed alike: both pointers, both floating, or both integers or enumerations of one size.
TYPES = """
#include <cstddef>
#include <type_traits>
template <class A, class B> constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                                                   std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <class Ours, class Theirs> struct Same : std::false_type {};
template <class... A, class Status, class... B> struct Same<int (*)(A...), Status(B...)> {
  static constexpr bool value = [] { if constexpr (sizeof...(A) == sizeof...(B)) return (alike<A, B> && ...); else return false; }();
};
"""


def check_declarations(tmp_path, header, package, variable, source, stubs):
    """Compile assertions about a header, in the folder of an environment variable or of NVIDIA's wheels; `stubs` are headers that it includes."""
    spec = importlib.util.find_spec("nvidia")
    homes = spec.submodule_search_locations if spec else []
    found = next((path.parent for home in homes for path in Path(home).glob(f"*/include/{header}")), None)
    folder = os.environ.get(variable, found)
    if folder is None:
        pytest.skip(f"no {header}: install {package}, or name its folder in {variable}")
    for name, text in stubs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "declarations.cpp").write_text(TYPES + source)
    done = subprocess.run([*compiler(), "-std=c++17", "-fsyntax-only", "-w", f"-I{ROOT}", f"-I{tmp_path}", "-isystem", str(folder),
                           str(tmp_path / "declarations.cpp")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
