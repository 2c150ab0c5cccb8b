"""Nets as modules of PyTorch: text, names, state dicts and refusals without PyTorch; numbers, sharing and training with it."""

import ast
import importlib
import importlib.util
import io
import pickle
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from export_cases import (
    AT_THRESHOLD,
    BIG,
    BOXES,
    CASES,
    DEPLOY,
    IN_PLACE,
    MODELS,
    OF_DATA,
    THRESHOLD_OF_1,
    X,
    detection,
    detection_at_limits,
    filled,
    layer,
    net_of,
    net_of_model,
    of_models,
)
from lines_of_modules import LINES, OTHERS

from minicaffe import errors
from minicaffe.addons.export.exporting import run_net
from minicaffe.addons.export.pytorch import Preprocessing, compare, export, random_inputs, to_module, writer
from minicaffe.addons.export.pytorch.source import (
    FORWARD_NAMES,
    MODULE_ATTRIBUTES,
    WRITERS,
    helper_texts,
    identifier,
    identifiers,
    number,
)
from minicaffe.addons.export.pytorch.state import write_state
from minicaffe.layer import layer_types
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

torch = importlib.util.find_spec("torch") and importlib.import_module("torch")
with_torch = pytest.mark.skipif(torch is None, reason="no package torch, which is large: pip install torch")


def state_file(module):
    file = io.BytesIO()
    write_state(file, module.state)
    file.seek(0)
    return file


def checked(net, **how):
    """The differences of a net and its module, read from the bytes of its files."""
    module = to_module(net, **how)
    return compare(net, module, state_file(module), random_inputs(net), how.get("preprocessing"))


def model_of(net):
    """The module as a user has it: from the text and the state dict."""
    module, space = to_module(net), {"__name__": "m"}
    exec(module.text(), space)
    model = space[module.name]()
    model.load_state_dict(torch.load(state_file(module), weights_only=True))
    return model


def read_state(file):
    """The arrays of a file of torch.save by name, without PyTorch; the storages by name."""
    archive, storages = zipfile.ZipFile(file), {}

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            return {"OrderedDict": dict, "FloatStorage": np.dtype("f4"), "LongStorage": np.dtype("i8"), "_rebuild_tensor_v2": self.rebuild}[name]

        def persistent_load(self, row):
            kind, dtype, key, place, count = row
            assert (kind, place) == ("storage", "cpu")
            array = np.frombuffer(archive.read(f"archive/data/{key}"), dtype)
            assert array.size == count
            return key, array

        def rebuild(self, storage, offset, shape, strides, requires_grad, hooks):
            key, array = storage
            made = np.lib.stride_tricks.as_strided(array[offset:], shape, [stride * array.itemsize for stride in strides])
            storages[id(made)] = key
            return made

    found = Reader(io.BytesIO(archive.read("archive/data.pkl"))).load()
    return found, {name: storages[id(array)] for name, array in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_text_and_state(name):
    text, *shapes = CASES[name]
    net = net_of(text, *shapes)
    module = to_module(net)
    tree = ast.parse(module.text())
    assert not {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names} - {
        "torch", "torch.nn.functional", "nn"}
    cls = tree.body[-1]
    init, forward = (node for node in cls.body if isinstance(node, ast.FunctionDef))
    assert (init.name, forward.name) == ("__init__", "forward") and ast.get_docstring(tree)
    assert [argument.arg for argument in forward.args.args[1:]] == [blob.name for blob in net.input_blobs]
    known = {node.id for node in ast.walk(forward) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | {
        argument.arg for argument in forward.args.args}
    read = {node.id for node in ast.walk(forward) if isinstance(node, ast.Name)} - known
    assert read <= {"torch", "F", "len", *helper_texts()}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {node.name for node in tree.body[:-1] if isinstance(node, ast.ClassDef | ast.FunctionDef)} == names & helper_texts().keys()
    found, _ = read_state(state_file(module))
    assert list(found) == list(module.state) and all(path.partition(".")[0].isidentifier() for path in found)
    for path, array in found.items():
        np.testing.assert_array_equal(array, module.state[path])
    kept = [blob for node in net.nodes for blob in node.layer.blobs[:2 if node.type == "BatchNorm" else None] if "false" not in str(node.param.batch_norm_param)]
    learned = [array for path, array in found.items() if "num_batches" not in path][:len(kept)]
    assert [[n for n in array.shape if n > 1] for array in learned] == [[n for n in blob.shape if n > 1] for blob in kept]
    assert lines_of(*CASES[name]) == LINES[name]


def lines_of(text, *shapes):
    """The lines of the class without comments and line breaks."""
    cls = to_module(net_of(text, *shapes)).text().rpartition("super().__init__()\n")[2]
    lines = [line.partition("  #")[0].strip() for line in re.sub(r",\n +", ", ", cls).splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "def "))]


@pytest.mark.parametrize("kind, fields, shapes, wanted", OTHERS)
def test_lines_of_other_fields(kind, fields, shapes, wanted):
    text = layer(kind, fields, " ".join(f"x{i}" for i in range(len(shapes))))
    assert lines_of(text, *shapes) == wanted + ["return y"] * (wanted != ["return x0"])


@pytest.mark.parametrize("name, wanted", [("abs", []), ("maximum", ["import torch"]), ("im2col", ["import torch.nn.functional as F"]),
                                          ("average beyond the padding", ["import torch.nn.functional as F"]), ("batch norm whose statistics are asked for", ["import torch", "import torch.nn.functional as F"])])
def test_imports_of_the_text(name, wanted):
    text, *shapes = CASES[name]
    lines = to_module(net_of(text, *shapes)).text().splitlines()
    assert [line for line in lines if line.startswith(("import", "from"))] == [*wanted, "from torch import nn"]


def test_writers(monkeypatch):
    known = {name for name, cls in layer_types().items() if cls.__module__.startswith("minicaffe.") and ".forks." not in cls.__module__ or name in ("ConvolutionDepthwise", "PriorBoxClustered")}
    tested = {kind for text, *_ in CASES.values() for kind in re.findall(r'type: "(\w+)"', text)} | {"PriorBox", "PriorBoxClustered", "DetectionOutput", "Split"}
    assert known - OF_DATA == tested == set(WRITERS) - {"HDF5Output"}
    monkeypatch.setitem(WRITERS, "ReLU", None)

    @writer("ReLU")
    def own(source, node):
        return [f"{source.bottom()}.clamp(min=0)"]

    assert "        y = x0.clamp(min=0)  # 2 x 4 x 7 x 6\n" in to_module(net_of(layer("ReLU"), X)).text()
    WRITERS["ReLU"] = lambda source, node: []       # an expression for each top is missing
    with pytest.raises(ValueError, match="shorter"):
        to_module(net_of(layer("ReLU"), X))


LENET = '''class LeNet(nn.Module):
    """forward(data: 1 x 1 x 28 x 28) returns prob. Sizes are those of the prototxt."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.ip1 = nn.Linear(800, 500)
        self.relu1 = nn.ReLU()
        self.ip2 = nn.Linear(500, 10)
        self.prob = nn.Softmax(dim=1)

    def forward(self, data):
        conv1 = self.conv1(data)  # 1 x 20 x 24 x 24
        pool1 = F.max_pool2d(conv1, 2, 2, ceil_mode=True)  # 1 x 20 x 12 x 12
        conv2 = self.conv2(pool1)  # 1 x 50 x 8 x 8
        pool2 = F.max_pool2d(conv2, 2, 2, ceil_mode=True)  # 1 x 50 x 4 x 4
        ip1 = self.ip1(pool2.flatten(1))  # 1 x 500
        ip1 = self.relu1(ip1)
        ip2 = self.ip2(ip1)  # 1 x 10
        prob = self.prob(ip2)  # 1 x 10
        return prob
'''


def test_text_of_lenet_and_probes():
    file = str(MODELS / "lenet/deploy.prototxt")
    module = to_module(Net(read_net(file, caffe_pb2.TEST)[0], file=file), "lenet")
    head, text = module.text().split("\n\n\n")
    assert text == LENET and "from deploy.prototxt" in head and "    from lenet import LeNet\n" in head and '    model.load_state_dict(torch.load("lenet.pt"))\n' in head
    assert {path: array.shape for path, array in module.state.items()} == {
        "conv1.weight": (20, 1, 5, 5), "conv1.bias": (20,), "conv2.weight": (50, 20, 5, 5), "conv2.bias": (50,),
        "ip1.weight": (500, 800), "ip1.bias": (500,), "ip2.weight": (10, 500), "ip2.bias": (10,)}
    text, *shapes = CASES["slice"]
    module = to_module(net_of(text + layer("AbsVal", "", "a", "d", name="abs"), *shapes))
    plain, probed = (module.text(probed).partition("def forward(self, x0):\n")[2].splitlines() for probed in (False, True))
    assert [line.strip() for line in probed if line not in plain] == [
        f"{top} = self._probe({index}, {top!r}, {top})" for index, top in ((1, "a"), (1, "b"), (1, "c"), (2, "d"))]
    assert [line for line in probed if "_probe" not in line] == plain and len(plain) == 3


@pytest.mark.parametrize("file", [file for file in DEPLOY if not file.startswith(BIG)])
def test_the_text_of_models(file):
    param, positions = read_net(str(MODELS / file), caffe_pb2.TEST)
    for made in param.layer:
        for field in made.convolution_param, made.inner_product_param:      # filled at once
            for filler in "weight_filler", "bias_filler":
                field.ClearField(filler)
    net = Net(param, file=file, positions=positions)
    module = to_module(net)
    compile(module.text(), file, "exec")
    assert {identifier(node.name, "layer") for node in net.nodes if node.type in ("Convolution", "InnerProduct", "Scale")} <= {
        node.attr for node in ast.walk(ast.parse(module.text())) if isinstance(node, ast.Attribute)}
    assert sum(array.size for path, array in module.state.items() if "priorbox" not in path and "num_batches" not in path) == sum(
        blob.count for node in net.nodes for blob in node.layer.blobs[:2 if node.type == "BatchNorm" else None])


def test_arrays_of_layers(tmp_path):
    net = net_of(layer("BatchNorm"), X)
    state, (mean, variance, weight) = to_module(net).state, net.nodes[-1].layer.blobs
    assert list(state) == ["l.num_batches_tracked", "l.running_mean", "l.running_var"] and weight.data[0] == 2
    np.testing.assert_allclose(state["l.running_mean"], mean.data / 2)
    np.testing.assert_allclose(state["l.running_var"], variance.data / 2)
    assert "self.l = nn.BatchNorm2d(4, eps=1e-05, momentum=0.001, affine=False)\n" in to_module(net).text()
    net = net_of(layer("BatchNorm", "batch_norm_param { use_global_stats: true }"), X)
    assert list(to_module(net).state) == ["l_mean", "l_var"]
    matrix = np.arange(16, dtype=np.float32).reshape(4, 4)
    (tmp_path / "infogain").write_bytes(caffe_pb2.BlobProto(shape={"dim": [1, 1, 4, 4]}, data=matrix.ravel()).SerializeToString())
    net = net_of(layer("InfogainLoss", f'infogain_loss_param {{ source: "{tmp_path}/infogain" }}', "x0 x1"), (3, 4, 2), (3, 2))
    module = to_module(net)
    (kept,) = [array for array in module.state.values() if np.size(array) == 16]
    np.testing.assert_array_equal(np.reshape(kept, (4, 4)), matrix)
    assert re.search(r"caffe_infogain_loss\(\w+, \w+, self\.\w+, 1", module.text())


def test_files_of_states():
    file = state_file(to_module(net_of(IN_PLACE, (2, 4))))
    for info in zipfile.ZipFile(file).infolist():
        file.seek(info.header_offset + 26)
        name, extra = np.frombuffer(file.read(4), "<u2")
        assert (info.header_offset + 30 + name + extra) % 64 == 0 and info.compress_type == zipfile.ZIP_STORED
    archive = zipfile.ZipFile(file)
    assert archive.namelist() == [f"archive/{name}" for name in ("data.pkl", "byteorder", "data/0", "data/1", "version")]
    assert archive.read("archive/byteorder") == b"little" and archive.read("archive/version") == b"3\n"
    file = io.BytesIO()
    write_state(file, {"a": np.zeros((0, 3), np.float32), "b": np.array(7, np.int64)})
    found, _ = read_state(file)
    assert found["a"].shape == (0, 3) and found["b"] == 7


def test_names():
    assert [identifier(name, "layer") for name in ("conv1/3x3_s2", "1x1", "class", "", "_x", "__x", "é½²", "層-1", "ﬁ", "a b", "π.2", "None")] == [
        "conv1_3x3_s2", "layer_1x1", "class_", "layer_", "layer__x", "layer___x", "é1_22", "層_1", "fi", "a_b", "π_2", "None_"]
    assert identifiers(["type", "a/b", "a_b", "a.b", "a_b_2", "type_"], {"type"}, "layer") == ["type_", "a_b", "a_b_3", "a_b_4", "a_b_2", "type__2"]
    for name, expected in (("LeNet", "LeNet"), ("", "Net"), ("R-CNN ilsvrc13", "R_CNN_ilsvrc13"), ("LSTM", "LSTM_"), ("nn", "nn_"), ("16 layers", "Net_16_layers")):
        net = net_of(layer("ReLU"), (2, 3))
        net.name = name
        assert to_module(net).name == expected
    text = layer("AbsVal", tops="a", name="x/1") + layer("ReLU", "", "a", name="x.1") + layer("TanH", "", "a", "z", name="x-1")
    assert re.findall(r"self\.(\w+) = ", to_module(net_of(text, X)).text()) == ["x_1_2", "x_1_3"]
    assert [number(value) for value in (0.1, np.float32(1e-5), 2, -np.inf, np.inf, np.nan)] == ["0.1", "1e-05", "2.0", "-torch.inf", "torch.inf", "torch.nan"]
    ip = layer("InnerProduct", "inner_product_param { num_output: 4 bias_term: false }", "%s", "%s")
    names = [("l", "x0", "a"), ("l", "a", "b/1"), ("l_2", "b/1", "b.1"), ("m", "b.1", "b_1_2")]
    net = net_of("".join(ip.replace('"l"', f'"{name}"') % (bottom, top) for name, bottom, top in names), (2, 4))
    module = to_module(net)
    assert list(module.state) == ["l.weight", "l_3.weight", "l_2.weight", "m.weight"]
    for array, node in zip(module.state.values(), net.nodes[1:], strict=True):
        assert np.array_equal(array, node.layer.blobs[0].data)
    assert re.findall(r"^        (\w+) = self", module.text(), re.M) == ["a", "b_1", "b_1_3", "b_1_2"]


ODD = ["class", "1x1", "conv1/3x3_s2", "conv1_3x3_s2", "conv1.3x3.s2", "层", "ﬁ", "fi", "type", "forward", "self", "torch", "__init__", "a'b", 'quote"', "back\\slash",
       "line\nend", "F", "nn", "parameters", "training", "caffe_mvn", "len", "é", "e\u0301", "", " ", "probe", "T_destination", '"""', "x0", "{x}", "%s", "#", "state"]


@pytest.mark.parametrize("as_inputs", [False, True])
def test_odd_names(as_inputs):
    param, blobs = caffe_pb2.NetParameter(name='odd "" \\ """ net'), [name or "empty" for name in ODD]
    for name in blobs if as_inputs else ["start"]:
        param.layer.add(name=f"in {name}", type="Input", top=[name]).input_param.shape.add(dim=[2, 3])
    for name, blob, before in zip(ODD, blobs, ["start", *blobs]):
        bottom, top = (blob, f"out {name}") if as_inputs else (before, blob)
        param.layer.add(name=name or "none", type="InnerProduct", bottom=[bottom], top=[top]).inner_product_param.num_output = 3
    param.layer.add(name="mvn", type="MVN", bottom=[param.layer[-1].top[0]], top=["last"])
    param.state.phase = caffe_pb2.TEST
    net = filled(Net(param))
    module = to_module(net)
    text = module.text()
    compile(text, "m", "exec")
    names = re.findall(r"^        self\.(\w+) = ", text, re.M)
    assert len(names) == len(set(names)) == len(ODD) and not set(names) & MODULE_ATTRIBUTES
    assert all(name.isidentifier() and name in text for name in names) and {path.split(".")[0] for path in module.state} == set(names)
    variables = {node.id for node in ast.walk(ast.parse(text).body[-1]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert not variables & {*FORWARD_NAMES, *helper_texts()} and len(module.inputs) == len(set(module.inputs))
    if torch:
        assert all(one.relative < 1e-5 for one in checked(net))


def test_shared_parameters():
    module = to_module(net_of(IN_PLACE, (2, 4)))
    text = module.text()
    assert ("        self.again = nn.Linear(4, 4)\n        self.again.weight = self.l.weight  # shared parameter\n"
            "        self.again.bias = self.l.bias  # shared parameter\n") in text
    assert "        h = self.l(x0)  # 2 x 4\n        h = self.r(h)\n        z = self.again(h)  # 2 x 4\n        z = self.drop(z)\n" in text
    _, storages = read_state(state_file(module))
    assert storages == {"l.weight": "0", "l.bias": "1", "again.weight": "0", "again.bias": "1"}
    text = "".join(layer("Parameter", 'parameter_param { shape { dim: 2 dim: 3 } } param { name: "w" }', "", top, name=top) for top in ("v", "w"))
    module = to_module(net_of(text, (1,)))
    assert "        self.v = nn.Parameter(torch.zeros((2, 3)))\n        self.w = self.v  # shared parameter\n" in module.text()
    assert read_state(state_file(module))[1] == {"v": "0", "w": "0"}


def test_blobs_that_share_their_memory():
    """Caffe's Split, Flatten and Reshape share it, so a layer in place behind them also writes the others: it is refused if they are read later."""
    def net(top):
        return net_of(layer("AbsVal", tops="a") + layer("Split", "", "a", "b c", name="split") + layer("Flatten", "", "c", "f", name="f")
                      + layer("Reshape", "reshape_param { shape { dim: 2 dim: 3 dim: 4 } }", "f", "g", name="g") + layer("Power", "power_param { shift: -5 }", "b", top, name="p") + layer("Eltwise", "", f"{top} g", "y", name="e"), (2, 3, 4))

    with pytest.raises(errors.ConfigError, match=r"layer 'p' \(Power\): top\[0\]: writes in place into blob 'b', whose memory Caffe shares with 'g'"):
        to_module(net("b"))
    lines = to_module(net("d")).text().splitlines()[-6:]
    assert [line.split("  #")[0].strip() for line in lines] == ["a = x0.abs()", "f = a.flatten(1)", "g = f.reshape(2, 3, 4)", "d = a - 5.0", "y = d + g", "return y"]
    both = layer("AbsVal", tops="a") + layer("Split", "", "a", "b c", name="split") + layer("Bias", "bias_param { axis: 0 }", "b c", "b", name="e")
    assert "b = a + a\n" in to_module(net_of(both, (2, 3, 4))).text()       # the layer in place is the last that reads 'c'
    output = layer("AbsVal", tops="a") + layer("Split", "", "a", "b c", name="split") + layer("Power", "power_param { shift: -5 }", "b", "b", name="p")
    with pytest.raises(errors.ConfigError, match=r"layer 'p' .*writes in place into blob 'b', whose memory Caffe shares with 'c', which is read later"):
        to_module(net_of(output, (2, 3, 4)))      # at the end, as an output


def test_inputs_and_unknown_sizes():
    module = to_module(net_of(layer("ReLU", "", "x0", "a") + layer("Eltwise", "", "x1 x2", "b", name="e"), (2, 3), (1,), (1,)))
    assert "    def forward(self, x0, x1, x2):\n" in module.text() and module.text().endswith("        return (a, b)\n") and module.outputs == ["a", "b"]
    assert "forward(x0: 2 x 3, x1: 1, x2: 1) returns a, b." in module.description
    text = layer("AbsVal", tops="a") + layer("Filter", "", "x1 x0", "y", name="f") + layer("AbsVal", "", "y", "z", name="after")
    module = to_module(net_of(text, (4,), (4, 3)))
    lines = [line.strip() for line in module.text().splitlines() if " = " in line and "abs" in line]
    assert lines == ["a = x0.abs()  # 4", "z = y.abs()"]


@pytest.mark.parametrize("how, wanted", [
    (Preprocessing([1, 2, 3], 0.5, (2, 1, 0)), "x0 = 0.5 * (x0[:, [2, 1, 0]] - self.mean)"), (Preprocessing(scale=0.5), "x0 = 0.5 * x0"),
    (Preprocessing(mean=3), "x0 = (x0 - 3.0)"), (Preprocessing(mean=3, scale=2), "x0 = 2.0 * (x0 - 3.0)"),
    (Preprocessing(mean=np.arange(48).reshape(3, 4, 4), order=(2, 1, 0)), "x0 = (x0[:, [2, 1, 0]] - self.mean)")])
def test_preprocessing_in_the_text(how, wanted):
    net = net_of(layer("ReLU"), (2, 3, 4, 4))
    module = to_module(net, preprocessing=how)
    lines = [line.strip() for line in module.text().splitlines()]
    assert [line for line in lines if line.startswith("x0 = ")] == [wanted] and lines[lines.index(wanted) + 1].startswith("y = self.l(x0)")
    shape = (3, 1, 1) if how.scale == 0.5 else (3, 4, 4)
    assert {name: array.shape for name, array in module.state.items()} == ({"mean": shape} if how.order else {})
    if torch:
        assert checked(net, preprocessing=how)[0].relative < 1e-5


@pytest.mark.parametrize("kind, fields, shape, wanted", [
    ("Normalize", "norm_param { channel_shared: false }", X, "self.l = Scale((4,), 2)"),
    ("Normalize", "norm_param { across_spatial: false }", X, "self.l = Scale((), 0)"),
    ("Normalize", "norm_param { channel_shared: false across_spatial: false }", X, "self.l = Scale((4,), 2)"),
    # A padding of more than half a window, or another number of windows than PyTorch's: a helper computes them.
    ("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 2 }", (1, 2, 6, 6), ' = caffe_pool(x0, "MAX", ('),
    ("Pooling", "pooling_param { kernel_size: 1 stride: 3 pad: 0 }", (1, 2, 6, 6), ' = caffe_pool(x0, "MAX", ('),
    ("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }", X, "    y = caffe_stochastic_pool(x0, 2, 2)"),
    ("Reduction", "", (2, 3), "    y = x0.sum((0, 1))  # a number\n")])
def test_parts_of_the_text(kind, fields, shape, wanted):
    assert wanted in to_module(net_of(layer(kind, fields), shape)).text()


@pytest.mark.parametrize("fields, sizes, wanted", [
    ("kernel_size: 4 stride: 3", (3, 5), "0, 0, 0, 1"), ("kernel_size: 4 stride: 3", (5, 3), "0, 1, 0, 0"), ("kernel_size: 4 stride: 3", (2, 3), "0, 1, 0, 2"),
    ("kernel_h: 2 kernel_w: 5 stride: 4 pad_h: 1 pad_w: 0", (3, 2), "0, 3, 0, 0"), ("kernel_h: 5 kernel_w: 2 stride: 4 pad_h: 0 pad_w: 1", (2, 3), "0, 0, 0, 3"),
    ("kernel_size: 3 dilation: 2 stride_h: 4 stride_w: 5", (4, 2), "0, 3, 0, 1"), ("kernel_size: 4 stride: 3 pad: 1", (1, 9), "0, 0, 0, 1"),
    ("kernel_size: 3 stride: 3", (1, 2, 3), "0, 0, 0, 1, 0, 2"), ("kernel_size: 3 stride: 3", (2,), "0, 1"), ("kernel_size: 4 stride: 3", (4, 5), None)])
def test_zeros_around_a_small_picture(fields, sizes, wanted):
    """F.pad has the last axis first; a picture that is large enough gets no zeros."""
    net = net_of(layer("Convolution", f"convolution_param {{ num_output: 3 {fields} }}"), (1, 2, *sizes))
    assert net.blobs["y"].shape[2] == 1
    module = to_module(net)
    assert re.findall(r"F\.pad\((.*?), \((.*?)\)\)", module.text()) == ([("x0", wanted)] if wanted else [])
    assert ("a window that is larger than the picture" in module.text()) == bool(wanted)
    if torch:
        assert checked(net)[0].relative < 1e-5


@pytest.mark.parametrize("fields, wanted", [
    ("", 'False, threshold=-torch.inf, nms_threshold=0.3, eta=1.0, top_k=-1, keep_top_k=-1'),
    ("confidence_threshold: 0.25 keep_top_k: 7 nms_param { nms_threshold: 0.5 eta: 0.75 top_k: 9 }",
     'False, threshold=0.25, nms_threshold=0.5, eta=0.75, top_k=9, keep_top_k=7'),
    ("variance_encoded_in_target: true", 'True, threshold=-torch.inf, nms_threshold=0.3, eta=1.0, top_k=-1, keep_top_k=-1')])
def test_options_of_detections(fields, wanted):
    text = re.sub(r",\n +", ", ", to_module(detection(fields)).text())
    assert f'    y = caffe_detection_output(x0, x1, p, classes=3, share_location=True, background=0, code_type="CORNER", variance_in_target={wanted})' in text


def test_layers_that_write_files(tmp_path, caplog):
    text = layer("HDF5Output", f'hdf5_output_param {{ file_name: "{tmp_path}/out.h5" }}', "a x1", "").replace('"l"', '"the \\"writer"')
    module = to_module(net_of(layer("ReLU", tops="a") + layer("AbsVal", "", "a", "y", name="abs") + text, X, (2,)))
    assert "layer 'the \"writer' (HDF5Output) is left out: no file is written" in caplog.text
    assert "writer" not in module.text().partition("def __init__")[2]


def test_what_is_compared(tmp_path, monkeypatch):
    calls, net, x = [], net_of(IN_PLACE, (2, 4)), {"x0": np.ones((2, 4), np.float32)}

    def record(net, module, state, inputs, preprocessing):
        calls.append((list(read_state(state)[0]) == list(module.state), inputs, preprocessing))
        return ["difference"]

    monkeypatch.setattr(sys.modules["minicaffe.addons.export.pytorch.export"], "compare", record)
    how = Preprocessing(scale=2)
    assert export(net, tmp_path / "a", inputs=x, preprocessing=how) == ["difference"] and export(net, tmp_path / "b") == ["difference"]
    assert calls[0][0] and calls[0][1] is x and calls[0][2] is how and calls[1][0] and calls[1][2] is None
    np.testing.assert_array_equal(calls[1][1]["x0"], random_inputs(net)["x0"])


def test_all_refused_layers_are_named(tmp_path):
    text = (layer("DummyData", 'dummy_data_param { shape { dim: 2 } data_filler { type: "uniform" } }', "", "r") + layer("ReLU", "", "r", "q", name="after")
            + layer("Im2col", "convolution_param { kernel_size: 1 axis: 2 }", "x0", "i", name="im")
            + layer("Convolution", "convolution_param { num_output: 2 kernel_size: 1 }", "x1", "c", name="four"))
    with pytest.raises(errors.ConfigError) as caught:
        export(net_of(text, (2, 2, 3, 3, 3), (1, 2, 1, 1, 1, 1)), tmp_path / "a")
    lines = str(caught.value).splitlines()
    assert [re.search(r"layer '(\w+)'", line)[1] for line in lines] == ["l", "im", "four"]
    assert "random numbers in each run" in lines[0] and "needs two axes after axis 1" in lines[1] and "has 4 axes after the channels" in lines[2]
    assert not list(tmp_path.iterdir())


TWO_LOSSES = "".join(layer("MultiBoxLoss", "multibox_loss_param { num_classes: 2 }", "x0 x1 x2 x3", name, name=name) for name in "yz")
TWO_SHAPES = (layer("InnerProduct", 'inner_product_param { num_output: 6 bias_term: false } param { name: "w" }', tops="h")
              + layer("InnerProduct", 'inner_product_param { num_output: 4 bias_term: false } param { name: "w" share_mode: PERMISSIVE }', "h", name="two"))


@pytest.mark.parametrize("text, shapes, wrong", [
    (TWO_LOSSES, [(1, 4), (1, 2), (1, 2, 4), (1, 1, 1, 8)], r"layer 'y' \(MultiBoxLoss\): there is no exporter for this type; register one with "
     r"minicaffe.addons.export.pytorch.writer\('MultiBoxLoss'\); also 'z' \(MultiBoxLoss\)"),
    (TWO_SHAPES, [(2, 4)], r"layer 'two' .*blobs\[0\]: shares the parameter l.weight as \[4, 6\], where that is \[6, 4\]"),
    (layer("ReLU"), [X], "phase TRAIN"), ("", [X], "the net has no output"),
    (layer("BatchNorm", "batch_norm_param { use_global_stats: false }"), [(1, 4)], "one value for each channel"),
    (layer("Pooling", "pooling_param { kernel_size: 4 stride: 3 pad: 3 }", tops="y m"), [X], "has a mask and windows that PyTorch's max_pool2d does not take"),
    (layer("Im2col", "convolution_param { kernel_size: 1 }"), [(2, 3, 4, 5, 5)], r"needs two axes after axis 1 for PyTorch, got \[2, 3, 4, 5, 5\] and axis 1"),
    (layer("Im2col", "convolution_param { kernel_size: 1 axis: 2 }"), [X], r"needs two axes after axis 1 for PyTorch, got \[2, 4, 7, 6\] and axis 2"),
    (layer("Convolution", "convolution_param { num_output: 1 kernel_size: 1 }"), [(1, 1, 1, 1, 1, 1)], "has 4 axes after the channels; PyTorch's convolutions have at most 3")])
def test_other_refusals(text, shapes, wrong):
    net = net_of(text, *shapes, phase=caffe_pb2.TRAIN if "TRAIN" in wrong else caffe_pb2.TEST)
    with pytest.raises(errors.ConfigError, match=wrong):
        to_module(net)


@pytest.mark.parametrize("name", ["my-net", "1st", "class", "torch", "a b"])
def test_file_names_that_python_cannot_import(tmp_path, name):
    with pytest.raises(errors.ConfigError, match=f"out: a module '{name}' cannot be imported"):
        export(net_of(layer("ReLU"), X), tmp_path / name, check=False)


def test_without_pytorch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    net = net_of(layer("ReLU"), X)
    with pytest.raises(errors.DependencyError, match="PyTorch is needed to compare .*pip install torch"):
        export(net, tmp_path / "a")
    assert not list(tmp_path.iterdir())
    assert export(net, tmp_path / "a", check=False) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "a.py"] and not read_state(tmp_path / "a.pt")[0]


@with_torch
def test_names_of_pytorch():
    assert {name for name in dir(torch.nn.Module()) if not name.startswith("_")} <= MODULE_ATTRIBUTES


@with_torch
@pytest.mark.parametrize("name", CASES)
def test_numbers(name):
    text, *shapes = CASES[name]
    net = net_of(text, *shapes)
    found = checked(net)
    assert [one.blob for one in found] == [blob.name for blob in net.output_blobs if blob not in net.input_blobs]
    assert all(one.relative < 1e-5 for one in found)


@with_torch
@pytest.mark.parametrize("fields", [*BOXES, "nms_param { eta: 0.9 nms_threshold: 0.6 }"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("images", [1, 3])
def test_boxes_of_modules(fields, shared, images):
    found = checked(detection(fields, images, shared=shared))
    assert [one.relative < 1e-5 for one in found] == [True]
    # A threshold of 1/2 is not lowered.
    net, inputs, rows = detection_at_limits(f"nms_param {{ nms_threshold: 0.5 eta: {1 if shared else 0.5} }}")
    module = to_module(net)
    assert compare(net, module, state_file(module), inputs)[0].absolute == 0
    np.testing.assert_array_equal(net.blobs["y"].data[0, 0], rows)


POOLS = [f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad} {mode} }}" for method in ("MAX", "AVE")
         for kernel, stride, pad in ((3, 2, 2), (4, 3, 3), (1, 3, 0), (2, 3, 1), (3, 1, 2), (5, 5, 1), (2, 2, 1), (1, 2, 0)) for mode in ("", "round_mode: FLOOR")]


@with_torch
@pytest.mark.parametrize("fields", POOLS)
def test_pooling_of_any_windows(fields):
    for size in range(5, 11):
        net = net_of(layer("Pooling", fields), (2, 2, size, 7))
        if net.blobs["y"].count and np.isfinite(run_net(net, random_inputs(net))["y"]).all():
            assert checked(net)[0].relative < 1e-5, size


@with_torch
@of_models
def test_modules_of_models(file, batch):
    assert all(one.relative < 1e-5 or file.startswith("ssd") for one in checked(net_of_model(file, batch)))


@with_torch
def test_any_batch_and_any_size():
    text = (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 pad: 5 }", tops="c") + layer("Crop", "crop_param { offset: 2 }", "c x0", "d", name="crop")
            + layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", "d", "y", name="r"))
    net = net_of(text, X)
    model = model_of(net).eval()
    for shape in ((1, 4, 7, 6), (3, 4, 9, 8)):
        net.blobs["x0"].reshape(*shape)
        net.reshape_all()
        x = random_inputs(net)
        net.feed(**x)
        net.forward_from_to(0, len(net.nodes) - 1)
        np.testing.assert_allclose(model(torch.from_numpy(x["x0"])).detach(), net.blobs["y"].data, rtol=1e-4, atol=1e-5)


@with_torch
def test_shared_and_recurrent_modules():
    model = model_of(net_of(IN_PLACE, (2, 4)))
    assert model.again.weight is model.l.weight and len(list(model.parameters())) == 2
    (model(torch.ones(2, 4))[:, 0]).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert torch.equal(model.again.weight, model.l.weight) and model.l.weight.grad.abs().sum() > 0
    net = net_of(layer("LSTM", "recurrent_param { num_output: 3 }", "x0 x1"), (2, 2, 4), (2, 2))
    model, dice = model_of(net), np.random.default_rng(0)
    for going in (0, 1, 1, 0):
        x, cont = dice.normal(0, 1, (2, 2, 4)).astype(np.float32), np.full((2, 2), 1, np.float32)
        cont[0] = going
        net.feed(x0=x, x1=cont)
        net.forward_from_to(0, len(net.nodes) - 1)
        np.testing.assert_allclose(model(torch.from_numpy(x), torch.from_numpy(cont)).detach(), net.blobs["y"].data, atol=1e-6)


@with_torch
def test_gradients():
    text = (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 }", tops="c") + layer("Scale", "scale_param { bias_term: true }", "c", "s", name="s")
            + layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", "s", "p", name="p")
            + layer("InnerProduct", "inner_product_param { num_output: 4 }", "p", "i", name="i") + layer("SoftmaxWithLoss", "", "i x1", "loss", name="loss"))
    net = net_of(text, X, (2,))
    inputs = random_inputs(net)
    model = model_of(net)
    model(*(torch.from_numpy(inputs[name]) for name in ("x0", "x1"))).backward()
    net.feed(**inputs)
    net.clear_param_diffs()
    net.forward_backward()
    wanted = {"l.weight": (0, "l"), "l.bias": (1, "l"), "s.weight": (0, "s"), "s.bias": (1, "s"), "i.weight": (0, "i"), "i.bias": (1, "i")}
    found = dict(model.named_parameters())
    assert found.keys() == wanted.keys()
    for path, (index, name) in wanted.items():
        blob = net.layer_dict[name].blobs[index]
        np.testing.assert_allclose(found[path].grad, np.reshape(blob.diff, found[path].shape), rtol=1e-3, atol=1e-6)


@with_torch
def test_training_mode():
    text = layer("BatchNorm", "{}", tops="b") + layer("Dropout", "", "b", "y", name="d")
    x = torch.from_numpy(np.random.default_rng(0).normal(3, 1, X).astype(np.float32))
    for field, moves in (("", True), ("use_global_stats: true", False)):
        model = model_of(net_of(text.replace("{}", f"batch_norm_param {{ {field} }}"), X)).train()
        mean = model.l.running_mean if moves else model.l_mean
        before = mean.clone()
        assert (model(x) == 0).float().mean() > 0.3 and torch.equal(before, mean) != moves
        assert not (model.eval()(x) == 0).any()


@with_torch
def test_wrong_and_rounding_writers(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(WRITERS, "TanH", lambda source, node: [f"{source.bottom()}.sigmoid()"])
    text = layer("ReLU", tops="a") + layer("TanH", "", "a", "a", name="wrong") + layer("AbsVal", "", "a", name="after")
    with pytest.raises(errors.DataError, match=r"layer 'wrong' \(TanH\) differs first, in 'a' by"):
        export(net_of(text, X), tmp_path / "a")
    assert not list(tmp_path.iterdir())
    net = net_of(THRESHOLD_OF_1 + layer("AbsVal", "", "b", name="last"), (3,))
    monkeypatch.setitem(WRITERS, "ReLU", lambda source, node: [f"1.000001 * {source.bottom()}.relu()"])
    module = to_module(net)
    assert compare(net, module, state_file(module), AT_THRESHOLD)[0].absolute == 1
    assert "rounding errors add up, or change what a layer selects" in caplog.text
    with pytest.raises(errors.ConfigError, match=r"inputs: must have an array for each input of the net, \['x0'\], got \['z'\]"):
        compare(net, module, state_file(module), {"z": AT_THRESHOLD["x0"]})


@with_torch
def test_files_without_minicaffe(tmp_path):
    net = net_of(IN_PLACE, (2, 4))
    net.name = "Small"
    export(net, tmp_path / "small")
    code = ("import sys; sys.path.insert(0, '.'); import torch; from small import Small; m = Small(); m.load_state_dict(torch.load('small.pt')); m.eval(); "
            "mapped = torch.load('small.pt', mmap=True); assert torch.equal(mapped['l.weight'], m.l.weight); "
            "assert 'minicaffe' not in sys.modules; print(m(torch.ones(5, 4)).shape)")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "torch.Size([5, 4])\n", done.stderr
