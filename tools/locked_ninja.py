"""Run ninja as the only process that builds in this folder: ``locked_ninja.py NINJA SCRIPTS [ARGUMENT ...]``.

An editable install runs this at each import (``tools/editable.py``). Imports that start at once build one after the other. A change
of ``meson.build`` finds cython, meson and ninja in the folder SCRIPTS, though the environment is not activated. The lock ends with
the build: an import can still load a module while a later import builds it again.
"""

import contextlib
import fcntl
import os
import sys


def main(ninja, scripts, *arguments):
    os.environ["PATH"] = os.pathsep.join((scripts, os.environ.get("PATH", os.defpath)))
    os.environ["NINJA"] = ninja     # for meson, which runs it during a build: this file would then wait for the lock of that build
    if os.path.exists("build.ninja"):       # not so for ninja --version
        # A lock of POSIX belongs to this process, which becomes ninja: it ends with ninja, and compilers do not inherit it. Closing
        # the file would end it, too. An error is that of a file system without locks, or of another user's folder.
        with contextlib.suppress(OSError):
            file = os.open("editable.lock", os.O_RDWR | os.O_CREAT, 0o666)
            os.set_inheritable(file, True)
            fcntl.lockf(file, fcntl.LOCK_EX)
    os.execv(ninja, [ninja, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
