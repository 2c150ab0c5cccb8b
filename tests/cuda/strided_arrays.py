"""Arrays for tests of views."""

import numpy as np

from minicaffe.blob import Blob


def blob_of(values, dtype=0):
    blob = Blob(np.shape(values), dtype)
    blob.data[...] = values
    return blob


def numbered(*shape, dtype=0):
    return blob_of(np.arange(np.prod(shape, dtype=int)).reshape(shape), dtype)


class Foreign:
    """An array as another library would hand it over."""

    def __init__(self, address, shape, typestr="<f4", strides=None, readonly=False, **more):
        self.__cuda_array_interface__ = {"data": (address, readonly), "shape": shape, "typestr": typestr, "version": 3,
                                         "strides": strides, **more}
