"""Print the files below minicaffe/ whose paths end in one of the given endings, one a line (meson.build reads it).

Without endings it prints those that are installed. Code is found by its suffix, so that a new module edits no list. Data are
named: what a training or a trace writes into a folder of the package is not installed.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = (
    # NVRTC reads the kernels by name, users' Cython layers cimport ours, and .pyx files are there to be read
    ".py", ".pyi", ".pyx", ".pxd", ".hpp", "/py.typed",
    # tables, pages, and the trained nets of minicaffe/pretrained
    "/caffe.descriptor", "/comments.tsv", "/forks.tsv", "/convolution.html", "/page.html", "/page.css", ".js",
    "/net.prototxt", "/deploy.prototxt", "/deploy.caffemodel", "/labels.txt")


def sources(*endings):
    """Return the files below minicaffe/, as paths from the top folder with slashes, that end in one of `endings`."""
    paths = sorted((ROOT / "minicaffe").rglob("*"))
    return [path.relative_to(ROOT).as_posix() for path in paths
            if path.as_posix().endswith(endings) and "__pycache__" not in path.parts]


def copy_models(target, *names):
    """Copy folders of models/ to `target`, without the logs and snapshots of trainings."""
    made_by_training = shutil.ignore_patterns("*.caffemodel*", "*.solverstate*", "*.log")
    for name in names:
        shutil.copytree(ROOT / "models" / name, target / name, ignore=made_by_training, dirs_exist_ok=True)


if __name__ == "__main__":
    print("\n".join(sources(*sys.argv[1:] or INSTALLED)))
