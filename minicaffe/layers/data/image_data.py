"""ImageData: batches of the pictures that a list names (Caffe image_data_layer.cpp). Needs OpenCV.

Different from Caffe: the error for a picture that cannot be read has its line of the list; `rand_skip` may exceed the list,
which then starts over; `label_size` takes labels that are real numbers.
"""

from minicaffe.common import caffe
from minicaffe.data.image_batches import ImageBatches
from minicaffe.data.image_list import ImageList
from minicaffe.data.transform import draw
from minicaffe.errors import ConfigError, in_field
from minicaffe.layers.data.base_data import PrefetchingLayer
from minicaffe.memory.sizes import check_bytes

NO_RECORD = 2**64 - 1  # a number that no record has, for the random draw of rand_skip


class ImageDataLayer(PrefetchingLayer):
    """Tops: data (batch, channels, height, width) and label (batch,), or (batch, label_size) with `label_size`.

    Each line of `image_data_param.source` is a path, which `root_folder` is put before, a space and an integer label; with
    `label_size` a path and that many real numbers, which no crop or mirror changes. Pictures are
    BGR, or gray with ``is_color: false``, resized to `new_height` x `new_width` if given, then go through `transform_param`,
    with SSD's resize_param, noise_param, distort_param and expand_param before crop and mirror.
    """

    exact_num_top_blobs = 2
    batch_field = "image_data_param.batch_size"
    label_param = "image_data_param"

    def prepare(self):      # returns the shape of a record; called by `layer_setup` of the base
        param = self.param.image_data_param
        if (param.new_height > 0) != (param.new_width > 0):
            raise ConfigError(f"give new_height and new_width, or neither, got {param.new_height} and {param.new_width}",
                              field="image_data_param.new_height")
        with in_field("image_data_param.new_height"):
            check_bytes(3 * param.new_height * param.new_width, f"a picture of {param.new_height} x {param.new_width}")
        caffe.check_path(param.source, "image_data_param.source")
        if param.root_folder:
            caffe.check_path(param.root_folder, "image_data_param.root_folder")
        if param.rand_skip:
            self.position = draw(self.seed, NO_RECORD, 0, param.rand_skip)
        with in_field("image_data_param.source"):
            self.images = ImageList(param.source, self.label_size)
        caffe.check_listed((param.root_folder + name for name, _ in self.images.entries), param.source, "image_data_param.source")
        with in_field("image_data_param.source"):
            return self.make_batches().infer_shape(self.position)

    def make_batches(self):     # for the prefetch thread
        param = self.param.image_data_param
        return ImageBatches(
            self.images, param.root_folder, self.transformer(), self.augmenter(), self.seed, shuffle=param.shuffle,
            size=(param.new_height, param.new_width) if param.new_height else None, color=param.is_color, within=self.within)

    def count_records(self):    # compared by the ranks of a training, see sources.py
        return len(self.images.entries)
