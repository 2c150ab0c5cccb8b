"""``python -m minicaffe.as_caffe script.py arguments``: run an old pycaffe script unchanged; ``import caffe`` gives minicaffe.

``--install`` writes a module caffe.py into the environment, so that ``import caffe`` gives minicaffe in all its programs, also in
processes that they start. MINICAFFE_DEVICE=gpu (or sim) selects the GPU, even if the script never calls set_mode_gpu(). Without a
GPU the CPU computes after set_mode_gpu(). An error that a script in Python 2 raises says so.
"""

import os
import re
import runpy
import sys
import sysconfig
from pathlib import Path

import minicaffe
from minicaffe import alias

USAGE = """usage: python -m minicaffe.as_caffe [--force] script.py [argument ...]
       python -m minicaffe.as_caffe --install [FOLDER]"""
HELP = """--install: write caffe.py into the environment (or FOLDER), so that import caffe gives minicaffe in all its programs
--force: run the script even if another caffe is installed"""
PYTHON_2 = re.compile(r"call to '(print|exec)'|multiple exception types|leading zeros|"
                      r"name '(xrange|unicode|raw_input|basestring|unichr|long|reduce|reload|file|execfile|cmp)'|"
                      r"attribute '(iteritems|itervalues|iterkeys|has_key)'|>>: 'builtin_function|"
                      r"named '(cPickle|c?StringIO|urllib2|urlparse|ConfigParser|Queue|Tkinter)'")


def main(arguments):
    """Run the script as ``python script.py`` would, or do ``--install``; return the exit status."""
    force = arguments[:1] == ["--force"]
    arguments = arguments[1:] if force else arguments
    script = arguments[0] if arguments else None
    if script is None or script in ("-h", "--help"):
        print(USAGE, HELP, sep="\n", file=sys.stdout if script else sys.stderr)
        return 0 if script else 2
    if script == "--install":
        return install(*arguments[1:2])
    if not os.path.exists(script):
        print(f"{script}: no such script", USAGE, sep="\n", file=sys.stderr)
        return 2
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        minicaffe.install_as_caffe(force=force)
    except minicaffe.errors.ConfigError as error:
        print(f"minicaffe: {error}; to override it, run: python -m minicaffe.as_caffe --force {script}", file=sys.stderr)
        return 2
    if os.environ.get("MINICAFFE_DEVICE") not in (None, "", "cpu"):
        minicaffe.set_mode_gpu()
    sys.argv = arguments
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        if PYTHON_2.search(str(error)):
            error.add_note("this is Python 2: convert it with 2to3, which is part of Python up to 3.12: 2to3 -w FILE")
        raise
    return 0


def install(folder=None):
    """Write caffe.py into a folder, by default that of the environment's packages, and return the exit status."""
    folder = os.path.abspath(folder or sysconfig.get_path("purelib"))
    path = Path(folder, "caffe.py")
    other = alias.other_caffe([*sys.path, folder]) or (path.exists() and not alias.is_alias(path) and path)
    if other:
        print(f"minicaffe: another caffe is installed ({other}); uninstall it first", file=sys.stderr)
        return 2
    try:
        os.makedirs(folder, exist_ok=True)
        path.write_text(alias.TEXT)
    except OSError as error:
        print(f"minicaffe: {path}: cannot be written: {error.strerror}; name another FOLDER of Python's path", file=sys.stderr)
        return 1
    print(f"{path}: written; import caffe gives minicaffe; delete the file to undo it")
    if folder not in map(os.path.abspath, sys.path):
        print(f"{folder} is not on Python's path; add it to PYTHONPATH", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
