"""PriorBox."""

import math

import numpy as np
import pytest
from gradient import forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, ShapeError

MAP, PICTURE = np.zeros((2, 3, 3, 4)), np.zeros((2, 3, 60, 100))


def layer(param, bottoms=2):
    return layer_text("PriorBox", "l", " ".join(f"b{i}" for i in range(bottoms)), "y", f"prior_box_param {{ {param} }}")


def slow(rows, columns, height, width, min_size, max_size=(), ratios=(), flip=True, clip=False, variance=(0.1,), step=None,
         offset=0.5):
    """The definition, box by box."""
    step_h, step_w = step or (height / rows, width / columns)
    all_ratios = [1.0]
    for ratio in ratios:
        if not any(abs(ratio - other) < 1e-6 for other in all_ratios):
            all_ratios.append(ratio)
            if flip:
                all_ratios.append(1 / ratio)
    boxes = []
    for h, w in np.ndindex(rows, columns):
        for i, s in enumerate(map(int, min_size)):
            sides = [(s, s)]
            if max_size:
                sides.append((math.sqrt(s * int(max_size[i])),) * 2)
            sides += [(s * math.sqrt(r), s / math.sqrt(r)) for r in all_ratios[1:]]
            for bw, bh in sides:
                x, y = (w + offset) * step_w, (h + offset) * step_h
                boxes += [(x - bw / 2) / width, (y - bh / 2) / height, (x + bw / 2) / width, (y + bh / 2) / height]
    boxes = np.clip(boxes, 0, 1) if clip else np.array(boxes)
    return np.stack([boxes, np.resize(variance, len(boxes)) if len(variance) == 4 else np.full(len(boxes), variance[0])])[None]


CASES = [
    ("min_size: 30", {"min_size": [30]}),
    ("min_size: 30 max_size: 60 aspect_ratio: 2 aspect_ratio: 3", {"min_size": [30], "max_size": [60], "ratios": [2, 3]}),
    # Fractions are cut off; two sizes; a ratio of 1 and one named twice add nothing, the inverse of a ratio does.
    ("min_size: 30.6 min_size: 10 max_size: 60.9 max_size: 20 aspect_ratio: 1 aspect_ratio: 2 aspect_ratio: 2.0000001 "
     "aspect_ratio: 0.25 aspect_ratio: 4 flip: false", {"min_size": [30, 10], "max_size": [60, 20], "ratios": [2, 0.25, 4], "flip": False}),
    ("min_size: 30 aspect_ratio: 2 aspect_ratio: 0.5 clip: true", {"min_size": [30], "ratios": [2, 0.5], "clip": True}),
    ("min_size: 9 aspect_ratio: 3 aspect_ratio: 0.2", {"min_size": [9], "ratios": [3, 0.2]}),
    ("min_size: 30 clip: true variance: 0.1 variance: 0.2 variance: 0.3 variance: 0.4 offset: 0.25 step: 8",
     {"min_size": [30], "clip": True, "variance": [0.1, 0.2, 0.3, 0.4], "offset": 0.25, "step": (8, 8)}),
    ("min_size: 30 variance: 2 step_h: 7 step_w: 9", {"min_size": [30], "variance": [2], "step": (7, 9)}),
    ("min_size: 30 img_size: 50", {"min_size": [30], "height": 50, "width": 50}),
    ("min_size: 30 img_h: 50 img_w: 70", {"min_size": [30], "height": 50, "width": 70}),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("param, wanted", CASES)
def test_against_the_definition(param, wanted, dtype):
    net = layer_net(layer(param), [MAP, PICTURE], dtype)
    y = net.blob_by_name("y")
    wanted = slow(3, 4, **{"height": 60, "width": 100, **wanted})
    assert y.shape == wanted.shape == (1, 2, wanted.shape[2])
    run_forward(net)
    np.testing.assert_allclose(y.data, wanted, rtol=1e-6, atol=1e-6)


def test_sizes_gradient_and_bottoms():
    net = forward_net(layer("min_size: 4 img_size: 20", 1), [MAP])
    np.testing.assert_allclose(net.blob_by_name("y").data, slow(3, 4, 20, 20, [4]), rtol=1e-6)
    net = layer_net(layer("min_size: 4"), [MAP, PICTURE])
    forward_again(net, b0=np.zeros((1, 3, 2, 2)), b1=np.zeros((1, 3, 20, 30)))
    np.testing.assert_allclose(net.blob_by_name("y").data, slow(2, 2, 20, 30, [4]), rtol=1e-6)
    forward_again(net, b0=np.zeros((1, 3, 0, 2)))
    assert net.blob_by_name("y").shape == (1, 2, 0)
    net = forward_net(layer("min_size: 4"), [MAP, PICTURE])
    net.blob_by_name("b0").diff[...] = 3
    run_backward(net, [0])
    assert (net.blob_by_name("b0").diff == 0).all()
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs 4 axes"):
        layer_net(layer("min_size: 5"), [np.zeros((2, 3)), PICTURE])
    with pytest.raises(ConfigError, match="img_size: give img_size, or img_h and img_w, or the picture as second bottom"):
        layer_net(layer("min_size: 5", 1), [MAP])
    with pytest.raises(ShapeError, match=r"bottom\[1\]: the picture has no pixels"):
        layer_net(layer("min_size: 5"), [MAP, np.zeros((1, 3, 0, 4))])


POSITIVE = "must be finite and above 0, got"


@pytest.mark.parametrize("param, message", [
    ("", "min_size: give at least one"), ("min_size: 0", rf"min_size\[0\]: {POSITIVE} 0"), ("min_size: 5 min_size: -1", rf"min_size\[1\]: {POSITIVE} -1"),
    ("min_size: inf", rf"min_size\[0\]: {POSITIVE} inf"),
    ("min_size: 0.5", r"min_size\[0\]: must be at least 1, as it is truncated to whole pixels, got 0.5"),
    *((f"min_size: 5 {param}", message) for param, message in (
        ("variance: inf", rf"variance\[0\]: {POSITIVE} inf"), ("variance: 0", rf"variance\[0\]: {POSITIVE} 0"),
        ("variance: 1 variance: 1", "variance: give none, one for all, or four, got 2"),
        ("aspect_ratio: 2 aspect_ratio: inf", rf"aspect_ratio\[1\]: {POSITIVE} inf"), ("aspect_ratio: 0", rf"aspect_ratio\[0\]: {POSITIVE} 0"),
        ("max_size: inf", r"max_size\[0\]: must be finite and above min_size, 5, got inf"),
        ("max_size: 5", r"max_size\[0\]: must be finite and above min_size, 5, got 5"),
        ("min_size: 6 max_size: 9", "max_size: give none, or one for each of the 2 min_size, got 1"),
        ("step: inf", f"step: {POSITIVE} inf"), ("step: -2", f"step: {POSITIVE} -2"), ("step_h: 2 step_w: nan", f"step_w: {POSITIVE} nan"),
        ("step_w: 2", "step_h: must be given too, as step_w is given"), ("offset: nan", "offset: must be a number, got nan"),
        ("step: 2 step_w: 2 step_h: 2", "step_h: give step, or step_h and step_w, not both"), ("img_size: 0", f"img_size: {POSITIVE} 0"),
        ("img_size: 5 img_h: 5 img_w: 5", "img_h: give img_size, or img_h and img_w, not both"),
        ("img_h: 5", "img_w: must be given too, as img_h is given")))])
def test_wrong_prototxt(param, message):
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(PriorBox\): prior_box_param.{message}"):
        layer_net(layer(param), [MAP, PICTURE])


def clustered(param):
    return layer(param).replace("PriorBox", "PriorBoxClustered")


def test_clustered_boxes():
    net = forward_net(clustered("width: 9.5 width: 20 height: 12 height: 5.25 clip: true variance: [0.1, 0.1, 0.2, 0.2] step: 16"),
                      [MAP, PICTURE])
    boxes, variances = net.blob_by_name("y").data[0].reshape(2, -1, 4)
    wanted = [np.tile([16 * (w + 0.5), 16 * (h + 0.5)], 2) + np.array([-x, -y, x, y]) / 2
              for h in range(3) for w in range(4) for x, y in ((9.5, 12), (20, 5.25))]
    np.testing.assert_allclose(boxes, np.clip(np.array(wanted) / [100, 60, 100, 60], 0, 1), rtol=1e-12)
    np.testing.assert_allclose(variances, np.tile([0.1, 0.1, 0.2, 0.2], (24, 1)), rtol=1e-6)
    for param, message in (
            ("min_size: 30", "width: give at least one, and as many as width, got 0"),
            ("width: 3 width: 4 height: 2", "height: give at least one, and as many as width, got 1"),
            ("width: 3 height: -2", rf"height\[0\]: {POSITIVE} -2"), ("width: 'a' height: 2", rf"width\[0\]: {POSITIVE} 'a'"),
            ("width: 3 height: 2 yx_order: true", "yx_order: unknown field in PriorBoxParameter; the fork synopsys has it")):
        with pytest.raises(ConfigError, match=rf"layer 'l' \(PriorBoxClustered\): prior_box_param.{message}"):
            layer_net(clustered(param), [MAP, PICTURE])
