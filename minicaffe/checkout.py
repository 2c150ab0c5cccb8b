"""A checkout's folder `minicaffe/` has no compiled modules: Python started beside it takes the installed package instead."""

import logging
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

SOURCES = (".py", ".pyx", ".pxd", ".hpp")
log = logging.getLogger("minicaffe")


def use_installed(package):
    """Let `package`, the module minicaffe that was found in a checkout, find its modules in the installed minicaffe.

    Sources that differ between the two are reported in one line: the code that runs is the installed package.

    Raises
    ------
    ImportError
        No other folder of `sys.path` has a minicaffe with compiled modules.
    """
    source = Path(package.__path__[0])
    for folder in sys.path:
        if os.path.realpath(folder) == str(source.parent.resolve()):
            continue
        found = PathFinder.find_spec("minicaffe", [folder])
        if found and found.origin and PathFinder.find_spec("minicaffe.common", found.submodule_search_locations):
            break
    else:
        raise ImportError(f"{source} holds the source of minicaffe, which is not compiled, and {sys.executable} has no minicaffe "
                          f"installed: run `pip install .` in {source.parent}")
    package.__path__[:] = found.submodule_search_locations
    package.__file__ = found.origin
    differing = sorted(differences(source, Path(found.origin).parent))
    if differing:
        log.warning("minicaffe runs as installed in %s; %s the checkout in %s (%d in all): run `pip install .` there, or work with "
                    "an editable install (CONTRIBUTING.md)", os.path.dirname(found.origin),
                    f"{differing[0]} differs from" if len(differing) == 1 else f"{differing[0]} and others differ from",
                    source.parent, len(differing))


def differences(source, installed):
    """Return the names of source files that only one of two folders has, or that are not equal."""
    here, there = ({str(p.relative_to(folder)) for p in folder.rglob("*")
                    if p.suffix in SOURCES and folder / "course" not in p.parents}      # only installed, from docs/ (meson.build)
                   for folder in (source, installed))
    return here ^ there | {name for name in here & there if (source / name).read_bytes() != (installed / name).read_bytes()}
