from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.lanes.caffe cimport Channels

cdef Layout data_layout(const Context& on, list blobs, bint bf16=*)
cdef Layout diff_layout(const Context& on, list blobs, bint bf16=*)
cdef long long stored(Layout layout, Blob blob)
cdef int element(Layout layout, Blob blob)
cdef Layout of_mode(const Context& on, Layout layout)
cdef Layout in_lanes(Layout layout)
cdef int zero_padding(Layout layout, void* values) except -1
cdef Layout by_channels(Layout layout, Blob blob, const Channels& plain, Channels* found)
cdef Layout of_images(Layout layout, Blob blob)
cdef list concat_layouts(const Context& on, list parts, Blob whole, list sources, bint diff)
