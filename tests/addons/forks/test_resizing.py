"""Interp, Resize and Upsample of forks, against loops over pixels."""

import itertools
import math

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text, make_net

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError

RANDOM = np.random.default_rng(11)


def interp(fields, bottoms="x"):
    return layer_text("Interp", "l", bottoms, "y", f"interp_param {{ {fields} }}")


def resize(fields):
    return layer_text("Resize", "l", "x", "y", f"resize_param {{ {fields} }}")


def upsample(fields="", masked=False):
    return layer_text("Upsample", "l", "x mask" if masked else "x", "y", f"upsample_param {{ {fields} }}" if fields else "")


def interp_loops(x, beg, end, height, width):
    """Each pixel of the top from four of the bottom, as the formulas say it."""
    def places(size, count):
        """Of each pixel of an axis of the top the first of the bottom, the second one, and the share of that."""
        for k in range(count):
            place = np.float32(np.float32(size - 1) / np.float32(count - 1) * np.float32(k)) if count > 1 else np.float32(0)
            yield int(place), int(place) + int(int(place) < size - 1), float(place - int(place))

    window, y = x[:, :, -beg:, -beg:], np.zeros((*x.shape[:2], height, width))
    for h, (top, below, f) in enumerate(places(x.shape[2] + beg + end, height)):
        for w, (left, right, g) in enumerate(places(x.shape[3] + beg + end, width)):
            y[:, :, h, w] = ((1 - f) * ((1 - g) * window[:, :, top, left] + g * window[:, :, top, right])
                             + f * ((1 - g) * window[:, :, below, left] + g * window[:, :, below, right]))
    return y


def resize_loops(x, height, width):
    def weights(place):
        first = math.floor(place)
        return (first, 1 - (place - first)), (first + 1, place - first)

    num, channels, rows, columns = x.shape
    y = np.zeros((num, channels, height, width))
    for h, w in np.ndindex(height, width):
        for (row, row_weight), (column, column_weight) in itertools.product(weights(h * rows / height), weights(w * columns / width)):
            if row < rows and column < columns:
                y[:, :, h, w] += row_weight * column_weight * x[:, :, row, column]
    return y


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, fields, size", [
    ((2, 3, 5, 7), "height: 9 width: 13", (9, 13)), ((2, 3, 5, 7), "height: 3 width: 4", (3, 4)), ((1, 2, 5, 7), "height: 1 width: 1", (1, 1)),
    ((1, 2, 1, 1), "height: 3 width: 2", (3, 2)), ((2, 2, 4, 6), "height: 4 width: 6", (4, 6)), ((2, 2, 4, 6), "height: 4 width: 3", (4, 3)),
    ((2, 2, 4, 6), "height: 9 width: 6", (9, 6)), ((1, 2, 6, 11), "shrink_factor: 2", (3, 6)), ((1, 2, 6, 11), "shrink_factor: 20", (1, 1)),
    ((1, 2, 6, 5), "zoom_factor: 3", (16, 13)), ((1, 2, 6, 5), "zoom_factor: 1", (6, 5)), ((1, 2, 9, 7), "shrink_factor: 4 zoom_factor: 3", (7, 4)),
    ((1, 2, 3, 5), "full_zoom_factor: 2", (6, 10)), ((1, 1, 60, 2), "height: 473 width: 2", (473, 2)),
    ((1, 2, 7, 8), "height: 5 width: 9 pad_beg: -1 pad_end: -2", (5, 9)), ((1, 2, 7, 8), "height: 4 width: 5 pad_beg: 0 pad_end: -3", (4, 5)),
    ((1, 2, 7, 8), "zoom_factor: 2 pad_beg: -2 mode: LINEAR", (9, 11)), ((1, 2, 7, 8), "height: 7 width: 8 pad_beg: -1 pad_end: -2", (7, 8)),
    ((1, 2, 5, 5), "height: 5 width: 4 pad_end: -1", (5, 4)), ((1, 2, 6, 5), "zoom_factor: 2 pad_beg: -1 pad_end: -1", (7, 5))])
def test_interp(shape, fields, size, dtype):
    x = RANDOM.standard_normal(shape)
    net = forward_net(interp(fields), [x], dtype)
    beg, end = (int(fields.partition(name)[2].split()[0]) if name in fields else 0 for name in ("pad_beg:", "pad_end:"))
    wanted = interp_loops(x.astype(net.blob_by_name("x").data.dtype).astype(float), beg, end, *size)
    np.testing.assert_allclose(net.blob_by_name("y").data, wanted, rtol=0, atol=1e-6 if dtype == Dtype.FLOAT else 1e-13)


def test_other_sources_of_a_size(caplog):
    x, size = RANDOM.standard_normal((2, 3, 5, 7)), np.zeros((1, 9, 8, 4))
    net = check_gradient(interp("use_blob_size: true", "x size"), [x, size], check=[0])
    np.testing.assert_allclose(net.blob_by_name("y").data, interp_loops(x, 0, 0, 8, 4), atol=1e-13)
    assert not net.layers[-1].allow_force_backward(1)
    run_backward(net, [0, 1], [np.ones((2, 3, 8, 4))])
    assert (net.blob_by_name("size").diff == 0).all()
    net.blob_by_name("size").reshape(1, 1, 2, 3)
    run_forward(net)
    assert net.blob_by_name("y").shape == (2, 3, 2, 3)
    x, dy = RANDOM.standard_normal((2, 3, 8, 9)), RANDOM.standard_normal((2, 3, 15, 5))
    net = forward_net(interp("height: 15 width: 5"), [x], Dtype.FLOAT)
    run_backward(net, [0], [dy])
    np.testing.assert_allclose((net.blob_by_name("y").data * dy).sum(), (net.blob_by_name("x").diff * x).sum(), rtol=1e-4)
    for text, bottoms, size, message in (
            (interp("zoom_factor: 2 height: 60 width: 60"), 1, (5, 5), "height, width of interp_param is ignored, as zoom_factor is given"),
            (upsample("scale: 2 upsample_h: 5 upsample_w: 7", True), 2, (5, 7), "scale of upsample_param is ignored, as upsample_h is given")):
        net = layer_net(text, [np.zeros((1, 1, 3, 3))] * bottoms)
        assert net.blob_by_name("y").shape == (1, 1, *size) and message in caplog.text


@pytest.mark.parametrize("text", [resize("height: 5 width: 2"), *map(interp, (
    "height: 5 width: 9", "height: 2 width: 1", "shrink_factor: 2", "zoom_factor: 2", "height: 5 width: 3 pad_beg: -1 pad_end: -1",
    "height: 3 width: 4", "height: 3 width: 4 pad_beg: -1"))])
def test_gradient(text):
    check_gradient(text, [RANDOM.standard_normal((2, 2, 3, 4))])


@pytest.mark.parametrize("text, factor", [(interp("zoom_factor: 2"), None), (resize("height: 4 width: 4"), None),
                                          (upsample("scale: 3"), 3), (upsample(""), 1)])
def test_a_new_shape(text, factor, where):
    net = forward_net(text, [np.zeros((1, 2, 3, 4))])
    x = RANDOM.standard_normal((3, 1, 5, 2))
    forward_again(net, x=x)
    wanted = np.kron(x, np.ones((factor, factor))) if factor else \
        interp_loops(x, 0, 0, 9, 3) if "Interp" in text else resize_loops(x, 4, 4)
    np.testing.assert_allclose(net.blob_by_name("y").data, wanted, atol=1e-13)


PICTURE, BY_SIZE = (1, 2, 3, 4), interp("use_blob_size: true", "x size")


@pytest.mark.parametrize("text, shapes, message", [
    *((interp(fields), [PICTURE], f"interp_param{message}") for fields, message in (
        ("", ": gives no size: give height and width"), ("height: 3", ": gives no size"), ("height: 3 width: 0", ".width: must be at least 1, got 0"),
        ("zoom_factor: 0", ".zoom_factor: must be at least 1, got 0"), ("zoom_factor: 2000000000", r".zoom_factor: must be at most 2\^31 - 1"),
        ("height: 3 width: 3 pad_end: 1", ".pad_end: must be at most 0: a negative number cuts pixels off.*got 1"),
        ("height: 3 width: 3 mode: NEAREST", ".mode: must be LINEAR, got NEAREST"), ("high: 3 width: 3", ".high: unknown field"),
        ("height: 3 width: 3 use_blob_size: true", ".use_blob_size: must be true if there are two bottoms, else false; there are 1, got True"),
        ("height: 3.5 width: 3", ".height: must be an integer, got 3.5"),
        ("zoom_factor: 2 pad_beg: -2 pad_end: -1", r".pad_beg: pad_beg -2 and pad_end -1 leave no pixel of axis 2 of bottom\[0\], shape \[1, 2, 3, 4\]"))),
    (interp("zoom_factor: 2"), [(3, 4)], r"bottom\[0\]: must have 4 axes \(num, channels, height, width\)"),
    *((BY_SIZE, [(1, 1, 2, 2), shape], r"bottom\[1\]: must have 4 axes \(num, channels, height, width\), none of them empty")
      for shape in ((3, 4), (1, 1, 3), (1, 1, 0, 4), (1, 1, 3, 4, 1))),
    (resize("height: 3"), [PICTURE], "resize_param.width: must be given and at least 1, got 0"),
    (resize("is_pyramid_test: true out_height_scale: 0.1 out_width_scale: 1"), [PICTURE],
     "resize_param.out_height_scale: must make axis 2 of the top at least 1, it is 3 in the bottom, got 0.1"),
    (resize("is_pyramid_test: true out_height_scale: inf out_width_scale: 1"), [PICTURE], "resize_param.out_height_scale: must be .*at most"),
    (resize("height: 2 width: 2"), [(1, 1, 0, 4)], r"bottom\[0\]: must have 4 axes .*none of them empty"),
    (upsample("scale: 2 upsample_w: 4"), [PICTURE], "upsample_param.upsample_w: is of SegNet's Upsample"),
    (upsample("scale: 0"), [PICTURE], "upsample_param.scale: must be at least 1, got 0"),
    (upsample("scale: 2"), [(3,)], r"bottom\[0\]: must have at least 2 axes"),
    (upsample("scale: 1", True), [PICTURE] * 2, "upsample_param.scale: must be at least 2 for an Upsample with a mask, got 1"),
    (upsample("scale: 3 pad_out_h: true", True), [PICTURE] * 2, "upsample_param.pad_out_h: needs a scale of 2, which is 3"),
    (upsample("upsample_h: 3", True), [PICTURE] * 2, "upsample_param.upsample_h: give both of upsample_h and upsample_w, or none"),
    (upsample("scale_w: 3", True), [PICTURE] * 2, "upsample_param.scale_h: give both of scale_h and scale_w, or none"),
    (upsample("", True), [PICTURE, (1, 2, 3, 5)], r"bottom\[1\]: the mask must have the shape of bottom\[0\], \[1, 2, 3, 4\], got \[1, 2, 3, 5\]")])
def test_what_is_refused(text, shapes, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"test.prototxt.*layer 'l' \(\w+\): {message}"):
        layer_net(text, [np.zeros(shape) for shape in shapes])


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, fields, size", [
    ((2, 3, 5, 7), "height: 9 width: 13", (9, 13)), ((2, 3, 5, 7), "height: 2 width: 3", (2, 3)),
    ((1, 2, 5, 7), "height: 1 width: 1", (1, 1)), ((1, 1, 1, 1), "height: 3 width: 2", (3, 2)),
    ((1, 2, 5, 7), "height: 5 width: 7", (5, 7)),
    ((1, 2, 10, 7), "is_pyramid_test: true out_height_scale: 1.1 out_width_scale: 0.5", (11, 3)),
    ((1, 2, 10, 7), "is_pyramid_test: true out_height_scale: 0.1 out_width_scale: 0.2", (1, 1))])
def test_resize(shape, fields, size, dtype):
    x = RANDOM.standard_normal(shape)
    net = forward_net(resize(fields), [x], dtype)
    np.testing.assert_allclose(net.blob_by_name("y").data, resize_loops(x, *size), rtol=0,
                               atol=2e-6 if dtype == Dtype.FLOAT else 1e-13)


def test_nearest():
    for shape in (2, 3, 4, 5), (4, 5), (1, 1, 1):
        x = RANDOM.standard_normal(shape)
        net = check_gradient(upsample("scale: 2"), [x])
        np.testing.assert_array_equal(net.blob_by_name("y").data, np.kron(x, np.ones((2, 2))))


@pytest.mark.parametrize("fields, size", [
    ("", (6, 8)), ("scale: 2 pad_out_h: true", (5, 8)), ("pad_out_w: true", (6, 7)), ("scale: 3", (9, 12)),
    ("scale_h: 2 scale_w: 3 pad_out_h: true", (5, 12)), ("upsample_h: 11 upsample_w: 10", (11, 10))])
def test_by_mask(fields, size):
    x = RANDOM.standard_normal((2, 3, 3, 4))
    mask = np.stack([RANDOM.permutation(size[0] * size[1])[:12].reshape(3, 4) for _ in range(6)]).reshape(2, 3, 3, 4).astype(float)
    net = check_gradient(upsample(fields, True), [x, mask], check=[0])
    wanted = np.zeros((2, 3, *size))
    for n, c, h, w in np.ndindex(x.shape):
        place = int(mask[n, c, h, w])
        wanted[n, c, place // size[1], place % size[1]] = x[n, c, h, w]
    np.testing.assert_array_equal(net.blob_by_name("y").data, wanted)
    assert not net.layers[-1].allow_force_backward(1)


def test_masks_of_equal_and_wrong_places():
    x, mask = np.array([[[[1., 2, 3]]]]), np.array([[[[4., 4, 0]]]])
    net = forward_net(upsample("", True), [x, mask])
    assert net.blob_by_name("y").data.tolist() == [[[[3, 0, 0, 0, 2, 0], [0] * 6]]]
    run_backward(net, [0, 1], [np.arange(12.).reshape(1, 1, 2, 6)])
    assert net.blob_by_name("x").diff.tolist() == [[[[4, 4, 0]]]] and (net.blob_by_name("mask").diff == 0).all()
    for value in -1, 48, 0.5, np.nan, np.inf:
        mask = np.zeros((1, 2, 3, 4))
        mask[0, 1, 2, 0] = value
        with pytest.raises(DataError, match=rf"bottom\[1\]: the mask has {value:g} at \[0, 1, 2, 0\], which is not a pixel of a plane of the "
                                            "top, 6x8; it must be the second top"):
            run_forward(layer_net(upsample("", True), [np.zeros((1, 2, 3, 4)), mask]))


@pytest.mark.parametrize("height, fields", [(6, ""), (7, "pad_out_h: true")])
def test_the_inverse_of_a_max_pooling(height, fields):
    """Each window of the top has its largest value where it was; a new size goes through both layers."""
    net = make_net(layer_text("Input", "x", more=f"input_param {{ shape {{ dim: [2, 3, {height}, 8] }} }}")
                   + layer_text("Pooling", "p", "x", "p mask", "pooling_param { kernel_size: 2 stride: 2 }")
                   + layer_text("Upsample", "u", "p mask", "y", f"upsample_param {{ scale: 2 {fields} }}"))
    for more in (0, 4):
        x = RANDOM.standard_normal((2, 3, height + more, 8)).astype(np.float32)
        net.blob_by_name("x").reshape(*x.shape)
        net.blob_by_name("x").data[...] = x
        net.forward_from_to(0, 2)
        y = net.blob_by_name("y").data
        padded = np.pad(x, ((0, 0), (0, 0), (0, height % 2), (0, 0)), constant_values=-np.inf)
        windows = padded.reshape(2, 3, (height + more + 1) // 2, 2, 4, 2)
        wanted = np.where(windows == windows.max(axis=(3, 5), keepdims=True), windows, 0).reshape(padded.shape)
        np.testing.assert_array_equal(y, wanted[:, :, :height + more])
