"""Numbers in text files of users: integers, and labels that are real numbers, `label_size` of ImageData and Data.

In a database real labels are the `float_data` of a Datum that has its picture in `data`. Caffe has no `label_size`: it reads such a
record as a picture with label 0, since it uses `float_data` only where `data` is empty.
"""

import math
import re

import numpy as np

from minicaffe.errors import LONGEST_VALUE, DataError, shown

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NUMBER_AFTER_SPACE = re.compile(r"[^,\s]\s+[-+.0-9eE]+\s*$")     # at the end of a line
INTEGER = re.compile(r"[+-]?[0-9]+")


def integer(text, what, remedy="", least=-(1 << 31)):
    """Return the integer of a text in decimal digits, from `least` to 2^31 - 1; raise DataError for other text, such as ``1_000``.

    `what` is the number's name in errors, such as ``"label"``; `remedy` ends the error for text that is no integer.
    """
    if not INTEGER.fullmatch(text):
        raise DataError(f"{what} {shown(text)} is not an integer{remedy and f'; {remedy}'}")
    value = int(text[:LONGEST_VALUE])
    if not -(1 << 31) <= value < 1 << 31:
        raise DataError(f"{what} {text[:LONGEST_VALUE]} does not fit into 32 bits")
    if value < least:
        raise DataError(f"{what} must be at least {least}, got {text[:LONGEST_VALUE]}")
    return value


def real(text):
    """Return the number of a text as a float.

    Raises DataError for other text, such as ``nan``; if it is too large or small for a float32, or an integer that is rounded.
    """
    if not NUMBER.fullmatch(text):
        raise DataError(f"label '{text[:80]}' is not a number")
    value = float(text)
    with np.errstate(over="ignore"):
        kept = float(np.float32(value))
    if not math.isfinite(kept) or (kept == 0) != (not re.search("[1-9]", re.split("[eE]", text)[0])):
        raise DataError(f"label {text[:80]} does not fit into a float32, of magnitude 1e-45 to 3.4e38; scale the labels")
    if INTEGER.fullmatch(text) and kept != int(text[:80]):
        raise DataError(f"label {text} becomes {kept:.0f} in a float32, exact up to 2^24; subtract an offset from all labels")
    return value


def label_fields(label):
    """Return the fields of a Datum that hold a label, an int or a sequence of real numbers, as keywords of the message."""
    return {"label": label} if np.ndim(label) == 0 else {"float_data": label}
