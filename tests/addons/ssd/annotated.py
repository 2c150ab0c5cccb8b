"""Databases of pictures with boxes, for the tests of the SSD layers; all are synthetic and seeded."""

import cv2
import numpy as np

from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2


def annotated(image, boxes, encoded=True, **fields):
    """Return a serialized AnnotatedDatum of a picture (H, W, C) and boxes (label, xmin, ymin, xmax, ymax[, instance, difficult])."""
    record = caffe_pb2.AnnotatedDatum(**{"type": caffe_pb2.AnnotatedDatum.BBOX, **fields})
    if encoded:
        record.datum.encoded = True
        record.datum.data = cv2.imencode(".png", image)[1].tobytes()
    else:
        record.datum.height, record.datum.width, record.datum.channels = image.shape
        record.datum.data = image.transpose(2, 0, 1).tobytes()
    groups = {}
    for label, xmin, ymin, xmax, ymax, *more in boxes:
        group = groups.get(label) or groups.setdefault(label, record.annotation_group.add(group_label=int(label)))
        instance, difficult = (*more, 0, 0)[:2]
        box = caffe_pb2.NormalizedBBox(xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax, difficult=bool(difficult))
        group.annotation.add(instance_id=int(instance), bbox=box)
    return record.SerializeToString()


def write_annotated(path, records):
    """Write serialized records to a new LMDB; return its path as str."""
    with open_db(path, "LMDB", "w") as db:
        for i, record in enumerate(records):
            db.put(b"%08d" % i, record)
    return str(path)


def rectangle(random, height=48, width=64, least=8):
    """Return a dark picture with one bright rectangle, and the rectangle's box in units of the picture."""
    image = np.full((height, width, 3), 16, np.uint8)
    h, w = random.integers(least, height // 2), random.integers(least, width // 2)
    top, left = random.integers(0, height - h), random.integers(0, width - w)
    image[top:top + h, left:left + w] = 240
    return image, (left / width, top / height, (left + w) / width, (top + h) / height)


def bright_box(plane, level=128):
    """Return the box around the bright pixels of a plane, in units of its size; None if there is none."""
    rows, columns = np.nonzero(plane > level)
    if not len(rows):
        return None
    height, width = plane.shape
    return np.array([columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height])
