"""Rules, splits and the backward sweeps: what a net does before it runs."""

import itertools
import logging

import numpy as np
import pytest
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe.errors import ConfigError
from minicaffe.net.definitions import LayerDef, filter_layers, insert_splits
from minicaffe.net.run import BEFORE_FORWARD
from minicaffe.proto import caffe_pb2, text


def layers_of(prototxt):
    net, _ = text.parse_text(prototxt, caffe_pb2.NetParameter)
    return [LayerDef(layer, 10 + i) for i, layer in enumerate(net.layer)]


RULES = {   # of include or exclude: does it fit phase, level and stages
    "": lambda phase, level, stages: True, "phase: TRAIN": lambda phase, level, stages: phase == 0,
    "min_level: 2": lambda phase, level, stages: level >= 2, "max_level: 2": lambda phase, level, stages: level <= 2,
    "min_level: -1 max_level: 1": lambda phase, level, stages: -1 <= level <= 1,
    'stage: "a" stage: "b"': lambda phase, level, stages: {"a", "b"} <= set(stages), 'stage: "b"': lambda phase, level, stages: "b" in stages,
    'not_stage: "a"': lambda phase, level, stages: "a" not in stages,
}


def test_rules():
    """No limit is not a limit of 0."""
    for first, second in itertools.product(RULES, RULES):
        for word in "include", "exclude":
            text_of = f'layer {{ name: "a" {word} {{ {first} }} {word} {{ {second} }} }} layer {{ name: "b" }}'
            layers = text.parse_text(text_of, caffe_pb2.NetParameter)[0].layer
            for phase, level, stage in itertools.product((0, 1), (-2, -1, 0, 1, 2, 3), ([], ["a"], ["b"], ["b", "a"])):
                keep = (RULES[first](phase, level, stage) or RULES[second](phase, level, stage)) == (word == "include")
                state = caffe_pb2.NetState(phase=phase, level=level, stage=stage)
                assert len(filter_layers(layers, state)) == 1 + keep, (text_of, state)


def test_include_and_exclude_together():
    net, positions = text.parse_text('layer { name: "fine" }\nlayer { name: "a" type: "X" include { phase: TRAIN } exclude { phase: TEST } }',
                                     caffe_pb2.NetParameter)
    with pytest.raises(ConfigError, match=r"net\.prototxt:2: layer 'a' \(X\): include"):
        filter_layers(net.layer, caffe_pb2.NetState(), "net.prototxt", positions)


def test_last_of_same_names_meant():
    """By index and by name, as in Caffe; Net.layer_dict agrees."""
    net = make_net(layer_text("Input", "in", "", "x", "input_param { shape { dim: 1 } }") + layer_text("Power", "p", "x", "a")
                   + layer_text("Power", "q", "a", "b") + layer_text("Power", "p", "b", "c"))
    assert net.layer_names == ["in", "p", "q", "p"] and [net.layer_index(name) for name in ("in", "p", "q")] == [0, 3, 2]
    assert all(net.layer_dict[name] is net.layers[net.layer_index(name)] for name in net.layer_names)


def test_splits():
    layers = layers_of('layer { name: "a" type: "X" top: "a" } layer { name: "b" type: "X" bottom: "a" top: "a" }')
    assert [d.param.type for d in insert_splits(layers)] == ["X", "X"]      # one consumer needs none
    layers = layers_of(layer_text("X", "ip", "", "x") + layer_text("X", "relu", "x", "x") + layer_text("X", "c", "x") + layer_text("X", "d", "x"))
    before = [d.param.SerializeToString() for d in layers]
    result = insert_splits(layers)
    assert [d.param.SerializeToString() for d in layers] == before
    assert [d.param.name for d in result] == ["ip", "relu", "x_relu_0_split", "c", "d"]
    assert list(result[2].param.top) == ["x_relu_0_split_0", "x_relu_0_split_1"]
    assert [d.param.bottom[0] for d in result[3:]] == ["x_relu_0_split_0", "x_relu_0_split_1"]


@pytest.mark.parametrize("readers, weights, splits", [(1, [0], []), (2, [0], [[]]), (1, [0, 3], []), (2, [0, 3], [[]]), (1, [2], [[2, 0]]),
                                                      (1, [0.5, 2], [[0.5, 0]]), (2, [2], [[2, 0, 0]])])
def test_loss_weight_moves_to_split(readers, weights, splits):
    """One of 0 is no consumer; another top keeps its own, unlike Caffe."""
    layers = layers_of(layer_text("X", "a", "", "a aside", "".join(f"loss_weight: {weight} " for weight in weights))
                       + "".join(layer_text("X", f"r{i}", "a", "") for i in range(readers)))
    made = insert_splits(layers)
    assert [list(definition.param.loss_weight) for definition in made if definition.param.type == "Split"] == splits
    assert list(made[0].param.loss_weight) == [0, *weights[1:]]
    assert [definition.param.bottom[0] for definition in made[-readers:]] == (
        [f"a_a_0_split_{i + bool(weights[0])}" for i in range(readers)] if splits else ["a"])


def test_unknown_bottom_names_near_blobs():
    layers = layers_of('layer { name: "a" type: "X" top: "data" } layer { name: "b" type: "Y" bottom: "dta" top: "b" }')
    with pytest.raises(ConfigError) as caught:
        insert_splits(layers, "net.prototxt")
    assert str(caught.value).startswith("net.prototxt:11: layer 'b' (Y): bottom[0]: unknown bottom blob 'dta'")
    assert "did you mean 'data'" in str(caught.value)


INPUTS = layer_text("Input", "in", "", "x label", "input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } }")
def ip(name, bottom, param=""):
    return layer_text("InnerProduct", name, bottom, more=param + " inner_product_param { num_output: 4 bias_term: false }")


def test_layers_that_need_backward():
    loss = layer_text("SoftmaxWithLoss", "loss", "b label", more="propagate_down: CUT propagate_down: false")
    net = INPUTS + ip("a", "x") + ip("b", "a") + loss
    cases = {   # the branch without a loss runs none; propagate_down; force_backward leaves out bottoms that may have no gradient
        INPUTS + ip("ip", "x") + layer_text("Accuracy", "accuracy", "ip label") + layer_text("SoftmaxWithLoss", "loss", "ip label"): {
            "in": (False, []), "label_in_1_split": (False, [False]), "ip": (True, [False]), "ip_ip_0_split": (True, [True]),
            "accuracy": (False, [False, False]), "loss": (True, [True, False])},
        net.replace("CUT", "false"): {"in": (False, []), "a": (False, [False]), "b": (False, [False]), "loss": (True, [False, False])},
        net.replace("CUT", "true"): {"in": (False, []), "a": (True, [False]), "b": (True, [True]), "loss": (True, [True, False])},
        "force_backward: true " + INPUTS + ip("ip", "x", "param { lr_mult: 0 }") + layer_text("SoftmaxWithLoss", "loss", "ip label"): {
            "in": (True, []), "ip": (True, [True]), "loss": (True, [True, False])}}
    for prototxt, wanted in cases.items():
        assert {node.name: (node.needs_backward, node.bottom_needs) for node in make_net(prototxt).nodes} == wanted


def test_loss_overwritten_in_place():
    net = make_net(layer_text("DummyData", "x", "", "x y", "dummy_data_param { shape { dim: 2 } data_filler { value: 1 } data_filler { value: 3 } }")
                   + layer_text("EuclideanLoss", "loss", "x y") + layer_text("Power", "shift", "loss", "loss", "power_param { shift: 5 }"))
    assert net.forward_from_to(0, len(net.nodes) - 1) == 2 and net.blob_by_name("loss").cpu_data == 7
    net.add_hook(BEFORE_FORWARD, lambda index: None)    # layer by layer
    assert net.forward_from_to(0, len(net.nodes) - 1) == 2


@pytest.mark.parametrize("kind, later, place, phase, warns", [
    ("ReLU", "BatchNorm", "a", 0, True), ("ReLU", "Scale", "a", 0, True), ("Sigmoid", "Scale", "a", 0, True), ("Sigmoid", "Dropout", "other", 0, True),
    ("TanH", "ReLU", "a", 0, True), ("ELU", "Dropout", "other", 0, True), ("Exp", "Scale", "other", 0, True),
    ("AbsVal", "Scale", "other", 0, False), ("ReLU", "BatchNorm", "other", 0, False),   # the gradient is made from the bottom
    ("ReLU", "BatchNorm", "a", 1, False),       # nothing goes backward
    ("ReLU", "ReLU", "a", 0, False), ("ReLU", "Dropout", "a", 0, False),
    ("BatchNorm", "ReLU", "a", 0, False), ("Scale", "ReLU", "a", 0, False),     # keeps what it needs
])
def test_overwritten_activation_is_reported(caplog, kind, later, place, phase, warns):
    """By `later`, in place, and by another layer after it; the first is named."""
    with caplog.at_level(logging.WARNING):
        make_net(layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } }")
                 + layer_text("Convolution", "conv", "x", place, "convolution_param { num_output: 3 kernel_size: 1 }")
                 + layer_text(kind, "first", place, "a") + layer_text(later, "later", "a", "a") + layer_text("Power", "last", "a", "a") * (later != "ReLU" and warns)
                 + layer_text("Reduction", "loss", "a", more="loss_weight: 1"), phase)
    assert [record.getMessage() for record in caplog.records] == [
        f"layer 'first' ({kind}): its gradient is made from its top 'a', which layer 'later' ({later}) overwrites as 'a', and may be wrong, as in "
        "Caffe; give the top of 'later' a name of its own"] * warns


def run_of(prototxt):
    """Return a net with ones as input after a forward and a backward."""
    net = make_net(prototxt, caffe.TRAIN)
    net.blobs["x"].data[...] = 1
    net.forward_from_to(0, len(net.nodes) - 1)
    net.backward_from_to(len(net.nodes) - 1, 0)
    return net


@pytest.mark.parametrize("view", ["Flatten", "Reshape", "Concat", "Slice"])
def test_view_without_gradient_beside_readers(view):
    """Its top shares the memory of the Split's top."""
    more = "propagate_down: false " + "reshape_param { shape { dim: -1 } }" * (view == "Reshape")
    net = run_of(layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 3 } }") + layer_text("Bias", "b", "x", "y")
                 + layer_text(view, "v", "y", more=more) + layer_text("Reduction", "one", "v", more="loss_weight: 10")
                 + layer_text("Reduction", "two", "y", more="loss_weight: 2"))
    np.testing.assert_array_equal(net.blobs["y"].cpu_diff, 2)
    np.testing.assert_array_equal(net.layer_dict["b"].blobs[0].cpu_diff, 4)


@pytest.mark.parametrize("reshape", [lambda net: net.reshape_all(), lambda net: None, lambda net: net.blobs["y"].reshape(9, 9)])
def test_growing_top_keeps_loss_weight(reshape):
    net = run_of(layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 3 } }") + layer_text("Bias", "y", "x", more="loss_weight: 0.5"))
    net.blobs["x"].reshape(4, 3)
    net.blobs["x"].data[...] = 1
    reshape(net)
    assert net.forward_from_to(0, 1) == 6
    net.clear_param_diffs()
    net.backward_from_to(1, 0)
    np.testing.assert_array_equal(net.layer_dict["y"].blobs[0].cpu_diff, 2)


NET_OF_LOG = """name: "n" state { phase: TEST } layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "l" type: "Input" top: "t" input_param { shape { dim: 2 } } include { phase: TRAIN } include { stage: "also" } }
    layer { name: "l" type: "Input" top: "t" input_param { shape { dim: 2 } } exclude { phase: TRAIN } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }
    layer { name: "act" type: "ReLU" bottom: "y" top: "y" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" loss_weight: 0.5 }"""
LOG_OF_NET = """The NetState does not meet a rule of layer l: phase TEST differs from TRAIN
The NetState does not meet a rule of layer l: stage also is not set
The NetState does not meet a rule of layer l: phase TEST differs from TRAIN
Creating Layer in|in -> x|Setting up in|Top shape: 2 3 (6)|Memory required for data: 24
Creating Layer l|l -> t|Setting up l|Top shape: 2 (2)|Memory required for data: 32
Creating Layer ip|ip <- x|ip -> y|Setting up ip|Top shape: 2 4 (8)|Memory required for data: 64
Creating Layer act|act <- y|act -> y (in-place)|Setting up act|Top shape: 2 4 (8)|Memory required for data: 96
Creating Layer loss|loss <- y|loss <- t|loss -> (automatic)|Setting up loss|Top shape: (1)|    with loss weight 0.5|Memory required for data: 100
in does not need backward computation.|l does not need backward computation.
ip needs backward computation.|act needs backward computation.|loss needs backward computation.
Network initialization done."""


def test_log_of_net_like_caffe(caplog):
    """Line by line; numbers of elements and bytes are sums of all tops so far, also of those in place."""
    with caplog.at_level(logging.INFO, "minicaffe.net.build"):
        make_net(NET_OF_LOG)
    assert [record.getMessage() for record in caplog.records if record.name == "minicaffe.net.build"] == LOG_OF_NET.replace("|", "\n").splitlines()


@pytest.mark.parametrize("layer, message", [
    *((f'name: "again" type: "Split" {sides}', f"layer 'again' (Split): {field}: blob '{name}' is produced by more than one layer; in-place needs the same "
                                               "name at the same index of bottom and top") for sides, field, name in [
        ('bottom: "a" top: "x"', "top[0]", "x"),                    # of a source
        ('bottom: "a" top: "y"', "top[0]", "y"),                    # of a layer that has been read
        ('bottom: "a" bottom: "b" top: "b"', "top[0]", "b"),        # in place, but not at the index of its bottom
        ('bottom: "a" top: "new" top: "new"', "top[1]", "new"),
        ('bottom: "b" top: "b" top: "b"', "top[1]", "b")]),         # in place, and then once more
    ('name: "r" type: "ReLU" bottom: "b" top: "z" propagate_down: true propagate_down: true',
     "layer 'r' (ReLU): propagate_down: give none or one for each of the 1 bottoms, got 2"),
    ('name: "ip" type: "InnerProduct" bottom: "b" top: "z" param { } param { } param { } inner_product_param { num_output: 4 }',
     "layer 'ip' (InnerProduct): param: too many param entries: 3 for 2 parameter blobs"),
])
def test_wrong_tops_and_entries(layer, message):
    with pytest.raises(ConfigError) as caught:
        make_net(layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 3 } }") + layer_text("ReLU", "y", "x") + layer_text("ReLU", "a", "y")
                 + layer_text("ReLU", "b", "a") + f"layer {{ {layer} }}")
    assert str(caught.value) == message


INPUT_OF_C = layer_text("Input", "in", "", "c", "input_param { shape { dim: 1 dim: 4 } }")
OF_C = layer_text("InnerProduct", "i", "c", more="inner_product_param { num_output: 1 weight_filler { value: 1 } }")
FLAT = layer_text("Flatten", "f", "c", "r")
VIEWS = {"Flatten": "", "Reshape": "reshape_param { shape { dim: 0 dim: -1 } }", "Split": "", "Slice": "", "Concat": "",
         "Permute": "permute_param { order: 0 }"}


def aliased_net(layers, phase=0, plan=None):
    """A net of `layers` behind a bottom c = -3 1 -2 5; it ran forward."""
    net = make_net("force_backward: true " + INPUT_OF_C + layers, phase, plan=plan)
    net.blobs["c"].data[...] = [-3, 1, -2, 5]
    net.forward_from_to(0, len(net.layers) - 1)
    return net


VIEWED = ("layer 'i' (InnerProduct): it reads 'c_in_0_split_1', whose memory layer 'x' (ReLU) has overwritten as 'r', and {} these values, as in Caffe; "
          "give the top of 'x' a name of its own")


@pytest.mark.parametrize("plan", [None, "memory"])
@pytest.mark.parametrize("kind", VIEWS)
def test_overwritten_views_are_caffes(caplog, kind, plan):
    view = layer_text(kind, "f", "c", "r", VIEWS[kind]) + layer_text("ReLU", "x", "r", "r")
    with caplog.at_level(logging.WARNING):
        net = aliased_net(view + OF_C, 1, plan)
        assert net.blobs["i"].data.item() == 6      # Caffe's, from 0 1 0 5
        assert caplog.messages == [VIEWED.format("gradients do not fit")]
        for phase, force, effect in (0, "false", "gradients do not fit"), (1, "false", "gets"):
            caplog.clear()
            make_net(f"force_backward: {force} " + INPUT_OF_C + view + OF_C + layer_text("Reduction", "l", "i", more="loss_weight: 1"), phase)
            assert caplog.messages == [VIEWED.format(effect)]


@pytest.mark.parametrize("layers, top, reader", [
    (OF_C + FLAT + layer_text("Power", "x", "r", "r"), "r", "layer 'i' (InnerProduct): its gradient is made from its bottom 'c_in_0_split_0'"),
    (layer_text("Sigmoid", "s", "c") + FLAT.replace('"c"', '"s"') + layer_text("Power", "x", "r", "r"),
     "r", "layer 's' (Sigmoid): its gradient is made from its top 's'"),
    (layer_text("Softmax", "s", "c") + layer_text("Power", "x", "s", "s"), "s", "layer 's' (Softmax): its gradient is made from its top 's'"),
    (layer_text("Input", "l", more="input_param { shape { dim: 1 } }") + layer_text("SoftmaxWithLoss", "s", "c l", "s p")
     + layer_text("Power", "x", "p", "p"), "p", "layer 's' (SoftmaxWithLoss): its gradient is made from its top 'p'"),
])
@pytest.mark.parametrize("phase", [0, 1])       # force_backward: the same in TEST
def test_overwritten_gradients(caplog, layers, top, reader, phase):
    with caplog.at_level(logging.WARNING):
        aliased_net(layers, phase)
    assert caplog.messages == [
        f"{reader}, which layer 'x' (Power) overwrites as '{top}', and may be wrong, as in Caffe; give the top of 'x' a name of its own"]


UNREAD = {      # types whose gradient does not read the bottom
    "Softmax": 'top: "t"', "Tile": 'top: "t" tile_param { tiles: 2 }', "Crop": 'bottom: "z" top: "t"', "Filter": 'bottom: "b" top: "t"',
    "Im2col": 'top: "t" convolution_param { kernel_size: 1 }', "Permute": 'top: "t" permute_param { order: 1 }', "Normalize": 'top: "t"',
    "SPP": 'top: "t" spp_param { pyramid_height: 1 }', "Silence": ""}


@pytest.mark.parametrize("layers, phase", [
    *((layer_text("Input", "z", "", "z b", "input_param { shape { dim: 1 dim: 1 dim: 2 dim: 2 } shape { dim: 1 } }")
       + layer_text("Reshape", "q", "c", more="reshape_param { shape { dim: 1 dim: 1 dim: 2 dim: 2 } }")
       + f'layer {{ name: "t" type: "{kind}" bottom: "q" {more} }}' + FLAT.replace('"c"', '"q"') + layer_text("Power", "x", "r", "r"), 0)
      for kind, more in UNREAD.items()),
    (FLAT + layer_text("ReLU", "x", "r", "r"), 0), (FLAT + layer_text("Dropout", "x", "r", "r") + OF_C, 1),
    (layer_text("ReLU", "r", "c", "c") + FLAT + layer_text("Dropout", "x", "r", "r"), 0),
    (OF_C + layer_text("ReLU", "x", "i", "i") + layer_text("Dropout", "d", "i", "i"), 0),
], ids=[*UNREAD, "unread", "dropout", "in place", "no view"])
def test_overwritten_where_nothing_changes(caplog, layers, phase):
    with caplog.at_level(logging.WARNING):
        aliased_net(layers, phase)
    assert not caplog.records


@pytest.mark.parametrize(("layers", "hint"), [
    ('layer { name: "a" type: "Power" bottom: "late" top: "y" } layer { name: "b" type: "Power" top: "late" }',
     "; layer 'b' has it, but comes later; move it before this one"),
    ('layer { name: "a" type: "Power" bottom: "own" top: "own" }', ""),
    *((f'layer {{ name: "make" type: "Power" top: "final" {rules} }} layer {{ name: "read" type: "Power" bottom: "final" top: "y" }}',
       f"; layer 'make' has it, but is left out: {why}") for rules, why in [
        ("include { phase: TRAIN }", "phase TEST differs from TRAIN"),
        ("include { phase: TRAIN } include { stage: 'deploy' }", "phase TEST differs from TRAIN and stage deploy is not set"),
        ("include { min_level: 2 }", "level 0 is below min_level 2"),
        ("exclude { phase: TEST }", "its rule exclude { phase: TEST } fits")])])
def test_later_producer_is_named(layers, hint):
    with pytest.raises(ConfigError, match="bottom.0.: unknown bottom blob '.*': no earlier layer has this top") as caught:
        caffe.Net(text.parse_text(layers, caffe_pb2.NetParameter)[0], caffe.TEST)
    assert caught.value.message.partition("has this top")[2] == hint


def test_unknown_types_are_named_in_order(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text("""layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 0 } } }
layer { name: "a" type: "Convolutoin" bottom: "x" top: "a" }
layer { name: "b" type: "Fancy" bottom: "a" top: "b" fancy_param { a: 1 } }
layer { name: "c" type: "Convolutoin" bottom: "b" top: "c" }
layer { name: "d" type: "Later" bottom: "c" top: "d" include { phase: TRAIN } }
layer { name: "e" type: "Last" bottom: "c" top: "e" }""")
    with pytest.raises(ConfigError) as caught:
        caffe.Net(str(path), caffe.TEST)
    error = str(caught.value)
    assert error.startswith(f"{path}:2: layer 'a' (Convolutoin): type: unknown layer type 'Convolutoin'; did you mean 'Convolution'")
    assert error.endswith("; also unknown: Fancy, Last")
