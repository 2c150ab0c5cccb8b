"""Read a serialized Datum (Caffe: caffe.proto Datum, data_transformer.cpp, io.cpp), and decode the picture in it.

Stricter than Caffe: C x H x W must be exactly the number of bytes or floats. Not done here: writing (caffe_pb2 does).
"""

import math
import os
import re
import sys

import numpy as np
from google.protobuf.message import DecodeError

from minicaffe.errors import ConfigError, DataError, DependencyError, shown
from minicaffe.memory.sizes import max_blob_bytes
from minicaffe.proto import caffe_pb2

PIXEL_LIMIT_VARIABLE = "OPENCV_IO_MAX_IMAGE_PIXELS"


def read_datum(record):
    """Return the Datum message in a record, bytes or a buffer; a picture file in it is not decoded.

    Raises DataError if the bytes are no Datum, or as `check_datum`.
    """
    try:
        return check_datum(caffe_pb2.Datum.FromString(bytes(record)))
    except DecodeError as cause:
        raise DataError(f"is no Datum, or is damaged ({cause}); make the database again") from cause


def check_datum(datum):
    """Return a Datum message; raise DataError if its pixels are not channels x height x width: a reader would go beyond them.

    The size of an encoded one is known after decoding.
    """
    if datum.encoded:
        return datum
    shape = datum.channels, datum.height, datum.width
    size = len(datum.data) or len(datum.float_data)  # of the content: `data` if it has any bytes, else float_data
    if size == 0:
        raise DataError("is an empty Datum: neither data nor float_data; the picture is missing")
    if min(shape) < 1 or math.prod(shape) != size:
        what = ", each must be at least 1" if min(shape) < 1 else \
            f" but {size} bytes of data" if datum.data else f" but {size} elements of float_data"
        raise DataError(f"has channels x height x width = {' x '.join(map(str, shape))}{what}")
    return datum


def picture_of(datum, force_color=False, force_gray=False):
    """Return the picture (C, H, W) of a Datum message, decoded by `decode_image` if it is encoded.

    It is BGR if it has three channels; of uint8, or float32 if the Datum holds float_data. Raises DataError as `check_datum`, or if
    the picture cannot be decoded.
    """
    if check_datum(datum).encoded:
        return decode_image(datum.data, force_color, force_gray).transpose(2, 0, 1)
    shape = datum.channels, datum.height, datum.width
    return (np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)).reshape(shape)


def labels_of(datum, count):
    """Return the real-valued labels of a Datum message, float32 of (count,): its float_data beside the picture in `data`.

    Raises DataError if their number is not `count`, or if float_data is the picture itself.
    """
    if not datum.data:
        raise DataError("has no labels that are real numbers: its float_data is the picture, as it has no data")
    if len(datum.float_data) != count:
        raise DataError(f"has {len(datum.float_data)} elements of float_data beside the picture, label_size says {count}")
    return np.array(datum.float_data, np.float32)


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
    """Return the picture in a bytes-like object by ``cv2.imdecode(content, flag)``, None if that fails; and the text for errors."""
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
    """Return the module cv2, imported on first use: the core works without it.

    The budget (memory/sizes.py) limits the pixels of a picture: a file of a hundred bytes can declare 2^30 pixels. OpenCV reads
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
