"""Integers in text files of users: labels, sizes, counts."""

import re

from minicaffe.errors import LONGEST_VALUE, DataError, shown


def integer(text, what, remedy="", least=-(1 << 31)):
    """Return the integer of a text in decimal digits.

    Parameters
    ----------
    text : str
    what : str
        Names the number in errors: ``"label"``.
    remedy : str
        What to do where it is no integer.
    least : int
        The smallest that is allowed; the largest is that of 32 bits.

    Raises
    ------
    DataError
        For other text, such as ``2.5``, ``7x`` or ``1_000``, or a number too large or small.
    """
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise DataError(f"{what} {shown(text)} is not an integer{remedy and f'; {remedy}'}")
    value = int(text[:LONGEST_VALUE])
    if not -(1 << 31) <= value < 1 << 31:
        raise DataError(f"{what} {text[:LONGEST_VALUE]} does not fit into 32 bits")
    if value < least:
        raise DataError(f"{what} must be at least {least}, got {text[:LONGEST_VALUE]}")
    return value
