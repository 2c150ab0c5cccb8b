"""The ``minicaffe`` command itself: finding commands, exit statuses, one line for every error."""

import json
import os
import subprocess
import sys

import pytest
from tiny import COMMAND, PATIENCE, run

from minicaffe import __version__, cli, entry_points
from minicaffe.cli import app
from minicaffe.cli.options import normalize_arguments
from minicaffe.cli.train import train
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.proto import binary


def check_failed(capsys, arguments, status, *texts):
    """Check the exit status of `arguments` and that standard error ends with one line that holds `texts`."""
    assert cli.main(arguments) == status
    err = capsys.readouterr().err
    line = err.splitlines()[-1]
    assert line.startswith("minicaffe: ") and all(text in line for text in texts), err
    return err


def test_version_help_and_devices(capsys):
    assert cli.main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("train", "test", "time", "device_query", "data"))
    for name in ("device_query", "device-query"):
        assert cli.main([name]) == 0
        out = capsys.readouterr().out
        assert "Processor:" in out and "BLAS:" in out and "CUDA driver:" in out


@pytest.mark.parametrize("code, names", [
    ("from minicaffe import cli; cli.main(['--help'])", "rich lmdb h5py cv2 minicaffe.cli.train"),
    ("import minicaffe", "click rich minicaffe.cli minicaffe.addons minicaffe.inspection minicaffe.data minicaffe.parallel "
     "minicaffe.solver minicaffe.sim minicaffe.cuda.driver lmdb h5py cv2 importlib.metadata mpi4py")])
def test_what_is_not_imported(code, names):
    code += f"; import sys; print(set({names.split()!r}) & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout.splitlines()[-1] == "set()", result.stdout + result.stderr


def test_late_imports():
    import minicaffe
    assert minicaffe.pycaffe.SOLVERS == minicaffe.pycaffe.solvers.__all__
    assert "gradcheck" in dir(minicaffe) and minicaffe.gradcheck.__module__ == "minicaffe.addons.gradcheck.gradient_check"
    code = """import minicaffe as caffe
assert "SGDSolver" in dir(caffe) and "register_solver" in dir(caffe) and not hasattr(caffe, "nothing")
top = caffe.layers.ReLU(caffe.layers.Input(shape={"dim": [1, 2]}))
print(caffe.SGDSolver.__module__, caffe.get_solver.__name__, caffe.parallel.__name__, caffe.solver.__name__, top.fn.type_name)
from minicaffe import *
print(AdamSolver.__name__, register_solver.__name__, layers is caffe.layers, type(layers).__name__)"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout.splitlines() == ["minicaffe.pycaffe.solvers get_solver minicaffe.parallel minicaffe.solver ReLU",
                                          "AdamSolver register_solver True Layers"], result


@pytest.mark.parametrize("arguments, texts", [
    (["device_query", "--gpu", "0,0"], ["must be the number of a GPU, got '0,0'; several have commas"]),
    (["device_query", "--gpu", "first"], ["must be the number of a GPU, got 'first'"]), (["device_query", "--device", "tpu"], ["must be cpu, gpu or sim, got 'tpu'"]),
    (["data"], ["Missing command", "minicaffe data --help"]), (["trian"], ["no command 'trian'", "'train'"]), (["xyzzy"], ["device_query"]),
    (["train", "net.prototxt", "-bse_lr", "1"], ["--base-lr"])])
def test_wrong_words(arguments, texts, capsys):
    assert check_failed(capsys, arguments, 2, *texts).count("\n") == 1


def test_command_without_add_ons(monkeypatch, capsys):
    monkeypatch.setattr(entry_points, "entries", lambda group: [])
    for name in "plot", "draw_net":
        check_failed(capsys, [name, "a.log"], 2, f"no command '{name.removesuffix('_net')}'", "others are of add-ons, and none is installed")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_streams_of_the_calling_program(monkeypatch, capfd, error):
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


def test_unforeseen_errors(monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError("two\nlines")
    monkeypatch.setattr("minicaffe.cli.device_query.blas", broken)
    err = check_failed(capsys, ["device_query"], 1, "ZeroDivisionError: two lines", "test_app.py:")
    assert err.count("\n") == 1
    assert "Traceback" in check_failed(capsys, ["device_query", "--debug"], 1, "ZeroDivisionError")


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-", "2>&-"])
def test_closed_standard_streams(folder, closed):
    """A daemon may have none; files must not get their numbers, or lines for them end in a file."""
    result = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "train", "solver.prototxt", "--json", "log.jsonl"],
                            cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0 and "Traceback" not in result.stderr
    assert {json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()} == {"train", "test"}
    assert binary.read_solver_state(str(folder / "tiny_iter_30.solverstate")).iter == 30
    assert ("Finished" in result.stdout) == (">&-" not in closed.split()) and ("lr = " in result.stderr) == ("2>&-" not in closed)


def test_module_and_broken_pipes(tmp_path):
    result = run("train", "nosuch.prototxt", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("minicaffe: nosuch.prototxt: no such file") and not result.stdout
    reader = subprocess.Popen([*COMMAND, "device_query"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    reader.stdout.close()
    assert reader.wait(PATIENCE) == 1 and reader.stderr.read() == b""
    reader.stderr.close()
    with open("/dev/full", "w") as full:
        result = subprocess.run([*COMMAND, "device_query"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "minicaffe: No space left on device\n"


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
    check_failed(capsys, [name, "a", "b"], 2, f"no command '{name}'; minicaffe ", " does the same")
    words = app.REPLACEMENTS[name].removeprefix("minicaffe ").split()
    command = next(word for word in words if word.startswith("-") or word.isupper() or word.endswith("..."))
    assert cli.main([*words[:words.index(command)], "--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert all(word in shown for word in words if word.startswith("--"))


@pytest.mark.parametrize("error, wanted", [
    (ConfigError("rule", file="f", line=3), ("f:3: rule", 2)), (ShapeError("rule"), ("rule", 2)), (FileError("gone", file="f"), ("f: gone", 1)),
    (DataError("no"), ("no", 1)), (OSError(28, "No space left"), ("No space left", 1)), (OSError(2, "No such file", "f"), ("f: No such file", 1)),
    (OSError("said by a library"), ("said by a library", 1)), (MemoryError(), ("out of memory", 1)), (MemoryError("3 GB"), ("3 GB", 1))])
def test_line_and_status_of_errors(error, wanted):
    assert app.explain(error) == wanted


@pytest.mark.parametrize(("words", "wanted"), [
    (["-max_iter", "5", "f"], ["--max-iter=5", "f"]), (["--max-iter=5", "--", "-quiet", "--x"], ["--max-iter=5", "--", "-quiet", "--x"]),
    (["--watch", "7", "f"], ["--watch=7", "f"]), (["--watch", "f"], ["--watch=0", "f"]), (["--watch=3"], ["--watch=3"]),
    (["--debug-info", "net"], ["--debug-info=true", "net"]), (["--debug_info", "false", "f"], ["--debug-info=false", "f"]),
    (["--nodebug-info"], ["--nodebug-info"]), (["--no-debug-info", "f"], ["--debug-info=false", "f"]), (["--no-overlap", "f"], ["--no-overlap", "f"]),
    (["-quiet", "f"], ["--quiet", "f"]), (["-5", "f"], ["-5", "f"]), (["--json", "a=b"], ["--json=a=b"]), (["--json"], ["--json"]),
    (["--gamma", "-0.5"], ["--gamma=-0.5"]), (["-solver", "-x"], ["--solver=-x"]), (["--max_iter=5"], ["--max-iter=5"]),
    (["--no-debug-info=true"], ["--no-debug-info=true"]), (["--no-snapshot-prefix"], ["--no-snapshot-prefix"]), (["--to-debug-info"], ["--to-debug-info"])])
def test_each_option_is_one_word(words, wanted):
    assert normalize_arguments(words, train.params) == wanted


@pytest.mark.parametrize("given, first", [
    (["-solver", "x", "train"], ["train", "-solver", "x"]), (["--solver=x", "train"], ["train", "--solver=x"]),
    (["-model", "test", "-weights=w", "test"], ["test", "-model", "test", "-weights=w"]), (["--quiet", "time", "n"], ["time", "--quiet", "n"]),
    (["-model", "test", "--solver=x", "train"], ["train", "-model", "test", "--solver=x"]), (["-gpu", "value", "summary", "a", "-x=1"], ["summary", "-gpu", "value", "a", "-x=1"]),
    (["-gpu", "test", "file", "a"], ["test", "-gpu", "file", "a"]), (["train", "x", "test"], ["train", "x", "test"]), (["train", "-gpu", "test"], ["train", "-gpu", "test"]),
    (["file", "train"], ["file", "train"]), (["--help"], ["--help"]), (["-gpu", "--quiet"], ["-gpu", "--quiet"])])
def test_options_before_the_command(given, first):
    """A word that follows an option without ``=`` may be its value, unless no other word is a command."""
    assert app.command_first(given) == first
    assert app.command_of(given) == (first[0] if first[0] in app.commands() else None)
