"""Every model in models/: its files are what its script makes; it builds, runs, trains a step, and is what was published."""

import functools
import gc
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from opencv_table import slim

import minicaffe as caffe
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.errors import ShapeError
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.proto.stored import LayerBlobs, StoredBlob
from minicaffe.solver import create_solver

MODELS = Path(__file__).resolve().parents[2] / "models"

FOLDERS = sorted(path.parent.name for path in MODELS.glob("*/README.md") if path.parent.name != "data")
SCRIPTS = sorted(path.parent.name for path in MODELS.glob("*/make.py"))
FOR_THE_SIMULATOR = {"autoencoder", "lenet", "mlp", "siamese"}  # small enough for a device that is simulated
SLIM = {"fcn", "vgg16", "alexnet", "caffenet"}  # run with narrower layers where only running is tested: gigabytes otherwise

# Learned parameters, and shapes of blobs for one input; FCN's are those of a narrower net on a picture of 64 x 64. Published
# are the numbers of AlexNet, CaffeNet, VGG16, GoogLeNet, SqueezeNet; 25.6 million of ResNet-50, 4.2 million of MobileNet.
DEPLOY = {
    "alexnet/deploy": (60_965_224, {"conv1": (1, 96, 55, 55), "pool1": (1, 96, 27, 27), "conv5": (1, 256, 13, 13), "pool5": (1, 256, 6, 6), "prob": (1, 1000)}),
    "autoencoder/deploy": (2_837_314, {"encode4": (1, 30), "decode1neuron": (1, 784)}),
    "caffenet/deploy": (60_965_224, {"conv1": (1, 96, 55, 55), "norm2": (1, 256, 13, 13), "pool5": (1, 256, 6, 6), "prob": (1, 1000)}),
    "cifar10_full/deploy": (89_578, {"norm2": (1, 32, 8, 8), "pool3": (1, 64, 4, 4), "prob": (1, 10)}),
    "cifar10_quick/deploy": (145_578, {"pool3": (1, 64, 4, 4), "prob": (1, 10)}),
    "fcn/deploy": (134_432_597, {"score_fr": (1, 21, 3, 3), "upscore": (1, 21, 128, 128), "score": (1, 21, 64, 64)}),
    "fcn/deploy_8s": (134_368_799, {"fuse_pool4": (1, 21, 8, 8), "fuse_pool3": (1, 21, 18, 18), "upscore8": (1, 21, 152, 152), "score": (1, 21, 64, 64)}),
    "fcn/published_32s": (136_152_917, {"upscore": (1, 21, 128, 128), "score": (1, 21, 64, 64)}),
    "fcn/published_8s": (134_489_759, {"upscore8": (1, 21, 152, 152), "score": (1, 21, 64, 64)}),
    "googlenet/deploy": (6_998_552, {"inception_3a/output": (1, 256, 28, 28), "inception_4e/output": (1, 832, 14, 14), "inception_5b/output": (1, 1024, 7, 7), "prob": (1, 1000)}),
    "lenet/deploy": (431_080, {"pool2": (1, 50, 4, 4), "prob": (1, 10)}),
    "lstm_text/deploy": (359_520, {"embed": (1, 1, 64), "lstm": (1, 1, 256), "prob": (1, 1, 96)}),
    "mlp/deploy": (235_146, {"prob": (1, 10)}),
    "mobilenet/deploy": (4_231_976, {"conv2_1/sep": (1, 64, 112, 112), "conv5_6/sep": (1, 1024, 7, 7), "prob": (1, 1000, 1, 1)}),
    "resnet50/deploy": (25_557_096, {"res2c": (1, 256, 56, 56), "res3d": (1, 512, 28, 28), "res4f": (1, 1024, 14, 14), "res5c": (1, 2048, 7, 7), "prob": (1, 1000)}),
    "shapes/deploy": (359_453, {"conv2": (1, 48, 24, 24), "pool4": (1, 96, 6, 6), "pool6": (1, 128, 1, 1), "prob": (1, 45)}),
    "siamese/deploy": (431_102, {"feat": (1, 2)}),
    "ssd/deploy": (26_285_486, {"mbox_loc": (1, 34928), "mbox_conf": (1, 183372), "mbox_priorbox": (1, 2, 34928)}),
    "squeezenet/deploy": (1_235_496, {"fire9/concat": (1, 512, 14, 14), "prob": (1, 1000, 1, 1)}),
    "squeezenet/deploy_v1.0": (1_248_424, {"fire9/concat": (1, 512, 13, 13), "prob": (1, 1000, 1, 1)}),
    "vgg16/deploy": (138_357_544, {"conv5_3": (1, 512, 14, 14), "pool5": (1, 512, 7, 7), "prob": (1, 1000)}),
}

# What replaces the data layers of the training nets: shape, and for whole numbers how many there are.
IMAGENET = {"data": ((1, 3, 224, 224), None), "label": ((1,), 1000)}
ALEXNET = {"data": ((1, 3, 227, 227), None), "label": ((1,), 1000)}
GREY = {"data": ((4, 1, 28, 28), None), "label": ((4,), 10)}
CIFAR = {"data": ((4, 3, 32, 32), None), "label": ((4,), 10)}
VOC = {"data": ((1, 3, 64, 64), None), "label": ((1, 1, 64, 64), 21)}
TRAINING = {
    "alexnet/net": ALEXNET, "caffenet/net": ALEXNET, "googlenet/net": IMAGENET, "resnet50/net": IMAGENET, "mobilenet/net": IMAGENET,
    "vgg16/net": IMAGENET, "squeezenet/net": ALEXNET, "squeezenet/net_v1.0": ALEXNET,
    "fcn/net": VOC, "fcn/net_8s": VOC, "cifar10_full/net": CIFAR, "cifar10_quick/net": CIFAR, "lenet/net": GREY, "lenet/full": GREY,
    "mlp/net": GREY, "autoencoder/net": {"data": ((4, 1, 28, 28), "share")}, "siamese/net": {"pair_data": ((4, 2, 28, 28), None), "sim": ((4,), 2)},
    "shapes/net": {"data": ((4, 3, 48, 48), None), "label": ((4,), 45)},
    "lstm_text/net": {"data": ((5, 3), 96), "cont": ((5, 3), 2), "label": ((5, 3), 96)},
}
LARGE = {"alexnet/deploy", "caffenet/deploy", "vgg16/deploy", "resnet50/net", "resnet50/deploy", "ssd/deploy", "googlenet/net"}    # for --every
ELSEWHERE = {"ssd/train", "ssd/test"}  # addons/ssd/test_small_ssd.py
AUXILIARY = 6_379_728  # parameters of GoogLeNet's two classifiers for training


@pytest.fixture(autouse=True)
def suits_the_device(request, device):
    """Skip what would take a simulated device minutes, and free each net before the next one is made."""
    case = getattr(request.node, "callspec", SimpleNamespace(params={})).params.get("model", "")
    if device == "sim" and case.partition("/")[0] not in FOR_THE_SIMULATOR:
        pytest.skip("too large for the simulated device; run it with --device cpu or gpu")
    yield
    gc.collect()


def script(path):
    """Return the module of a script in models/."""
    spec = importlib.util.spec_from_file_location("_".join(path.with_suffix("").parts[-2:]), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(shape, kind):
    """Return seeded test values: normal, from 0 to 1 for "share", or whole numbers below `kind`."""
    random = np.random.default_rng(3)
    if kind == "share":
        return random.random(shape)
    return random.normal(size=shape) if kind is None else random.integers(0, kind, shape)


def defined(net):
    """Return the number of learned parameters that the definition of a net without branches of unequal width gives."""
    channels, total = {"data": 3}, 0
    for layer in net.layer:
        width = channels[layer.bottom[0]] if layer.bottom else 3
        if layer.type in ("Convolution", "Deconvolution", "InnerProduct"):
            spatial = layer.type != "InnerProduct"
            own = layer.convolution_param if spatial else layer.inner_product_param
            area, group = (own.kernel_size[0] ** 2, own.group) if spatial else (1, 1)
            total += own.num_output * (width // group * area + own.bias_term)
            width = own.num_output
        total += 2 * width if layer.type == "Scale" else 0
        channels[layer.top[0]] = width
    return total


def learned(net):
    """Return the number of parameters that training changes: all but the running sums of BatchNorm."""
    return sum(blob.count for layer in net.layers if layer.type != "BatchNorm" for blob in layer.blobs)


@functools.cache
def deployed(model):
    """Build a deploy net and run it; return what the tests ask for, without the net, which may be large."""
    caffe.set_random_seed(1)
    param, _ = upgrade.read_net_file(str(MODELS / f"{model}.prototxt"))
    count = defined(param) if model.startswith("fcn/") else None
    net = caffe.Net(slim(param) if model.startswith("fcn/") else param, caffe.TEST)
    for layer in net.layers:
        if layer.type == "BatchNorm":  # as trained on values of mean 0 and variance 1
            layer.blobs[1].data[...] = layer.blobs[2].data[...] = 1
    for name in net.inputs:
        blob = net.blobs[name]
        if model.startswith("fcn/"):
            blob.reshape(1, 3, 64, 64)
        blob.data[...] = numbers(blob.shape, 2 if model.startswith("lstm_text") else "share")
    outputs = net.forward()
    return SimpleNamespace(outputs=outputs, learned=count or learned(net), shapes={name: blob.shape for name, blob in net.blobs.items()},
                           params={name: [blob.shape for blob in blobs] for name, blobs in net.params.items()})


def test_files():
    files = {path.relative_to(MODELS).with_suffix("").as_posix() for path in MODELS.glob("*/*.prototxt")}
    assert {file for file in files if "/solver" not in file} == DEPLOY.keys() | TRAINING.keys() | ELSEWHERE
    assert {model.partition("/")[0] for model in DEPLOY} == set(FOLDERS)


@pytest.mark.parametrize("model", SCRIPTS)
def test_files_of_scripts(model):
    module = script(MODELS / model / "make.py")
    made = sys.modules["making"].contents(module.__file__, module.nets())
    for name, content in made.items():
        assert (MODELS / model / name).read_text() == content, f"{name} is old: python models/{model}/make.py"


def test_deeper_resnets():
    """The script makes the deeper ones too; counted from the definition, as the nets are large."""
    make = script(MODELS / "resnet50" / "make.py")
    for depth, count, last in (50, DEPLOY["resnet50/deploy"][0], "res4f"), (101, 44_549_160, "res4b22"), (152, 60_192_808, "res4b35"):
        net = make.deploy(depth)
        names = {layer.name for layer in net.layer}
        assert {f"{last}_branch2c", "res5c_branch2b", "res2c", "scale_conv1"} <= names
        assert ("res3b3_branch2a" in names, "res3b_branch2a" in names) == (depth != 50, depth == 50)
        assert sum(layer.type == "Convolution" for layer in net.layer) - 4 == depth - 1  # 4 shortcuts; the last layer is fc1000
        assert defined(net) == count


@pytest.mark.parametrize("model", [pytest.param(model, marks=[pytest.mark.slow(2)] * (model in LARGE)) for model in sorted(DEPLOY)])
def test_deploy_nets(model):
    count, shapes = DEPLOY[model]
    made = deployed(model)
    assert made.learned == count
    assert {name: made.shapes[name] for name in shapes} == shapes
    for name, values in made.outputs.items():
        assert np.isfinite(values).all(), name
    if "prob" in made.outputs:
        np.testing.assert_allclose(made.outputs["prob"].sum(axis=-1 if model.startswith("lstm") else 1), 1, rtol=1e-4)
    if model.endswith("/deploy"):
        for readme in ((MODELS / model).parent / "README.md", MODELS / "README.md"):
            assert f"{count:,}" in readme.read_text(), f"{readme} gives another number of parameters"


def without_data(param, inputs):
    """Return a NetParameter with one Input layer in place of all data layers."""
    net = caffe_pb2.NetParameter(name=param.name)
    layer = net.layer.add(name="given", type="Input", top=list(inputs))
    for shape, _ in inputs.values():
        layer.input_param.shape.add(dim=shape)
    net.layer.extend(layer for layer in param.layer if layer.type not in ("Data", "HDF5Data"))
    return net


def solver_param(file):
    """Return the SolverParameter of a solver file with its net inside, which draws the same numbers each time and takes no snapshots."""
    param, _ = upgrade.read_solver_file(str(MODELS / file))
    assert param.snapshot_prefix
    param.net_param.CopyFrom(upgrade.read_net_file(str(MODELS.parent / param.net))[0])
    for field in ("net", "snapshot", "snapshot_prefix"):
        param.ClearField(field)
    param.snapshot_after_train, param.random_seed = False, 1
    return param


@pytest.mark.parametrize("model", [pytest.param(model, marks=[pytest.mark.slow(2)] * (model in LARGE)) for model in sorted(TRAINING)])
def test_one_training_step(model):
    folder, _, name = model.partition("/")
    suffix = name.removeprefix("net").removeprefix("full")
    net_param, _ = upgrade.read_net_file(str(MODELS / f"{model}.prototxt"))
    assert {caffe.TRAIN, caffe.TEST} == {layer.include[0].phase for layer in net_param.layer if layer.type in ("Data", "HDF5Data")}
    param, narrow = solver_param(f"{folder}/solver{suffix}.prototxt"), folder in SLIM
    for field in ("test_iter", "test_state", "test_interval", "iter_size", "solver_mode"):
        param.ClearField(field)
    net_param = without_data(net_param, TRAINING[model])
    param.net_param.CopyFrom(slim(net_param) if narrow else net_param)
    solver = create_solver(param)
    for blob, (shape, kind) in TRAINING[model].items():
        solver.net.blob_list[solver.net.blob_names.index(blob)].data[...] = numbers(shape, kind)
    before = {layer.name: [blob.cpu_data.copy() for blob in layer.blobs] for layer in solver.net.layers}
    solver.step(1)
    losses = [blob.cpu_data for blob, weight in solver.net.loss_weights.items() if weight]
    assert losses and all(np.isfinite(loss).all() and loss > 0 for loss in losses)
    changed = {layer.name for layer in solver.net.layers if layer.blobs and layer.type != "BatchNorm"
               and not np.array_equal(layer.blobs[0].cpu_data, before[layer.name][0])}
    learning = {layer.name for layer in solver.net.layers if layer.blobs and layer.type not in ("BatchNorm", "Deconvolution")}
    if folder == "fcn":  # the scores begin at 0 and let no gradient through in the first step
        learning = {name for name in learning if name.startswith("score")}
    if folder == "mobilenet":  # the BatchNorm behind each depthwise convolution cancels the scale before it
        changed, learning = ({name for name in names if not name.endswith("sep/scale")} for names in (changed, learning))
    assert changed == learning
    if not narrow or folder == "fcn":  # names and shapes of the deploy net, where FCN's is slim, too; some layers are for training only
        ours = {layer.name: [blob.shape for blob in layer.blobs] for layer in solver.net.layers if layer.blobs}
        assert deployed(f"{folder}/deploy{suffix}").params.items() <= ours.items()
    if model == "googlenet/net":
        assert learned(solver.net) == DEPLOY["googlenet/deploy"][0] + AUXILIARY


def test_grouped_upsampling():
    """A constant picture stays constant away from the border, and each class goes to itself."""
    module = script(MODELS / "fcn" / "make.py")
    n = caffe.NetSpec()
    n.scores = caffe.layers.Input(shape=dict(dim=[1, module.CLASSES, 4, 5]))
    n.up = module.upsample(n.scores, 8, grouped=True)
    net = caffe.Net(n.to_proto(), caffe.TEST)
    given = np.arange(21, dtype=np.float32).reshape(1, 21, 1, 1)
    up = net.forward(scores=np.broadcast_to(given, (1, 21, 4, 5)))["up"]
    assert up.shape == (1, 21, 40, 48)
    np.testing.assert_allclose(up[:, :, 8:-8, 8:-8], np.broadcast_to(given, (1, 21, 24, 32)), rtol=1e-6)


def test_fcn_starts_from_vgg16():
    """The numbers of an inner product become those of a convolution; others do not fit."""
    start = script(MODELS / "fcn" / "start.py")
    n = caffe.NetSpec()
    n.data = caffe.layers.Input(shape=dict(dim=[1, 2, 3, 3]))
    n.fc6 = caffe.layers.Convolution(n.data, num_output=4, kernel_size=3)
    net = caffe.Net(n.to_proto(), caffe.TEST)
    weights, bias = np.random.default_rng(0).normal(size=(4, 18)).astype(np.float32), np.arange(4, dtype=np.float32)
    stored = LayerBlobs("fc6", "InnerProduct", [StoredBlob((4, 18), weights), StoredBlob((4,), bias)])
    start.transplant([LayerBlobs("fc8", "InnerProduct", []), stored], net)
    x = np.random.default_rng(1).normal(size=(1, 2, 3, 3)).astype(np.float32)
    np.testing.assert_allclose(net.forward(data=x)["fc6"].ravel(), weights @ x.ravel() + bias, rtol=1e-5)
    stored.blobs[0] = StoredBlob((4, 9), weights[:, :9])
    with pytest.raises(ShapeError, match="layer 'fc6': blobs.0.: holds 36 numbers, the net needs 72"):
        start.transplant([stored], net)


def own_solver(model, monkeypatch, steps=None, **sources):
    """Return a solver of the model's own file on its own data: at `sources` (phase: path), `steps` at a time, where given."""
    monkeypatch.chdir(MODELS.parent)
    param = solver_param(f"{model}/solver.prototxt")
    for layer in param.net_param.layer:
        if layer.type in ("Data", "HDF5Data") and sources:
            own = layer.data_param if layer.type == "Data" else layer.hdf5_data_param
            own.source = str(sources["train" if layer.include[0].phase == caffe.TRAIN else "test"])
            own.batch_size = steps or own.batch_size
    for i in range(len(param.test_iter)):
        param.test_iter[i] = 1
    return create_solver(param)


@pytest.mark.slow(1)
def test_siamese(tmp_path, monkeypatch):
    """The pairs hold what the pictures hold, and the loss falls."""
    pairs = script(MODELS / "siamese" / "make_pairs.py")
    source = MODELS / "data" / "fashion_mnist_test_lmdb"
    assert pairs.write_pairs(source, tmp_path / "pairs", 1, seed=5) == 1000
    with open_db(source, "LMDB") as db:
        classes = {}
        for _, value in db.records():
            classes.setdefault(picture_of(read_datum(value)).tobytes(), set()).add(read_datum(value).label)
    with open_db(tmp_path / "pairs", "LMDB") as db:
        same = 0
        for _, value in db.records():
            pair, label = picture_of(read_datum(value)), read_datum(value).label
            assert pair.shape == (2, 28, 28)
            assert label == bool(classes[pair[0].tobytes()] & classes[pair[1].tobytes()])
            same += label
        assert 60 < same < 150
    solver = own_solver("siamese", monkeypatch, train=tmp_path / "pairs", test=tmp_path / "pairs")
    solver.step(1)
    first = float(solver.net.blob_list[-1].cpu_data)
    solver.step(40)
    assert float(solver.net.blob_list[-1].cpu_data) < 0.7 * first
    for one, other in (("conv1", "conv1_p"), ("feat", "feat_p")):
        np.testing.assert_array_equal(solver.net.layer_dict[one].blobs[0].cpu_data, solver.net.layer_dict[other].blobs[0].cpu_data)


def test_autoencoder(monkeypatch):
    """Both test nets run, and the cross entropy falls."""
    solver = own_solver("autoencoder", monkeypatch)
    assert len(solver.test_nets) == 2
    index = solver.net.blob_names.index("cross_entropy_loss")
    solver.step(1)
    first = float(solver.net.blob_list[index].cpu_data)
    solver.step(15)
    assert float(solver.net.blob_list[index].cpu_data) < 0.9 * first


def test_streams_of_text(tmp_path):
    data = script(MODELS / "lstm_text" / "make_data.py")
    text = "".join(f"{i} and so on\n" for i in range(400)) + "\t\u00e9"
    numbers = data.encode(text)
    assert data.decode(numbers) == text[:-2] + "??" and numbers.max() < 96 == len(data.CHARACTERS)
    given, label, cont = data.streams(numbers, 4)
    assert given.shape == label.shape == cont.shape and given.shape[0] % 32 == 0 and given.shape[1] == 4
    np.testing.assert_array_equal(given[1:], label[:-1])  # within a stream the next character is the label
    np.testing.assert_array_equal(given[0, 1:], label[-1, :-1])  # and a stream begins where the one before ended
    assert cont[0].sum() == 0 and cont[1:].all()
    with pytest.raises(ValueError, match="too few for 4 streams of 32: at least 129"):
        data.streams(numbers[:100], 4)
    data.write(tmp_path, "train", numbers, 4)
    with h5py.File((tmp_path / "text_train.txt").read_text().strip()) as file:
        np.testing.assert_array_equal(file["label"], label)


def test_lstm(tmp_path, monkeypatch):
    """After some steps on a text of one repeated word the samples hold little but its letters."""
    data, sample = (script(MODELS / "lstm_text" / f"{name}.py") for name in ("make_data", "sample"))
    for split in ("train", "test"):
        data.write(tmp_path, split, data.encode("caffe " * 1000), 4)
    solver = own_solver("lstm_text", monkeypatch, steps=8, train=tmp_path / "text_train.txt", test=tmp_path / "text_test.txt")
    solver.step(60)
    weights = tmp_path / "text.caffemodel"
    solver.net.save(weights)
    written = sample.sample(caffe.Net(str(sample.DEPLOY), caffe.TEST, weights=str(weights)), "caffe ca", 60, 0.5, seed=1)
    assert len(written) == 60 and set(written) <= set("cafe ") and written.count("ffe ca") >= 5, written
