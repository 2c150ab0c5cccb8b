"""Arrays to and from Caffe's messages, and the preprocessing of pictures (pycaffe ``caffe.io``).

Pictures are read and resized with OpenCV, which pycaffe's scikit-image gave way to: the pixels of a resized picture differ
from pycaffe's in the last digits.
"""

import numpy as np

from minicaffe.errors import ConfigError, DependencyError, FileError, ShapeError
from minicaffe.proto import caffe_pb2


def blobproto_to_array(blob, return_diff=False):
    """Return the values (or diffs) of a BlobProto as an array.

    Raises
    ------
    ShapeError
        For several values without a shape, or a shape that does not fit their number.
    """
    values = np.array(blob.diff if return_diff else blob.data, np.float32)
    if any(blob.HasField(f) for f in ("num", "channels", "height", "width")):
        shape = (blob.num, blob.channels, blob.height, blob.width)
    else:
        shape = tuple(blob.shape.dim)
    if values.size != np.prod(shape, dtype=np.int64):
        raise ShapeError(f"{values.size} values do not fit shape {list(shape)}", field="diff" if return_diff else "data")
    return values.reshape(shape)


def array_to_blobproto(arr, diff=None):
    """Return a BlobProto with the shape and values of `arr`, and with `diff` if given."""
    arr = np.asarray(arr)
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(arr.shape)
    blob.data.extend(arr.astype(float).ravel())
    if diff is not None:
        blob.diff.extend(np.asarray(diff).astype(float).ravel())
    return blob


def arraylist_to_blobprotovector_str(arraylist):
    """Return the serialized BlobProtoVector of a list of arrays."""
    return caffe_pb2.BlobProtoVector(blobs=[array_to_blobproto(arr) for arr in arraylist]).SerializeToString()


def blobprotovector_str_to_arraylist(text):
    """Return the arrays of a serialized BlobProtoVector."""
    return [blobproto_to_array(blob) for blob in caffe_pb2.BlobProtoVector.FromString(text).blobs]


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
        datum.label = int(label)
    return datum


def datum_to_array(datum):
    """Return the array (channels, height, width) of a Datum that is not encoded: uint8 from bytes, else float64."""
    if datum.encoded:
        raise ConfigError("an encoded datum holds a picture file; decode it with OpenCV first", field="encoded")
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float64)
    return values.reshape(datum.channels, datum.height, datum.width)


def load_image(filename, color=True):
    """Return a picture as float32 in [0, 1], (height, width, 3) in RGB, or (height, width, 1) with ``color=False``."""
    cv2 = _opencv()
    image = cv2.imread(str(filename), cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise FileError("cannot be read as a picture; check the path and format", file=str(filename))
    image = image[:, :, ::-1] if color else image[:, :, np.newaxis]
    return np.ascontiguousarray(image).astype(np.float32) / 255


def resize_image(im, new_dims, interp_order=1):
    """Return a picture (height, width, K) resized to `new_dims` (height, width), float32.

    `interp_order` is 0 for nearest, 1 for bilinear, 3 for cubic interpolation.
    """
    cv2 = _opencv()
    methods = {0: cv2.INTER_NEAREST, 1: cv2.INTER_LINEAR, 3: cv2.INTER_CUBIC}
    if interp_order not in methods:
        raise ConfigError(f"must be 0, 1 or 3, got {interp_order}", field="interp_order")
    im = np.asarray(im, np.float32)
    planes = [cv2.resize(np.ascontiguousarray(im[:, :, k]), (int(new_dims[1]), int(new_dims[0])),
                         interpolation=methods[interp_order]) for k in range(im.shape[2])]
    return np.stack(planes, axis=2)


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
    if height > rows or width > cols:
        raise ShapeError(f"crops of {height}x{width} do not fit pictures of {rows}x{cols}", field="crop_dims")
    top, left = (rows - height) // 2, (cols - width) // 2
    corners = [(0, 0), (0, cols - width), (rows - height, 0), (rows - height, cols - width), (top, left)]
    crops = []
    for image in images:
        five = [image[y:y + height, x:x + width] for y, x in corners]
        crops += five + [crop[:, ::-1] for crop in five]
    return np.stack(crops).astype(np.float32)


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
        self.transpose, self.channel_swap, self.raw_scale, self.mean, self.input_scale = {}, {}, {}, {}, {}

    def _check(self, in_):
        if in_ not in self.inputs:
            raise ConfigError(f"'{in_}' is not one of the inputs {list(self.inputs)}")

    def preprocess(self, in_, data):
        """Return the picture `data` as the net's input `in_` wants it; `data` itself stays as it is."""
        self._check(in_)
        image = np.array(data, np.float32)
        size = tuple(self.inputs[in_][2:])
        if image.shape[:2] != size:
            image = resize_image(image, size)
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            image = image[self.channel_swap[in_], :, :]
        if in_ in self.raw_scale:
            image = image * self.raw_scale[in_]
        if in_ in self.mean:
            image = image - self.mean[in_]
        if in_ in self.input_scale:
            image = image * self.input_scale[in_]
        return image

    def deprocess(self, in_, data):
        """Undo `preprocess`, except for the resizing."""
        self._check(in_)
        image = np.array(data).squeeze()
        if in_ in self.input_scale:
            image = image / self.input_scale[in_]
        if in_ in self.mean:
            image = image + self.mean[in_]
        if in_ in self.raw_scale:
            image = image / self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_]), :, :]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_, order):
        """Set the order of axes; (2, 0, 1) turns (H, W, K) into (K, H, W)."""
        self._check(in_)
        if len(order) != len(self.inputs[in_]) - 1:
            raise ConfigError(f"must have {len(self.inputs[in_]) - 1} entries, got {list(order)}", field="transpose")
        self.transpose[in_] = order

    def set_channel_swap(self, in_, order):
        """Set the order of channels; (2, 1, 0) turns RGB into Caffe's BGR. Applies after the transpose."""
        self._check(in_)
        if len(order) != self.inputs[in_][1]:
            raise ConfigError(f"must have one entry for each of the {self.inputs[in_][1]} channels, got {list(order)}",
                              field="channel_swap")
        self.channel_swap[in_] = list(order)

    def set_raw_scale(self, in_, scale):
        """Set the factor applied before the mean is subtracted, such as 255 for pictures in [0, 1]."""
        self._check(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_, mean):
        """Set the mean to subtract: one value a channel, or an array (H, W) or (C, H, W) of the input's size."""
        self._check(in_)
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
        self._check(in_)
        self.input_scale[in_] = scale


def _opencv():
    try:
        import cv2
    except ImportError:
        raise DependencyError('pictures need OpenCV: pip install "minicaffe[images]"') from None
    return cv2
