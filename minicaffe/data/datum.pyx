"""Read a serialized Datum straight from its bytes (Caffe: caffe.proto Datum, data_transformer.cpp, io.cpp).

The protobuf runtime would copy each record three times under the GIL; for small pictures this takes longer than all other work.
Here a record is read once in place (proto/wire.pyx): `datum_parse` stores the addresses of the fields, so a batch is parsed and
transformed without the GIL. Like protobuf it accepts fields in any order, packed or not, uses the last value of a field, and
skips unknown fields.

Stricter than Caffe: C x H x W must be exactly the number of bytes or floats. Not done here: writing (caffe_pb2 does).
"""

from libc.string cimport memset

from minicaffe.proto.wire cimport LENGTH_DELIMITED, CUT, FIELD, FIXED32, VARINT, Field, next_field, count_same_tag

import os
import re
import sys
from collections import namedtuple

import numpy as np

from minicaffe.errors import ConfigError, DataError, DependencyError, shown
from minicaffe.memory.budget import max_blob_bytes
from minicaffe.proto.wire import gather

PIXEL_LIMIT_VARIABLE = "OPENCV_IO_MAX_IMAGE_PIXELS"

FAULTS = (
    "",
    "is no Datum: it ends inside a field",
    "is no Datum: a number or tag that protobuf does not allow",
    "is an empty Datum: neither data nor float_data; the picture is missing",
    "has channels x height x width = {shape}, each must be at least 1",
    "has channels x height x width = {shape} but {size} bytes of data",
    "has channels x height x width = {shape} but {floats} elements of float_data",
)
cdef enum:
    VALID = 0, EMPTY = 3, BAD_SHAPE, BAD_SIZE, BAD_FLOATS  # CUT and MALFORMED: 1 and 2

DatumInfo = namedtuple("DatumInfo", "channels height width label encoded size floats")
DatumInfo.__doc__ = """The fields of a Datum without its content; `size` in bytes of data, `floats` in elements."""


cdef int datum_parse(const uint8_t* record, uint64_t size, Datum* datum) noexcept nogil:
    """Store the fields of a record in `datum`; return VALID or an index of FAULTS. A picture file in it is not checked."""
    cdef const uint8_t* at = record
    cdef const uint8_t* end = record + size
    cdef Field field
    cdef int reason = next_field(&at, end, &field)
    cdef Py_ssize_t count
    memset(datum, 0, sizeof(Datum))
    while reason == FIELD:
        if field.tag == (1 << 3 | VARINT):
            datum.channels = <int32_t>field.value
        elif field.tag == (2 << 3 | VARINT):
            datum.height = <int32_t>field.value
        elif field.tag == (3 << 3 | VARINT):
            datum.width = <int32_t>field.value
        elif field.tag == (4 << 3 | LENGTH_DELIMITED):
            datum.data = at - field.value
            datum.size = field.value
        elif field.tag == (5 << 3 | VARINT):
            datum.label = <int32_t>field.value
        elif field.tag == (6 << 3 | FIXED32) or field.tag == (6 << 3 | LENGTH_DELIMITED):
            if field.value % 4:
                return CUT
            datum.floats += field.value // 4
            count = count_same_tag(at, end, &field)
            datum.floats += count
            at += 5 * count
        elif field.tag == (7 << 3 | VARINT):
            datum.encoded = field.value != 0
        reason = next_field(&at, end, &field)
    if reason or datum.encoded:
        return reason
    cdef uint64_t have = datum.size if datum.size else datum.floats  # of the content: `data` if it has any bytes, else float_data
    if have == 0:
        return EMPTY
    if datum.channels < 1 or datum.height < 1 or datum.width < 1:
        return BAD_SHAPE
    # Two factors below 2^31 fit into 62 bits; the third is tested by division, so nothing overflows.
    cdef uint64_t plane = <uint64_t>datum.height * <uint64_t>datum.width
    if have % plane or have // plane != <uint64_t>datum.channels:
        return BAD_SIZE if datum.size else BAD_FLOATS
    return VALID


cdef object copy_float_data(const uint8_t* record, uint64_t size, uint64_t count):
    """Return the `count` elements of float_data in a record as a new array, float32."""
    # Little-endian hosts only, as everything minicaffe supports.
    array = np.empty(count, np.float32)
    gather(<const uint8_t[:size]>record, 0, size, 6, 4, array.view(np.uint8))
    return array


cdef str datum_fault(int reason, const Datum* datum):
    """Return the message of FAULTS with index `reason`, with the numbers of `datum`."""
    return FAULTS[reason].format(
        shape=f"{datum.channels} x {datum.height} x {datum.width}", size=datum.size, floats=datum.floats
    )


cdef int datum_read(const uint8_t[::1] record, Datum* datum) except -1:
    """Parse a record; raise DataError if it is wrong."""
    cdef int reason = datum_parse(&record[0] if record.shape[0] else NULL, record.shape[0], datum)
    if reason:
        raise DataError(datum_fault(reason, datum))
    return 0


def datum_info(const uint8_t[::1] record not None):
    """Return the DatumInfo of a serialized Datum, bytes or a buffer.

    Raises DataError if the bytes are no Datum, or if a Datum that is not encoded has another size than channels x height x width.
    """
    cdef Datum datum
    datum_read(record, &datum)
    return DatumInfo(datum.channels, datum.height, datum.width, datum.label, bool(datum.encoded), datum.size, datum.floats)


def datum_array(const uint8_t[::1] record not None):
    """Return the picture (C, H, W) in a serialized Datum, decoded if it is encoded; BGR if it has three channels.

    It is of uint8, or float32 if the Datum holds float_data. Raises DataError as `datum_info`, or if the picture cannot be decoded.
    """
    cdef Datum datum
    datum_read(record, &datum)
    shape = datum.channels, datum.height, datum.width
    if datum.encoded:
        return np.ascontiguousarray(decode_image(datum.data[:datum.size]).transpose(2, 0, 1))
    if datum.size:
        return np.frombuffer(datum.data[:datum.size], np.uint8).reshape(shape)
    return copy_float_data(&record[0], record.shape[0], datum.floats).reshape(shape)


def datum_labels(const uint8_t[::1] record not None, count):
    """Return the real-valued labels in a serialized Datum, float32 of (count,): its float_data beside the picture in `data`.

    Raises DataError as `datum_info`, if their number is not `count`, or if float_data is the picture itself.
    """
    cdef Datum datum
    datum_read(record, &datum)
    if datum.size == 0:
        raise DataError("has no labels that are real numbers: its float_data is the picture, as it has no data")
    if datum.floats != count:
        raise DataError(f"has {datum.floats} elements of float_data beside the picture, label_size says {count}")
    return copy_float_data(&record[0], record.shape[0], datum.floats)


def decode_image(content, force_color=False, force_gray=False):
    """Decode a picture file to uint8 (H, W, C) with OpenCV, which decoded the pictures that Caffe's nets were trained on.

    With `force_color` or `force_gray` it has 3 channels (BGR) or 1, with neither as many as the file has. Raises DataError if
    OpenCV cannot decode it, or its samples have more than 8 bits; DependencyError if OpenCV is not installed.
    """
    if force_color and force_gray:
        raise ConfigError("force_color and force_gray cannot both be set")
    cv2 = opencv()
    flag = cv2.IMREAD_COLOR if force_color else cv2.IMREAD_GRAYSCALE if force_gray else cv2.IMREAD_UNCHANGED
    image, why = opencv_decode(content, flag)
    if image is None:
        raise DataError(f"is marked encoded, but {why}")
    if image.dtype != np.uint8:
        raise DataError(f"holds a picture of {image.dtype} samples; only 8 bits a sample are supported, convert it")
    return image if image.ndim == 3 else image[:, :, np.newaxis]


def opencv_decode(content, flag):
    """Decode a picture file, a bytes-like object, by ``cv2.imdecode(content, flag)``; return it, or None, and why it is None."""
    cv2 = opencv()
    pixels = np.frombuffer(content, np.uint8)
    image, fault = None, ""
    if pixels.size and not has_overlong_png_chunk(pixels):
        try:
            image = cv2.imdecode(pixels, flag)
        except cv2.error as error:
            fault = f": {error.err}"
    return image, f"OpenCV cannot decode its {pixels.size} bytes{fault}"


def has_overlong_png_chunk(content):
    """Return whether `content` is a PNG file with a chunk whose declared length exceeds the rest of the file.

    Call this before OpenCV decodes the file: OpenCV allocates the declared length, up to 2 GiB, before it reads the chunk.
    """
    content = memoryview(content)
    at = 8
    if bytes(content[:at]) != b"\x89PNG\r\n\x1a\n":
        return False
    while at + 8 <= len(content):  # a chunk: length (4 bytes), type (4), `length` bytes of data, checksum (4)
        size, kind = int.from_bytes(content[at:at + 4], "big"), bytes(content[at + 4:at + 8])
        if size > len(content) - at - 8:
            return True
        if kind == b"IEND":
            break
        at += 12 + size
    return False


def opencv():
    """Import OpenCV on first use: the core works without it.

    The budget (memory/budget.py) limits the pixels of a picture: a file of a hundred bytes can declare 2^30 pixels. OpenCV reads
    this limit once, when it is loaded.
    """
    if "cv2" in sys.modules:
        return sys.modules["cv2"]
    limit = str(min(1 << 30, max_blob_bytes() // 4))  # 2^30 is OpenCV's default
    given = os.environ.get(PIXEL_LIMIT_VARIABLE)
    if given and not re.fullmatch("[0-9]{1,19}([MmKk]b|[MK]B)?", given):   # otherwise OpenCV ends the process
        raise ConfigError(f"must be a number of pixels, got {shown(given)}", field=PIXEL_LIMIT_VARIABLE)
    os.environ[PIXEL_LIMIT_VARIABLE] = given or limit
    try:
        import cv2
    except ImportError as error:
        raise DependencyError('pictures need OpenCV: pip install "minicaffe[images]"') from error
    finally:
        if given is None:
            del os.environ[PIXEL_LIMIT_VARIABLE]
        else:
            os.environ[PIXEL_LIMIT_VARIABLE] = given
    return cv2
