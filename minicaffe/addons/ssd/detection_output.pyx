"""DetectionOutput: from SSD's predictions to boxes with labels and scores (SSD's detection_output_layer.cpp; Liu et al., 2016).

The boxes' arithmetic is defined in addons/ssd/boxes/detection_output.hpp; files of the results in addons/ssd/detection_files.py.
Different from Caffe: `background_label_id` -1 works with shared locations; boxes of equal score come in the order of their
prior boxes; a directory for results is not emptied, and its files are replaced at once; nothing is drawn (`visualize`).
"""

from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.device.threads cimport Threads, num_threads
from minicaffe.layer cimport Layer

import logging

import numpy as np

from minicaffe.addons.ssd.detection_files import DetectionFiles, check_finite
from minicaffe.errors import ConfigError, DataError, ShapeError

cdef extern from "minicaffe/addons/ssd/boxes/detection_output.hpp" namespace "mc::cpu" nogil:
    struct DetectionRule:
        long long images, priors, classes
        int background, code
        cpp_bool share_location, variance_in_target
        double threshold, nms_threshold, eta
        long long nms_top_k, keep_top_k
    cppclass Detection:
        pass
    vector[Detection] detect_typed(Threads threads, int dtype, const DetectionRule& rule, const void* loc, const void* conf,
                                   const void* priors)
    int CORNER "mc::cpu::kCorner"

log = logging.getLogger(__name__)
cdef double LOWEST = -3.402823466e38   # every finite score is above it


cdef class DetectionOutputLayer(Layer):
    """Decode the boxes, leave out those that a better one of their class overlaps, keep the best.

    Parameters
    ----------
    bottom[0] : Blob, shape (N, P L 4) or any with N P L 4 elements
        Codes of the boxes for P prior boxes and L locations: 1 with `share_location`, else one for each class.
    bottom[1] : Blob, shape (N, P classes)
        Scores, after the softmax or sigmoid that the net ends with.
    bottom[2] : Blob, shape (1, 2, P 4)
        Prior boxes and variances, from PriorBox.
    bottom[3] : Blob, shape (N, C, H, W), optional
        The pictures, on which SSD draws boxes if `visualize` is true. They are not read.
    top[0] : Blob, shape (1, 1, D, 7)
        Rows (image in the batch, label, score, xmin, ymin, xmax, ymax) by image, label and falling score, in units of the
        picture's size, not clipped. Where the whole batch has none: a row for each image, -1 but for the image.

    Raises
    ------
    ConfigError, ShapeError
        For fields out of range, and bottoms that do not fit P, L and `num_classes`.
    DataError
        For a prior box without width or height, where the codes count in its sizes.
    """

    min_bottom_blobs = 3
    max_bottom_blobs = 4
    exact_num_top_blobs = 1

    cdef DetectionRule rule
    cdef object files   # None unless requested

    cpdef layer_setup(self, list bottom, list top):
        param, nms = self.param.detection_output_param, self.param.detection_output_param.nms_param
        check_fields("detection_output_param", param, (
            ("background_label_id", not -1 <= param.background_label_id < param.num_classes,
             f"must be from -1 to num_classes - 1 = {param.num_classes - 1}"),
            ("keep_top_k", param.keep_top_k < -1, "must be at least -1")))
        self.rule.classes, self.rule.background = param.num_classes, param.background_label_id
        self.rule.share_location, self.rule.variance_in_target = param.share_location, param.variance_encoded_in_target
        self.rule.code = param.code_type
        self.rule.threshold = param.confidence_threshold if param.HasField("confidence_threshold") else LOWEST
        self.rule.nms_threshold, self.rule.eta = nms.nms_threshold, nms.eta
        self.rule.nms_top_k = nms.top_k if nms.HasField("top_k") else -1
        self.rule.keep_top_k = param.keep_top_k
        self.files = DetectionFiles(param) if DetectionFiles.wanted(param) else None
        if param.visualize:
            log.warning("layer '%s': detection_output_param.visualize is ignored: minicaffe detect --out FILE draws boxes on "
                        "pictures", self.name)
        (<Blob> top[0]).reshape(1, 1, 1, 7)

    cpdef reshape(self, list bottom, list top):
        self.rule.images, self.rule.priors = check_predictions(bottom, self.rule.classes, self.rule.share_location)

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* loc = (<Blob> bottom[0]).cpu_data_ptr()
        cdef const void* conf = (<Blob> bottom[1]).cpu_data_ptr()
        cdef const void* priors = (<Blob> bottom[2]).cpu_data_ptr()
        cdef vector[Detection] found
        cdef double[:, ::1] values      # without a variable Cython 3.3 leaves out the C type of memoryviews
        cdef Threads threads = num_threads()
        check_priors(bottom[2], self.rule.code)
        with nogil:
            found = detect_typed(threads, self.dtype, self.rule, loc, conf, priors)
        top[0].reshape(1, 1, found.size() or self.rule.images, 7)
        rows = top[0].data.reshape(-1, 7)
        if found.size():
            values = <double[:found.size(), :7]> <double*> found.data()
            rows[...] = values
        else:
            rows[:, 0], rows[:, 1:] = range(len(rows)), -1
            rows = rows[:0]
        if self.files is not None:
            check_finite(rows)
            self.files.add(self.rule.images, rows)


def check_fields(name, param, rules):
    """Raise ConfigError for the first field of `param` that breaks a rule of both layers, or of `rules`, (field, wrong, rule)."""
    nms = param.nms_param
    for field, wrong, rule in (
            ("num_classes", param.num_classes < 1, "must be given and at least 1"), *rules,
            ("nms_param.nms_threshold", not nms.nms_threshold >= 0, "must be at least 0"),
            ("nms_param.eta", not 0 < nms.eta <= 1, "must be above 0 and at most 1"),
            ("nms_param.top_k", nms.top_k < -1, "must be at least -1")):
        if wrong:
            value = nms if field.startswith("nms_param.") else param
            raise ConfigError(f"{rule}, got {getattr(value, field.rpartition('.')[2]):g}", field=f"{name}.{field}")


def check_predictions(list bottom, long long classes, bint share_location):
    """Return the numbers of images and of prior boxes.

    Raises ShapeError unless codes, scores and prior boxes, the first three bottoms, fit each other.
    """
    cdef Blob loc = bottom[0], conf = bottom[1], priors = bottom[2]
    for i in range(2):
        if not bottom[i].num_axes:
            raise ShapeError("needs an axis for the images, got a scalar", field=f"bottom[{i}]")
    if priors.num_axes < 3 or priors.dims[0] != 1 or priors.dims[1] != 2 or priors.count % 8:
        raise ShapeError(f"must be prior boxes and variances, (1, 2, boxes x 4), got {list(priors.shape)}", field="bottom[2]")
    cdef long long images = loc.dims[0], boxes = priors.count // 8, locations = 1 if share_location else classes
    if loc.count_range(1, loc.num_axes) != boxes * locations * 4:
        raise ShapeError(f"needs {boxes} prior boxes x {locations} locations x 4 = {boxes * locations * 4} codes for each image, "
                         f"got {list(loc.shape)}", field="bottom[0]")
    if conf.dims[0] != images or conf.count_range(1, conf.num_axes) != boxes * classes:
        raise ShapeError(f"needs {boxes} prior boxes x {classes} classes = {boxes * classes} scores for each of {images} images, "
                         f"got {list(conf.shape)}", field="bottom[1]")
    return images, boxes


def check_priors(priors, int code):
    """Raise DataError for the first prior box without width or height, unless the codes do without sizes."""
    boxes = priors.cpu_data.reshape(2, -1, 4)[0]
    flat = ~(boxes[:, :2] < boxes[:, 2:]).all(1)
    for index in np.flatnonzero(flat)[:1] if code != CORNER else ():
        box = ", ".join([f"{edge:g}" for edge in boxes[index]])
        raise DataError(f"prior box {index}, ({box}), has no width or no height; code_type CENTER_SIZE and CORNER_SIZE need both",
                        field="bottom[2]")


def check_rows(rows, counts, images, classes, background, field):
    """Raise DataError for the first of the rows (image, label, ...) that counts and has a wrong image or label."""
    image, label = rows[:, 0], rows[:, 1]
    fraction = (np.floor(image) < image) | (np.floor(label) < label)
    right = (image >= 0) & (image < images) & (label >= 0) & (label < classes) & (label != background)
    for i in np.flatnonzero(counts & (fraction | ~right))[:1]:
        if fraction[i]:
            why = f"image {image[i]!s} and label {label[i]!s} must be integers; round them in the data"
        elif not 0 <= image[i] < images:
            why = f"image {image[i]:g} is not in the batch" + (f" of {images}" if images < 2**31 else "")
        elif label[i] == background:
            why = f"label {label[i]:g} of image {image[i]:g} is background, which is not an object"
        else:
            why = f"label {label[i]:g} of image {image[i]:g} is outside 0..{classes - 1}; correct the data or num_classes"
        raise DataError(f"row {i}: {why}", field=field)
