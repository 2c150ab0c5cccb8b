"""Batches of pictures and the boxes on them, for the prefetch thread (SSD's annotated_data_layer.cpp)."""

import numpy as np

from minicaffe.data.record_batches import RecordBatches, picture
from minicaffe.errors import DataError, located
from minicaffe.proto import caffe_pb2
from minicaffe.proto.wire import parse_message

COLUMNS = 8  # of a row of the labels


class AnnotatedBatches(RecordBatches):
    """Make batches of a database of AnnotatedDatum; parameters as of `RecordBatches`, and there is an augmenter.

    With `boxes` the labels are boxes, else the class of each picture. Labels that are not in `names`, if given, are errors.
    """

    def __init__(self, source, backend, transformer, augmenter, *, boxes, names=None):
        super().__init__(source, backend, transformer, augmenter)
        self.boxes, self.names = boxes, names

    def shapes(self, value):
        """Return the shapes of the data, without its axis 0, and of the labels for one record as the first of a batch."""
        batch, labels = self.load([value], range(1))
        return batch.shape[1:], labels.shape

    def load(self, values, numbers):
        """Return the pictures as a Batch, and the labels: (1, 1, B, 8) boxes or (N, 1, 1, 1) classes."""
        pictures, classes, rows = [], [], []
        for i, (value, number) in enumerate(zip(values, numbers, strict=True)):
            with located(record=i):
                picture, label, objects = self._one(bytes(value), number)
            pictures.append(picture)
            classes.append(label)
            rows.append(np.column_stack([np.full(len(objects), i), objects]))
        batch = self.transformer.load_images(pictures)
        if not self.boxes:
            return batch, np.array(classes).reshape(-1, 1, 1, 1)
        found = np.concatenate(rows)
        return batch, (found if len(found) else np.full((1, COLUMNS), -1.0))[np.newaxis, np.newaxis]

    def _one(self, value, number):
        """Return picture, class and objects of a record for the net, before crop and mirror of the picture."""
        record = parse(value)
        image = picture(record.datum, self.augmenter.param)
        objects = read_objects(record)
        if self.names is not None:
            unknown = set(objects[:, 0].astype(int)) - set(self.names)
            if unknown:
                raise DataError(f"has label {min(unknown)}, which label_map_file does not name")
        image, objects = self.augmenter(image, objects, number)
        height, width = image.shape[:2]
        objects = self.augmenter.finish(objects, self.transformer.window(height, width, number), height, width)
        return image, record.datum.label, objects


def parse(value):
    """Return the AnnotatedDatum in a record. Raises DataError if the bytes are none, or it holds no picture."""
    record = parse_message(caffe_pb2.AnnotatedDatum, value)
    if not record.HasField("datum"):
        raise DataError("is an AnnotatedDatum without a picture; a database of plain Datum is for the layer Data")
    return record


def read_objects(record):
    """Return the objects of an AnnotatedDatum as rows of label, instance, xmin, ymin, xmax, ymax, difficult."""
    rows = [(group.group_label, one.instance_id, one.bbox.xmin, one.bbox.ymin, one.bbox.xmax, one.bbox.ymax, one.bbox.difficult)
            for group in record.annotation_group for one in group.annotation]
    objects = np.array(rows, float).reshape(-1, COLUMNS - 1)
    if not np.isfinite(objects).all():
        raise DataError("has a box whose corners are not all numbers")
    return objects
