"""tools/words.py finds a planted example of each rule, leaves out what is allowed, and finds nothing in this checkout."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def words():
    spec = importlib.util.spec_from_file_location("words", ROOT / "tools" / "words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow(7)
def test_the_checkout_passes(words, capsys):
    status = words.main()
    assert (status, capsys.readouterr().out) == (0, "")


def test_all_places_are_read(words):
    names = {name.as_posix() for name in words.files()}
    assert {"README.md", ".ci/run", "docs/course/README.md", "minicaffe/blob.pyx", "minicaffe/blob.pyi", "minicaffe/addons/trace/view/page.js",
            "tools/gpu_check", "tools/limits.py", "tests/test_blob.py"} <= names
    assert not words.SKIPPED & names and all((ROOT / name).is_file() for name in words.SKIPPED)


@pytest.mark.parametrize("line, word", [
    ("# before Somebody looks", "Somebody"), ("// nobody waits", "nobody"), ("whoever frees it", "whoever"),
    ("the allocator is told", "told"), ('"""Tell whether it fits."""', "Tell"), ("backward goes on", "goes on"),
    ("it lets go of a block", "lets go"), ("gradients travelled", "travelled"), ("def wishes():", "wishes"),
    ("0 stands for all", "stands"), ("it stood there", "stood"), ("what ran meanwhile", "meanwhile"), ("mend it", "mend"),
    ("make the net anew", "anew"), ("the one who asks", "who asks"), ("by and by", "by and by"), ("it looks after them", "looks after"),
    ("layers that it came upon", "came upon"), ("def test_a_run_goes_on():", "goes on"), ("class ToldOnce:", "Told"),
    ("self.who_asks = 1", "who asks"),
])
def test_words_are_found_with_their_line(words, line, word):
    assert [found[:2] for found in words.find("minicaffe/some.py", f"first\n{line}\n")] == [(2, word)]


def test_each_word_has_a_suggestion(words):
    for pattern, advice in words.WORDS.items():
        word = pattern.replace("(?:s|led|ling)?", "").replace("(?:es|ed)?", "").replace("(?:s|ed|ing)?", "").replace("(?:s|ed)?", "")
        word = word.partition("|")[0].replace("(?:s)?", "").replace("s?", "")
        assert [found[2] for found in words.find_words(word)] == [advice], pattern


@pytest.mark.parametrize("line", ['if event.kind == "travel":', "| `travel` | gradients |", "| travel: gradients | file |",
                                  "size = file.tell()", "a stand-in for NCCL", "understand, retold, wishbone",
                                  "def understand_all():", "class Wishbone:"])
def test_parts_that_are_allowed(words, line):
    assert list(words.find_words(line)) == []


def test_each_exception_is_needed(words):
    """An exception that no file uses any more is to be removed."""
    texts = [(ROOT / name).read_text() for name in words.files()]
    for pattern in words.ALLOWED:
        assert any(words.re.search(pattern, text, words.re.MULTILINE) for text in texts), pattern


@pytest.mark.parametrize("text, lines", [
    ("word " * 24, []), ("word " * 24 + "words", [1]), ("- " + "word " * 24, [1]), ("| " + "word " * 30 + "|", []),
    ("```\n" + "word " * 30 + "\n```\n" + "word " * 30, [4]), ("    " + "word " * 30, []), ("- https://example.org/" + "x" * 120, []),
], ids=["120", "125", "item", "table", "after a block", "indented block", "no space"])
def test_wide_lines_of_pages(words, text, lines):
    assert [number for number, *_ in words.find("docs/page.md", text)] == lines


@pytest.mark.parametrize("path, finds", [
    ("minicaffe/a.pyx", True), ("minicaffe/a.pxd", True), ("minicaffe/a.hpp", True), ("minicaffe/a.cpp", True),
    ("minicaffe/a.js", True), ("minicaffe/a.py", False), ("tests/a.cpp", False)])
def test_wide_lines_of_code(words, path, finds):
    assert [found[:2] for found in words.find(path, "x" * 132 + "\n" + "x" * 133)] == [(2, "133 columns")] * finds


DOCSTRING = '''def f(x, {name}):
    """Do it.

    Parameters
    ----------
    x : float
    {name} : {kind}
        {text}

    Returns
    -------
    numpy.ndarray
    """
'''


@pytest.mark.parametrize("kind, text, finds", [
    ("numpy.ndarray", "Values.", True), ("list of Blob", "Kept.", True), ("array_like, optional", "Means.", True),
    ("numpy.ndarray, shape (N, K)", "Values.", False), ("Blob", "Of any shape.", False), ("array of float", "In seconds.", False),
    ("str", "An array's name.", False),
])
@pytest.mark.parametrize("path", ["minicaffe/a.py", "minicaffe/a.pyx", "minicaffe/a.pyi"])
def test_arrays_have_a_shape_or_a_unit(words, path, kind, text, finds):
    found = list(words.find(path, DOCSTRING.format(name="y", kind=kind, text=text)))
    assert [one[:2] for one in found] == [(7, "y")] * finds


def test_findings_are_printed_and_fail(words, tmp_path, capsys):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "a.py").write_text("# fine\n# nobody\n")
    assert words.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith("tools/a.py:2: 'nobody': name the caller")
    (tmp_path / "tools" / "a.py").write_text("# fine\n")
    assert words.main(tmp_path) == 0 and capsys.readouterr().out == ""
