"""Summaries: the table of a net, nets without their data, and what a training needs in memory."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import layer_text

from minicaffe.errors import ConfigError, Error
from minicaffe.inspection import memory_estimate, replace_sources
from minicaffe.inspection.summary import Summary, block_names, flops_text, sizes
from minicaffe.memory.registry import registry
from minicaffe.memory.reporter import Event
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

ROOT = Path(__file__).parents[2]
INNER = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 5 }'
NET = 'name: "small" ' + layer_text("Input", "in", "", "x y", "input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } }") + layer_text(
    "Convolution", "conv", "x", more='convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } }') + layer_text(
    "ReLU", "relu", "conv", "conv") + layer_text("InnerProduct", "a", "conv", more=INNER) + layer_text("InnerProduct", "again", "conv", more=INNER) + layer_text(
    "Flatten", "flat", "again") + layer_text("Eltwise", "sum", "a flat") + layer_text("SoftmaxWithLoss", "loss", "sum y")


def parsed(text, phase=caffe_pb2.TRAIN):
    param = parse_text(text, caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    return param


def test_rows_and_sums():
    net = Net(parsed(NET))
    table = net.summary()
    rows = {row.name: row for row in table.rows}
    conv, relu, flat, given = (rows[name] for name in ("conv", "relu", "flat", "in"))
    assert conv.shapes == [(4, 16, 6, 6)] and conv.sizes == "3 16" and conv.parameters == 16 * 27 + 16 and conv.flops == 2 * 4 * 36 * 16 * 27
    assert conv.data == conv.diff == 4 * 4 * 16 * 36
    assert relu.data == relu.diff == 0 and relu.flops == 4 * 16 * 36                               # in place
    assert rows["again"].parameters == 0 and table.parameters == 448 + 5 * 576 + 5                 # shared
    assert flat.data == flat.diff == flat.flops == 0                                               # a view
    assert given.engine is given.layout is None and given.diff == 0 and given.data == 4 * (4 * 3 * 64 + 4)
    assert table.data == sum(row.data for row in table.rows) and table.backward_flops > table.flops
    assert conv.engine and rows["a"].engine     # before anything runs
    net.forward_from_to(0, len(net.nodes) - 1)
    assert all(row.engine for row in net.summary().rows if row.name in ("conv", "a"))
    made = Summary(Net(parsed(layer_text("Input", "in", "", "x", "input_param { shape { dim: 3 dim: 4 } }") + "".join(
        layer_text("InnerProduct", name, bottom, more="loss_weight: 1 " * (bottom == "a") + "inner_product_param { num_output: 2 bias_term: false }")
        for name, bottom in ("ax", "bx", "ca", "da")))))
    assert [row.name for row in made.rows] == ["in", "a", "a_a_0_split", "b", "c", "d"] and made.layers == 6
    split = made.rows[2]
    assert (split.data, split.diff, split.parameters) == (0, 2 * 4 * 3 * 2, 0) and made.totals()[0].startswith("6 layers, ")
    assert "<b>net</b>" in made._repr_html_()


def test_text_and_columns():
    net = Net(parsed(NET.replace('"conv"', '"a_convolution_with_a_long_name"').replace('"small"', '"<small>"')))
    text = str(net)
    assert text == str(net.summary()) and "\x1b" not in text
    assert re.search(r"^a_convolution_with_a_long_name +Convolution 3 16 +4x16x6x6 +448 +9.0 KiB +9.0 KiB +124 k  \w+", text, re.M)
    assert "computed by" in text and "computed by" not in net.summary().text(engines=False) and "scratch" not in text   # not measured
    narrow = net.summary().text(70, engines=False).splitlines()
    assert "left out at 70 columns: diff, data, FLOPs; a pipe and --json have all" in narrow and max(map(len, narrow)) <= 93
    assert str(Net(caffe_pb2.NetParameter()).summary()).splitlines()[0] == "net, phase TEST"
    assert "3,333 parameters (13.0 KiB)" in text and "SoftmaxWithLoss" in text and "phase TRAIN" in text
    html = net._repr_html_()
    assert html.count("<tr>") == 1 + len(net.summary().rows) and "&lt;small&gt;" in html and "<td>448</td>" in html
    layers = [("in", "Input", [], ["x"]), ("conv1", "Convolution", ["x"], ["c"]), ("bn_conv1", "BatchNorm", ["c"], ["c"]),
              ("relu", "ReLU", ["c"], ["c"]), ("split", "Split", ["c"], ["c_0", "c_1"]), ("res2a_branch1", "Convolution", ["c_0"], ["d"]),
              ("scale2a_branch1", "Scale", ["d"], ["d"]), ("first", "ReLU", ["nowhere"], ["nowhere"])]
    nodes = [SimpleNamespace(name=name, type=kind, param=SimpleNamespace(bottom=bottom, top=top)) for name, kind, bottom, top in layers]
    assert block_names(nodes) == ["in", *["conv1"] * 4, *["res2a_branch1"] * 2, "first"]
    made = Summary(Net(parsed(NET)))
    whole = made.text()
    width = max(map(len, whole.split("\n\n")[1].splitlines()))
    assert made.text(width) == whole and f"left out at {width - 1} columns" in made.text(width - 1)


@pytest.mark.slow(1)
def test_blocks_of_resnet():
    """In ResNet's names the layers in place begin otherwise than their block: bn2a_branch2a, scale2a_branch2a."""
    table = Net(read_net(str(ROOT / "models/resnet50/deploy.prototxt"), caffe_pb2.TEST)).summary()
    before = (table.parameters, table.data, table.flops)
    table.collapse(1)
    blocks_of = [f"res{stage}{chr(97 + i)}" for stage, count in ((2, 3), (3, 4), (4, 6), (5, 3)) for i in range(count)]
    assert [row.name for row in table.rows] == ["data", "conv1", "pool1", *blocks_of, "pool5", "fc1000", "prob"]
    assert table.rows[3].shapes == [(1, 256, 56, 56)] and f"{table.layers} layers in 22 rows" in str(table)
    assert before == tuple(sum(getattr(row, name) for row in table.rows) for name in ("parameters", "data", "flops"))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_collapsed_rows(depth):
    text = NET.replace('"conv"', '"a/b/conv"').replace('name: "relu"', 'name: "a/b/relu"').replace('name: "a"', 'name: "a/c"').replace('name: "again"', 'name: "a/c/2"')
    net = Net(parsed(text))
    scratch = {node.name: 10 + i for i, node in enumerate(net.nodes) if node.name != "flat"}
    rows, table = Summary(net, scratch=scratch).rows, Summary(net, scratch=scratch)
    table.collapse(depth)
    groups = {}
    for row in rows:
        groups.setdefault("/".join(row.block.split("/")[:depth]), []).append(row)
    assert len(table.rows) == len(groups) and max(map(len, groups.values())) > 1
    for made, some in zip(table.rows, groups.values(), strict=True):
        for field in ("parameters", "data", "diff", "flops", "backward_flops"):
            assert getattr(made, field) == sum(getattr(row, field) for row in some)
        assert made.scratch == max((row.scratch for row in some if row.scratch is not None), default=None)
        assert made.shapes == some[-1].shapes
        assert made.type == (some[0].type if len(some) == 1 else f"{len(some)} layers")


DATA = layer_text("Data", "data", "", "data label", '%s data_param { source: "/nowhere" batch_size: 8 prefetch: 2 }') + layer_text(
    "InnerProduct", "ip", "data", more="inner_product_param { num_output: 2 }")
MAP = layer_text("Data", "map", more='data_param { source: "/nowhere/map" batch_size: 3 }')


def replaced(text, *where, **how):
    return replace_sources.replace_sources(parsed(text), *where, **how)


def test_a_net_without_its_data(tmp_path):
    for fields, shapes in (("crop_size: 9 force_gray: true", [(8, 1, 9, 9), (8,)]), ("crop_h: 5 crop_w: 9", [(8, 3, 5, 9), (8,)]),
                           ("resize_param { height: 6 width: 4 }", [(8, 3, 6, 4), (8,)]),
                           ("resize_param { height: 6 width: 4 } crop_h: 5 crop_w: 3", [(8, 3, 5, 3), (8,)])):
        net, sources = replaced(DATA % f"transform_param {{ {fields} }}")
        assert sources["data"].shapes == shapes and Net(net).blob_by_name("data").shape == shapes[0]
        if fields.startswith("crop_size"):
            assert "from crop_size" in sources["data"].assumed and sources["data"].prefetched_bytes == 3 * 4 * (8 * 81 + 8)
    _, sources = replaced((DATA % "transform_param { crop_size: 9 }").replace("batch_size: 8", "batch_size: 8 label_size: 3"))
    assert sources["data"].shapes == [(8, 3, 9, 9), (8, 3)]
    with pytest.raises(Error, match="/nowhere.*--shape data=3x224x224"):
        replaced(DATA % "", shapes={})
    with pytest.raises(Error, match="/nowhere: no such database; check the path$"):     # of a command without --shape
        replaced(DATA % "")
    _, sources = replaced(DATA % "", shapes={"data": (2, 5)}, batch=3)
    assert sources["data"].shapes == [(3, 2, 5), (3,)] and "as --shape says" in sources["data"].assumed
    deploy, place = tmp_path / "deploy.prototxt", str(tmp_path / "net.prototxt")
    deploy.write_text(layer_text("Input", "x", more="input_param { shape { dim: 10 dim: 3 dim: 4 dim: 5 } }"))
    _, sources = replaced(DATA % "", place)
    assert sources["data"].shapes[0] == (8, 3, 4, 5) and "deploy.prototxt" in sources["data"].assumed
    deploy.write_text(layer_text("Input", "x", "", "clip data label", "input_param { shape { dim: 1 dim: 1 } shape { dim: 1 dim: 2 dim: 4 dim: 5 } "
                                 "shape { dim: 1 dim: 7 } }"))
    _, sources = replaced(DATA % "" + MAP, place)
    assert sources["data"].shapes == [(8, 2, 4, 5), (8, 7)]     # by names, not by order
    assert sources["map"].shapes == [(3, 1, 4, 5)] and "for each pixel of data" in sources["map"].assumed
    deploy.write_text(layer_text("Input", "x", "", "data label", "input_param { shape { dim: 1 dim: 5 } }"))
    _, sources = replaced(DATA % "" + MAP, place)
    assert sources["data"].shapes == [(8, 5), (8, 5)]
    assert sources["map"].shapes == [(3, 5)] and sources["map"].assumed == f"map is 5, as in {deploy}"   # no map of rows
    for text, how, words in (((DATA % "").replace("batch_size: 8", "batch_size: 0"), {}, "batch_size: must be at least 1"),
                             (layer_text("Parameter", "p", more="parameter_param { shape { dim: 1 } }"), {"batch": 7}, "no layer of the net gives batches")):
        with pytest.raises(ConfigError, match=words):
            replaced(text, **how)
    assert replaced(DATA % "include { phase: TEST }")[1] == {}
    fed, sources = replaced(NET, batch=7)
    assert not sources and [shape.dim[0] for shape in fed.layer[0].input_param.shape] == [7, 7]


def test_sinks_without_their_files(tmp_path):
    """An HDF5Output empties its file when it is set up: its replacement has none."""
    file = tmp_path / "out.h5"
    file.write_text("precious")
    sink = layer_text("HDF5Output", "out", "data label", "", f'hdf5_output_param {{ file_name: "{file}" }}')
    net, sources = replaced(DATA % "" + sink + layer_text("DetectionOutput", "found", "", "", 'detection_output_param { save_output_param { output_directory: "d" } }')
                            + layer_text("DetectionEvaluate", "scored", "", "", 'detection_evaluate_param { num_classes: 2 name_size_file: "sizes" }'),
                            shapes={"data": (3, 4, 4)})
    assert "out.h5" not in str(net) and "output_directory" not in str(net) and "sizes" not in str(net) and sources["out"].type == "HDF5Output"
    net = Net(replaced(DATA % "" + sink, shapes={"data": (3, 4, 4)})[0])
    net.forward_from_to(0, len(net.nodes) - 1)
    assert file.read_text() == "precious"


@pytest.mark.parametrize("rule", ['include { stage: "a" }', 'exclude { not_stage: "a" }', 'include { min_level: 1 }'])
def test_sources_with_rules(rule):
    param = parsed(layer_text("MemoryData", "data", "", "data label", rule + " memory_data_param { batch_size: 4 channels: 2 height: 3 width: 5 }"))
    param.state.stage.append("a")
    param.state.level = 1
    net, sources = replace_sources.replace_sources(param)
    assert sources["data"].shapes == [(4, 2, 3, 5), (4,)] and not sources["data"].assumed
    assert Net(net).blob_by_name("data").shape == (4, 2, 3, 5) and str(net.layer[0].include or net.layer[0].exclude).count("stage") + rule.count("level") == 1


def test_the_peak_of_a_record():
    place, net = registry.host_place, Net(parsed(NET))     # where batches are made ready

    def event(kind, address, nbytes, name, detail=""):
        return Event(0, kind, place, address, nbytes, name, detail, *(0,) * (len(Event._fields) - 7))
    events = [event("free", 9, 999, "older"), event("alloc", 1, 100, "conv[0] data"), event("begin", 0, 0, "conv", "forward"),
              event("alloc", 2, 50, "conv data"), event("alloc", 3, 70, "scratch data"), event("free", 3, 70, "scratch data"),
              event("alloc", 4, 30, "relu mask data"), event("free", 2, 50, "conv data"), event("alloc", 5, 60, "x data")]
    need, = memory_estimate.needs(events, [net], [], [{"in": replace_sources.ReplacedSource("Data", [(4, 5)], 3)}])
    assert (need.peak, need.when) == (100 + 50 + 70 + 3 * 80, "conv forward")
    assert need.parts == {"parameters": 100, "scratch": 70, "activations": 50, "batches made ready": 240}
    assert need.scratch == {"conv": 70}


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", ["lenet", "cifar10_quick"])
def test_memory_of_a_training(name):
    """Within 5% of what `minicaffe train` takes; caffenet takes too long here, `tools/bench/needs.py caffenet` says it."""
    done = subprocess.run([sys.executable, ROOT / "tools/bench/needs.py", f"{name}:16"], text=True, stdout=subprocess.PIPE, check=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    found = json.loads(done.stdout)
    assert found["measured"] > 1 << 20 and 0.95 < found["ratio"] < 1.05, found


def test_texts_of_numbers_and_windows():
    for flops, text in ((0, "0 "), (999, "999 "), (1000, "1.0 k"), (99_949, "99.9 k"), (99_950, "100 k"), (999_499, "999 k"), (999_500, "1.0 M"),
                        (36_864_000, "36.9 M"), (1_450_000_000, "1.4 G"), (10 ** 18, "1000 P")):
        assert flops_text(flops) == text
    for window, shown in (("kernel_size: 3 stride: 1 pad: 1", "3+1 8"), ("kernel_size: 3 kernel_size: 3 stride: 1 stride: 1 pad: 0 pad: 0", "3 8"),
                          ("kernel_h: 3 kernel_w: 3 stride_h: 2 stride_w: 2", "3/2 8"), ("kernel_h: 3 kernel_w: 1 pad_h: 1 pad_w: 0", "3x1+1x0 8")):
        assert sizes(parsed(layer_text("Convolution", "c", more=f"convolution_param {{ num_output: 8 {window} }}")).layer[0]) == shown
