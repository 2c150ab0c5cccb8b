"""Class labels beside predictions (outer, classes, inner): one for each of outer x inner positions, checked on the host."""

from minicaffe.blob cimport Blob
from minicaffe.ops.loss.caffe cimport Labels, check_labels

import numpy as np

from minicaffe.errors import DataError, ShapeError

REAL = "EuclideanLoss and SmoothL1Loss take real numbers"


cdef int set_label_shape(Labels* labels, Blob x, int axis, int end, Blob blob) except -1:
    """Set the shape of `labels`: the classes are the axes from `axis` to before `end` of the predictions x.

    Raises ShapeError if `blob`, which is bottom[1], does not have one label for each position.
    """
    labels.outer, labels.classes, labels.inner = x.count_range(0, axis), x.count_range(axis, end), x.count_range(end, x.num_axes)
    if blob.count != labels.outer * labels.inner:
        raise ShapeError(f"needs one label for each of the {labels.outer * labels.inner} predictions, got {list(blob.shape)}",
                         field="bottom[1]")


cdef long long count_labels(int dtype, const Labels& labels, Blob blob) except -1:
    """Return how many labels of `blob`, which is bottom[1], are not ignored.

    Raises DataError if one is no integer or outside the classes; names record and position.
    """
    cdef long long valid, bad = check_labels(dtype, labels, blob.cpu_data_ptr(), &valid)
    if bad < 0:
        return valid
    value, where = blob.cpu_data.flat[bad], place_of(blob, bad)
    if np.floor(value) < value:
        raise DataError(f"label {value!s} of {where} is not an integer; round it in the data. {REAL}", field="bottom[1]")
    raise DataError(f"label {value:g} of {where} is outside 0..{labels.classes - 1}; correct the data, give the net "
                    "more classes, or name it in ignore_label", field="bottom[1]")


cdef str place_of(Blob blob, long long index):
    """Return the words for a value of a blob: its record, and its position there if a record has several."""
    per_record = blob.count // blob.shape[0] if blob.num_axes and blob.shape[0] else 1
    record, position = divmod(index, per_record)
    return f"record {record}" + (f", position {position}" if per_record > 1 else "")
