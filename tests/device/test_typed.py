"""Loops for an element type that is known at run time (device/typed.hpp): what their callers may not forget."""

import re
import subprocess
from pathlib import Path

import pytest
from cplusplus import compiler

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = """#include "minicaffe/ops/activation/kernel.hpp"
#include "minicaffe/ops/loss/kernel.hpp"
#include "minicaffe/device/typed.hpp"
void f(const mc::Context& on, const mc::Labels& s, const void* x, void* y) { %s; }"""


def compiles(call):
    done = subprocess.run([*compiler(), "-std=c++17", "-fsyntax-only", "-w", f"-I{ROOT}", "-xc++", "-"], input=SOURCE % call,
                          capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return done.stderr or True


@pytest.mark.parametrize("call", [
    "mc::map1<mc::ClipForward>(on, 0, 9, x, y, -1.0, 1.0)", "mc::map1<mc::SigmoidForward>(on, 0, 9, x, y)",
    # A functor inside a functor takes its members in the same row.
    "mc::each_typed<mc::HingeBackward>(on, 0, 9, 4, s, x, x, true, 0.5, y)", "MC_TYPED(mc::cpu::copy)(1, on.threads, 9, x, y)"])  # fmt: skip
def test_all_members_are_given(call):
    assert compiles(call) is True


@pytest.mark.parametrize("call, message", [
    *((call, "a member of this functor is not given") for call in (
        "mc::map1<mc::ClipForward>(on, 0, 9, x, y, -1.0)", "mc::each_typed<mc::HingeBackward>(on, 0, 9, 4, s, x, x, true, 0.5)")),
    ("mc::map1<mc::SigmoidForward>(on, 0, 9, x, y, 1.0)", "too many initializers|excess elements"),      # GCC, Clang
    *((f"MC_TYPED(mc::cpu::copy)(1, on.threads, 9, {pointers})", "no matching function") for pointers in ("y, x", "x, reinterpret_cast<char*>(y)"))])
def test_what_does_not_fit(call, message):
    """MC_TYPED makes void pointers pointers to the element type, and keeps their const; other pointers are as they are."""
    assert re.search(message, compiles(call))
