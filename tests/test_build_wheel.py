"""tools/build_wheel.py: what it refuses of wheels and arguments. It builds and tests one for minutes only when it is run."""

import subprocess
import sys
import zipfile
from pathlib import Path

import build_wheel
import pytest
from sources import INSTALLED, sources

from minicaffe.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def names():
    """The files of a whole wheel."""
    return sources(*INSTALLED) + [name.replace(".pyx", ".cpython-311-x86_64-linux-gnu.so") for name in sources(".pyx")]


def wheel_of(folder, names):
    with zipfile.ZipFile(folder / "minicaffe.whl", "w") as made:
        for name in names:
            made.writestr(name, b"")
    return folder / "minicaffe.whl"


@pytest.mark.parametrize(("gone", "message"), [
    ("minicaffe/blob.pyx", "lacks minicaffe/blob.pyx$"), ("minicaffe/layer.pxd", "lacks minicaffe/layer.pxd$"),
    ("minicaffe/kernels/types.hpp", "lacks minicaffe/kernels/types.hpp$"),
    ("minicaffe/pretrained/mlp/deploy.caffemodel", "lacks minicaffe/pretrained/mlp/deploy.caffemodel$"),
    ("minicaffe/ops/conv/operation.cpython-311-x86_64-linux-gnu.so", "lacks the compiled minicaffe/ops/conv/operation.pyx$"),
    ("minicaffe/layers/", r"lacks minicaffe/layers/.*, minicaffe/layers/.* and \d+ more$")])
def test_a_wheel_that_lacks_a_part(names, tmp_path, gone, message):
    left = [name for name in names if not (name.startswith(gone) if gone.endswith("/") else name == gone)]
    assert len(left) < len(names)
    with pytest.raises(SystemExit, match=message):
        build_wheel.check(wheel_of(tmp_path, left))


def test_size_and_commands(names, tmp_path, monkeypatch, capsys):
    wheel = wheel_of(tmp_path, names)
    size = wheel.stat().st_size
    monkeypatch.setattr(build_wheel, "LARGEST", size)
    build_wheel.check(wheel)
    assert "minicaffe/pretrained/lenet/deploy.caffemodel" in names and f"minicaffe.whl: 0.1 MB, {len(names)} files" in capsys.readouterr().out
    monkeypatch.setattr(build_wheel, "LARGEST", size - 1)
    with pytest.raises(SystemExit, match=f"minicaffe.whl: has {size:,} bytes, more than {size - 1:,}"):
        build_wheel.check(wheel)
    for words in build_wheel.COMMANDS:
        assert words[0] in COMMANDS and all((ROOT / word).exists() for word in words if word.startswith("models/"))
    compile(build_wheel.SCRIPT, "SCRIPT", "exec")


@pytest.mark.skipif(sys.platform != "linux", reason="the tool refuses other systems before it reads files")
@pytest.mark.parametrize(("words", "status", "message"), [
    (["--test", "nowhere.whl"], 1, "nowhere.whl: cannot be read as a wheel"), (["--test", "text"], 1, "text: cannot be read as a wheel"),
    (["--out", "text"], 2, "--out: text is no folder"), (["--tset", "x"], 2, "unrecognized arguments")])
def test_arguments(tmp_path, words, status, message):
    (tmp_path / "text").write_text("no wheel")
    done = subprocess.run([sys.executable, ROOT / "tools" / "build_wheel.py", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status and message in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
