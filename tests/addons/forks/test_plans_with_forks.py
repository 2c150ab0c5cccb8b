"""Layers of forks in nets with a plan of memory."""

import pytest
from test_memory_plan import layer, net_of, poison, recycled, same, trace  # noqa: F401 (poison is a fixture)
from test_nets_of_forks import NETS as FORK_NETS

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.orders import ReverseLayer
from minicaffe.net.node import overwrites_outputs
from minicaffe.proto import caffe_pb2


@pytest.mark.parametrize("name", [name for name in FORK_NETS if name != "senet"])    # read as layers of BVLC Caffe
def test_layers_write_their_outputs(name, poison, on_cpu):  # noqa: F811
    text = FORK_NETS[name].replace('"data" input_param', '"data" top: "target" input_param')
    scores = net_of(text).blobs["scores"].shape
    text = text.replace(" } }", f" }} shape {{ {' '.join(f'dim: {n}' for n in scores)} }} }}", 1)
    text += layer("loss", "EuclideanLoss", ["scores", "target"], ["loss"])
    net = net_of(text, plan="memory")
    same(trace(net), trace(net_of(text)))
    made = {node.tops[0].name for node in net.nodes if isinstance(node.layer, ForkLayer)}
    assert made and made <= set(recycled(net))


class Half(ReverseLayer):
    def forward(self, bottom, top):
        top[0].data[0] = bottom[0].data[0]


class Doubled(ReverseLayer):
    def order(self, array):
        return super().order(array)


def test_overwrites_outputs_of_user_classes():
    param = caffe_pb2.LayerParameter(name="l", type="Reverse", phase=caffe_pb2.TEST)
    assert overwrites_outputs(ReverseLayer(param)) and overwrites_outputs(Doubled(param)) and not overwrites_outputs(Half(param))
