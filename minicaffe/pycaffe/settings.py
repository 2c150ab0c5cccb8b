"""The functions of pycaffe's module: where nets compute, random numbers, parallel training, the log; and its Timer."""

import logging
import os
import sys
import time
import warnings

from minicaffe import cuda
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ConfigWarning, Error, int_of, shown
from minicaffe.layer import layer_types

__all__ = [
    "Timer", "init_log", "layer_type_list", "log", "set_device", "set_mode_cpu", "set_mode_gpu", "set_multiprocess",
    "set_random_seed", "set_solver_count", "set_solver_rank", "solver_count", "solver_rank",
]
log_ = logging.getLogger("minicaffe")
LEVELS = logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL     # of glog's severities 0 to 3
_reported = []      # the call of `set_mode_gpu` or `set_device` that was reported; the report comes once
ISAS = "baseline", "avx2", "avx512"                    # instruction sets for the loops of the CPU (device/apply.hpp)


class Timer:
    """A stop watch: `start`, `stop`, and `ms`, the milliseconds between them, the work of the GPU included."""

    def __init__(self):
        self._start = self._elapsed = None

    def start(self):
        """Start from zero."""
        self._wait()
        self._start, self._elapsed = time.perf_counter(), None

    def stop(self):
        """Stop; later calls change nothing."""
        if self._start is not None and self._elapsed is None:
            self._wait()
            self._elapsed = time.perf_counter() - self._start

    @property
    def ms(self):
        """Milliseconds from start to stop; stops if running, 0 if never started."""
        if self._start is None:
            log_.warning("Timer has never been run before reading time.")
            return 0.0
        self.stop()
        return self._elapsed * 1000

    def _wait(self):
        """Wait for the GPU, so that its work is measured too."""
        if caffe.mode == "gpu":
            cuda.current().synchronize()


def set_mode_cpu():
    """Compute on the CPU, which is the default."""
    if caffe.mode != "cpu":
        cuda.use_cpu()


def set_mode_gpu():
    """Compute on the GPU that `set_device` chose, by default the first; with MINICAFFE_DEVICE=sim on the simulated one.

    Different from Caffe: threads started later compute there too. The CPU computes, with one warning, if MINICAFFE_DEVICE is cpu,
    or for a program that imports caffe (minicaffe/as_caffe.py) on a machine without a GPU.

    Raises
    ------
    DependencyError, DeviceError
        If there is no CUDA driver, or the GPU cannot be used.
    """
    cuda.use_gpu() if _may_use_gpu("set_mode_gpu()") else set_mode_cpu()


def set_device(device_id):
    """Choose the GPU of GPU mode, at once if that is the present mode.

    Raises
    ------
    DependencyError, DeviceError
        If there is no CUDA driver or no such GPU. Where `set_mode_gpu` computes on the CPU, the number is ignored.
    """
    if _may_use_gpu(f"set_device({device_id})"):
        cuda.select(device_id)


def _may_use_gpu(call):
    """Return whether `call` may choose a GPU; False, which is logged once, where the CPU computes instead (`set_mode_gpu`)."""
    device = os.environ.get("MINICAFFE_DEVICE")
    why = "MINICAFFE_DEVICE is cpu" if device == "cpu" else cuda.missing()    # an Error; None if there is a GPU
    if isinstance(why, Error) and (device or sys.modules.get("caffe") is not sys.modules["minicaffe"]):
        why.message += "; with MINICAFFE_DEVICE=cpu set_mode_gpu() computes on the CPU"
        raise why
    if why and not _reported:
        _reported.append(call)
        log_.warning("%s: %s; the CPU computes%s", call, why, "" if device else ". MINICAFFE_DEVICE=gpu makes this an error")
    return not why


def set_random_seed(seed):
    """Seed this thread's random numbers with an integer >= 0."""
    caffe.seed(seed)


def solver_count():
    """Return how many solvers train together."""
    return caffe.solver_count


def set_solver_count(count):
    """Set how many solvers train together; a Data layer in phase TRAIN reads every count-th record."""
    caffe.solver_count = _at_least(1, count, "solver_count")


def solver_rank():
    """Return which of the `solver_count` solvers this process is."""
    return caffe.solver_rank


def set_solver_rank(rank):
    """Set which of the `solver_count` solvers this process is, from 0."""
    caffe.solver_rank = _at_least(0, rank, "solver_rank")


def _at_least(least, value, field):
    """Return the integer that a script sets as solver_count or solver_rank; raise ConfigError if it is below `least`."""
    value = int_of(value, field)
    if value < least:
        raise ConfigError(f"must be at least {least}, got {shown(value)}", field=field)
    return value


def set_multiprocess(flag):
    """Set whether the solvers of a parallel training run in separate processes."""
    caffe.multiprocess = bool(flag)


def layer_type_list():
    """Return the names of all layer types, sorted."""
    return list(layer_types())


def level_of_environment():
    """Return the level of Python's logging that ``GLOG_minloglevel`` names, or None where it is not set.

    0 shows all, 1 hides lines of information, 2 hides warnings, too, 3 and more hide errors, too. Anything else is reported in one
    line and ignored.
    """
    text = os.environ.get("GLOG_minloglevel", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        log_.warning("GLOG_minloglevel must be a number, 0 to 3, got %r; it is ignored", text)
        return None
    return LEVELS[min(int(text), 3)]


def init_log(level=None, to_stderr=True):
    """Show log messages from severity `level` (0 info, 1 warning, 2 error, 3 fatal) on, on stderr.

    Without it, Python's logging decides: warnings and errors only. Without `level` it is that of ``GLOG_minloglevel``, or else 0.
    """
    if level is None:
        level = LEVELS.index(level_of_environment() or logging.INFO)
    level = int_of(level, "level")
    if not 0 <= level <= 3:
        raise ConfigError(f"must be 0 to 3, got {shown(level)}", field="level")
    log_.setLevel(LEVELS[level])
    if to_stderr and not log_.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname).1s%(asctime)s %(process)d %(filename)s:%(lineno)d] %(message)s",
                                               "%m%d %H:%M:%S"))
        log_.addHandler(handler)


def follow_environment():
    """Apply ``GLOG_minloglevel``, as glog does when Caffe is loaded, and report a wrong ``MINICAFFE_ISA``.

    ``import minicaffe`` calls it. The loops read ``MINICAFFE_ISA`` where no exception can be raised, and take the best instruction
    set for a name that they do not know.
    """
    isa = os.environ.get("MINICAFFE_ISA", "")
    if isa not in ("", *ISAS):
        log_.warning("MINICAFFE_ISA must be %s, got %r; it is ignored", ", ".join(ISAS), isa[:40])
    level = level_of_environment()
    if level == logging.INFO:
        init_log(0)
    elif level is not None:
        log_.setLevel(level)
        if level > logging.WARNING:     # appended: the program's own filters come first
            warnings.filterwarnings("ignore", category=ConfigWarning, append=True)


def log(message):
    """Log one line at severity info."""
    log_.info(message)
