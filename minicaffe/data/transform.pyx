"""Turn records into the input pixels of a net (Caffe data_transformer.cpp): crop, mirror, mean, scale.

    top[n, c, h, w] = (pixel[c, h0 + h, w0 + w] - mean[c, h0 + h, w0 + w]) * scale

Mirrored, w counts from the right.

Crop (crop_size, or SSD's crop_h and crop_w): random in TRAIN, in TEST at floor((H - crop) / 2) and the same for
W. Mirror: with probability 1/2, in TEST too, as Caffe does.

Different from Caffe: random draws are a pure function of (seed, number of the record since the start of training), see
`draw` (Philox). So a resumed run, or one with more threads, draws the same. Caffe draws in sequence from a Mersenne Twister
(mt19937), so its crops differ. A batch is checked completely before a pixel is written.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

import logging

import numpy as np

from minicaffe.data.datum import decode_image, read_datum
from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import caffe_pb2

log = logging.getLogger(__name__)

ctypedef fused real:
    float
    double

cdef extern from "minicaffe/data/pixels.hpp" namespace "mc" nogil:
    cppclass Picture:  # the unused one of `bytes` and `floats` is NULL
        const uint8_t* bytes
        const float* floats
        int64_t channels, height, width, plane, row, pixel  # element (c, h, w) is number c * plane + h * row + w * pixel
        int32_t label

    cppclass Rule:
        double scale
        int64_t crop_h, crop_w, mean_plane, mean_row  # crop_h 0: no crop; the others: steps in the mean, see _set_mean
        bint mirror, random_crop
        uint64_t seed
        const float* mean32
        const double* mean64

    struct Window:
        int64_t top, left, rows, columns
        bint flip

    Window window_of(const Rule& rule, int64_t height, int64_t width, uint64_t ordinal)
    int64_t draw_below(uint64_t seed, uint64_t ordinal, int which, uint64_t n)
    void copy_batch[T](const Picture* pictures, int64_t n, const Rule& rule, const T* mean, uint64_t first,
                       uint64_t stride, T* data, int64_t size, T* labels)


def draw(seed, ordinal, which, n):
    """Return random number `which` (0 to 3) of record `ordinal`, counted from the start of training: in [0, n), n up to 2**32.

    A Transformer uses 0 to mirror (n = 2), 1 and 2 for the first row and column of a crop. The lower 64 bits of `seed` are used.
    """
    return draw_below(<uint64_t>(seed & 0xFFFFFFFFFFFFFFFF), <uint64_t>(ordinal & 0xFFFFFFFFFFFFFFFF), which, n)


cdef class Transformer:
    """Applies a TransformationParameter, by `load` or `load_images` and then `Batch.write`; no result depends on an earlier call.

    The lower 64 bits of `seed` are used, for random crops and mirrors. Raises ConfigError for fields that exclude each other, or
    one of crop_h and crop_w without the other; FileError or DataError if the mean file cannot be used.
    """

    cdef Rule rule
    cdef object mean, mean_single  # float64 and float32; (C, H, W), (1,), (C,) or None; the rule points into them
    cdef bint force_color, force_gray, warned, resized  # warned: of raw records; resized: SSD's fields change the size before
    cdef str mean_file, crop_field  # for errors

    def __init__(self, param, phase, seed=0):
        if param.force_color and param.force_gray:
            raise ConfigError("cannot both be set", field="transform_param.force_color and force_gray")
        if param.mean_file and len(param.mean_value):
            raise ConfigError("cannot both be set", field="transform_param.mean_file and mean_value")
        self.force_color = param.force_color
        self.force_gray = param.force_gray
        self.mean_file = param.mean_file
        self.resized = param.HasField("expand_param") or param.HasField("resize_param")
        self.rule.scale = param.scale
        self._set_crop(param)
        self.rule.mirror = param.mirror
        self.rule.random_crop = phase == caffe_pb2.TRAIN
        self.rule.seed = seed & 0xFFFFFFFFFFFFFFFF
        if param.mean_file:
            from minicaffe.data.mean_file import read_mean
            self._set_mean(read_mean(param.mean_file))
        elif len(param.mean_value):
            self._set_mean(np.array(param.mean_value, np.float64))

    cdef _set_crop(self, param):
        """Set the crop from crop_size, or SSD's crop_h and crop_w."""
        if (param.crop_h > 0) != (param.crop_w > 0):
            raise ConfigError(f"give crop_h and crop_w, or neither, got {param.crop_h} and {param.crop_w}",
                              field="transform_param.crop_h")
        if param.crop_size and param.crop_h:
            raise ConfigError("give crop_size, or crop_h and crop_w, not both", field="transform_param.crop_size")
        self.rule.crop_h, self.rule.crop_w = param.crop_size or param.crop_h, param.crop_size or param.crop_w
        self.crop_field = "transform_param.crop_size" if param.crop_size else "transform_param.crop_h"

    def window(self, height, width, ordinal):
        """Return (top, left, rows, columns, flipped): the part of a picture for record `ordinal`, before it is flipped.

        AnnotatedData (SSD) crops and flips the boxes of a record by it; `Batch.write` uses the same for the pixels. Raises
        ShapeError if the picture is smaller than the crop.
        """
        cdef Picture picture
        picture.channels, picture.height, picture.width = 1, height, width
        self._check_crop(&picture)
        cdef Window window = window_of(self.rule, height, width, <uint64_t>(ordinal & 0xFFFFFFFFFFFFFFFF))
        return window.top, window.left, window.rows, window.columns, window.flip

    cdef _set_mean(self, mean):
        """Keep a mean picture (C, H, W), or values of channels, in both types of `write`, and let the rule point to them."""
        self.mean = np.ascontiguousarray(mean, np.float64)
        self.mean_single = self.mean.astype(np.float32)
        cdef double[::1] flat = self.mean.reshape(-1)
        cdef float[::1] single = self.mean_single.reshape(-1)
        self.rule.mean64 = &flat[0]
        self.rule.mean32 = &single[0]
        if mean.ndim == 3:
            self.rule.mean_plane = mean.shape[1] * mean.shape[2]
            self.rule.mean_row = mean.shape[2]
        else:
            self.rule.mean_plane = 1 if len(mean) > 1 else 0    # mean_row stays 0: one value a channel, or one for all

    def load(self, records):
        """Return a Batch of serialized Datums, bytes or buffers, after checking them and decoding those that are encoded.

        Their memory must not change until the batch is dropped. Raises DataError if a record is no Datum, cannot be decoded or has
        another size than the first, with the index into `records` as `record`; ShapeError if the first picture does not fit
        crop_size, mean_file or mean_value.
        """
        return Batch(self, records, None)

    def load_images(self, images, labels=None):
        """Return a Batch of decoded pictures: uint8 or float32 arrays (H, W, C) or (H, W), and their integer labels, 0 for None."""
        return Batch(self, images, [0] * len(images) if labels is None else labels)

    cdef tuple _output(self, const Picture* picture):
        """Return (C, h, w) of the pixels for a picture; raise ShapeError if crop_size or mean do not fit it."""
        size = f"{picture.channels} x {picture.height} x {picture.width}"
        self._check_crop(picture)
        if self.mean is not None and self.mean.ndim == 3:
            if self.mean.shape != (picture.channels, picture.height, picture.width):
                what = (", after expand_param and resize_param); give a mean_value for each channel in place of the mean file"
                        if self.resized else "); make the mean file from this database")
                raise ShapeError(f"'{self.mean_file}' is {' x '.join(map(str, self.mean.shape))}, the picture is {size} "
                                 f"(uncropped{what}", field="transform_param.mean_file")
        elif self.mean is not None and len(self.mean) not in (1, picture.channels):
            raise ShapeError(f"give one value, or one for each of the {picture.channels} channels of the picture, got "
                             f"{len(self.mean)}", field="transform_param.mean_value")
        if self.rule.crop_h:
            return picture.channels, self.rule.crop_h, self.rule.crop_w
        return picture.channels, picture.height, picture.width

    cdef _check_crop(self, const Picture* picture):
        """Raise ShapeError if a picture is smaller than the crop."""
        if self.rule.crop_h > picture.height or self.rule.crop_w > picture.width:
            got = f"{self.rule.crop_h}" if self.rule.crop_h == self.rule.crop_w else f"{self.rule.crop_h} x {self.rule.crop_w}"
            raise ShapeError(f"must be at most height and width of the picture, got {got} for {picture.channels} x "
                             f"{picture.height} x {picture.width}", field=self.crop_field)


cdef class Batch:
    """Pictures of one output size, checked and ready to be written. `sources` are Datums, or with `image_labels` arrays of pixels.

    `shape` is (N, C, height, width) of the pixels that `write` writes.
    """

    cdef Transformer transformer
    cdef Picture* pictures
    cdef Py_ssize_t count
    cdef int64_t decoded  # bytes of pictures decoded so far, compared with the memory budget
    cdef list kept  # what `pictures` points into
    cdef readonly tuple shape

    def __cinit__(self, Transformer transformer, sources, image_labels):
        self.transformer = transformer
        self.kept = []
        self.count = len(sources)
        if self.count == 0:
            raise DataError("a batch needs at least one record")
        self.pictures = <Picture*>calloc(self.count, sizeof(Picture))
        if self.pictures == NULL:
            raise MemoryError
        cdef Py_ssize_t i = 0
        try:
            for i in range(self.count):
                if image_labels is None:
                    self._take_record(i, sources[i])
                else:
                    self._take_image(i, sources[i], image_labels[i])
            i = 0  # the record of an error in the next line
            first = transformer._output(self.pictures)
            for i in range(1, self.count):
                self._check_like_first(i, first)
        except (DataError, ShapeError) as error:
            raise error.at(record=i)
        self.shape = (self.count, *first)

    def __dealloc__(self):
        free(self.pictures)

    cdef _take_record(self, Py_ssize_t i, record):
        """Let picture `i` point to the pixels of a serialized Datum; an encoded one is decoded."""
        cdef Picture* picture = &self.pictures[i]
        cdef Transformer transformer = self.transformer
        cdef bytes content
        cdef float[::1] floats
        datum = read_datum(record)
        if datum.encoded:
            image = decode_image(datum.data, transformer.force_color, transformer.force_gray)
            self.decoded += image.nbytes
            check_bytes(self.decoded, f"the {i + 1} first decoded pictures of a batch")  # before crop_size reduces them
            self._take_image(i, image, datum.label)
            return
        content = datum.data
        if content:
            self.kept.append(content)
            picture.bytes = <const uint8_t*><const char*>content
        else:
            floats = np.array(datum.float_data, np.float32)
            self.kept.append(floats)
            picture.floats = &floats[0]
        picture.label, picture.channels, picture.height, picture.width = datum.label, datum.channels, datum.height, datum.width
        picture.plane, picture.row, picture.pixel = picture.height * picture.width, picture.width, 1
        if not transformer.warned and (transformer.force_color or transformer.force_gray):
            transformer.warned = True
            log.warning("transform_param: force_color and force_gray change encoded pictures only, not raw ones")

    cdef _take_image(self, Py_ssize_t i, image, int32_t label):
        """Let picture `i` point to the pixels of an array (H, W, C), such as a decoded picture."""
        image = np.asarray(image)
        if image.ndim == 2:
            image = image[:, :, np.newaxis]
        if image.dtype not in (np.uint8, np.float32) or image.ndim != 3 or image.size == 0:
            raise DataError(f"must be a uint8 or float32 picture (height, width, channels), got {image.dtype} {image.shape}",
                            record=i)
        image = np.ascontiguousarray(image)
        self.kept.append(image)
        cdef Picture* picture = &self.pictures[i]
        cdef const uint8_t[:, :, ::1] pixels
        cdef const float[:, :, ::1] floats
        if image.dtype == np.uint8:
            pixels = image
            picture.bytes = &pixels[0, 0, 0]
        else:
            floats = image
            picture.floats = &floats[0, 0, 0]
        picture.label = label
        picture.height, picture.width, picture.channels = image.shape
        picture.plane, picture.row, picture.pixel = 1, picture.width * picture.channels, picture.channels

    cdef _check_like_first(self, Py_ssize_t i, tuple first):
        """Raise DataError unless picture `i` gives pixels of the shape `first`, as all of a batch must."""
        cdef const Picture* one = &self.pictures[0]
        cdef const Picture* other = &self.pictures[i]
        if one.channels == other.channels and one.height == other.height and one.width == other.width:
            return
        if self.transformer.rule.crop_h and one.channels == other.channels and self.transformer._output(other) == first:
            return
        raise DataError(f"is {other.channels} x {other.height} x {other.width}, the first of the batch is {one.channels} x "
                        f"{one.height} x {one.width}; use batch_size: 1, or crop_size for sizes that vary")

    def write(self, data, labels=None, first=0, stride=1):
        """Write the transformed pixels to `data`, a C-contiguous float32 or float64 array with as many elements as `shape`.

        The labels are written to `labels`, (N,) of the same type. `first` is the number of record 0 since the start of training,
        `stride` that from one record to the next (the number of solvers).
        """
        if data.size != self.count * self.shape[1] * self.shape[2] * self.shape[3]:
            raise ShapeError(f"data must have room for {self.shape}, got {data.shape}")
        if labels is not None and (labels.size != self.count or labels.dtype != data.dtype):
            raise ShapeError(f"labels must be {self.count} of {data.dtype}, got {labels.shape} of {labels.dtype}")
        cdef uint64_t begin = <uint64_t>(first & 0xFFFFFFFFFFFFFFFF), step = stride
        flat, flat_labels = _flat(data), None if labels is None else _flat(labels)
        cdef Rule* rule = &self.transformer.rule
        if data.dtype == np.float32:
            _write[float](self, flat, flat_labels, rule.mean32, begin, step)
        elif data.dtype == np.float64:
            _write[double](self, flat, flat_labels, rule.mean64, begin, step)
        else:
            raise ConfigError(f"data must be float32 or float64, got {data.dtype}")


cdef _write(Batch batch, real[::1] data, real[::1] labels, const real* mean, uint64_t first, uint64_t stride):
    """Do `Batch.write` into arrays of one axis, without the GIL; `mean` is NULL without a mean."""
    cdef real* label = &labels[0] if labels is not None else NULL
    cdef int64_t size = data.shape[0] // batch.count
    with nogil:
        copy_batch(batch.pictures, batch.count, batch.transformer.rule, mean, first, stride, &data[0], size, label)


cdef _flat(array):
    """Return a view with one axis, of which `_write` takes the address; raise ConfigError where that needs a copy."""
    if not array.flags.c_contiguous:
        raise ConfigError("the arrays to fill must be C-contiguous")
    return array.reshape(-1)
