"""Serialized Datums for the tests of the data room."""

import numpy as np

from minicaffe.proto import caffe_pb2


def datum(pixels, label=0, **fields):
    """Return a serialized Datum of an array (C, H, W): bytes for uint8, float_data otherwise."""
    message = caffe_pb2.Datum(channels=pixels.shape[0], height=pixels.shape[1], width=pixels.shape[2], label=label)
    if pixels.dtype == np.uint8:
        message.data = pixels.tobytes()
    else:
        message.float_data.extend(pixels.ravel().tolist())
    for name, value in fields.items():
        setattr(message, name, value)
    return message.SerializeToString()
