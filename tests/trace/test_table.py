"""A trace on a terminal: lines that fit, a step in full, walking by typed lines."""

from collections import Counter

import pytest

from minicaffe import memory, trace
from minicaffe.memory.sizes import size_text
from minicaffe.trace import table


@pytest.fixture
def made(where, make_solver):
    solver = make_solver(plan="memory")
    with trace.record(solver) as made:
        solver.step(2)
    return made


@pytest.mark.parametrize("columns", [80, 200])
def test_lines_fit(made, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    table.show(made)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and "\x1b" not in "".join(lines)
    assert any(line.split()[1:3] == [">", "conv"] for line in lines)
    assert sum("iteration 1" in line for line in lines) == 1
    assert ("heads that changed" in lines[0]) == (columns == 200)


def test_a_pipe_gets_whole_lines_and_names(made, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "inception_" + 60 * "long_" + "name"
    monkeypatch.setitem(made.steps[0], "layer", name)
    table.show(made)
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
    assert table.row(made, number, wide=False)[3:6] == cells[6:9]


def test_a_step_in_full(made, where):
    number = next(i for i, step in enumerate(made.steps) if (step["kind"], step["layer"]) == ("forward", "ip"))
    text = "\n".join(table.describe(made, number))
    assert f"step {number} of {len(made.steps)}, iteration 0: layer ip, forward" in text
    assert "MFLOP" in text and "of a large copy's" in text and "ip[0] data" in text
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
    typed = iter(["", "p", "p", "ip", "ip", "3", "999", "no such layer", "s", "q", "never read"])
    asked, written = [], []

    def read(prompt):
        asked.append(prompt.split()[1])
        return next(typed)

    table.walk(made, read, written.append)
    ip = [str(i) for i, step in enumerate(made.steps) if step["layer"] == "ip"]
    assert asked == ["0", "1", "0", "0", ip[0], ip[1], "3", "3", "3", "3"]
    assert "this is the first step" in written and any("there is no step '999'" in line for line in written)
    table.walk(made, lambda prompt: (_ for _ in ()).throw(EOFError), written.append)     # an input that is at its end
    table.walk(trace.Trace(None), None, written.append)
