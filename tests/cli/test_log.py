"""The log of commands: lines as glog writes them, levels, the file that a training leaves, and how Caffe's parse_log.py reads it."""

import logging
import math
import os
import re
import shutil
import subprocess

import pytest
from tiny import COMMAND, ESCAPES, NET, Process, run

from minicaffe import cli
from minicaffe.cli import log

logger = logging.getLogger("minicaffe")     # tests/conftest.py restores it after each test


def log_record(level=logging.INFO, name="minicaffe.solver", text="a line"):
    made = logging.LogRecord(name, level, "/somewhere/solver.py", 237, text, (), None)
    made.created = 1_700_000_000.000123
    return made


def iterations(path):
    """Return the iterations at which a log has outputs of the train net, and of the test net."""
    found = {"Train": [], "Test": []}
    for line in path.read_text().splitlines():
        if said := re.search(r"\] Iteration (\d+)", line):
            iteration = int(said[1])
        elif said := re.search(r"(Train|Test) net output #0", line):
            found[said[1]].append(iteration)
    return found


def test_lines_of_the_log(tmp_path):
    for level, letter in ((logging.DEBUG, "I"), (logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E"), (logging.CRITICAL, "F")):
        assert re.fullmatch(letter + r"111[45] \d\d:\d\d:\d\d\.000123 +\d+ solver\.py:237\] a line", log.GlogFormatter().format(log_record(level)))
    handler = log.add_log_file(tmp_path / "log", False)
    handler.handle(log_record(text="Resuming from " + os.fsdecode(b"a\xff.solverstate")))
    handler.close()
    assert open(tmp_path / "log").read().endswith("] Resuming from a\\udcff.solverstate\n")


def test_details_and_files(capsys, tmp_path):
    for details in (True, False):
        log.start(verbose=details, prefix="> ")
        for name in ("minicaffe.net.build", "minicaffe.cuda.compile", "minicaffe.net"):
            for level in (logging.INFO, logging.WARNING):
                logger.handle(log_record(level, name, f"{name} {level}"))
        wanted = [f"> {name} {level}" for name in ("minicaffe.net.build", "minicaffe.cuda.compile", "minicaffe.net") for level in (20, 30)
                  if details or level == 30 or name == "minicaffe.net"]
        assert capsys.readouterr().err.splitlines() == wanted
    for quiet, verbose, shown in ((True, False, ["W"]), (False, True, ["D", "I", "W"]), (False, False, ["I", "W"])):
        log.start(quiet, verbose)
        logger.handlers[0].setFormatter(logging.Formatter("%(message)s"))
        handler = log.add_log_file(tmp_path / "log", False)
        for level, text in ((logging.DEBUG, "D"), (logging.INFO, "I"), (logging.WARNING, "W")):
            logger.log(level, text)
        handler.close()
        handler.close()
        assert capsys.readouterr().err.split() == shown
        assert [line[-1] for line in open(tmp_path / "log").read().split("\n")[:-1]] == (["D"] if verbose else []) + ["I", "W"]
    log.start(prefix="> ")
    handler = log.add_log_file("/dev/full", True)
    for number in range(3):
        logger.info("line %d", number)
    warning = "> /dev/full: cannot be written: No space left on device; no more log, the training continues"
    assert capsys.readouterr().err.splitlines() == ["> line 0", warning, "> line 1", "> line 2"] and handler not in logger.handlers


@pytest.mark.parametrize("verbose", [True, False])
def test_level_of_the_environment(verbose, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GLOG_minloglevel", "2")
    log.start(verbose=verbose)
    handler = log.add_log_file(tmp_path / "log", False)
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        logger.log(level, f"level {level}")
    handler.close()
    assert [line[-8:] for line in capsys.readouterr().err.splitlines()] == ["level 40"]
    assert [line[-8:] for line in open(tmp_path / "log").read().splitlines()] == ["level 20", "level 30", "level 40"]


@pytest.mark.slow(1)
def test_logs_off_a_terminal(folder):
    """Caffe's parse_log.sh takes the ninth word of a rate, and the eleventh of an output."""
    lines = run("train", "solver.prototxt", cwd=folder).stderr.splitlines()
    assert all(re.fullmatch(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \S+:\d+\] .*", line) for line in lines if "Iteration" in line or "net output" in line)
    assert [float(line.split()[8]) for line in lines if ", lr = " in line] == [0.01] * 3
    outputs = [(line.split()[4], line.split()[8], math.isfinite(float(line.split()[10]))) for line in lines if " net output #" in line]
    tested = [("Test", "loss", True), ("Test", "total", True)]
    assert outputs == [*tested, ("Train", "loss", True)] * 3 + tested
    text = "\n".join(lines)
    assert all(words in text for words in (
        "] Solving tiny", "] Learning Rate Policy: fixed", ", Testing net (#0)", "Snapshotting to binary proto file tiny_iter_30",
        "] Iteration 30, loss = ", "] Optimization Done.", "] Use ", "] Starting Optimization"))
    result = run("train", "solver.prototxt", "--snapshot-after-train=false", "--snapshot-prefix=none/x", cwd=folder)
    assert result.returncode == 0 and result.stderr.count("none/x.log: cannot be written: No such file or directory; the training leaves no log") == 1
    with open(folder / "tiny.log", "w") as file:
        done = subprocess.run([*COMMAND, "train", "solver.prototxt"], cwd=folder, stdout=subprocess.PIPE, stderr=file, text=True, timeout=60)
    assert done.returncode == 0 and "tiny.log" not in done.stdout and (folder / "tiny.log").read_text().count("Optimization Done.") == 2
    assert not (folder / "tiny.1.log").exists()


def test_log_of_a_terminal_training(folder):
    process = Process("train", "solver.prototxt", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0
    assert process.text.count("wrote tiny.log") == 1 and "wrote tiny.log; draw it: minicaffe plot tiny.log" in process.text
    first = (folder / "tiny.log").read_text()
    assert iterations(folder / "tiny.log") == {"Train": [0, 10, 20], "Test": [0, 10, 20, 30]}
    process = Process("train", "solver.prototxt", "--max-iter=50", "--snapshot=tiny_iter_30.solverstate", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0 and (folder / "tiny.log").read_text().startswith(first)
    assert iterations(folder / "tiny.log")["Train"] == [0, 10, 20, 30, 40]
    (folder / "tiny.log").unlink()
    (folder / "tiny.log").mkdir()
    process = Process("train", "solver.prototxt", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0 and "tiny.log: cannot be written: Is a directory; the training leaves no log" in ESCAPES.sub("", process.text)
    assert "wrote tiny.log" not in process.text


@pytest.mark.parametrize("more", [[], ["--quiet"], ["--verbose"], ["--snapshot-after-train=false"]])
def test_log_of_a_training(folder, more):
    result = run("train", "solver.prototxt", *more, cwd=folder)
    assert result.returncode == 0 and result.stdout.count("wrote tiny.log; draw it: minicaffe plot tiny.log\n") == 1
    assert iterations(folder / "tiny.log") == {"Train": [0, 10, 20], "Test": [0, 10, 20, 30]}
    assert "Setting up" not in (folder / "tiny.log").read_text()


@pytest.mark.parametrize("arguments, text", [
    (["--json=./tiny.log"], "./tiny.log: --json: is the log of this training; name another file"),
    (["--net=tiny.log"], "tiny.log: snapshot_prefix: is a file that this training reads; name another")])
def test_log_in_place_of_a_file(folder, capsys, arguments, text):
    shutil.copy(folder / "net.prototxt", folder / "tiny.log")
    assert cli.main(["train", "solver.prototxt", "--quiet", *arguments]) == 2
    assert text in capsys.readouterr().err and (folder / "tiny.log").read_text() == NET


@pytest.mark.parametrize("words, environment", [((), {"TERM": "dumb"}), (("--verbose",), {}), (("--quiet",), {})])
def test_log_on_a_terminal(folder, words, environment):
    process = Process("train", "solver.prototxt", *words, cwd=folder, size=(24, 80), **environment)
    assert process.finish()[0] == 0
    assert ("] Iteration 20, lr = 0.01" in process.text) == ("--quiet" not in words) and "\x1b" not in process.text
