"""Imports run downwards only and never in a circle: the levels of docs/design.md, checked in all import, cimport and include lines.

Imports inside functions and by importlib count like those at the top of a file.
"""

import ast
import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "minicaffe"
PAGE = (PACKAGE.parent / "docs" / "design.md").read_text()
LISTED = {name: int(floor) for floor, names in re.findall(r"^\| (\d+) \| (`.*?) \|", PAGE, re.M) for name in re.findall(r"`(.+?)`", names)}
FLOORS = {"minicaffe" if name == "__init__.py" else f"minicaffe.{name.partition('.')[0].strip('/')}": floor for name, floor in LISTED.items()}
FLOORS |= {f"minicaffe.addons.{folder.name}": 11 for folder in sorted((PACKAGE / "addons").iterdir()) if (folder / "__init__.py").exists()}
CIMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(minicaffe[\w.]*)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n#]+)|c?import[ \t]+(minicaffe[\w.]*))", re.M)
BY_NAME = re.compile(r"""["'](minicaffe\.[\w.]+)(\{?)""")
INCLUDE = re.compile(r'(?:#include|cdef extern from)\s+"(minicaffe/[\w/]+\.hpp)"')
SOURCES = [p for p in sorted(PACKAGE.rglob("*")) if p.suffix in (".py", ".pyx", ".pxd", ".hpp")]


def name_of(path):
    """The dotted name of a module; the path of a header."""
    path = path.relative_to(PACKAGE.parent)
    return path.as_posix() if path.suffix == ".hpp" else ".".join(path.with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path) for path in SOURCES}


def room(module):
    """The longest prefix of a dotted name, or of a header's path, that has a floor."""
    parts = module.replace("/", ".").split(".")
    while ".".join(parts) not in FLOORS:
        parts.pop()
        assert parts, f"{module} has no floor; give it one in docs/design.md"
    return ".".join(parts)


@functools.cache
def imported(path):
    """The modules of minicaffe that a source file imports, at its top, in a function or by importlib, and the headers it includes."""
    return tuple(imports_of(path, path.read_text()))


def imports_of(path, text):
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: write relative imports with the whole name"
                if node.module.partition(".")[0] == "minicaffe":
                    yield from (target(node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "minicaffe")
    else:
        for module, names, plain in CIMPORT.findall(text):
            yield from [plain] if plain else [target(module, n.split(" as ")[0].strip()) for n in names.strip("()").split(",")]
        yield from INCLUDE.findall(text)
    if "import_module(" in text:    # of a name, or of f"minicaffe.folder.{name}": whatever is in there
        for name, more in BY_NAME.findall(text):
            yield from (m for m in MODULES if m == name or more and m.startswith(name))


def target(module, name):
    """The module meant by ``from module import name``: `name` may itself be one."""
    return f"{module}.{name}" if f"{module}.{name}" in MODULES else module


def edges(sources):
    """What each file imports, as a dict from name to a set of names; importing a module imports the packages it is in, too."""
    graph = {}
    for path in sources:
        own, found = name_of(path), graph.setdefault(name_of(path), set())
        for name in imported(path):
            found |= {name} | {p for p in MODULES if name.startswith(p + ".") and not own.startswith(p + ".")}
        found -= {own}
    return graph


def circle(graph):
    """The names along one circle of a graph, or None."""
    done = set()

    def search(path):
        for name in sorted(graph.get(path[-1], ())):
            found = [*path[path.index(name):], name] if name in path else None if name in done else search([*path, name])
            if found:
                return found
        done.add(path[-1])

    return next(filter(None, (search([name]) for name in graph if name not in done)), None)


def test_imports_run_downwards():
    assert len(SOURCES) > 400
    floors = {path: FLOORS[room(name_of(path))] for path in SOURCES}
    upward = [f"{name_of(path)} (floor {floors[path]}) imports {name}" for path in SOURCES for name in imported(path) if FLOORS[room(name)] > floors[path]]
    assert upward == []


def test_core_names_no_addon():
    """In code and comments."""
    core = [path for path in SOURCES if PACKAGE / "addons" not in path.parents]
    assert len(core) > 200 and not [path for path in core if re.search(r"\baddons[./]\w", path.read_text())]


def test_circles():
    assert (found := circle(edges(SOURCES))) is None, " -> ".join(found)
    rooms = {}
    for path in SOURCES:
        own = room(name_of(path))
        rooms.setdefault(own, set()).update({room(n) for n in imported(path)} - {own})
    assert (found := circle(rooms)) is None, " -> ".join(found)
    for path in SOURCES:
        own = room(name_of(path))
        if own.startswith("minicaffe.addons."):
            others = {room(name) for name in imported(path)} - {own, "minicaffe.addons"}
            assert not [name for name in others if name.startswith("minicaffe.addons.")], path


def test_table_of_the_design_page():
    there = {p.name + "/" * p.is_dir() for p in PACKAGE.iterdir() if p.suffix in (".py", ".pyx") or p.is_dir() and p.name != "__pycache__"}
    assert set(LISTED) == there
    lowest, highest = ("errors.py", "entry_points.py", "kernels/"), ("addons/",)
    assert [sorted({LISTED[name] for name in names}) for names in (lowest, highest)] == [[1], [max(LISTED.values())]]


def test_ways_to_import(tmp_path):
    (tmp_path / "wrong.pyx").write_text("""
from minicaffe.solver.solver import Solver
from minicaffe.device.context cimport (Context,
                                       on_device)
cdef extern from "minicaffe/device/apply.hpp":
    pass
def late():
    from minicaffe.net import (build,
                               weights as other)
    import minicaffe.data.db
    importlib.import_module("minicaffe.pycaffe.io")
    importlib.import_module(f"minicaffe.cuda.{name}")
""")
    (tmp_path / "wrong.py").write_text("def late():\n    from minicaffe.proto import text as prototxt, layer_fields\n    import minicaffe.addons.caffe2.plan")
    found = [name for name in imported(tmp_path / "wrong.pyx") if not name.startswith("minicaffe.cuda.")]
    assert found == ["minicaffe.solver.solver", *2 * ["minicaffe.device.context"], "minicaffe.net.build", "minicaffe.net.weights",
                     "minicaffe.data.db", "minicaffe/device/apply.hpp", "minicaffe.pycaffe.io"]
    assert "minicaffe.cuda.memory" in imported(tmp_path / "wrong.pyx")
    assert list(imported(tmp_path / "wrong.py")) == ["minicaffe.proto.text", "minicaffe.proto", "minicaffe.addons.caffe2.plan"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert circle({"a": {"b"}, "b": {"c", "d"}, "d": {"b"}, "c": set()}) == ["b", "d", "b"]
