"""The C++ compiler that tests call."""

import os
import shlex
import shutil

import pytest


def compiler():
    """Return the command, a list: CXX or else the system's compiler, and the flags of CXXFLAGS, as a build takes them. A visible skip
    where there is none.
    """
    for command in (shlex.split(os.environ.get("CXX", "")), ["c++"], ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return [*command, *shlex.split(os.environ.get("CXXFLAGS", ""))]
    pytest.skip("no C++ compiler: install g++, or name one in CXX")
