"""Boxes (x1, y1, x2, y2) as rows of NumPy arrays: regions of interest (ROIs), decoding, non-maximum suppression."""

import math

import numpy as np

from minicaffe.errors import DataError, ShapeError

MAX_COORDINATE = 1e9    # pixels: larger than any map, and sums of such numbers do not overflow


def check_rois(blob):
    """Raise ShapeError unless a blob has ROIs, (R, 5) or with trailing axes of size 1; return R, which may be 0."""
    if len(blob.shape) < 2 or blob.shape[1] != 5 or math.prod(blob.shape[2:]) != 1:
        raise ShapeError(f"must be ROIs (index in the batch, x1, y1, x2, y2), of shape (R, 5), got {list(blob.shape)}",
                         field="bottom[1]")
    return blob.shape[0]


def read_rois(blob, images=None):
    """Return the ROIs of a blob as an array (R, 5), with coordinates of at most `MAX_COORDINATE`.

    Raises DataError, which names ROI and value, for a batch index that is not an integer or not below `images`, and for coordinates
    that are not finite.
    """
    rois = blob.cpu_data.reshape(-1, 5)
    index = rois[:, 0]
    right = (index == np.floor(index)) & (index >= 0) & (index < (np.inf if images is None else images))
    for i in np.flatnonzero(~right)[:1]:
        rule = "and at least 0" if images is None else f"from 0 to {images - 1}" if images else "of an image; the batch is empty"
        raise DataError(f"ROI {i}: the index in the batch must be an integer {rule}, got {index[i]:g}", field="bottom[1]")
    for i in np.flatnonzero(~np.isfinite(rois).all(1))[:1]:
        corners = ", ".join(f"{value:g}" for value in rois[i, 1:])
        raise DataError(f"ROI {i}: coordinates must be finite, got ({corners})", field="bottom[1]")
    return np.clip(rois, -MAX_COORDINATE, MAX_COORDINATE)


def suppress(boxes, threshold, max_boxes=None, pixels=0, divisor="IOU", at_threshold=False):
    """Non-maximum suppression: return the indices of boxes that no better kept box overlaps by more than `threshold`.

    Parameters
    ----------
    boxes : ndarray, shape (B, 4)
        In descending order of score.
    max_boxes : int, optional
        The largest number of boxes that are returned.
    pixels : int
        1 if both edges belong to a box, as in the R-CNN family: a side is then x2 - x1 + 1. Otherwise 0.
    divisor : str
        The intersection is divided by the union (IOU), the smaller area (IOMU) or the area of the better box (IOFU). If that is 0,
        the boxes do not overlap.
    at_threshold : bool
        Whether an overlap equal to `threshold` suppresses a box, too.
    """
    corners, remaining, kept = np.ascontiguousarray(boxes.T), np.arange(len(boxes)), []
    areas = (corners[2] - corners[0] + pixels) * (corners[3] - corners[1] + pixels)
    while len(remaining) and (max_boxes is None or len(kept) < max_boxes):
        kept.append(remaining[0])
        (x1, y1, x2, y2), (first_x, first_y, last_x, last_y) = corners[:, 0], corners[:, 1:]
        width = np.minimum(x2, last_x) - np.maximum(x1, first_x) + pixels
        common = np.maximum(width, 0) * np.maximum(np.minimum(y2, last_y) - np.maximum(y1, first_y) + pixels, 0)
        area, others = areas[0], areas[1:]
        whole = area + others - common if divisor == "IOU" else np.minimum(area, others) if divisor == "IOMU" else area
        overlaps = common / whole
        suppressed = overlaps >= threshold if at_threshold else overlaps > threshold
        remaining, corners, areas = remaining[1:], corners[:, 1:], others
        if suppressed.any():
            remaining, corners, areas = remaining[~suppressed], corners[:, ~suppressed], areas[~suppressed]
    return np.array(kept, int)


def decode_boxes(boxes, deltas):
    """Return the centres and sides, each (..., 2), of boxes to which R-CNN's codes (dx, dy, dw, dh) are applied.

    Both edges belong to a box: its sides are (x2 - x1 + 1, y2 - y1 + 1).
    Its centre, (x1 + x2 + 1) / 2, moves by (dx, dy) times the sides. The sides are multiplied by (exp dw, exp dh).
    """
    sides = boxes[..., 2:] - boxes[..., :2] + 1
    return boxes[..., :2] + sides / 2 + deltas[..., :2] * sides, np.exp(deltas[..., 2:]) * sides
