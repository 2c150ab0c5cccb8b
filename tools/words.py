"""Check the words of the style guide, the widths that other tools do not check, and what docstrings say of arrays.

- Words of `WORDS`, which say what code does as if it were a person, or are rare in technical English. They are looked for in
  code, comments, messages and pages alike, also within names such as ``test_a_run_goes_on``; `ALLOWED` has the exceptions, each
  of which a file must use.
- Pages: lines of at most 120 columns, but for tables, code and what has no space to break at.
- Cython, C++ and JavaScript of the package, which ruff does not read: lines of at most 132 columns.
- Docstrings with a section "Parameters": an array or a blob comes with its shape, its number of elements or its unit.

``python tools/words.py`` prints a line for each finding; exit status 1 if there is one.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("minicaffe", "docs", "tools", "tests", ".ci", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".hpp", ".cpp", ".js", ".html", ".md", ""}
SKIPPED = {"tools/words.py", "tests/test_words.py"}     # they contain the words
PAGE_WIDTH, CODE_WIDTH = 120, 132

WORDS = {
    "nobody|somebody|someone|anybody|everybody": "name the caller, thread, process or user, or use the passive",
    "whoever|whom": "name the caller, thread, process or user",
    "told|tells?|telling": "report, say, show, return; is passed, is reported",
    "goes on|go on|went on|going on|gone on": "continue",
    "lets? go|letting go": "release, free",
    "travel(?:s|led|ling)?": "is sent, is copied",
    "wish(?:es|ed)?": "setting, request, option",
    "stands?|stood": "is, is stored, precedes, represents",
    "meanwhile": "at the same time, since then",
    "mend(?:s|ed|ing)?": "fix, repair",
    "anew": "again, from the beginning",
    "who asks": "the caller",
    "by and by": "step by step",
    "look(?:s|ed)? after": "manage",
    "come(?:s)? upon|came upon": "find, reach",
}
WORD = re.compile("|".join(rf"(\b(?:{words})\b)" for words in WORDS), re.IGNORECASE)
# What a word may be part of -> why.
ALLOWED = {
    r"""["'`]travel["'`]|^\| travel:""": "the kind of an event, a key in the files of traces",
    r"\.tell\(": "a method of Python's files",
}
ALLOWED_TEXT = re.compile("|".join(ALLOWED))
WITHIN_NAME = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")       # between two words of an identifier

SECTION = re.compile(r'^( *)Parameters\n *-{3,}\n((?:.*\n)*?)(?= *\w+\n *-{3,}\n|.*""")', re.MULTILINE)
ARRAY = re.compile(r" : .*\b(?:arrays?|ndarray|array_like|blobs?|tensors?)\b", re.IGNORECASE)
SIZE = re.compile(r"\bshapes?\b|\(\w+(?:, \w+)*,?\)|\b\d-?D\b|\b(?:pixel|byte|element|second|scalar)s?\b|\bax[ei]s\b|"
                  r"\bfor each\b|\d x \d|\w x \w", re.IGNORECASE)


def find_words(text):
    """Yield the line number, the word and the suggestion of each word of `WORDS` in `text`."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in WORD.finditer(WITHIN_NAME.sub(" ", ALLOWED_TEXT.sub("", line))):
            yield number, found[0], list(WORDS.values())[found.lastindex - 1]


def find_wide_lines(text, page):
    """Yield the line number, the width and the suggestion of each line that is too wide; `page`: of Markdown."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= page and line.lstrip().startswith("```")
        if not page and len(line) > CODE_WIDTH:
            yield number, f"{len(line)} columns", f"wrap at {CODE_WIDTH}"
        elif page and len(line) > PAGE_WIDTH and not fenced and not re.match(r" *\||    |<!--", line) and \
                line.rfind(" ", 0, PAGE_WIDTH) > len(line) - len(line.lstrip(" -*")):
            yield number, f"{len(line)} columns", f"wrap at {PAGE_WIDTH}"


def find_arrays(text):
    """Yield the line number, the name and the suggestion of each array parameter of a docstring that has neither shape nor unit."""
    for section in SECTION.finditer(text):
        first = text.count("\n", 0, section.start(2)) + 1
        entries = re.split(rf"(?m)^(?={section[1]}\S)", section[2])
        for i, entry in enumerate(entries):
            if ARRAY.search(entry.partition("\n")[0]) and not SIZE.search(entry):
                number = first + sum(earlier.count("\n") for earlier in entries[:i])
                yield number, entry.partition(" : ")[0].strip(), "give the shape, the number of elements or the unit"


def find(path, text):
    """Yield the line number, the word and the suggestion of each finding in a file; `path` is relative to the checkout."""
    path = Path(path)
    yield from find_words(text)
    if path.suffix == ".md":
        yield from find_wide_lines(text, page=True)
    if path.parts[0] == "minicaffe":
        if path.suffix in (".pyx", ".pxd", ".hpp", ".cpp", ".js"):
            yield from find_wide_lines(text, page=False)
        if path.suffix in (".py", ".pyx", ".pyi"):
            yield from find_arrays(text)


def files(root=ROOT):
    """Yield the files to check, relative to the checkout in `root`."""
    for place in PLACES:
        for path in [root / place] if (root / place).is_file() else sorted((root / place).rglob("*")):
            name = path.relative_to(root)
            if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts and name.as_posix() not in SKIPPED:
                yield name


def main(root=ROOT):
    """Print all findings of the checkout in `root`; return the exit status."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in files(root)}
    found = [f"{name}:{number}: '{word}': {advice}" for name, text in texts.items()
             for number, word, advice in sorted(find(name, text))]
    found += [f"tools/words.py: exception {pattern!r}: no file uses it, remove it" for pattern in ALLOWED
              if not any(re.search(pattern, text, re.MULTILINE) for text in texts.values())]
    print(*found, sep="\n", end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
