"""The .pyi files, which editors complete names of compiled and of lazily imported modules from, name what there is."""

import ast
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "minicaffe"
STUBS = sorted(PACKAGE.rglob("*.pyi"))


def names_of(body):
    """The public names that the statements of a stub define; imports count where they say ``as`` the same name, or ``*``."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found = [node.name]
        elif isinstance(node, ast.AnnAssign):
            found = [node.target.id]
        elif isinstance(node, ast.Assign):
            found = [target.id for target in node.targets]
        else:
            found = [alias.asname for alias in getattr(node, "names", ()) if alias.asname == alias.name]
            if [alias.name for alias in getattr(node, "names", ())] == ["*"]:
                found = importlib.import_module(node.module).__all__
        yield from (name for name in found if not name.startswith("_"))


def module_of(stub):
    parts = stub.relative_to(PACKAGE.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts).removesuffix(".__init__"))


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_names_agree(stub):
    assert len(STUBS) >= 3 and (PACKAGE / "py.typed").exists()
    module, tree = module_of(stub), ast.parse(stub.read_text())
    named = set(names_of(tree.body))
    missing = {name for name in named if not hasattr(module, name)}
    assert not missing, f"{stub.name} names {missing}, which {module.__name__} has not"
    if hasattr(module, "__all__"):
        there = set(module.__all__)
    else:
        there = {name for name, value in vars(module).items() if not name.startswith("_") and callable(value)
                 and getattr(value, "__module__", None) == module.__name__}
    assert not there - named, f"{module.__name__} has {there - named}, add them to {stub.name}"
    for node in tree.body:
        cls = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if cls is None:
            continue
        attributes = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
        named = set(names_of(node.body))
        assert not {name for name in named - attributes if not hasattr(cls, name)}, f"{stub.name}: {node.name} has no such members"
        bases = {name for base in cls.__mro__[1:] for name in vars(base)}
        own = {name for name in vars(cls) if not name.startswith("_")} - bases - named
        assert not own, f"{stub.name}: {node.name} lacks {sorted(own)}"
