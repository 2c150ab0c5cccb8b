"""An editable install rebuilds on import: imports that start at once, and an environment that is not activated.

The project is a tiny one, whose one step of the build takes a while and fails if it runs twice at once. Its backend is minicaffe's.
"""

import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MESON = """project('tiny', version: '1')
py = import('python').find_installation(pure: true)
cython = find_program('cython')
made = custom_target('made', input: 'made.txt', output: 'made.py', command: [py, files('slow.py'), '@INPUT@', '@OUTPUT@', '@0@' / 'runs'],
  install: true, install_dir: py.get_install_dir() / 'tiny')
py.install_sources('__init__.py', subdir: 'tiny')
"""
SLOW = """import os, shutil, sys, time
source, target, runs = sys.argv[1:]
os.close(os.open(target + ".busy", os.O_CREAT | os.O_EXCL))
time.sleep(0.5)
shutil.copy(source, target)
os.unlink(target + ".busy")
with open(runs, "a") as file:
    file.write("run ")
"""

pytestmark = pytest.mark.slow(7)    # all together


@pytest.fixture
def project(tmp_path):
    """The folder of a project whose name has a space, and that of its install."""
    pytest.importorskip("mesonpy", reason="meson-python is not installed: pip install meson-python ninja")
    folder, site = tmp_path / "a project", tmp_path / "site"
    folder.mkdir()
    for name, text in (("meson.build", MESON.replace("'@0@'", f"'{folder}'")), ("slow.py", SLOW), ("made.txt", "value = 1\n"),
                       ("__init__.py", "from tiny.made import value\n"),
                       ("pyproject.toml", '[build-system]\nrequires = []\n[project]\nname = "tiny"\nversion = "1"\n')):
        (folder / name).write_text(text)
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    code = (f"import sys; sys.path[:0] = {[str(ROOT / path) for path in system['backend-path']]}; "
            f"import {system['build-backend']} as backend; print(backend.build_editable({str(tmp_path)!r}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        wheel.extractall(site)
    return folder, site


def start(site):
    """Start an import in an environment that is not activated: PATH has no programs."""
    code = f"import site; site.addsitedir({str(site)!r}); import tiny; print(tiny.value)"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={"PATH": str(site), "HOME": str(site)})


def test_rebuilds_on_import(project):
    folder, site = project
    (folder / "meson.build").write_text((folder / "meson.build").read_text() + "message('again')\n")
    assert start(site).communicate(timeout=60) == ("1\n", "")
    assert "Message: again" in next(folder.glob("build/*/meson-logs/meson-python-build-log.txt")).read_text()
    (folder / "made.txt").write_text("value = 2\n")
    (folder / "runs").unlink()
    imports = [start(site) for _ in range(4)]
    assert [one.communicate(timeout=60) for one in imports] == [("2\n", "")] * 4
    assert (folder / "runs").read_text() == "run "
    folder, site = project
    (folder / "made.txt").write_text("value = 3\n")
    first = start(site)
    busy = next(folder.glob("build/cp*")) / "made.py.busy"
    until = time.monotonic() + 30
    while not busy.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert busy.exists()
    first.kill()
    first.communicate()
    assert start(site).communicate(timeout=60) == ("3\n", "")      # it waits for the build that continues
