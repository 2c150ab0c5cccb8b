"""Resizing pictures and the boxes on them; tests/addons/ssd/test_annotated_data.py sees that both go together."""

import numpy as np
import pytest

from minicaffe.addons.ssd import resize
from minicaffe.addons.ssd.resize import (
    add_border,
    boxes_from_frame,
    boxes_to_frame,
    boxes_to_pixels,
    content_box,
    resize_picture,
    resized_shape,
)
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2

cv2 = pytest.importorskip("cv2")
Resize = caffe_pb2.ResizeParameter
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 3, 4, 6])
def test_surroundings_of_any_number_of_channels(channels):
    image = np.random.default_rng(1).integers(0, 256, (4, 5, channels), np.uint8)
    colour = np.arange(channels) * 10 + 5.4
    larger = add_border(image, 1, 2, 3, 4, colour)
    assert larger.shape == (7, 12, channels) and larger.dtype == np.uint8
    np.testing.assert_array_equal(larger[1:5, 3:8], image)
    np.testing.assert_array_equal(larger[0, 0], colour.round())
    np.testing.assert_array_equal(larger[-1, -1], colour.round())


@pytest.mark.parametrize("mode, size, wanted", [
    (Resize.WARP, (20, 40), (30, 30)), (Resize.FIT_SMALL_SIZE, (20, 40), (30, 60)), (Resize.FIT_SMALL_SIZE, (40, 20), (60, 30)),
    (Resize.FIT_LARGE_SIZE_AND_PAD, (20, 40), (15, 30)), (Resize.FIT_LARGE_SIZE_AND_PAD, (40, 20), (30, 15)),
    (Resize.FIT_LARGE_SIZE_AND_PAD, (1, 1000), (1, 30)), (Resize.FIT_SMALL_SIZE, (7, 7), (30, 30))])
def test_shapes(mode, size, wanted):
    assert resized_shape(Resize(resize_mode=mode, height=30, width=30), *size) == wanted


@pytest.mark.parametrize("pad, edge", [(Resize.CONSTANT, 9), (Resize.REPEAT_NEAREST, None), (Resize.MIRRORED, None)])
def test_padding(pad, edge):
    image = np.arange(2 * 8 * 3, dtype=np.uint8).reshape(2, 8, 3)
    param = Resize(resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD, height=6, width=8, pad_mode=pad, pad_value=[9])
    padded = resize_picture(param, image, RANDOM)
    np.testing.assert_array_equal(padded[2:4], image)
    if pad == Resize.CONSTANT:
        assert (padded[:2] == 9).all() and (padded[4:] == 9).all()
    else:  # the row beside the picture is its last one again, or the one before
        np.testing.assert_array_equal(padded[4], image[1] if pad == Resize.REPEAT_NEAREST else image[0])


def test_the_largest_picture(monkeypatch):
    monkeypatch.setattr(resize, "MOST_PIXELS", 30 * 60)
    param = Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=30, width=30)
    assert resize_picture(param, np.zeros((20, 40, 3), np.uint8), RANDOM).shape == (30, 60, 3)
    with pytest.raises(ShapeError, match="resize_param: a picture of 20 x 41 would become 30 x 61"):
        resize_picture(param, np.zeros((20, 41, 3), np.uint8), RANDOM)
    resize.check_resize(Resize(height=30, width=60), "resize_param")
    with pytest.raises(ConfigError, match="resize_param.height: 31 x 60 pixels are too many for one picture"):
        resize.check_resize(Resize(height=31, width=60), "resize_param")
    param = Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=1000, width=1000)
    with pytest.raises(ShapeError, match="resize_param: a picture of 1 x 10000 would become 1000 x 10000000"):
        resize_picture(param, np.zeros((1, 10000, 3), np.uint8), RANDOM)


def test_boxes_there_and_back():
    boxes, frame = RANDOM.uniform(0, 1, (5, 4)), np.array([0.1, 0.2, 0.7, 0.5])
    np.testing.assert_allclose(boxes_to_frame(frame, boxes_from_frame(frame, boxes)), boxes, rtol=1e-12)
    param = Resize(resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD, height=30, width=30)
    np.testing.assert_allclose(content_box(param, 10, 30), [0, 1 / 3, 1, 2 / 3])
    np.testing.assert_allclose(boxes_to_pixels(param, np.array([[0.5, 0.5, 0.75, 2 / 3]]), 10, 30), [[15, 5, 22.5, 10]])
    param = Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=30, width=30, height_scale=50, width_scale=60)
    np.testing.assert_allclose(boxes_to_pixels(param, np.array([[0.1, 0.1, 0.2, 3]]), 100, 200), [[6, 5, 12, 100]])
    np.testing.assert_allclose(boxes_to_pixels(Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=30, width=30), np.array([[0.1, 0.1, 0.2, 3]]), 100, 200),
                               [[20, 10, 40, 100]])
    param.resize_mode = Resize.WARP
    np.testing.assert_allclose(boxes_to_pixels(param, np.array([[0.1, 0.1, 0.2, 3]]), 100, 200), [[20, 10, 40, 100]])
    np.testing.assert_allclose(boxes_to_pixels(None, np.array([[-1, 0.5, 0.5, 2]]), 100, 200), [[0, 50, 100, 100]])
