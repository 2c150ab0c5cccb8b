"""Imports run downwards only: the floors of docs/design.md, checked in the import and cimport lines."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "minicaffe"
FLOORS = {
    "minicaffe.errors": 1, "minicaffe.kernels": 1,
    "minicaffe.memory": 2, "minicaffe.proto": 2, "minicaffe.sim": 2, "minicaffe.device": 2,
    "minicaffe.blob": 3, "minicaffe.cuda": 3, "minicaffe.ops": 3,
    "minicaffe.common": 4, "minicaffe.filler": 4, "minicaffe.layer": 4, "minicaffe.workspace": 4, "minicaffe.slot": 4,
    "minicaffe.tensor": 4, "minicaffe.elements": 4,
    "minicaffe.serialization": 4, "minicaffe.plan": 4, "minicaffe.data": 4,
    "minicaffe.cuda.thc_state": 4,  # it shows the random numbers, too
    "minicaffe.layers": 5, "minicaffe.net": 5,
    "minicaffe.solver": 6,
    "minicaffe": 7, "minicaffe.pycaffe": 7, "minicaffe.opencv": 7, "minicaffe.alias": 7, "minicaffe.checkout": 7,
    "minicaffe.as_caffe": 8,
    "minicaffe.cli": 8, "minicaffe.__main__": 8,
}
CIMPORT = re.compile(r"^\s*(?:from\s+(minicaffe[\w.]*)\s+c?import\s+([^\n#]+)|c?import\s+(minicaffe[\w.]*))", re.M)
INCLUDE = re.compile(r'(?:#include|cdef extern from)\s+"(minicaffe/[\w/]+)\.hpp"')


def room(module):
    """The longest prefix of a dotted name that has a floor."""
    parts = module.split(".")
    while ".".join(parts) not in FLOORS:
        parts.pop()
        assert parts, f"{module} has no floor; give it one here and in docs/design.md"
    return ".".join(parts)


def imported(path):
    """The dotted names of minicaffe that a source file imports, cimports or includes."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("minicaffe"):
                yield from (target(node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.startswith("minicaffe"))
        return
    for module, names, plain in CIMPORT.findall(text):
        yield from [plain] if plain else [target(module, n.split(" as ")[0].strip(" ()")) for n in names.split(",")]
    for header in INCLUDE.findall(text):
        yield header.replace("/", ".")


def target(module, name):
    """The module meant by ``from module import name``: `name` may itself be one."""
    return f"{module}.{name}" if f"{module}.{name}" in FLOORS or module == "minicaffe" and name.islower() else module


SOURCES = [p for p in sorted(PACKAGE.rglob("*")) if p.suffix in (".py", ".pyx", ".pxd", ".hpp")]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE.parent)))
def test_imports_run_downwards(path):
    own = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    floor = FLOORS[room(own)]
    upward = [name for name in imported(path) if FLOORS[room(name)] > floor]
    assert not upward, f"{own} (floor {floor}) imports {upward}"


def test_the_table_of_the_design_page_has_every_module_and_folder():
    page = (PACKAGE.parent / "docs" / "design.md").read_text()
    listed = {name: int(floor) for floor, names in re.findall(r"^\| (\d) \| (`.*?) \|", page, re.M) for name in re.findall(r"`(.+?)`", names)}
    there = {p.name + "/" * p.is_dir() for p in PACKAGE.iterdir() if p.suffix in (".py", ".pyx") or p.is_dir() and p.name != "__pycache__"}
    assert set(listed) == there
    own = {name: "minicaffe." + name.partition(".")[0].strip("/") for name in listed}
    assert listed == {name: FLOORS[room("minicaffe" if name == "__init__.py" else own[name])] for name in listed}


def test_memory_never_imports_cuda():
    for path in sorted((PACKAGE / "memory").glob("*.py*")):
        assert not any("cuda" in name.split(".") for name in imported(path)), path


def test_the_check_sees_an_upward_import(tmp_path):
    wrong = tmp_path / "wrong.pyx"
    wrong.write_text("from minicaffe.solver.solver import Solver\ncdef extern from \"minicaffe/device/apply.hpp\":\n    pass\n")
    assert [room(n) for n in imported(wrong)] == ["minicaffe.solver", "minicaffe.device"]
