"""WindowData: batches of windows of pictures, of objects and of background (Caffe window_data_layer.cpp). Needs OpenCV.

Deprecated in Caffe, here for the nets of R-CNN. Different from Caffe: a picture is read as BGR, so the window file must say
3 channels for its last picture.
"""

import numpy as np

from minicaffe.common import caffe
from minicaffe.data.mean_file import read_mean
from minicaffe.data.window_batches import WindowBatches, WindowList, objects_of
from minicaffe.errors import ConfigError, DataError, ShapeError, in_field
from minicaffe.layers.data.base_data import PrefetchingLayer


class WindowDataLayer(PrefetchingLayer):
    """Tops: data (batch, 3, crop_size, crop_size) and label (batch,).

    `crop_size`, `mirror` and the mean come from `transform_param`, `scale` from `window_data_param`.
    ``batch_size fg_fraction`` windows, rounded down, are objects and come last.
    """

    exact_num_top_blobs = 2
    batch_field = "window_data_param.batch_size"

    def prepare(self):      # returns the shape of a record; called by `layer_setup` of the base
        param, crop = self.param.window_data_param, self.param.transform_param.crop_size
        if not 1 <= crop < 2**15:
            raise ConfigError(f"must be given, from 1 to 2^15 - 1, got {crop}", field="transform_param.crop_size")
        if 2 * param.context_pad >= crop:
            raise ConfigError(f"must be less than half of crop_size {crop}, got {param.context_pad}",
                              field="window_data_param.context_pad")
        if param.crop_mode not in ("warp", "square"):
            raise ConfigError(f"must be 'warp' or 'square', got '{param.crop_mode}'", field="window_data_param.crop_mode")
        if not 0 <= param.fg_fraction <= 1:
            raise ConfigError(f"must be from 0 to 1, got {param.fg_fraction:g}", field="window_data_param.fg_fraction")
        caffe.check_path(param.source, "window_data_param.source")
        if param.root_folder:
            caffe.check_path(param.root_folder, "window_data_param.root_folder")
        self.log_ignored("WindowData has none of it; window_data_param has scale",
                         used=("crop_size", "mirror", "mean_file", "mean_value"))
        self.mean = self._mean(crop)
        with in_field("window_data_param.source"):
            self.windows = self._windows()
        caffe.check_listed(self.windows.images, param.source, "window_data_param.source")
        return 3, crop, crop

    def count_records(self):    # a pair, which ranks compare (solver/ranks.py)
        return len(self.windows.foreground), len(self.windows.background)

    def _windows(self):
        """Read the window file; raise DataError if it lacks windows that a batch needs."""
        param = self.param.window_data_param
        windows = WindowList(param.source, param.root_folder, param.fg_threshold, param.bg_threshold)
        if windows.channels != 3:
            raise DataError(f"says that the last picture has {windows.channels} channels, pictures are read with 3",
                            file=param.source)
        objects = objects_of(param.batch_size, param.fg_fraction)
        for count, table, rule in ((objects, windows.foreground, f"of at least {param.fg_threshold:g}"),
                                   (param.batch_size - objects, windows.background, f"below {param.bg_threshold:g}")):
            if count and not len(table):
                raise DataError(f"has no window with an overlap {rule}, and a batch needs {count}", file=param.source)
        return windows

    def _mean(self, crop):
        """Return the mean to subtract, (3, crop, crop), from `mean_value` or the centre of `mean_file`; None without one."""
        param = self.param.transform_param
        if param.mean_file and param.mean_value:
            raise ConfigError("cannot both be set", field="transform_param.mean_file and mean_value")
        if param.mean_value:
            if len(param.mean_value) not in (1, 3):
                raise ShapeError(f"give one value, or one for each of the 3 channels of the picture, got {len(param.mean_value)}",
                                 field="transform_param.mean_value")
            return np.broadcast_to(np.array(param.mean_value, np.float64).reshape(-1, 1, 1), (3, crop, crop))
        if not param.mean_file:
            return None
        mean = read_mean(param.mean_file)
        channels, height, width = mean.shape
        offset = (width - crop) // 2    # of both axes, as in Caffe
        if channels != 3 or width < crop or height < offset + crop:
            raise ShapeError(f"'{param.mean_file}' is {channels} x {height} x {width}, too small for windows of 3 x {crop} x "
                             f"{crop} from its centre", field="transform_param.mean_file")
        return mean[:, offset:offset + crop, offset:offset + crop]

    def make_batches(self):     # for the prefetch thread
        param = self.param.window_data_param
        return WindowBatches(
            self.windows, param.fg_fraction, self.position, self.param.transform_param.crop_size, self.seed,
            context=param.context_pad, square=param.crop_mode == "square", mirror=self.param.transform_param.mirror,
            mean=self.mean, scale=param.scale, cache=param.cache_images, within=self.within)
