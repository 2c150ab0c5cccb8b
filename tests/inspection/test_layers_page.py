"""docs/layers.md agrees with the layers, and its tool reads the classes right."""

import json
import re
import subprocess
import sys
from pathlib import Path

import layers_table
import pytest

from minicaffe.layer import layer_types

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "layers_table.py"


def test_outdated_pages(tmp_path, monkeypatch):
    run = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    copy = tmp_path / "layers.md"
    monkeypatch.setattr(layers_table, "PAGE", copy)
    monkeypatch.setattr(sys, "argv", ["layers_table.py", "--check"])
    text = (ROOT / "docs" / "layers.md").read_text()
    for other in (None, text.replace("kernels", "CPU", 1)):
        if other is not None:
            copy.write_text(other)
        with pytest.raises(SystemExit, match="docs/layers.md does not agree.*run tools/layers_table.py"):
            layers_table.main()
    copy.write_text(text)
    layers_table.main()


def test_rows_and_files_of_types():
    own = {name: cls.__module__ for name, cls in layer_types().items() if cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))}
    assert set(re.findall(r"^\| (\w+) \| \[", (ROOT / "docs" / "layers.md").read_text(), re.M)) == own.keys()
    elsewhere = {name for name, module in own.items()
                 if ".forks." not in module and module.rpartition(".")[2].replace("_", "") != name.lower()}     # forks: in files by subject
    assert elsewhere == {"DepthwiseConvolution", "LSTM", "PriorBoxClustered", "RNN"}  # another name of Convolution; beside their bases


def test_facts():
    for name, cells in {
            "Convolution": ["yes", "kernels", "cuDNN"], "ReLU": ["yes", "kernels", ""], "Threshold": ["no gradient", "kernels", ""],
            "Data": ["source", "no computing", ""], "HDF5Output": ["sink", "no computing", ""], "Flatten": ["shared memory", "no computing", ""],
            "DetectionOutput": ["no gradient", "CPU", ""], "DetectionEvaluate": ["no gradient", "CPU", ""], "MultiBoxLoss": ["yes", "CPU", ""],
            "PriorBox": ["zero", "CPU", ""], "LSTM": ["yes", "kernels", ""], "Reorg": ["yes", "CPU", ""], "InfogainLoss": ["yes", "kernels", ""]}.items():
        assert layers_table.facts(layer_types()[name]) == cells, name


def test_counts_of_cases(tmp_path, monkeypatch):
    for number, layers in enumerate((["ReLU", "Pooling"], ["ReLU", "ReLU"])):
        folder = tmp_path / "cases" / "some" / str(number)
        folder.mkdir(parents=True)
        (folder / "case.json").write_text(json.dumps({"layers": layers}))
    counts = layers_table.count_cases(tmp_path)
    assert counts == {"ReLU": 2, "Pooling": 1} and re.search(r"^\| ReLU \|.*\| 2 \|$", layers_table.render({"ReLU": 2}), re.M)
    (tmp_path / "layers.md").write_text(layers_table.render(counts))
    monkeypatch.setattr(layers_table, "PAGE", tmp_path / "layers.md")
    assert {name: count for name, count in layers_table.counts_on_page().items() if count} == counts
