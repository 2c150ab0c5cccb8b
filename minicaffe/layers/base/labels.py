"""The error about a class label that the data have and the net has not."""

from minicaffe.errors import DataError


def bad_label(labels, index, classes):
    """Return the DataError for element `index` of the blob `labels`, which is outside ``0..classes - 1``."""
    per_record = labels.count // labels.shape[0] if labels.num_axes and labels.shape[0] else 1
    record, position = divmod(index, per_record)
    where = f"record {record}" + (f", position {position}" if per_record > 1 else "")
    return DataError(f"label {labels.cpu_data.flat[index]:g} of {where} is outside 0..{classes - 1}; mend the data, give the "
                     "net more classes, or name it in ignore_label", field="bottom[1]")
