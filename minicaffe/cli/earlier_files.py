"""Keep the files of an earlier training under numbered names before this training writes files of that name. Caffe overwrites them.

``net_iter_500.caffemodel`` becomes ``net_iter_500.1.caffemodel``; the next time the number is 2. The solver state beside it gets
the same number, so that its model is still found (solver/snapshot.py, `_find_model`).
"""

import itertools
import logging
import os
import re

from minicaffe.proto.atomic import write_error

logger = logging.getLogger("minicaffe.cli")


def keep_files(paths):
    """Rename those of `paths` that are files to numbered names, all with the same number; return the old names and the new ones.

    Raises FileError if a file cannot be renamed.
    """
    found = [path for path in paths if os.path.isfile(path)]    # not a device, such as /dev/stdout
    if not found:
        return [], []
    # A number that no file of `paths` has: a state that is left without its model must not get another training's model.
    number = next(n for n in itertools.count(1) if not any(os.path.lexists(numbered(path, n)) for path in paths))
    kept = [numbered(path, number) for path in found]
    for path, new in zip(found, kept, strict=True):
        try:
            os.rename(path, new)
        except OSError as cause:
            raise write_error(path, cause) from cause
    return found, kept


def numbered(path, number):
    """Return the name under which file `path` of an earlier training is kept, with the number before its extension."""
    extension = next((one for one in (".caffemodel.h5", ".solverstate.h5") if path.endswith(one)), os.path.splitext(path)[1])
    return f"{path[:len(path) - len(extension)]}.{number}{extension}"


def keep_earlier_file(path):
    """Keep the file `path`, if it exists, and log its new name."""
    for old, new in zip(*keep_files([path]), strict=True):
        logger.warning("%s of an earlier run is kept as %s; --force overwrites it", old, new)


def is_same(path, other):
    """Return whether two paths or descriptors are one file; False if one is missing, such as a file that rank 0 just renamed.

    A training refuses to write a file that it reads, and writes no log where its standard error, descriptor 2, already goes.
    """
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def is_same_training(state, prefix):
    """Return whether the solver state `state` is a snapshot with this `prefix`: then a training overwrites its own files."""
    return re.fullmatch(re.escape(os.path.realpath(prefix)) + r"_iter_\d+\.solverstate(\.h5)?", os.path.realpath(state)) is not None


class EarlierSnapshots:
    """A listener of a solver that keeps the snapshots of earlier trainings; a training overwrites its `own` (paths)."""

    own, warned = frozenset(), False

    def before_snapshot(self, solver, *paths):
        """Keep the files at `paths`, which the solver then writes; it calls this. Only the first time logs a warning."""
        found, kept = keep_files([path for path in paths if path not in self.own])
        self.own |= {*paths}
        if found:
            logger.log(logging.INFO if self.warned else logging.WARNING, "%s of an earlier training %s kept as %s%s",
                       " and ".join(found), "is" if len(found) == 1 else "are", " and ".join(kept),
                       "" if self.warned else ", and so is each later one; --force overwrites them")
            self.warned = True
