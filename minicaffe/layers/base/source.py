"""SourceLayer: the base of layers that bring data into a net."""

from minicaffe.layer import Layer


class SourceLayer(Layer):
    """No bottoms; a type says what its tops hold."""

    host_only = True
    flops_per_value = 0, 0
    exact_num_bottom_blobs = 0
    overwritten = ()    # numbers of tops that layers in place change, so that forward has to write them (net/build.py)

    def reshape(self, bottom, top):
        """Nothing to do: the tops have their shapes from layer_setup on, or each batch brings its own."""

    def backward_cpu(self, top, propagate_down, bottom):
        """Nothing to do: data have no gradient."""
