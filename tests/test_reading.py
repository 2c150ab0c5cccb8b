"""docs/reading.md: its files are there and about as long as it says, and have the functions to look at and to ask about."""

import re

import pytest
from pages import ROOT, defines

TEXT = (ROOT / "docs" / "reading.md").read_text()
MOST_LINES, SPEED = 9000, 20        # of all files; lines a minute
UNIT = re.compile(r"(.+)\n\n((?:\[[^\]]+\]\([^)]+\)(?:,\s|\sand\s)?)+):\s([\d,]+)\slines,\s(\d+)\sminutes\.\s(Look\sat\s(?:.+\n)+)\n((?:.*\n)+)\Z")
PARTS = {title.partition("\n")[0]: [UNIT.match(unit.rstrip() + "\n") for unit in units]
         for title, *units in (part.split("\n### ") for part in re.split(r"^## ", TEXT, flags=re.M)[1:])}
UNITS = [unit for units in PARTS.values() for unit in units]


def number(text):
    return int(text.replace(",", ""))


def sources(unit):
    """The text of each file of a unit."""
    links = re.findall(r"\[([\w/.]+)\]\(([\w/.]+)\)", unit[2])
    assert all(path == f"../minicaffe/{name}" for name, path in links), unit[2]
    return [(ROOT / "minicaffe" / name).read_text() for name, _ in links]


def names_in(text):
    """The functions, classes and variables that a text names in backticks."""
    return re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit and unit[1])
def test_units(unit):
    assert unit, "a unit has a title, `[file](path): N lines, M minutes. Look at ...`, and questions"
    texts = sources(unit)
    lines, said, minutes = sum(text.count("\n") for text in texts), number(unit[3]), number(unit[4])
    assert abs(said - lines) <= max(10, lines / 10), f"{lines} lines"
    assert abs(minutes - said / SPEED) <= 2.5, f"{said / SPEED:.0f} minutes"
    assert [name for name in names_in(unit[5]) if not any(defines(text, name) for text in texts)] == []
    mentioned = set(re.findall(r"\w+", "\n".join(texts)))
    assert [name for name in names_in(unit[6]) if not mentioned.issuperset(name.split("."))] == []
    questions = re.findall(r"<details><summary>([^`]+?)</summary>\n\n((?:(?!</details>).+\n)+)</details>\n", unit[6])
    assert len(questions) == 2 == unit[6].count("<details>")
    assert all(re.search(r"\?$", question) for question, _ in questions)


def test_sums():
    """Of each part in the table, and of all; they are a day at most."""
    table = re.findall(r"^\| \[(.+)\]\(#.+\) \| ([\d,]+) \| (\d+) \|", TEXT, re.M)
    sums = [(title, sum(number(unit[3]) for unit in units), sum(number(unit[4]) for unit in units)) for title, units in PARTS.items()]
    assert [(title, number(lines), number(minutes)) for title, lines, minutes in table] == sums
    total = sum(text.count("\n") for unit in UNITS for text in sources(unit))
    assert total <= MOST_LINES
    found = re.search(r"([\d,]+) lines of code", TEXT)
    assert abs(number(found[1]) - total) <= total / 50, f"{total} lines"
    assert 7 * 60 <= sum(minutes for _, _, minutes in sums) <= 8 * 60
