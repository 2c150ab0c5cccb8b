"""The log on standard error: Caffe's words behind glog's prefix, so that parsers of Caffe's log read it.

On a terminal only warnings are shown, unless --verbose is given: the live display replaces the log. The lines about building a net
and compiling kernels, some ten a layer, are shown with --verbose only.
"""

import contextlib
import logging
import os
import shutil
import sys
import textwrap
import threading
import time

from minicaffe.pycaffe.settings import level_of_environment

DETAILS = "minicaffe.net.build", "minicaffe.cuda.compile"    # loggers
LETTERS = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


class GlogFormatter(logging.Formatter):
    """``I1121 03:31:07.123456 12345 solver.py:237] message``: severity, month and day, time, thread, place."""

    def format(self, record):
        moment = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        return (f"{LETTERS.get(record.levelno, 'I')}{moment}.{micros:06d} {threading.get_native_id():5d} "
                f"{record.filename}:{record.lineno}] {super().format(record)}")


class StderrHandler(logging.Handler):
    """Writes to the present ``sys.stderr``, which the live display replaces. Without `details`, of `DETAILS` only warnings."""

    def __init__(self, details=True):
        super().__init__()
        if not details:
            self.addFilter(lambda record: record.levelno >= logging.WARNING or record.name not in DETAILS)

    def emit(self, record):
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except OSError:  # the terminal was hung up or the disk is full: a training continues without its log
            pass


class LineWriter:
    """A text file that writes each line at once. If the disk is full, one warning says that no more `what` are written.

    With `append` the lines are added to those in the file. Raises OSError if the file cannot be opened.
    """

    def __init__(self, path, what, append=False):
        self.path, self.what = path, what
        # A name of a file may hold bytes that are not UTF-8.
        self.file = open(path, "a" if append else "w", encoding="utf-8", errors="backslashreplace")

    def write(self, line):
        """Write a line; nothing once the file is closed."""
        if self.file is None:
            return
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError as cause:
            self.close()
            logging.getLogger("minicaffe.cli").warning("%s: cannot be written: %s; no more %s, the training continues", self.path,
                                                       cause.strerror, self.what)

    def close(self):
        """Close the file; a second call does nothing."""
        file, self.file = self.file, None
        with contextlib.suppress(OSError):  # buffered text that cannot be written; `write` reports it
            if file is not None:
                file.close()


def add_log_file(path, append):
    """Write the whole log also to the file `path`, whatever standard error shows; return the handler for `remove_log_file`.

    If the file cannot be opened, warn and return None.
    """
    logger = logging.getLogger("minicaffe")
    try:
        handler = logging.StreamHandler(LineWriter(path, "log", append))
    except OSError as cause:
        logger.warning("%s: cannot be written: %s; the training leaves no log", path, cause.strerror)
        return None
    handler.terminator = ""     # a LineWriter ends the line
    handler.setFormatter(GlogFormatter())
    for shown in logger.handlers:
        shown.setLevel(logger.level)
    logger.addHandler(handler)
    logger.setLevel(min(logger.level, logging.INFO))
    return handler


def writes_to(path):
    """Whether standard error is the file `path` already, as with ``2> net.log``."""
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), os.stat(path))
    except (OSError, ValueError, AttributeError):   # no such file, or a stream that is none
        return False


def remove_log_file(handler):
    """Close the file of `add_log_file`; a second call does nothing."""
    logging.getLogger("minicaffe").removeHandler(handler)
    handler.stream.close()


def is_terminal(stream):
    """Whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def wrapped(text, stream):
    """Return text with lines that fit into `stream` if it is a terminal, broken between words.

    A line with a command stays whole, so that it can be copied.
    """
    if not is_terminal(stream):
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width or "minicaffe " in line else
                     textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
                     for line in text.split("\n"))


def start(quiet=False, verbose=False, prefix=""):
    """Write the log of minicaffe to standard error from now on, with a prefix; a later call replaces this choice.

    ``GLOG_minloglevel`` still hides lines here, but not in a file of `add_log_file`.
    """
    logger = logging.getLogger("minicaffe")
    handler = StderrHandler(details=verbose)
    show_all = verbose or not is_terminal(sys.stderr)
    handler.setFormatter(GlogFormatter() if show_all and not prefix else logging.Formatter(prefix + "%(message)s"))
    logger.handlers[:] = [handler]
    level = logging.WARNING if quiet or not show_all else logging.DEBUG if verbose else logging.INFO
    logger.setLevel(max(level, level_of_environment() or level))
    logger.propagate = False
