"""Layers that decode the predictions of YOLO nets to boxes with labels and scores, as rows of SSD's DetectionOutput."""

import numpy as np

from minicaffe.addons.forks.base import ForkLayer, check_planes
from minicaffe.addons.forks.messages import Field
from minicaffe.addons.forks.rois import suppress
from minicaffe.errors import ConfigError, DataError, ShapeError

CLASSES = Field("num_classes", int, "how many classes, without a background", 1)
CONFIDENCE = Field("confidence_threshold", 0.01, "the least confidence of a box")
OVERLAP = Field("nms_threshold", 0.45, "the overlap with a better box of the image, of any class, that removes a box")


class YoloOutputLayer(ForkLayer):
    """Base of the types that find boxes in maps; each cell of a map predicts several boxes.

    A type defines ``probabilities(values)`` of the classes, for an array (B, classes), and ``reaches(confidence, threshold)``. Its
    `setup` sets `anchors`, for each bottom an array (boxes, 2) of widths and heights in cells, and `best_only`, whether a cell's
    box has only its best class.
    """

    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False
    exact_num_top_blobs = 1
    values_before_classes = 5   # x, y, w, h, object

    def setup(self, bottom, top):
        top[0].reshape(1, 1, 1, 7)

    def reshape(self, bottom, top):
        boxes, each = self.values["num_box"], self.values_before_classes + self.values["num_classes"]
        for i, blob in enumerate(bottom):
            check_planes(blob, f"bottom[{i}]")
            if blob.shape[1] != boxes * each:
                raise ShapeError(f"must have num_box x ({self.values_before_classes} + num_classes) = {boxes} x {each} = "
                                 f"{boxes * each} channels, got {list(blob.shape)}", field=f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0]:
                raise ShapeError(f"has {blob.shape[0]} images, bottom[0] has {bottom[0].shape[0]}; they must be equal",
                                 field=f"bottom[{i}]")

    def forward(self, bottom, top):
        (images, channels, *_), boxes, found = bottom[0].shape, self.values["num_box"], []
        maps = [blob.cpu_data.reshape(images, boxes, channels // boxes, *blob.shape[2:]) for blob in bottom]
        rows = np.concatenate([self._rows(i, values.transpose(0, 3, 4, 1, 2)) for i, values in enumerate(maps)])
        for image in range(images):
            image_rows = rows[rows[:, 0] == image]
            image_rows = image_rows[np.argsort(-image_rows[:, 2], kind="stable")]
            found.append(image_rows[suppress(image_rows[:, 3:], self.values["nms_threshold"], at_threshold=True)])
        rows = np.concatenate(found) if found else rows
        if not len(rows):
            rows = np.full((images, 7), -1)
            rows[:, 0] = range(images)
        top[0].reshape(1, 1, len(rows), 7)
        top[0].data[...] = rows

    def _rows(self, index, cells):
        """Return (image, label, confidence, xmin, ymin, xmax, ymax) of the boxes of a bottom, (N, H, W, boxes, values)."""
        first, threshold = self.values_before_classes, self.values["confidence_threshold"]
        place = np.nonzero(self.reaches(sigmoid(cells[..., first - 1]), threshold))     # no class has a larger confidence
        values = cells[place]
        objects = sigmoid(values[:, first - 1])
        if first == 9:      # with uncertainties
            objects = objects * (1 - sigmoid(values[:, 1:8:2]).mean(1))
        confidences = objects[:, np.newaxis] * self.probabilities(values[:, first:])
        counts = self.reaches(confidences, threshold)
        if self.best_only:
            counts &= np.arange(counts.shape[1]) == np.where(counts, confidences, -1).argmax(1)[:, np.newaxis]
        kept, label = np.nonzero(counts)
        image, row, column, box = (axis[kept] for axis in place)
        codes, size = values[kept, :first - 1:first // 4], cells.shape[2:0:-1]      # x, y, w, h; width, height
        centres = (np.column_stack([column, row]) + sigmoid(codes[:, :2])) / size
        sides = np.exp(codes[:, 2:]) * self.anchors[index][box] / size
        corners = np.concatenate([centres - sides / 2, centres + sides / 2], 1)
        for i in np.flatnonzero(~np.isfinite(corners).all(1))[:1]:
            raise DataError(f"the box at row {row[i]}, column {column[i]} of image {image[i]} is not finite: (x, y, width, height) "
                            f"= {[*centres[i].tolist(), *sides[i].tolist()]}", field=f"bottom[{index}]")
        return np.column_stack([image, label + 1, confidences[kept, label], corners])

    def backward(self, top, propagate_down, bottom):
        if any(propagate_down):
            raise ConfigError(f"{self.type} has no gradient; it is for phase TEST")


class YoloDetectionOutputLayer(YoloOutputLayer):
    """Boxes of YOLO version 2: decode them, remove those that a better one overlaps.

    Box n of the cell at (row, column) has values (x, y, w, h, object, classes...). Its centre is ((column + sigmoid x) / W,
    (row + sigmoid y) / H), its size (exp(w) biases[2n] / W, exp(h) biases[2n + 1] / H), in units of the image's size. Its label is
    that of the most probable class, p = softmax(classes), and its confidence sigmoid(object) p. It is kept if that is
    `confidence_threshold` or more, and no better box of the image, of any class, overlaps it by `nms_threshold` or more.
    A box that is not finite raises DataError, which names image and cell.

    Different from its fork: boxes do not suppress boxes of other images. A row has the index of its image, not 0. Boxes of equal
    confidence are in the order of bottoms, rows, columns and boxes of a cell. A map need not be square.

    Source: mobilenet-yolo yolo_detection_output_layer.cpp (Redmon and Farhadi 2017, YOLO9000).

    Parameters
    ----------
    bottom[0], bottom[1] (optional) : Blob, shape (N, num_box (5 + num_classes), H, W)
    top[0] : Blob, shape (1, 1, D, 7)
        Rows (image in the batch, label from 1, confidence, xmin, ymin, xmax, ymax) by image and falling confidence, not clipped.
        If the whole batch has no box: a row for each image, in which all values except the image are -1.
    """

    message = "yolo_detection_output_param"
    fields_of_message = (CLASSES, Field("num_box", 5, "boxes of a cell", 1), Field("coords", 4, "must be 4", choices=(4,)),
                         CONFIDENCE, OVERLAP, Field("biases", [float], "width and height of each box of a cell, in cells"))
    ignored = ("side", "label_map_file")
    min_bottom_blobs = 1
    max_bottom_blobs = 2
    reaches = np.greater_equal

    def setup(self, bottom, top):
        super().setup(bottom, top)
        if len(self.values["biases"]) != 2 * self.values["num_box"]:
            raise self.value_error("biases", f"give width and height for each of {self.values['num_box']} boxes (num_box)")
        self.best_only, self.anchors = True, [np.reshape(self.values["biases"], (-1, 2))] * len(bottom)

    def probabilities(self, values):
        powers = np.exp(values - values.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


class Yolov3DetectionOutputLayer(YoloOutputLayer):
    """Boxes of YOLO version 3, from several maps: decode them, remove those that a better one overlaps.

    Box n of the cell at (row, column) of bottom t has the values (x, y, w, h, object, classes...). Its anchor is
    m = `mask`[t M + n], with M masks for each bottom. Its centre is ((column + sigmoid x) / W, (row + sigmoid y) / H), its size
    (exp(w) biases[2m] / (W s), exp(h) biases[2m + 1] / (H s)), s = `anchors_scale`[t], in units of the image's size. The confidence
    of a class is sigmoid(object) sigmoid(class). Each class with more than `confidence_threshold` gives a box. It is kept if no
    better box of the image, of any class, overlaps it by `nms_threshold` or more.

    With `gaussian_box` the values are (x, sx, y, sy, w, sw, h, sh, object, classes...). The sigmoids of sx, sy, sw and sh are the
    uncertainty of the box; the confidence is multiplied by 1 minus their mean.
    A box that is not finite raises DataError, which names image and cell.

    Different from its fork: boxes do not suppress boxes of other images. A row has the index of its image, not 0. Boxes of equal
    confidence are in the order of bottoms, rows, columns, boxes of a cell and classes. There is no correction for letterboxes; the
    fork's has no effect, as the map has the proportions of the net's input.

    Source: mobilenet-yolo yolov3_detection_output_layer.cpp (Redmon and Farhadi 2018, YOLOv3).

    Parameters
    ----------
    bottom[t] : Blob, shape (N, num_box (5 + num_classes), H, W), with `gaussian_box` (N, num_box (9 + num_classes), H, W)
    top[0] : Blob, shape (1, 1, D, 7)
        Rows (image in the batch, label from 1, confidence, xmin, ymin, xmax, ymax) by image and falling confidence, not clipped.
        If the whole batch has no box: a row for each image, in which all values except the image are -1.
    """

    message = "yolov3_detection_output_param"
    fields_of_message = (CLASSES, Field("num_box", 3, "boxes of a cell", 1), CONFIDENCE, OVERLAP,
                         Field("biases", [float], "width and height of each anchor, in pixels of the net's input"),
                         Field("anchors_scale", [int], "pixels of the input for one cell of each bottom", 1),
                         Field("mask_group_num", 2, "the number of bottoms", 1),
                         Field("mask", [int], "numbers of the anchors of bottom 0, of bottom 1, and so on", 0),
                         Field("gaussian_box", False, "each of x, y, w, h has an uncertainty after it"))
    min_bottom_blobs = 1
    reaches = np.greater

    def setup(self, bottom, top):
        super().setup(bottom, top)
        values, count = self.values, len(bottom)
        self.values_before_classes = 9 if values["gaussian_box"] else 5
        if values["mask_group_num"] != count:
            raise self.value_error("mask_group_num", f"must be the number of bottoms, {count}")
        if len(values["anchors_scale"]) != count:
            raise self.value_error("anchors_scale", f"give one for each of {count} bottoms")
        if len(values["mask"]) % count or len(values["mask"]) // count < values["num_box"]:
            raise self.value_error("mask", f"give as many for each of {count} bottoms, at least num_box = {values['num_box']}")
        if len(values["biases"]) % 2 or len(values["biases"]) // 2 <= max(values["mask"]):
            raise self.value_error("biases", f"give width and height of each anchor up to {max(values['mask'])}, the last of mask")
        # With a threshold up to 1 only the best class stays: the boxes of a cell's classes are equal and overlap by 1.
        self.best_only = values["nms_threshold"] <= 1
        anchors = np.reshape(values["biases"], (-1, 2))[np.reshape(values["mask"], (count, -1))]
        self.anchors = anchors / np.reshape(values["anchors_scale"], (-1, 1, 1))

    def probabilities(self, values):
        return sigmoid(values)


def sigmoid(values):
    """Return 1 / (1 + exp(-values))."""
    return 1 / (1 + np.exp(-values))
