"""LabelSpecificAdd: a margin for the true class."""

import numpy as np

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.messages import Field
from minicaffe.common import TRAIN
from minicaffe.errors import DataError, ShapeError
from minicaffe.layers.base.checks import state_numbers


class LabelSpecificAddLayer(ForkLayer):
    """In TRAIN, adds `bias` to the value of the true class if that is above -bias; in TEST, top = bottom. The gradient is 1.

    With a negative bias it is the margin of CosFace. With `bias_base` the bias changes: before forward number i, from `iteration`
    on, it is bias_base + (1 + bias_gamma i)^bias_power - 1, at least `bias_min` and at most `bias_max`. i is stored in snapshots.

    Different from its forks: a label that is no class is an error. openvino's subtracts the absolute value of `bias`; this differs
    only for a positive bias, which is added here. `transform_test` has no effect, as in the forks.

    Source: caffe-windows label_specific_add_layer.cpp (Wang et al. 2018, Additive Margin Softmax).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, ...)
        The values of C classes; further axes are of size 1.
    bottom[1] : Blob, shape (N, 1, ...)
        The labels, from 0 to C - 1.
    top[0] : Blob, of the shape of bottom[0]; in place is fine
    top[1] : Blob, shape (1,), optional
        The bias.
    """

    exact_num_bottom_blobs = 2
    min_top_blobs, max_top_blobs = 1, 2
    flops_per_value = 0, 0
    no_gradient = {1: "labels"}
    backward_reads_bottoms = backward_reads_tops = False

    message = "label_specific_add_param"
    fields_of_message = (
        Field("bias", 0.0, "is added to the value of the true class"), Field("transform_test", False, "has no effect"),
        Field("bias_base", 0.0, "the bias changes with each forward; its value at iteration 0"),
        Field("bias_gamma", 0.0, "how fast the bias changes"), Field("bias_power", 1.0, "exponent of the change"),
        Field("bias_min", 0.0, "the least bias, with bias_base"),
        Field("bias_max", 0.0, "the largest bias, with bias_base"), Field("iteration", 0, "the number of the first forward", 0))

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        self.changes, self.iteration = "bias_base" in self.given, self.values["iteration"]
        if self.changes and self.values["bias_min"] > self.values["bias_max"]:
            raise self.value_error("bias_min", f"must be at most bias_max, {self.values['bias_max']:g}")

    def reshape(self, bottom, top):
        shape = bottom[0].shape
        if len(shape) < 2 or any(size != 1 for size in shape[2:]):
            raise ShapeError(f"must have 2 axes (num, classes), and further axes of size 1 if any, got {list(shape)}",
                             field="bottom[0]")
        if bottom[1].count != shape[0]:
            raise ShapeError(f"must have a label for each of {shape[0]} records, got {list(bottom[1].shape)}", field="bottom[1]")
        top[0].reshape(*shape)
        if len(top) > 1:
            top[1].reshape(1)

    def _next_bias(self):
        values = self.values
        if not self.changes:
            return values["bias"]
        change = np.power(1 + values["bias_gamma"] * self.iteration, values["bias_power"]) - 1
        if self.phase == TRAIN:
            self.iteration += 1
        return float(np.clip(values["bias_base"] + change, values["bias_min"], values["bias_max"]))

    def forward(self, bottom, top):
        if top[0] is not bottom[0]:
            top[0].data[...] = bottom[0].data
        if self.phase == TRAIN:
            labels, classes = bottom[1].data.reshape(-1), bottom[0].shape[1]
            wrong = ~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))
            if wrong.any():
                record = int(wrong.argmax())
                raise DataError(f"label {labels[record]:g} of record {record} must be an integer from 0 to {classes - 1}; correct "
                                "the data, or give the net more classes", field="bottom[1]")
        bias = self._next_bias()
        if self.phase == TRAIN:
            values = top[0].data.reshape(bottom[0].shape[:2])
            places = np.arange(len(values)), labels.astype(np.int64)
            chosen = values[places]
            values[places] = np.where(chosen > -bias, chosen + bias, chosen)
        if len(top) > 1:
            top[1].data[...] = bias

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0] and top[0] is not bottom[0]:
            bottom[0].diff[...] = top[0].diff

    def get_state(self):
        return {"iteration": self.iteration} if self.changes else None

    def set_state(self, state):
        if not self.changes:
            super().set_state(state)
        self.iteration, = state_numbers(state, {"iteration": 2**31})
