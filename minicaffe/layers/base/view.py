"""ViewLayer: another shape for the same memory. The top shares data and diff with the bottom, so nothing is computed."""

from minicaffe.layer import Layer


class ViewLayer(Layer):
    """One bottom, one top with its memory; a type defines ``top_shape(bottom)``, which returns the shape of the top."""

    host_only = True
    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False
    overwrites_outputs = True

    def reshape(self, bottom, top):
        top[0].reshape_to(self.top_shape(bottom[0]))
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def forward_cpu(self, bottom, top):
        """Do nothing: the top has the bottom's memory."""

    def backward_cpu(self, top, propagate_down, bottom):
        """Do nothing: the diffs share memory, too."""
