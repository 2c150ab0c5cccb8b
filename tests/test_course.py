"""docs/course: its blocks run and print what is below them, and its exercises can be solved, but not by nothing or by a mistake.

A chapter is run as its reader would: in an empty folder, files written, commands run and Python typed into one session, in its order.
"""

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import pytest
from cplusplus import compiler
from pages import ROOT, blocks, defines
from sources import copy_models

import minicaffe

COURSE = ROOT / "docs" / "course"
CHAPTERS = sorted(COURSE.glob("[0-9]*_*.md"), key=lambda path: int(path.stem.split("_")[0]))
EXERCISES = COURSE / "exercises"
FILE = re.compile(r"(?:#|//) (\S+\.\w+)\n")
MARK = "---- end of a block"
SESSION = """
import os, shlex, subprocess, sys
from pathlib import Path
def _run(line, said=None):
    words, environment = shlex.split(line), dict(os.environ)
    while "=" in words[0]:
        environment.update([words.pop(0).split("=", 1)])
    arguments = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]
    done = subprocess.run(arguments, env=environment, check=True, text=True, stderr=said and subprocess.PIPE)
    assert said is None or " ".join(said.split()) in " ".join(done.stderr.split()), done.stderr
"""

# Of each exercise an answer that is wrong, or several: what is replaced in solutions/, and by what.
WRONG = {
    1: {"index_of": ("at * size + i", "at + i * size"), "indices_of": ("tuple(reversed(digits))", "tuple(digits)"),
        "allocations": ("count > capacity", "count != capacity")},
    2: {"next_head": ('"SYNCED" if copied', "here if copied"), "copies": ("total += copied", "total += 1"),
        "mean": [("cpu_data", "data"), ("blob.cpu_data.mean()", "3")]},
    3: {"find": ("in scopes", "in scopes[:1]"), "new_parameters": ("there[name] != shape", "False"), "renew": ("{layer}[", "ip")},
    4: {"inner_product_backward": ("dY.T @ X", "dY.T @ X / len(X)"), "softmax_loss_gradient": (" - scores.max(axis=1, keepdims=True)", ""),
        "numeric_gradient": [("(2 * h)", "h"), ("return gradient", "return 3 * x ** 2")]},
    5: {"pooled_size": [("-(-(size + 2 * pad - kernel) // stride)", "(size + 2 * pad - kernel) // stride"), (" if pad and (out - 1) * stride >= size + pad", " if False")],
        "im2col": ("for u in range(kernel) for v in range(kernel)", "for v in range(kernel) for u in range(kernel)"),
        "weight_gradient": [("o // outputs * channels + c", "c"), ("gradient[o, c] +=", "gradient[o, c] =")],
        "receptive_field": ("step *= stride", "step = stride"), "needs_columns": ("(kernel, stride, pad) != (1, 1, 0)", "kernel != 1")},
    6: {"rate_inv": ("-power", "power"), "momentum_step": ("w - v", "w - rate * v"), "read_twice": ("current[name] = [name, 0]", "current.setdefault(name, [name, 0])")},
    7: {"elements_of": ("range(block * threads + thread, n, blocks * threads)", "range(block * threads + thread, n, threads)"),
        "element_at": ("zip(reversed(shape), reversed(strides))", "zip(shape, strides)"), "magic_number": ("// d + 1", "// d"),
        "saturate": ("x > 1 ? 1 : x", "1")},
    8: {"round_up": ("-(-nbytes // grain)", "(nbytes // grain + 1)"), "buddy_of": ("offset ^ size", "offset + size"),
        "best_fit": [("(size, offset) for", "(0, offset) for"), ("size >= nbytes", "size > nbytes")], "join": ("== offset", "<= offset")},
    9: {"convolution_cost": ("2 * weights", "weights"), "attainable": ("min(", "max("), "lane_index": ("-(-channels // lanes)", "channels // lanes"),
        "reorders": ('("plain", private)', '("plain",)')},
    10: {"mean_picture": (".astype(np.float64)", ""), "records_of": [("step * batch * ranks + rank", "step * batch + rank"), ("number % count", "number")],
         "crop_corner": [("draw(height - size + 1)", "draw(height - size or 1)"), ("(height - size) // 2", "-(-(height - size) // 2)")],
         "decode_datum": [("(byte & 127) << shift", "byte & 127"), ("if kind == 5 else 8", "if kind == 5 else 4"), ("fields = {5: 0}", "fields = {}")]},
}
BACKWARD_IN_TEST = pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")


@pytest.fixture(autouse=True)
def _chosen_by_the_course(device):
    if device != "cpu":
        pytest.skip("the course says itself where it computes; its tests run once, with --device cpu")


def needs_compiler(number):
    """Skip what compiles, where nothing can: chapter 7 a kernel for the simulated device, chapter 4 a layer."""
    if number in ("4", "7"):
        compiler()
    if number == "4" and importlib.util.find_spec("Cython") is None:
        pytest.skip("Cython is not installed: pip install Cython")


def run_session(steps, folder):
    """Run statements in one Python process in a folder; return what each of them prints."""
    copy_models(folder / "models", "lenet", "mlp")
    (folder / "session.py").write_text(SESSION + "".join(f"{step}\nprint({MARK!r}, flush=True)\n" for step in steps))
    environment = {name: value for name, value in os.environ.items() if name not in ("MINICAFFE_DEVICE", "MINICAFFE_SIM", "PYTHONSAFEPATH")}
    done = subprocess.run([sys.executable, "session.py"], cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(MARK + "\n")[:-1]


def steps_of(chapter):
    """Return the chapter's steps as Python statements, and what each has to print: text, or None if the chapter does not say."""
    steps, printed = [], []
    for block in blocks(chapter.relative_to(ROOT)):
        file = FILE.match(block.text)
        if block.language == "text":
            printed[-1] = block.text
            continue
        if file:
            steps.append(f"Path({file[1]!r}).write_text({block.text!r})")
        elif block.language == "python":
            steps.append(block.text)
        elif block.language == "session":               # a command, and a part of what it says
            line, said = block.text.removeprefix("$ ").split("\n", 1)
            steps.append(f"_run({line!r}, {said!r})")
        else:
            assert block.language in ("minicaffe", "shell"), f"{chapter.name}:{block.line}: no test runs this"
            commands = [line for line in block.text.splitlines() if not block.not_run and not line.startswith("pytest exercises/")]
            steps.append("".join(f"_run({line!r})\n" for line in commands))
        printed.append(None)
    return steps, printed


@pytest.mark.parametrize("chapter", [pytest.param(path, marks=[pytest.mark.slow(29)] * (path.stem[:2] in ("4_", "5_", "6_", "8_", "9_", "10"))) for path in CHAPTERS],
                         ids=lambda path: path.stem)      # chapter 4 compiles a layer, as test_adding_a_layer does
def test_chapters(chapter, tmp_path):
    needs_compiler(chapter.stem.split("_")[0])
    steps, expected = steps_of(chapter)
    assert sum(text is not None for text in expected) >= 2
    for step, said, text in zip(steps, run_session(steps, tmp_path), expected, strict=True):
        assert text is None or said.strip() == text.strip(), step
        if "_run('pytest" in step:                      # chapter 4: who follows it has added a layer, and its test passes
            assert "4 passed" in said
    if chapter.stem.startswith(("5_", "10_")):          # which write a page and a database: they run a second time, too
        run_session(steps, tmp_path)


def test_notebook(tmp_path):
    cells = [cell for cell in json.loads((COURSE / "course.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    said = run_session(["".join(cell["source"]) for cell in cells], tmp_path)
    for cell, text in zip(cells, said, strict=True):
        assert "".join("".join(output["text"]) for output in cell["outputs"]) == text, "".join(cell["source"])


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_names_in_a_chapter(chapter):
    """A name beside a link to a file of ours is in that file; in the section about our files it is defined there."""
    text = chapter.read_text()
    assert re.findall(r"^## (The idea|Slowly|Our file|What the trace shows|Exercises)", text, re.M) == [
        "The idea", "Slowly", "Our file", "What the trace shows", "Exercises"]
    section = text.partition("\n## Our file")[2].partition("\n## ")[0]
    for in_section, paragraph in [*((False, part) for part in text.split("\n\n")), *((True, part) for part in re.split(r"\n\n|\n(?=- )", section))]:
        sources = "".join((ROOT / path).read_text() for path in re.findall(r"\]\(\.\./\.\./(minicaffe/[\w/.]+)\)", paragraph))
        for name in re.findall(r"`([\w.]+)`", paragraph) if sources else ():
            assert defines(sources, name) if in_section else re.search(rf"\b{name.split('.')[-1]}\b", sources), f"{name}: {paragraph}"
    lines = re.findall(r"^\|.*\]\(\.\./\.\./(.*)\), `(?:\w+\.)?(\w+)` \| `(.*)` \|$", text, re.M)
    assert lines or "| file, function | line |" not in text
    for path, function, line in lines:
        above, *below = re.split(rf" {re.escape(line)}(?: *#.*)?\n", (ROOT / path).read_text(), maxsplit=1)
        assert below, f"{path} has no line {line}"
        assert re.findall(r"^ *c?p?def [^(=\n]*?(\w+)\(", above, re.M)[-1] == function, line


def test_index_and_hints():
    assert re.findall(r"\]\((\d+_\w+\.md)\)", (COURSE / "README.md").read_text()) == [chapter.name for chapter in CHAPTERS]
    answers = {name: wrongs if isinstance(wrongs, list) else [wrongs] for chapter in WRONG.values() for name, wrongs in chapter.items()}
    hints = hints_of_exercises()
    assert list(hints) == [name for number in WRONG for name in re.findall(r"^(?:def )?(\w+)(?:\(| =)", (EXERCISES / f"chapter{number}.py").read_text().lower(), re.M)]
    for name, hint in hints.items():
        assert re.fullmatch(r"[A-Z][^.?!]*(?:\.pyx[^.?!]*)?[.?]", hint), f"{name}: not one sentence: {hint}"
        assert not any(right in hint for right, _ in answers[name]), f"{name}: its hint has the answer"


# ---- exercises


def failing(number, answers, tmp_path, monkeypatch):
    """Run a chapter's tests on the source of some answers, and return the names of those that fail, and of all."""
    module = types.ModuleType(f"chapter{number}")
    exec(answers, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")       # put back afterwards; the tests set it
    path = EXERCISES / f"test_chapter{number}.py"
    names = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), names)
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    failed = set()
    for name, test in tests.items():
        try:
            with np.errstate(all="ignore"):             # a wrong answer may overflow
                test(*[Path(tempfile.mkdtemp(dir=tmp_path))] * len(inspect.signature(test).parameters))
        except (Exception, pytest.fail.Exception):
            failed.add(name)
    minicaffe.set_mode_cpu()
    return failed, set(tests)


@pytest.mark.parametrize("number", [1, 2, 3, *(pytest.param(number, marks=BACKWARD_IN_TEST) for number in (4, 5)), 6, 7, 8, 9, 10])
def test_exercises(number, tmp_path, monkeypatch):
    needs_compiler(str(number))
    blanks, solutions = (folder / f"chapter{number}.py" for folder in (EXERCISES, EXERCISES / "solutions"))
    named = {name for name in re.findall(r"^def (\w+)", blanks.read_text(), re.M)} | {name.lower() for name in re.findall(r"^([A-Z]+) =", blanks.read_text(), re.M)}
    page, = COURSE.glob(f"{number}_*.md")
    assert named == set(WRONG[number]) and all(f"`{name}`" in page.read_text() or f"`{name.upper()}`" in page.read_text() for name in named)
    assert re.findall(r"^def .*", blanks.read_text(), re.M) == re.findall(r"^def .*", solutions.read_text(), re.M)

    failed, tests = failing(number, solutions.read_text(), tmp_path, monkeypatch)
    assert failed == set() and tests == {f"test_{name}" for name in named}
    failed, _ = failing(number, blanks.read_text(), tmp_path, monkeypatch)
    assert failed == tests, "a test passes without an answer"
    for name, right, wrong in ((name, *each) for name, wrongs in WRONG[number].items() for each in (wrongs if isinstance(wrongs, list) else [wrongs])):
        assert solutions.read_text().count(right) == 1, (name, right)
        failed, _ = failing(number, solutions.read_text().replace(right, wrong), tmp_path, monkeypatch)
        assert f"test_{name}" in failed, f"{name} may be wrong: {wrong}"


def run_copied_tests(tmp_path, answers):
    """Run the tests of a copy of the exercises, with the files of the folder `answers`, as pytest does for a learner."""
    folder = shutil.copytree(EXERCISES, tmp_path / "exercises")
    shutil.copytree(answers, folder, dirs_exist_ok=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "exercises/test_chapter8.py"], cwd=tmp_path,
                          capture_output=True, text=True).stdout


@pytest.mark.slow(4)
def test_hints_of_failed_exercises(tmp_path):
    hints = hints_of_exercises()
    of_chapter = [hints[name] for name in WRONG[8]]
    blank = run_copied_tests(tmp_path / "blank", EXERCISES)
    assert "4 failed" in blank and all(blank.count(hint) == 1 for hint in of_chapter)
    right = run_copied_tests(tmp_path / "right", EXERCISES / "solutions")
    assert "4 passed" in right and not any(hint in right for hint in of_chapter)


def hints_of_exercises():
    names = {}
    exec((EXERCISES / "conftest.py").read_text(), names)
    return names["HINTS"]
