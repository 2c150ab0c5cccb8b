"""README and docs/ name every public name and every command, their links lead somewhere, and their code runs.

A block of code that cannot run here has a comment of one line above it: ``<!-- not run: the reason -->``.
"""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import small_ssd

import minicaffe
import minicaffe.cuda
import minicaffe.memory
import minicaffe.trace
from minicaffe import cli
from minicaffe import layer as registry
from minicaffe.cli.app import COMMANDS
from minicaffe.proto import caffe_pb2, parse_text, write_text

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [path.relative_to(ROOT).as_posix() for path in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), DOCS / "course" / "README.md")]
RUNNABLE = ("python", "minicaffe", "session", "prototxt")
SHELL = re.compile(r"([A-Z_]+=|minicaffe |pip |python |pytest|ninja |git |tools/)")


@pytest.mark.parametrize("module", [minicaffe, minicaffe.cuda, minicaffe.memory, minicaffe.trace], ids=lambda module: module.__name__)
def test_every_public_name_is_on_the_page(module):
    words = set(re.findall(r"\w+", (DOCS / "api.md").read_text()))
    assert set(module.__all__) - words == set()


def test_every_command_is_on_the_page():
    text = (DOCS / "cli.md").read_text()
    assert [name for name in COMMANDS if f"minicaffe {name}" not in text and f"`{name}" not in text] == []


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("models/**/*.md")]))
def test_links_lead_somewhere(page):
    path = ROOT / page
    links = re.findall(r"\]\(([^)#\s]+)", path.read_text())
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


SHORT = {"train": ["--max-iter", "2"], "time": ["--iterations", "1"], "test": ["--iterations", "1"]}


def test_the_index_has_every_page():
    links = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text()))
    assert links == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


def test_environment_variables():
    """docs/environment.md has the variables that the code reads, and no others."""
    sources = [ROOT / "meson.build", *(p for folder in ("minicaffe", "tests", "tools") for p in (ROOT / folder).rglob("*.*"))]
    texts = (p.read_text() for p in sources if p.suffix in (".py", ".pyx", ".hpp", ".cpp", ".build"))
    read = set(itertools.chain(*(re.findall(r"\bMINICAFFE_[A-Z_]*[A-Z]\b", text) for text in texts)))
    assert set(re.findall(r"MINICAFFE_[A-Z_]+", (DOCS / "environment.md").read_text())) == read


class Block(NamedTuple):
    line: int
    language: str
    text: str
    not_run: str


def blocks(page):
    """Yield the blocks of code of a page: fenced ones, and commands that are indented by four spaces."""
    text = (ROOT / page).read_text()
    for found in re.finditer(r"(?:^<!-- not run: (.+) -->\n+)?(?:^```(\w*)\n([^`]*?)^```$|((?:^    .*\n)+))", text, re.M):
        not_run, language, fenced, indented = found.groups()
        code = fenced if indented is None else re.sub("^    ", "", indented, flags=re.M)
        if indented is not None or not language:
            language = "session" if code.startswith("$ ") else "minicaffe" if re.fullmatch(r"(minicaffe .*\n)+", code) else "shell" if SHELL.match(code) else "text"
        yield Block(text[:found.start()].count("\n") + 1, language, code, not_run)


def test_every_block_runs_or_says_why_not():
    silent = [f"{page}:{block.line}" for page in PAGES for block in blocks(page)
              if block.language not in (*RUNNABLE, "text", "cpp", "cython") and not block.not_run]
    assert silent == [], "these need a comment <!-- not run: the reason --> above them"


@pytest.fixture
def page_folder(tmp_path, monkeypatch, on_cpu):
    """A folder like the checkout's, with the files that the pages speak of: small ones, which stand for the reader's."""
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")
    monkeypatch.setattr(registry, "_types", registry.layer_types())  # what a page registers goes away with it
    for path in itertools.chain(*((ROOT / "models" / folder).rglob("*.*") for folder in ("lenet", "mlp", "data"))):
        link = tmp_path / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, link)
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


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("docs/adding_a_layer.md", "docs/memory.md")])  # these have tests of their own
def test_code_runs(page, page_folder, device, monkeypatch, caplog, capsys):
    caplog.set_level("WARNING")
    names = {"__name__": "page", "caffe": minicaffe, "pictures": np.zeros((1, 1, 28, 28))}
    if page == "docs/ssd.md":
        names |= detecting()
    for line, language, text, not_run in blocks(page):
        if not_run or language not in RUNNABLE:
            continue
        if language == "prototxt":
            parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)
            Path("net.prototxt").write_text(text)
        elif language == "minicaffe":
            for command in text.splitlines():
                run_command(command, device)
        elif language == "session":
            check_session(text, monkeypatch, capsys)
        else:
            exec(compile("\n" * line + text, page, "exec"), names)
            assert "DEPRECATION" not in caplog.text
