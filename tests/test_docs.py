"""README and docs/ name every public name and every command, their links lead somewhere, and their code runs.

A block of code that cannot run here has a comment of one line above it: ``<!-- not run: the reason -->``.
"""

import ast
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import small_ssd
from pages import blocks, defines
from sources import copy_models

import minicaffe
import minicaffe.addons.trace
import minicaffe.cuda
import minicaffe.memory
from minicaffe import cli, solver
from minicaffe import layer as registry
from minicaffe.addons.export.onnx import conversion, graph
from minicaffe.addons.export.pytorch import source
from minicaffe.cli.app import commands
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text, write_text

ROOT = Path(__file__).resolve().parents[1]

DOCS = ROOT / "docs"
PACKAGE = ROOT / "minicaffe"
DESIGN = [DOCS / "design.md", *sorted((DOCS / "design").glob("*.md"))]
PAGES = [path.relative_to(ROOT).as_posix()
         for path in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), *DESIGN[1:], DOCS / "course" / "README.md")]
READ_WITH_SOURCES = [*DESIGN, DOCS / "reading.md", *sorted((DOCS / "course").rglob("*.md"))]
RUNNABLE = ("python", "minicaffe", "session", "prototxt")


@pytest.mark.parametrize("module", [minicaffe, minicaffe.cuda, minicaffe.memory, minicaffe.addons.trace], ids=lambda module: module.__name__)
def test_public_names(module):
    words = set(re.findall(r"\w+", (DOCS / "api.md").read_text()))
    assert set(module.__all__) - words == set()


def test_lists_and_blocks():
    text = (DOCS / "cli.md").read_text()
    assert [name for name in commands() if f"minicaffe {name}" not in text and f"`{name}" not in text] == []
    links = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text()))
    assert links == {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    lines = DESIGN[0].read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    assert set(re.findall(r"\]\(design/(\w+\.md)\)", "\n".join(lines))) == {path.name for path in DESIGN[1:]}
    sources = [ROOT / "meson.build", *(p for folder in ("minicaffe", "tests", "tools") for p in (ROOT / folder).rglob("*.*"))]
    texts = (p.read_text() for p in sources if p.suffix in (".py", ".pyx", ".hpp", ".cpp", ".build"))
    read = set(itertools.chain(*(re.findall(r"\bMINICAFFE_[A-Z_]*[A-Z]\b", text) for text in texts)))
    assert set(re.findall(r"MINICAFFE_[A-Z_]+", (DOCS / "environment.md").read_text())) == read
    silent = [f"{page}:{block.line}" for page in PAGES for block in blocks(page)
              if block.language not in (*RUNNABLE, "text", "cpp", "cython") and not block.not_run]
    assert silent == [], "these need a comment <!-- not run: the reason --> above them"


def test_links_lead_somewhere():
    links = [(page, link) for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("models/**/*.md")]
             for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert len(links) > 500 and [(page, link) for page, link in links if not leads_somewhere(page, *link.partition("#")[::2])] == []


def leads_somewhere(page, link, anchor):
    """Whether a link of a page leads to a file, and its anchor to a heading there."""
    target = page.parent / link if link else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target.read_text()))


def anchors(text):
    """The anchors that GitHub makes of headings: small letters, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    words = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in words}


AGAIN = ("README.md", "docs/quickstart.md", "docs/trace.md", "docs/course/README.md")     # their commands work a second time, too
SHORT = {"train": ["--max-iter", "2"], "time": ["--iterations", "1"], "test": ["--iterations", "1"]}


def test_design_pages():
    """A folder of layer types or of an operation may have one line; an `__init__.py` without code needs none."""
    tables = [path.read_text().partition("\n## Modules\n")[2] for path in DESIGN[1:]]
    lines = re.findall(r"^\| `([\w/.]+)` \| \S", "\n".join(tables), re.M)
    modules = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py*")
               if path.suffix in (".py", ".pyx") and has_code(path)}
    folders = {line for line in lines if line.endswith("/")}
    assert [line for line in lines if lines.count(line) > 1] == []
    assert [line for line in lines if not (PACKAGE / line).exists()] == [], "there are no such modules"
    assert [line for line in folders if not re.fullmatch(r"layers/(data/)?|ops/\w+/|loops/\w+/|addons/(ssd|forks)/", line)] == [], "list the modules of these"
    assert sorted(module for module in modules - set(lines) if module.rpartition("/")[0] + "/" not in folders) == []
    section = DESIGN[0].read_text().partition("\n## Where a decision is made\n")[2].partition("\n## ")[0]
    points = re.findall(r"^- (.+(?:\n  .+)*)", section, re.M)
    assert len(points) > 5
    for point in points:
        words = re.findall(r"`([\w/.]+)`", point)
        files = [PACKAGE / word for word in words if "/" in word or word.endswith((".py", ".pyx"))]
        text = "\n".join(path.read_text() for file in files for path in ([file] if file.is_file() else file.glob("*.pyx")))
        names = [word for word in words if PACKAGE / word not in files]
        assert files and names, point
        for name in names:
            assert defines(text, name), f"{name}: {point}"


def has_code(path):
    """Whether a module has code beside its docstring."""
    return path.name != "__init__.py" or any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


@pytest.mark.parametrize("page", READ_WITH_SOURCES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_files_that_pages_name(page):
    text = page.read_text()
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:pyx|py|pxd|hpp|cpp)|(?:[\w-]+/)+)`", text)
    written = re.findall(r"^(?:#|//) (\S+)$", text, re.M)
    there = {f"/{path.relative_to(ROOT).as_posix()}" for folder in ("minicaffe", "tests", "tools", "docs/course")
             for path in [ROOT / folder, *(ROOT / folder).rglob("*")]}
    assert [name for name in named if Path(name).name not in written
            and not any(path.endswith(f"/{name.rstrip('/')}") for path in there)] == []


def runnable(page):
    return (block for block in blocks(page) if block.language in RUNNABLE and not block.not_run)


@pytest.fixture
def page_folder(request, tmp_path, monkeypatch, on_cpu):
    """A folder like the checkout's, with the files that the pages speak of: small ones, in place of the reader's."""
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")
    monkeypatch.setattr(registry, "_types", registry.layer_types())  # what a page registers goes away with it
    monkeypatch.setattr(solver, "_types", solver.solver_types())
    for table in (conversion.IMPORTERS, graph.EXPORTERS, source.WRITERS):
        patch = mock.patch.dict(table)
        patch.start()
        request.addfinalizer(patch.stop)
    copy_models(tmp_path / "models", "lenet", "mlp", "data")
    monkeypatch.chdir(tmp_path)
    threads = minicaffe.get_num_threads()
    minicaffe.set_num_threads(1)
    Path("deploy.prototxt").write_text((ROOT / "models/mlp/deploy.prototxt").read_text())
    Path("solver.prototxt").write_text('net: "models/mlp/net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 1')
    net = minicaffe.Net("deploy.prototxt", minicaffe.TEST)
    net.save("net.caffemodel")
    net.save("weights.caffemodel")
    minicaffe.Net("models/lenet/net.prototxt", minicaffe.TEST).save("models/lenet/net_iter_1500.caffemodel")
    fc6 = 'layer { name: "fc6" type: "InnerProduct" bottom: "pool5" top: "fc6" inner_product_param { num_output: 4096 } }'
    Path("net.prototxt").write_text('input: "pool5" input_shape { dim: 1 dim: 25088 }' + 40 * "\n" + fc6)
    yield
    minicaffe.set_num_threads(threads)


def detecting():
    """Write what docs/ssd.md speaks of, with the small SSD of the tests; return the names that its code takes as given."""
    Path("models/ssd").mkdir()
    Path("models/ssd/deploy.prototxt").write_text(write_text(small_ssd.net()))
    minicaffe.Net("models/ssd/deploy.prototxt", minicaffe.TEST).save("ssd300.caffemodel")
    Path("models/ssd/test.prototxt").write_text(write_text(small_ssd.net(small_ssd.write_database("detect_lmdb", 8, seed=1), train=False)))
    return {"picture": np.zeros((1, 3, small_ssd.SIDE, small_ssd.SIDE)), "batches": 2, "pictures": [(b"\x89PNG", [(1, 0.1, 0.1, 0.5, 0.5)])]}


def run_command(line, device):
    """Run one line of a shell, with few iterations; in a process of its own if it needs the simulated device and this one has a GPU."""
    words = shlex.split(line, comments=True)[1:]
    words += SHORT.get(words[0], [])
    if device == "gpu" and "sim" in words:
        assert subprocess.run([sys.executable, "-m", "minicaffe", *words]).returncode == 0, line
    else:
        assert cli.main(words) == 0, line


def check_session(text, monkeypatch, capsys):
    """Run ``$ VARIABLE=value minicaffe ...`` and compare what it says with the lines below, however those are wrapped."""
    command, _, said = text.partition("\n")
    variable, _, *words = shlex.split(command.removeprefix("$ "))
    with monkeypatch.context() as context:
        context.setenv(*variable.split("=", 1))
        cli.main(words)
    assert " ".join(said.split()) in " ".join(capsys.readouterr().err.split())


WITH_TESTS = ("docs/adding_a_layer.md", "docs/memory.md")       # of their own


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITH_TESTS and list(runnable(page))])
def test_code_runs(page, page_folder, device, monkeypatch, caplog, capsys):
    caplog.set_level("WARNING")
    names = {"__name__": "page", "caffe": minicaffe, "pictures": np.zeros((1, 1, 28, 28))}
    if page == "docs/ssd.md":
        names |= detecting()
    for line, language, text, _ in runnable(page):
        if language == "prototxt":
            parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)
            Path("net.prototxt").write_text(text)
        elif language == "minicaffe":
            for command in text.splitlines() * (1 + (page in AGAIN)):
                run_command(command, device)
        elif language == "session":
            check_session(text, monkeypatch, capsys)
        else:
            exec(compile("\n" * line + text, page, "exec"), names)
            assert "DEPRECATION" not in caplog.text
