"""A checkout: what Python in its top folder and a machine without a compiler say, one version."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import cuda_headers
import pytest
import sources

import minicaffe
from minicaffe import cli

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(importlib.import_module("minicaffe.common").__file__).parent


@pytest.fixture
def checkout(tmp_path):
    shutil.copytree(ROOT / "minicaffe", tmp_path / "checkout" / "minicaffe", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "checkout"


def test_python_beside_the_source(checkout):
    environment = os.environ | {"PYTHONSAFEPATH": "", "MESONPY_EDITABLE_SKIP": str(BUILD)}
    done = subprocess.run([sys.executable, "-S", "-c", "import minicaffe"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {checkout}/minicaffe is the source of minicaffe, which is not compiled; Python was started in the folder above: "
        "use python -P or another folder for an installed minicaffe, or run pip install . there")


@pytest.mark.slow(1)
def test_without_a_compiler(tmp_path):
    meson = shutil.which("meson")
    if meson is None:
        pytest.skip("meson is not installed: pip install meson")
    for tool in ("python3", "python", "ninja", "cython"):
        if shutil.which(tool):
            (tmp_path / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([meson, "setup", tmp_path / "build", ROOT], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "no C++ compiler was found: install g++ or clang++" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("lines", "bindings", "said"), [
    (["#define CUDA_VERSION 13040"], "13.5.0", "is of CUDA 13.4, and cuda-bindings 13.5.0 needs 13.5 or later: pip install "
                                               "'nvidia-cuda-runtime>=13.5'"),
    (["#define CUDA_VERSION 13050"], "13.5.0", None), (["#define CUDA_VERSION 13060"], "13.5.1", None),
    (["#define CUDA_VERSION 13000", "#define CUDA_VERSION 13050"], "13.5.0", None),
    ([], "13.5.0", "no cuda.h is installed: pip install nvidia-cuda-runtime"),
    (["#define CUDA_VERSION 13050"], None, "pip install cuda-bindings nvidia-cuda-runtime")])
def test_age_of_the_cuda_header(tmp_path, monkeypatch, capsys, lines, bindings, said):
    """PyTorch's wheels bring an older one along, with which the compiler found types missing. Without one the build had no devices."""
    folders = [tmp_path / str(number) for number in range(len(lines))]
    for folder, line in zip(folders, lines):
        folder.mkdir()
        (folder / "cuda.h").write_text(f"#pragma once\n{line}\n")
    monkeypatch.setattr(cuda_headers, "candidates", lambda: folders)
    monkeypatch.setattr(cuda_headers.importlib.util, "find_spec", lambda _: bindings)
    monkeypatch.setattr(cuda_headers.sys, "platform", "linux")
    monkeypatch.setattr(cuda_headers.metadata, "version", lambda _: bindings)
    if said is None:
        cuda_headers.main()
        assert capsys.readouterr().out.strip() == str(folders[-1])
        return
    with pytest.raises(SystemExit, match=re.escape(said)):
        cuda_headers.main()


def test_header_of_the_wheel_first(tmp_path, monkeypatch):
    """An editable install with an old CUDA on the system built once, in pip's environment, and no more at the first rebuild."""
    wheel, system = tmp_path / "nvidia" / "cu13" / "include", tmp_path / "cuda" / "include"
    for folder in (wheel, system):
        folder.mkdir(parents=True)
    monkeypatch.setattr(cuda_headers.importlib.util, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert list(cuda_headers.candidates())[:2] == [wheel, system]


def test_build_without_cuda(monkeypatch, capsys):
    found = importlib.import_module

    def without_cuda(name, *package):
        if name.startswith("minicaffe.cuda."):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return found(name, *package)
    monkeypatch.setattr(importlib, "import_module", without_cuda)
    monkeypatch.delenv("MINICAFFE_DEVICE", raising=False)       # of pytest --device sim
    assert cli.main(["device_query"]) == 0
    assert re.search("^CUDA driver: +none: this minicaffe was built without CUDA; install cuda-bindings and nvidia-cuda-runtime and build it again$",
                     capsys.readouterr().out, re.M)


def test_versions_sources_and_large_files():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"version: '{minicaffe.__version__}'" in (ROOT / "meson.build").read_text() and project["dynamic"] == ["version"]
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    command = re.search(r"^    pip install (meson-python .*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)[1].split()
    assert {re.match(r"[\w-]+", line)[0] for line in required} <= set(command)
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall("language: (.*)", config)) == {"system"} and "repo: local" in config and "http" not in config
    tools = {line.split()[0].removeprefix("git-") for line in re.findall("entry: (.*)", config)} - {"python"}
    assert tools | {"pre-commit"} <= set(re.findall(r"^[\w-]+", (ROOT / "tools" / "requirements.txt").read_text(), re.M))
    assert "foreach source : run_command(py, 'tools/sources.py', check: true)" in (ROOT / "meson.build").read_text()
    installed = set(sources.sources(*sources.INSTALLED))
    assert {name for name in kept_files("minicaffe") if not name.endswith(".cpp")} <= installed
    large = {name for name in kept_files() if (ROOT / name).stat().st_size > 500_000}
    assert large == {"minicaffe/pretrained/lenet/deploy.caffemodel", "models/shapes/shapes.caffemodel",
                     "models/data/fashion_mnist_train_lmdb/data.mdb",
                     "models/data/fashion_mnist_test_lmdb/data.mdb"}


def kept_files(*folders):
    """The files of a checkout that git keeps; a visible skip where that is not known."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout, or there is no git: it is not known which files are kept")
    git = ["git", "-C", str(ROOT), "ls-files", "-z", *folders]
    return [name for name in subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0") if (ROOT / name).is_file()]


def test_no_training_in_the_wheel(tmp_path, monkeypatch):
    """Log, snapshots and pages that a user's commands wrote beside a net of the package are not installed."""
    folder = tmp_path / "minicaffe" / "pretrained" / "lenet"
    folder.mkdir(parents=True)
    for name in ("deploy.caffemodel", "labels.txt", "net.log", "net_iter_5.caffemodel", "net_iter_5.solverstate", "notes.txt", "lenet.html", "old.prototxt"):
        (folder / name).write_text("")
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    assert sources.sources(*sources.INSTALLED) == [f"minicaffe/pretrained/lenet/{name}" for name in ("deploy.caffemodel", "labels.txt")]
