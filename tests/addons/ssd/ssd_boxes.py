"""SSD's boxes in slow NumPy, one box at a time, for the tests of the layers that work on them."""

import numpy as np

CORNER, CENTER_SIZE, CORNER_SIZE = 1, 2, 3
CODES = {"CORNER": CORNER, "CENTER_SIZE": CENTER_SIZE, "CORNER_SIZE": CORNER_SIZE}


def overlap(a, b, pixels=0):
    """Intersection over union of two boxes; with pixels=1 both edges belong to the box."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width < 0 or height < 0 or (width + pixels) * (height + pixels) <= 0:
        return 0.0

    def area(box):
        return (box[2] - box[0] + pixels) * (box[3] - box[1] + pixels)
    inside = (width + pixels) * (height + pixels)
    return inside / (area(a) + area(b) - inside)


def decode(code, prior, variance, deltas):
    """The box that the code `deltas` represents."""
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    deltas = variance * deltas
    if code == CENTER_SIZE:
        x, y = deltas[0] * w + (prior[0] + prior[2]) / 2, deltas[1] * h + (prior[1] + prior[3]) / 2
        w, h = np.exp(deltas[2]) * w, np.exp(deltas[3]) * h
        return np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
    return prior + deltas * ([w, h, w, h] if code == CORNER_SIZE else 1)


def encode(code, prior, variance, box):
    """The code of a box."""
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    if code == CENTER_SIZE:
        deltas = np.array([((box[0] + box[2]) - (prior[0] + prior[2])) / 2 / w, ((box[1] + box[3]) - (prior[1] + prior[3])) / 2 / h,
                      np.log((box[2] - box[0]) / w), np.log((box[3] - box[1]) / h)])
    else:
        deltas = (box - prior) / ([w, h, w, h] if code == CORNER_SIZE else 1)
    return deltas / variance


def suppress(boxes, threshold, eta=1.0):
    """Indices of those of `boxes`, by falling score, that no better one overlaps by more than `threshold`."""
    kept = []
    for i, box in enumerate(boxes):
        if all(overlap(box, boxes[k]) <= threshold for k in kept):
            kept.append(i)
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return kept


def some_priors(random, count):
    """A blob (1, 2, count x 4) of random boxes and their variances."""
    centre, side = random.uniform(0.1, 0.9, (count, 2)), random.uniform(0.1, 0.5, (count, 2))
    boxes = np.concatenate([centre - side / 2, centre + side / 2], 1)
    return np.stack([boxes.ravel(), np.tile((0.1, 0.1, 0.2, 0.2), count)])[None]
