"""Mean files: a binary BlobProto that holds one picture (Caffe compute_image_mean.cpp, transform_param.mean_file).

Written with the old dimensions num = 1, channels, height, width, which every Caffe reads; files with a `shape` are read
as well.
"""

import math

import numpy as np

from minicaffe.errors import DataError, FileError
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.binary import parse_message
from minicaffe.proto.files import read_bytes

WANTED = "a mean file (binaryproto)"


def write_mean(path, mean):
    """Write `mean`, shape (C, H, W), to the file `path`; a failure leaves what was there before."""
    blob = caffe_pb2.BlobProto(num=1, channels=mean.shape[0], height=mean.shape[1], width=mean.shape[2])
    blob.data.extend(mean.ravel().tolist())
    write_bytes(path, blob.SerializeToString())


def read_mean(path):
    """Read a mean file as float64 of (C, H, W).

    Raises FileError if it is not there, or no BlobProto; DataError if its shape does not fit its values.
    """
    try:
        content = read_bytes(path)
    except FileError as error:
        error.message = f"mean file cannot be read: {error.message}"
        raise
    try:
        blob = parse_message(caffe_pb2.BlobProto, content)
    except DataError as cause:
        error = FileError("is no binary BlobProto; make a mean file with 'minicaffe data mean'", file=str(path))
        raise kinds.named(error, content, WANTED, ("mean",)) from cause
    values = np.array(blob.double_data if blob.double_data else blob.data, np.float64)
    shape = tuple(blob.shape.dim) if blob.HasField("shape") else (blob.num, blob.channels, blob.height, blob.width)
    picture = shape[-3:]
    count = math.prod(picture)  # Python integers: no overflow for any sizes in the file
    sound = len(picture) == 3 and all(s == 1 for s in shape[:-3]) and all(s > 0 for s in picture)
    if not sound or count != values.size:
        error = DataError(f"a mean file holds 1 x channels x height x width; this one says {' x '.join(map(str, shape))} "
                          f"and holds {values.size} values", file=str(path))
        raise kinds.named(error, content, WANTED, ("mean",)) if not values.size else error
    return values.reshape(picture)
