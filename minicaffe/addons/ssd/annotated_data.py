"""AnnotatedData: batches of pictures and the boxes on them, from a database (SSD's annotated_data_layer.cpp). Needs OpenCV.

Different from Caffe: draws depend on the seed and the record's number only, so that a resumed training repeats them;
`label_map_file` checks the labels; crops need no `mirror` to be random; a mean file has the size of the uncropped picture.
"""

from contextlib import closing

from minicaffe.addons.ssd.annotated_batches import AnnotatedBatches, parse
from minicaffe.addons.ssd.augment import Augmenter
from minicaffe.addons.ssd.label_map import read_label_map
from minicaffe.addons.ssd.samplers import Samplers
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, in_field
from minicaffe.layers.data.data import DataLayer, first_record
from minicaffe.proto import caffe_pb2


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
        self.names = None
        if annotated.label_map_file:
            caffe.check_path(annotated.label_map_file, "annotated_data_param.label_map_file")
            with in_field("annotated_data_param.label_map_file"):
                self.names = read_label_map(annotated.label_map_file)
        self.boxes = annotated.HasField("anno_type")
        with first_record(self.param.data_param) as record:
            self.boxes = self.boxes or parse(bytes(record)).HasField("type")
            with closing(self.make_batches()) as reader:
                shape, self.label_shape = reader.shapes(record)
        return shape

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
