"""Modules by the names that users know: ``minicaffe.io`` is pycaffe/io.py, and on request ``import caffe`` gives minicaffe.

``python -m minicaffe.as_caffe script.py`` does so for a script that must not be changed, and ``python -m minicaffe.as_caffe
--install`` for all programs of an environment: it writes a module ``caffe.py`` there.
"""

import functools
import importlib.machinery
import logging
import os
import site
import sys
import sysconfig

from minicaffe.errors import ConfigError, FileError
from minicaffe.proto.atomic import replacing
from minicaffe.public_modules import name_modules

log = logging.getLogger(__name__)
MARK = '"""minicaffe under the name caffe'
ALIAS = MARK + """; written by: python -m minicaffe.as_caffe --install; deleted by --remove.\"\"\"

try:
    from minicaffe.alias import become_caffe
except ModuleNotFoundError as error:
    if error.name != "minicaffe":
        raise
    raise ImportError(f"{__file__} gives minicaffe under the name caffe, and minicaffe is not on Python's path: install it "
                      "again, start Python without -S, or delete this file") from None
become_caffe(__file__)
"""


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
    ours = sys.modules["minicaffe"]
    present = sys.modules.get("caffe", ours)
    found = other_caffe() if present is ours else getattr(present, "__file__", None)
    if found and not force and not ("caffe" in sys.modules and present is ours):
        raise ConfigError(f"another caffe is there ({found}); install_as_caffe(force=True) hides it from this process")
    _replace_caffe_modules()


def _replace_caffe_modules():
    for name in [name for name in sys.modules if name == "caffe" or name.startswith("caffe.")]:
        del sys.modules[name]
    sys.modules["caffe"] = sys.modules["minicaffe"]
    name_modules("caffe")


def other_caffe(paths=None):
    """Return the file of a caffe besides the alias that could be imported from `paths`, or None.

    A folder of that name without ``__init__.py``, as of Caffe's sources, is none.
    """
    for path in sys.path if paths is None else paths:
        spec = importlib.machinery.PathFinder.find_spec("caffe", [path])
        if spec is not None and spec.has_location and not is_alias(spec.origin):
            return spec.origin
    return None


def is_alias(path):
    """Return whether a file is an alias that `write_alias` wrote."""
    if not os.path.isfile(path):    # to open a pipe may block
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(len(MARK)) == MARK
    except OSError:
        return False


def become_caffe(file):
    """Make ``import caffe`` of the alias `file`, which calls this, give minicaffe; warn if that hides another caffe."""
    folder = os.path.realpath(os.path.dirname(file))
    found = other_caffe([path for path in sys.path if os.path.realpath(path or ".") != folder])
    if found:
        log.warning("import caffe gives minicaffe, by %s, and hides another caffe (%s); to have that one: python -m "
                    "minicaffe.as_caffe --remove", file, found)
    # A thread that waits for this import gets the alias itself, not what takes its place.
    present = sys.modules.get("caffe")
    if getattr(present, "__file__", None) == file:
        present.__getattr__ = functools.partial(getattr, sys.modules["minicaffe"])
    _replace_caffe_modules()


def alias_folder():
    """Return the folder for the alias: that of the environment's packages, or the user's own where that cannot be written."""
    folder = sysconfig.get_path("purelib")
    if os.access(folder, os.W_OK) or not site.ENABLE_USER_SITE:
        return folder
    return site.getusersitepackages()


def write_alias(folder=None, force=False):
    """Write the module ``caffe.py``, by which every program of this environment that imports caffe gets minicaffe.

    Parameters
    ----------
    folder : str, optional
        Where; by default `alias_folder`.
    force : bool
        Write it where another caffe is installed elsewhere, too. Which of them Python finds is then a matter of ``sys.path``.

    Returns
    -------
    str
        The path of the module.

    Raises
    ------
    ConfigError
        If there is another caffe: in `folder` in any case, elsewhere without `force`.
    FileError
        If the file cannot be written.
    """
    folder = os.path.abspath(folder or alias_folder())
    path = os.path.join(folder, "caffe.py")
    beside = other_caffe([folder])
    if beside or os.path.exists(path) and not is_alias(path):
        raise ConfigError(f"another caffe is installed there ({beside or path}) and is not overwritten; uninstall it first")
    found = other_caffe()
    if found and not force:
        raise ConfigError(f"another caffe is installed ({found}); uninstall it, or give --force and write the alias besides")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder cannot be made: {error.strerror}", file=folder) from None
    with replacing(path) as file:
        file.write(ALIAS.encode())
    return path


def remove_alias(folder=None):
    """Delete the alias that `write_alias` wrote, and return the paths that were deleted; files of others stay.

    Parameters
    ----------
    folder : str, optional
        Where; by default the folders of ``sys.path``.
    """
    paths = [os.path.join(path or ".", "caffe.py") for path in ([folder] if folder else dict.fromkeys(sys.path))]
    removed = [path for path in paths if is_alias(path)]
    for path in removed:
        try:
            os.remove(path)
        except OSError as error:
            raise FileError(f"cannot be deleted: {error.strerror}", file=path) from None
    return removed
