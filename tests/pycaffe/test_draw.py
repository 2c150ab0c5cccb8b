"""draw: nets as SVG and PNG, and as graphs in DOT text without Graphviz; labels, colours and phases."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import cv2
import pytest

import minicaffe as caffe
from minicaffe import draw
from minicaffe.errors import ConfigError, DependencyError, FileError
from minicaffe.net import net as core
from minicaffe.proto import caffe_pb2, text, upgrade
from minicaffe.pycaffe import drawing

SVG = "{http://www.w3.org/2000/svg}"
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
        draw.draw_net(net, "LR", "pdf")
    net.layer[0].exclude.add(phase=caffe.TEST)
    with pytest.raises(ConfigError, match="not both"):
        draw.get_pydot_graph(net, "LR", phase=caffe.TRAIN)


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("models/**/*.prototxt")), ids=lambda p: p.parent.name + "/" + p.name)
def test_every_model_is_drawn(path):
    if "solver" not in path.name:
        net = upgrade.read_net_file(path)[0]
        assert "->" in draw.get_pydot_graph(net, "LR").to_string()
        for rankdir in ("TB", "RL"):
            check_picture(net, ElementTree.fromstring(drawing.net_svg(net, rankdir)), rankdir)


def check_picture(net, svg, rankdir):
    """Everything is drawn, once, inside the picture; nothing covers anything; edges end at the boxes of those who read."""
    width, height = float(svg.get("width")), float(svg.get("height"))
    rects = {}      # of layers by place, of blobs by name and number
    for group in svg.findall(SVG + "g"):
        rect = group.find(SVG + "rect")
        rects[group.get("id")] = left, top, right, bottom = rectangle(rect)
        assert 0 <= left and right <= width and 0 <= top and bottom <= height
    placed = sorted(rects.values())
    for i, (_, top, right, bottom) in enumerate(placed):
        for other in placed[i + 1:]:
            if other[0] >= right:
                break
            assert other[1] >= bottom or other[3] <= top, "two boxes overlap"
    layers = [i for i, layer in enumerate(net.layer) if layer.type != "Split"]
    assert sorted(int(name[5:]) for name in rects if name.startswith("node-")) == layers
    edges = [edge for edge in svg.findall(SVG + "path") if edge.get("class") == "edge"]
    read = sum(bottom not in net.layer[i].top or len(net.layer[i].bottom) > 1 for i in layers for bottom in net.layer[i].bottom)
    made = {top for layer in net.layer for top in layer.top}
    assert len(edges) >= read - sum(bottom not in made for i in layers for bottom in net.layer[i].bottom)
    for edge in edges:
        x, y = map(float, edge.get("d").split()[-2:]) if edge.get("d").split()[-2][0] not in "LC" else map(
            float, (edge.get("d").split()[-2][1:], edge.get("d").split()[-1]))
        left, top, right, bottom = rects[f"node-{edge.get('data-to')}"]
        if rankdir == "TB":
            assert left <= x <= right and abs(top - y - 5) < 0.2
        else:
            assert abs(x - 5 - right) < 0.2


def rectangle(rect):
    x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def test_svg_says_what_it_shows(net):
    """Layers in place lie under the one whose blob they change; names are escaped; tops of Splits are aliases; shapes are a Net's."""
    text = drawing.net_svg(net, display_lrm=True)
    assert "<title>a &quot;net&quot;</title>" in text and "Convolution  3x5/2 8" in text and "lr mult 2, 1" in text
    svg = ElementTree.fromstring(text)
    boxes = {group.get("data-layer"): rectangle(group.find(SVG + "rect")) for group in svg.findall(SVG + "g") if group.get("data-layer")}
    assert boxes["r"][0] == boxes["c"][0] and 0 < boxes["r"][1] - boxes["c"][3] < 2
    below = {rankdir: ElementTree.fromstring(drawing.net_svg(net, rankdir)) for rankdir in ("TB", "BT", "LR", "RL")}
    at = {rankdir: {group.get("data-layer"): rectangle(group.find(SVG + "rect")) for group in svg.findall(SVG + "g")} for rankdir, svg in below.items()}
    assert at["TB"]["d"][1] < at["TB"]["c"][1] and at["BT"]["d"][1] > at["BT"]["c"][1] and at["BT"]["r"][1] < at["BT"]["c"][1]
    assert at["LR"]["d"][0] < at["LR"]["c"][0] and at["RL"]["d"][0] > at["RL"]["c"][0]
    assert len(ElementTree.fromstring(drawing.net_svg(net, phase=caffe.TEST)).findall(SVG + "g")) == 2 + 1
    assert "prefers-color-scheme" in text and "prefers-color-scheme" not in drawing.net_svg(net, standalone=False)
    with pytest.raises(ConfigError, match="rankdir: must be one of LR, RL, TB, BT, got 'UP'"):
        drawing.net_svg(net, "UP")
    shared = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "a" type: "Power" bottom: "x" top: "a" } layer { name: "b" type: "Power" bottom: "x" top: "b" }"""
    built = core.Net(text_of(shared))
    svg = ElementTree.fromstring(drawing.net_svg(built))
    blob = next(group for group in svg.findall(SVG + "g") if group.get("data-blob") == "x")
    assert json.loads(blob.get("data-aliases")) == ["x_in_0_split_0", "x_in_0_split_1"] and "x  2×3" in "".join(blob.itertext())
    assert [edge.get("data-to") for edge in svg.findall(SVG + "path") if edge.get("class") == "edge"] == ["2", "3"]
    assert "<svg" in drawing.net_svg(caffe_pb2.NetParameter())


# Captions of the boxes of repeated blocks.
FOLDED = {
    "resnet50/deploy": ["res2c", "res3c to res3d", "res4c to res4f", "res5c"],
    "googlenet/deploy": ["inception_3b", "inception_4b to inception_4e", "inception_5b"],
    "mobilenet/deploy": ["conv3 to conv4", "conv5_2 to conv5_5"], "squeezenet/deploy": ["fire3", "fire5", "fire7 to fire8"],
    "vgg16/deploy": ["conv2_1", "conv4_1 to conv5_1"], "lstm_text/deploy": [], "lenet/net": []}


@pytest.mark.parametrize("model", FOLDED)
def test_repeated_blocks_are_folded(model):
    net = upgrade.read_net_file(Path(__file__).parents[2] / f"models/{model}.prototxt")[0]
    made, whole = drawing.Drawing(net, fold=True), drawing.Drawing(net)
    folds = [drawn for drawn in made.drawn if drawn.caption]
    assert [drawn.caption[0] for drawn in folds] == FOLDED[model]
    assert made.folded == sum(len(drawn.layers) for drawn in folds) and made.layers + made.folded == whole.layers
    assert sorted(i for drawn in made.drawn for i, _ in drawn.layers) == sorted(i for drawn in whole.drawn for i, _ in drawn.layers)
    svg = ElementTree.fromstring(made.svg(True))
    groups = {group.get("id"): group for group in svg.findall(SVG + "g")}
    assert len(groups) == len(svg.findall(SVG + "g"))
    for drawn in folds:     # one path goes in and, unless the net ends there, one out
        group = groups[f"node-{drawn.layers[0][0]}"]
        assert json.loads(group.get("data-nodes")) == [i for i, _ in drawn.layers]
        assert f"{drawn.layers[-1][1].name}" in group.find(SVG + "title").text
        assert sum(target is drawn for _, _, target, _ in made.edges) == 1
        assert any(source is drawn for source, _, _, _ in made.edges)
    assert made.height <= whole.height and "fold" not in whole.svg(True).partition("</style>")[2]


def chain(*layers):
    return text_of('layer { name: "in" type: "Input" top: "x" top: "label" } ' + " ".join(layers))


def branch(n, below, kernel=3, sums=True):
    return (f'layer {{ name: "b{n}/c" type: "Convolution" bottom: "{below}" top: "c{n}" convolution_param {{ num_output: {n} kernel_size: {kernel} }} }} '
            f'layer {{ name: "b{n}/r" type: "ReLU" bottom: "c{n}" top: "c{n}" }} layer {{ name: "b{n}/p" type: "Power" bottom: "{below}" top: "p{n}" }} '
            f'layer {{ name: "b{n}" type: "{"Eltwise" if sums else "Concat"}" bottom: "c{n}" bottom: "p{n}" top: "s{n}" }}')


LOSS = 'layer { name: "loss" type: "EuclideanLoss" bottom: "%s" bottom: "label" top: "loss" }'


@pytest.mark.parametrize(("layers", "captions"), [
    ((branch(1, "x"), branch(2, "s1"), LOSS % "s2"), [["b2", "1 × the 4 layers of b1"]]),
    ((branch(1, "x"), branch(2, "s1"), branch(3, "s2"), LOSS % "s3"), [["b2 to b3", "2 × the 4 layers of b1"]]),
    ((branch(1, "x"), branch(2, "s1", 5), LOSS % "s2"), []),            # another window
    ((branch(1, "x"), branch(2, "s1", sums=False), LOSS % "s2"), []),   # another type
    ((branch(1, "x"), branch(2, "s1"), LOSS % "s1"), []),               # something else reads the first block's end, too
    ((branch(1, "x"), branch(2, "c1"), LOSS % "s2"), []),               # and what is within it
    ((LOSS % "x",), [])])
def test_only_equal_blocks_in_a_row_are_folded(layers, captions):
    assert [drawn.caption for drawn in drawing.Drawing(chain(*layers), fold=True).drawn if drawn.caption] == captions


def test_an_empty_net_is_folded():
    assert drawing.Drawing(caffe_pb2.NetParameter(), fold=True).folded == 0


def text_of(prototxt):
    return text.parse_text(prototxt, caffe_pb2.NetParameter)[0]


def test_png(net, tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "resvg_py", None)
        with pytest.raises(DependencyError, match="pip install"):
            draw.draw_net(net, "LR", "png")
    pytest.importorskip("resvg_py", reason="resvg-py makes the pixels")
    draw.draw_net_to_file(net, tmp_path / "net.png", "TB")
    picture = cv2.imread(str(tmp_path / "net.png"))
    width = float(ElementTree.fromstring(drawing.net_svg(net)).get("width"))
    assert picture.shape[1] == 2 * width and (picture[0, 0] == 255).all()
    assert (abs(picture.astype(int) - (0x3B, 0x3F, 0xB8)).sum(axis=-1) == 0).sum() > 1000    # the convolution's box, BGR
    with pytest.raises(FileError, match="cannot be written"):
        draw.draw_net_to_file(net, tmp_path / "none" / "net.svg")


def test_chains_are_straight_and_branches_do_not_cross():
    from minicaffe.pycaffe.graph_layout import Box, place
    boxes = [Box(10, breadth) for breadth in (40, 20, 20, 30, 30, 40)]
    bends = place(boxes, [(0, 0, 1, 0), (1, 0, 2, 0), (0, 0, 3, 0), (3, 0, 4, 0), (2, 0, 5, 0), (4, 0, 5, 0), (0, 0, 5, 0)])
    assert [box.rank for box in boxes] == [0, 1, 2, 1, 2, 3] and list(map(len, bends)) == [0, 0, 0, 0, 0, 0, 2]
    assert boxes[1].at == boxes[2].at and boxes[3].at == boxes[4].at and bends[-1][0].at == bends[-1][1].at
    order = sorted([boxes[1], boxes[3], bends[-1][0]], key=lambda box: box.at)
    assert [b.at for b in order] == sorted(b.at for b in order)
    assert all(b.at - b.breadth / 2 - a.at - a.breadth / 2 >= 15.9 for a, b in zip(order, order[1:]))
    assert boxes[1].start == boxes[0].start + 10 + 40
