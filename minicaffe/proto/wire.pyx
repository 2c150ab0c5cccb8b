"""Walk protobuf's wire format without building a message.

A caffemodel is a few hundred layers and hundreds of megabytes of numbers. protobuf would copy every number, and in Python
turn each into an object; the walk here notes where the numbers lie, so that NumPy can look at them in the mapped file.
The bytes are not trusted: every length is compared with what is left before it is believed, nested groups are
counted, not recursed into, and no list grows beyond `MAX_PARTS` entries, however the bytes are arranged.

Format: https://protobuf.dev/programming-guides/encoding/ (wire types 0 varint, 1 eight bytes, 2 counted bytes, 3 and 4
group, 5 four bytes).
"""

from libc.stdint cimport int64_t, uint64_t

from minicaffe.errors import DataError

MAX_PARTS = 500_000
MAX_AXES = 32  # Caffe's kMaxBlobAxes

cpdef enum:
    VARINT = 0
    EIGHT_BYTES = 1
    COUNTED = 2
    GROUP = 3
    GROUP_END = 4
    FOUR_BYTES = 5

cdef enum:
    MAX_GROUPS = 100


cdef object damaged(Py_ssize_t at, str what):
    return DataError(f"is damaged at byte {at}: {what}; fetch the file again")


cdef Py_ssize_t varint(const unsigned char *data, Py_ssize_t at, Py_ssize_t end, uint64_t *value) except -1:
    """Read a varint at byte `at` into `value` and return the byte after it."""
    cdef int shift = 0
    cdef Py_ssize_t start = at
    value[0] = 0
    while at < end and shift < 70:
        if shift < 64:
            value[0] |= <uint64_t> (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return at
    if at >= end:
        raise DataError(f"is cut off at byte {end}, inside a number that begins at byte {start}; fetch the file again")
    raise damaged(start, "a number of more than 10 bytes")


def scan(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end, wanted):
    """Find the fields of one serialized message.

    Parameters
    ----------
    data : buffer of bytes
    start, end : int
        Where the message lies in `data`.
    wanted : collection of int
        Numbers of the fields to report.

    Returns
    -------
    found : list of (number, wire, first, stride, count)
        In the order of the file. COUNTED: `count` bytes from byte `first`, and `stride` is 1. FOUR_BYTES and EIGHT_BYTES:
        `count` values, each `stride` bytes after the last, for each has its own tag; so a repeated field that was stored
        unpacked is one entry.
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
    cdef const unsigned char *bytes_ = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t at = start, tag_at, value_at, size
    cdef Py_ssize_t rest_start = start
    cdef Py_ssize_t run_first = 0, run_stride = 0, run_count = 0
    cdef uint64_t tag, number, value, run_tag = 0
    cdef uint64_t open_groups[MAX_GROUPS]
    cdef int wire, depth = 0
    cdef set numbers = set(wanted)
    cdef list found = [], rest = []
    cdef dict varints = {}
    cdef uint64_t last_number = 0
    cdef bint last_wanted = False
    while at < end:
        tag_at = at
        at = varint(bytes_, at, end, &tag)
        number = tag >> 3
        wire = tag & 7
        if number == 0 or number > 0x1FFFFFFF:
            raise damaged(tag_at, f"{number} is no field number")
        value_at = at
        if wire == VARINT:
            at = varint(bytes_, at, end, &value)
        elif wire == GROUP:
            if depth == MAX_GROUPS:
                raise damaged(tag_at, f"groups are nested more than {MAX_GROUPS} deep")
            open_groups[depth] = number
            depth += 1
            continue
        elif wire == GROUP_END:
            if depth == 0 or open_groups[depth - 1] != number:
                raise damaged(tag_at, "a group ends that was not begun")
            depth -= 1
            continue
        elif wire == COUNTED:
            at = varint(bytes_, at, end, &value)
            value_at = at
            if value > <uint64_t> (end - at):
                fault = "is cut off" if end == data.shape[0] else "is damaged"
                raise DataError(f"{fault}: field {number} at byte {tag_at} has {value} bytes, but {end - at} are left before "
                                f"byte {end}; fetch the file again")
            at += <Py_ssize_t> value
        elif wire == FOUR_BYTES or wire == EIGHT_BYTES:
            size = 4 if wire == FOUR_BYTES else 8
            if size > end - at:
                raise DataError(f"is cut off at byte {end}, inside field {number} at byte {tag_at}; fetch the file again")
            at += size
        else:
            raise damaged(tag_at, f"{wire} is no wire type")
        if depth:
            continue
        if number != last_number:  # unpacked numbers come in millions: look each field up once
            last_number = number
            last_wanted = number in numbers
        if not last_wanted:
            continue
        if tag_at > rest_start:
            rest.append((rest_start, tag_at))
        rest_start = at
        if wire == FOUR_BYTES or wire == EIGHT_BYTES:
            if run_count and tag == run_tag and value_at == run_first + run_count * run_stride:
                run_count += 1
                continue
        if run_count:
            found.append((run_tag >> 3, run_tag & 7, run_first, run_stride, run_count))
            run_count = 0
        if wire == VARINT:
            varints[number] = <int64_t> value
        elif wire == COUNTED:
            found.append((number, wire, value_at, 1, at - value_at))
        else:
            run_tag, run_first, run_stride, run_count = tag, value_at, at - tag_at, 1
        if len(found) + len(rest) > MAX_PARTS:
            raise damaged(tag_at, f"the message has more than {MAX_PARTS} parts")
    if depth:
        raise DataError(f"is cut off at byte {end}, inside a group; fetch the file again")
    if run_count:
        found.append((run_tag >> 3, run_tag & 7, run_first, run_stride, run_count))
    if end > rest_start:
        rest.append((rest_start, end))
    return found, varints, rest


def read_dims(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end, list dims):
    """Append the dims of a serialized BlobShape, packed or not, to `dims`; raise DataError beyond 32 axes."""
    if not 0 <= start <= end <= data.shape[0]:
        raise ValueError(f"bytes {start} to {end} of a buffer of {data.shape[0]}")
    cdef const unsigned char *bytes_ = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t at = start, stop
    cdef uint64_t tag, size
    while at < end:
        at = varint(bytes_, at, end, &tag)
        if tag == (1 << 3 | VARINT):
            at = append_dim(bytes_, at, end, dims)
        elif tag == (1 << 3 | COUNTED):
            at = varint(bytes_, at, end, &size)
            if size > <uint64_t> (end - at):
                raise damaged(at, f"a shape of {size} bytes, {end - at} are left")
            stop = at + <Py_ssize_t> size
            while at < stop:
                at = append_dim(bytes_, at, stop, dims)
        else:
            raise damaged(at, "a shape holds something other than dims")


cdef Py_ssize_t append_dim(const unsigned char *data, Py_ssize_t at, Py_ssize_t end, list dims) except -1:
    cdef uint64_t value
    at = varint(data, at, end, &value)
    if len(dims) == MAX_AXES:
        raise DataError(f"has a shape of more than {MAX_AXES} axes, the most that Caffe stores")
    dims.append(<int64_t> value)
    return at
