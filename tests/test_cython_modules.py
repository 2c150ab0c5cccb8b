"""The build compiles the .pyx files in one run of Cython (tools/cython_modules.py), and of these only what changed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "cython_modules.py"
pytest.importorskip("Cython.Compiler.Main", reason="Cython is not installed: pip install Cython")


def translate(folder, directive="binding=True"):
    """Run the tool as ninja does; return its exit status, stderr, and the times of both .cpp files, None if there is none."""
    out = folder / "build"
    out.mkdir(exist_ok=True)
    sources = [folder / "pack" / name for name in ("one.pyx", "two.pyx")]
    done = subprocess.run([sys.executable, TOOL, folder, "shared_part", out, out / "depfile", directive, "--", *sources], cwd=folder,
                          capture_output=True, text=True)
    targets = [out / "pack.one.cpp", out / "pack.two.cpp"]
    return done.returncode, done.stderr, [path.stat().st_mtime_ns if path.exists() else None for path in targets]


@pytest.mark.slow(12)
def test_only_what_changed_is_compiled(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.pxd").write_text("cdef int one() except -1\n")
    (package / "one.pyx").write_text("cdef int one() except -1:\n    return 1\n")
    (package / "two.pyx").write_text("def two():\n    return 2\n")
    status, said, first = translate(tmp_path)
    assert (status, said) == (0, "") and all(first) and (tmp_path / "build/shared_part.cpp").exists()
    listed = (tmp_path / "build/depfile").read_text()
    assert (tmp_path / "build/pack.one.cpp").read_text().count("#pragma GCC optimize") == 1
    assert listed.startswith("pack.one.cpp:") and "pack/one.pxd" in listed and "pack/two.pyx" in listed
    assert translate(tmp_path) == (0, "", first)

    future = first[0] + 10**9
    os.utime(package / "one.pxd", ns=(future, future))  # a .pxd file that changed since
    _, _, second = translate(tmp_path)
    assert second[0] > first[0] and second[1] == first[1]

    (package / "two.pyx").write_text("def two(:\n")
    status, said, third = translate(tmp_path)
    assert status == 1 and "two.pyx:1:8" in said and third[1] is None

    (package / "two.pyx").write_text("def two():\n    return 3\n")
    _, _, fourth = translate(tmp_path, "binding=False")  # other directives
    assert fourth[0] > second[0] and fourth[1]


def test_templates_compiled_once():
    """Each that a caffe.pxd declares is in the list of those compiled once."""
    folders = [path.parent for path in ROOT.glob("minicaffe/*/*/caffe.cpp")]
    assert len(folders) >= 3
    for folder in folders:
        declared = re.findall(r'"mc::(\w+)<mc::(\w+)>"', (folder / "caffe.pxd").read_text())
        listed = re.findall(r"EXTERN template void (\w+)<(\w+)>", (folder / "caffe.hpp").read_text())
        assert declared and sorted(declared) == sorted(set(listed) & set(declared)) and len(set(listed)) == len(listed), folder
