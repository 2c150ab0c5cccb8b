"""Arrays to and from Caffe's messages, and the preprocessing of pictures (pycaffe ``caffe.io``).

Pictures are read with OpenCV and resized by `interpolation_taps`, which give the numbers of pycaffe's scikit-image 0.13. Different
from pycaffe: wrong input raises errors of minicaffe.errors, and no function changes its arguments.
"""

import contextlib
import math
import operator
import os

import numpy as np

from minicaffe.data.datum import opencv, opencv_decode
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError, WrongTypeError, check_message, int_of
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.binary_writer import bytes_of
from minicaffe.proto.files import file_error, read_bytes
from minicaffe.proto.stored import StoredBlob, parse_blob
from minicaffe.proto.wire import parse_message


def blobproto_to_array(blob, return_diff=False):
    """Return the values (or diffs) of a BlobProto as an array of float32.

    Raises
    ------
    DataError
        For several values without a shape, a shape that does not fit their number, or no diffs.
    """
    check_message(blob, "BlobProto", "blob")
    stored = parse_blob(blob.SerializeToString(), need_data=not return_diff)
    values = stored.diff if return_diff else stored.data
    if values is None:
        raise DataError("the blob holds no diffs; read its data", field="diff")
    return values.reshape(stored.shape).astype(np.float32, copy=False)


def array_to_blobproto(arr, diff=None):
    """Return a BlobProto with the shape and values of `arr`, and with `diff` if given.

    Raises
    ------
    DataError
        If `diff` has another number of values than `arr`, or both together more bytes than protobuf reads.
    """
    arr = np.asarray(arr)
    stored = StoredBlob(arr.shape, arr.astype(np.float32), None if diff is None else np.asarray(diff).astype(np.float32))
    return caffe_pb2.BlobProto.FromString(bytes_of(stored))


def arraylist_to_blobprotovector_str(arraylist):
    """Return the serialized BlobProtoVector of a list of arrays, in which pycaffe's users store several arrays."""
    return caffe_pb2.BlobProtoVector(blobs=[array_to_blobproto(arr) for arr in arraylist]).SerializeToString()


def blobprotovector_str_to_arraylist(text):
    """Return the arrays of a serialized BlobProtoVector."""
    return [blobproto_to_array(blob) for blob in parse_message(caffe_pb2.BlobProtoVector, text).blobs]


def array_to_datum(arr, label=None):
    """Return a Datum of an array (channels, height, width): bytes for uint8, else `float_data`.

    Raises
    ------
    ShapeError
        Unless the array has three axes.
    """
    arr = np.asarray(arr)
    if arr.ndim != 3:
        raise ShapeError(f"a datum has axes (channels, height, width), got shape {list(arr.shape)}")
    datum = caffe_pb2.Datum(channels=arr.shape[0], height=arr.shape[1], width=arr.shape[2])
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(float).ravel())
    if label is not None:
        datum.label = int_of(label, "a label (HDF5Data takes real numbers)")
    return datum


def datum_to_array(datum):
    """Return the array (channels, height, width) of a Datum that is not encoded: uint8 from bytes, else float64."""
    if check_message(datum, "Datum", "datum").encoded:
        raise ConfigError("an encoded datum holds a picture file; decode it with OpenCV first", field="encoded")
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float64)
    shape = datum.channels, datum.height, datum.width
    if min(shape) < 0 or values.size != math.prod(shape):
        raise ShapeError(f"{values.size} values do not fit channels x height x width = {' x '.join(map(str, shape))}", field="data")
    return values.reshape(shape)


def load_image(filename, color=True):
    """Return a picture as float32 in [0, 1], (height, width, 3) in RGB, or (height, width, 1) with ``color=False``.

    As in scikit-image, a grey picture gets three equal channels, an alpha channel is dropped, and the EXIF orientation is ignored.
    With ``color=False`` a picture in colour becomes 0.2125 R + 0.7154 G + 0.0721 B.

    Parameters
    ----------
    filename : str or path, or bytes-like, or file object
        A path, the bytes of a picture file, or an object with ``read()``, such as a file opened with "rb", io.BytesIO or the
        upload of a web server. Such an object is read from its beginning, as in scikit-image, or from its current position if it
        cannot seek. It is not closed.
    color : bool
        Whether to return three channels.

    Raises
    ------
    FileError
        If there is no such file, or OpenCV cannot decode it.
    WrongTypeError
        If a file object returns str, or `filename` is none of the above.
    """
    name, content = _content_of(filename)
    image, why = opencv_decode(content, opencv().IMREAD_UNCHANGED)
    if image is None:
        raise FileError(f"cannot be read as a picture, {why}; check its format", file=name)
    scale = np.iinfo(image.dtype).max if image.dtype.kind in "ui" else 1
    image = np.atleast_3d(image).astype(np.float64) / scale
    if image.shape[2] < 3:
        grey = image[:, :, :1]
        return (np.repeat(grey, 3, axis=2) if color else grey).astype(np.float32)
    image = image[:, :, 2::-1]
    return (image if color else image @ np.array([[0.2125], [0.7154], [0.0721]])).astype(np.float32, order="C")


def _content_of(source):
    """Return the name, for errors, and the bytes of a picture that a caller of `load_image` gave."""
    if isinstance(source, (str, os.PathLike)):
        return os.fsdecode(source), read_bytes(source)
    if not hasattr(source, "read"):
        if not isinstance(source, (bytes, bytearray, memoryview)):
            raise WrongTypeError(f"load_image takes a path, a file object or bytes, got {type(source).__name__}")
        return "<bytes>", bytes(source)
    name = getattr(source, "filename", None) or getattr(source, "name", None)   # Flask's uploads have a `filename`
    name = name if isinstance(name, str) else f"<{type(source).__name__}>"
    with contextlib.suppress(AttributeError, OSError):   # the body of a web request cannot seek
        source.seek(0)   # BytesIO is at its end after Pillow saved a picture to it
    content = source.read()
    if isinstance(content, str):
        raise WrongTypeError('the file object gives text; open the picture with "rb"', file=name)
    return name, bytes(content)


def read_npy(path):
    """Return the array of a .npy file; raise FileError if it is no such file, or not of numbers."""
    try:
        # A map compares the file's size with its shape before memory is taken, and refuses objects.
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except OSError as error:
        raise file_error(path, error) from error
    except ValueError as error:
        found = FileError(f"is no .npy file of numbers: {error}; caffe.io.blobproto_to_array reads a .binaryproto", file=path)
        raise kinds.with_kind(found, kinds.head_of(path), "a NumPy array (.npy)", ("npy", "mean")) from None


def resize_image(im, new_dims, interp_order=1):
    """Return a picture (height, width, K) resized to `new_dims` (height, width), float32.

    Pictures of one or three channels are resized between pixel centres, and places outside the picture have its lowest value
    (scikit-image). Others are resized from corner to corner (SciPy's zoom, whose cubic order is a spline; this one is not).

    Parameters
    ----------
    im : array, shape (H, W, K)
    new_dims : (height, width)
    interp_order : {0, 1, 3}
        Nearest, linear or cubic (Catmull-Rom) interpolation.
    """
    im = np.asarray(im, np.float32)
    if im.ndim != 3 or im.size == 0:
        raise ShapeError(f"a picture has axes (height, width, channels) and pixels, got shape {list(im.shape)}")
    if interp_order not in (0, 1, 3):
        raise ConfigError(f"must be 0, 1 or 3, got {interp_order}", field="interp_order")
    size = int(new_dims[0]), int(new_dims[1])
    if min(size) < 1:
        raise ShapeError(f"must be at least 1 x 1, got {list(size)}", field="new_dims")
    if im.shape[:2] == size:
        return im.copy()
    low, high = im.min(), im.max()
    if low == high:
        return np.full((*size, im.shape[2]), low, np.float32)
    centres = im.shape[2] in (1, 3)
    base = low if centres else 0
    rows = _resize_first(im.astype(np.float64) - base, size[0], interp_order, centres)
    columns = _resize_first(rows.transpose(1, 0, 2), size[1], interp_order, centres).transpose(1, 0, 2)
    return np.clip(columns + base, low, high).astype(np.float32, order="C")


def _resize_first(values, size, order, centres):
    """Return `values` (length, M, K) resized along the first axis to `size`, for `resize_image`; see `interpolation_taps`."""
    total = 0.0
    for index, weight in zip(*interpolation_taps(len(values), size, order, centres)):
        total = total + values[index] * weight[:, np.newaxis, np.newaxis]
    return total


def interpolation_taps(length, size, order, centres=True):
    """Return indices into `length` samples and weights for each of `size` new samples: two arrays (order + 1, size).

    `order` is 0, 1 or 3: nearest, linear, or cubic (Catmull-Rom) interpolation. With `centres` samples are centres of pixels
    and a tap outside has weight 0; otherwise the first and last samples coincide.
    """
    steps = np.arange(size)
    place = (steps + 0.5) * (length / size) - 0.5 if centres else steps * ((length - 1) / max(1, size - 1))
    first = np.floor(place)
    t = place - first
    if order == 0:
        index, weight = np.rint(place)[np.newaxis], np.ones((1, size))
    elif order == 1:
        index, weight = np.stack([first, first + 1]), np.stack([1 - t, t])
    else:
        index = np.stack([first - 1, first, first + 1, first + 2])
        weight = np.stack([-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2]) / 2
    inside = (index >= 0) & (index < length)
    return np.clip(index, 0, length - 1).astype(np.intp), weight * inside if centres else weight


def oversample(images, crop_dims):
    """Return ten crops of each picture: four corners and the centre, then the same five mirrored.

    Parameters
    ----------
    images : iterable of array, shape (H, W, K)
    crop_dims : (height, width)

    Returns
    -------
    array, shape (10 N, height, width, K), float32
    """
    images = list(images)
    height, width = int(crop_dims[0]), int(crop_dims[1])
    rows, cols = images[0].shape[:2]
    if not (0 < height <= rows and 0 < width <= cols):
        raise ShapeError(f"crops of {height}x{width} do not fit pictures of {rows}x{cols}", field="crop_dims")
    top, left = (rows - height) // 2, (cols - width) // 2
    corners = [(0, 0), (0, cols - width), (rows - height, 0), (rows - height, cols - width), (top, left)]
    crops = []
    for image in images:
        five = [image[y:y + height, x:x + width] for y, x in corners]
        crops += five + [crop[:, ::-1] for crop in five]
    return np.stack(crops).astype(np.float32)


# The steps of a Transformer after the resizing: attribute, function that applies the step, function that undoes it.
STEPS = (
    ("transpose", np.transpose, lambda image, order: image.transpose(np.argsort(order))),
    ("channel_swap", lambda image, order: image[order, :, :], lambda image, order: image[np.argsort(order), :, :]),
    ("raw_scale", operator.mul, operator.truediv),
    ("mean", operator.sub, operator.add),
    ("input_scale", operator.mul, operator.truediv))


class Transformer:
    """Turns pictures (H, W, K) into net inputs (C, H, W) and back.

    Order of the steps, unset ones left out: resize, transpose, channel swap, raw scale, subtract the mean, input scale.

    Parameters
    ----------
    inputs : dict
        Shape (N, C, H, W) of each input blob by name.
    """

    def __init__(self, inputs):
        self.inputs = inputs
        self.transpose, self.channel_swap, self.raw_scale, self.mean, self.input_scale = {}, {}, {}, {}, {}     # by input

    def _check_input(self, in_):
        """Raise ConfigError unless `in_` is the name of an input."""
        if in_ not in self.inputs:
            raise ConfigError(f"'{in_}' is not one of the inputs {list(self.inputs)}")

    def preprocess(self, in_, data):
        """Return the picture `data` preprocessed for the net's input `in_`; `data` is not changed."""
        self._check_input(in_)
        image = np.array(data, np.float32)
        size = tuple(self.inputs[in_][2:])
        if image.shape[:2] != size:
            image = resize_image(image, size)
        for name, apply, _ in STEPS:
            if in_ in (given := getattr(self, name)):
                image = apply(image, given[in_])
        return image

    def deprocess(self, in_, data):
        """Undo `preprocess`, except for the resizing."""
        self._check_input(in_)
        image = np.array(data).squeeze()
        for name, _, undo in reversed(STEPS):
            if in_ in (given := getattr(self, name)):
                image = undo(image, given[in_])
        return image

    def set_transpose(self, in_, order):
        """Set the order of axes; (2, 0, 1) turns (H, W, K) into (K, H, W)."""
        self._check_input(in_)
        if len(order) != len(self.inputs[in_]) - 1:
            raise ConfigError(f"must have {len(self.inputs[in_]) - 1} entries, got {list(order)}", field="transpose")
        count = len(order)
        axes = [axis % count for axis in order if axis in range(-count, count)]     # negative ones count from the last
        if sorted(axes) != list(range(count)):
            raise ConfigError(f"must have each axis once, 0 to {len(order) - 1}, got {list(order)}", field="transpose")
        self.transpose[in_] = axes

    def set_channel_swap(self, in_, order):
        """Set the order of channels; (2, 1, 0) turns RGB into Caffe's BGR. Applies after the transpose."""
        self._check_input(in_)
        if len(order) != self.inputs[in_][1] or not all(channel in range(len(order)) for channel in order):
            raise ConfigError(f"must have a channel, 0 to {self.inputs[in_][1] - 1}, for each of them, got {list(order)}",
                              field="channel_swap")
        self.channel_swap[in_] = list(order)

    def set_raw_scale(self, in_, scale):
        """Set the factor applied before the mean is subtracted, such as 255 for pictures in [0, 1]."""
        self._check_input(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_, mean):
        """Set the mean to subtract: one value a channel, or an array (H, W) or (C, H, W), which is resized to the input's size."""
        self._check_input(in_)
        mean = np.asarray(mean)
        channels, *size = self.inputs[in_][1:]
        if mean.ndim == 1:
            if mean.shape[0] != channels:
                raise ShapeError(f"must have one value for each of the {channels} channels, got {mean.shape[0]}", field="mean")
            mean = mean[:, np.newaxis, np.newaxis]
        elif mean.ndim in (2, 3):
            mean = mean.reshape((1,) * (3 - mean.ndim) + mean.shape)
            if mean.shape[0] not in (1, channels):
                raise ShapeError(f"must have {channels} channels, got {mean.shape[0]}", field="mean")
            if mean.shape[1:] != tuple(size):
                mean = resize_image(mean.transpose(1, 2, 0), size).transpose(2, 0, 1)
        else:
            raise ShapeError(f"must have 1 to 3 axes, got {mean.ndim}", field="mean")
        self.mean[in_] = mean

    def set_input_scale(self, in_, scale):
        """Set the factor applied last."""
        self._check_input(in_)
        self.input_scale[in_] = scale
