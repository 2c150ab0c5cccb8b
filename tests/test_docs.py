"""docs/ names every public name and every command, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

import minicaffe
import minicaffe.cuda
import minicaffe.memory
from minicaffe.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("module", [minicaffe, minicaffe.cuda, minicaffe.memory], ids=lambda module: module.__name__)
def test_every_public_name_is_on_the_page(module):
    words = set(re.findall(r"\w+", (DOCS / "api.md").read_text()))
    assert set(module.__all__) - words == set()


def test_every_command_is_on_the_page():
    text = (DOCS / "cli.md").read_text()
    assert [name for name in COMMANDS if f"minicaffe {name}" not in text and f"`{name}" not in text] == []


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("models/**/*.md")]))
def test_links_lead_somewhere(page):
    path = ROOT / page
    links = re.findall(r"\]\(([^)#\s]+)", path.read_text())
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []
