"""Classifier and Detector against the same steps by hand."""

import itertools

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.errors import DataError, ShapeError

cv2 = pytest.importorskip("cv2")
NET = """layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
SETUP = dict(mean=np.array([104.0, 117, 123]), raw_scale=255, channel_swap=(2, 1, 0))


@pytest.fixture
def files(tmp_path):
    model, weights = str(tmp_path / "deploy.prototxt"), str(tmp_path / "w.caffemodel")
    (tmp_path / "deploy.prototxt").write_text(NET)
    caffe.Net(model, caffe.TEST).save(weights)
    pictures = np.random.default_rng(0).integers(0, 255, (3, 12, 16, 3)).astype(np.uint8)
    names = [str(tmp_path / f"{i}.png") for i in range(3)]
    for name, picture in zip(names, pictures):
        cv2.imwrite(name, picture)
    return model, weights, names


def test_classifier(files):
    model, weights, names = files
    net = caffe.Classifier(model, weights, image_dims=(10, 12), **SETUP)
    images = [caffe.io.load_image(name) for name in names]
    many, one = net.predict(images), net.predict(images, oversample=False)
    assert many.shape == one.shape == (3, 5)
    np.testing.assert_allclose(many.sum(axis=1), 1, rtol=1e-5)
    centre = caffe.io.resize_image(images[0], (10, 12))[1:9, 2:10]
    value = (centre.transpose(2, 0, 1)[::-1] * 255 - SETUP["mean"].reshape(3, 1, 1)).ravel()
    weight, bias = (blob.data for blob in net.params["ip"])
    score = np.exp(weight @ value + bias)
    np.testing.assert_allclose(one[0], score / score.sum(), rtol=1e-3)
    for image, scores in zip(images, many):
        crops = caffe.io.oversample([caffe.io.resize_image(image, (10, 12))], (8, 8))
        alone = caffe.Classifier(model, weights, **SETUP).predict(crops, oversample=False)
        np.testing.assert_allclose(scores, alone.mean(axis=0), rtol=1e-3)


def test_windows_of_a_detector(files):
    model, weights, names = files
    net = caffe.Detector(model, weights, **SETUP)
    found = net.detect_windows([(names[0], [(0, 0, 8, 8), (1, 2, 11, 15)]), (names[1], np.array([[2, 2, 9, 9]]))])
    assert [entry["filename"] for entry in found] == [names[0], names[0], names[1]] and found[1]["window"] == (1, 2, 11, 15)
    plain = caffe.Classifier(model, weights, **SETUP).predict([caffe.io.load_image(names[0])[:8, :8]], oversample=False)
    np.testing.assert_allclose(found[0]["prediction"], plain[0], rtol=1e-5)
    assert net.detect_windows([]) == []
    with pytest.raises(DataError, match="0.png.*holds no pixel"):
        net.detect_windows([(names[0], [(40, 0, 50, 5)])])
    # What of it lies in the picture is scored; a negative index would count from the other side
    model, weights, names = files
    net = caffe.Detector(model, weights, **SETUP)
    image = caffe.io.load_image(names[0])
    for window, part in [((-2, -3, 5, 6), image[:5, :6]), ((4, -1, 40, 7), image[4:, :7]), ((-9, 3, 90, 90), image[:, 3:])]:
        np.testing.assert_array_equal(net.crop(image, window), part)
    with pytest.raises(DataError, match=r"^window \(ymin, xmin, ymax, xmax\) = \(-5, -5, -1, 4\) holds no pixel of a picture of 12x16$"):
        net.crop(image, (-5, -5, -1, 4))


def test_context_of_a_picture(files):
    model, weights, names = files
    with pytest.raises(ShapeError, match="leave room"):
        caffe.Detector(model, weights, context_pad=4)
    image = caffe.io.load_image(names[0])
    net = caffe.Detector(model, weights, context_pad=2)
    crop = net.crop(image, (0, 0, 5, 5))
    assert crop.shape == (8, 8, 3) and not crop[:2].any() and not crop[:, :2].any() and crop[2:, 2:].all(axis=2).any()
    net.configure_crop(0)       # from now on without context
    np.testing.assert_array_equal(net.crop(image, (0, 0, 5, 5)), image[:5, :5])


@pytest.mark.parametrize("order", [None, *itertools.permutations(range(3))])
@pytest.mark.parametrize("mean", ["of channels", "of pixels"])
def test_values_outside_of_a_picture(files, tmp_path, order, mean):
    """In any order of the channels, also where the inverse order is another one, and in an input that is not square."""
    (tmp_path / "net.prototxt").write_text(NET.replace("dim: 8 dim: 8", "dim: 6 dim: 9"))
    caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST).save(str(tmp_path / "net.caffemodel"))
    mean = np.array([10.0, 100, 200]) if mean == "of channels" else np.random.default_rng(1).uniform(0, 255, (3, 6, 9))
    net = caffe.Detector(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel"), context_pad=1, mean=mean, raw_scale=255, input_scale=0.5, channel_swap=order)
    image = caffe.io.load_image(files[2][0])
    for window, corner in (((0, 0, 11, 15), (0, 0)), ((1, 1, 12, 16), (5, 8))):
        data = net.transformer.preprocess("data", net.crop(image, window))
        np.testing.assert_allclose(data[(slice(None), *corner)], 0, atol=1e-4)
        assert np.abs(data).max() > 1


def test_selective_search(files, monkeypatch):
    """The module of R-CNN takes a list of names and a command, and returns windows for each."""
    import pathlib
    import sys
    import types
    model, weights, names = files
    with pytest.raises(ImportError, match="selective_search_ijcv_with_python"):
        caffe.Detector(*files[:2]).detect_selective_search(files[2])
    asked, windows = [], [[(0, 0, 8, 8)], [], [(1, 2, 11, 15), (2, 2, 9, 9)]]

    def get_windows(names, cmd):
        asked.append((names, cmd))
        return windows

    monkeypatch.setitem(sys.modules, "selective_search_ijcv_with_python", types.SimpleNamespace(get_windows=get_windows))
    net = caffe.Detector(model, weights, **SETUP)
    found = net.detect_selective_search(map(pathlib.Path, names))
    assert asked == [(names, "selective_search_rcnn")]
    assert [(entry["filename"], entry["window"]) for entry in found] == [(names[0], windows[0][0]), (names[2], windows[2][0]), (names[2], windows[2][1])]
    for entry, same in zip(found, net.detect_windows([(names[0], windows[0]), (names[2], windows[2])]), strict=True):
        np.testing.assert_array_equal(entry["prediction"], same["prediction"])


def caffes_crop(im, window, crop_size, context_pad, mean):
    """Detector.crop of Caffe's detector.py, for an input of one height and width."""
    box = np.array(window, float)
    scale = crop_size / (crop_size - context_pad * 2)
    half_h, half_w = (box[2] - box[0] + 1) / 2, (box[3] - box[1] + 1) / 2
    center = box[0] + half_h, box[1] + half_w
    box = np.round(np.tile(center, 2) + scale * np.array((-half_h, -half_w, half_h, half_w)))
    scale_h, scale_w = crop_size / (box[2] - box[0] + 1), crop_size / (box[3] - box[1] + 1)
    pad_y, pad_x = round(max(0, -box[0]) * scale_h), round(max(0, -box[1]) * scale_w)
    im_h, im_w = im.shape[:2]
    box = np.clip(box, 0, [im_h, im_w, im_h, im_w]).astype(int)
    crop_h, crop_w = round((box[2] - box[0] + 1) * scale_h), round((box[3] - box[1] + 1) * scale_w)
    crop_h, crop_w = min(crop_h, crop_size - pad_y), min(crop_w, crop_size - pad_x)
    crop = np.ones((crop_size, crop_size, 3), np.float32) * mean
    crop[pad_y:pad_y + crop_h, pad_x:pad_x + crop_w] = caffe.io.resize_image(im[box[0]:box[2], box[1]:box[3]], (crop_h, crop_w))
    return crop


@pytest.mark.parametrize("size", [7, 8, 9])
@pytest.mark.parametrize("context_pad", [1, 2, 3])
def test_windows_at_edges_as_in_caffe(files, tmp_path, context_pad, size):
    """Where two roundings of an odd size add up, the part is a row or column less."""
    names = files[2]
    (tmp_path / "net.prototxt").write_text(NET.replace("dim: 8 dim: 8", f"dim: {size} dim: {size}"))
    caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST).save(str(tmp_path / "net.caffemodel"))
    net = caffe.Detector(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel"), context_pad=context_pad, **SETUP)
    image, random, outside = caffe.io.load_image(names[0]), np.random.default_rng(context_pad), set()
    for _ in range(150):
        top, left = int(random.integers(0, 11)), int(random.integers(0, 15))
        window = top, left, int(random.integers(top + 1, 13)), int(random.integers(left + 1, 17))
        crop = net.crop(image, window)
        np.testing.assert_allclose(crop, caffes_crop(image, window, size, context_pad, SETUP["mean"][::-1] / 255), rtol=1e-6)
        filled = np.isclose(crop, SETUP["mean"][::-1] / 255).all(2)
        outside |= {place for place, line in (("top", filled[0]), ("left", filled[:, 0]), ("bottom", filled[-1]), ("right", filled[:, -1])) if line.all()}
    assert outside == {"top", "left", "bottom", "right"}
