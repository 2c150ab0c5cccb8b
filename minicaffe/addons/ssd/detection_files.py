"""Output of DetectionOutput: result files in the form of VOC, ILSVRC or COCO, and boxes drawn on a picture.

Different from Caffe: other files in the directory are kept, and each result file is replaced when it is complete.
"""

import json
import logging
import os

import numpy as np

from minicaffe.addons.ssd.label_map import read_given, read_label_map, read_name_sizes
from minicaffe.addons.ssd.resize import boxes_to_pixels, check_resize
from minicaffe.common import caffe
from minicaffe.data.datum import opencv
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.proto.atomic import write_bytes

log = logging.getLogger(__name__)
FORMATS = ("VOC", "COCO", "ILSVRC")
SAVE_FIELD = "detection_output_param.save_output_param"
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")


class DetectionFiles:
    """Collects detections and writes them at the end of each pass over the test set.

    `save_output_param` of a DetectionOutputParameter has a directory, a label map and a list of names and sizes. Raises
    ConfigError, FileError or DataError if a field is wrong, a file cannot be read, or the net may not write.
    """

    def __init__(self, param):
        save = param.save_output_param
        if save.output_format not in FORMATS:
            raise ConfigError(f"must be one of {', '.join(FORMATS)}, got '{save.output_format}'",
                              field=f"{SAVE_FIELD}.output_format")
        caffe.check_path(save.output_directory, f"{SAVE_FIELD}.output_directory", writes=True)
        self.directory, self.prefix, self.format = save.output_directory, save.output_name_prefix, save.output_format
        self.names = read_given(read_label_map, save.label_map_file, f"{SAVE_FIELD}.label_map_file")
        self.images = read_given(read_name_sizes, save.name_size_file, f"{SAVE_FIELD}.name_size_file")
        self.background = param.background_label_id
        for label in range(param.num_classes):
            if label != self.background and label not in self.names:
                raise DataError(f"'{save.label_map_file}' has no item for label {label}", field=f"{SAVE_FIELD}.label_map_file")
        count = save.num_test_image if save.HasField("num_test_image") else len(self.images)
        if not 1 <= count <= len(self.images):
            raise ConfigError(f"must be from 1 to {len(self.images)}, the lines of name_size_file, got {count}",
                              field=f"{SAVE_FIELD}.num_test_image")
        self.count = count
        self.resize = save.resize_param if save.HasField("resize_param") else None
        if self.resize is not None:
            check_resize(self.resize, f"{SAVE_FIELD}.resize_param")
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            raise FileError(f"'{self.directory}' cannot be made: {error.strerror}",
                            field=f"{SAVE_FIELD}.output_directory") from error
        self.seen = 0    # images of the test set so far
        self.found = []  # (name, label, score, box in pixels rounded to hundredths)

    @staticmethod
    def wanted(param):
        """Return whether results are written: Caffe requires a directory, a label map, and names and sizes."""
        save = param.save_output_param
        if not save.output_directory:
            return False
        missing = [name for name in ("label_map_file", "name_size_file") if not getattr(save, name)]
        if missing:
            log.warning("%s: nothing is written to '%s' without %s", SAVE_FIELD, save.output_directory, " and ".join(missing))
        return not missing

    def add(self, images, rows):
        """Add the detections of a batch of `images` pictures; write the files at the end of the test set."""
        for image in range(images):
            name, height, width = self.images[self.seen]
            found = rows[rows[:, 0] == image]
            boxes = np.round(boxes_to_pixels(self.resize, found[:, 3:].astype(float), height, width), 2)
            self.found += zip([name] * len(found), found[:, 1].astype(int).tolist(), found[:, 2].tolist(), boxes.tolist())
            self.seen += 1
            if self.seen == self.count:
                self._write()
                self.seen, self.found = 0, []

    def _write(self):
        if self.format == "VOC":
            by_label = {label: [] for label in self.names if label != self.background}
            for name, label, score, box in self.found:
                by_label[label].append(f"{name} {score:g} {' '.join(str(int(edge)) for edge in box)}\n")
            for label, lines in by_label.items():
                self._write_file(self.names[label][0] + ".txt", "".join(lines))
        elif self.format == "ILSVRC":
            self._write_file(".txt", "".join(f"{name} {label} {score:g} {' '.join(f'{edge:g}' for edge in box)}\n"
                                             for name, label, score, box in self.found))
        else:
            results = [{"image_id": _number(name), "category_id": _number(self.names[label][0]),
                        "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)], "score": score}
                       for name, label, score, (left, top, right, bottom) in self.found]
            self._write_file(".json", json.dumps(results))

    def _write_file(self, end, content):
        if caffe.solver_rank:   # of processes that train together only rank 0 writes
            return
        write_bytes(os.path.join(self.directory, self.prefix + end), content.encode("utf-8", "surrogateescape"))


def draw_boxes(image, rows, names):
    """Draw the boxes of `rows` (N, 7), of a DetectionOutput, on a picture (H, W, 3) in BGR, with their names and scores.

    `names` is a dict by label; a label without a name is written as its number.
    """
    cv2 = opencv()
    height, width = image.shape[:2]
    for _, label, score, *box in rows.tolist():
        left, top, right, bottom = (int(round(edge)) for edge in np.clip(box, -1, 2) * [width, height, width, height])
        hue = np.array([[[int(label) * 67 % 180, 255, 255]]], np.uint8)  # neighbouring labels far apart on the wheel
        colour = cv2.cvtColor(hue, cv2.COLOR_HSV2BGR)[0, 0].tolist()
        cv2.rectangle(image, (left, top), (right, bottom), colour, 2)
        cv2.putText(image, f"{names.get(int(label), int(label))}: {score:.2f}", (max(left, 0), max(top, 12)),
                    cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour)


def check_finite(rows):
    """Raise DataError for the first of the detections `rows` whose score or edges are NaN or infinite."""
    for row in rows[~np.isfinite(rows).all(1)][:1]:
        image, label, score, *box = row.tolist()
        edges = ", ".join(f"{edge:g}" for edge in box)
        raise DataError(f"a box of picture {image:g} of the batch, label {label:g}, is ({edges}) with score {score:g}; it cannot "
                        "be written: look for NaN in the net's weights and data")


def _number(name):
    """A name of digits as an int, like the ids of COCO; other names unchanged."""
    return int(name) if name.isdigit() else name
