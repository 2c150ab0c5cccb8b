"""A layer for solver tests: a loss with known gradients that needs no other layer, no data, and keeps a state.

    loss = sum over parameters of |w - t|^2 / 2,  dloss/dw = w - t

The targets t change with every pass: they depend on the generator's position and on the layer's own count of passes, so
that a resumed training goes astray unless both were restored.
"""

import numpy as np

from minicaffe.layer import Layer, register_layer
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver


class BowlLayer(Layer):
    """Tops: the loss, and optionally (passes, 2 passes, mean of the first parameter)."""

    exact_num_bottom_blobs, min_top_blobs, max_top_blobs, default_loss_weight = 0, 1, 2, 1

    def layer_setup(self, bottom, top):
        self.passes, self.targets, param = 0, [], self.param.dummy_data_param
        filler = param.data_filler[0] if param.data_filler else caffe_pb2.FillerParameter(type="gaussian")
        for shape in param.shape:
            self.add_param(tuple(shape.dim), filler, "dummy_data_param.data_filler")

    def reshape(self, bottom, top):
        for blob, shape in zip(top, ((), (3,))):
            blob.reshape(*shape)

    def forward_cpu(self, bottom, top):
        self.passes += 1
        random = np.random.default_rng([self.generator.seed, self.generator.reserve_counters(), self.passes])
        self.targets = [random.standard_normal(blob.shape) for blob in self.blobs]
        top[0].data[...] = sum(((b.cpu_data - t) ** 2).sum() / 2 for b, t in zip(self.blobs, self.targets))
        if len(top) == 2:
            top[1].data[...] = self.passes, 2 * self.passes, self.blobs[0].cpu_data.mean()

    def backward_cpu(self, top, propagate_down, bottom):
        for blob, target in zip(self.blobs, self.targets):
            blob.diff[...] += blob.cpu_data - target

    def get_state(self):
        return {"passes": self.passes}

    def set_state(self, state):
        self.passes = state["passes"]


register_layer("SolverTestBowl", BowlLayer)

BOWL = """
name: "bowls"
layer {
  name: "bowl" type: "SolverTestBowl" top: "loss" top: "numbers" loss_weight: 1 loss_weight: 0
  dummy_data_param { shape { dim: 5 dim: 3 } shape { dim: 4 } }
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
}
"""


def solver_param(fields, net=BOWL):
    """Return a SolverParameter of text; `net` becomes its net_param unless None."""
    inline = f"net_param {{ {net} }}" if net is not None else ""
    param = caffe_pb2.SolverParameter(lr_policy="fixed", base_lr=0.1, snapshot_after_train=False, random_seed=3)
    param.MergeFrom(parse_text(f"{inline} {fields}", caffe_pb2.SolverParameter)[0])
    return param


def make_solver(fields="", net=BOWL, **place):
    """Return a solver over the bowl net; `fields` is the text of other SolverParameter fields."""
    return create_solver(solver_param(fields, net), **place)


def weights(solver):
    """Return copies of all parameters of the train net."""
    return [blob.cpu_data.copy() for blob in solver.net.learnable_params]


def gradients_of_steps(solver):
    """Yield the gradients of one step after another, in float64, as a rule gets them."""
    raw, limit = [], solver.param.clip_gradients
    solver.add_callback(lambda: None, lambda: raw.append([b.cpu_diff.astype(np.float64) for b in solver.net.learnable_params]))
    while True:
        solver.step(1)
        gradients = raw.pop()
        if limit >= 0:      # of the sums, as in Caffe
            gradients = [g * min(1, limit / np.sqrt(sum((g**2).sum() for g in gradients))) for g in gradients]
        yield [g / solver.param.iter_size for g in gradients]
