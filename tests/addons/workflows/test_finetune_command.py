"""minicaffe finetune: the nets that it makes, its choices, and what it refuses."""

import contextlib
import random
import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers import layer_text
from tiny import Process

from minicaffe.addons.workflows import finetune
from minicaffe.data.class_folders import convert_folders
from minicaffe.data.db import new_database
from minicaffe.errors import ConfigError
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

cv2 = pytest.importorskip("cv2")
CONV = """layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
"""
SCORES = 'layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }\n'
DEPLOY = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }\n' + CONV + SCORES + (
    'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }')
TRAIN = """layer { name: "in" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 3 height: 10 width: 10 }
  transform_param { crop_size: 8 mean_value: 100 mean_value: 110 mean_value: 120 scale: 0.01 } }
""" + CONV + """layer { name: "aux" type: "InnerProduct" bottom: "conv" top: "aux" inner_product_param { num_output: 7 } }
layer { name: "auxloss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "auxloss" loss_weight: 0.3 }
""" + SCORES + """layer { name: "acc" type: "Accuracy" bottom: "fc" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
BATCH_NORM = layer_text("BatchNorm", "bn", "conv", "conv") + layer_text("Scale", "scale", "conv", "conv", "scale_param { bias_term: true }")
WORDS = "finetune", "deploy.prototxt", "w.caffemodel", "db", "-o", "o"


def save(deploy):
    """Write the deploy net and weights of it."""
    Path("deploy.prototxt").write_text(deploy)
    Net(read_net("deploy.prototxt", caffe_pb2.TEST)[0]).save("w.caffemodel")


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder with pictures of three classes, dark, grey and bright, their databases, and weights of the net."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name, light in (("bright", 220), ("dark", 30), ("grey", 120)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(10):
            cv2.imwrite(f"pictures/{name}/{i}.png", random.normal(light, 9, (10, 10, 3)).clip(0, 255).astype(np.uint8))
    convert_folders("pictures", "db")
    (tmp_path / "net.prototxt").write_text(TRAIN)
    save(DEPLOY)
    return tmp_path


def parameters(net, weights):
    """Return the parameters of a deploy net by layer, with `weights`, none of which may be unused."""
    made = Net(read_net(net, caffe_pb2.TEST)[0])
    made.copy_from(weights)
    return {node.name: [blob.data.copy() for blob in node.blobs] for node in made.nodes if node.blobs}


def layers(net, phase=caffe_pb2.TRAIN):
    """Return the LayerParameters of a prototxt by name."""
    param = read_net(net, phase)[0]
    return {layer.name: layer for layer in param.layer if not layer.include or layer.include[0].phase == phase}


@pytest.mark.parametrize("net", ["net.prototxt", "deploy.prototxt"])
def test_training_and_deploy_nets(minicaffe, there, net):
    printed = minicaffe("finetune", net, "w.caffemodel", "db", "-o", "o", "--seed", 1, "--max-iter", 40, "--base-lr", 0.05)
    assert printed.startswith("wrote o.prototxt and o_deploy.prototxt: layer 'fc_o' with 3 outputs in place of 'fc' with 7; "
                              "lr_mult of 1 other layers times 0.1\n")
    assert "classify pictures with: minicaffe classify PICTURE --model o_deploy.prototxt --weights o_best.caffemodel" in printed
    assert "24 pictures for training, 6 for tests; a record is 3 x 8 x 8, minus mean 100, 110, 120, times 0.01" in minicaffe.messages
    assert "best test accuracy = 1" in printed and "at iteration 40" in printed
    made = layers("o.prototxt")
    assert [layer.type for layer in made.values()] == ["Data", "Convolution", "ReLU", "InnerProduct", "SoftmaxWithLoss"]    # no aux
    transform = next(iter(made.values())).transform_param
    assert (transform.crop_size, transform.mirror, list(transform.mean_value)) == (8, True, [100, 110, 120])
    test = next(iter(layers("o.prototxt", caffe_pb2.TEST).values()))
    assert not test.transform_param.mirror and test.data_param.source == "db/test_lmdb" and test.data_param.batch_size == 6
    assert [spec.lr_mult for spec in made["conv"].param] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert [(spec.lr_mult, spec.decay_mult) for spec in made["fc_o"].param] == [(1, 1), (2, 0)]
    before, after = parameters("deploy.prototxt", "w.caffemodel"), parameters("o_deploy.prototxt", "o_best.caffemodel")
    change = np.abs(after["conv"][0] - before["conv"][0]).max()
    assert 0 < change < 0.1 and after["fc_o"][0].shape == (3, 144)
    out = minicaffe("classify", "pictures/dark/1.png", "--model", "o_deploy.prototxt", "--weights", "o_best.caffemodel")
    assert out.splitlines()[1].split()[1] == "dark" and "as in o.prototxt" in minicaffe.messages


def test_frozen_layers_get_no_gradients(minicaffe, there):
    save(DEPLOY.replace('layer { name: "relu"', BATCH_NORM + 'layer { name: "relu"'))
    out = minicaffe(*WORDS, "--lr-mult-others", 0, "--max-iter", 4, "--no-mirror", "--mean=", "--scale=0.01")
    assert "; 3 other layers frozen\n" in out
    before, after = parameters("deploy.prototxt", "w.caffemodel"), parameters("o_deploy.prototxt", "o_best.caffemodel")
    assert list(after) == ["conv", "bn", "scale", "fc_o"]
    for name in ("conv", "bn", "scale"):
        assert all(np.array_equal(a, b) for a, b in zip(before[name], after[name], strict=True)), name
    made = layers("o.prototxt")
    assert made["bn"].batch_norm_param.use_global_stats and not made["data"].transform_param.mirror and not made["data"].transform_param.mean_value
    assert [node.name for node in Net(read_net("o.prototxt", caffe_pb2.TRAIN)[0]).nodes if node.needs_backward] == ["fc_o", "loss"]


def test_frozen_layer_of_repeated_name(there):
    param = read_net("deploy.prototxt", caffe_pb2.TEST)[0]
    param.layer[2].name = "conv"    # the ReLU
    Net(param).save("w.caffemodel")
    assert finetune.scale_learning_rates(param, param.layer[3], "w.caffemodel", 0, file="deploy.prototxt") == 1
    assert [spec.lr_mult for layer in param.layer for spec in layer.param] == [0, 0]


def test_a_convolution_with_layers_behind_it(minicaffe, there):
    """As in SqueezeNet: the scores are those of a convolution, rectified and averaged. Its shared parameters are its own then."""
    scores = (layer_text("Convolution", "c2", "conv", more='param { name: "w" } convolution_param { num_output: 5 kernel_size: 1 }')
              + layer_text("ReLU", "r2", "c2", "c2") + layer_text("Pooling", "pool", "c2", more="pooling_param { pool: AVE global_pooling: true }"))
    save(DEPLOY.replace(SCORES, scores).replace('bottom: "fc"', 'bottom: "pool"'))
    minicaffe("finetune", "deploy.prototxt", "w.caffemodel", "db", "--max-iter", 2, "--classes", 4)
    made = layers("db.prototxt")
    assert list(made) == ["data", "conv", "relu", "c2_db", "r2", "pool", "loss"]
    assert made["c2_db"].convolution_param.num_output == 4 and not made["c2_db"].param[0].name
    assert made["c2_db"].convolution_param.weight_filler.type == "gaussian"


def test_options_of_train_and_nothing_overwritten(minicaffe, there):
    minicaffe(*WORDS, "--max-iter", 20, "--patience=1", "--base-lr=0", "-lr_policy", "fixed")
    shown = minicaffe.log + minicaffe.messages
    assert 'lr_policy: "fixed"' in shown and "test_interval: 1\n" in shown and "power: 1" not in shown
    assert "the patience is 1" in (there / "o.log").read_text()
    kept = {path: path.read_bytes() for path in there.glob("o*")}
    assert "o.prototxt: exists already; --force replaces it" in minicaffe(*WORDS, status=1)
    assert kept == {path: path.read_bytes() for path in there.glob("o*")}
    minicaffe(*WORDS, "--max-iter", 1, "--force")
    assert (there / "o.prototxt").read_bytes() == kept[there / "o.prototxt"]
    assert "deploy.prototxt: --out: is read, and would be written; give another NAME" in minicaffe(*WORDS[:-1], "deploy", "--force", status=2)


def test_the_net_of_the_first_training(minicaffe, there):
    """--like names it; --mean and --scale count more. Without any of them a line says so."""
    data = 'layer { name: "d" type: "Data" top: "data" top: "label" transform_param { mean_value: 7 scale: 0.5 } data_param { source: "cifar10_train_lmdb" batch_size: 1 } }\n'
    (there / "like.prototxt").write_text(data + CONV + SCORES)

    def messages(*more):
        minicaffe(*WORDS, "--max-iter", 1, "--force", *more)
        return minicaffe.messages

    said = messages("--like", "like.prototxt")
    assert "a record is 3 x 8 x 8, minus mean 7, times 0.5\n" in said
    assert "like.prototxt has channels in the order RGB, and the pictures of the database are BGR" in said
    assert "minus mean 1,2,3, times 2\n" in messages("--like", "like.prototxt", "--mean", "1,2,3", "--scale", 2)
    assert list(next(iter(layers("o.prototxt").values())).transform_param.mean_value) == [1, 2, 3]
    for file in [there / "like.prototxt", there / "net.prototxt", *there.glob("o*")]:
        file.unlink()
    said = messages()
    assert "no training net is beside deploy.prototxt: name it by --like FILE" in said and "a record is 3 x 8 x 8\n" in said
    for half in ("--mean=1", "--scale=2"):
        assert "no training net is beside deploy.prototxt" in messages(half)
    said = messages("--mean=1", "--scale=2")      # nothing is open
    assert "no training net" not in said and "a record is 3 x 8 x 8, minus mean 1, times 2\n" in said


def test_an_interrupted_one_continues_by_train(minicaffe, there):
    process = Process(*WORDS, "--max-iter=1000000", "--seed=1", "--batch-size=8", cwd=there)
    process.read_until("Iteration 0, lr")
    process.signal(signal.SIGINT)
    status, out = process.finish()
    resume = next(line for line in out.splitlines() if " --snapshot=" in line)
    assert status == 0 and "minicaffe train o.prototxt --weights" not in resume and "--batch-size" not in resume, out
    iteration = int(re.search(r"iter_(\d+)", resume)[1])
    printed = minicaffe(*shlex.split(resume[resume.index("minicaffe train o.prototxt"):])[1:], f"--max-iter={iteration + 3}")
    assert f"Finished at iteration {iteration + 3}" in printed and "o_best.caffemodel" in printed


def write(*changes):
    """Return a function that writes the deploy net with changes, or another text."""
    return lambda: Path("deploy.prototxt").write_text(DEPLOY.replace(*changes) if len(changes) == 2 else changes[0])


def write_tests(*labels):
    with new_database(Path("db/test_lmdb"), "LMDB", force=True) as db:
        for i, label in enumerate(labels):
            db.put(b"%d" % i, caffe_pb2.Datum(channels=3, height=10, width=10, label=label, data=bytes(300)).SerializeToString())


INPUT = DEPLOY.partition("\n")[0] + "\n"


@pytest.mark.parametrize("prepare, words, status, wrong", [
    (None, ["--classes", 2], 2, "--classes: must be at least 3, the number of classes in db, got 2"),
    (None, ["--lr-mult-others", -1], 2, "Invalid value for '--lr-mult-others'"), (None, ["--gpu", "0,1"], 2, "--gpu: finetune computes on one GPU"),
    (lambda: Path("db/labels.txt").write_text("a\nb\n"), [], 1, "db/labels.txt: holds 2 names, and the databases beside it have labels from 0 to 2"),
    (lambda: write_tests(-1, 2), [], 1, "db: its databases have labels from -1 to 2, but classes are counted from 0; make them again"),
    (write_tests, [], 1, "db/test_lmdb: holds no records; make the database again"),
    (write("dim: 8 dim: 8", "dim: 16 dim: 16"), [], 2, "the net takes 16 x 16, and the pictures are 10 x 10; make the database with --resize-width 18 --resize-height 18"),
    (write("dim: 8 dim: 8", "dim: 8 dim: 6"), [], 2, "with --resize-width 6 --resize-height 8, as only squares are cut out"),
    (write("dim: 3", "dim: 1"), [], 2, "the net takes 1 channels, and the pictures have 3; make the database with --gray"),
    (write("num_output: 4", "num_output: 5"), [], 2, "blobs[0]"),
    (write('"conv" type: "Conv', '"c" type: "Conv'), [], 2, "the file has conv, fc, the net has c (near fc)"),
    (write(INPUT + layer_text("ReLU", "p", "data")), [], 2, "no InnerProduct or Convolution alone makes the scores 'p', so no layer can be replaced"),
    (write(CONV + SCORES), [], 2, "has no data layer and no Input"),
    (write('layer { name: "d" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "s" batch_size: 1 } }' + CONV + SCORES), [], 2,
     "layer 'd' (HDF5Data): 'HDF5Data' reads no pictures")])
def test_wrong_words_and_files_write_nothing(minicaffe, there, prepare, words, status, wrong):
    if prepare is not None:
        prepare()
    assert wrong in minicaffe(*WORDS, *words, status=status)
    assert not list(there.glob("o*"))


def test_what_is_no_folder_of_databases(minicaffe, there):
    """Where names of classes are missing, the largest label counts."""
    assert "db/train_lmdb: must be a folder with train_lmdb and test_lmdb; make it with: minicaffe data images --from-folders" in minicaffe(
        *WORDS[:3], "db/train_lmdb", status=1)
    (there / "db" / "labels.txt").unlink()
    made = finetune.Pictures("db", 4)
    assert made.classes == range(3) and made.shape == (3, 10, 10)
    (there / "db" / "test_lmdb").rename(there / "db" / "other")
    assert "db: has no test_lmdb, as with --test-share 0; make it with --test-share 0.2 or --test-from: minicaffe data images --from-folders" in minicaffe(
        *WORDS, status=1)


def test_default_solver_arguments():
    """40 epochs within 300 and 3000 iterations, with some 20 tests, the last of which ends it; what is given stays."""
    dice = random.Random(1)
    for _ in range(400):
        records, batch = dice.randint(1, 5000), dice.randint(1, 64)
        passed = {f"field_{name}": None for name in ("max_iter", "test_interval", "display", "lr_policy", "stepvalue")} | {"seed": 1, "field_stepvalue": ()}
        given = {name: value for name, value in (("max_iter", dice.randint(1, 900)), ("test_interval", 0), ("display", 7), ("lr_policy", "step"))
                 if dice.random() < 0.3}
        passed |= {f"field_{name}": value for name, value in given.items()}
        words = dict(word.removeprefix("--").split("=") for word in finetune.default_solver_arguments(records, batch, passed))
        wanted = given.get("max_iter") or min(3000, max(300, 40 * records // batch))
        interval = max(1, wanted // 20)
        expected = {"max-iter": wanted - wanted % interval, "test-interval": interval, "display": interval}
        expected |= {} if "lr_policy" in given else {"lr-policy": "poly", "power": 1}
        assert words == {name: str(value) for name, value in expected.items() if name.replace("-", "_") not in given}, (records, batch, given)


@pytest.mark.parametrize(("text", "wanted"), [
    ("num_output: 7", [(1, 1), (2, 0)]), ("num_output: 7 bias_term: false", [(1, 1)]),
    ("num_output: 7 } param { lr_mult: 0 } param { name: 'w' lr_mult: 5 decay_mult: 3", [(1, 1), (5, 0)]),
    ("num_output: 7 } param { lr_mult: 3", [(3, 1)])])
@pytest.mark.parametrize("suffix", ["db", "taken"])
def test_replaced_layer(text, wanted, suffix):
    """It learns even where the old one did not, shares nothing, and has a name of its own."""
    net = parse_text(f'layer {{ name: "fc_taken" }} layer {{ name: "fc_taken_" }} layer {{ name: "fc" type: "InnerProduct" inner_product_param {{ {text} }} }}',
                     caffe_pb2.NetParameter)[0]
    assert finetune.replace_last_layer(net, net.layer[2], 3, suffix) == ("fc", 7)
    head = net.layer[2]
    assert head.name == {"db": "fc_db", "taken": "fc_taken__"}[suffix] and head.inner_product_param.num_output == 3
    assert [(spec.lr_mult, spec.decay_mult, spec.name) for spec in head.param] == [(*rates, "") for rates in wanted]
    assert (head.inner_product_param.weight_filler.type, head.inner_product_param.weight_filler.std) == ("gaussian", pytest.approx(0.01))
    net = parse_text('layer { name: "in" top: "x" } layer { name: "c" type: "Convolution" bottom: "x" top: "prob" }', caffe_pb2.NetParameter)[0]
    assert [(layer.name, list(layer.bottom), list(layer.top)) for layer in finetune.with_softmax(net).layer][2:] == [("prob_", ["prob"], ["prob_"])]
    assert len(net.layer) == 2


@pytest.mark.parametrize("layers, wanted", [
    ("InnerProduct x>a, InnerProduct a>b, ReLU b>c", "b"), ("InnerProduct x>a, InnerProduct a>b, ReLU a>c", "a"),
    ("InnerProduct x>a, ReLU x>side, InnerProduct side>other, ReLU a>c", "a"), ("InnerProduct x>a, ReLU a>a, Dropout a>a", "a"), ("ReLU x>a", "wrong")])
def test_last_layer(layers, wanted):
    """Layers between it and the scores have one bottom; layers that make other blobs do not count."""
    net = caffe_pb2.NetParameter()
    for i, (kind, bottom, top) in enumerate(re.findall(r"(\w+) (\w+)>(\w+)", layers)):
        net.layer.add(name=f"l{i}", type=kind, bottom=[bottom], top=[top])
    refused = pytest.raises(ConfigError, match="no InnerProduct or Convolution alone makes the scores")
    with refused if wanted == "wrong" else contextlib.nullcontext():
        assert finetune.last_layer(net, "f").top[0] == wanted
