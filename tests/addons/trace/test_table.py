"""A trace on a terminal: lines that fit, a step in full, walking by typed lines."""

import io
import json
import re
from collections import Counter

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
def test_a_line_for_each_step_and_no_more(made, columns, monkeypatch, capsys):
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
    assert ("sim ms" in lines[0]) == (lines[-1] == "times and speeds are those of the simulated device, which is no GPU") == made.simulated


def test_times_of_the_simulated_device_are_grey_and_named(made, where):
    out = Console(width=100, height=24, force_terminal=True, color_system="standard", file=io.StringIO(), highlight=False)
    table.show(made, out)
    number = next(i for i, step in enumerate(made.steps) if step["layer"] == "ip")
    typed = iter([str(number), "q"])
    table.walk(made, lambda prompt: next(typed), out)
    grey = re.findall(r"\x1b\[2m *([^\x1b]*)", out.file.getvalue())
    spent = f"{(made.steps[number]['end'] - made.steps[number]['begin']) / 1e6:.3f}"
    assert any(re.fullmatch(r"[\d.]+ ms simulated", text) for text in grey) == (where == "sim")
    assert (spent in grey) == any(text.startswith(f"simulated: {spent} ms") for text in grey) == (where == "sim")


def test_a_pipe_gets_whole_lines_and_names(made, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    name = "inception_" + 60 * "long_" + "name"
    monkeypatch.setitem(made.steps[0], "layer", name)
    table.show(made, table_console())
    out = capsys.readouterr().out
    assert name in out and "…" not in out and sum("iteration" in line for line in out.splitlines()[:3]) == 1


def test_summary_counts_what_the_record_has(made):
    lines = table.summary(made)
    copies = [event for event in made.events if event.kind == "copy"]
    assert lines[0].startswith(f"{len(made.steps)} steps in 2 iterations")
    assert lines[1].startswith(f"copies: {len(copies)}, {size_text(sum(event.nbytes for event in copies))}")
    live = Counter()
    for block in made.document["start"]["blocks"]:
        live[block["place"]] += block["bytes"]
    most = dict(live)
    for event in made.events:
        if event.kind in ("alloc", "free"):
            live[event.place] += event.nbytes if event.kind == "alloc" else -event.nbytes
            most[event.place] = max(most.get(event.place, 0), live[event.place])
    assert {place: total for place, (total, _) in table.peaks(made).items()} == most
    assert all(sum(roles.values()) == total for total, roles in table.peaks(made).values())


def test_cells_of_a_line_count_what_the_step_has(made, monkeypatch):
    """Also calls of libraries, which a simulated device has none of, beside launches."""
    events = list(made.events)
    number, step = next((i, step) for i, step in enumerate(made.steps) if (step["kind"], step["layer"]) == ("forward", "ip"))
    first, last = step["first"], step["last"]
    kinds = ["launch", "call", "call", "copy", "reorder", "alloc", "free", "free"]
    inside = [events[first]._replace(kind=kind, nbytes=1024 * (i + 1), took=1000 * (i + 1)) for i, kind in enumerate(kinds)]
    monkeypatch.setattr(made, "events", [*events[:first], *inside, *events[last:]])
    monkeypatch.setitem(step, "last", first + len(kinds))
    cells = table.row(made, number, wide=True)
    assert cells[:2] == [str(number), "> ip"] and cells[3] == "0.006"       # of 1000 + 2000 + 3000 ns on the device
    assert cells[6:9] == [f"2: {size_text(9 << 10)}", f"+{size_text(6 << 10)} -{size_text(15 << 10)}", "3"]
    assert table.row(made, number, wide=False)[3:] == [size_text(9 << 10), f"-{size_text(9 << 10)}", "3"]


def test_a_step_in_full(made, where):
    number = next(i for i, step in enumerate(made.steps) if (step["kind"], step["layer"]) == ("forward", "ip"))
    text = "\n".join(table.describe(made, number))
    assert f"step {number} of {len(made.steps)}, iteration 0: layer ip, forward" in text
    assert "MFLOP" in text and "of a large copy's" in text and "\n  ip[0] " in text
    assert f"+{size_text(80)} " in text      # ip data, 4 x 5 float32
    if where != "cpu":
        assert "blocks of" in text and "arrays: " in text and "struct" in "\n".join(table.sources(made, number))
    else:
        assert table.sources(made, number) == ["this step launches no kernels"]


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


def test_walking(made):
    typed = iter(["", "p", "p", "ip", "ip", "3", "999", "no such layer", "s", "w", "m", "q", "never read"])
    asked, out = [], Console(file=io.StringIO(), width=100)

    def read(prompt):
        asked.append(prompt.split()[1])
        return next(typed)

    table.walk(made, read, out)
    ip = [str(i) for i, step in enumerate(made.steps) if step["layer"] == "ip"]
    assert asked == ["0", "1", "0", "0", ip[0], ip[1], "3", "3", "3", "3", "3", "3"]
    written = out.file.getvalue().splitlines()
    assert written[0].startswith("step 0 of") and "there are no more lines of this step" in written
    assert "this is the first step" in written and any("there is no step '999'" in line for line in written)
    table.walk(made, lambda prompt: (_ for _ in ()).throw(EOFError), out)     # an input that is at its end
    table.walk(trace.Trace(None), None, out)


def test_a_step_fits_24_rows(made, monkeypatch):
    """The rest follows with `m`, and all of it is shown once."""
    monkeypatch.setenv("LINES", "24")
    out, screens = Console(file=io.StringIO(), width=80, height=24), []
    number = max(range(len(made.steps)), key=lambda i: len(table.describe(made, i, why=False)))
    typed = iter([str(number), "m", "m", "q"])

    def read(prompt):
        assert len(prompt) <= 80
        screens.append(out.file.getvalue().splitlines())
        out.file.seek(out.file.truncate(0))
        return next(typed)

    table.walk(made, read, out)
    whole = [line.plain.rstrip() for line in table._wrapped(made, table.describe(made, number, why=False), out)]
    assert len(whole) > 24 and max(map(len, screens)) == 22
    shown = [line.rstrip() for screen in screens[1:] for line in screen if "more lines" not in line]
    assert shown[: len(whole)] == whole


def test_words_are_those_of_the_table_the_steps_and_the_page(made, where):
    number = next(i for i, step in enumerate(made.steps) if (step["kind"], step["layer"]) == ("forward", "ip"))
    touched = next(touched for touched in made.steps[number]["touched"] if touched["before"] != touched["after"])
    title = made.titles[touched["memory"]]
    words = f"{model.STATES[touched['before']][0]} -> {model.STATES[touched['after']][0]}"
    assert f"{title}: {words}" in table.row(made, number)[-1]
    assert any(line.split()[0] == title.split()[0] and line.endswith(f"  {words}") for line in table.describe(made, number))
    of_page = json.loads(re.search(r"const HEADS = (.*), ROLES = ", html.page(made))[1])
    assert {head: word for head, (word, _, _) in of_page.items()} == {head: word for head, (word, _, _) in model.STATES.items()}
    assert set(model.STATES) == {str(head) for head in SyncedHead}


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


@pytest.mark.parametrize(("terminal", "lines", "rows"), [(False, None, None), (True, None, 10), (False, "12", 10), (True, "12", 10)])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 12, 19, 20, 25])
def test_a_step_is_shown_in_screens(monkeypatch, terminal, lines, rows, count):
    """Of a terminal, and where a program has set LINES; a screen has two rows for the prompt, and one for how many lines follow."""
    monkeypatch.delenv("LINES", raising=False)
    if lines is not None:
        monkeypatch.setenv("LINES", lines)
    monkeypatch.setattr(table, "describe", lambda trace, number, why: [f"line {i}" for i in range(count)])
    out, screens = Console(file=io.StringIO(), width=80, height=12, force_terminal=terminal, color_system=None), []

    def read(prompt):
        screens.append(out.file.getvalue().splitlines())
        out.file.seek(out.file.truncate(0))
        if len(screens) > 5:
            raise EOFError
        return "m"

    step = {"iteration": 0, "kind": "between", "layer": "", "node": None, "first": 0, "last": 0, "begin": 0, "end": 0, "with": None, "flops": None,
            "bytes": 0, "touched": [], "loss": None}
    table.walk(trace.Trace({**trace.Trace(None).document, "steps": [step]}), read, out)
    left, wanted = [f"line {i}" for i in range(count)], []
    while left:
        if rows is None or len(left) <= rows:
            wanted.append(left)
            break
        wanted.append([*left[:rows - 1], f"… {len(left) - rows + 1} more lines: m"])
        left = left[rows - 1:]
    nothing = ["there are no more lines of this step"]
    assert screens == (wanted + [nothing] * 6)[:6]


def test_sources_of_the_kernels_of_a_step():
    """Kernels of one template have one source; a library's has none."""
    document = trace.Trace(None).document
    names = ["Each<A<float>>", "theirs", "Each<A<double>>", "Each<B<float>>", "theirs"]
    kernel = {"functor": "", "source": None, "header": None}
    document["kernels"] = {"theirs": kernel, "Each<B<float>>": {**kernel, "source": "struct B {\n};", "header": "b.hpp"},
                           **{f"Each<A<{kind}>>": {**kernel, "source": "struct A {};", "header": "a.hpp"} for kind in ("float", "double")}}
    document["strings"] = ["launch", "", *names[:4], "cache hit", "4x1x2 blocks of 32 threads;  (8 bytes); x data (4 bytes)"]
    count = len(names) + 1
    number = [0] * len(names) + [6]
    document["events"] = {**{key: [0] * count for key in ("time", "address", "bytes", "took")}, "kind": number, "place": [1] * count,
                          "name": [document["strings"].index(name) for name in names] + [1], "detail": [7] * count}
    step = {"iteration": 0, "kind": "forward", "layer": "x", "node": None, "begin": 0, "end": 0, "with": None, "flops": None, "bytes": 0, "touched": [],
            "loss": None}
    document["steps"] = [{**step, "first": 0, "last": count}, {**step, "first": count, "last": count}]
    made = trace.Trace(document)
    assert table.sources(made, 0) == ["Each<A<float>>; Each<A<double>>: in a.hpp", "struct A {};", "",
                                      "theirs: its source is not in minicaffe's headers", "", "Each<B<float>>: in b.hpp", "struct B {", "};", ""]
    assert table.sources(made, 1) == ["this step launches no kernels"]
    assert table.describe(made, 0)[2:5] == ["  kernel Each<A<float>>, 4 x 2 blocks of 32 threads", "    0.000 ms", "    arrays: no name, x data"]
