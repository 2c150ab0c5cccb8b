"""``python -m minicaffe.as_caffe script.py arguments``: run an old pycaffe script unchanged; ``import caffe`` gives minicaffe.

``--install`` writes a module caffe.py into the environment, so that ``import caffe`` gives minicaffe in all its programs, also in
processes that they start; ``--remove`` deletes it. MINICAFFE_DEVICE=gpu (or sim) selects the GPU, even if the script never calls
set_mode_gpu(). Without a GPU the CPU computes after set_mode_gpu(). A script in Python 2 is recognized, and not run.
"""

import os
import re
import runpy
import sys

import minicaffe
from minicaffe import alias

USAGE = """usage: python -m minicaffe.as_caffe [--force] script.py [argument ...]
       python -m minicaffe.as_caffe [--force] --install [FOLDER]
       python -m minicaffe.as_caffe --remove [FOLDER]"""
HELP = """--install: write caffe.py into the environment (or FOLDER), so that import caffe gives minicaffe in all its programs
--remove: delete it
--force: even if another caffe is installed"""
PYTHON_2 = "this is Python 2: convert it with 2to3, which is part of Python up to 3.12: 2to3 -w FILE"
# Python 3's messages about syntax of Python 2, and what is in lines that are "invalid syntax"; then names, and print >>file.
SYNTAX_2 = re.compile(r"call to '(print|exec)'|multiple exception types|leading zeros|`|<>|^\s*raise\s+[\w.]+\s*,|"
                      r"\b(\d+|0[xX][0-9a-fA-F]+)[lL]\b|\b[uU][rR]''", re.MULTILINE)
STRINGS = re.compile(r"'(?:\\.|[^'\\])*'?|\"(?:\\.|[^\"\\])*\"?|#.*")      # and comments
NAMES_2 = re.compile(r"name '(xrange|unicode|raw_input|basestring|unichr|long|reduce|reload|file|execfile|cmp)'|"
                     r"attribute '(iteritems|itervalues|iterkeys|has_key)'|>>: 'builtin_function|"
                     r"named '(cPickle|c?StringIO|urllib2|urlparse|ConfigParser|Queue|Tkinter)'")


def main(arguments):
    """Run the script as ``python script.py`` would, or do ``--install`` or ``--remove``; return the exit status."""
    force = arguments[:1] == ["--force"]
    arguments = arguments[1:] if force else arguments
    script = arguments[0] if arguments else None
    if script is None or script in ("-h", "--help"):
        print(USAGE, HELP, sep="\n", file=sys.stdout if script else sys.stderr)
        return 0 if script else 2
    if script in ("--install", "--remove"):
        return write_or_remove(script, arguments[1:], force)
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
        if not isinstance(error, SyntaxError) and NAMES_2.search(str(error)):
            error.add_note(PYTHON_2)
        is_in_file = isinstance(error, SyntaxError) and os.path.isfile(error.filename or "")   # not in text that it parses
        if not is_in_file or not SYNTAX_2.search(error.msg + "\n" + STRINGS.sub("''", error.text or "")):
            raise
        print(f"{error.filename}:{error.lineno}: {PYTHON_2}; Python 3 says: {error.msg}", file=sys.stderr)
        return 1
    return 0


def write_or_remove(option, folders, force):
    """Do what ``--install`` or ``--remove`` says, and return an exit status."""
    force, folders = force or "--force" in folders, [folder for folder in folders if folder != "--force"]
    if len(folders) > 1 or folders and folders[0].startswith("-"):
        print(f"{option}: one folder at most, got {' '.join(folders)}", USAGE, sep="\n", file=sys.stderr)
        return 2
    folder = folders[0] if folders else None
    try:
        if option == "--remove":
            removed = alias.remove_alias(folder)
            print(*(f"{path}: deleted" for path in removed or ()), *(() if removed else ("there is no alias to delete",)), sep="\n")
            return 0
        path = alias.write_alias(folder, force)
    except minicaffe.errors.Error as error:
        print(f"minicaffe: {error}", file=sys.stderr)
        return 2 if isinstance(error, minicaffe.errors.ConfigError) else 1
    print(f"{path}: written; import caffe gives minicaffe now; python -m minicaffe.as_caffe --remove deletes it")
    folder = os.path.dirname(path)
    if not any(os.path.realpath(entry) == os.path.realpath(folder) for entry in sys.path if entry):
        print(f"{folder} is not on Python's path; add it to PYTHONPATH", file=sys.stderr)
    if (found := alias.other_caffe()):
        print(f"another caffe is installed ({found}); Python imports the one that is first on its path", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
