"""A net inside a layer: what SPP and MultiBoxLoss are made of (Caffe spp_layer.cpp, multibox_loss_layer.cpp of SSD).

The layers of the inner net run where the outer net does. Its inputs take the memory of the layer's bottoms, and the tops
that of its outputs, so nothing is copied on the way in or out.
"""

from contextlib import contextmanager

from minicaffe.errors import Error
from minicaffe.net.graph_memory import make_device_only
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2


class InnerNet:
    """The net of one layer, of LayerParameters without inputs; `inputs` has the shape of each input by name.

    Inputs get a gradient unless a layer has ``propagate_down: false`` for them.
    """

    def __init__(self, layer, layers, inputs):
        param = caffe_pb2.NetParameter(name=layer.name, force_backward=True)
        param.state.phase = layer.phase
        for name, shape in inputs.items():
            source = param.layer.add(name=name, type="Input", top=[name])
            source.input_param.shape.add(dim=shape)
        param.layer.extend(layers)
        with as_outer_errors():
            self.net = Net(param, layer.dtype)
        self.net.use_graphs = False  # it runs inside the run of another net
        self.last = len(self.net.nodes) - 1
        for node in self.net.nodes:     # which force_backward has set, also against propagate_down
            node.bottom_needs = list(node.param.propagate_down) or node.bottom_needs

    def blob(self, name):
        """Return the blob called `name`."""
        return self.net.blob_by_name(name)

    def reshape(self):
        """Propagate changed shapes of the inputs."""
        with as_outer_errors():
            self.net.reshape_all()

    def forward(self):
        """Run the net forward."""
        with as_outer_errors():
            self.net.forward_from_to(0, self.last)

    def backward(self):
        """Compute the gradients of the inputs."""
        with as_outer_errors():
            self.net.backward_from_to(self.last, 0)

    def release(self):
        """Free what the net holds. Its inputs have no values until they get some for the next forward, by `share` for example."""
        for blob in self.net.input_blobs:
            blob.release()      # or the net would copy the values of the outer net's blobs, to keep them
        self.net.release()

    def inspect(self):
        """As `Layer.inspect`: the host's copies of the net's memory are stale after a CUDA graph has run."""
        self.net.inspect_inputs()
        make_device_only([*self.net.blob_list, *self.net.learnable_params], self.net.source_blobs)


@contextmanager
def as_outer_errors():
    """Report errors of inner layers as errors of the outer layer, whose place the outer net adds."""
    try:
        yield
    except Error as error:
        if error.layer is not None:
            field = f"{error.field}: " if error.field is not None else ""
            error.message = f"in its inner layer '{error.layer}' ({error.layer_type}): {field}{error.message}"
            error.field = error.layer = error.layer_type = None
        raise


def share(blob, other):
    """Give `blob` the shape, data and diff of `other`."""
    blob.reshape_like(other)
    blob.share_data(other)
    blob.share_diff(other)
