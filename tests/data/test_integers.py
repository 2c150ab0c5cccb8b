"""Integers in text files: a label is the number that the file says, or an error."""

import pytest

from minicaffe.data.numbers import integer
from minicaffe.errors import DataError


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), ("+3", 3), ("-2147483648", -2147483648), ("2147483647", 2147483647)])
def test_integers(text, value):
    assert integer(text, "label") == value


@pytest.mark.parametrize("text", ["", "2.883", "3.0", "7x", "1e3", "1_000", "0x10", "--2", " 1", "\u00b2", "\u0663", "nan", "cat"])
def test_what_is_no_integer(text):
    with pytest.raises(DataError, match=f"^label '{text}' is not an integer; use one$"):
        integer(text, "label", "use one")


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", "9" * 5000])
def test_what_does_not_fit(text):
    with pytest.raises(DataError, match="^label -?[0-9]{10,80} does not fit into 32 bits$"):
        integer(text, "label")


def test_a_lower_bound():
    assert integer("1", "a height", least=1) == 1
    with pytest.raises(DataError, match="^a height must be at least 1, got 0$"):
        integer("0", "a height", least=1)
