"""The log on standard error: Caffe's words behind glog's prefix, so that parsers of Caffe's log read it.

On a terminal only warnings are shown, unless --verbose is given: the live display replaces the log. The lines about building a net
and compiling kernels, some ten a layer, are shown with --verbose only.
"""

import contextlib
import logging
import os
import sys
import threading
import time

from minicaffe.pycaffe.settings import level_of_environment

DETAILS = "minicaffe.net.build", "minicaffe.cuda.compile"    # loggers
LETTERS = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


class GlogFormatter(logging.Formatter):
    """``I1121 03:31:07.123456 12345 solver.py:237] message``: severity, month and day, time, thread, place."""

    def format(self, record):       # the text of a line, for logging's handlers
        moment = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        return (f"{LETTERS.get(record.levelno, 'I')}{moment}.{micros:06d} {threading.get_native_id():5d} "
                f"{record.filename}:{record.lineno}] {super().format(record)}")


class StderrHandler(logging.Handler):
    """Writes to the present ``sys.stderr``, which the live display replaces."""

    def emit(self, record):         # logging calls it for each record
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except OSError:  # the terminal was hung up or the disk is full: a training continues without its log
            pass


class TrainingFile(logging.FileHandler):
    """Writes lines to a file. If the disk is full, one warning says that no more `what` is written, and `failed` is true.

    logging calls `handleError` for an exception during a write.
    """

    failed = False

    def __init__(self, path, append, what):
        # A name of a file may hold bytes that are not UTF-8.
        super().__init__(path, "a" if append else "w", encoding="utf-8", errors="backslashreplace")
        self.path, self.what = path, what

    def handleError(self, record):
        cause = sys.exc_info()[1]
        if not isinstance(cause, OSError):
            super().handleError(record)
            return
        self.failed = True
        self.close()
        logging.getLogger("minicaffe.cli").warning("%s: cannot be written: %s; no more %s, the training continues", self.path,
                                                   cause.strerror, self.what)

    def close(self):
        """Close the file, and remove it from the log; a second call does nothing."""
        logging.getLogger("minicaffe").removeHandler(self)
        with contextlib.suppress(OSError):  # buffered text that cannot be written; `handleError` reports it
            super().close()


def add_log_file(path, append):
    """Write the whole log of a training also to the file `path`, whatever standard error shows; return the TrainingFile to close.

    If the file cannot be opened, warn and return None.
    """
    logger = logging.getLogger("minicaffe")
    try:
        handler = TrainingFile(path, append, "log")
    except OSError as cause:
        logger.warning("%s: cannot be written: %s; the training leaves no log", path, cause.strerror)
        return None
    handler.setFormatter(GlogFormatter())
    for shown in logger.handlers:       # standard error keeps its level, as the logger's becomes lower
        shown.setLevel(logger.level)
    logger.addHandler(handler)
    logger.setLevel(min(logger.level, logging.INFO))
    return handler


def is_terminal(stream):
    """Return whether `stream` is a terminal that can move its cursor, as the live display and bars need."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def start(quiet=False, verbose=False, prefix=""):
    """Write the log of minicaffe to standard error from now on, with a prefix such as ``[rank 1] ``; a later call replaces this.

    ``GLOG_minloglevel`` still hides lines here, but not in a file of `add_log_file`.
    """
    logger = logging.getLogger("minicaffe")
    handler = StderrHandler()
    if not verbose:
        handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name not in DETAILS)
    show_all = verbose or not is_terminal(sys.stderr)
    handler.setFormatter(GlogFormatter() if show_all and not prefix else logging.Formatter(prefix + "%(message)s"))
    logger.handlers[:] = [handler]
    level = logging.WARNING if quiet or not show_all else logging.DEBUG if verbose else logging.INFO
    if "GLOG_minloglevel" in os.environ:
        level = max(level, level_of_environment() or level)
    logger.setLevel(level)
    logger.propagate = False
