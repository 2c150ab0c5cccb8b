"""Mean files: a binary BlobProto that holds one picture (Caffe compute_image_mean.cpp, transform_param.mean_file).

Written with the old dimensions num = 1, channels, height, width, which every Caffe reads; files with a `shape` are read
as well.
"""

import numpy as np

from minicaffe.errors import DataError, located
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.binary import read_blob
from minicaffe.proto.stored import shown


def write_mean(path, mean):
    """Write `mean`, shape (C, H, W), to the file `path`; a failure keeps the old file."""
    channels, height, width = mean.shape
    blob = caffe_pb2.BlobProto(num=1, channels=channels, height=height, width=width, data=mean.ravel().tolist())
    write_bytes(path, blob.SerializeToString())


def read_mean(path):
    """Read a mean file as float64 of (C, H, W); raise DataError if its blob is of another shape, other errors as `read_blob`."""
    stored = read_blob(path)
    shape, picture = stored.shape, stored.shape[-3:]
    if len(picture) != 3 or any(size != 1 for size in shape[:-3]):
        raise DataError(f"is no mean file: has the shape {shown(shape)} in the place of 1 x channels x height x width; name "
                        "another file, or make one with 'minicaffe data mean'", file=str(path))
    with located(file=str(path)):
        check_bytes(8 * stored.data.size, f"the mean of shape {shown(shape)}")
    return stored.data.astype(np.float64).reshape(picture)
