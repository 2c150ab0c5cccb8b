"""Boxes (x1, y1, x2, y2) as rows of NumPy arrays: regions of interest, overlaps, suppression. SSD's boxes are in ops/boxes."""

import math

import numpy as np

from minicaffe.errors import DataError, ShapeError

FAR = 1e9   # pixels: no map is as large, and sums of such numbers do not overflow


def check_rois(blob, field="bottom[1]"):
    """Raise ShapeError unless a blob has ROIs, (R, 5) or with trailing axes of size 1; return R, which may be 0."""
    if len(blob.shape) < 2 or blob.shape[1] != 5 or math.prod(blob.shape[2:]) != 1:
        raise ShapeError(f"must be ROIs (index in the batch, x1, y1, x2, y2), of shape (R, 5), got {list(blob.shape)}", field=field)
    return blob.shape[0]


def read_rois(blob, images=None, field="bottom[1]"):
    """Return the ROIs of a blob as an array (R, 5), with coordinates of at most `FAR`.

    Raises DataError, which names ROI and value, for a batch index that is not an integer or not below `images`, and for coordinates
    that are not finite.
    """
    rois = blob.cpu_data.reshape(-1, 5)
    index = rois[:, 0]
    right = (index == np.floor(index)) & (index >= 0) & (index < (np.inf if images is None else images))
    for i in np.flatnonzero(~right)[:1]:
        rule = "and at least 0" if images is None else f"from 0 to {images - 1}" if images else "of an image; the batch is empty"
        raise DataError(f"ROI {i}: the index in the batch must be an integer {rule}, got {index[i]:g}", field=field)
    for i in np.flatnonzero(~np.isfinite(rois).all(1))[:1]:
        corners = ", ".join(f"{value:g}" for value in rois[i, 1:])
        raise DataError(f"ROI {i}: coordinates must be finite, got ({corners})", field=field)
    return np.clip(rois, -FAR, FAR)


def suppress(boxes, threshold, most=None, pixels=0, of="IOU", equal=False):
    """Return the indices of boxes that no better one overlaps by more than `threshold`.

    Parameters
    ----------
    boxes : ndarray, shape (B, 4)
        By falling score.
    most : int, optional
        How many are returned at most.
    pixels : int
        1 if both edges belong to a box, as in the R-CNN line; its sides are then one longer.
    of : str
        What an intersection is divided by: IOU, the union; IOMU, the smaller area; IOFU, the area of the better box. Boxes without
        area, of which that is 0, overlap nothing.
    equal : bool
        Whether an overlap of `threshold` suppresses a box too.
    """
    corners, left, kept = np.ascontiguousarray(boxes.T), np.arange(len(boxes)), []
    areas = (corners[2] - corners[0] + pixels) * (corners[3] - corners[1] + pixels)
    while len(left) and (most is None or len(kept) < most):
        kept.append(left[0])
        (x1, y1, x2, y2), (first_x, first_y, last_x, last_y) = corners[:, 0], corners[:, 1:]
        width = np.minimum(x2, last_x) - np.maximum(x1, first_x) + pixels
        inside = np.maximum(width, 0) * np.maximum(np.minimum(y2, last_y) - np.maximum(y1, first_y) + pixels, 0)
        own, others = areas[0], areas[1:]
        shares = inside / (own + others - inside if of == "IOU" else np.minimum(own, others) if of == "IOMU" else own)
        gone = shares >= threshold if equal else shares > threshold
        left, corners, areas = left[1:], corners[:, 1:], others
        if gone.any():
            left, corners, areas = left[~gone], corners[:, ~gone], areas[~gone]
    return np.array(kept, int)


def decode_boxes(boxes, deltas):
    """Return centres and sides, each (..., 2), that R-CNN's codes (dx, dy, dw, dh) give for boxes, whose edges both belong to them.

    The centre of a box, (x1 + x2 + 1) / 2, moves by (dx, dy) times its sides, which are multiplied by (exp dw, exp dh).
    """
    sides = boxes[..., 2:] - boxes[..., :2] + 1
    return boxes[..., :2] + sides / 2 + deltas[..., :2] * sides, np.exp(deltas[..., 2:]) * sides
