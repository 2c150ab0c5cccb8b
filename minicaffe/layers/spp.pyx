"""SPP: spatial pyramid pooling (Caffe spp_layer.cpp; He et al. 2014). It runs layers of its own: Split, Poolings, Flattens, Concat.

Different from Caffe: planes that are too small for the pyramid raise before anything is built.
"""

from minicaffe.layer cimport Layer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import layer_class
from minicaffe.proto import caffe_pb2


cdef class SPPLayer(Layer):
    """Pool each plane into 1, 4, 16, ... bins, and join the results.

    Level l cuts each axis into B = 2^l bins: kernel and stride ``ceil(size / B)``, padding ``(kernel B - size + 1) / 2``
    rounded down, then the rules of Pooling.

    Parameters
    ----------
    bottom : Blob, shape (N, C, H, W)
    top : Blob, shape (N, C (1 + 4 + ...)); (N, C, 1, 1) for `spp_param.pyramid_height` 1
    """

    host_only = True    # itself: the layers inside run where the mode says
    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = False

    cdef tuple planes   # (height, width) for which the layers inside were made; None: none yet
    cdef readonly list inside   # (layer, bottoms, tops) in the order of forward

    cpdef layer_setup(self, list bottom, list top):
        if self.param.spp_param.pyramid_height < 1:
            raise ConfigError("must be given and at least 1, got 0", field="spp_param.pyramid_height")
        self.planes = None

    cpdef reshape(self, list bottom, list top):
        cdef Layer layer
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ShapeError(f"SPP needs 4 axes (num, channels, height, width), got {list(shape)}", field="bottom[0]")
        if shape[2:] != self.planes:  # the kernels depend on the size
            self._make_layers(bottom, top, *shape[2:])
            self.planes = shape[2:]
        for layer, bottoms, tops in self.inside:
            layer.refresh(bottoms, tops)        # reshapes if a blob changed

    def _make_layers(self, bottom, top, height, width):
        """Fill `inside` with layers for planes of `height` x `width` pixels, of which the last, Concat, writes the top."""
        levels, windows = self.param.spp_param.pyramid_height, []
        while len(windows) < levels:  # ends at the first level that is too fine, however many are asked for
            windows.append((*_window(height, len(windows)), *_window(width, len(windows))))
        self.inside, parts, planes = [], [], [self.new_blob(what="planes") for _ in windows]
        self._add("Split", bottom, planes)
        for blob, (kernel_h, pad_h, kernel_w, pad_w) in zip(planes, windows):
            parts.append(self.new_blob(what="bins"))
            self._add("Pooling", [blob], parts[-1:], pooling_param={
                "pool": self.param.spp_param.pool, "kernel_h": kernel_h, "kernel_w": kernel_w, "stride_h": kernel_h,
                "stride_w": kernel_w, "pad_h": pad_h, "pad_w": pad_w})
            if levels > 1:
                bins, parts[-1] = parts[-1], self.new_blob(what="flat bins")
                self._add("Flatten", [bins], parts[-1:])
        self._add("Concat", parts, top)

    def _add(self, kind, bottoms, tops, **fields):
        """Append a new layer of type `kind` to `inside`; `fields` are of LayerParameter. Its tops get their shapes."""
        layer = layer_class(kind)(caffe_pb2.LayerParameter(name=self.name, type=kind, phase=self.phase, **fields), self.dtype)
        layer.set_up(bottoms, tops)
        self.inside.append((layer, bottoms, tops))

    cpdef forward_cpu(self, list bottom, list top):
        cdef Layer layer
        for layer, bottoms, tops in self.inside:
            layer.run_forward(bottoms, tops)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        cdef Layer layer
        for layer, bottoms, tops in reversed(self.inside if propagate_down[0] else []):
            layer.run_backward(tops, [True] * len(bottoms), bottoms)

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [blob for layer, _, tops in self.inside for blob in (*layer.scratch_blobs(), *tops) if layer.type != "Concat"]

    def scratch_memory(self):       # a CUDA graph keeps it alive
        return Layer.scratch_memory(self) + [part for layer, *_ in self.inside for part in layer.scratch_memory()]

    def release_memory(self):    # for `Net.release`
        Layer.release_memory(self)
        for layer, *_ in self.inside:
            layer.release_memory()


def _window(size, level):
    """Return (kernel, padding) of the Pooling of a level along an axis of `size` pixels; raise ShapeError if it is too small."""
    bins = 2**level
    kernel = -(-size // bins)
    padding = (kernel * bins - size + 1) // 2
    if padding >= kernel:
        raise ShapeError(f"{size} pixels cannot be cut into {bins} bins: windows of {kernel} would need a padding of {padding}; "
                         f"ask for at most {level} levels here, or give larger planes", field="spp_param.pyramid_height")
    return kernel, padding
