"""The ``minicaffe`` command itself: finding commands, exit statuses, one line for every error."""

import json
import os
import subprocess
import sys

import pytest
from tiny import COMMAND, PATIENCE, run

from minicaffe import __version__, cli
from minicaffe.cli import app
from minicaffe.cli.options import normalize_arguments
from minicaffe.cli.train import train
from minicaffe.errors import ConfigError, FileError, ShapeError
from minicaffe.proto import binary


def failed(capsys, arguments, status, *texts):
    """Check the exit status of `arguments` and that standard error ends with one line that holds `texts`."""
    assert cli.main(arguments) == status
    err = capsys.readouterr().err
    line = err.splitlines()[-1]
    assert line.startswith("minicaffe: ") and all(text in line for text in texts), err
    return err


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("train", "test", "time", "device_query", "data"))


def test_a_group_without_a_command(capsys):
    assert failed(capsys, ["data"], 2, "Missing command", "minicaffe data --help").count("\n") == 1


def test_help_imports_no_command():
    code = ("import sys; from minicaffe import cli; cli.main(['--help']); "
            "print([name for name in ('rich', 'lmdb', 'h5py', 'cv2', 'minicaffe.cli.train') if name in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout.splitlines()[-1] == "[]", result.stdout + result.stderr


def test_importing_the_package_does_not_import_the_command_line_nor_what_is_for_looking_inside():
    code = ("import sys, minicaffe; print([name for name in ('click', 'rich', 'minicaffe.cli', 'minicaffe.addons.gradcheck', "
            "'minicaffe.inspection.summary', 'minicaffe.inspection.drawing', 'minicaffe.addons.trace') if name in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_what_is_imported_late_is_found_by_its_name():
    import minicaffe
    assert "gradcheck" in dir(minicaffe) and minicaffe.gradcheck.__module__ == "minicaffe.addons.gradcheck.gradient_check"


@pytest.mark.parametrize("name", app.commands())
def test_every_command_has_help(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert f"Usage: minicaffe {name}" in capsys.readouterr().out


def test_unknown_command_names_near_ones(capsys):
    failed(capsys, ["trian"], 2, "no command 'trian'", "'train'")
    failed(capsys, ["xyzzy"], 2, "device_query")


def test_device_query_in_both_spellings(capsys):
    for name in ("device_query", "device-query"):
        assert cli.main([name]) == 0
        out = capsys.readouterr().out
        assert "Processor:" in out and "BLAS:" in out and "CUDA driver:" in out


def test_unknown_option_names_near_ones(capsys):
    failed(capsys, ["train", "net.prototxt", "-bse_lr", "1"], 2, "--base-lr")


@pytest.mark.parametrize("options, words", [
    (["--gpu", "0,0"], "must be the number of a GPU, got '0,0'; several have commas"), (["--gpu", "first"], "must be the number of a GPU, got 'first'"),
    (["--device", "tpu"], "must be cpu, gpu or sim, got 'tpu'")])
def test_a_wrong_device_is_refused_in_one_line(options, words, capsys):
    err = failed(capsys, ["device_query", *options], 2, words)
    assert err.count("\n") == 1


@pytest.mark.parametrize("given, first", [
    (["-solver", "x", "train"], ["train", "-solver", "x"]),
    (["--solver=x", "train"], ["train", "--solver=x"]),
    (["-model", "test", "-weights=w", "test"], ["test", "-model", "test", "-weights=w"]),
    (["--quiet", "time", "n"], ["time", "--quiet", "n"]),
    (["train", "x", "test"], ["train", "x", "test"]),
    (["--help"], ["--help"]),
])
def test_options_before_the_command(given, first):
    assert app.command_first(given) == first


@pytest.mark.parametrize("given, tidied", [
    (["-max_iter", "5"], ["--max-iter=5"]),
    (["--max_iter=5"], ["--max-iter=5"]),
    (["--gamma", "-0.5"], ["--gamma=-0.5"]),
    (["-solver", "-x"], ["--solver=-x"]),
    (["--snapshot-diff", "net.prototxt"], ["--snapshot-diff=true", "net.prototxt"]),
    (["--snapshot_diff", "false"], ["--snapshot-diff=false"]),
    (["--no-test-initialization"], ["--test-initialization=false"]),
    (["-quiet", "x"], ["--quiet", "x"]),
    (["--", "-quiet"], ["--", "-quiet"]),
    (["--solver"], ["--solver"]),
])
def test_gflags_spellings(given, tidied):
    assert normalize_arguments(given, train.params) == tidied


@pytest.mark.parametrize("error, status", [
    (ConfigError("rule", file="f", line=3), 2), (ShapeError("rule"), 2), (FileError("gone", file="f"), 1),
    (MemoryError(), 1), (OSError(28, "No space left on device"), 1), (OSError(2, "No such file", "f"), 1),
])
def test_errors_become_one_line_and_a_status(error, status):
    line, got = app.explain(error)
    assert got == status and line and "\n" not in line


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_an_error_leaves_the_streams_of_the_calling_program(monkeypatch, capfd, error):
    """Standard output may be a file of the program, as it is pytest's, also where a command fails."""
    def broken(*_, **__):
        raise error
    monkeypatch.setattr("minicaffe.cli.device_query.blas", broken)

    def streams():
        return sys.stdin, sys.stdout, sys.stderr, len(os.listdir("/proc/self/fd")), [os.fstat(number).st_ino for number in range(3)]
    before = streams()
    app.explain(error)
    assert cli.main(["device_query"]) == 1
    assert streams() == before
    print("still here", flush=True)
    assert capfd.readouterr().out.endswith("still here\n")


def test_unforeseen_errors_name_their_place_and_debug_shows_the_traceback(monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError("two\nlines")
    monkeypatch.setattr("minicaffe.cli.device_query.blas", broken)
    err = failed(capsys, ["device_query"], 1, "ZeroDivisionError: two lines", "test_app.py:")
    assert err.count("\n") == 1
    assert "Traceback" in failed(capsys, ["device_query", "--debug"], 1, "ZeroDivisionError")


def test_broken_pipe_and_full_disk(tmp_path):
    reader = subprocess.Popen([*COMMAND, "device_query"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    reader.stdout.close()
    assert reader.wait(PATIENCE) == 1 and reader.stderr.read() == b""
    reader.stderr.close()
    with open("/dev/full", "w") as full:
        result = subprocess.run([*COMMAND, "device_query"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "minicaffe: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-", "2>&-"])
def test_closed_standard_streams(folder, closed):
    """A daemon may have none; files must not get their numbers, or lines for them end in a file."""
    result = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "train", "solver.prototxt", "--json", "log.jsonl"],
                            cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0 and "Traceback" not in result.stderr
    assert {json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()} == {"train", "test"}
    assert binary.read_solver_state(str(folder / "tiny_iter_30.solverstate")).iter == 30
    assert ("Finished" in result.stdout) == (">&-" not in closed.split()) and ("lr = " in result.stderr) == ("2>&-" not in closed)


def test_runs_as_a_module(tmp_path):
    result = run("train", "nosuch.prototxt", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("minicaffe: nosuch.prototxt: no such file") and not result.stdout


@pytest.mark.parametrize(("name", "words"), app.ALIASES.items())
def test_names_of_caffes_tools(name, words, capsys):
    """An alias has the help of its command, and its options may be given before it, as by gflags."""
    assert cli.main([*words.split(), "--help"]) == 0
    wanted = capsys.readouterr().out
    for dash in ("_", "-"):
        assert cli.main([name.replace("_", dash), "--help"]) == 0
        assert capsys.readouterr().out == wanted
    command, *more = words.split()
    assert app.command_first(["-x=1", name, "a"]) == [command, *more, "-x=1", "a"]


@pytest.mark.parametrize("name", app.REPLACEMENTS)
def test_replacements_of_caffes_tools(name, capsys):
    """The error names a command with options that there are."""
    failed(capsys, [name, "a", "b"], 2, f"no command '{name}'; minicaffe ", " does the same")
    words = app.REPLACEMENTS[name].removeprefix("minicaffe ").split()
    command = next(word for word in words if word.startswith("-") or word.isupper() or word.endswith("..."))
    assert cli.main([*words[:words.index(command)], "--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert all(word in shown for word in words if word.startswith("--"))
