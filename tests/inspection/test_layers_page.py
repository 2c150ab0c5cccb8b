"""docs/layers.md agrees with the layers, and its tool reads the classes right."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import layer_reference
import layers_table
import pytest

from minicaffe.layer import layer_types

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "layers_table.py"


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "layers.md").read_text()


def test_the_page_is_up_to_date(tmp_path):
    run = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_outdated_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(layers_table, "PAGE", tmp_path / "layers.md")
    monkeypatch.setattr(layers_table, "FOLDER", tmp_path / "layers")
    monkeypatch.setattr(sys, "argv", ["layers_table.py", "--check"])
    with pytest.raises(SystemExit, match="run tools/layers_table.py"):
        layers_table.main()
    shutil.copytree(ROOT / "docs" / "layers", tmp_path / "layers")
    for name, old in (("layers.md", "kernels"), ("layers/losses.md", "int32"), ("layers/messages.md", "xavier")):
        text = (ROOT / "docs" / name).read_text()
        (tmp_path / name).write_text(text)
        if name == "layers.md":
            layers_table.main()
        (tmp_path / name).write_text(text.replace(old, "CPU", 1))
        with pytest.raises(SystemExit, match=f"docs/{name} does not agree.*run tools/layers_table.py"):
            layers_table.main()
        (tmp_path / name).write_text(text)
    layers_table.main()


def test_rows(page):
    own = {name for name, cls in layer_types().items() if cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))}
    assert set(re.findall(r"^\| \[(\w+)\]\(layers/\w+\.md#\w+\) \| \[", page, re.M)) == own


def test_files_of_types():
    types = {name: cls for name, cls in layer_types().items()
             if cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons.")) and ".forks." not in cls.__module__}     # in files by subject
    elsewhere = {name for name, cls in types.items() if cls.__module__.rpartition(".")[2].replace("_", "") != name.lower()}
    assert elsewhere == {"DepthwiseConvolution", "LSTM", "PriorBoxClustered", "RNN"}  # another name of Convolution; beside their bases


@pytest.mark.parametrize("name, cells", [
    ("Convolution", ["yes", "yes", "yes", "kernels", "cuDNN"]),
    ("ReLU", ["yes", "yes", "yes", "kernels", ""]),
    ("Threshold", ["yes", "no gradient", "yes", "kernels", ""]),
    ("Data", ["yes", "source", "yes", "no computing", ""]),
    ("HDF5Output", ["yes", "sink", "yes", "no computing", ""]),
    ("Flatten", ["yes", "shared memory", "yes", "no computing", ""]),
    ("DetectionOutput", ["yes", "no gradient", "yes", "CPU", ""]),
    ("DetectionEvaluate", ["yes", "no gradient", "yes", "CPU", ""]),
    ("MultiBoxLoss", ["yes", "yes", "yes", "CPU", ""]),
    ("PriorBox", ["yes", "zero", "yes", "CPU", ""]),
    ("LSTM", ["yes", "yes", "yes", "kernels", ""]),
    ("Reorg", ["yes", "yes", "yes", "CPU", ""]),
    ("InfogainLoss", ["yes", "yes", "yes", "kernels", ""])])
def test_facts(name, cells):
    assert layers_table.facts(layer_types()[name]) == cells


def test_counts_of_cases(tmp_path, monkeypatch):
    for number, layers in enumerate((["ReLU", "Pooling"], ["ReLU", "ReLU"])):
        folder = tmp_path / "cases" / "some" / str(number)
        os.makedirs(folder)
        (folder / "case.json").write_text(f'{{"layers": {layers}}}'.replace("'", '"'))
    assert layers_table.count_cases(tmp_path) == {"ReLU": 2, "Pooling": 1}
    assert re.search(r"^\| \[ReLU\].*\| 2 \|$", layers_table.render({"ReLU": 2}), re.M)
    (tmp_path / "layers.md").write_text(layers_table.render({"ReLU": 2, "Pooling": 1}))
    monkeypatch.setattr(layers_table, "PAGE", tmp_path / "layers.md")
    assert {name: count for name, count in layers_table.counts_on_page().items() if count} == {"ReLU": 2, "Pooling": 1}


# ---- docs/layers/

def test_sections():
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "layers").glob("*.md")}
    own = [entry for entry in layer_reference.entries() if layer_types()[entry.name].__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))]
    sections = {}
    for text in pages.values():
        sections |= dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert {entry.name for entry in own} < set(sections)
    for entry in own:
        section = sections[entry.name]
        assert all(f"`{param}`" in section for param in entry.params) and entry.origin in section, entry.name
        for message in entry.messages:
            owner = sections.get(message.name, "") + section + "".join(sections[each.name] for each in own if message.name in each.params.values())
            assert all(f"| `{each.name}` |" in owner for each in message.fields), (entry.name, message.name)
