"""The help of the commands, and the completions of shells."""

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from tiny import COMMAND, PATIENCE, commands

from minicaffe import cli
from minicaffe.cli import app, help
from minicaffe.cli.solver_options import FIELDS
from minicaffe.cli.train import train


def help_text(words, capsys, monkeypatch, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main([*words, "--help"]) == 0
    return capsys.readouterr().out


def sections(out):
    """Return the headings of a help with the options below each."""
    found = {}
    for line in out.splitlines():
        if re.fullmatch(r"[A-Z].*:", line):
            heading = found.setdefault(line[:-1], [])
        elif match := re.match(r"  (--?[a-z][\w-]*)", line):
            heading.append(match[1])
    return found


def test_subjects_of_train(capsys, monkeypatch):
    found = sections(help_text(["train"], capsys, monkeypatch))
    assert list(found) == [*help.SUBJECTS] and "Options" not in found
    assert max(map(len, found.values())) <= 14 and sum(map(len, found.values())) >= len(FIELDS) + 25
    assert "--base-lr" in found["Learning rate"] and "--gpu" in found["Device and precision"] and "--wire" in found["Several processes"]
    assert found["Messages"][-1] in ("-h", "--help")
    names = [name for text in help.SUBJECTS.values() for name in text.split()]
    assert len(names) == len(set(names))
    known = {param.name.removeprefix("field_") for _, command in commands() for param in command.params}
    assert set(names) <= known     # no subject has an option that no command has
    assert {param.name.removeprefix("field_") for param in train.params if isinstance(param, click.Option)} <= set(names)


def groups():
    """Return the headings of the commands, with the commands of each."""
    return {heading: list(names) for heading, names in itertools.groupby(app.commands(), lambda name: app.commands()[name][0])}


def groups_in(out):
    """Return the headings of ``minicaffe --help``, with the commands below each in their order."""
    return {heading: re.findall(r"^  (\w+) {2,}\S", body, re.MULTILINE)
            for heading, body in re.findall(r"^([A-Z][\w ]+):\n((?:  .*\n?)+)", out, re.MULTILINE) if heading != "Options"}


def test_groups_and_short_helps(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    found = groups_in(out)
    assert list(found)[:3] == ["Train and test", "Use a trained net", "Data"] and max(map(len, found.values())) <= 9
    assert found == {heading: sorted(names) for heading, names in groups().items()}
    aliases = app.aliases(app.commands())
    assert sum(map(len, found.values())) == len(app.commands()) == len(re.findall(r"^  \w+ {2,}\S.*$", out, re.MULTILINE)) - len(aliases)
    assert [line.split()[0] for line in out.partition("Names of Caffe's tools:\n")[2].splitlines()] == sorted(aliases)
    assert list(sections(help_text(["data", "mean"], capsys, monkeypatch))) == ["Options"]
    assert "Device and precision" in sections(help_text(["classify"], capsys, monkeypatch))
    page, _, rest = (Path(__file__).parents[2] / "docs" / "cli.md").read_text().partition("## Names of Caffe's tools")
    assert dict(re.findall(r"^\| `(\w+)` \| `(.*)` \|$", rest.partition("## Options")[0], re.MULTILINE)) == app.ALIASES
    found = {heading: list(dict.fromkeys(re.findall(r"^\| `(\w+)", body, re.MULTILINE)))
             for heading, body in re.findall(r"^## (.*)\n((?:(?!## ).*\n)+)", page, re.MULTILINE)}
    assert found == groups()


# ---- completion

@pytest.fixture
def completions(run_forked, tmp_path):
    """Return a function that gives the lines that the script of a shell reads: kind and value of each completion of the last word."""
    def complete(words, shell="bash"):
        place = words[-1] if shell == "fish" else str(len(words))
        done = run_forked("minicaffe", cwd=tmp_path, _MINICAFFE_COMPLETE=f"{shell}_complete", COMP_WORDS=" ".join(["minicaffe", *words]), COMP_CWORD=place)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return list(filter(None, done.stdout.splitlines()))
    return complete


@pytest.mark.parametrize(("words", "wanted"), [
    (["cl"], ["plain,classify"]), (["dr"], ["plain,draw"]), (["train", "--base"], ["plain,--base-lr"]),
    (["train", "--device", ""], ["plain,cpu", "plain,gpu", "plain,sim"]), (["train", "--solver-mode", "G"], ["plain,GPU"]),
    (["train", "--snapshot-diff", ""], ["plain,true", "plain,false"]), (["train", "--wire", "b"], ["plain,bf16"]),
    (["train", "--precision", "t"], ["plain,tf32"]), (["train", "mo"], ["file,mo"]), (["train", "--weights", "x"], ["file,x"]),
    (["data", "im"], ["plain,images"]), (["data", "images", "--back"], ["plain,--backend"])])
def test_completions(words, wanted, completions):
    assert completions(words) == wanted


def test_completion_of_commands(completions):
    assert [line.removeprefix("plain,") for line in completions([""])] == list(app.commands())
    assert completions(["s"]) == ["plain,show", "plain,summary"] and "plain,train" in completions(["xyzzy", ""])
    assert completions(["summ"], "fish") == ["plain,summary\tShow what a net consists of, and what a training needs."]
    assert completions(["summ"], "zsh") == ["plain", "summary", "Show what a net consists of, and what a training needs."]
    assert completions(["train", "--gpu", "0,1", "--allocator", "none=x", "--threads", "2", "--me"]) == []
    assert completions(["train", "--gpu", "0,1", "--allocator", "none=x", "--momentum2"]) == ["plain,--momentum2"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_shells(shell):
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "_MINICAFFE_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0 and f"_MINICAFFE_COMPLETE={shell}_complete" in done.stdout, done.stderr
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=done.stdout, text=True, timeout=PATIENCE).returncode == 0
