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
from importlib.machinery import PathFinder
from pathlib import Path

from minicaffe.errors import ConfigError

USAGE = """usage: python -m minicaffe.as_caffe [--force] script.py [argument ...]
       python -m minicaffe.as_caffe --install [FOLDER]"""
HELP = """--install: write caffe.py into the environment (or FOLDER), so that import caffe gives minicaffe in all its programs
--force: run the script even if another caffe is installed"""
# Messages of errors that Python 3 raises for code in Python 2.
PYTHON_2 = re.compile(r"call to '(print|exec)'|multiple exception types|leading zeros|"
                      r"name '(xrange|unicode|raw_input|basestring|unichr|long|reduce|reload|file|execfile|cmp)'|"
                      r"attribute '(iteritems|itervalues|iterkeys|has_key)'|>>: 'builtin_function|"
                      r"named '(cPickle|c?StringIO|urllib2|urlparse|ConfigParser|Queue|Tkinter)'")
TEXT = '''"""minicaffe under the name caffe, written by: python -m minicaffe.as_caffe --install"""

import minicaffe

minicaffe.install_as_caffe(force=True)


def __getattr__(name):      # a thread that waits for this import gets this module
    return getattr(minicaffe, name)
'''


def install_as_caffe(force=False):
    """Make ``import caffe``, ``from caffe import layers as L, params as P``, ``from caffe.proto import caffe_pb2`` give minicaffe.

    Parameters
    ----------
    force : bool
        Do so where another caffe is installed or imported too. What imported that one before keeps it.

    Raises
    ------
    ConfigError
        If there is another caffe, without `force`.
    """
    ours, present = sys.modules["minicaffe"], sys.modules.get("caffe")
    found = other_caffe(sys.path) if present is None else getattr(present, "__file__", None)
    if found and not force and present is not ours:
        raise ConfigError(f"another caffe is there ({found}); install_as_caffe(force=True) hides it from this process")
    for name in [name for name in sys.modules if name == "caffe" or name.startswith("caffe.")]:
        del sys.modules[name]
    sys.modules["caffe"] = ours
    ours.public_modules.name_modules("caffe", "minicaffe")


def other_caffe(paths):
    """Return the file of another caffe than the alias (`is_alias`) in `paths`, folders as in ``sys.path``, or None.

    A folder of that name without ``__init__.py``, as of Caffe's sources, is none.
    """
    for path in paths:
        spec = PathFinder.find_spec("caffe", [path])
        if spec is not None and spec.has_location and not is_alias(Path(spec.origin)):
            return spec.origin
    return None


def is_alias(path):
    """Return whether a file is the module that ``python -m minicaffe.as_caffe --install`` writes."""
    return path.is_file() and path.read_bytes() == TEXT.encode()


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
        install_as_caffe(force)
    except ConfigError as error:
        print(f"minicaffe: {error}; to override it, run: python -m minicaffe.as_caffe --force {script}", file=sys.stderr)
        return 2
    if os.environ.get("MINICAFFE_DEVICE") not in (None, "", "cpu"):
        sys.modules["minicaffe"].set_mode_gpu()
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
    other = other_caffe([*sys.path, folder]) or (path.exists() and not is_alias(path) and path)
    if other:
        print(f"minicaffe: another caffe is installed ({other}); uninstall it first", file=sys.stderr)
        return 2
    try:
        os.makedirs(folder, exist_ok=True)
        path.write_text(TEXT)
    except OSError as error:
        print(f"minicaffe: {path}: cannot be written: {error.strerror}; name another FOLDER of Python's path", file=sys.stderr)
        return 1
    print(f"{path}: written; import caffe gives minicaffe; delete the file to undo it")
    if folder not in map(os.path.abspath, sys.path):
        print(f"{folder} is not on Python's path; add it to PYTHONPATH", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
