"""Every test has an assertion that can fail: in itself, or in a function, class or fixture of tests/ whose name it uses."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

CHECKS = ("pytest.raises", "pytest.warns", "pytest.fail", "pytest.deprecated_call")


def can_fail(node):
    """Whether a statement or call is an assertion; that of a constant, or of a tuple with its message in it, never fails."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant | ast.Tuple) or isinstance(node.test, ast.Constant) and not node.test.value
    if isinstance(node, ast.Raise):
        return node.exc is not None and ast.unparse(node.exc).startswith("AssertionError")
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return name in CHECKS or ".testing.assert_" in name


def names_in(node):
    """The names that a function or class uses: variables, attributes, and the fixtures that are its arguments."""
    parts = list(ast.walk(node))
    return ({part.id for part in parts if isinstance(part, ast.Name)} | {part.attr for part in parts if isinstance(part, ast.Attribute)}
            | {part.arg for part in parts if isinstance(part, ast.arg)}) - {node.name}


def without_assertion(folder):
    """Return the tests that cannot fail by an assertion, as file::name. Functions of one name count as one."""
    definitions = [(path, node) for path in sorted(folder.rglob("*.py")) for node in ast.walk(ast.parse(path.read_text()))
                   if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    users, asserting = defaultdict(set), set()
    for path, node in definitions:
        for name in names_in(node):
            users[name].add((path, node.name))
        if any(map(can_fail, ast.walk(node))):
            asserting.add((path, node.name))
    waiting = list(asserting)
    while waiting:
        new = users[waiting.pop()[1]] - asserting
        asserting |= new
        waiting += new
    return [f"{path.relative_to(folder)}::{node.name}" for path, node in definitions
            if node.name.startswith("test_") and path.name.startswith("test_") and (path, node.name) not in asserting]


@pytest.mark.slow(6)
def test_every_test_asserts():
    assert without_assertion(Path(__file__).resolve().parent) == [], "give these tests an assertion that can fail"


@pytest.mark.parametrize(("asserts", "text"), [
    (False, "def test_it(): print(1)"), (False, "def test_it(): assert True"), (False, 'def test_it(): assert (1 == 2, "the message")'),
    (False, "def test_it(): subprocess.run([], check=True)"), (False, "def test_it(): calm()"), (False, "def one(): two()\ndef two(): one()\ndef test_it(): one()"),
    (False, "def test_it():\n    try: f()\n    except ValueError: pass"), (False, "def own(): assert x\ndef test_it(): pass"),
    (True, "def test_it(): assert x"), (True, "def test_it():\n    if x: assert False"), (True, "def test_it():\n    with pytest.raises(ValueError): f()"),
    (True, "def test_it(): np.testing.assert_array_equal(1, 2)"), (True, 'def test_it(): raise AssertionError("x")'),
    (True, "def test_it():\n    def inner():\n        for i in x: assert i\n    inner()"), (True, "def test_it(): helpers.strict()"),
    (True, "def one(): two()\ndef two(): one(); strict()\ndef test_it(): one()"), (True, "class One:\n    def check(self): assert x\ndef test_it(): run(One)"),
    (True, "@pytest.fixture\ndef one(): return strict\ndef test_it(one): one()")])
def test_scan_for_assertions(tmp_path, asserts, text):
    (tmp_path / "helpers.py").write_text("def strict(): assert x\ndef calm(): pass")
    (tmp_path / "test_planted.py").write_text(text)
    assert without_assertion(tmp_path) == ["test_planted.py::test_it"] * (not asserts)
