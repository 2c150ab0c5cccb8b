"""Copy a program's arrays to a net's inputs (`Net.feed`), on a GPU while earlier work still runs.

    array of the host -> page-locked memory -> (copy stream) -> staging block -> (computing stream) -> input
    array on the GPU  -> (computing stream) -> input
    on the CPU: array -> input

The first copy is made by the CPU's threads before `feed` returns, so that the caller may change or free the array. The host waits
for the GPU only if it feeds a third batch before the first one has left its page-locked memory. The device memory of an input
stays where it is, so that a recorded CUDA graph stays valid; its host side becomes the page-locked array.
"""

import functools

import numpy as np

from minicaffe.blob import NUMPY_TYPES, Blob
from minicaffe.common import caffe
from minicaffe.data.upload import DeviceUpload, pinned_array
from minicaffe.device.parallel_copy import copy_array
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError
from minicaffe.memory.states import SyncedHead
from minicaffe.memory.synced import device_lock


class Feeder:
    """Copies arrays to the inputs of one net. The caller holds the net's lock."""

    def __init__(self):
        self.uploads = {}  # by the blobs that they are for: arrays that are given together are sent together

    def feed(self, arrays, overlap=True):
        """Copy arrays of any library, as ``{name: (blob, array)}``, to blobs; if one does not fit, none is copied.

        With `overlap` host arrays are sent to the GPU while it computes, through a staging block each; without, they are
        copied to the blobs' host memory, for values that are used at once.

        Raises
        ------
        ShapeError, WrongTypeError, ConfigError, DeviceError
            Naming the blob.
        """
        sources = [(blob, _source(value, blob, name)) for name, (blob, value) in arrays.items() if value is not blob]
        on_host = []
        for blob, source in sources:
            if not blob.count:
                continue
            if isinstance(source, np.ndarray):
                on_host.append((blob, source))
            else:
                _copy_on_gpu(source, blob)
        if overlap and on_host and caffe.mode == "gpu":
            blobs = tuple(blob for blob, _ in on_host)
            if blobs not in self.uploads:
                self.uploads[blobs] = DeviceUpload()
            upload = self.uploads[blobs]
            upload.send(functools.partial(_pinned_copies, on_host))
            upload.copy_to(blobs)
            return
        for blob, array in on_host:
            copy_array(blob.mutable_cpu_data, array)


def _source(value, blob, name):
    """Return `value` as a NumPy array, or as a ForeignArray if it is on the GPU; raise if it cannot be copied to `blob`."""
    on_gpu = caffe.mode == "gpu"
    if isinstance(value, Blob):
        value = value.gpu_data if on_gpu and value.data_memory.head == SyncedHead.HEAD_AT_GPU else value.cpu_data
    if isinstance(value, np.ndarray) or not hasattr(value, "__cuda_array_interface__"):
        source = array = _host_array(value, NUMPY_TYPES[blob.dtype], name)
    elif not on_gpu:
        raise ConfigError("is on a GPU, and the net computes on the CPU; give an array of the host, or call set_mode_gpu() before",
                          field=name)
    else:
        from minicaffe.cuda.foreign_array import ForeignArray  # here, as it needs cuda-bindings
        source = ForeignArray(value, name)
        array = source.array
    if tuple(array.shape) != blob.shape or array.size != blob.count:
        raise ShapeError(f"must have the shape of the input, {list(blob.shape)}, got {list(array.shape)}; for another shape call "
                         f"net.blobs['{name}'].reshape({', '.join(map(str, array.shape))}) first", field=name)
    if array is not source:
        dtype = NUMPY_TYPES[blob.dtype]
        if array.dtype != dtype:
            raise WrongTypeError(f"must be an array of {dtype} on the GPU, where nothing is converted, got {array.dtype}; convert "
                                 f"it: x.astype('{dtype}'), of PyTorch x.{dict(f='float', d='double')[dtype.char]}()", field=name)
        if not array.is_packed:
            raise ShapeError(f"must be contiguous in C order on the GPU, got shape {array.shape} and strides {array.strides}; copy "
                             "it: x.copy(), of PyTorch x.contiguous()", field=name)
        source.begin()      # the computing stream waits for the library's work so far
    return source


def _host_array(value, dtype, name):
    """Return `value` as an array of its own numeric type, or of `dtype` if that is no number type, such as object."""
    try:
        array = np.asarray(value)
        return array if array.dtype.kind in "biuf" else array.astype(dtype)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise WrongTypeError(f"must be an array of numbers, got {type(value).__name__}: {error}", field=name) from None


def _copy_on_gpu(source, blob):
    """Copy a ForeignArray to an input there; its library's later work waits until it is read."""
    with device_lock:  # not into a graph that another thread records
        source_blob = Blob(blob.shape, blob.dtype, blob.name)
        source_blob.set_gpu_data(source.array.address, source.array)
        blob.copy_from(source_blob)
        source.end()


def _pinned_copies(sources):
    """Return the arrays of ``[(blob, array)]`` in page-locked memory, converted to the types of the blobs."""
    copies = [pinned_array(blob.shape, NUMPY_TYPES[blob.dtype], f"{blob.name} fed") for blob, _ in sources]
    for copy, (_, array) in zip(copies, sources):
        copy_array(copy, array)
    return copies
