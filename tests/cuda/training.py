"""Small nets to train in these tests."""

from minicaffe.proto import caffe_pb2, text
from minicaffe.solver import create_solver

NET = """
name: "small"
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 8 dim: 1 dim: 12 dim: 12 } shape { dim: 8 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def make_solver(net=NET, **fields):
    """Return a solver for the text of a net; `fields` are those of SolverParameter."""
    fields = {"type": "SGD", "base_lr": 0.05, "lr_policy": "fixed", "random_seed": 1, "snapshot_after_train": False, **fields}
    if fields["type"] == "SGD":
        fields.setdefault("momentum", 0.9)
    param = caffe_pb2.SolverParameter(**fields)
    param.net_param.CopyFrom(text.parse_text(net, caffe_pb2.NetParameter)[0])
    return create_solver(param)


def losses(solver, n):
    """Train `n` iterations; return their losses."""
    found = []
    for _ in range(n):
        solver.step(1)
        found.append(solver.smoothed_loss)
    return found
