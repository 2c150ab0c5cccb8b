"""Every error that minicaffe raises on purpose.

An error reads ``file:line: layer 'conv1' (Convolution): convolution_param.num_output: rule and value; remedy``.
The code that finds the error gives the field and the message; the caller that has the place (the reader a file and line,
the net a layer) adds it with :meth:`Error.at` while the error propagates. Caffe ended the process instead (glog CHECK).
"""

import array
import collections
import contextlib
import difflib
import itertools
import operator
import os
import re
import reprlib

LONGEST = 2000  # characters that are shown of a message or name: a hostile file has names of a million
LONGEST_VALUE = 80  # characters that a message repeats of one value
CUT_FIRST = list, tuple, dict, set, frozenset, int, collections.deque, array.array  # what reprlib cuts before it makes the repr
# Control characters, ends of lines, changes of the direction of writing, and surrogates, which no terminal can show.
CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Error(Exception):
    """Base of minicaffe's errors.

    Parameters
    ----------
    message : str
        Rule, value and remedy in one line.
    **place
        Of the attributes; `field` is the path of the wrong field, such as ``convolution_param.num_output`` or ``blobs[0]``.

    Attributes
    ----------
    file, line, column, layer, layer_type, record, field, message
        The parts of the text; None where unknown. Lines and columns count from 1, records from 0; a record may be its number with
        more words, such as ``3 (key '00000003')``.
    """

    file = line = column = layer = layer_type = record = field = None

    def __init__(self, message, **place):
        super().__init__(message)
        self.message = message
        vars(self).update(place)

    def at(self, *, line=None, **place):
        """Fill in the parts of the place that are still unknown; return the error itself, for ``raise error.at(...)``.

        A line counts in its own file: an error that names another file already does not get it.
        """
        if self.line is None and (place.get("file") is None or self.file in (None, place["file"])):
            self.line = line
        vars(self).update({name: value for name, value in place.items() if getattr(self, name) is None})
        return self

    def __str__(self):
        parts = []
        if self.file is not None:
            place = [self.file, self.line, self.column if self.line else None]
            parts.append(":".join(_shortened(str(part)) for part in place if part))
        elif self.line:
            parts.append(f"line {self.line}")
        if self.layer is not None:
            parts.append(f"layer '{_shortened(self.layer)}'" + (f" ({_shortened(self.layer_type)})" if self.layer_type else ""))
        if self.record is not None:
            parts.append(f"record {_shortened(str(self.record))}")
        if self.field is not None:
            parts.append(_shortened(self.field))
        # A compiler's log stays whole.
        return ": ".join([*parts, self.message if isinstance(self, DeviceError) else _shortened(self.message, "\n\t")])


@contextlib.contextmanager
def located(**place):
    """Add a place, as `Error.at` does, to an Error that leaves the ``with`` block, and raise it again.

    Parameters
    ----------
    **place
        As of `Error.at`.
    """
    try:
        yield
    except Error as error:
        error.at(**place)
        raise


@contextlib.contextmanager
def in_field(field, but=()):
    """As `located`, for a field of a layer. The error's place in another file goes into its message: the net adds its own file.

    Errors of the types `but`, a class or a tuple, pass as they are.
    """
    try:
        yield
    except Error as error:
        if isinstance(error, but):
            raise
        if error.file is not None:
            layer, error.layer = error.layer, None
            error.message = str(error)
            error.file = error.line = error.column = error.record = error.field = None
            error.layer = layer
        error.at(field=field)
        raise


class ConfigError(Error, ValueError):
    """A prototxt, option or argument says something that cannot be."""


class ConfigWarning(ConfigError, UserWarning):
    """Something that Caffe accepts silently and that is probably a mistake: a warning in Python, an error on the command line.

    ``warnings.warn(ConfigWarning(...))`` shows or raises it, as the filters of the module warnings say.
    """


class MissingFieldError(ConfigError, AttributeError):
    """A field that a message does not have (pycaffe's NetSpec raises AttributeError there)."""


class ShapeError(Error, ValueError):
    """Shapes that do not fit each other, the layer, or the memory budget."""


class DataError(Error, ValueError):
    """A record, weights file or label whose content is wrong."""


class NotFiniteError(Error, ArithmeticError):
    """Parameters that a training left with NaN or infinity.

    Attributes
    ----------
    remedy : str
        What may help, which the message says too; one of `minicaffe.solver.finite`.
    since : int
        Number of iterations after which all values were still finite.
    """

    def __init__(self, message, *, remedy=None, since=None, **place):
        super().__init__(f"{message}; {remedy}", **place)
        self.remedy = remedy
        self.since = since


class FileError(Error, RuntimeError):
    """A file that cannot be opened, read whole or written (pycaffe raises RuntimeError there too)."""


class MissingNameError(Error, KeyError):
    """A name that the workspace, net or registry does not hold."""

    __str__ = Error.__str__  # KeyError would show the message in quotes


class DependencyError(Error, ImportError):
    """An optional package is needed and not installed; the message holds the install command."""


class WrongTypeError(Error, TypeError):
    """An object or slot of another type than the one asked for."""


class BusyError(Error, RuntimeError):
    """Another thread computes with what this one would change (docs/threads.md)."""


class RecycledError(Error, RuntimeError):
    """A blob was read whose memory was reused by the net's plan, or was freed by `Net.release`."""


class PointerError(Error, ValueError):
    """A block that was never given out, is free already, or was written beyond its end."""


class OutOfMemoryError(Error, MemoryError):
    """No memory for a block; the message holds bytes asked, live and limit."""


class DeviceError(Error, RuntimeError):
    """A call to a CUDA library failed, or a kernel did; the message names the call, its arguments and the remedy.

    Attributes
    ----------
    code : str
        The library's name for it, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``; empty where it has none.
    """

    def __init__(self, message, *, code="", **place):
        super().__init__(message, **place)
        self.code = code


class WrongDeviceError(DeviceError):
    """Memory of a GPU that the current one may not use; the message names memory, both GPUs and the remedy."""


def shown(value):
    """Return a value as a message repeats it: a str in quotes, of anything else its repr, cut to `LONGEST_VALUE` characters.

    Parameters
    ----------
    value : object
        A long str or bytes, list, tuple, dict, deque or array is cut before its repr is made, which would take time and memory.

    Returns
    -------
    str
        One line.
    """
    try:
        if isinstance(value, str | bytes | bytearray | memoryview):
            kind = "" if isinstance(value, str) else f" of {type(value).__name__}"
            value = value.cast("B") if isinstance(value, memoryview) else value
            head = value[:LONGEST_VALUE]
            text = repr(bytes(head) if kind else head)
            return text if len(value) <= LONGEST_VALUE else f"{text}... ({len(value)} {'bytes' if kind else 'characters'}{kind})"
        text = reprlib.repr(value) if isinstance(value, CUT_FIRST) else repr(value)
    except Exception:    # a class of the user may fail at that; its name is known at least
        text = f"a {type(value).__name__}"
    line = _escaped(re.sub(r"\s*\n\s*", " ", text[:LONGEST_VALUE].strip()))
    return line if len(text) <= LONGEST_VALUE else f"{line}... (a {type(value).__name__})"


def check_type(value, kinds, what, wanted, **place):
    """Return an argument of a public function; raise `WrongTypeError` unless it has one of the types `kinds`. A bool is no int.

    Parameters
    ----------
    value : object
    kinds : type or tuple of type
    what : str
        Names the argument in the message: ``"name"``.
    wanted : str
        What it should be, as the message says it: ``"the name of a blob"``.
    **place
        As of `Error`.

    Returns
    -------
    object
        The value.
    """
    if not isinstance(value, kinds) or isinstance(value, bool) and kinds is not bool:
        raise WrongTypeError(f"{what} must be {wanted}, got {shown(value)} ({type(value).__name__})", **place)
    return value


def int_of(value, what, **place):
    """Return an argument as an int, also if it is an integer of NumPy; `what` and `place` as of `check_type`.

    Raises WrongTypeError if it is something else; a bool is no int, nor is a float without a fraction.
    """
    if type(value) is int:
        return value
    try:
        return operator.index(check_type(value, object, what, "an int", **place))
    except TypeError:
        raise WrongTypeError(f"{what} must be an int, got {shown(value)} ({type(value).__name__})", **place) from None


def float_of(value, what, **place):
    """Return an argument that is a number as a float, as `int_of` does; an array without axes is a number, too."""
    try:
        return float(check_type(value, object, what, "a number", **place) + 0)
    except (TypeError, ValueError, OverflowError):
        raise WrongTypeError(f"{what} must be a number, got {shown(value)} ({type(value).__name__})", **place) from None


def switched_on(variable, default=False):
    """Return whether an environment variable is 1, or `default` where it is empty or not set.

    Raises
    ------
    ConfigError
        If it is neither 0 nor 1.
    """
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise ConfigError(f"must be 0 or 1, got {shown(value)}", field=variable)
    return value == "1" if value else default


def check_callable(value, what, **place):
    """Return an argument; raise `WrongTypeError` unless it can be called. `what` and `place` as of `check_type`."""
    if not callable(value):
        raise WrongTypeError(f"{what} must be callable, got {shown(value)} ({type(value).__name__})", **place)
    return value


def check_message(value, kind, what, **place):
    """Return an argument; raise `WrongTypeError` unless it is a message of the type `kind`.

    `kind` is the name of the type in caffe.proto, such as ``"BlobProto"``; messages of another build of that file are taken, too.
    Other arguments as of `check_type`.
    """
    if isinstance(value, type) or getattr(getattr(value, "DESCRIPTOR", None), "name", None) != kind:
        raise WrongTypeError(f"{what} must be a {kind} message, got {shown(value)} ({type(value).__name__})", **place)
    return value


def names_of(names, what, **place):
    """Return an argument as a list of str, empty for None; `what` and `place` as of `check_type`.

    Raises WrongTypeError for a str, whose letters would be the names, and for what is no list of str.
    """
    if isinstance(names, str | bytes) or not hasattr(names, "__iter__") and names is not None:
        raise WrongTypeError(f"{what} must be a list of names, got {shown(names)}; for a single name give a list of it", **place)
    return [check_type(name, str, f"each of {what}", "a str", **place) for name in names or ()]


def _escaped(text, keep=""):
    """Return a text with its control characters, which may change a terminal, as escapes; those in `keep` stay."""
    return CONTROL.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


def _shortened(text, keep=""):
    """Return a text as `_escaped` does, without its middle if it has more than `LONGEST` characters."""
    left_out = len(text) - LONGEST
    half = LONGEST // 2
    return _escaped(text if left_out <= 0 else f"{text[:half]} ... ({left_out} characters are left out) ... {text[-half:]}", keep)


def close_matches(name, known):
    """Return ``"; did you mean 'a' or 'b'?"``, to end a message, or ``""`` if no str in `known` is near `name`; case is ignored.

    Comparing takes time in proportion to all lengths: nothing is near a name of more than 100 characters, and of long lists the
    names first met are looked at. Nothing is near a `name` that is no str.
    """
    if not isinstance(name, str) or len(name) > 100:
        return ""
    by_lower = {k.lower(): k for k in itertools.islice(known, 2000) if len(k) <= 100}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return "; did you mean " + " or ".join(f"'{by_lower[n]}'" for n in near) + "?" if near else ""
