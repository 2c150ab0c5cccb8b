"""ReLU6 and ReLUX: ReLU with an upper bound, for nets of forks. They compute on CPU and GPU."""

import logging

from minicaffe.addons.forks.base import check_known
from minicaffe.addons.forks.messages import Field, checked_message
from minicaffe.errors import ConfigError
from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function
from minicaffe.proto.text import layer_fields

log = logging.getLogger(__name__)


class ReLUXLayer(ActivationLayer):
    """``y = min(max(x, 0), maximal_value)``; the gradient is 1 between, 0 from the maximal value on, else `negative_slope`.

    So `negative_slope` does not change y. This is what the fork computes on a GPU; on the CPU it adds negative_slope min(x, 0).

    Source: py-RFCN-priv relux_layer.cu.

    Parameters
    ----------
    bottom[0] : Blob, any shape
    top[0] : Blob, of the same shape; in place is fine
    """

    takes_unknown_fields = True
    message = "relux_param"
    fields_of_message = Field("negative_slope", 0.0, "the gradient below 0"), Field("maximal_value", 6.0, "upper bound, above 0")
    ignored = ("engine",)

    def layer_setup(self, bottom, top):
        check_known(self.param)
        values, _ = checked_message(layer_fields(self.param), self.message, self.fields_of_message, self.ignored)
        slope, self.bound = values["negative_slope"], values.get("maximal_value", 6.0)
        if not self.bound > 0:
            raise ConfigError(f"must be above 0, got {self.bound:g}", field=f"{self.message}.maximal_value")
        self.slope = slope if self.type == "ReLU6" else 0
        if slope != self.slope:
            log.warning("layer '%s': relux_param.negative_slope changes the gradient alone: y is 0 below 0, as on the fork's GPU",
                        self.name)
        self.set_function(Function.RELU_X, (self.slope, self.bound, slope), reads="x" if self.slope < 0 else "y")


class ReLU6Layer(ReLUXLayer):
    """``y = min(max(x, 0) + negative_slope min(x, 0), 6)``; the gradient is 0 from 6 on.

    Different from its fork: backward in place raises if `negative_slope` is below 0, as of ReLU: its sign is lost then.

    Source: mobilenet-yolo relu6_layer.cpp (Krizhevsky 2010, Convolutional Deep Belief Networks on CIFAR-10).

    Parameters
    ----------
    bottom[0] : Blob, any shape
    top[0] : Blob, of the same shape; in place is fine
    """

    message = "relu6_param"
    fields_of_message = (Field("negative_slope", 0.0, "the slope below 0"),)
