"""The build backend: meson-python's, with a lock around the builds of an editable install.

An editable install runs ninja at each import. meson-python writes the path of ninja into the install. The path is the value of the
variable NINJA, if it is set; there is no other setting for the command. So `build_editable` sets NINJA to a script that runs
``tools/locked_ninja.py``.
"""

import os
import shlex
import shutil
import sys
import sysconfig
import zlib
from pathlib import Path

import mesonpy
from mesonpy import build_sdist, build_wheel, get_requires_for_build_sdist, get_requires_for_build_wheel  # noqa: F401

get_requires_for_build_editable = get_requires_for_build_wheel


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build as meson-python does, with a script in ``build/`` as ninja, one for each environment, whose programs it names."""
    ninja = next(filter(None, map(shutil.which, (os.environ.get("NINJA") or "ninja", "ninja-build", "samu"))), None)
    if ninja:   # otherwise meson-python says that there is none
        runner = Path(__file__).with_name("locked_ninja.py").absolute()
        command = sys.executable, "-IS", runner, os.path.abspath(ninja), sysconfig.get_path("scripts")
        script = Path("build", f"ninja-{zlib.crc32(sys.prefix.encode()):08x}").absolute()
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, command))} "$@"\n')
        script.chmod(0o755)
        os.environ["NINJA"] = str(script)
    return mesonpy.build_editable(wheel_directory, config_settings, metadata_directory)
