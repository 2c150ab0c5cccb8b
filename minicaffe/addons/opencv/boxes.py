"""Non-maximum suppression of rectangles under OpenCV's name: `NMSBoxes`."""

import numpy as np

from minicaffe.addons.opencv.blobs import number, numbers
from minicaffe.errors import ConfigError, ShapeError, int_of


def NMSBoxes(bboxes, scores, score_threshold, nms_threshold, eta=1.0, top_k=0):
    """Return which boxes to keep: those of the highest scores that do not overlap a kept one by more than a threshold.

    Parameters
    ----------
    bboxes : sequence of (x, y, width, height)
    scores : sequence of float
    score_threshold : float
        Boxes of this score or less are left out.
    nms_threshold : float
        Greatest intersection over union of two kept boxes.
    eta : float, 0 < eta <= 1
        Factor of the threshold after each kept box, as long as it is above 0.5.
    top_k : int
        Number of boxes, those of the highest scores, that are considered; 0 or less: all.

    Returns
    -------
    array of int32, or an empty tuple if there are none, as OpenCV does
    """
    boxes, scores = numbers(bboxes, "bboxes", np.float64), numbers(scores, "scores", np.float32)
    if boxes.size and (boxes.ndim == 0 or boxes.shape[-1] != 4):
        raise ShapeError(f"a box is (x, y, width, height), got shape {list(boxes.shape)}", field="bboxes")
    boxes = boxes.reshape(-1, 4)
    if scores.ndim != 1:
        raise ShapeError(f"must have one axis, got shape {list(scores.shape)}", field="scores")
    if len(boxes) != len(scores):
        raise ShapeError(f"must have one score for each of the {len(boxes)} boxes, got {len(scores)}", field="scores")
    for name, value in (("score_threshold", score_threshold), ("nms_threshold", nms_threshold)):
        if not number(value, name) >= 0:
            raise ConfigError(f"must be at least 0, got {value}", field=name)
    if not 0 < number(eta, "eta") <= 1:
        raise ConfigError(f"must be above 0 and at most 1, got {eta}", field="eta")
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > np.float32(score_threshold)]
    if int_of(top_k, "top_k") > 0:
        order = order[:top_k]
    kept, threshold = [], np.float32(nms_threshold)
    for index in order:
        if (_overlap(boxes[index], boxes[kept]) <= threshold).all():
            kept.append(index)
            if eta < 1 and threshold > 0.5:
                threshold = np.float32(threshold * np.float32(eta))
    return np.array(kept, np.int32) if kept else ()


def _overlap(box, others):
    """Return the intersection over union of a box with each of `others`; boxes without an area are equal, as in OpenCV."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[:2] + box[2:], others[:, :2] + others[:, 2:])
    shared = np.maximum(high - low, 0).prod(axis=1)
    areas = box[2:].prod() + others[:, 2:].prod(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(areas <= np.finfo(np.float64).eps, 1.0, shared / (areas - shared)).astype(np.float32)
