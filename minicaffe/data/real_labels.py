"""Labels that are real numbers, one or several for a picture: `label_size` of ImageData and Data, which Caffe does not have.

In a database they are the `float_data` of a Datum that has its picture in `data`. Caffe reads such a record as a picture with
label 0: it uses `float_data` only where `data` is empty. Its parser refuses a net with `label_size`.
"""

import math
import re

import numpy as np

from minicaffe.errors import DataError

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
INTEGER = re.compile(r"[+-]?[0-9]+")


def real(text):
    """Return the number of a text as a float.

    Raises
    ------
    DataError
        For other text, such as ``nan`` or ``1_000``; if it is too large or small for a float32, or an integer that is rounded.
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
    """Return the fields of a Datum that hold a label: an int, or a sequence of real numbers."""
    return {"label": label} if np.ndim(label) == 0 else {"float_data": label}
