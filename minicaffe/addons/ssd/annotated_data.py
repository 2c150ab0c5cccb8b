"""AnnotatedData: batches of pictures and the boxes on them, from a database (SSD's annotated_data_layer.cpp). Needs OpenCV.

Different from Caffe: draws depend on the seed and the record's number only, so that a resumed training repeats them;
`label_map_file` checks the labels; crops need no `mirror` to be random; a mean file has the size of the uncropped picture.
"""

from contextlib import closing

import numpy as np

from minicaffe.addons.ssd.augment import Augmenter
from minicaffe.addons.ssd.label_map import read_given, read_label_map
from minicaffe.addons.ssd.samplers import Samplers
from minicaffe.data.record_batches import RecordBatches, picture
from minicaffe.errors import ConfigError, DataError, located
from minicaffe.layers.data.data import DataLayer, first_record
from minicaffe.proto import caffe_pb2
from minicaffe.proto.wire import parse_message

COLUMNS = 8  # of a row of the labels


class AnnotatedDataLayer(DataLayer):
    """Tops: data (batch, channels, height, width), and label.

    The label top has shape (1, 1, B, 8), a row (picture in the batch, label, instance, xmin, ymin, xmax, ymax, difficult) for
    each box that is left of all pictures of the batch, in units of the picture; one row of -1 if none is. Where the records say
    no type and `anno_type` is not given, it has shape (batch, 1, 1, 1): the class of each picture.

    Per picture: `distort_param`, `expand_param`, one of the parts that the `batch_sampler` find, `resize_param`, `noise_param`,
    crop, mirror, mean, scale. A box is clipped to what is shown, and dropped if nothing is left or `emit_constraint` says so.
    """

    label_param = None

    @staticmethod
    def datum_of(record):
        return parse(record).datum.SerializeToString()

    def prepare(self):
        annotated = self.param.annotated_data_param
        resize = self.param.transform_param.resize_param
        if resize.resize_mode == caffe_pb2.ResizeParameter.FIT_SMALL_SIZE and self.batch_size > 1:
            raise ConfigError(f"FIT_SMALL_SIZE gives each picture its own size; it needs batch_size 1, got {self.batch_size}",
                              field="transform_param.resize_param.resize_mode")
        file = annotated.label_map_file
        self.names = read_given(read_label_map, file, "annotated_data_param.label_map_file") if file else None
        with first_record(self.param.data_param) as record:
            self.boxes = annotated.HasField("anno_type") or parse(bytes(record)).HasField("type")
            with closing(self.make_batches()) as reader:
                batch, labels = reader.load([record], range(1))
        self.label_shape = labels.shape
        return batch.shape[1:]

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        if len(top) > 1:
            top[1].reshape(*(self.label_shape if self.boxes else (self.batch_size, 1, 1, 1)))

    def make_batches(self):
        param = self.param.data_param
        samplers = Samplers(self.param.annotated_data_param.batch_sampler, "annotated_data_param.batch_sampler")
        augmenter = Augmenter(self.param.transform_param, self.seed, samplers)
        return AnnotatedBatches(param.source, param.backend, self.transformer(), augmenter,
                                boxes=self.boxes, names=self.names)


class AnnotatedBatches(RecordBatches):
    """Make batches of a database of AnnotatedDatum; parameters as of `RecordBatches`, and there is an augmenter.

    With `boxes` the labels are boxes, else the class of each picture. Labels that are not in `names`, if given, are errors.
    """

    def __init__(self, source, backend, transformer, augmenter, *, boxes, names=None):
        super().__init__(source, backend, transformer, augmenter)
        self.boxes, self.names = boxes, names

    def load(self, values, numbers):
        """Return the pictures as a Batch, and the labels: (1, 1, B, 8) boxes or (N, 1, 1, 1) classes."""
        pictures, classes, rows = [], [], []
        for i, (value, number) in enumerate(zip(values, numbers, strict=True)):
            with located(record=i):
                record = parse(bytes(value))
                image, objects = picture(record.datum, self.augmenter.param), read_objects(record)
                unknown = set(objects[:, 0].astype(int)) - set(self.names) if self.names is not None else ()
                if unknown:
                    raise DataError(f"has label {min(unknown)}, which label_map_file does not name")
                image, objects = self.augmenter(image, objects, number)
                height, width = image.shape[:2]
                objects = self.augmenter.finish(objects, self.transformer.window(height, width, number), height, width)
            pictures.append(image)      # crop and mirror follow
            classes.append(record.datum.label)
            rows.append(np.column_stack([np.full(len(objects), i), objects]))
        batch = self.transformer.load_images(pictures)
        if not self.boxes:
            return batch, np.array(classes).reshape(-1, 1, 1, 1)
        found = np.concatenate(rows)
        return batch, (found if len(found) else np.full((1, COLUMNS), -1.0))[np.newaxis, np.newaxis]


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
