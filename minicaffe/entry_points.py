"""Add-ons: layer types, commands and more that installed packages add to the core (docs/writing_an_addon.md).

A package names in its metadata one object for each of the `GROUPS` in which it adds something, as ``"package.module:OBJECT"``. It
is a dict from names to what they mean; for fields and engines it is a module. The metadata of a group are read when a name is not
found in the core, and never by ``import minicaffe``. The add-ons in ``minicaffe/addons/`` use the same way.
"""

import contextlib
import functools
import importlib
import importlib.util
import logging
import sys
import threading
from collections import namedtuple

from minicaffe.errors import ConfigError

GROUPS = {
    "layers": "layer types",
    "commands": "commands",
    "options": "options of commands",
    "fields": "fields of files",
    "modules": "names of minicaffe",
    "engines": "engines",
}
log = logging.getLogger(__name__)
_local = threading.local()  # `restricted` of a thread, see there


# A name that an add-on adds to a group. `value` is a target ``module:attribute``, for most groups, or another object.
Addition = namedtuple("Addition", "addon package value")


@contextlib.contextmanager
def restricted():
    """Use in this ``with`` block, as for an untrusted file, only add-ons of minicaffe and of packages that are imported already."""
    before = getattr(_local, "restricted", False)
    _local.restricted = True
    try:
        yield
    finally:
        _local.restricted = before


@functools.cache
def entries(group):
    """Return (add-on, package, target) of each entry point of a group; an installation may lack some of ``minicaffe/addons/``."""
    from importlib.metadata import entry_points  # it is slow
    found = []
    for entry in entry_points(group=f"minicaffe.{group}"):
        package = entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]
        if package != "minicaffe" or _is_installed(entry.module):
            found.append((entry.name, package, entry.value))
    return sorted(set(found))


def _is_installed(module):
    """Return whether a module of minicaffe is installed; the folder ``addons`` may be missing."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:     # of a package above it
        return False


@functools.cache
def _load(addon, package, target):
    """Return the object of an entry point; None, and one line in the log, if its import fails."""
    try:
        return import_target(target)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("add-on '%s' of package %s is left out: %s fails: %s", addon, package, target, text)
        return None


def import_target(target):
    """Import ``module`` or ``module:attribute`` and return it."""
    module, _, attribute = target.partition(":")
    made = importlib.import_module(module)
    return getattr(made, attribute) if attribute else made


def objects(group):
    """Return (add-on, package, object) for each add-on of a group that may be used now and can be imported."""
    found = []
    for addon, package, target in entries(group):
        named = package == "minicaffe" or target.partition(":")[0].partition(".")[0] in sys.modules
        if named or not getattr(_local, "restricted", False):
            if (made := _load(addon, package, target)) is not None:
                found.append((addon, package, made))
    return found


def additions(group):
    """Return the names of a group as a dict from name to a list of `Addition`: several, if several add-ons have the name."""
    found = {}
    for addon, package, names in objects(group):
        for name, value in names.items():
            found.setdefault(name, []).append(Addition(addon, package, value))
    return dict(sorted(found.items()))


def find(group, name):
    """Return the `Addition` of a name in a group, None if no add-on has it.

    Raises
    ------
    ConfigError
        If several add-ons have it.
    """
    return only(additions(group).get(name, ()), group, name)


def only(found, group, name):
    """Return the one `Addition` of a list, None if it is empty. Raises ConfigError, which names the packages, for several."""
    if len(found) > 1:
        who = " and ".join(f"'{each.addon}' of package {each.package}" for each in found)
        raise ConfigError(f"'{name}' is among the {GROUPS[group]} of two add-ons, {who}; uninstall one of them")
    return found[0] if found else None


def option_modules(command):
    """Return the modules of add-ons that add options to a command of the core: `PARAMS`, and functions that the command calls."""
    return [import_target(each.value) for each in additions("options").get(command, ())]


def installed(group):
    """Return the names of the add-ons of a group, for errors about a name that none has."""
    return ", ".join(dict.fromkeys(addon for addon, _, _ in entries(group))) or "none"
