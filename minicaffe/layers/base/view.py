"""ViewLayer: another shape for the same memory. The top shares data and diff with the bottom, so nothing is computed."""

from minicaffe.errors import Error
from minicaffe.layer import Layer


class ViewLayer(Layer):
    """One bottom, one top with its memory; a type says which shape the top has."""

    host_only = True
    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False
    overwrites_outputs = True

    def top_shape(self, bottom):
        """Return the shape of the top for a bottom blob."""
        raise Error(f"layer type {self.type} does not define top_shape(bottom)")

    def reshape(self, bottom, top):
        top[0].reshape_to(self.top_shape(bottom[0]))
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def forward_cpu(self, bottom, top):
        """Nothing to do: the top is the bottom's memory."""

    def backward_cpu(self, top, propagate_down, bottom):
        """Nothing to do: the top is the bottom's memory."""
