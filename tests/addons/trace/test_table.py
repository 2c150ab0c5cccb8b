"""A trace on a terminal: lines that fit, and steps in full."""

import io
import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from minicaffe import memory
from minicaffe.addons import trace
from minicaffe.addons.trace import html, model, table
from minicaffe.cli.bars import table_console
from minicaffe.memory.sizes import size_text
from minicaffe.memory.states import SyncedHead


@pytest.fixture
def made(where, make_solver):
    solver = make_solver(plan="memory")
    with trace.record(solver) as made:
        solver.step(2)
    return made


@pytest.mark.parametrize("columns", [80, 200])
def test_one_line_per_step(made, columns, monkeypatch, capsys):
    """Also where a name is long, and where a step changes many states."""
    monkeypatch.setitem(made.steps[0], "layer", "inception_" + 12 * "long_" + "name")
    table.show(made, Console(width=columns, highlight=False))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and "\x1b" not in "".join(lines)
    assert any(line.split()[1:3] == [">", "conv"] for line in lines)
    assert sum("iteration 1" in line for line in lines) == 1
    rows = lines[1 : 1 + len(made.steps) + 2]       # each iteration has a title
    assert [line.split()[0] for line in rows if "iteration" not in line] == list(map(str, range(len(made.steps))))
    assert lines[1 + len(rows)].startswith(f"{len(made.steps)} steps in 2 iterations")
    first = next(line for line in rows if line.startswith("0 "))
    assert "inception_long" in first and ("g_name " in first) and ("…" in first.split("g_name")[0]) == (columns == 80)
    assert lines[0].rstrip().endswith("states that changed" if columns == 200 else "kernels")
    assert ("sim ms" in lines[0]) == (lines[-1] == "times and speeds are those of the simulated device, which is not a GPU") == made.simulated


def test_simulated_times_are_grey(made, where, monkeypatch):
    out = Console(width=100, height=24, force_terminal=True, color_system="standard", file=io.StringIO(), highlight=False)
    table.show(made, out)
    number = next(i for i, step in enumerate(made.steps) if step["layer"] == "ip")
    monkeypatch.setattr(type(out), "pager", lambda self: nullcontext())
    table.show_steps(made, out)
    grey = re.findall(r"\x1b\[2m *([^\x1b]*)", out.file.getvalue())
    spent = f"{(made.steps[number]['end'] - made.steps[number]['begin']) / 1e6:.3f}"
    assert any(re.fullmatch(r"[\d.]+ ms simulated", text) for text in grey) == (where == "sim")
    assert (spent in grey) == any(text.startswith(f"simulated: {spent} ms") for text in grey) == (where == "sim")


def test_lines_of_a_pipe(made, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    name = "inception_" + 60 * "long_" + "name"
    monkeypatch.setitem(made.steps[0], "layer", name)
    table.show(made, table_console())
    out = capsys.readouterr().out
    assert name in out and "…" not in out and sum("iteration" in line for line in out.splitlines()[:3]) == 1


def test_a_step_in_full(made, where):
    number = next(i for i, step in enumerate(made.steps) if (step["kind"], step["layer"]) == ("forward", "ip"))
    text = "\n".join(table.describe(made, number))
    assert f"step {number} of {len(made.steps)}, iteration 0: layer ip, forward" in text
    assert "MFLOP" in text and "of a large copy's" in text and "\n  ip[0] " in text
    assert f"+{size_text(80)} " in text      # ip data, 4 x 5 float32
    if where != "cpu":
        assert "blocks of" in text and "arrays: " in text


@pytest.mark.parametrize(("allocator", "words"), [("caching", "the rest split off"), ("buddy", "cut in halves")])
def test_what_the_allocator_did(on_cpu, allocator, words):
    before = memory.use(memory.CPUPlace(), allocator)
    try:
        with trace.record() as made:
            place = memory.allocator_of(memory.CPUPlace())
            block = memory.Buffer(place, 100 << 10, "first")
            del block
            block = memory.Buffer(place, 100 << 10, "second")
        text = "\n".join(table.describe(made, 0))
        assert "first (a new " in text and words in text and "-100 KiB" in text
        assert "joined with" in next(line for line in text.splitlines() if "-100 KiB" in line)
        second = next(line for line in text.splitlines() if "second" in line)
        assert ("from the cache" in second) == (allocator == "caching")
        del block
    finally:
        memory.use(memory.CPUPlace(), before)


def test_steps_in_full(made, capsys):
    """In order; a line that is too long for the terminal is wrapped, none is cut."""
    whole = [line for number in range(len(made.steps)) for line in table.describe(made, number)]
    table.show_steps(made, Console(width=10_000, highlight=False))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [line.rstrip() for line in whole]
    assert {made.document["why"][key] for key in made.document["why"]} <= {line.strip() for line in whole}
    table.show_steps(made, Console(width=80, highlight=False))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "".join(lines).replace(" ", "") == "".join(whole).replace(" ", "")
    table.show_steps(trace.Trace(None), Console())


def test_pager_on_a_terminal(made, monkeypatch):
    shown = []
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda self, text: shown.append(text))
    table.show_steps(made, Console(width=100, force_terminal=True))
    text, = shown
    assert text.startswith("step 0 of ") and "\x1b" not in text


def test_words_of_states(made, where):
    number = next(i for i, step in enumerate(made.steps) if (step["kind"], step["layer"]) == ("forward", "ip"))
    touched = next(touched for touched in made.steps[number]["touched"] if touched["before"] != touched["after"])
    title = made.titles[touched["memory"]]
    words = f"{model.STATES[touched['before']][0]} -> {model.STATES[touched['after']][0]}"
    assert f"{title}: {words}" in table.row(made, number)[-1]
    assert any(line.split()[0] == title.split()[0] and line.endswith(f"  {words}") for line in table.describe(made, number))
    of_page = json.loads(re.search(r"const HEADS = (.*), ROLES = ", html.page(made))[1])
    assert {head: word for head, (word, _, _) in of_page.items()} == {head: word for head, (word, _, _) in model.STATES.items()}
    assert set(model.STATES) == {str(head) for head in SyncedHead}
    assert [model.state_word(head) for head in ("HEAD_AT_CPU", "HEAD_AT_MOON", None, "")] == ["host", "HEAD_AT_MOON", "?", "?"]


def test_titles_say_what_a_memory_is(made, where):
    titles = dict(made.titles)
    assert titles["data data"] == "data" and titles["conv[0] diff"] == "conv[0] diff" and titles["conv[0] history data"] == "conv[0] history"
    assert len({memory["title"] for memory in made.memories}) == len(made.memories)
    assert not [title for title in titles.values() if title.endswith(" data")]
    scratch = [memory for memory in made.memories if memory["blob"] == "scratch"]
    assert all(memory["title"].startswith("scratch of ") for memory in scratch) and (scratch or where == "cpu")


@pytest.mark.parametrize(("width", "wide"), [(111, False), (112, True)])
def test_a_wide_terminal_shows_more(made, width, wide, capsys):
    table.show(made, Console(width=width, highlight=False))
    assert ("states that changed" in capsys.readouterr().out.splitlines()[0]) == wide


@pytest.mark.parametrize(("width", "middle", "end"), [(7, "conv1_2", "conv1_2"), (6, "co…1_2", "conv1…"), (3, "c…2", "co…")])
def test_names_that_are_cut(width, middle, end):
    assert table.cut_middle("conv1_2", width) == middle and table.truncate("conv1_2", width) == end


def test_first_of_equal_peaks():
    live = [(0, "a", {"input": 3, "gradient": 1}), (1, "b", {}), (2, "a", {"input": 1, "gradient": 3}), (3, "a", {"input": 2})]
    assert table.peaks(SimpleNamespace(live_bytes=lambda: live)) == {"a": (4, live[0][2]), "b": (0, {})}


def test_lines_of_a_launch():
    """A grid without its axes of 1, and arrays without a name."""
    document = trace.Trace(None).document
    document["strings"] = ["launch", "", "Each<A<float>>", "4x1x2 blocks of 32 threads;  (8 bytes); x data (4 bytes)"]
    document["events"] = {**{key: [0] for key in document["events"]}, "place": [1], "name": [2], "detail": [3]}
    document["steps"] = [{"iteration": 0, "kind": "forward", "layer": "x", "node": None, "first": 0, "last": 1, "begin": 0, "end": 0, "with": None,
                          "flops": None, "bytes": 0, "touched": [], "loss": None}]
    assert table.describe(trace.Trace(document), 0)[2:5] == [
        "  kernel Each<A<float>>, 4 x 2 blocks of 32 threads", "    0.000 ms", "    arrays: no name, x data"]
