"""SPP: spatial pyramid pooling (Caffe spp_layer.cpp; He et al. 2014). A net of Pooling, Flatten and Concat.

Different from Caffe: planes that are too small for the pyramid raise before anything is built.
"""

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import Layer
from minicaffe.layers.base.inner import InnerNet, share
from minicaffe.proto import caffe_pb2


class SPPLayer(Layer):
    """Pool each plane into 1, 4, 16, ... bins, and join the results.

    Level l cuts each axis into B = 2^l bins: kernel and stride ``ceil(size / B)``, padding ``(kernel B - size + 1) / 2``
    rounded down, then the rules of Pooling.

    Parameters
    ----------
    bottom : Blob, shape (N, C, H, W)
    top : Blob, shape (N, C (1 + 4 + ...)); (N, C, 1, 1) for `spp_param.pyramid_height` 1
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = False

    def layer_setup(self, bottom, top):
        if self.param.spp_param.pyramid_height < 1:
            raise ConfigError("must be given and at least 1, got 0", field="spp_param.pyramid_height")
        self.planes = self.inner = None

    def reshape(self, bottom, top):
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ShapeError(f"SPP needs 4 axes (num, channels, height, width), got {list(shape)}", field="bottom[0]")
        if shape[2:] != self.planes:  # the kernels depend on the size
            layers = self._layers(*shape[2:])
            self.inner = InnerNet(self, layers, {"x": shape})
            self.planes = shape[2:]
        share(self.inner.blob("x"), bottom[0])
        self.inner.reshape()
        share(top[0], self.inner.blob("y"))

    def _layers(self, height, width):
        """Return the layers of the inner net for planes of this size."""
        levels = self.param.spp_param.pyramid_height
        windows = []
        while len(windows) < levels:  # ends at the first level that is too fine, however many are asked for
            windows.append((*_window(height, len(windows)), *_window(width, len(windows))))
        layers = []
        for level, (kernel_h, pad_h, kernel_w, pad_w) in enumerate(windows):
            pool = caffe_pb2.LayerParameter(name=f"pool{level}", type="Pooling", bottom=["x"],
                                            top=[f"pool{level}" if levels > 1 else "y"])
            pool.pooling_param.pool = self.param.spp_param.pool
            pool.pooling_param.kernel_h = pool.pooling_param.stride_h = kernel_h
            pool.pooling_param.kernel_w = pool.pooling_param.stride_w = kernel_w
            pool.pooling_param.pad_h, pool.pooling_param.pad_w = pad_h, pad_w
            layers.append(pool)
            if levels > 1:
                layers.append(caffe_pb2.LayerParameter(name=f"flatten{level}", type="Flatten", bottom=[f"pool{level}"],
                                                       top=[f"flatten{level}"]))
        if levels > 1:
            layers.append(caffe_pb2.LayerParameter(name="concat", type="Concat", top=["y"],
                                                   bottom=[f"flatten{level}" for level in range(levels)]))
        return layers

    def forward_cpu(self, bottom, top):
        self.inner.forward()

    def backward_cpu(self, top, propagate_down, bottom):
        if propagate_down[0]:
            self.inner.backward()

    forward_gpu, backward_gpu = forward_cpu, backward_cpu  # the inner layers run where the mode says

    def flops(self, bottom, top):
        return sum(node.layer.flops(node.bottoms, node.tops) for node in self.inner.net.nodes)

    def backward_flops(self, bottom, top, needs):
        inner = self.inner.net.nodes
        return sum(node.layer.backward_flops(node.bottoms, node.tops, node.bottom_needs) for node in inner) if needs[0] else 0

    def capture_obstacle(self):
        return self.inner.net.capture_obstacle()

    def scratch_blocks(self):
        return super().scratch_blocks() + [block for layer in self.inner.net.layers for block in layer.scratch_blocks()]

    def release_memory(self):
        super().release_memory()
        self.inner.release()

    def inspect(self, bottom):
        self.inner.inspect()


def _window(size, level):
    """Return (kernel, padding) of a level along an axis."""
    bins = 2**level
    kernel = -(-size // bins)
    padding = (kernel * bins - size + 1) // 2
    if padding >= kernel:
        raise ShapeError(f"{size} pixels cannot be cut into {bins} bins: windows of {kernel} would need a padding of {padding}; "
                         f"ask for at most {level} levels here, or give larger planes", field="spp_param.pyramid_height")
    return kernel, padding
