"""DetectionEvaluate: which detections are right (SSD's detection_evaluate_layer.cpp), for mean average precision.

mean_precision.py makes precisions of the rows. Different from Caffe: with `name_size_file` the line of an image is
counted over all images of the batches, where Caffe left out those without a detection, so that later boxes were mapped with
sizes of other images.
"""

import numpy as np

from minicaffe.addons.ssd.detection_output import check_rows
from minicaffe.addons.ssd.label_map import read_given, read_name_sizes
from minicaffe.addons.ssd.mean_precision import DetectionOutputs
from minicaffe.addons.ssd.resize import boxes_to_pixels, check_resize, overlaps
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import Layer
from minicaffe.layers.base.checks import check_size, state_numbers


class DetectionEvaluateLayer(Layer):
    """Compare detections with the objects that are there.

    A detection is right if the object of its label and image that it overlaps most is overlapped by at least
    `overlap_threshold`, and no detection with a higher score took that object; it counts neither way if the object is marked
    difficult and `evaluate_difficult_gt` is false; else it is wrong.

    Parameters
    ----------
    bottom[0] : Blob, shape (1, 1, D, 7)
        From DetectionOutput; rows with label -1 do not count.
    bottom[1] : Blob, shape (1, 1, G, 8)
        Rows (image, label, instance, xmin, ymin, xmax, ymax, difficult); image -1 is not an object.
    top[0] : Blob, shape (1, 1, K + V, 5)
        A row (-1, label, number of objects, -1, -1) for each of K classes but background, then a row (image, label, score,
        right, wrong) for each of V detections by image, label and falling score.

    With `name_size_file` boxes are mapped to the pixels of the original images first, undoing `resize_param`, and a box of n
    pixels has n + 1, as in VOC. The file starts over at its end.

    Raises
    ------
    ConfigError, ShapeError
        For fields out of range or bottoms of other shapes.
    DataError
        For a label that is not an integer or not a class, or objects of the background; names the row.
    """

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    test_outputs = DetectionOutputs

    def layer_setup(self, bottom, top):
        param = self.param.detection_evaluate_param
        check_size(param.num_classes, "detection_evaluate_param.num_classes", needed=True)
        if not 0 < param.overlap_threshold <= 1:
            raise ConfigError(f"must be above 0 and at most 1, got {param.overlap_threshold:g}",
                              field="detection_evaluate_param.overlap_threshold")
        top[0].reshape(1, 1, param.num_classes - (param.background_label_id < param.num_classes), 5)
        self.classes = [label for label in range(param.num_classes) if label != param.background_label_id]
        self.sizes = self.resize = None     # (name, height, width) of the images
        self.seen = 0                       # images so far
        if param.name_size_file:
            self.sizes = read_given(read_name_sizes, param.name_size_file, "detection_evaluate_param.name_size_file")
        if param.HasField("resize_param"):
            check_resize(param.resize_param, "detection_evaluate_param.resize_param")
            self.resize = param.resize_param

    def reshape(self, bottom, top):
        for i, width in enumerate((7, 8)):
            if not bottom[i].num_axes or bottom[i].shape[bottom[i].num_axes - 1] != width:
                raise ShapeError(f"must be rows of {width} numbers, got {list(bottom[i].shape)}", field=f"bottom[{i}]")

    def forward_cpu(self, bottom, top):
        param = self.param.detection_evaluate_param
        found = bottom[0].cpu_data.reshape(-1, 7).astype(float)
        known = bottom[1].cpu_data.reshape(-1, 8).astype(float)
        for i, (rows, column) in enumerate(((found, 1), (known, 0))):
            check_rows(rows, rows[:, column] != -1, 2**31, param.num_classes, param.background_label_id, f"bottom[{i}]")
        if self.sizes is not None:
            self._to_pixels(found[:, 3:], found[:, 0], known[:, 3:7], known[:, 0])
        found = found[(found[:, :2] != -1).all(1)]
        scores = np.where(np.isnan(found[:, 2]), -np.inf, found[:, 2])
        found = found[np.lexsort((-scores, found[:, 1], found[:, 0]))]
        known = known[known[:, 0] != -1]
        counts = (known[:, 7] == 0) | param.evaluate_difficult_gt
        objects = np.bincount(known[counts, 1].astype(int), minlength=param.num_classes)[self.classes]
        top[0].reshape(1, 1, len(objects) + len(found), 5)
        rows = top[0].data[0, 0]
        rows[:, 0], rows[:, 3:] = -1, -1
        rows[:len(objects), 1], rows[:len(objects), 2] = self.classes, objects
        rows[len(objects):] = np.column_stack([found[:, :3], self._match(found, known, counts)])

    def _match(self, found, known, counts):
        """Return (right, wrong) of each detection; those of an image and label come by falling score."""
        result, taken = np.tile([0.0, 1.0], (len(found), 1)), np.zeros(len(known), bool)
        for image in np.unique(found[:, 0]):
            found_rows, known_rows = np.flatnonzero(found[:, 0] == image), np.flatnonzero(known[:, 0] == image)
            if not len(known_rows):
                continue
            shares = overlaps(found[found_rows, 3:], known[known_rows, 3:7], self.sizes is not None)[0]
            shares[found[found_rows, 1][:, np.newaxis] != known[known_rows, 1]] = -1
            best = shares.argmax(1)
            enough = shares[range(len(found_rows)), best] >= self.param.detection_evaluate_param.overlap_threshold
            for i, k in zip(found_rows[enough], known_rows[best[enough]]):
                result[i] = (not taken[k], taken[k]) if counts[k] else (0, 0)
                taken[k] |= counts[k]
        return result

    def _to_pixels(self, found, found_images, known, known_images):
        """Map boxes of this batch to pixels, in place; how many images it has shows in the rows."""
        images = int(max(np.max(found_images, initial=-1), np.max(known_images, initial=-1))) + 1
        for image in range(images):
            _, height, width = self.sizes[(self.seen + image) % len(self.sizes)]
            for boxes, of in ((found, found_images), (known, known_images)):
                boxes[of == image] = boxes_to_pixels(self.resize, boxes[of == image], height, width)
        self.seen += images

    def get_state(self):
        return {"seen": self.seen} if self.sizes is not None else None

    def set_state(self, state):
        self.seen, = state_numbers(state, {"seen": 1 << 63})
