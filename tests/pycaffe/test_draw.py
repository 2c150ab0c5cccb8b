"""draw: graphs of nets as DOT text without Graphviz, labels, colours and phases."""

from pathlib import Path

import pytest

import minicaffe as caffe
from minicaffe import draw
from minicaffe.errors import ConfigError, DependencyError
from minicaffe.proto import caffe_pb2, text, upgrade

NET = """name: "a \\"net\\""
layer { name: "d" type: "Data" top: "x" top: "y" data_param { batch_size: 64 } include { phase: TRAIN } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { lr_mult: 2 }
        convolution_param { num_output: 8 kernel_h: 3 kernel_w: 5 stride: 2 } }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 pool: AVE } exclude { phase: TEST } }
"""


@pytest.fixture
def net():
    return text.parse_text(NET, caffe_pb2.NetParameter, "net.prototxt")[0]


def test_labels(net):
    data, conv, relu, pool = net.layer
    assert draw.get_layer_label(conv, "TB") == "c (Convolution) kernel size: 3x5 stride: 2 pad: 0"
    assert draw.get_layer_label(pool, "LR") == r"p\n(AVE Pooling)\nkernel size: 2\nstride: 1\npad: 0"
    assert draw.get_layer_label(conv, "TB", True).endswith("lr mult: 2.0, 1.0")
    assert [draw.get_edge_label(layer) for layer in net.layer] == ["Batch 64", "8", "", ""]
    assert draw.get_layer_lr_mult(conv) == (2, 1)
    with pytest.raises(ValueError, match="Convolution, Deconvolution, InnerProduct"):
        draw.get_layer_lr_mult(relu)
    assert draw.choose_color_by_layertype("Pooling") == "#FF9900" and draw.choose_color_by_layertype("LRN") == "#6495ED"


def test_graph_and_files(net, tmp_path, monkeypatch):
    graph = draw.get_pydot_graph(net, "LR")
    assert graph.get_name() == 'a "net"' and len(graph.get_nodes()) == 4 + 4 and len(graph.get_edges()) == 2 + 2 + 2 + 2
    assert '"c_Convolution" -> "c_blob" [label="8"];' in graph.to_string() and r'digraph "a \"net\""' in graph.to_string()
    assert len(draw.get_pydot_graph(net, "LR", phase=caffe.TEST).get_nodes()) == 2 + 2
    draw.draw_net_to_file(net, str(tmp_path / "net.dot"), "TB")
    assert (tmp_path / "net.dot").read_text().startswith("digraph") and graph.create_dot() == draw.draw_net(net, "LR", "dot")
    monkeypatch.setattr(draw.shutil, "which", lambda name: None)
    with pytest.raises(DependencyError, match="graphviz"):
        draw.draw_net(net, "LR", "png")
    net.layer[0].exclude.add(phase=caffe.TEST)
    with pytest.raises(ConfigError, match="not both"):
        draw.get_pydot_graph(net, "LR", phase=caffe.TRAIN)


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("models/**/*.prototxt")), ids=lambda p: p.parent.name + "/" + p.name)
def test_every_model_is_drawn(path):
    if "solver" not in path.name:
        assert "->" in draw.get_pydot_graph(upgrade.read_net_file(path)[0], "LR").to_string()
