"""Print the files below minicaffe/ that end in one of the given suffixes, one a line (meson.build reads it)."""

import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
for path in sorted((root / "minicaffe").rglob("*")):
    if path.name.endswith(tuple(sys.argv[1:])) and "__pycache__" not in path.parts:
        print(path.relative_to(root).as_posix())
