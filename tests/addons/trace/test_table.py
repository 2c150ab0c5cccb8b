"""A trace on a terminal: lines that fit, steps in full, and the command."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest
from rich.console import Console
from small_net import recorded
from tiny import NET

from minicaffe.addons import trace
from minicaffe.addons.trace import html, model, table
from minicaffe.cli.bars import table_console
from minicaffe.memory.states import SyncedHead


@pytest.fixture
def made(where, make_solver):
    solver, made = recorded(make_solver(plan="memory"), 2)
    return made


@pytest.mark.parametrize("columns", [80, 200])
def test_one_line_per_step(made, columns, monkeypatch, capsys):
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
    for width in 111, 112:
        table.show(made, Console(width=width, highlight=False))
        lines = capsys.readouterr().out.splitlines()
        assert ("states that" in lines[0]) == (width == 112) and max(map(len, lines)) <= width
        assert any(line.rstrip().endswith("…") for line in lines) == (width == 112)    # the states are cut at their end


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


def test_steps_in_full(made, capsys, monkeypatch):
    whole = [line for number in range(len(made.steps)) for line in table.describe(made, number)]
    table.show_steps(made, Console(width=10_000, highlight=False))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [line.rstrip() for line in whole]
    assert {made.document["why"][key] for key in made.document["why"]} <= {line.strip() for line in whole}
    table.show_steps(made, Console(width=80, highlight=False))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "".join(lines).replace(" ", "") == "".join(whole).replace(" ", "")
    table.show_steps(trace.Trace(None), Console())
    shown = []
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda self, text: shown.append(text))
    table.show_steps(made, Console(width=100, force_terminal=True))
    text, = shown
    assert text.startswith("step 0 of ") and "\x1b" not in text


def test_words_of_states_and_titles(made, where):
    of_page = json.loads(re.search(r"const HEADS = (.*), ROLES = ", html.page(made))[1])
    assert {head: word for head, (word, _, _) in of_page.items()} == {head: word for head, (word, _, _) in model.STATES.items()}
    assert set(of_page) == {str(head) for head in SyncedHead}
    assert [model.state_word(head) for head in ("HEAD_AT_CPU", "HEAD_AT_MOON", None, "")] == ["host", "HEAD_AT_MOON", "?", "?"]
    titles = dict(made.titles)
    assert titles["data data"] == "data" and titles["conv[0] diff"] == "conv[0] diff" and titles["conv[0] history data"] == "conv[0] history"
    assert len({memory["title"] for memory in made.memories}) == len(made.memories)
    assert not [title for title in titles.values() if title.endswith(" data")]
    scratch = [memory for memory in made.memories if memory["blob"] == "scratch"]
    assert all(memory["title"].startswith("scratch of ") for memory in scratch) and (scratch or where == "cpu")


def test_names_that_are_too_long():
    for name, width, middle in (("abcdef", 6, "abcdef"), ("abcdef", 5, "ab…ef"), ("abcdef", 4, "a…ef"), ("ab", 1, "…")):
        assert table.cut_middle(name, width) == middle


def test_a_net_and_a_solver(minicaffe, folder):
    for file in ("net.prototxt", "solver.prototxt"):
        out = minicaffe("trace", file, "--iterations", "2", "--json", "t.json", "--force")
        assert "> scale" in out and "< scale" in out and "= update" in out and "wrote t.json" in out
        assert re.search(r"^live memory, host(, page-locked)?: at most ", out, re.M)
        made = trace.load(folder / "t.json")
        assert {step["iteration"] for step in made.steps} == {0, 1} and made.document["net"]["file"] == "net.prototxt"
    assert not list(folder.glob("*.caffemodel"))


def test_page_of_the_cpu(folder):
    """States of memories name a device, also where none is used; a page must not begin with that empty place."""
    subprocess.run([sys.executable, "-m", "minicaffe", "trace", "net.prototxt", "--html", "t.html"], check=True, capture_output=True,
                   env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    page = json.loads(re.search(r'id="trace">(.*?)</script>', (folder / "t.html").read_text(), re.S)[1])
    assert [place["title"] for place in page["places"]] == ["host"] and any(page["places"][0]["usage"].values())


def test_on_the_simulated_device(minicaffe, folder, on_cpu, device, monkeypatch):
    where = "gpu" if device == "gpu" else "sim"     # a process has one of them
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")   # the option changes the variable
    import minicaffe as caffe
    try:
        out = minicaffe("trace", "net.prototxt", "--device", where, "--json", "t.json")
    finally:
        caffe.set_mode_cpu()
    assert "live memory, device 0: at most " in out
    made = trace.load(folder / "t.json")
    assert made.document["device"]["kind"] == where and "launch" in {event.kind for event in made.events}


def test_failing_net(minicaffe, folder):
    broken = NET.replace('type: "EuclideanLoss"', 'type: "SoftmaxWithLoss"').replace("value: 1 }", "value: 99 }")
    broken = broken.replace("shape { dim: 8 dim: 4 } shape { dim: 8 dim: 4 }", "shape { dim: 8 dim: 4 } shape { dim: 8 }")
    (folder / "net.prototxt").write_text(broken)
    assert "loss" in minicaffe("trace", "net.prototxt", "--json", "t.json", status=1)
    assert [step["layer"] for step in trace.load(folder / "t.json").steps if step["kind"] == "forward"] == ["in", "scale", "loss"]


def test_a_deploy_net_runs_forward_only(minicaffe, folder):
    (folder / "deploy.prototxt").write_text("""layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
      layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 } }""")
    assert "no loss" in minicaffe("trace", "deploy.prototxt", status=2)
    minicaffe("trace", "deploy.prototxt", "--phase", "TEST", "--iterations", "2", "--json", "t.json")
    made = trace.load(folder / "t.json")
    steps = [(step["iteration"], step["kind"], step["layer"]) for step in made.steps if step["node"] is not None]
    assert steps == [(i, "forward", name) for i in (0, 1) for name in ("in", "ip")] and made.document["net"]["phase"] == "TEST"


def test_steps_in_full_and_untrusted(minicaffe, folder):
    out = minicaffe("trace", "net.prototxt", "--step", "--json", "t.json")
    assert out.startswith("step 0 of") and out.count("layer scale, ") == 2 and out.endswith("wrote t.json\n")      # no table before it
    minicaffe("trace", "net.prototxt", "--untrusted")     # the solver is the command's own


def test_other_files(minicaffe, folder):
    out = minicaffe("trace", "net.prototxt", "--html", "t.html", "--perfetto", "t.perfetto")
    assert "wrote t.html" in out and "wrote t.perfetto" in out
    assert '<svg class=\\"net-drawing' in (folder / "t.html").read_text().replace("\\u003c", "<").replace('xmlns=\\"http://www.w3.org/2000/svg\\" ', "")
    assert json.loads((folder / "t.perfetto").read_text())["traceEvents"]
    assert "none" in minicaffe("trace", "net.prototxt", "--html", "none/t.html", status=1)
    assert "no/such/t.json" in minicaffe("trace", "net.prototxt", "--json", "no/such/t.json", status=1)
    (folder / "dir").mkdir()
    assert "dir: cannot be written: it is a folder" in minicaffe("trace", "gone.prototxt", "--html", "dir", status=1)    # before all else
