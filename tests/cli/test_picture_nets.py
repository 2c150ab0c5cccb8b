"""The preprocessing that the options of classify and detect select: sizes, crops, means, channels, and the line about it."""

from types import SimpleNamespace

import numpy as np
import pytest

from minicaffe.cli import picture_nets
from minicaffe.errors import DataError, FileError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

NET = """layer { name: "in" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 3 height: 8 width: 6 }
  transform_param { scale: %s } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
"""


@pytest.fixture
def lines(monkeypatch):
    """The notices."""
    found = []
    monkeypatch.setattr(picture_nets.options, "notify", found.append)
    return found


def a_net(channels=3, scores=4, side=8, last="Softmax"):
    return SimpleNamespace(nodes=[SimpleNamespace(type="Input"), SimpleNamespace(type=last)], inputs=["x"], outputs=["y"],
                           blobs={"y": SimpleNamespace(shape=(1, scores))},
                           transformer=SimpleNamespace(inputs={"x": (1, channels, *(side if isinstance(side, tuple) else (side, side)))}))


def a_training(rgb=False, size=(12, 14)):
    mean = np.arange(3 * 12 * 14, dtype=np.float64).reshape(3, 12, 14)
    return SimpleNamespace(file="train.prototxt", scale=0.5, is_rgb=lambda: rgb, size=lambda own, whole: whole or size,
                           mean=lambda channels: (mean, "mean of m"))


IMAGENET = list(picture_nets.IMAGENET_MEAN)
WHOLE = a_training().mean(3)[0]


@pytest.mark.parametrize("about, training, images_dim, size, ten_crops, mean, swap", [
    ({}, None, None, (8, 8), False, None, (2, 1, 0)),
    ({"channels": 1}, None, None, (8, 8), False, None, None),
    ({"scores": 1000}, None, None, (256, 256), True, IMAGENET, (2, 1, 0)),
    ({"scores": 1000, "side": 256}, None, None, (256, 256), True, IMAGENET, (2, 1, 0)),
    ({"scores": 1000, "side": 257}, None, None, (257, 257), True, IMAGENET, (2, 1, 0)),
    *(({"scores": scores}, None, None, (8, 8), False, None, (2, 1, 0)) for scores in (200, 999, 1001)),
    ({"scores": 1000, "channels": 1}, None, None, (8, 8), False, None, None),
    ({}, None, (20, 30), (20, 30), True, None, (2, 1, 0)),
    ({}, a_training(), None, (12, 14), False, WHOLE[:, 2:10, 3:11], (2, 1, 0)),
    ({}, a_training(True), None, (12, 14), False, WHOLE[:, 2:10, 3:11], None),
    ({}, a_training(size=(11, 14)), None, (11, 14), False, WHOLE, (2, 1, 0)),
    ({}, a_training(), (12, 14), (12, 14), True, WHOLE, (2, 1, 0)),
    ({}, a_training(), (20, 30), (20, 30), True, WHOLE, (2, 1, 0)),
    ({"side": (4, 10)}, a_training(), None, (12, 14), False, WHOLE[:, 4:8, 2:12], (2, 1, 0)),
    ({"side": (4, 10)}, None, None, (4, 10), False, None, (2, 1, 0)),
    ({"last": "DetectionOutput"}, a_training(), None, (12, 14), False, WHOLE[:, 2:10, 3:11], (2, 1, 0))])
def test_preprocessing(monkeypatch, lines, about, training, images_dim, size, ten_crops, mean, swap):
    found, net = [], a_net(**about)
    monkeypatch.setattr(picture_nets, "picture_transformer", lambda *given: found.append(given))
    given = {"mean": None, "scale": None, "raw_scale": 255.0, "channel_swap": None}
    picture_nets.set_preprocessing(net, training, "no training net", given, images_dim)
    [(_, its_mean, scale, raw_scale, its_swap)] = found
    assert (tuple(net.image_dims), net.ten_crops) == (size, ten_crops)
    assert (scale, raw_scale, its_swap) == (0.5 if training else None, 255, swap)
    np.testing.assert_array_equal(its_mean, mean)
    side = about.get("side", 8)
    height, width = side if isinstance(side, tuple) else (side, side)
    order = "1 channel" if "channels" in about else "3 channels (BGR)" if swap else "3 channels (RGB)"
    resized = "" if size == (height, width) else f", resized to {size[0]} x {size[1]}"
    [line] = lines
    assert line.startswith(f"pictures: {order}, {height} x {width}{resized}, {'no mean' if mean is None else 'minus '}")
    assert line.endswith("times 0.5; as in train.prototxt" if training else "no scale; no training net")


@pytest.mark.parametrize("error, imagenet, taken", [(FileError, True, True), (FileError, False, False), (DataError, True, False), (DataError, False, False)])
def test_unreadable_mean(lines, error, imagenet, taken):
    def mean(channels):
        raise error("cannot be read", file="m")

    training = SimpleNamespace(file="train.prototxt", mean=mean)
    if taken:
        values, text = picture_nets.find_mean(None, training, 3, imagenet)
        assert values.tolist() == IMAGENET and text == "the channel means of ImageNet" and lines == ["m: cannot be read"]
        return
    with pytest.raises(error, match="m: cannot be read; train.prototxt names it; give another by --mean, or --mean '' for none"):
        picture_nets.find_mean(None, training, 3, imagenet)


@pytest.mark.parametrize("phases, scale", [(("TRAIN", "TEST"), 0.25), (("TEST", "TRAIN"), 0.5), (("TRAIN", "TRAIN"), 0.5)])
def test_source_of_the_other_phase(phases, scale):
    net = "".join(NET.partition("layer { name: \"ip\"")[0].replace('"in"', f'"in{i}"').replace("%s }", f"{share} }} include {{ phase: {phase} }}")
                  for i, (phase, share) in enumerate(zip(phases, (0.5, 0.25))))
    param = parse_text(net, caffe_pb2.NetParameter)[0]
    if phases[0] == phases[1]:
        del param.layer[1:]
    source = picture_nets.PictureSource.of(param, "net.prototxt")
    assert (source.scale, source.uncropped_shape()) == (scale, (3, 8, 6))


def test_trained_net_with_boxes(monkeypatch, tmp_path):
    """A net with the loss and the output of boxes is opened without the loss."""
    (tmp_path / "net.prototxt").write_text(NET % 1 + """layer { name: "loss" type: "MultiBoxLoss" bottom: "ip" bottom: "label" top: "loss" }
        layer { name: "out" type: "DetectionOutput" bottom: "ip" top: "out" }""")
    monkeypatch.setattr(picture_nets.options, "net_options", lambda: {"skip_unknown_fields": False, "trusted": True})
    monkeypatch.setattr(picture_nets, "set_preprocessing", lambda *given: None)
    monkeypatch.setattr(picture_nets, "Classifier", lambda param, *given, **about: param)
    net, _ = picture_nets.open_net({"model": str(tmp_path / "net.prototxt"), "weights": "w", "like": None})
    assert [layer.type for layer in net.layer] == ["Input", "InnerProduct", "DetectionOutput"]
