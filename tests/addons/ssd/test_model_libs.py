"""model_libs: the nets that SSD's Python functions make, against models/ssd."""

# ruff: noqa: F405

import itertools
from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.errors import ConfigError, MissingNameError, WrongTypeError
from minicaffe.net_spec import NetSpec
from minicaffe.proto.caffe_pb2 import NetParameter
from minicaffe.proto.text import parse_text

ROOT = Path(__file__).resolve().parents[3]
from minicaffe.model_libs import *  # noqa: E402, F403  as SSD's scripts write it; brings L, P and caffe_pb2, too

VGG = {"fully_conv": True, "reduced": True, "dilated": True}


def spec(side=64):
    n = NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 3, side, side]))
    return n


def layers_of(n):
    return {layer.name: layer for layer in n.to_proto().layer}


def test_ssd300_is_the_net_of_models():
    n = spec(300)
    VGGNetBody(n, from_layer="data", dropout=False, **VGG)
    below = n.keys()[-1]
    for block, narrow, pad, stride in ((6, 256, 1, 2), (7, 128, 1, 2), (8, 128, 0, 1), (9, 128, 0, 1)):     # with int / 2, as SSD's scripts do it
        ConvBNLayer(n, below, f"conv{block}_1", False, True, narrow, 1, 0, 1)
        ConvBNLayer(n, f"conv{block}_1", f"conv{block}_2", False, True, narrow * 4 / 2, 3, pad, stride)
        below = f"conv{block}_2"
    tops = CreateMultiBoxHead(
        n, data_layer="data", num_classes=21, from_layers=["conv4_3", "fc7", "conv6_2", "conv7_2", "conv8_2", "conv9_2"],
        min_sizes=[30.0, 60.0, 111.0, 162.0, 213.0, 264.0], max_sizes=[60.0, 111.0, 162.0, 213.0, 264.0, 315.0],
        aspect_ratios=[[2], [2, 3], [2, 3], [2, 3], [2], [2]], steps=[8, 16, 32, 64, 100, 300], normalizations=[20, -1, -1, -1, -1, -1],
        use_batchnorm=False, clip=False, prior_variance=[0.1, 0.1, 0.2, 0.2], kernel_size=3, pad=1)
    assert [top.fn.type_name for top in tops] == ["Concat"] * 3
    made = layers_of(n)
    wanted, _ = parse_text((ROOT / "models/ssd/deploy.prototxt").read_text(), NetParameter, "deploy.prototxt")
    wanted = {layer.name: layer for layer in wanted.layer if not layer.name.startswith(("mbox_conf_", "detection_out"))}
    assert set(made) == set(wanted)
    for name, layer in wanted.items():
        assert without_defaults(made[name]) == without_defaults(layer), name


def without_defaults(layer):
    """Clear what says the same as nothing: SSD writes ``dilation: 1``, models/ssd ``pad: 0``."""
    param = layer.convolution_param
    for values, default in ((param.dilation, [1]), (param.stride, [1]), (param.pad, [0])):
        if values == default:
            del values[:]
    for message in (layer.pooling_param, layer.norm_param, layer.prior_box_param, layer.permute_param, layer.flatten_param, layer.concat_param):
        for field, value in message.ListFields():
            if field.cpp_type != field.CPPTYPE_MESSAGE and value == field.default_value:
                message.ClearField(field.name)
    return layer


@pytest.mark.parametrize("options, layers, fc6", [
    ({}, 31 + 6, None), ({"need_fc": False}, 30, None), ({"fully_conv": True}, 37, ([7], [3], [1])), (VGG, 37, ([3], [6], [6])),
    ({**VGG, "dropout": False}, 35, ([3], [6], [6])), ({"fully_conv": True, "reduced": True}, 37, ([3], [3], [3]))])
def test_vgg(options, layers, fc6):
    made = layers_of(VGGNetBody(spec(), "data", **options))
    assert len(made) == layers + 1
    if fc6:
        param = made["fc6"].convolution_param
        assert (list(param.kernel_size), list(param.pad), list(param.dilation)) == fc6
    elif options.get("need_fc", True):
        assert made["fc6"].type == made["fc7"].type == "InnerProduct" and made["fc6"].bottom == ["pool5"]


@pytest.mark.parametrize(("nopool", "dilated", "dilate_pool4"), [*itertools.product([False, True], repeat=3)])
def test_what_makes_vgg_smaller(nopool, dilated, dilate_pool4):
    """The fourth pooling keeps the size with `dilate_pool4`, but a convolution in its place does not; the fifth one with `dilated`."""
    made = layers_of(VGGNetBody(spec(), "data", fully_conv=True, nopool=nopool, dilated=dilated, dilate_pool4=dilate_pool4))
    keeps = [False, False, False, dilate_pool4 and not nopool, dilated]
    for block, same in enumerate(keeps, 1):
        if nopool:
            param = made[f"conv{block}_{3 if block < 3 else 4}"].convolution_param
            assert (param.kernel_size[0], param.stride[0], param.pad[0]) == (3, 1 if same else 2, 1)
        else:
            param = made[f"pool{block}"].pooling_param
            assert (param.kernel_size, param.stride, param.pad) == ((3, 1, 1) if same else (2, 2, 0))
    later = 2 if keeps[3] else 1
    for i in 1, 2, 3:
        assert made[f"conv5_{i}"].convolution_param.dilation == made[f"conv5_{i}"].convolution_param.pad == [later]
    dilation = later * (2 if dilated else 1)
    assert made["fc6"].convolution_param.dilation == [dilation] and made["fc6"].convolution_param.pad == [3 * dilation]
    assert ("pool3" in made) != nopool and ("conv3_4" in made) == nopool and len(made) == 38


def test_convolutions_and_frozen_layers():
    n = spec()
    ConvBNLayer(n, "data", "c", True, True, 8, [1, 7], [0, 3], 1, use_scale=False, lr_mult=2, eps=0.01)
    ConvBNLayer(n, "c", "d", True, False, 8.0, 3, 1, [2], dilation=2, conv_postfix="_x", moving_average_fraction=0.9)
    made = layers_of(n)
    assert list(made) == ["data", "c", "c_bn", "c_bias", "c_relu", "d_x", "d_bn", "d_scale"]
    conv = made["c"].convolution_param
    assert (conv.kernel_h, conv.kernel_w, conv.pad_h, conv.pad_w, conv.stride_h, conv.bias_term) == (1, 7, 0, 3, 1, False)
    assert [p.lr_mult for p in made["c"].param] == [2] and made["c_bn"].batch_norm_param.eps == pytest.approx(0.01)
    assert made["d_bn"].batch_norm_param.moving_average_fraction == pytest.approx(0.9) and list(made["d_x"].convolution_param.stride) == [2]
    assert [(p.lr_mult, p.decay_mult) for p in made["d_bn"].param] == [(0, 0)] * 3
    made = layers_of(VGGNetBody(spec(), "data", need_fc=False, freeze_layers=["conv1_1", "none"]))
    rates = {name: [(p.lr_mult, p.decay_mult) for p in made[name].param] for name in ("conv1_1", "conv1_2")}
    assert rates == {"conv1_1": [(0, 0), (0, 0)], "conv1_2": [(1, 1), (2, 0)]}
    assert made["conv1_1"].convolution_param.num_output == 64 and made["conv1_1"].convolution_param.weight_filler.type == "xavier"


def test_data_layer_and_helpers(tmp_path):
    n = NetSpec()
    n.data, n.label = CreateAnnotatedDataLayer("db", batch_size=64 / 2, label_map_file="map", anno_type=0,
                                               transform_param=dict(mirror=True), batch_sampler=[dict(max_sample=1)])
    layer, = n.to_proto().layer
    assert layer.name == "data" and layer.top == ["data", "label"] and layer.data_param.batch_size == 32
    assert layer.transform_param.mirror and layer.annotated_data_param.HasField("anno_type")
    assert layer.annotated_data_param.batch_sampler[0].max_sample == 1 and layer.include[0].phase == caffe.TRAIN
    n = NetSpec()
    n.data = CreateAnnotatedDataLayer("db", output_label=False, train=False)
    layer, = n.to_proto().layer
    assert layer.top == ["data"] and layer.include[0].phase == caffe.TEST and len(layer.annotated_data_param.batch_sampler) == 1
    assert UnpackVariable(3, 2) == UnpackVariable([3], 2) == [3, 3] and UnpackVariable([1, 2], 2) == [1, 2]
    folder = tmp_path / "a" / "b"
    assert not check_if_exist(str(folder))
    make_if_not_exist(str(folder))
    make_if_not_exist(str(folder))
    assert check_if_exist(str(folder)) and caffe.model_libs.L is L


HEAD = dict(num_classes=3, from_layers=["data"], min_sizes=[[10, 20]])


@pytest.mark.parametrize("options, boxes, outputs", [
    ({}, 2, (8, 6)), ({"max_sizes": [[20, 30]]}, 4, (16, 12)), ({"aspect_ratios": [2]}, 6, (24, 18)),
    ({"aspect_ratios": [[2, 3]], "flip": False}, 6, (24, 18)), ({"share_location": False}, 2, (24, 6))])
def test_numbers_of_boxes(options, boxes, outputs, tmp_path):
    n = spec(4)
    CreateMultiBoxHead(n, use_objectness=True, inter_layer_depth=[4], conf_postfix="_v2", **HEAD, **options)
    (tmp_path / "net.prototxt").write_text(str(n.to_proto()))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)
    assert net.blobs["data_inter_mbox_loc"].shape[1] == outputs[0] and net.blobs["data_inter_mbox_conf_v2"].shape[1] == outputs[1]
    assert net.blobs["mbox_priorbox"].shape == (1, 2, 16 * boxes * 4) and net.blobs["mbox_objectness"].shape == (1, 16 * boxes * 2)
    assert "data_inter_mbox_loc_bn" in net.layer_dict and net.forward()["mbox_conf"].shape == (1, 16 * boxes * 3)


def test_arguments_of_heads():
    for size, want in ((dict(img_height=4, img_width=4), (4, 0, 0)), (dict(img_height=4, img_width=6), (0, 4, 6)),
                       (dict(img_height=4), (0, 0, 0)), (dict(img_width=4), (0, 0, 0)), ({}, (0, 0, 0))):
        n = spec(4)
        CreateMultiBoxHead(n, **HEAD, **size)
        param = layers_of(n)["data_mbox_priorbox"].prior_box_param
        assert (param.img_size, param.img_h, param.img_w) == want and [field.name for field, _ in param.ListFields()].count("img_h") == bool(want[1])
    given, same = spec(4), spec(4)
    CreateMultiBoxHead(given, **{**HEAD, "num_classes": np.int64(HEAD["num_classes"])}, prior_variance=0.1, steps=np.array([8]))
    CreateMultiBoxHead(same, **HEAD, prior_variance=[0.1], steps=[8])
    assert given.to_proto() == same.to_proto()


def test_errors():
    for change, error, words in (
            ({"num_classes": None}, ConfigError, "num_classes: must be the number of classes"),
            ({"num_classes": True}, ConfigError, "num_classes: must be the number of classes"),
            ({"min_sizes": []}, ConfigError, "min_sizes: must have one item for each of the 1"),
            ({"steps": [1, 2]}, ConfigError, "steps: must have one item for each of the 1 from_layers, got 2"),
            ({"max_sizes": [[1]]}, ConfigError, r"max_sizes\[0\]: must have as many items as min_sizes\[0\], 2"),
            ({"data_layer": "dat"}, MissingNameError, "data_layer: the net has no layer 'dat'.*'data'"),
            ({"epsilon": 1}, ConfigError, r"bn_params are eps.*\['epsilon'\]"),
            ({"from_layers": "data"}, WrongTypeError, "from_layers must be a list of names")):
        with pytest.raises(error, match=words):
            CreateMultiBoxHead(spec(4), **{**HEAD, **change})
    with pytest.raises(MissingNameError, match="from_layer: the net has no layer 'dat'"):
        VGGNetBody(spec(4), "dat")
    with pytest.raises(ConfigError, match="give one value or 2"):
        UnpackVariable([1, 2, 3], 2)
