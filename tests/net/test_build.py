"""Rules, splits and the backward sweep: what happens before any layer exists."""

import pytest

from minicaffe.errors import ConfigError
from minicaffe.net.build import LayerDef, cut_backward, filter_layers, insert_splits
from minicaffe.proto import caffe_pb2, text


def layers_of(prototxt):
    net, _ = text.parse_text(prototxt, caffe_pb2.NetParameter)
    return [LayerDef(layer, 10 + i) for i, layer in enumerate(net.layer)]


def kept(rules, **state):
    layers = layers_of(f'layer {{ name: "a" type: "X" {rules} }}')
    return len(filter_layers(layers, caffe_pb2.NetState(**state))) == 1


@pytest.mark.parametrize("rules, state, keep", [
    ("", {"phase": 0}, True),
    ("include { phase: TRAIN }", {"phase": 0}, True),
    ("include { phase: TRAIN }", {"phase": 1}, False),
    ("exclude { phase: TRAIN }", {"phase": 0}, False),
    ("exclude { phase: TRAIN }", {"phase": 1}, True),
    ("include { }", {"phase": 1}, True),
    ("exclude { }", {"phase": 1}, False),
    ("include { min_level: 2 }", {"level": 1}, False),
    ("include { min_level: 2 }", {"level": 2}, True),
    ("include { min_level: 2 }", {"level": 3}, True),
    ("include { max_level: 2 }", {"level": 3}, False),
    ("include { max_level: 2 }", {"level": 2}, True),
    ("include { max_level: 2 }", {"level": 1}, True),
    ("include { min_level: -1 max_level: 1 }", {}, True),
    ("exclude { max_level: 2 }", {"level": 2}, False),
    ('exclude { not_stage: "a" }', {"stage": ["a"]}, True),
    ('include { not_stage: "a" }', {"stage": ["b"]}, True),
    ('include { stage: "a" stage: "b" }', {"stage": ["a"]}, False),
    ('include { stage: "a" stage: "b" }', {"stage": ["b", "a"]}, True),
    ('include { not_stage: "a" }', {"stage": ["a"]}, False),
    ('include { stage: "a" } include { stage: "b" }', {"stage": ["b"]}, True),
    ('exclude { stage: "a" } exclude { stage: "b" }', {"stage": ["c"]}, True),
])
def test_rules(rules, state, keep):
    assert kept(rules, **state) is keep


def test_include_and_exclude_together():
    layers = layers_of('layer { name: "a" type: "X" include { phase: TRAIN } exclude { phase: TEST } }')
    with pytest.raises(ConfigError, match=r"net\.prototxt:10: layer 'a' \(X\): include"):
        filter_layers(layers, caffe_pb2.NetState(), "net.prototxt")


def test_one_consumer_needs_no_split():
    layers = layers_of('layer { name: "a" type: "X" top: "a" } layer { name: "b" type: "X" bottom: "a" top: "a" }')
    assert [d.param.type for d in insert_splits(layers)] == ["X", "X"]


def test_split_behind_an_in_place_chain():
    result = insert_splits(layers_of("""
        layer { name: "ip" type: "X" top: "x" }
        layer { name: "relu" type: "X" bottom: "x" top: "x" }
        layer { name: "c" type: "X" bottom: "x" top: "c" }
        layer { name: "d" type: "X" bottom: "x" top: "d" }"""))
    assert [d.param.name for d in result] == ["ip", "relu", "x_relu_0_split", "c", "d"]
    assert list(result[2].param.top) == ["x_relu_0_split_0", "x_relu_0_split_1"]
    assert [d.param.bottom[0] for d in result[3:]] == ["x_relu_0_split_0", "x_relu_0_split_1"]


def test_loss_weight_is_a_consumer_and_moves_to_the_split():
    result = insert_splits(layers_of("""
        layer { name: "a" type: "X" top: "a" top: "other" loss_weight: 0.5 loss_weight: 2 }
        layer { name: "b" type: "X" bottom: "a" top: "b" }"""))
    assert list(result[0].param.loss_weight) == [0, 2]  # the other top keeps its own, unlike Caffe
    assert list(result[1].param.loss_weight) == [0.5, 0]
    assert result[2].param.bottom[0] == "a_a_0_split_1"


def test_the_given_layers_stay_as_they_are():
    layers = layers_of("""layer { name: "a" type: "X" top: "a" }
        layer { name: "b" type: "X" bottom: "a" top: "b" } layer { name: "c" type: "X" bottom: "a" top: "c" }""")
    before = [d.param.SerializeToString() for d in layers]
    insert_splits(layers)
    assert [d.param.SerializeToString() for d in layers] == before


def test_unknown_bottom_names_line_layer_and_near_blobs():
    layers = layers_of('layer { name: "a" type: "X" top: "data" } layer { name: "b" type: "Y" bottom: "dta" top: "b" }')
    with pytest.raises(ConfigError) as caught:
        insert_splits(layers, "net.prototxt")
    assert str(caught.value).startswith("net.prototxt:11: layer 'b' (Y): bottom[0]: unknown bottom blob 'dta'")
    assert "did you mean 'data'" in str(caught.value)


def test_backward_is_cut_where_no_loss_lies_above():
    """data -> ip -> split -> (accuracy, loss): the branch without a loss runs no backward."""
    layer_needs = [False, True, True, True, True]
    bottom_needs = [[], [False], [True], [True, False], [True, False]]
    cut_backward(layer_needs, bottom_needs,
                 [[], ["data"], ["ip"], ["ip_0", "label"], ["ip_1", "label2"]],
                 [["data", "label"], ["ip"], ["ip_0", "ip_1"], ["accuracy"], ["loss"]],
                 [False, False, False, False, True])
    assert layer_needs == [False, True, True, False, True]
    assert bottom_needs == [[], [False], [True], [False, False], [True, False]]


def test_backward_stops_below_a_bottom_that_is_cut():
    layer_needs = [True, True, True]
    bottom_needs = [[], [True], [False]]
    cut_backward(layer_needs, bottom_needs, [[], ["a"], ["b"]], [["a"], ["b"], ["loss"]], [False, False, True])
    assert layer_needs == [False, False, True]
    assert bottom_needs[1] == [False]
