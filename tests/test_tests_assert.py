"""Every test has an assertion that can fail: in itself, or in a helper, a fixture or a state machine of tests/ that it uses by name."""

import ast
import functools
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
CHECKS = {"pytest.raises", "pytest.warns", "pytest.fail", "pytest.deprecated_call"}


def can_fail(node):
    """Whether a statement or call is an assertion itself; that of a constant, or of a tuple with its message in it, never fails."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant | ast.Tuple) or isinstance(node.test, ast.Constant) and not node.test.value
    if isinstance(node, ast.Raise):
        return node.exc is not None and ast.unparse(node.exc).startswith("AssertionError")
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return name in CHECKS or ".testing.assert_" in name or name.startswith("assert_")
    return False


def is_fixture(node):
    return any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)


class Modules:
    """The Python files of a folder, in which helpers are found by name: in the same file, by import, or as fixtures of a conftest.py."""

    def __init__(self, folder):
        self.folder = folder
        self.trees = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
        self.stems = {path.stem: path for path in self.trees if path.name != "conftest.py"}
        self.uses, self.direct = functools.cache(self.uses), functools.cache(lambda node: any(map(can_fail, ast.walk(node))))
        self.names = {path: self.names_of(path, tree) for path, tree in self.trees.items()}

    def names_of(self, path, tree):
        """What the names of a file mean: (file, function or class), or the path of another test file."""
        names = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in self.stems:
                names |= {alias.asname or alias.name: (self.stems[node.module], alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.asname or alias.name: self.stems[alias.name] for alias in node.names if alias.name in self.stems}
        return names | {node.name: (path, node) for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    def resolve(self, path, name):
        """Return the file and node that a name means in a file, or None."""
        meant = self.names[path].get(name)
        if isinstance(meant, tuple) and isinstance(meant[1], str):
            return self.resolve(*meant)
        return meant if isinstance(meant, tuple) else None

    def fixture(self, path, name):
        """Return the file and node of a fixture, as pytest looks it up, or None."""
        folders = [folder for folder in path.parents if folder.is_relative_to(self.folder)]
        for place in [path, *(folder / "conftest.py" for folder in folders)]:
            if place in self.trees and (found := self.resolve(place, name)) and is_fixture(found[1]):
                return found
        return None

    def uses(self, path, node):
        """Return the (file, node) of all that a function or class uses by name."""
        arguments = {argument.arg for argument in node.args.args + node.args.kwonlyargs} if isinstance(node, ast.FunctionDef) else set()
        found = []
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                found.append(self.fixture(path, part.id) if part.id in arguments else self.resolve(path, part.id))
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                other = self.names[path].get(part.value.id)
                found.append(self.resolve(other, part.attr) if isinstance(other, Path) else None)
        return [used for used in found if used is not None]

    def asserts(self, path, node):
        """Whether a function or class has an assertion, or uses one that has."""
        known, waiting = {node}, [(path, node)]
        while waiting:
            path, node = waiting.pop()
            if self.direct(node):
                return True
            new = [used for used in self.uses(path, node) if used[1] not in known]
            known.update(used[1] for used in new)
            waiting += new
        return False

    def tests(self):
        """Yield the file and node of each test."""
        for path, tree in self.trees.items():
            if path.name.startswith("test_"):
                yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))

    def without(self):
        """Return the tests that cannot fail by an assertion, as file::name."""
        return [f"{path.relative_to(self.folder)}::{node.name}" for path, node in self.tests() if not self.asserts(path, node)]


@pytest.mark.slow(6)
def test_every_test_asserts():
    modules = Modules(FOLDER)
    assert len(list(modules.tests())) > 2000
    found = set(modules.without())
    assert found == set(), "give these tests an assertion that can fail"


WITHOUT = {
    "nothing": "def test(): print(1)",
    "a constant": "def test(): assert True",
    "a tuple, which is true": 'def test(): assert (1 == 2, "the message")',
    "an exit status that raises": "def test(): subprocess.run([], check=True)",
    "a helper without": "def help(): pass\ndef test(): help()",
    "helpers in a circle": "def one(): two()\ndef two(): one()\ndef test(): one()",
    "a helper that is not used": "def help(): assert x\ndef test(): pass",
    "an argument with the name of a helper": "def help(): assert x\ndef test(help): help()",
    "a fixture that is not used": "@pytest.fixture\ndef one(): assert x\ndef test(one): pass",
    "a helper of another file": "import helpers\ndef test(): helpers.calm()",
    "a name of another file": "from helpers import calm as strict\ndef test(): strict()",
    "a fixture of another folder": "def test(of_another_folder): of_another_folder()",
    "another module's function of the same name": "import other\ndef test(): other.strict()",
    "what is caught": "def test():\n    try: f()\n    except ValueError: pass",
}
WITH = {
    "assert": "def test(): assert x",
    "assert False": "def test():\n    if x: assert False",
    "raises": "def test():\n    with pytest.raises(ValueError): f()",
    "NumPy": "def test(): np.testing.assert_array_equal(1, 2)",
    "AssertionError": 'def test(): raise AssertionError("x")',
    "in a loop of a function": "def test():\n    def inner():\n        for i in x: assert i\n    inner()",
    "a helper": "def help(): assert x\ndef test(): help()",
    "a helper of a helper": "def one(): two()\ndef two(): three()\ndef three(): assert x\ndef test(): one()",
    "helpers in a circle": "def one(): two()\ndef two(): one(); three()\ndef three(): assert x\ndef test(): one()",
    "a class": "class One:\n    def check(self): assert x\ndef test(): One().check()",
    "a class that another has as its base": "class One:\n    def check(self): assert x\nclass Two(One): pass\ndef test(): run(Two)",
    "a fixture": "@pytest.fixture\ndef one(): return check\ndef check(): assert x\ndef test(one): one()",
    "a fixture of the folder": "def test(of_the_folder): of_the_folder()",
    "a fixture of the folder above": "def test(of_all): of_all()",
    "a helper of another file": "import helpers\ndef test(): helpers.strict()",
    "a name of another file": "from helpers import strict as other\ndef test(): other()",
    "a name that another file has from a third": "from more import strict\ndef test(): strict()",
}


@pytest.mark.parametrize(("asserts", "title"), [*((False, title) for title in WITHOUT), *((True, title) for title in WITH)])
def test_the_scan_finds_what_it_should(tmp_path, asserts, title):
    files = {
        "conftest.py": "@pytest.fixture\ndef of_all(): assert x",
        "helpers.py": "def strict(): assert x\ndef calm(): pass",
        "more.py": "from helpers import strict",
        "one/conftest.py": "@pytest.fixture\ndef of_the_folder():\n    def check(): assert x\n    return check",
        "two/conftest.py": "@pytest.fixture\ndef of_another_folder(): assert x",
        "one/test_planted.py": (WITH if asserts else WITHOUT)[title].replace("def test(", "def test_planted("),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert Modules(tmp_path).without() == ([] if asserts else ["one/test_planted.py::test_planted"])
