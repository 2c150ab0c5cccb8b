"""Loops for an element type that is known at run time (device/typed.hpp): what their callers may not forget."""

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


@pytest.mark.parametrize("call", [
    "mc::map1<mc::ClipForward>(on, 0, 9, x, y, -1.0)", "mc::each_typed<mc::HingeBackward>(on, 0, 9, 4, s, x, x, true, 0.5)"])  # fmt: skip
def test_forgotten_member(call):
    assert "a member of this functor is not given" in compiles(call)


def test_one_member_too_many():
    message = compiles("mc::map1<mc::SigmoidForward>(on, 0, 9, x, y, 1.0)")
    assert "too many initializers" in message or "excess elements" in message  # GCC, Clang


@pytest.mark.parametrize("arguments", ["y, x", "x, reinterpret_cast<char*>(y)"])
def test_a_pointer_that_does_not_fit(arguments):
    """MC_TYPED makes void pointers pointers to the element type, and keeps their const; other pointers are as they are."""
    assert "no matching function" in compiles(f"MC_TYPED(mc::cpu::copy)(1, on.threads, 9, {arguments})")
