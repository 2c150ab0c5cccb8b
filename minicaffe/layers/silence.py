"""Silence: consume blobs that no other layer reads, so that they are not outputs of the net (Caffe silence_layer.cpp)."""

from minicaffe.layer import Layer


class SilenceLayer(Layer):
    """Any number of bottoms, no top; the gradient is zero."""

    host_only = True
    min_bottom_blobs = 1
    exact_num_top_blobs = 0
    backward_reads_bottoms = False

    def reshape(self, bottom, top):
        """Do nothing: there are no tops."""

    def forward_cpu(self, bottom, top):
        """Do nothing: there are no tops."""

    def backward_cpu(self, top, propagate_down, bottom):
        for blob, wanted in zip(bottom, propagate_down):
            if wanted:
                blob.fill_diff(0)   # where the mode computes, on the CPU or the device
