"""Mean files: a binary BlobProto that holds one picture (Caffe compute_image_mean.cpp, transform_param.mean_file).

Written with the old dimensions num = 1, channels, height, width, which every Caffe reads; files with a `shape` are read
as well.
"""

import numpy as np

from minicaffe.errors import DataError, Error, FileError
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.files import read_bytes
from minicaffe.proto.stored import parse_blob, shown

WANTED = "a mean file (binaryproto)"


def write_mean(path, mean):
    """Write `mean`, shape (C, H, W), to the file `path`; a failure keeps the old file."""
    channels, height, width = mean.shape
    blob = caffe_pb2.BlobProto(num=1, channels=channels, height=height, width=width, data=mean.ravel().tolist())
    write_bytes(path, blob.SerializeToString())


def read_mean(path):
    """Read a mean file as float64 of (C, H, W).

    Raises FileError if it is not there; DataError if it is no BlobProto, or its shape does not fit its values.
    """
    try:
        content = read_bytes(path)
    except FileError as error:
        error.message = f"mean file cannot be read: {error.message}"
        raise
    try:
        stored = parse_blob(content)
        shape, picture = stored.shape, stored.shape[-3:]
        if len(picture) != 3 or any(s != 1 for s in shape[:-3]) or 0 in picture:
            raise DataError(f"has the shape {shown(shape)} in the place of 1 x channels x height x width; name another file")
    except Error as error:
        error.message = f"is no mean file: {error.message}, or make one with 'minicaffe data mean'"
        raise kinds.with_kind(error.at(file=str(path)), content, WANTED, ("mean",))
    return stored.data.astype(np.float64).reshape(picture)
