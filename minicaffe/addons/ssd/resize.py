"""Resizing pictures and the boxes on them (SSD's im_transforms.cpp and bbox_util.cpp, `resize_param`).

Boxes are arrays (n, 4) of xmin, ymin, xmax, ymax in units of the picture's width and height.
"""

import numpy as np

from minicaffe.data.datum import opencv
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2

Resize = caffe_pb2.ResizeParameter
MOST_PIXELS = 2**29  # of a resized picture; OpenCV counts its bytes in an int


def check_resize(param, field):
    """Raise ConfigError, naming a field below `field`, for invalid sizes or probabilities."""
    for name in ("height", "width"):
        if getattr(param, name) < 1:
            raise ConfigError("must be given and at least 1, got 0", field=f"{field}.{name}")
    if param.height * param.width > MOST_PIXELS:
        raise ConfigError(f"{param.height} x {param.width} pixels are too many for one picture", field=f"{field}.height")
    check_probability(param, "prob", field)
    if (param.height_scale > 0) != (param.width_scale > 0):
        raise ConfigError("give height_scale and width_scale, or neither", field=f"{field}.height_scale")


def check_probability(param, name, field):
    """Raise ConfigError unless a field of `param` is from 0 to 1."""
    if not 0 <= getattr(param, name) <= 1:
        raise ConfigError(f"must be from 0 to 1, got {getattr(param, name):g}", field=f"{field}.{name}")


def resized_shape(param, height, width):
    """Return the (height, width) that a picture of `height` x `width` is scaled to, before any padding.

    The ratio is kept by FIT_SMALL_SIZE, which fills `param.height` x `param.width`, and FIT_LARGE_SIZE_AND_PAD, which fits in.
    """
    if param.resize_mode == Resize.WARP:
        return param.height, param.width
    wider = width * param.height > height * param.width
    if wider == (param.resize_mode == Resize.FIT_SMALL_SIZE):
        return param.height, max(1, param.height * width // height)
    return max(1, param.width * height // width), param.width


def resize_picture(param, image, random):
    """Return `image`, (height, width, channels), resized as in `param`; `random`, a Generator, chooses one of several interp_mode.

    Raises ConfigError if `pad_value` has neither one value nor one a channel; ShapeError if the ratio makes the picture too large.
    """
    cv2 = opencv()
    modes = {Resize.LINEAR: cv2.INTER_LINEAR, Resize.AREA: cv2.INTER_AREA, Resize.NEAREST: cv2.INTER_NEAREST,
             Resize.CUBIC: cv2.INTER_CUBIC, Resize.LANCZOS4: cv2.INTER_LANCZOS4}
    mode = param.interp_mode[random.integers(len(param.interp_mode))] if param.interp_mode else Resize.LINEAR
    height, width = resized_shape(param, *image.shape[:2])
    if height * width > MOST_PIXELS:
        raise ShapeError(f"a picture of {image.shape[0]} x {image.shape[1]} would become {height} x {width}",
                         field="resize_param")
    result = cv2.resize(image, (width, height), interpolation=modes[mode])
    if param.resize_mode == Resize.FIT_LARGE_SIZE_AND_PAD:
        top, left = (param.height - height) // 2, (param.width - width) // 2
        channels, colour = image.shape[2], list(param.pad_value) or [0.0]
        if len(colour) not in (1, channels):
            raise ConfigError(f"give one, or one for each of the {channels} channels, got {len(colour)}",
                              field="resize_param.pad_value")
        borders = {Resize.CONSTANT: cv2.BORDER_CONSTANT, Resize.MIRRORED: cv2.BORDER_REFLECT101,
                   Resize.REPEAT_NEAREST: cv2.BORDER_REPLICATE}
        return add_border(result.reshape(height, width, -1), top, param.height - height - top, left, param.width - width - left,
                        np.resize(colour, channels), borders[param.pad_mode])
    return result.reshape(height, width, -1)


def add_border(image, top, bottom, left, right, colour, border=0):
    """Return `image`, (height, width, channels), with this many pixels added at each edge.

    `border` is OpenCV's kind of border, by default (0) the constant one, of a `colour` with one value for each channel.
    """
    cv2, planes = opencv(), []
    for first in range(0, image.shape[2], 4):  # OpenCV's colours have four values at most
        part = np.ascontiguousarray(image[:, :, first:first + 4])
        made = cv2.copyMakeBorder(part, top, bottom, left, right, border, value=[float(c) for c in colour[first:first + 4]])
        planes.append(made.reshape(*made.shape[:2], -1))
    return planes[0] if len(planes) == 1 else np.concatenate(planes, 2)


def content_box(param, height, width):
    """Return the box of a picture of `height` x `width` in the padded picture."""
    if param is None or param.resize_mode != Resize.FIT_LARGE_SIZE_AND_PAD:
        return np.array([0.0, 0.0, 1.0, 1.0])
    ratio, new_ratio = width / height, param.width / param.height
    left, top = max(0, (1 - ratio / new_ratio) / 2), max(0, (1 - new_ratio / ratio) / 2)    # one of them is 0
    return np.array([left, top, 1 - left, 1 - top])


def overlaps(a, b, pixels=0):
    """Return the area of each box of `a` that each of `b` covers, (n, m), divided by that of both, of the first, of the second.

    Edges belong to a box; with `pixels` 1 a side is xmax - xmin + 1. A box turned inside out has no area, and 0 / 0 is 0.
    """
    a = a[:, np.newaxis]
    apart = ((b[:, :2] > a[..., 2:]) | (b[:, 2:] < a[..., :2])).any(2)     # also by less than a pixel
    sides = np.minimum(a[..., 2:], b[:, 2:]) - np.maximum(a[..., :2], b[:, :2]) + pixels
    common = np.where(~apart & (sides > 0).all(2), sides.prod(2), 0)
    areas = [np.where((box[..., 2:] < box[..., :2]).any(-1), 0, (box[..., 2:] - box[..., :2] + pixels).prod(-1)) for box in (a, b)]
    return [np.divide(common, area, out=np.zeros(common.shape), where=(common > 0) & (area != 0))
            for area in (sum(areas) - common, *areas)]


def boxes_from_frame(frame, boxes):
    """Convert boxes from units of `frame`, a box, to units of the picture that contains `frame`."""
    return boxes * np.tile(frame[2:] - frame[:2], 2) + np.tile(frame[:2], 2)


def boxes_to_frame(frame, boxes):
    """Convert boxes from units of the picture to units of `frame`; the inverse of `boxes_from_frame`."""
    return (boxes - np.tile(frame[:2], 2)) / np.tile(frame[2:] - frame[:2], 2)


def boxes_to_pixels(param, boxes, height, width):
    """Return boxes of a resized picture in pixels of the one it was made from, clipped to it (SSD's OutputBBox).

    `param` is the ResizeParameter by which it was resized; None counts as WARP.
    """
    pixels = np.tile([width, height], 2).astype(float)
    if param is not None and param.resize_mode == Resize.FIT_SMALL_SIZE and param.height_scale:     # with a width_scale
        return np.clip(boxes * np.tile([param.width_scale, param.height_scale], 2), 0, pixels)
    return np.clip(boxes_to_frame(content_box(param, height, width), boxes), 0, 1) * pixels
