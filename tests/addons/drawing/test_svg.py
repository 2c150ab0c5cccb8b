"""Nets as pictures: formats, rates, phases, and where everything in an SVG is."""

import itertools
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import cv2
import pytest

import minicaffe as caffe
from minicaffe import draw
from minicaffe.addons.drawing import svg as drawing
from minicaffe.addons.drawing.svg import get_layer_lr_mult, is_included
from minicaffe.errors import ConfigError, DependencyError, FileError
from minicaffe.net import net as core
from minicaffe.proto import caffe_pb2, text, upgrade

SVG = "{http://www.w3.org/2000/svg}"


def text_of(prototxt):
    return text.parse_text(prototxt, caffe_pb2.NetParameter)[0]


@pytest.fixture
def net():
    return text_of("""name: "a \\"net\\""
        layer { name: "d" type: "Data" top: "x" top: "y" data_param { batch_size: 64 } include { phase: TRAIN } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { lr_mult: 2 }
                convolution_param { num_output: 8 kernel_h: 3 kernel_w: 5 stride: 2 } }
        layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
        layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 pool: AVE } exclude { phase: TEST } }""")


def test_formats(net, tmp_path):
    draw.draw_net_to_file(net, tmp_path / "net.svg", "TB", caffe.TEST, True)
    wanted = drawing.net_svg(net, "TB", caffe.TEST, True).encode()
    assert (tmp_path / "net.svg").read_bytes() == draw.draw_net(net, "TB", "svg", caffe.TEST, True) == wanted
    for name, got in (("net.dot", "got .dot"), ("net", "got no extension")):
        with pytest.raises(ConfigError, match=f"^{tmp_path}/{name}: a net is drawn as .svg or .png, {got}; rsvg-convert and Inkscape make .pdf"):
            draw.draw_net_to_file(net, tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(ConfigError, match="^a net is drawn as .svg or .png, got .pdf"):
        draw.draw_net(net, "LR", "pdf")
    net.layer[0].exclude.add(phase=caffe.TEST)
    with pytest.raises(ConfigError, match="not both"):
        draw.draw_net(net, "LR", "svg", phase=caffe.TRAIN)


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


def test_rates_and_phases(net):
    data, conv, relu, pool = net.layer
    for rates, found in (((2,), (2, 1)), ((), (1, 1)), ((0,), (0, 1)), ((2, 0), (2, 0))):
        conv.ClearField("param")
        conv.param.extend(caffe_pb2.ParamSpec(lr_mult=rate) for rate in rates)
        assert get_layer_lr_mult(conv) == found
    with pytest.raises(ValueError, match="Convolution, Deconvolution, InnerProduct"):
        get_layer_lr_mult(relu)
    conv.param.add()
    with pytest.raises(ConfigError, match="param: weight and bias have two, got 3"):
        drawing.net_svg(net, display_lrm=True)
    train, test = caffe.TRAIN, caffe.TEST
    for include, exclude, phases in (((), (), [train, test]), ((train,), (), [train]), ((test, train), (), [train, test]), ((), (train,), [test]),
                                     ((), (test, train), []), ((), (test,), [train])):
        rules = {name: [{"phase": phase} for phase in named] for name, named in (("include", include), ("exclude", exclude))}
        layer = caffe_pb2.LayerParameter(name="x", type="ReLU", **rules)
        assert [phase for phase in (train, test) if is_included(layer, phase)] == phases


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[3].glob("models/**/*.prototxt")), ids=lambda p: p.parent.name + "/" + p.name)
def test_every_model_is_drawn(path):
    """Everything is drawn, once, inside the picture; nothing covers anything; edges end at the boxes of those that read."""
    if "solver" not in path.name:
        net = upgrade.read_net_file(path)[0]
        for rankdir in ("TB", "RL"):
            svg = ElementTree.fromstring(drawing.net_svg(net, rankdir))
            width, height = float(svg.get("width")), float(svg.get("height"))
            rects = {}      # of layers by place, of blobs by name and number
            for group in svg.findall(SVG + "g"):
                rects[group.get("id")] = left, top, right, bottom = rectangle(group.find(SVG + "rect"))
                assert 0 <= left and right <= width and 0 <= top and bottom <= height
            placed = sorted(rects.values())
            for i, (_, top, right, bottom) in enumerate(placed):
                for other in itertools.takewhile(lambda other: other[0] < right, placed[i + 1:]):   # noqa: B023 (the loop is over before)
                    assert other[1] >= bottom or other[3] <= top, "two boxes overlap"
            layers = [i for i, layer in enumerate(net.layer) if layer.type != "Split"]
            assert sorted(int(name[5:]) for name in rects if name.startswith("node-")) == layers
            edges = [edge for edge in svg.findall(SVG + "path") if edge.get("class") == "edge"]
            read = sum(bottom not in net.layer[i].top or len(net.layer[i].bottom) > 1 for i in layers for bottom in net.layer[i].bottom)
            made = {top for layer in net.layer for top in layer.top}
            assert len(edges) >= read - sum(bottom not in made for i in layers for bottom in net.layer[i].bottom)
            for edge in edges:
                x, y = numbers_of(edge.get("d"))[-2:]
                left, top, right, bottom = rects[f"node-{edge.get('data-to')}"]
                assert left <= x <= right and abs(top - y - 5) < 0.2 if rankdir == "TB" else abs(x - 5 - right) < 0.2


def rectangle(rect):
    x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def test_svg(net):
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
    assert "lr mult" not in drawing.net_svg(net) and "prefers-color-scheme" in text and "prefers-color-scheme" not in drawing.net_svg(net, standalone=False)
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


WIDE = """name: "n"
layer { name: "in" type: "Input" top: "x" top: "a_long_name" input_param { shape { dim: 2 dim: 3 } shape { } } }
layer { name: "a_layer_of_a_long_name" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 5 } param { lr_mult: 2 } }
layer { name: "r" type: "ReLU" bottom: "a" top: "a" }
layer { name: "side" type: "Power" bottom: "x" top: "b" }
layer { name: "j" type: "Concat" bottom: "a" bottom: "b" bottom: "x" top: "j" }
layer { name: "s" type: "Silence" bottom: "j" bottom: "a_long_name" }
"""


@pytest.mark.parametrize("rankdir", ["TB", "LR"])
def test_boxes_and_texts(rankdir):
    def width(text, bold):
        return len(text) * 12 * (0.64 if bold else 0.58) + 16

    svg = ElementTree.fromstring(drawing.net_svg(core.Net(text_of(WIDE)), rankdir, display_lrm=True, types={"side": "Replaced"}))
    said = {"in": ["Input"], "a_layer_of_a_long_name": ["InnerProduct  5", "lr mult 2, 1"], "r": ["ReLU"], "side": ["Replaced"], "j": ["Concat"], "s": ["Silence"]}
    shapes = {"x": "2×3", "a_long_name": "scalar", "a": "2×5", "b": "2×3", "j": "2×11"}
    groups = {group.get("data-layer") or group.get("data-blob"): group for group in svg.findall(SVG + "g") if group.get("data-layer") or group.get("data-blob")}
    rects = {}
    for name, group in groups.items():
        left, top, right, bottom = rects[name] = rectangle(group.find(SVG + "rect"))
        texts = [(text.text, text.get("class"), float(text.get("x")), float(text.get("y"))) for text in group.findall(SVG + "text")]
        assert all(abs(x - (left + right) / 2) < 0.2 for _, _, x, _ in texts)
        if group.get("data-layer"):
            assert [text for text, *_ in texts] == [name, *said[name]] and [bold for _, bold, *_ in texts] == ["name"] + [None] * len(said[name])
            own = 15 * len(texts) + 8
            assert abs(bottom - top - own + 1) < 0.2 and [round(y - top) for *_, y in texts] == [15 * (n + 1) + 1 for n in range(len(texts))]
            if name not in ("r", "a_layer_of_a_long_name"):
                assert abs(right - left - max(width(text, not n) for n, (text, *_) in enumerate(texts))) < 0.2
        else:
            assert [text for text, *_ in texts] == [f"{name}  {shapes[name]}"] and texts[0][1] is None
            assert abs(right - left - width(texts[0][0], False)) < 0.2 and bottom - top == 19 and abs(texts[0][3] - bottom + 5.5) < 0.2
    assert groups["side"].get("data-type") == "Replaced" and rects["r"][0::2] == rects["a_layer_of_a_long_name"][0::2]
    assert abs(rects["r"][2] - rects["r"][0] - width("a_layer_of_a_long_name", True)) < 0.2
    for layer, blobs in (("in", ["x", "a_long_name"]), ("side", ["b"])):
        (left, top, right, bottom), pills = rects[layer], [rects[name] for name in blobs]
        if rankdir == "TB":
            assert all(abs(one[1] - bottom - 7) < 1.2 for one in pills)
            assert abs((pills[0][0] + pills[-1][2]) / 2 - (left + right) / 2) < 0.2 and all(abs(b[0] - a[2] - 6) < 0.2 for a, b in zip(pills, pills[1:]))
        else:
            assert all(abs(one[0] - right - 6) < 0.2 for one in pills)
            assert abs((pills[0][1] + pills[-1][3]) / 2 - (top + bottom) / 2) < 0.6 and all(abs(b[1] - a[3] - 6) < 0.2 for a, b in zip(pills, pills[1:]))


def numbers_of(path):
    return [float(number) for number in re.findall(r"-?[\d.]+", path)]


@pytest.mark.parametrize(("ahead", "back"), [("TB", "BT"), ("LR", "RL")])
def test_directions_are_mirrors(ahead, back):
    net = core.Net(text_of(WIDE))
    one, two = (ElementTree.fromstring(drawing.net_svg(net, rankdir)) for rankdir in (ahead, back))
    size = float(one.get("height" if ahead == "TB" else "width"))
    assert (one.get("width"), one.get("height")) == (two.get("width"), two.get("height"))
    names = [path.get("data-blob") or "head" for path in one.findall(SVG + "path")]
    assert names == [path.get("data-blob") or "head" for path in two.findall(SVG + "path")] and names.count("head") == 7
    for a, b in zip(one.findall(SVG + "path"), two.findall(SVG + "path"), strict=True):
        a, b = numbers_of(a.get("d")), numbers_of(b.get("d"))
        along = 1 if ahead == "TB" else 0
        a = [size - number if i % 2 == along else number for i, number in enumerate(a)]
        a, b = (sorted(zip(some[::2], some[1::2])) for some in (a, b))      # a head begins with its tip, then left or right
        assert all(abs(x - u) < 0.7 and abs(y - v) < 0.7 for (x, y), (u, v) in zip(a, b, strict=True))
    for a, b in zip(one.findall(SVG + "g"), two.findall(SVG + "g"), strict=True):
        a, b = rectangle(a.find(SVG + "rect")), rectangle(b.find(SVG + "rect"))
        mirrored = (a[0], size - a[3], a[2], size - a[1]) if ahead == "TB" else (size - a[2], a[1], size - a[0], a[3])
        assert all(abs(x - y) < 1.7 for x, y in zip(mirrored, b))      # the last row of pixels of a box is left out below


@pytest.mark.parametrize("rankdir", ["TB", "LR"])
def test_edges(rankdir):
    svg = ElementTree.fromstring(drawing.net_svg(core.Net(text_of(WIDE)), rankdir))
    rects = {group.get("data-layer") or f"blob {group.get('data-blob')}": rectangle(group.find(SVG + "rect")) for group in svg.findall(SVG + "g")}
    names = {group.get("data-node"): group.get("data-layer") for group in svg.findall(SVG + "g") if group.get("data-layer")}
    across, along = (0, 1) if rankdir == "TB" else (1, 0)
    arrivals = {}
    for edge in svg.findall(SVG + "path"):
        if edge.get("class") != "edge":
            continue
        numbers, rect = numbers_of(edge.get("d")), rects[f"blob {edge.get('data-blob')}"]
        points = list(zip(numbers[::2], numbers[1::2]))
        assert abs(points[0][across] - (rect[across] + rect[across + 2]) / 2) < 0.2 and abs(points[0][along] - rect[along + 2]) < 0.2
        assert points[0][across] == points[1][across] and points[1][along] >= points[0][along]      # straight beyond its rank
        commands, at, places = re.findall("[A-Z]", edge.get("d")), 0, [points[0][across]]
        for command in commands[1:]:
            at += 3 if command == "C" else 1
            places.append(points[at][across])
            assert (command == "L") == (abs(places[-1] - places[-2]) < 0.5)
            if command == "C":      # as steep at both ends as a straight line
                assert points[at - 2][across] == places[-2] and points[at - 1][across] == places[-1]
                assert points[at - 2][along] == points[at - 1][along] == pytest.approx((points[at - 3][along] + points[at][along]) / 2, abs=0.11)
        crossed = {"x j": 1, "a_long_name s": 2}.get(f"{edge.get('data-blob')} {names[edge.get('data-to')]}", 0)    # ranks without an end of it
        assert len(commands) == 3 + 2 * crossed and at == len(points) - 1
        assert commands[:2] == ["M", "L"] and set(commands[2::2]) <= set("LC") and set(commands[3::2]) <= {"L"}    # a curve only between ranks
        target = names[edge.get("data-to")]
        arrivals.setdefault(target, []).append((points[-1][across], edge.get("data-blob")))
    below = rects["r"]
    for target, ends in arrivals.items():
        low, high = rects[target][across], rects[target][across + 2]
        if target == "a_layer_of_a_long_name" and rankdir == "LR":
            high = below[3]
        places = [(at - (low + high) / 2) / (high - low) for at, _ in sorted(ends)]
        assert places == pytest.approx([0.6 * ((k + 0.5) / len(ends) - 0.5) for k in range(len(ends))], abs=0.02), target
    first = max(rects[name][along + 2] for name in ("blob x", "blob a_long_name"))
    assert min(rects[name][along] for name in ("side", "a_layer_of_a_long_name")) - first == pytest.approx(28 if rankdir == "TB" else 40, abs=0.2)
    assert {target: len(ends) for target, ends in arrivals.items()} == {"a_layer_of_a_long_name": 1, "side": 1, "j": 3, "s": 2}


def test_boxes_of_layers_in_place():
    def kinds_of(svg):
        return {group.get("data-layer"): group.get("class").split()[1] for group in ElementTree.fromstring(svg).findall(SVG + "g") if group.get("data-layer")}

    net = text_of("""layer { name: "in" type: "Input" top: "x" top: "t" } layer { name: "c" type: "Deconvolution" bottom: "x" top: "a" }
        layer { name: "r1" type: "ReLU" bottom: "a" top: "a" } layer { name: "p" type: "SPP" bottom: "a" top: "b" }
        layer { name: "r2" type: "Dropout" bottom: "a" top: "a" } layer { name: "w" type: "LSTM" bottom: "a" bottom: "b" top: "a" }
        layer { name: "r3" type: "ReLU" bottom: "a" top: "a" } layer { name: "two" type: "TypeOfTheirOwn" bottom: "a" bottom: "b" top: "a" top: "b" }
        layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "t" top: "l" } layer { name: "r4" type: "Power" bottom: "l" top: "l" }
        layer { name: "all" type: "Concat" bottom: "a" bottom: "b" top: "end" }""")
    made = drawing.Drawing(net, "TB", None, False, {})
    assert [[layer.name for _, layer in drawn.layers] for drawn in made.drawn] == [
        ["in"], ["c", "r1"], ["p"], ["r2"], ["w", "r3"], ["two"], ["loss", "r4"], ["all"]]
    edges = [(source.layers[0][1].name, number, target.layers[0][1].name, blob) for source, number, target, blob in made.edges]
    assert edges == [("in", 0, "c", "x"), ("c", 0, "p", "a"), ("c", 0, "r2", "a"), ("r2", 0, "w", "a"), ("p", 0, "w", "b"), ("w", 0, "two", "a"),
                     ("p", 0, "two", "b"), ("two", 0, "loss", "a"), ("in", 1, "loss", "t"), ("two", 0, "all", "a"), ("two", 1, "all", "b")]
    assert kinds_of(made.svg(True)) == {"in": "data", "c": "convolution", "r1": "neuron", "p": "pooling", "r2": "neuron", "w": "product", "r3": "neuron",
                                        "two": "neuron", "loss": "loss", "r4": "neuron", "all": "other"}
    assert kinds_of(drawing.net_svg(text_of('layer { name: "f" type: "Power" bottom: "x" top: "x" } layer { name: "g" type: "Power" bottom: "x" top: "y" }'))) == {
        "f": "neuron", "g": "other"}
