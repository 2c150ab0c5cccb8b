"""Scan protobuf's wire format without building a message.

A caffemodel has a few hundred layers and hundreds of megabytes of numbers, and a batch hundreds of records. protobuf would copy
all of their bytes three times; this scan returns their places, so NumPy reads them in the mapped file. The bytes are not
trusted: every length is compared with the rest of the buffer, nested groups are counted without recursion, and no list grows
beyond `MAX_PARTS` entries.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from minicaffe.errors import DataError

MAX_PARTS = 500_000


def scan(const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t end, wanted):
    """Find the fields of one serialized message.

    Parameters
    ----------
    data : buffer of bytes
    start, end : int
        The bytes of the message in `data`.
    wanted : collection of int
        Numbers of the fields to report.

    Returns
    -------
    found : list of (number, start, end)
        Places of the contents of wanted length-delimited fields (messages, bytes, packed numbers), in the order of the file.
    varints : dict of int to int
        The last value of each wanted field stored as varint, as a signed 64-bit number.
    rest : list of (start, end)
        The bytes of all other fields, tags included, adjacent ones joined.

    Raises
    ------
    DataError
        If the bytes are no message or end too early; it names the byte.
    """
    if not 0 <= start <= end <= data.shape[0]:
        raise ValueError(f"bytes {start} to {end} of a buffer of {data.shape[0]}")
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    cdef const uint8_t* at = base + start
    cdef const uint8_t* rest_start = at
    cdef Field field
    cdef int reason = next_field(&at, base + end, &field)
    cdef uint64_t last_tag = 0
    cdef bint is_wanted = False
    cdef set numbers = set(wanted)
    cdef list found = [], rest = []
    cdef dict varints = {}
    while reason == FIELD:
        if field.tag != last_tag:  # look each field up once
            last_tag = field.tag
            is_wanted = (last_tag & 7 == VARINT or last_tag & 7 == LENGTH_DELIMITED) and last_tag >> 3 in numbers
        at += count_same_tag(at, base + end, &field) * <Py_ssize_t>(1 + field.value)
        if is_wanted:
            if field.start != rest_start:
                rest.append((rest_start - base, field.start - base))
            rest_start = at
            if last_tag & 7 == VARINT:
                varints[last_tag >> 3] = <int64_t>field.value
            else:
                found.append((last_tag >> 3, at - field.value - base, at - base))
            if len(found) + len(rest) > MAX_PARTS:
                raise damaged(field.start - base, f"the message has more than {MAX_PARTS} parts")
        reason = next_field(&at, base + end, &field)
    if reason == MALFORMED:
        raise damaged(field.start - base, "no field of a message begins there")
    if reason == CUT:
        number, left = field.tag >> 3, base + end - at
        what = f"field {number} at byte {field.start - base} has " + (
            f"{field.value} bytes, but {left} are left" if field.value > left else "no end") + f" before byte {end}"
        if end != data.shape[0]:
            raise damaged(field.start - base, what)
        raise DataError(f"is cut off: {what}; fetch the file again")
    if rest_start != base + end:
        rest.append((rest_start - base, end))
    return found, varints, rest


def gather(const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t end, int number, int width, uint8_t[::1] into=None):
    """Return the bytes of the numbers of a repeated field, over all its pieces; copy them to `into`, if given.

    The message is as for `scan`, which has accepted it; `number` is below 16, `width` 4 or 8 bytes.
    """
    cdef const uint8_t* at = &data[0] + start
    cdef const uint8_t* stop = &data[0] + end
    cdef uint64_t single = number << 3 | (FIXED32 if width == 4 else FIXED64)
    cdef Py_ssize_t _, total = 0, room = -1 if into is None else into.shape[0]
    cdef uint8_t* out = &into[0] if room > 0 else NULL
    cdef Field field
    cdef bint is_wanted
    while next_field(&at, stop, &field) == FIELD:
        is_wanted = field.tag == single or field.tag == (number << 3 | LENGTH_DELIMITED)
        if is_wanted:
            if out != NULL and room - total >= <Py_ssize_t>field.value:  # a file may change while it is read
                memcpy(out + total, at - field.value, field.value)
            total += field.value
        for _ in range(count_same_tag(at, stop, &field)):
            if is_wanted:
                if out != NULL and room - total >= width:
                    memcpy(out + total, at + 1, 4)
                    if width == 8:
                        memcpy(out + total + 4, at + 5, 4)
                total += width
            at += 1 + field.value
    return total


cdef object damaged(Py_ssize_t at, str what):
    return DataError(f"is damaged at byte {at}: {what}; fetch the file again")
