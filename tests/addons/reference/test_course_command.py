"""minicaffe course: the folder has all of the course, with links that lead somewhere; what is there is never changed."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from minicaffe.addons.reference import course

ROOT = Path(__file__).resolve().parents[3]
LISTED = (ROOT / "docs/course/files.txt").read_text().split()


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_copied_files_and_links(minicaffe, tmp_path):
    said = minicaffe("course", "learn")
    assert "Copied 10 chapters" in said and "Next: cd learn && " in said and "pytest exercises/test_chapter1.py" in said
    assert files_below(tmp_path / "learn") == {name.removeprefix("docs/course/") for name in LISTED}
    assert (tmp_path / "learn/exercises/conftest.py").read_text() == (ROOT / "docs/course/exercises/conftest.py").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["learn"], "a temporary folder is left"
    sources = 0
    for page in (*(tmp_path / "learn").rglob("*.md"), tmp_path / "learn/course.ipynb"):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            url = urlsplit(link)
            target = Path(unquote(url.path)) if url.scheme == "file" else page.parent / url.path
            assert target.exists(), f"{page.name}: {link}"
            sources += url.scheme == "file"
    assert sources > 30
    assert "of design.md." in (tmp_path / "learn/README.md").read_text().replace("\n", " ")


def test_list_of_files():
    assert "foreach file : fs.read('docs/course/files.txt').split()" in (ROOT / "meson.build").read_text()
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout, or there is no git: it is not known which files are kept")
    kept = subprocess.run(["git", "-C", str(ROOT), "ls-files", "docs/course", "models/lenet"], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(LISTED) == sorted(set(kept) - {"docs/course/files.txt"})


def test_files_of_a_training_stay(minicaffe, tmp_path, monkeypatch):
    """In a checkout a training writes its log and snapshots beside the net, and a learner writes answers."""
    checkout = tmp_path / "checkout"
    own = ["models/lenet/net.log", "models/lenet/net_iter_1500.caffemodel", "docs/course/exercises/mine.py", "docs/course/exercises/__pycache__/mine.pyc"]
    for name in [*LISTED, *own, "docs/course/files.txt"]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes() if name not in own else b"mine")
    monkeypatch.setattr(course, "SOURCE", checkout)
    minicaffe("course", "learn")
    assert files_below(tmp_path / "learn") == {name.removeprefix("docs/course/") for name in LISTED}


def test_folders_that_exist(minicaffe, tmp_path):
    (tmp_path / "learn").mkdir()
    (tmp_path / "learn" / "mine.py").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("learn", "file"):
        assert f"{name}: exists and is not an empty folder; name a new one" in minicaffe("course", name, status=1)
    assert {path.name for path in tmp_path.rglob("*")} == {"learn", "mine.py", "file"}
    (tmp_path / "learn" / "mine.py").unlink()
    before = (tmp_path / "learn").stat().st_ino
    minicaffe("course", "learn")
    assert (tmp_path / "learn" / "README.md").is_file() and (tmp_path / "learn").stat().st_ino == before


def test_failure(minicaffe, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "SOURCE", tmp_path / "nothing")
    assert "nothing/docs/course: the installed minicaffe has no course there; install it again" in minicaffe("course", "learn", status=1)
    (tmp_path / "nothing" / "docs" / "course").mkdir(parents=True)      # without models/lenet: the copy fails half-way
    minicaffe("course", "learn", status=1)
    assert {path.name for path in tmp_path.iterdir()} == {"nothing"}
