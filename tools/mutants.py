"""Change the product at one place at a time, and run the tests that reach the place: which changes does no test see?

A change (a mutant) leaves out a statement or a term of `and` and `or`, exchanges `<` and `<=`, True and False, or the two sides of
a conditional expression; in C++ also the body of an `if`. All changes are put at once into the Cython, Python and C++ files of a
copy of the checkout, each with a switch, so that one build serves them all::

    git worktree add ../copy && cd ../copy
    python -m venv venv && . venv/bin/activate
    pip install meson-python meson ninja Cython numpy cuda-bindings nvidia-cuda-runtime
    python tools/mutants.py minicaffe/net minicaffe/blob.pyx        # edits these; writes mutants/places.json
    pip install --no-build-isolation --editable . -r tests/requirements.txt
    export PYTHONPATH=tools
    pytest -p mutants --mutants reach tests/net tests/test_blob.py  # which tests reach which places, and in which time
    pytest -p mutants --mutants run tests/net tests/test_blob.py    # all changes in random order, each in a forked process

The last command writes a line for each change to ``mutants/results.txt``: SEEN with a test that failed, SURVIVED, CRASH, TIMEOUT,
or UNREACHED. Many survivors have no effect that a user could see. ``--mutants-seconds`` is the time of the tests of one change,
the quickest of those that reach it; ``--mutants-part 0/2`` takes every second change. Tests that fail without a change count for
nothing. With ``MUTANT=number`` tests run with that change, without the plugin.
"""

import argparse
import bisect
import contextlib
import functools
import io
import json
import mmap
import os
import pickle
import random
import re
import select
import signal
import struct
import subprocess
import sys
import time
import tokenize
from pathlib import Path

FOLDER = Path("mutants")
SIZE = 1 << 17      # of the shared page: the active number as an int, then a byte for each place that was reached
HEADER = """#pragma once
#ifdef __CUDACC_RTC__
#define MUTANT(number) 0
#else
#define MUTANT(number) mutant(number)
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

// The page is shared with the processes that tests start: the number of the active change, and a byte for each place reached.
static inline volatile unsigned char* mutants_page() {
  static volatile unsigned char* const page = [] {
    const char* path = getenv("MUTANTS_PAGE");
    const int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void* found = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (found == MAP_FAILED) abort();
    const char* number = getenv("MUTANT");
    if (number && file < 0) *static_cast<int*>(found) = atoi(number);
    return static_cast<volatile unsigned char*>(found);
  }();
  return page;
}

static inline int mutant(int number) {
  volatile unsigned char* page = mutants_page();
  page[4 + number] = 1;
  return *reinterpret_cast<volatile int*>(page) == number;
}
#endif
""".replace("SIZE", str(SIZE))
MODULES = {
    "mutants.hpp": HEADER,
    "mutants.pxd": 'cdef extern from "minicaffe/mutants.hpp" nogil:\n    int mutant(int number) noexcept\n',
    "mutants_of_python.pyx": '"""The switches of changes."""\n\nfrom minicaffe.mutants cimport mutant\n\n\n'
                             "cpdef int MUTANT(int number):\n    return mutant(number)\n",
}
IMPORTS = {".pyx": "from minicaffe.mutants cimport mutant as MUTANT", ".py": "from minicaffe.mutants_of_python import MUTANT",
           ".hpp": '#include "minicaffe/mutants.hpp"', ".cpp": '#include "minicaffe/mutants.hpp"'}
# Files that are imported before the switches can be, or that the build writes.
LEFT_OUT = re.compile(r"__init__|__main__|_pb2|as_caffe\.py|/course/")

OPENING, CLOSING = "([{", ")]}"
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "//=", "|=", "&="}
COMPARISONS = {"<", "<=", ">", ">=", "==", "!=", "is", "in"}
ENDS_OF_TERM = ASSIGNMENTS | {
    "if", "else", ",", ":", "return", "elif", "while", "assert", "for", "lambda", "yield", ":=", "raise", "from", "and", "or"}
ENDS_OF_SIDE = ENDS_OF_TERM | COMPARISONS | {"not"}
NO_OPERANDS = ENDS_OF_SIDE | {"del", "with", "as", "import", "except"}
STATEMENTS = set("if elif while for with try else except finally raise pass assert del yield return".split())
DECLARATIONS = set("@ cdef cpdef ctypedef import from cimport global nonlocal class include def async".split())


class Token:
    """A token; `depth` is the number of brackets around it, `in_cast` whether it is part of a cast of Cython, such as ``<int>``."""

    def __init__(self, type, text, start, end):
        self.type, self.text, self.start, self.end = type, text, start, end
        self.depth, self.in_cast = 0, False

    @property
    def ends_operand(self):
        if self.type in (tokenize.NUMBER, tokenize.STRING):
            return True
        return self.text in CLOSING if self.type == tokenize.OP else self.type == tokenize.NAME and self.text not in NO_OPERANDS


def read_lines(text):
    """Return the logical lines of a file, each a list of tokens."""
    lines, line, left_out = [], [], {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        if found.type == tokenize.NEWLINE:
            lines.append(line)
            line = []
        elif found.type not in left_out:
            line.append(Token(*found[:4]))
    for line in lines:
        depth = 0
        for token in line:
            depth -= token.type == tokenize.OP and token.text in CLOSING
            token.depth = depth
            depth += token.type == tokenize.OP and token.text in OPENING
        i = 0
        while i < len(line):
            if line[i].text == "<" and not (i and line[i - 1].ends_operand):
                while i < len(line) - 1 and line[i].text != ">":
                    line[i].in_cast = True
                    i += 1
                line[i].in_cast = True
            i += 1
    return lines


def last_of(line, at, step, ends):
    """Return the index of the last token of the operand that begins beside token `at`, in the direction of `step`."""
    i = at + step
    while 0 <= i < len(line) and line[i].depth >= line[at].depth and not (
            line[i].depth == line[at].depth and not line[i].in_cast and line[i].text in ends):
        i += step
    return i - step


def changes_of_line(line, rows, known):
    """Yield the changes of a statement: kind, its first and last token, and what is written before and behind them.

    `known`: the local names that have a value. ``{}`` is the place of the number.
    """
    first, raised = line[0].text, next((i for i, token in enumerate(line) if token.text == "raise"), len(line))
    outside = (i for i, token in enumerate(line) if not token.depth and not token.in_cast)
    assigned = next((i for i in outside if line[i].text in ASSIGNMENTS), None)
    if first not in STATEMENTS and line[-1].text != ":":
        if line[-1].text == ")" if assigned is None else line[assigned].text != "=" or assigned > 1 or first in known:
            yield "statement", line[0], line[-1], "if not MUTANT({}): ", ""
    if len(line) == 1 and first in ("break", "continue", "return"):
        yield "statement", line[0], line[0], "if not MUTANT({}): ", ""
    for i, token in enumerate(line[:raised]):
        if token.in_cast or i == 0:
            continue
        if token.text in ("and", "or"):
            for step in (-1, 1):
                j = last_of(line, i, step, ENDS_OF_TERM)
                middle = step < 0 and j and line[j - 1].text in ("and", "or")       # it is the right term of that one
                if j != i and not middle:
                    a, b = (j, i - 1) if step < 0 else (i + 1, j)
                    yield f"term of {token.text}", line[a], line[b], f"({token.text == 'and'} if MUTANT({{}}) else (", "))"
        elif token.text in ("<", "<=", ">", ">=") and line[i - 1].ends_operand:
            a, b = last_of(line, i, -1, ENDS_OF_SIDE), last_of(line, i, 1, ENDS_OF_SIDE)
            chained = a and line[a - 1].text in COMPARISONS or b + 1 < len(line) and line[b + 1].text in COMPARISONS
            if a < i < b and not chained and line[a].start[0] == line[b].end[0]:
                row, other = rows[token.start[0] - 1], token.text[0] if "=" in token.text else token.text + "="
                swapped = f"{row[line[a].start[1]:token.start[1]]}{other}{row[token.end[1]:line[b].end[1]]}"
                yield "boundary", line[a], line[b], "(", f" if not MUTANT({{}}) else {_plain(swapped)})"
        elif token.text in ("True", "False") and (line[i - 1].text in OPENING or line[i - 1].text in ("=", ",", "return")):
            yield "truth", token, token, "(", f" if not MUTANT({{}}) else {token.text == 'False'})"
        elif token.text == "if" and any(later.text == "else" and later.depth == token.depth for later in line[i:]):
            yield "condition", line[i + 1], line[last_of(line, i, 1, {"else"})], "(not (", ")) == MUTANT({})"


def _plain(text):
    return text.replace("{", "{{").replace("}", "}}")


def changes_of(text):
    """Return the changes of a file's functions: kind, first and last token, text before, text behind."""
    rows, blocks, known, changes = text.split("\n"), [], set(), []
    for line in read_lines(text):
        indent, first = line[0].start[1], line[0].text
        while blocks and blocks[-1][0] >= indent:
            blocks.pop()
        header, words = line[-1].text == ":", {token.text for token in line[:6]}
        is_function = (header and first in ("def", "async", "cdef", "cpdef") and len(line) > 2
                       and not words & {"class", "extern", "struct", "enum"})
        if header:
            blocks.append((indent, "function" if is_function else "class" if first in ("class", "cdef", "ctypedef") else "block"))
            known = {token.text for token in line} if is_function else known
        inside = [kind for _, kind in blocks]
        if first in DECLARATIONS or "function" not in inside or all(token.type == tokenize.STRING for token in line):
            continue
        changes += changes_of_line(line, rows, known)
        if first == "for" or "=" in [token.text for token in line]:
            known.update(token.text for token, after in zip(line, line[1:]) if after.text in ("=", "in", ","))
    return changes


# ---- C++

CPP_TOKEN = re.compile(r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|(?<![^\n])[ ]*\#(?:\\\n|[^\n])*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<name>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[\w.']|[eEpP][+-])*)
    |(?P<op>->|::|\+\+|--|<<=|>>=|&&|\|\||[-+*/%&|^=!<>]=|.)""", re.S | re.X)
CPP_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
CPP_ENDS_OF_TERM = CPP_ASSIGNMENTS | {"&&", "||", "?", ":", ",", ";", "return"}
CPP_ENDS_OF_SIDE = CPP_ENDS_OF_TERM | {"<", "<=", ">", ">=", "==", "!=", "!", "<<"}
BEFORE_BLOCK = {")", "else", "do", "try", "const", "noexcept", "override", "mutable"}
CPP_NO_STATEMENTS = set(
    "if else for while do switch case default return using typedef static const constexpr auto struct class enum template goto "
    "throw delete try catch extern public private protected static_assert union namespace friend".split())


def read_cpp(text):
    """Return the tokens of a C++ file."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def place(at):
        row = bisect.bisect_right(starts, at)
        return row, at - starts[row - 1]
    kinds = {"name": tokenize.NAME, "number": tokenize.NUMBER, "string": tokenize.STRING, "op": tokenize.OP}
    tokens = [Token(kinds[found.lastgroup], found.group(), place(found.start()), place(found.end()))
              for found in CPP_TOKEN.finditer(text) if found.lastgroup != "skip"]
    depth = 0
    for token in tokens:
        depth -= token.text in CLOSING
        token.depth = depth
        depth += token.text in OPENING
    return tokens


def is_declaration(statement):
    """Whether an assignment or call begins with a type: two names side by side, maybe with ``*``, ``&`` or ``>`` between."""
    for one, two, three in zip(statement, statement[1:], [*statement[2:], statement[-1]]):
        if two.text == "(" or two.text in CPP_ASSIGNMENTS and two.depth == statement[0].depth:
            return False
        of_type = two.text in ("*", "&", ">") and (three.type == tokenize.NAME or three.text == "*")
        if (one.type == tokenize.NAME or one.text == ">") and (two.type == tokenize.NAME or of_type):
            return True
    return False


def changes_of_statement(statement, rows):
    """Yield the changes inside a statement, or the head of a block."""
    for i, token in enumerate(statement):
        if token.text in ("&&", "||"):
            for step in (-1, 1):
                j = last_of(statement, i, step, CPP_ENDS_OF_TERM)
                if j != i and (step > 0 or not j or statement[j - 1].text not in ("&&", "||")):
                    a, b = (j, i - 1) if step < 0 else (i + 1, j)
                    before = "(MUTANT({}) || (" if token.text == "&&" else "(!MUTANT({}) && ("
                    yield f"term of {token.text}", statement[a], statement[b], before, "))"
        elif token.text in ("<", "<=", ">", ">=") and rows[token.start[0] - 1][token.start[1] - 1:token.start[1]] == " ":
            row = rows[token.start[0] - 1]
            a, b = last_of(statement, i, -1, CPP_ENDS_OF_SIDE), last_of(statement, i, 1, CPP_ENDS_OF_SIDE)
            if row[token.end[1]:token.end[1] + 1] == " " and a < i < b and statement[a].start[0] == statement[b].end[0]:
                other = token.text[0] if "=" in token.text else token.text + "="
                swapped = f"{row[statement[a].start[1]:token.start[1]]}{other}{row[token.end[1]:statement[b].end[1]]}"
                yield "boundary", statement[a], statement[b], "(MUTANT({}) ? " + _plain(swapped) + " : ", ")"
        elif token.text == "if" and i + 2 < len(statement) and statement[i + 1].text == "(":
            end = next(j for j in range(i + 2, len(statement)) if statement[j].depth == statement[i + 1].depth)
            if not any(inner.text in ("=", ";") for inner in statement[i + 2:end]):
                yield "if", statement[i + 2], statement[end - 1], "!MUTANT({}) && (", ")"


def changes_of_cpp(text):
    """Return the changes of a C++ file's functions, as `changes_of`."""
    rows, changes, statement, blocks = text.split("\n"), [], [], []
    for token in read_cpp(text):
        if token.text == "{" and (not statement or statement[-1].depth <= token.depth):
            words = {before.text for before in statement}
            scope = bool(words & {"namespace", "struct", "class", "union", "enum", "extern"}) and "(" not in words
            block = not scope and (not statement or statement[-1].text in BEFORE_BLOCK)
            fixed = "constexpr" in words and "if" not in words
            inside = blocks and blocks[-1][0] == "function"
            if inside and block and "constexpr" not in words:
                changes += changes_of_statement(statement, rows)
            outer = blocks[-1][0] if blocks else "scope"
            kind = "scope" if scope else "fixed" if fixed or outer == "fixed" else "function" if block else "value"
            blocks.append((kind, token.depth))
            statement = [*statement, token] if kind == "value" else []
            continue
        if token.text == "}" and blocks and blocks[-1][1] == token.depth:
            kind, _ = blocks.pop()
            statement = [*statement, token] if kind == "value" else []
            continue
        statement.append(token)
        if token.text == ":" and statement[0].text in ("case", "default", "public", "private", "protected"):
            statement = []
        if token.text == ";" and blocks and blocks[-1][0] == "function" and token.depth == blocks[-1][1] + 1:
            if "constexpr" not in {one.text for one in statement} and statement[0].text not in ("static_assert", "static", "using"):
                changes += changes_of_statement(statement, rows)
                changes += whole_statement(statement)
            statement = []
        elif token.text == ";" and (not blocks or token.depth == blocks[-1][1] + 1):
            statement = []
    return changes


def whole_statement(statement):
    """Yield the change that leaves out a statement, behind the heads of ``if``, ``for``, ``while`` and ``else``."""
    at = 0
    while statement[at].text in ("if", "for", "while", "else"):
        at += 1
        if statement[at].text == "(":
            at = next(j for j in range(at + 1, len(statement)) if statement[j].depth == statement[at].depth) + 1
    body = statement[at:]
    first, before_end = body[0], body[-2] if len(body) > 1 else body[0]
    alone = len(body) == 2 and first.text in ("break", "continue", "return")
    assigns = any(one.text in CPP_ASSIGNMENTS and one.depth == first.depth for one in body)
    does = assigns or before_end.text == ")" or first.text in ("++", "--")
    begins = first.text in ("*", "++", "--") or first.type == tokenize.NAME and first.text not in CPP_NO_STATEMENTS
    if alone or len(body) > 2 and does and begins and not is_declaration(body):
        yield "statement", first, body[-1], "{{ if (!MUTANT({})) ", " }}"


def written(text, kind, changes, number):
    """Return the text of a file with `changes`, numbered from `number` on."""
    lines = text.split("\n")
    starts = [0]
    for row in lines:
        starts.append(starts[-1] + len(row) + 1)

    def position(place):
        return starts[place[0] - 1] + place[1]
    parts = []      # position, closing before opening, order, text: the widest opens first and closes last
    for i, (_, first, last, before, behind) in enumerate(changes):
        a, b = position(first.start), position(last.end)
        parts += [(a, 1, (-b, i), before.format(number + i)), (b, 0, (-a, -i), behind.format(number + i))]
    made, at = [], 0
    for where, _, _, part in sorted(parts):
        made += text[at:where], part
        at = where
    made = ("".join(made) + text[at:]).split("\n")
    if kind in (".hpp", ".cpp"):
        top = next(i for i, line in enumerate(lines) if line.startswith("#"))
        top += lines[top] == "#pragma once"
    else:
        top = next(line for line in read_lines(text) if line[0].type != tokenize.STRING)[0].start[0] - 1
    return "\n".join([*made[:top], IMPORTS[kind], *made[top:]]), top + 1


def wrong_rows(path, text, top):
    """Return the rows of the original file that do not compile with the changes; [] if all of it compiles."""
    path.write_text(text)
    if path.suffix == ".py":
        try:
            compile(text, str(path), "exec")
        except SyntaxError as error:
            return [error.lineno - (error.lineno > top)]
        return []
    if path.suffix == ".pyx":
        error, command = "", [sys.executable, "-m", "cython", "--cplus", "-3", "-I", ".", "-o", FOLDER / "translated.cpp"]
    else:
        cuda = [f"-I{folder}" for folder in Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/include")]
        error, command = "error: ", ["g++", "-std=c++17", "-fsyntax-only", "-w", "-I.", f"-I{path.parent}", *cuda, "-x", "c++"]
    done = subprocess.run([*command, path], capture_output=True, text=True)
    found = re.findall(rf"^{re.escape(str(path))}:(\d+):\d+: {error}", done.stderr, re.M) if done.returncode else ()
    rows = set(map(int, found))
    if done.returncode and not rows:
        sys.exit(f"{path}: {command[0]} fails: {done.stderr[-500:]}")
    return [row - (row > top) for row in rows]


def plant(paths):
    """Put the changes of the files below `paths` into them; write the table of places."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
             if file.suffix in IMPORTS and not LEFT_OUT.search(str(file))]
    if missing := [str(path) for path in paths if not path.exists()]:
        sys.exit(f"there is no {missing[0]}; name files and folders below minicaffe/ of the copy, which is the present folder")
    if FOLDER.exists():
        sys.exit(f"{FOLDER}/ exists: the files have their changes already; begin with a new copy")
    FOLDER.mkdir()
    for name, text in MODULES.items():
        Path("minicaffe", name).write_text(text)
    table = []
    for file in files:
        text = file.read_text()
        changes = (changes_of_cpp if file.suffix in (".hpp", ".cpp") else changes_of)(text)
        while rows := wrong_rows(file, *written(text, file.suffix, changes, len(table) + 1)):
            left = [change for change in changes if not any(change[1].start[0] <= row <= change[2].end[0] for row in rows)]
            if len(left) == len(changes):
                sys.exit(f"{file}:{rows[0]}: does not compile, and no change is near")
            changes = left
        rows = text.split("\n")
        for kind, begin, *_ in changes:
            table.append((len(table) + 1, f"{file}:{begin.start[0]}:{begin.start[1]}", kind, rows[begin.start[0] - 1].strip()))
    if len(table) > SIZE - 8:
        sys.exit(f"{len(table)} changes are too many for one page; name fewer files")
    Path("meson.build").touch()     # there is a new module
    (FOLDER / "places.json").write_text(json.dumps(table))
    print(f"{len(table)} changes in {len(files)} files; build the copy, then pytest -p mutants --mutants reach, and run")


# ---- the plugin of pytest

@functools.cache
def shared_page():
    """Return the page. Processes that this one starts use it too."""
    path = FOLDER / f"page-{os.getpid()}"
    path.write_bytes(bytes(SIZE))
    os.environ["MUTANTS_PAGE"] = str(path.resolve())
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), SIZE)


def pytest_addoption(parser):
    shared_page()       # before a conftest.py imports minicaffe, whose first switch opens it
    group = parser.getgroup("mutants")
    group.addoption("--mutants", choices=["reach", "run"], help="find out which tests reach which places; or try the changes")
    group.addoption("--mutants-part", default="0/1", help="I/N: every N-th file of tests, or change, from number I on")
    group.addoption("--mutants-seconds", type=float, default=3, help="of the tests of one change")


def pytest_unconfigure(config):
    Path(os.environ.pop("MUTANTS_PAGE")).unlink()


def pytest_runtestloop(session):
    mode = session.config.getoption("mutants")
    if mode is None or session.config.option.collectonly:
        return None
    part, parts = map(int, session.config.getoption("mutants_part").split("/"))
    (reach if mode == "reach" else run)(session, part, parts)
    return True


def in_child(body, seconds):
    """Return what `body` returns in a forked process, or CRASH or TIMEOUT; processes that it started end with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        with open(writer, "wb") as file:
            pickle.dump(body(), file)
        os._exit(0)
    os.close(writer)
    found, end = b"", time.monotonic() + seconds
    with open(reader, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0, end - time.monotonic()))[0]:
            piece = file.read(1 << 16)
            if not piece:
                break
            found += piece
        else:
            found = pickle.dumps(("TIMEOUT", ""))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return pickle.loads(found) if found else ("CRASH", "")


def run_tests(session, items, stop, after=lambda item, seconds: None):
    """Run tests in this process; return the names of those that failed."""
    failed = []

    class Reports:
        def pytest_runtest_logreport(self, report):
            if report.failed:
                failed.append(report.nodeid)
    session.config.pluginmanager.register(Reports())
    for item, following in zip(items, [*items[1:], None]):
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        after(item, time.monotonic() - began)
        if stop and failed:
            break
    return failed


def reach(session, part, parts):
    """Run all tests once; write which places each reached, its time, and the tests that fail."""
    page = shared_page()
    modules = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in session.items))[part::parts]
    items = [item for item in session.items if item.nodeid.partition("::")[0] in modules]
    reached = {}

    def after(item, seconds):
        places = page[4:]
        reached[item.nodeid] = seconds, [i for i in range(len(places)) if places[i]] if any(places) else []
        page[4:] = bytes(len(places))

    def body():
        return reached, run_tests(session, items, False, after)
    with open(FOLDER / f"reached-{part}.pkl", "wb") as file:
        pickle.dump(in_child(body, 24 * 3600), file)


def run(session, part, parts):
    """Try each change with the quickest tests that reach it; write a line for each."""
    page, limit = shared_page(), session.config.getoption("mutants_seconds")
    tests, seconds, failing = {}, {}, set()
    for path in FOLDER.glob("reached-*.pkl"):
        reached, failed = pickle.loads(path.read_bytes())
        failing.update(failed)
        for name, (took, places) in reached.items():
            seconds[name] = took
            for number in places:
                tests.setdefault(number, []).append(name)
    items = {item.nodeid: item for item in session.items if item.nodeid not in failing}
    table = json.loads((FOLDER / "places.json").read_text())
    random.Random(1).shuffle(table)
    with open(FOLDER / "results.txt", "a", buffering=1) as results:
        for number, place, kind, text in table[part::parts]:
            chosen, total = [], 0
            for name in sorted((name for name in tests.get(number, ()) if name in items), key=seconds.get):
                if total <= limit:
                    total += seconds[name]
                    chosen.append(name)
            result, test = "UNREACHED", ""
            if chosen:
                page[:4] = struct.pack("i", number)
                ordered = [item for name, item in items.items() if name in set(chosen)]
                found = in_child(lambda: run_tests(session, ordered, True), 10 + 5 * total)    # noqa: B023 - it runs at once
                page[:4] = bytes(4)
                result, test = found if isinstance(found, tuple) else ("SEEN", found[0]) if found else ("SURVIVED", "")
            count = f"{len(chosen)} of {len(tests.get(number, ()))} tests"
            results.write(f"{result} {number} {place} [{kind}] {text} ({count}) {test}\n")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("paths", nargs="+", type=Path, help="files and folders of the copy, the present folder")
    plant(options.parse_args().paths)
