"""The tests and words of this checkout: planted examples of each rule are found, and nothing else."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest
import words


@pytest.mark.slow(7)
def test_checkout_passes(capsys):
    status = words.main()
    assert (status, capsys.readouterr().out) == (0, "")
    names = {name.as_posix() for name in words.files()}
    assert {"README.md", ".ci/run", "docs/course/README.md", "minicaffe/blob.pyx", "minicaffe/blob.pyi", "minicaffe/addons/trace/view/page.js",
            "tools/gpu_check", "tests/test_blob.py"} <= names


@pytest.mark.parametrize("line, word", [
    ("# before Somebody looks", "Somebody"), ("// nobody waits", "nobody"), ("whoever frees it", "whoever"),
    ("the allocator is told", "told"), ('"""Tell whether it fits."""', "Tell"), ("backward goes on", "goes on"),
    ("it lets go of a block", "lets go"), ("gradients travelled", "travelled"), ("def wishes():", "wishes"),
    ("0 stands for all", "stands"), ("it stood there", "stood"), ("what ran meanwhile", "meanwhile"), ("mend it", "mend"),
    ("make the net anew", "anew"), ("the one who asks", "who asks"), ("by and by", "by and by"), ("it looks after them", "looks after"),
    ("layers that it came upon", "came upon"), ("def test_a_run_goes_on():", "goes on"), ("class ToldOnce:", "Told"),
    ("self.who_asks = 1", "who asks"),
    ('if event.kind == "travel":', ""), ("| `travel` | gradients |", ""), ("| travel: gradients | file |", ""), ("size = file.tell()", ""),
    ("understand, retold, wishbone", ""), ("def understand_all():", ""), ("class Wishbone:", "")])
def test_words_and_exceptions(line, word):
    assert [found[:2] for found in words.find("minicaffe/some.py", f"first\n{line}\n")] == [(2, word)] * bool(word)


@pytest.mark.parametrize("path, text, wide", [
    *(("docs/page.md", text, wide) for text, wide in (
        ("word " * 24, []), ("word " * 24 + "words", [1]), ("- " + "word " * 24, [1]), ("| " + "word " * 30 + "|", []),
        ("```\n" + "word " * 30 + "\n```\n" + "word " * 30, [4]), ("    " + "word " * 30, []), ("- https://example.org/" + "x" * 120, []))),
    *((path, "x" * 132 + "\n" + "x" * 133, [2] * found) for path, found in (
        ("minicaffe/a.pyx", 1), ("minicaffe/a.pxd", 1), ("minicaffe/a.hpp", 1), ("minicaffe/a.cpp", 1), ("minicaffe/a.js", 1), ("minicaffe/a.py", 0),
        ("tests/a.cpp", 0)))])
def test_wide_lines(path, text, wide):
    assert [number for number, *_ in words.find(path, text)] == wide


DOCSTRING = '''def f(x, y):
    """Do it.

    Parameters
    ----------
    x : float
    y : {kind}
        {text}
    """
'''


@pytest.mark.parametrize("kind, text, finds", [
    ("numpy.ndarray", "Values.", True), ("list of Blob", "Kept.", True), ("array_like, optional", "Means.", True),
    ("numpy.ndarray, shape (N, K)", "Values.", False), ("Blob", "Of any shape.", False), ("array of float", "In seconds.", False),
    ("str", "An array's name.", False)])
def test_shapes_and_units(kind, text, finds):
    for path in "minicaffe/a.py", "minicaffe/a.pyx", "minicaffe/a.pyi":
        assert [one[:2] for one in words.find(path, DOCSTRING.format(kind=kind, text=text))] == [(7, "y")] * finds


def test_findings_fail(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(words, "ALLOWED", {r"\.tell\(": "a method of Python's files"})
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "a.py").write_text("# fine\n# nobody\n")
    assert words.main(tmp_path) == 1 and capsys.readouterr().out.startswith("tools/a.py:2: 'nobody': name the caller")
    (tmp_path / "tools" / "a.py").write_text("size = file.tell()\n")
    assert words.main(tmp_path) == 0 and capsys.readouterr().out == ""
    (tmp_path / "tools" / "a.py").write_text("# fine\n")
    assert words.main(tmp_path) == 1 and "exception '\\\\.tell\\\\(': no file uses it" in capsys.readouterr().out


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
