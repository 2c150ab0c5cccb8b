"""docs/memory.md: each row has an answer, each name in it exists, and the examples print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minicaffe
from minicaffe import cuda, memory
from minicaffe.blob import Blob

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "memory.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ") and "minicaffe |" not in line]
EXAMPLES = re.findall(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", PAGE, re.M | re.S)
HOMES = {"cuda": cuda, "memory": memory, "caffe": minicaffe, "Blob": Blob}


def lookup(name):
    """What `name` of the page means: a file, or a name of minicaffe, its cuda or its memory; raises if there is none."""
    if "/" in name:
        assert (ROOT / "minicaffe" / name).is_file(), name
        return name
    first, *rest = name.split(".")
    found = HOMES.get(first) or getattr(minicaffe, first, None) or getattr(memory, first, None) or getattr(cuda, first)
    for part in rest:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].replace("`", "")[:40])
def test_each_row_has_an_answer(row):
    there, here, difference = row
    assert there and difference
    names = re.findall(r"`([^`]+)`", here)
    assert names, f"nothing of minicaffe is beside {there}"
    for name in names:
        assert lookup(name) is not None, name


def test_the_tables_cover_the_systems():
    """Four tables, none of which lost its rows."""
    assert len(ROWS) > 60
    assert len(re.findall(r"^\| (Caffe|Caffe2|THC|Paddle) \| minicaffe \| difference \|$", PAGE, re.M)) == 4


def test_examples_print_the_page(tmp_path):
    (tmp_path / "page.py").write_text("\n".join(f"{code}\nprint('----')" for code, _ in EXAMPLES))
    environment = {k: v for k, v in os.environ.items() if k not in ("MINICAFFE_DEVICE", "MINICAFFE_SIM")}
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(EXAMPLES) == 3
    assert [part.strip("\n") for part in done.stdout.split("----\n")[:-1]] == [printed.strip("\n") for _, printed in EXAMPLES]
