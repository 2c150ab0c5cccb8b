"""DetectionEvaluate: which detections are right (SSD's detection_evaluate_layer.cpp), for mean average precision.

mean_precision.py makes precisions of the rows. Different from Caffe: with `name_size_file` the line of an image is
counted over all images of the batches, where Caffe left out those without a detection, so that later boxes were mapped with
sizes of other images.
"""

from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from minicaffe.layer cimport Layer

import numpy as np

from minicaffe.common import caffe
from minicaffe.addons.ssd.label_map import read_name_sizes
from minicaffe.addons.ssd.mean_precision import DetectionOutputs
from minicaffe.data.resize import boxes_to_pixels, check_resize
from minicaffe.errors import ConfigError, ShapeError, in_field
from minicaffe.layers.base.checks import check_size, state_numbers
from minicaffe.addons.ssd.detection_output import check_rows

cdef extern from "minicaffe/addons/ssd/boxes/detection_evaluate.hpp" namespace "mc::cpu" nogil:
    struct EvaluateRule:
        long long classes
        int background
        double overlap_threshold
        cpp_bool difficult, pixels
    vector[double] evaluate(const EvaluateRule& rule, const double* detections, long long n, const double* objects, long long m)


cdef class DetectionEvaluateLayer(Layer):
    """Compare detections with the objects that are there.

    A detection is right if the object of its label and image that it overlaps most is overlapped by at least
    `overlap_threshold`, and no detection with a higher score took that object; it counts neither way if the object is marked
    difficult and `evaluate_difficult_gt` is false; else it is wrong.

    Parameters
    ----------
    bottom[0] : Blob, shape (1, 1, D, 7)
        From DetectionOutput; rows with label -1 do not count.
    bottom[1] : Blob, shape (1, 1, G, 8)
        Rows (image, label, instance, xmin, ymin, xmax, ymax, difficult); image -1 is no object.
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
        For a label that is no integer or no class, or objects of the background; names the row.
    """

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    test_outputs = DetectionOutputs

    cdef EvaluateRule rule
    cdef list sizes        # (name, height, width) of the images, or None
    cdef object resize
    cdef long long seen    # images so far

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.detection_evaluate_param
        check_size(param.num_classes, "detection_evaluate_param.num_classes", needed=True)
        if not 0 < param.overlap_threshold <= 1:
            raise ConfigError(f"must be above 0 and at most 1, got {param.overlap_threshold:g}",
                              field="detection_evaluate_param.overlap_threshold")
        self.rule.classes, self.rule.background = param.num_classes, min(param.background_label_id, param.num_classes)
        self.rule.overlap_threshold, self.rule.difficult = param.overlap_threshold, param.evaluate_difficult_gt
        self.sizes = self.resize = None
        if param.name_size_file:
            caffe.check_path(param.name_size_file, "detection_evaluate_param.name_size_file")
            with in_field("detection_evaluate_param.name_size_file"):
                self.sizes = read_name_sizes(param.name_size_file)
        if param.HasField("resize_param"):
            check_resize(param.resize_param, "detection_evaluate_param.resize_param")
            self.resize = param.resize_param
        self.rule.pixels = self.sizes is not None
        top[0].reshape(1, 1, self.rule.classes - (1 if self.rule.background < self.rule.classes else 0), 5)

    cpdef reshape(self, list bottom, list top):
        for i, width in enumerate((7, 8)):
            if not bottom[i].num_axes or bottom[i].shape[bottom[i].num_axes - 1] != width:
                raise ShapeError(f"must be rows of {width} numbers, got {list(bottom[i].shape)}", field=f"bottom[{i}]")

    cpdef forward_cpu(self, list bottom, list top):
        detections = bottom[0].cpu_data.reshape(-1, 7).astype(float)
        objects = bottom[1].cpu_data.reshape(-1, 8).astype(float)
        check_rows(detections, detections[:, 1] != -1, 2**31, self.rule.classes, self.rule.background, "bottom[0]")
        check_rows(objects, objects[:, 0] != -1, 2**31, self.rule.classes, self.rule.background, "bottom[1]")
        if self.sizes is not None:
            self._to_pixels(detections[:, 3:], detections[:, 0], objects[:, 3:7], objects[:, 0])
        cdef const double[::1] found = detections.reshape(-1), known = objects.reshape(-1)
        cdef const double* at = &found[0] if found.shape[0] else NULL
        cdef const double* there = &known[0] if known.shape[0] else NULL
        cdef vector[double] rows
        with nogil:
            rows = evaluate(self.rule, at, found.shape[0] // 7, there, known.shape[0] // 8)
        top[0].reshape(1, 1, rows.size() // 5, 5)
        if rows.size():
            top[0].data.reshape(-1)[...] = <double[:rows.size()]> rows.data()

    def _to_pixels(self, found, found_images, known, known_images):
        """Map boxes of this batch to pixels, in place; how many images it has shows in the rows."""
        images = int(max(np.max(found_images, initial=-1), np.max(known_images, initial=-1))) + 1
        for image in range(images):
            _, height, width = self.sizes[(self.seen + image) % len(self.sizes)]
            for boxes, of in ((found, found_images), (known, known_images)):
                boxes[of == image] = boxes_to_pixels(self.resize, boxes[of == image], height, width)
        self.seen += images

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if any(propagate_down):
            raise ConfigError("DetectionEvaluate has no gradient; it is a layer for the TEST phase")

    def get_state(self):
        return {"seen": self.seen} if self.sizes is not None else None

    def set_state(self, state):
        self.seen, = state_numbers(state, {"seen": 1 << 63})
