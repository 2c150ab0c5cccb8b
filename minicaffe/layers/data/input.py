"""Input: blobs that the caller fills (Caffe input_layer.cpp)."""

from minicaffe.errors import ConfigError, in_field
from minicaffe.layers.data.sources import SourceLayer


class InputLayer(SourceLayer):
    """Give the tops the shapes of ``input_param.shape``: none, one for all, or one for each top.

    A top may be given another shape later; forward and backward do nothing.
    """

    min_top_blobs = 1

    def layer_setup(self, bottom, top):
        self.log_ignored("the caller fills the tops")
        shapes = self.param.input_param.shape
        if len(shapes) not in (0, 1, len(top)):
            raise ConfigError(f"give none, one, or one for each of the {len(top)} tops, got {len(shapes)}",
                              field="input_param.shape")
        for i, blob in enumerate(top if shapes else ()):
            index = i if len(shapes) > 1 else 0
            with in_field(f"input_param.shape[{index}]"):
                blob.reshape_to(shapes[index].dim)

    def forward_cpu(self, bottom, top):
        """Do nothing: the caller fills the tops."""
