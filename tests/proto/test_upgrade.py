"""Old nets, solvers and weights in today's form; the expected forms are written down by hand from net.md's tables."""

import logging
import re

import pytest

from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text, write_text
from minicaffe.proto.upgrade import read_net_file, read_solver_file, upgrade_net, upgrade_solver

V0 = """
name: "old"
input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layers { layer { name: "pad1" type: "padding" pad: 2 } bottom: "data" top: "pad1" }
layers {
  layer {
    name: "conv1" type: "conv" num_output: 4 kernelsize: 3 stride: 2 group: 1 biasterm: false
    weight_filler { type: "xavier" } blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0
  }
  bottom: "pad1" top: "conv1"
}
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 2 stride: 2 pad: 1 new_num: 3 } bottom: "conv1" top: "pool1" }
layers { layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.1 k: 2 dropout_ratio: 0.3 } bottom: "pool1" top: "norm1" }
layers { layer { name: "d" type: "data" source: "db" batchsize: 5 meanfile: "m" cropsize: 6 mirror: true rand_skip: 1 }
  top: "d" }
"""
TODAY = """
name: "old"
layer { name: "input" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param {
    num_output: 4 kernel_size: 3 stride: 2 group: 1 bias_term: false pad: 2 weight_filler { type: "xavier" }
  }
}
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: AVE kernel_size: 2 stride: 2 pad: 1 } }
layer { name: "norm1" type: "LRN" bottom: "pool1" top: "norm1" lrn_param { local_size: 3 alpha: 0.1 k: 2 } }
layer {
  name: "d" type: "Data" top: "d"
  data_param { source: "db" batch_size: 5 rand_skip: 1 } transform_param { mean_file: "m" crop_size: 6 mirror: true }
}
"""


def needs_upgrade(net):
    """Return whether anything in a net is not in today's form."""
    return upgrade_net(net)[0] is not net


def net_of(text):
    return parse_text(text, caffe_pb2.NetParameter)[0]


def upgraded(text):
    net, positions = parse_text(text, caffe_pb2.NetParameter, "net.prototxt")
    return upgrade_net(net, positions)[0]


def test_v0(tmp_path, caplog):
    net = net_of(V0)
    before = net.SerializeToString()
    with caplog.at_level(logging.INFO, logger="minicaffe"):
        today, changes = upgrade_net(net)
    levels, notes = zip(*changes)
    assert today == net_of(TODAY) and levels == (logging.ERROR, *[logging.INFO] * (len(levels) - 1))
    assert net.SerializeToString() == before
    assert today is not net
    assert not needs_upgrade(today)
    assert any("dropout_ratio of layer 'norm1'" in note for note in notes)
    assert [record.getMessage() for record in caplog.records] == [notes[0], "old: " + "; ".join(notes[1:])]     # a loss, then the changes
    path = tmp_path / "net.prototxt"
    path.write_text(V0)
    with caplog.at_level(logging.INFO, logger="minicaffe"):
        _, positions = read_net_file(path)
    assert caplog.messages[-1] == f"{path}: " + "; ".join(notes[1:])
    assert [positions.line(f"layer[{i}]") for i in range(5)] == [3, 5, 12, 13, 14]
    assert positions.line("layer[1].convolution_param.num_output") == 5


def test_v1_of_every_type():
    old = """
    force_backward: true
    layers { name: "d" type: IMAGE_DATA top: "d" top: "l"
      image_data_param { source: "s" scale: 0.5 mirror: true crop_size: 3 } }
    layers {
      name: "ip" type: INNER_PRODUCT bottom: "d" top: "y" param: "w" param: "b" blob_share_mode: PERMISSIVE
      weight_decay: 1 weight_decay: 0 weight_decay: 2 inner_product_param { num_output: 2 } include { phase: TEST }
    }
    layers { name: "loss" type: SOFTMAX_LOSS bottom: "y" bottom: "l" loss_weight: 0.5 loss_param { ignore_label: 1 } }
    """
    today = """
    force_backward: true
    layer {
      name: "d" type: "ImageData" top: "d" top: "l" image_data_param { source: "s" }
      transform_param { scale: 0.5 mirror: true crop_size: 3 }
    }
    layer {
      name: "ip" type: "InnerProduct" bottom: "d" top: "y"
      param { name: "w" share_mode: PERMISSIVE decay_mult: 1 } param { name: "b" decay_mult: 0 } param { decay_mult: 2 }
      inner_product_param { num_output: 2 } include { phase: TEST }
    }
    layer {
      name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "l" loss_weight: 0.5 loss_param { ignore_label: 1 }
    }
    """
    assert upgraded(old) == net_of(today)
    # Caffe's names where joining the enum's words would give another one.
    special = "ABSVAL AbsVal ARGMAX ArgMax BNLL BNLL HDF5_DATA HDF5Data LRN LRN MVN MVN RELU ReLU TANH TanH IM2COL Im2col"
    special += " SOFTMAX_LOSS SoftmaxWithLoss HDF5_OUTPUT HDF5Output SIGMOID_CROSS_ENTROPY_LOSS SigmoidCrossEntropyLoss"
    pairs = special.split()
    for enum, name in zip(pairs[::2], pairs[1::2], strict=True):
        assert upgraded(f"layers {{ type: {enum} }}").layer[0].type == name


def test_inputs(caplog):
    today = upgraded("input: 'a' input: 'b' input_shape { dim: 2 } input_shape {} layer { name: 'c' }")
    assert today == net_of("layer { name: 'input' type: 'Input' top: 'a' top: 'b' input_param { shape { dim: 2 } shape {} } } layer { name: 'c' }")
    assert upgraded("input: 'a' layer { name: 'c' }") == net_of("layer { name: 'c' }")
    # Caffe passed over them without a word
    for text in "input: 'a' input_dim: [1, 2, 3, 4, 5]", "input: 'a' input_shape { dim: 2 } input_shape { dim: 3 }":
        assert len(upgraded(text).layer[0].input_param.shape) == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "5 input_dim for 1 inputs: those from input_dim[4] on are not used",
        "2 input_shape for 1 inputs: those from input_shape[1] on are not used"]


@pytest.mark.parametrize("learned", ["lr_mult: 1 decay_mult: 0", "lr_mult: 0 decay_mult: 1", "lr_mult: 0", "decay_mult: 0"])
@pytest.mark.parametrize("place", range(3))
def test_batch_norm_with_a_learned_param(place, learned):
    """lr_mult and decay_mult are 1 where they are not given."""
    fixed = "param { lr_mult: 0 decay_mult: 0 }"
    params = [fixed] * 3
    params[place] = f"param {{ {learned} }}"
    assert upgraded(f"layer {{ type: 'BatchNorm' {' '.join(params)} }}") == net_of(f"layer {{ type: 'BatchNorm' {fixed * 3} }}")
    assert not needs_upgrade(net_of(f"layer {{ type: 'BatchNorm' {fixed * 3} }}"))
    assert not needs_upgrade(net_of(f"layer {{ type: 'Scale' {' '.join(params)} }}"))
    two = net_of("layer { type: 'BatchNorm' param {} param {} }")
    assert upgrade_net(two) == (two, [])
    assert upgraded(f"layer {{ type: 'BatchNorm' param {{ lr_mult: 1 }} param {{ name: 'v' }} param {{ {learned} }} }}") == net_of(
        f"layer {{ type: 'BatchNorm' {fixed} param {{ name: 'v' lr_mult: 0 decay_mult: 0 }} {fixed} }}")


def test_every_net_inside_a_solver():
    old = "{ input: 'x' input_dim: [1, 1, 1, 1] layers { name: 'NAME' type: RELU } }"
    fields = ("net_param", "train_net_param", "test_net_param", "test_net_param")
    text = " ".join(f"{field} {old.replace('NAME', f'{field}{i}')}" for i, field in enumerate(fields))
    solver = upgrade_solver(parse_text(text, caffe_pb2.SolverParameter)[0])
    nets = [solver.net_param, solver.train_net_param, *solver.test_net_param]
    assert [[(layer.type, layer.name) for layer in net.layer] for net in nets] == [
        [("Input", "input"), ("ReLU", f"{field}{i}")] for i, field in enumerate(fields)]
    assert not any(map(needs_upgrade, nets))


def test_padding_of_v0():
    """Each consumer gets the pad of its padding layer, in place of its own, and the bottom below it."""
    def padding(name, pad, bottom):
        return f"layers {{ layer {{ name: '{name}' type: 'padding' pad: {pad} }} bottom: '{bottom}' top: '{name}' }}\n"

    def window(name, kind, bottom, fields=""):
        return f"layers {{ layer {{ name: '{name}' type: '{kind}' kernelsize: 3 {fields} }} bottom: '{bottom}' top: '{name}' }}\n"
    net = upgraded("input: 'x' input_dim: [1, 1, 9, 9]\n" + padding("p", 2, "x") + padding("q", 1, "x")
                   + window("own", "conv", "p", "pad: 5") + window("other", "conv", "q") + window("pool", "pool", "p")
                   + window("none", "conv", "x") + padding("r", 3, "own") + window("last", "conv", "r"))
    layers = {layer.name: layer for layer in net.layer[1:]}
    assert {name: (list(layer.bottom), list(layer.convolution_param.pad)) for name, layer in layers.items()} == {
        "own": (["x"], [2]), "other": (["x"], [1]), "pool": (["x"], []), "none": (["x"], []), "last": (["own"], [3])}
    assert layers["pool"].pooling_param.pad == 2


PAD = "input: 'x' input_dim: [1, 1, 1, 1] layers { layer { name: 'pad' type: 'padding' pad: 1 } %s }\nlayers { %s }"
FEED = "net.prototxt:2: padding layer 'pad' must feed a conv or pool layer of one bottom"


@pytest.mark.parametrize(("text", "message"), [
    ("layers { type: RELU }\nlayer {}", "net.prototxt:1: layers: layers (the form of 2014, here '') and layer"),
    ("\nlayers { layer { name: 'a' type: 'convv' } }", "net.prototxt:2: unknown type 'convv'"),
    ("layers { layer { name: 'a' type: 'relu' } bottom: 'x' }", "net.prototxt:1: unknown bottom blob 'x'"),
    (PAD % ("bottom: 'x' top: 'p'", "layer { name: 'c' type: 'conv' } bottom: 'p' bottom: 'x'"), FEED),
    (PAD % ("bottom: 'x' top: 'p'", "layer { name: 'c' type: 'relu' } bottom: 'p'"), FEED),
    *((PAD % (sides, "layer { name: 'c' type: 'pool' } bottom: 'p'"), "net.prototxt:1: a padding layer must have one bottom and one top")
      for sides in ("bottom: 'x' top: 'p' top: 'q'", "bottom: 'x' bottom: 'x' top: 'p'", "top: 'p'")),
    ("input: 'a'\ninput: 'b' input_dim: [1, 2, 3, 4]", "net.prototxt:2: input[1]: input 'b' has no shape: 4 input_dim for 2 inputs; give 4 for each"),
    ("input: 'a'\ninput: 'b' input_dim: [1, 2, 3, 4, 5]", "net.prototxt:2: input[1]: input 'b' has no shape: 5 input_dim for 2 inputs; give 4 for each"),
    ("input: 'a'\ninput: 'b' input_shape {}", "net.prototxt:2: input[1]: input 'b' has no shape: 1 input_shape for 2 inputs; give each its own"),
    ("input: 'a' input_dim: [1, 2, 3]", "net.prototxt:1: input[0]: input 'a' has no shape: 3 input_dim for 1 inputs; give 4 for each"),
])
def test_what_caffe_dies_of(text, message):
    with pytest.raises(ConfigError) as caught:
        upgraded(text)
    assert re.sub(r"(prototxt:[0-9]+):[0-9]+", r"\1", str(caught.value)).startswith(message)


def test_solver_file(tmp_path):
    path = tmp_path / "lenet_solver.prototxt"
    path.write_text("solver_type: RMSPROP\nnet_param {\n  layers { name: 'a' type: RELU }\n layers { name: 'b' type: 99 }\n}\n")
    with pytest.raises(ConfigError, match=r"solver.prototxt:4:27: layer 'b': type: must be .*, got 99"):
        read_solver_file(path)
    path.write_text("solver_type: RMSPROP\nnet_param {\n  input: 'x' input_dim: [1, 1, 1, 1]\n  layers { type: RELU }\n}\n")
    solver, positions = read_solver_file(path)
    assert (solver.type, solver.HasField("solver_type")) == ("RMSProp", False)
    assert [layer.type for layer in solver.net_param.layer] == ["Input", "ReLU"]
    assert positions.line("net_param.layer[1].name") == 4
    path.write_text("test_net_param { layer { name: 'a' } }\n"
                    "test_net_param {\n  input: 'x' input_dim: [1, 1, 1, 1]\n  layers { type: RELU }\n}\n")
    assert read_solver_file(path)[1].line("test_net_param[1].layer[1].name") == 4
    assert solver.snapshot_prefix == str(tmp_path / "lenet_solver")
    for given, expected in [(tmp_path, tmp_path / "lenet_solver"), (tmp_path / "snap", tmp_path / "snap")]:
        path.write_text(f"snapshot_prefix: '{given}'")
        assert read_solver_file(path)[0].snapshot_prefix == str(expected)


def read(tmp_path, text):
    path = tmp_path / "fork.prototxt"
    path.write_text(text)
    return read_net_file(path)


@pytest.mark.parametrize("word, today", [
    ("BN", "BN"), ("LOCAL", "Local"), ("CONVOLUTION3D", "Convolution3D"), ("ROIPOOLING", "ROIPooling"), ("RELU6", "ReLU6"),
    ("CONTINUATION_INDICATOR", "ContinuationIndicator"), ("NotAType", "NotAType"), ("NOT_A_TYPE", "NotAType"),
])
def test_v1_types_of_forks(tmp_path, word, today):
    """Who builds the net asks the registry for them; their fields go with them."""
    text = f"""layers {{ name: "a" type: RELU bottom: "x" top: "a" }}
        layers {{ name: "b" type: {word} bottom: "a" top: "b" blobs_lr: 2 own_param {{ size: 3 }} convolution_param {{ num_output: 2 kernel_depth: 3 }} }}"""
    net, positions = read(tmp_path, text)
    assert net == parse_text(f"""layer {{ name: "a" type: "ReLU" bottom: "x" top: "a" }}
        layer {{ name: "b" type: "{today}" bottom: "a" top: "b" param {{ lr_mult: 2 }} own_param {{ size: 3 }}
                 convolution_param {{ num_output: 2 kernel_depth: 3 }} }}""", caffe_pb2.NetParameter, keep_layer_fields=True)[0]
    assert positions.place_of("layer[1].own_param") == (2, text.splitlines()[1].index("own_param") + 1)


def test_unknown_fields_of_v0(tmp_path):
    for field in ("colour: 1", "weight_filler { colour: 1 }"):
        with pytest.raises(ConfigError, match=r"fork.prototxt:1:\d+: .*colour: unknown field in"):
            read(tmp_path, f'layers {{ layer {{ name: "c" type: "conv" num_output: 1 kernelsize: 1 {field} }} bottom: "x" top: "c" }}')


def v1_net(layers):
    """Return a V1 net; each line gives name, type, bottoms after a ``<``, and sizes after a ``|``."""
    net = 'input: "data" input_dim: [1, 3, 300, 500]\n'
    for line in layers.strip().splitlines():
        head, _, sizes = line.partition("|")
        (name, kind), bottoms = (part.split() for part in head.split("<"))
        param = {"CONVOLUTION": "convolution_param { num_output: 2 %s }", "DECONVOLUTION": "convolution_param { num_output: 2 %s }",
                 "POOLING": "pooling_param { pool: MAX kernel_size: 2 stride: 2 %s }"}.get(kind, "%s") % sizes.strip()
        net += f'layers {{ name: "{name}" type: {kind} ' + " ".join(f'bottom: "{each}"' for each in bottoms) + f' top: "{name}" {param} }}\n'
    return net


VGG = """conv1 CONVOLUTION < data | kernel_size: 3 pad: 100
relu1 RELU < conv1
pool1 POOLING < relu1
pool2 POOLING < pool1
pool3 POOLING < pool2
pool4 POOLING < pool3
pool5 POOLING < pool4
fc6 CONVOLUTION < pool5 | kernel_size: 7
fc7 CONVOLUTION < fc6 | kernel_h: 1 kernel_w: 1
"""
# The published nets have offset 19, and 5, 9 and 31.
FCN_32 = v1_net(VGG + """big DECONVOLUTION < fc7 | kernel_size: 64 stride: 32
out CROP < big data""")
FCN_8 = v1_net(VGG + """score2 DECONVOLUTION < fc7 | kernel_size: 4 stride: 2
s4 CONVOLUTION < pool4 | kernel_size: 1
c4 CROP < s4 score2
f4 ELTWISE < score2 c4
score4 DECONVOLUTION < f4 | kernel_size: 4 stride: 2
s3 CONVOLUTION < pool3 | kernel_size: 1
c3 CROP < s3 score4
f3 ELTWISE < score4 c3
big DECONVOLUTION < f3 | kernel_size: 16 stride: 8
out CROP < big data""")


@pytest.mark.parametrize("text, offsets", [
    (FCN_32, {"out": [19, 19]}), (FCN_8, {"c4": [5, 5], "c3": [9, 9], "out": [31, 31]}),
    (FCN_32.replace("kernel_size: 3 pad: 100", "kernel_h: 3 kernel_w: 5 pad_h: 100 pad_w: 102"), {"out": [19, 20]}),
    (FCN_32 + "layers { name: 'twice' type: CROP bottom: 'out' bottom: 'data' top: 'twice' }", {"out": [19, 19], "twice": [0, 0]}),
    (v1_net("norm LRN < data\nout CROP < norm data"), {"out": [0, 0]}),
])
def test_crop_offset_of_v1(tmp_path, text, offsets, caplog):
    with caplog.at_level(logging.INFO, logger="minicaffe"):
        net, _ = read(tmp_path, text)
    crops = {layer.name: layer for layer in net.layer if layer.type == "Crop"}
    assert {name: list(layer.crop_param.offset) for name, layer in crops.items()} == offsets
    assert all(layer.crop_param.axis == 2 and not layer.fork_fields for layer in crops.values())
    assert f"Crop layer 'out' give it offset {offsets['out']}" in caplog.text
    assert 'type: "Crop"' in write_text(net)


@pytest.mark.parametrize("change, message", [
    (("stride: 32", "stride: 16"), r"coordinate x of 'big' is 2 x [+-] .* of 'data', which is not x less a whole number; write the layer"),
    (("kernel_size: 64", "kernel_size: 63"), "not x less a whole number"),
    (("kernel_size: 64", "kernel_h: 64 kernel_w: 63"), "not x less a whole number"),
    (("pad: 100", "pad: 2"), "not x less a whole number"),
    (("POOLING", "SOFTMAX"), r"its offset is not known: 'big' and 'data' have no common ancestor, and coordinates do not pass "
                             r"through layer 'pool5' \(Softmax\); write the layer as type Crop of today, with crop_param { offset"),
    (('type: CONVOLUTION bottom: "data"', 'type: DATA'), "'big' and 'data' have no common ancestor; write the layer"),
    (('bottom: "big" bottom: "data"', 'bottom: "other" bottom: "data"'), "'other' and 'data' have no common ancestor; write the layer"),
    (('bottom: "big" bottom: "data"', 'bottom: "big"'), "bottom: Crop takes exactly 2, got 1"),
])
def test_crop_with_unknown_offset(tmp_path, change, message):
    with pytest.raises(ConfigError, match=rf"fork.prototxt:12: layer 'out' \(Crop\): .*{message}"):
        read(tmp_path, FCN_32.replace(*change))


POOL = 'layer { name: "p" type: "Pooling" bottom: "a" top: "p" pooling_param { pool: AVE kernel_size: 3 stride: 2 %s } }'


@pytest.mark.parametrize("given, read_as", [
    ("ceil_mode: false", "round_mode: FLOOR"), ("ceil_mode: true", "round_mode: CEIL"), ("ceil_mode: 0", "round_mode: FLOOR"),
    ("ceil_mode: false round_mode: FLOOR", "round_mode: FLOOR"), ("ceil_mode: true round_mode: FLOOR", "round_mode: FLOOR"),
    ("ceil_mode: false shade: 1", "round_mode: FLOOR shade: 1"),
])
def test_ceil_mode(tmp_path, given, read_as, caplog):
    expected = parse_text(POOL % read_as, caffe_pb2.NetParameter, keep_layer_fields=True)[0]
    net, _ = read(tmp_path, POOL % given)
    assert net == expected and not needs_upgrade(net)
    assert ("Ignored ceil_mode of layer 'p'" in caplog.text) == (given == "ceil_mode: true round_mode: FLOOR")
    old = (POOL % given).replace('layer {', 'layers {').replace('"Pooling"', "POOLING")
    assert read(tmp_path, old)[0] == expected


@pytest.mark.parametrize("given", ["ceil_mode: maybe", "ceil_mode: 2", "ceil_mode { }", "ceil_mode: '1'"])
def test_wrong_ceil_mode(tmp_path, given):
    net, _ = read(tmp_path, POOL % given)
    assert "ceil_mode" in net.layer[0].fork_fields and not needs_upgrade(net)
    net, _ = read(tmp_path, (POOL % "ceil_mode: false").replace('"Pooling"', '"Own"'))
    assert "ceil_mode: false" in net.layer[0].fork_fields


@pytest.mark.parametrize(("text", "kind"), [("", None), ("type: 'Adam'", "Adam"), ("solver_type: ADAM", "Adam"), ("solver_type: SGD", "SGD")])
def test_types_of_solvers(text, kind):
    solver, _ = parse_text(text, caffe_pb2.SolverParameter)
    made = upgrade_solver(solver)
    assert (made.type if made.HasField("type") else None) == kind and not made.HasField("solver_type")
    assert solver == parse_text(text, caffe_pb2.SolverParameter)[0]      # the one that was given is as before
    names = [upgrade_solver(caffe_pb2.SolverParameter(solver_type=number)).type for number in range(6)]
    assert names == ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"]
    with pytest.raises(ConfigError, match="solver_type: is given together with type"):
        upgrade_solver(caffe_pb2.SolverParameter(type="SGD", solver_type=0))


def test_v0_with_newer_parts(caplog):
    """They are left out, and each is named; entries of V1 among those of V0 are taken as they are."""
    net, changes = upgrade_net(parse_text(
        "name: 'n' force_backward: true debug_info: true state { phase: TEST } input: 'x' input_dim: [1, 2, 3, 4]\n"
        "layers { layer { name: 'c' type: 'relu' } bottom: 'x' top: 'c' }\n"
        "layers { name: 'ip' type: INNER_PRODUCT bottom: 'c' top: 'ip' blobs_lr: 2 inner_product_param { num_output: 3 } }\n"
        "layers { layer { name: 'out' type: 'hdf5_output' hdf5_output_param { file_name: 'f' } } bottom: 'ip' }\n"
        "layers { layer { name: 'own' type: 'relu' hdf5_output_param { file_name: 'g' } } bottom: 'ip' top: 'y' }", caffe_pb2.NetParameter)[0])
    assert net == net_of(
        "name: 'n' force_backward: true layer { name: 'input' type: 'Input' top: 'x' input_param { shape { dim: [1, 2, 3, 4] } } }\n"
        "layer { name: 'c' type: 'ReLU' bottom: 'x' top: 'c' }\n"
        "layer { name: 'ip' type: 'InnerProduct' bottom: 'c' top: 'ip' param { lr_mult: 2 } inner_product_param { num_output: 3 } }\n"
        "layer { name: 'out' type: 'HDF5Output' bottom: 'ip' hdf5_output_param { file_name: 'f' } } layer { name: 'own' type: 'ReLU' bottom: 'ip' top: 'y' }")
    losses = ["Ignored state, which nets of version 0 did not have", "Ignored debug_info, which nets of version 0 did not have",
              "Ignored hdf5_output_param of layer 'own': a relu layer has no such parameter"]
    assert sorted(record.getMessage() for record in caplog.records if record.levelname == "ERROR") == sorted(losses) and set(losses) < {text for _, text in changes}


def test_parameters_of_v0():
    """One net for each V0 type that has every V0 parameter: those of its own arrive in V1, and the notes name all others."""
    from minicaffe.proto.v0 import COPIED_FIELDS, FIELDS, IGNORED, TYPES, upgrade_v0
    given = {"pool": 1, "det_crop_mode": "square", "source": "s", "meanfile": "m", "type": None, "name": None}
    for kind, today in TYPES.items():
        old = caffe_pb2.NetParameter()
        layer = old.layers.add().layer
        layer.name, layer.type = "a", kind
        for field in layer.DESCRIPTOR.fields:
            if field.name in ("name", "type", "fork_fields", "hdf5_output_param"):
                continue
            if field.message_type is not None:
                value = getattr(layer, field.name)
                (value.add() if field.name in COPIED_FIELDS else value).SetInParent()
            elif field.name in COPIED_FIELDS:
                getattr(layer, field.name).append(2)
            else:
                setattr(layer, field.name, given.get(field.name, 1))
        notes = []
        new, kept = upgrade_v0(old, lambda level, text, notes=notes: notes.append(text), None)
        entry = new.layers[0]
        assert kept == [0] and caffe_pb2.V1LayerParameter.LayerType.Name(entry.type) == today and entry.name == "a"
        assert [len(getattr(entry, name)) for name in COPIED_FIELDS] == [1] * len(COPIED_FIELDS)
        for field in layer.DESCRIPTOR.fields:
            target, kinds = FIELDS.get(field.name, (None, ()))
            lost = f"Ignored {field.name} of layer 'a': a {kind} layer has no such parameter"
            if kinds is not None and kind not in kinds:
                known = ("name", "type", "fork_fields", "hdf5_output_param", *COPIED_FIELDS, *IGNORED)
                assert (lost in notes) == (field.name not in known), (kind, field.name)
            else:
                holder = "transform_param" if kinds is None else f"{today.lower()}_param"
                value = getattr(getattr(entry, holder), target)
                value = value[0] if hasattr(value, "append") else value
                assert lost not in notes and value == getattr(layer, field.name), (kind, field.name)



@pytest.mark.parametrize(("kind", "today"), [
    ("ROIPOOLING", "ROIPooling"), ("RELU6", "ReLU6"), ("NOT_A_TYPE", "NotAType"), ("SOFTMAX_LOSS", "SoftmaxWithLoss"), ("INNER_PRODUCT", "InnerProduct")])
def test_types_in_a_mix(tmp_path, kind, today):
    layers = f"layers {{ name: 'y' type: {kind} }}"
    assert read(tmp_path, layers)[0].layer[0].type == today
    with pytest.raises(ConfigError, match=rf"fork.prototxt:2: layers: layers \(the form of 2014, here 'y'\) and layer \(today's, here 'x'\)"
                                          rf".* {kind} is \"{today}\"; .*minicaffe upgrade net_text"):
        read(tmp_path, f"layer {{ name: 'x' }}\n{layers}")


@pytest.mark.parametrize(("text", "notes"), [
    ("input: 'x' input_dim: [1, 1, 1, 1]", ["Turned input fields into an Input layer"]), ("input_dim: 1", []), ("input_shape {}", []),
    ("layers { type: RELU }", ["Upgraded a net of version 1"]), ("layers { layer { type: 'relu' } }", ["Upgraded a net of version 0", "Upgraded a net of version 1"]),
    ("layers { type: DATA data_param { scale: 2 crop_size: 3 } } layers { type: IMAGE_DATA image_data_param { scale: 2 mean_file: 'm' } }",
     ["Moved crop_size, mean_file, scale of data layers to transform_param", "Upgraded a net of version 1"]),
    ("layers { type: WINDOW_DATA window_data_param { mirror: true } }", ["Moved mirror of data layers to transform_param", "Upgraded a net of version 1"]),
    ("layer { name: 'b' type: 'BatchNorm' param {} param {} param {} }", ["Set lr_mult and decay_mult of BatchNorm layer 'b' to 0"]),
    ("layer { type: 'Input' input_param { shape {} } } name: 'a' state {} force_backward: true debug_info: true", []), ("", []),
])
def test_each_change_has_a_note(text, notes):
    net, made = upgrade_net(parse_text(text, caffe_pb2.NetParameter)[0])
    assert made == [(logging.INFO, note) for note in notes] and not needs_upgrade(net)
    for layer in net.layer:
        for field in ("data_param", "image_data_param", "window_data_param"):
            old = getattr(layer, field)
            assert not any(map(old.HasField, ("scale", "mean_file", "crop_size", "mirror")))
    assert upgrade_net(net) == (net, [])
