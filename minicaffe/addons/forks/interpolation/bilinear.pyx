"""Bilinear interpolation on a device (addons/forks/interpolation/caffe.hpp), in plain order or with channels last.

The table of an axis is a Blob of ``3 top_size + 2 size`` values, in this order: for each pixel of the top the first pixel of the
bottom that it reads, the weight of this one and the weight of the next, which is not read if that is 0; for each pixel of the
bottom the first pixel of the top that reads it and the one after the last.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context, settle
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.channels_last cimport channels_last
from minicaffe.engines.layouts cimport data_layout, element, of_images

from minicaffe.memory.synced import device_lock

cdef extern from "minicaffe/addons/forks/interpolation/caffe.hpp" namespace "mc" nogil:
    struct ResizeShape:
        long long channels, height, width, top_height, top_width
    void bilinear(const Context&, int dtype, bint back, const ResizeShape&, long long images, const void* rows, const void* columns,
                  const void* source, void* target)


def forward(Blob x, Blob y, Blob rows, Blob columns):
    """Compute y from x, both (N, C, H, W), in the layout of x; return that layout, which `backward` gets."""
    cdef Context on = context()
    with device_lock:
        layout = of_images(data_layout(on, [x], True), x)
        run(on, False, layout, x, y, rows, columns, x.data_in_layout(on, layout), y.overwrite_data_in_layout(on, of_top(layout, y)))
    return layout


def backward(Blob x, Blob y, Blob rows, Blob columns, Layout layout):
    """Compute the gradient of x from that of y."""
    cdef Context on = context()
    with device_lock:
        run(on, True, layout, x, y, rows, columns, y.diff_in_layout(on, of_top(layout, y)), x.overwrite_diff_in_layout(on, layout))


cdef Layout of_top(Layout layout, Blob y):
    """Return the layout of the top of a bottom in `layout`."""
    return channels_last(y.shape, layout.dtype) if layout is not None else None


cdef int run(const Context& on, bint back, Layout layout, Blob x, Blob y, Blob rows, Blob columns, const void* source,
             void* target) except -1:
    cdef ResizeShape s
    cdef long long images = x.dims[0]
    cdef int dtype = element(layout, x)
    s.channels, s.height, s.width, s.top_height, s.top_width = x.dims[1], x.dims[2], x.dims[3], y.dims[2], y.dims[3]
    if layout is None:      # planes
        images, s.channels = images * s.channels, 1
    with nogil:
        bilinear(on, dtype, back, s, images, rows.data_on(on), columns.data_on(on), source, target)
    settle(on)
