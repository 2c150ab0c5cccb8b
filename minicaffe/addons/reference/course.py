"""``minicaffe course``: the course of docs/course as a folder to work in. Caffe has none."""

import os
import re
import shutil
from pathlib import Path

import click

from minicaffe.cli import options
from minicaffe.errors import FileError
from minicaffe.proto.atomic import temporary_folder, write_error
from minicaffe.proto.files import absolute

PACKAGE = Path(__file__).resolve().parents[2]
SOURCE = PACKAGE / "course" if (PACKAGE / "course").is_dir() else PACKAGE.parent    # meson.build installs it below the package
PAGE_LINK = re.compile(r"!?\[([^\]]*)\]\(\.\./[^)]*\)")


@click.command(cls=options.CaffeCommand)
@click.argument("folder", metavar="DIR")
@options.messages
def course(folder):
    """Copy the course in reading the framework to DIR: chapters, exercises with tests, and LeNet's files.

    DIR must not exist, or be empty. Links of the chapters to minicaffe's sources lead to the installed files; links to pages that
    are not installed become plain text.
    """
    target = Path(absolute(folder))
    if not (SOURCE / "docs" / "course").is_dir():
        raise FileError("the installed minicaffe has no course there; install it again", file=str(SOURCE / "docs" / "course"))
    try:
        if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
            raise FileError("exists and is not an empty folder; name a new one", file=folder)
        with temporary_folder(target) as temporary:
            growing = temporary / target.name
            copy_course(growing)
            if target.is_dir():     # moved into it, not over it: it may be the working directory
                for path in growing.iterdir():
                    path.rename(target / path.name)
            else:
                growing.rename(target)
    except OSError as cause:
        raise write_error(folder, cause) from cause
    chapters = sorted(target.glob("[0-9]*_*.md"))
    click.echo(f"Copied {len(chapters)} chapters, their exercises and LeNet to {folder}. README.md there says how to begin.\n"
               f"Next: cd {folder} && python -m pip install pytest cython ipython && pytest exercises/test_chapter1.py")


def copy_course(folder):
    """Make `folder` with the files that docs/course/files.txt lists; links of the pages lead to what is installed."""
    for name in (SOURCE / "docs" / "course" / "files.txt").read_text().split():
        copy = folder / name.removeprefix("docs/course/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / name, copy)
    for page in (*folder.glob("*.md"), *folder.glob("*.ipynb")):
        page.write_text(PAGE_LINK.sub(r"\1", page.read_text().replace("](../../minicaffe/", f"]({PACKAGE.as_uri()}/")))
