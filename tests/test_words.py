"""tools/words.py finds a planted example of each rule, leaves out what is allowed, and finds nothing in this checkout."""

import pytest
import words


@pytest.mark.slow(7)
def test_checkout_passes(capsys):
    status = words.main()
    assert (status, capsys.readouterr().out) == (0, "")
    names = {name.as_posix() for name in words.files()}
    assert {"README.md", ".ci/run", "docs/course/README.md", "minicaffe/blob.pyx", "minicaffe/blob.pyi", "minicaffe/addons/trace/view/page.js",
            "tools/gpu_check", "tests/test_blob.py"} <= names
    texts = [(words.ROOT / name).read_text() for name in names]
    for pattern in words.ALLOWED:       # an exception that no file uses any more is to be removed
        assert any(words.re.search(pattern, text, words.re.MULTILINE) for text in texts), pattern


@pytest.mark.parametrize("line, word", [
    ("# before Somebody looks", "Somebody"), ("// nobody waits", "nobody"), ("whoever frees it", "whoever"),
    ("the allocator is told", "told"), ('"""Tell whether it fits."""', "Tell"), ("backward goes on", "goes on"),
    ("it lets go of a block", "lets go"), ("gradients travelled", "travelled"), ("def wishes():", "wishes"),
    ("0 stands for all", "stands"), ("it stood there", "stood"), ("what ran meanwhile", "meanwhile"), ("mend it", "mend"),
    ("make the net anew", "anew"), ("the one who asks", "who asks"), ("by and by", "by and by"), ("it looks after them", "looks after"),
    ("layers that it came upon", "came upon"), ("def test_a_run_goes_on():", "goes on"), ("class ToldOnce:", "Told"),
    ("self.who_asks = 1", "who asks"),
    ('if event.kind == "travel":', ""), ("| `travel` | gradients |", ""), ("| travel: gradients | file |", ""), ("size = file.tell()", ""),
    ("a stand-in for NCCL", ""), ("understand, retold, wishbone", ""), ("def understand_all():", ""), ("class Wishbone:", "")])
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


def test_findings_fail(tmp_path, capsys):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "a.py").write_text("# fine\n# nobody\n")
    assert words.main(tmp_path) == 1 and capsys.readouterr().out.startswith("tools/a.py:2: 'nobody': name the caller")
    (tmp_path / "tools" / "a.py").write_text("# fine\n")
    assert words.main(tmp_path) == 0 and capsys.readouterr().out == ""
