"""``minicaffe classify`` gives a picture the scores that the net gives it in training's own tests, and says what it did."""

import re
import shutil

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.data.convert import compute_mean, convert_images
from minicaffe.data.db import open_db
from minicaffe.data.mean_file import write_mean

cv2 = pytest.importorskip("cv2")
COUNT, CLASSES = 3, 4
TRAINING = """layer { name: "in" type: "Data" top: "data" top: "label" transform_param { %s } data_param { source: "db" batch_size: 3 backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
DEPLOY = """layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: %d dim: %d dim: %d } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


@pytest.fixture
def pictures(tmp_path):
    """Three pictures, their list, and a function that makes the database, the training net and weights of it."""
    random = np.random.default_rng(0)
    for i in range(COUNT):
        cv2.imwrite(str(tmp_path / f"{i}.png"), random.integers(0, 255, (9, 14, 3)).astype(np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{i}.png {i}\n" for i in range(COUNT)))

    def make(transform, gray=False):
        convert_images(f"{tmp_path}/", tmp_path / "list.txt", tmp_path / "db", gray=gray, resize_width=8, resize_height=7)
        with open_db(tmp_path / "db", "lmdb") as db:
            write_mean(tmp_path / "mean.binaryproto", compute_mean(db))
        (tmp_path / "net.prototxt").write_text(TRAINING % transform)
        caffe.set_random_seed(3)
        net = caffe.Net("net.prototxt", caffe.TEST)
        net.save("w.caffemodel")
        net.forward()
        score = net.blobs["ip"].data - net.blobs["ip"].data.max(axis=1, keepdims=True)
        return np.exp(score) / np.exp(score).sum(axis=1, keepdims=True), net.blobs["data"].shape[1:]

    return make


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("transform", ["", "scale: 0.004", "scale: 0.01 crop_size: 5 mean_value: 90",
                                       'crop_size: 6 scale: 0.02 mean_file: "mean.binaryproto"', 'scale: 0.02 mean_file: "mean.binaryproto"'])
def test_scores(minicaffe, pictures, tmp_path, transform, gray):
    want, shape = pictures(transform, gray)
    weights = ("--ext=png", "--weights", "w.caffemodel")
    minicaffe("classify", ".", "--out", "own.npy", *weights, "--model", "net.prototxt")
    np.testing.assert_allclose(np.load("own.npy"), want, rtol=2e-4, atol=1e-6)
    assert f"{shape[1]} x {shape[2]}" in minicaffe.messages and "as in net.prototxt" in minicaffe.messages
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    minicaffe("classify", ".", "--out", "deploy.npy", *weights, "--model", "deploy.prototxt")
    np.testing.assert_allclose(np.load("deploy.npy"), want, rtol=2e-4, atol=1e-6)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "deploy.prototxt").rename("elsewhere/deploy.prototxt")
    minicaffe("classify", ".", "--out", "like.npy", *weights, "--model", "elsewhere/deploy.prototxt", "--like=net.prototxt")
    np.testing.assert_allclose(np.load("like.npy"), want, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("color, crop", [("true", ""), ("false", "crop_size: 5"), ("true", "crop_h: 4 crop_w: 6")])
def test_a_training_net_of_a_list(minicaffe, pictures, tmp_path, color, crop):
    """ImageData: new_height and new_width say the size, is_color the channels."""
    param = f'image_data_param {{ source: "list.txt" batch_size: 3 new_height: 6 new_width: 8 is_color: {color} }}'
    net = re.sub("data_param {.*?}", param, TRAINING.replace('"Data"', '"ImageData"')) % f"{crop} scale: 0.01"
    (tmp_path / "net.prototxt").write_text(net)
    made = caffe.Net("net.prototxt", caffe.TEST)
    made.save("w.caffemodel")
    made.forward()
    minicaffe("classify", ".", "--out", "out.npy", "--ext=png", "--model", "net.prototxt", "--weights", "w.caffemodel")
    np.testing.assert_allclose(np.load("out.npy").argmax(axis=1), made.blobs["ip"].data.argmax(axis=1))
    np.testing.assert_allclose(np.log(np.load("out.npy")).std(axis=1), made.blobs["ip"].data.std(axis=1), rtol=1e-3)
    for gone in ("new_height: 6", "new_width: 8") if not crop else ():
        (tmp_path / "net.prototxt").write_text(net.replace(gone, ""))
        assert "the input's size is open" in minicaffe("classify", "1.png", "--model", "net.prototxt", "--weights", "w.caffemodel", status=2)


def test_net_beside_the_model(minicaffe, pictures, tmp_path):
    _, shape = pictures("scale: 0.004 mirror: true")
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    common = ("classify", "1.png", "--model", "deploy.prototxt", "--weights", "w.caffemodel")
    (tmp_path / "another.prototxt").write_text((TRAINING % "scale: 0.5").replace('"ip"', '"other"'))  # has not the layers
    (tmp_path / "again.prototxt").write_text(TRAINING % "scale: 0.004")  # differs in what is for training only
    (tmp_path / "broken.prototxt").write_text('layer { name: "in" type: "Data"')
    (tmp_path / "old.prototxt").write_text("input: 'x' input_dim: [1, 1, 1, 1] layers { type: RELU bottom: 'x' top: 'y' }")
    minicaffe(*common)
    assert "times 0.004" in minicaffe.messages and "old.prototxt" not in minicaffe.log + minicaffe.messages
    (tmp_path / "again.prototxt").unlink()
    (tmp_path / "net.prototxt").write_text((TRAINING % "scale: 0.25").replace(' transform_param', ' include { phase: TRAIN } transform_param'))
    minicaffe(*common)
    assert "times 0.25; as in net.prototxt" in minicaffe.messages
    (tmp_path / "net.prototxt").write_text((TRAINING % "").replace('"db"', '"cifar10_train_lmdb/"'))
    minicaffe(*common)
    assert "3 channels (RGB)" in minicaffe.messages  # CIFAR-10's files have red first


def test_a_crop_without_the_database(minicaffe, pictures, tmp_path):
    want, shape = pictures('crop_size: 5 scale: 0.02 mean_file: "mean.binaryproto"')
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    shutil.rmtree("db")
    common = ("classify", ".", "--force", "--out=out.npy", "--ext=png", "--model", "deploy.prototxt", "--weights", "w.caffemodel")
    minicaffe(*common)
    np.testing.assert_allclose(np.load("out.npy"), want, rtol=2e-4, atol=1e-6)  # the mean file knows the size
    message = minicaffe(*common[:6], "net.prototxt", *common[7:], status=1)
    assert "no such database" in message and message.endswith("to go without them, give the deploy net\n")
    (tmp_path / "mean.binaryproto").write_bytes(b"\xff")
    error = minicaffe(*common, status=1)
    assert "mean.binaryproto: is cut off" in error and "net.prototxt names it; give another by --mean" in error
    (tmp_path / "mean.binaryproto").unlink()
    assert "net.prototxt names it; give another by --mean, or --mean '' for none" in minicaffe(*common, status=1)
    minicaffe(*common, "--mean=")
    assert "net.prototxt cuts 5 x 5 out of pictures whose size is not known here" in minicaffe.messages


def test_best_classes(minicaffe, pictures, tmp_path):
    scores = pictures("scale: 0.004")[0]
    common = ("classify", "1.png", "--model", "net.prototxt", "--weights", "w.caffemodel")
    best = np.argsort(-scores[1])
    lines = minicaffe(*common).splitlines()
    assert lines[0] == "1.png:" and lines[1:] == [f"{scores[1][k]:12.4f}  class {k}" for k in best]
    (tmp_path / "names").write_text("cat\ndog\nnewt\ngreat auk\n")
    names = ["cat", "dog", "newt", "great auk"]
    assert [line[14:] for line in minicaffe(*common, "--labels", "names").splitlines()[1:]] == [names[k] for k in best]
    (tmp_path / "names").rename("labels.txt")
    assert names[best[0]] in minicaffe(*common) and "names of the classes: labels.txt" in minicaffe.messages
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert "class 3" in minicaffe(*common) and "holds 2 names, the net gives 4 scores; not used" in minicaffe.messages
    (tmp_path / "db" / "labels.txt").write_text("\n".join(names))
    assert names[best[0]] in minicaffe(*common) and "db/labels.txt" in minicaffe.messages      # of the training database
    assert "holds 2 names" in minicaffe(*common, "--labels", "labels.txt", status=1)
    assert minicaffe(*common, "--quiet") and minicaffe.messages == ""


def test_guesses(minicaffe, pictures, tmp_path):
    _, shape = pictures("scale: 0.004")
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    common = ("classify", "1.png", "--model", "deploy.prototxt", "--weights", "w.caffemodel")
    for option, text in ((), "times 0.004; as in net.prototxt"), (("--scale=2",), "times 2; as in"), \
            (("--mean", "mean.binaryproto"), "minus mean of mean.binaryproto"), (("--channel_swap=",), "(RGB)"):
        minicaffe(*common, *option)
        assert text in minicaffe.messages
    (tmp_path / "other.prototxt").write_text(TRAINING % "scale: 0.1")
    error = minicaffe(*common, status=2)    # an answer without mean and scale would be wrong, however sure it is
    assert re.search("deploy.prototxt: (net.prototxt and other|other.prototxt and net).prototxt have its layers and make pictures "
                     "differently; name the training net by --like FILE, or give --mean .* and --scale", error), error
    for half in ("--mean=104,117,123", "--scale=0.1"):
        assert "make pictures differently" in minicaffe(*common, half, status=2)
    minicaffe(*common, "--mean=104,117,123", "--scale=0.1")
    assert "minus mean 104,117,123, times 0.1; " in minicaffe.messages
    minicaffe(*common, "--like=other.prototxt")
    assert "times 0.1; as in other.prototxt" in minicaffe.messages
    (tmp_path / "net.prototxt").unlink()
    (tmp_path / "other.prototxt").write_text("net: 'nowhere.prototxt' base_lr: 1")
    minicaffe(*common)
    assert "no mean, no scale; no training net is beside deploy.prototxt" in minicaffe.messages
    assert "is a solver" in minicaffe(*common, "--like", "other.prototxt", status=2)
    assert "has no layer that reads pictures" in minicaffe(*common, "--like", "deploy.prototxt", status=2)
    assert "give --weights FILE, the trained" in minicaffe(*common[:-2], status=2)


def test_defaults_of_imagenet(minicaffe, pictures, tmp_path):
    pictures("")
    (tmp_path / "net.prototxt").unlink()
    (tmp_path / "deploy.prototxt").write_text((DEPLOY % (3, 8, 8)).replace("num_output: 4", "num_output: 1000"))
    caffe.Net("deploy.prototxt", caffe.TEST).save("big.caffemodel")
    minicaffe("classify", "1.png", "--out", "out.npy", "--model", "deploy.prototxt", "--weights", "big.caffemodel")
    assert "resized to 256 x 256, minus the channel means of ImageNet" in minicaffe.messages
    net = caffe.Classifier("deploy.prototxt", "big.caffemodel", image_dims=(256, 256), raw_scale=255, channel_swap=(2, 1, 0),
                           mean=np.array([104.00698793, 116.66876762, 122.67891434]))
    np.testing.assert_allclose(np.load("out.npy"), net.predict([caffe.io.load_image("1.png")]), rtol=1e-5)
    (tmp_path / "net.prototxt").write_text((TRAINING % "crop_size: 8 mean_value: 9 scale: 0.5").replace('"db"', '"nowhere"'))
    minicaffe("classify", "1.png", "--model", "deploy.prototxt", "--weights", "big.caffemodel")
    assert "resized to 256 x 256, minus mean 9, times 0.5; as in net.prototxt" in minicaffe.messages


def test_scores_of_pixels(minicaffe, pictures, tmp_path):
    text = (DEPLOY % (3, 7, 8)).replace("InnerProduct", "Convolution").replace("inner_product_param {", "convolution_param { kernel_size: 1")
    (tmp_path / "deploy.prototxt").write_text(text)
    caffe.Net("deploy.prototxt", caffe.TEST).save("w.caffemodel")
    common = ("classify", "1.png", "2.png", "--model", "deploy.prototxt", "--weights", "w.caffemodel")
    assert minicaffe(*common) == "" and "each picture has 4 x 7 x 8 scores, so no best class is shown\n" in minicaffe.messages
    assert minicaffe(*common, "--out=o.npy").splitlines()[-1] == "Saving results into o.npy" and np.load("o.npy").shape == (2, 4, 7, 8)
    assert "must end in .npy, as each picture has 4 x 7 x 8 scores" in minicaffe(*common, "--out=x.csv", status=2)


def test_untrusted_net(minicaffe, pictures, tmp_path):
    pictures("")
    outside = tmp_path.parent / f"{tmp_path.name}_outside"
    outside.mkdir()
    (tmp_path / "mean.binaryproto").rename(outside / "mean.binaryproto")
    shape = (3, 7, 8)
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    (tmp_path / "net.prototxt").write_text(TRAINING % f'mean_file: "{outside}/mean.binaryproto"')
    common = ("classify", "1.png", "--model", "deploy.prototxt", "--weights", "w.caffemodel")
    minicaffe(*common)
    assert "outside the working directory" in minicaffe(*common, "--untrusted", status=2)
    (tmp_path / "net.prototxt").write_text((TRAINING % "").replace('"db"', f'"{outside}/db"'))
    (outside / "labels.txt").write_text("a\nb\nc\nd\n")
    minicaffe(*common)
    assert "names of the classes" in minicaffe.messages
    assert "outside the working directory" in minicaffe(*common, "--untrusted", status=2)


SOFTMAX = 'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }\n'
LOG = 'layer { name: "log" type: "Log" bottom: "prob" top: "log" }\n'


@pytest.mark.parametrize("end, count, words, ranked", [
    (SOFTMAX, 4, (), True), (SOFTMAX.replace("Softmax", "Sigmoid"), 4, (), True), (SOFTMAX + LOG, 4, (), True), ("", 4, ("--labels=names",), True),
    ("", 4, (), False), ("", 1, (), False), ("", 5, (), False), ("", 30, (), False)])
def test_numbers_ranked_or_not(minicaffe, pictures, tmp_path, end, count, words, ranked):
    shape = pictures("scale: 0.004")[1]
    (tmp_path / "names").write_text("left\ntop\nright\nbottom\n")
    (tmp_path / "deploy.prototxt").write_text((DEPLOY % shape).replace(SOFTMAX, end).replace("num_output: 4", f"num_output: {count}"))
    caffe.Net("deploy.prototxt", caffe.TEST).save("w.caffemodel")
    common = ("classify", "1.png", "--model=deploy.prototxt", "--weights=w.caffemodel", *words)
    lines = minicaffe(*common).splitlines()[1:]
    assert len(lines) == min(count, 5)
    if ranked:
        assert [float(line.split()[0]) for line in lines] == sorted((float(line.split()[0]) for line in lines), reverse=True)
    minicaffe(*common, "--out=r.csv")
    values = [f"ip[{i}]" for i in range(count)] if count > 1 else ["ip"]
    names = ["left", "top", "right", "bottom"] if words else [f"class{i}" for i in range(count)] if ranked else values
    assert (tmp_path / "r.csv").read_text().splitlines()[0] == ",".join(["filename", *names])
    if not ranked:
        assert [line.split()[1] for line in lines] == values[:5]


@pytest.mark.parametrize("words, message", [
    (("--model=d.prototxt",), "give --weights FILE, the trained parameters of d.prototxt"),
    (("--weights=w.caffemodel",), "give --model FILE, the deploy or training net of w.caffemodel")])
@pytest.mark.parametrize("command", ["classify", "detect"])
def test_missing_model_or_weights(minicaffe, pictures, command, words, message):
    error = minicaffe(command, "1.png", *words, status=2)
    assert message in error and "CaffeNet" not in error


def test_center_only_without_crops(minicaffe, pictures):
    """The option selects one of the ten crops of --images-dim; without these a line says that it has no effect."""
    pictures("scale: 0.004")
    command = ("classify", "0.png", "--model", "net.prototxt", "--weights", "w.caffemodel", "--center-only")
    plain = minicaffe(*command)
    assert "--center-only: without --images-dim this net gets one crop of each picture anyway" in minicaffe.messages
    assert minicaffe(*command[:-1]) == plain and "center-only" not in minicaffe.messages
    minicaffe(*command, "--images-dim=8,8")
    assert "center-only" not in minicaffe.messages
