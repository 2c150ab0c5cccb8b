"""YoloDetectionOutput and Yolov3DetectionOutput of forks, against plain loops."""

import math
import re

import numpy as np
import pytest
from gradient import forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text
from ssd_boxes import overlap

from minicaffe.blob import Dtype
from minicaffe.common import TEST
from minicaffe.errors import ConfigError, DataError, ShapeError

SEED = 5
RANDOM = np.random.default_rng(SEED)
SECOND, THIRD = "yolo_detection_output_param", "yolov3_detection_output_param"
V2 = "num_classes: 4 num_box: 2 biases: [1, 1.5, 2, 1]"
V3 = "num_classes: 3 biases: [10, 12, 20, 18, 30, 40, 60, 50] anchors_scale: [16, 8] num_box: 2 mask: [2, 3, 0, 1]"


@pytest.fixture(autouse=True)
def same_numbers():
    """Give each test the same random numbers, whichever tests run."""
    RANDOM.bit_generator.state = np.random.default_rng(SEED).bit_generator.state


def layer(fields, bottoms=1):
    kind, message = ("Yolov3DetectionOutput", THIRD) if "anchors_scale" in fields else ("YoloDetectionOutput", SECOND)
    return layer_text(kind, "l", " ".join(f"b{i}" for i in range(bottoms)), "y", f"{message} {{ {fields} }}")


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def box_of(x, y, w, h, column, row, width, height, anchor):
    x, y = (column + sigmoid(x)) / width, (row + sigmoid(y)) / height
    w, h = math.exp(w) * anchor[0], math.exp(h) * anchor[1]
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def suppressed(rows, images, threshold):
    kept = []
    for n in range(images):
        own = []
        for row in sorted((row for row in rows if row[0] == n), key=lambda row: -row[2]):
            if all(overlap(row[3:], other[3:]) < threshold for other in own):
                own.append(row)
        kept += own
    return np.array(kept) if kept else np.array([[n] + [-1] * 6 for n in range(images)])


def cells_of(maps, boxes, length):
    """Yield the map, the image, the place, the size, the number of the box, and the values of each box."""
    for t, x in enumerate(maps):
        for n, i, j, k in np.ndindex(len(x), *x.shape[2:], boxes):
            yield t, n, (j, i, x.shape[3], x.shape[2]), k, x[n, k * length:(k + 1) * length, i, j]


def second(maps, classes=4, boxes=2, biases=(1, 1.5, 2, 1), confidence=0.01, threshold=0.45):
    rows = []
    for _, n, place, k, v in cells_of(maps, boxes, 5 + classes):
        p = np.exp(v[5:]) / np.exp(v[5:]).sum()
        score, label = sigmoid(v[4]) * p.max(), int(p.argmax()) + 1
        if score >= confidence:
            rows.append([n, label, score, *box_of(*v[:4], *place, (biases[2 * k] / place[2], biases[2 * k + 1] / place[3]))])
    return suppressed(rows, len(maps[0]), threshold)


def third(maps, classes=3, boxes=2, biases=(10, 12, 20, 18, 30, 40, 60, 50), scales=(16, 8), mask=(2, 3, 0, 1), confidence=0.01,
          threshold=0.45, gaussian=False):
    rows, first = [], 9 if gaussian else 5
    for t, n, place, k, v in cells_of(maps, boxes, first + classes):
        there = sigmoid(v[first - 1]) * ((4 - sum(sigmoid(s) for s in v[1:8:2])) / 4 if gaussian else 1)
        m = mask[t * len(mask) // len(maps) + k]
        anchor = biases[2 * m] / (place[2] * scales[t]), biases[2 * m + 1] / (place[3] * scales[t])
        box = box_of(*(v[:8:2] if gaussian else v[:4]), *place, anchor)
        scores = [there * sigmoid(x) for x in v[first:]]
        rows += [[n, c + 1, score, *box] for c, score in enumerate(scores) if score > confidence]
    return suppressed(rows, len(maps[0]), threshold)


def check(text, maps, wanted, dtype):
    net = layer_net(layer(text, len(maps)), maps, dtype, TEST)
    assert net.blob_by_name("y").shape == (1, 1, 1, 7)
    run_forward(net)
    y = net.blob_by_name("y").data
    assert y.shape == (1, 1, len(wanted), 7) and len(wanted) > 3
    np.testing.assert_allclose(y[0, 0], wanted, rtol=2e-5, atol=2e-5)   # exp and products in float32


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("fields, options, shapes", [
    ("", {}, [(2, 18, 3, 3)]), ("confidence_threshold: 0.3 nms_threshold: 0.2 side: 5", {"confidence": 0.3, "threshold": 0.2}, [(3, 18, 3, 3)]),
    ('label_map_file: "names" coords: 4', {}, [(1, 18, 2, 3), (1, 18, 4, 5)]), ("nms_threshold: 2", {"threshold": 2}, [(2, 18, 1, 2)]),
    ("confidence_threshold: -1", {"confidence": -1}, [(1, 18, 2, 2)])])
def test_version_2_against_the_definition(fields, options, shapes, dtype):
    maps = [np.float32(RANDOM.standard_normal(shape)) for shape in shapes]
    check(f"{V2} {fields}", maps, second([x.astype(float) for x in maps], **options), dtype)


ONE_MAP = "num_classes: 3 num_box: 2 biases: [10, 12, 20, 18, 30, 40] anchors_scale: 8 mask_group_num: 1 mask: [1, 0, 2]"


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("text, options, sizes", [
    *((f"{V3} {fields}", options, ((2, 3), (4, 4))) for fields, options in (
        ("", {}), ("confidence_threshold: 0.5 nms_threshold: 0.2", {"confidence": 0.5, "threshold": 0.2}), ("gaussian_box: true", {"gaussian": True}),
        ("nms_threshold: 1.5", {"threshold": 1.5}), ("nms_threshold: 1", {"threshold": 1}),
        ("confidence_threshold: 0.3 gaussian_box: true", {"confidence": 0.3, "gaussian": True}))),
    (ONE_MAP, {"biases": (10, 12, 20, 18, 30, 40), "scales": (8,), "mask": (1, 0, 2)}, ((3, 3),))])
def test_version_3_against_the_definition(text, options, sizes, dtype):
    channels = 2 * ((9 if options.get("gaussian") else 5) + 3)
    maps = [np.float32(RANDOM.standard_normal((2, channels, *size))) for size in sizes]
    check(text, maps, third([x.astype(float) for x in maps], **options), dtype)


def one_box(images, *boxes, size=1):
    """A map of one class and one box for each cell: values by image, at (row, column)."""
    x = np.full((images, 6, size, size), -50.0)
    x[:, 2:4] = 0
    for image, row, column, values in boxes:
        x[image, :, row, column] = values
    return x


def rows_of(x, more=""):
    net = forward_net(layer(f"num_classes: 1 num_box: 1 biases: [1, 1] {more}"), [x], phase=TEST)
    return net.blob_by_name("y").data[0, 0]


def test_thresholds_and_equal_boxes():
    same = (0, 0, 0, 0, 3, 0)
    np.testing.assert_allclose(rows_of(one_box(2, (0, 0, 0, same), (1, 0, 0, same))),
                               [[n, 1, sigmoid(3), 0, 0, 1, 1] for n in (0, 1)])
    # Two boxes of side 2 cells whose centres are one cell apart: they share a third of the union.
    wide = math.log(2)
    x = one_box(1, (0, 0, 0, (0, 0, wide, wide, 2, 0)), (0, 0, 1, (0, 0, wide, wide, 3, 0)), size=2)
    assert len(rows_of(x, "nms_threshold: 0.34")) == 2 and len(rows_of(x, "nms_threshold: 0.33")) == 1
    x = one_box(1, (0, 0, 0, (0, 0, 0, 0, 2, 0)), (0, 0, 1, (0, 0, 0, 0, 3, 0)), size=2)
    assert [len(rows_of(x, f"nms_threshold: {least}")) for least in (1e-9, 0)] == [2, 1]
    x = np.zeros((1, 6, 2, 2))
    rows = rows_of(x, "confidence_threshold: 0.5")
    assert rows[:, 3:5].tolist() == [[0, 0], [0.5, 0], [0, 0.5], [0.5, 0.5]]
    text = "num_classes: 1 num_box: 1 biases: [1, 1] anchors_scale: 1 mask: 0 mask_group_num: 1 confidence_threshold: 0.25"
    net = forward_net(layer(text), [x])
    assert net.blob_by_name("y").data.tolist() == [[[[0, -1, -1, -1, -1, -1, -1]]]]     # must be above it


def test_special_batches_and_no_gradient():
    for value in 0.0, np.nan:
        x = np.full((3, 18, 2, 2), value)
        for text, maps in ((V2, [x]), (V3, [x[:, :16]] * 2)):
            net = forward_net(layer(f"{text} confidence_threshold: 0.9", len(maps)), maps)
            assert net.blob_by_name("y").data.tolist() == [[[[i, -1, -1, -1, -1, -1, -1] for i in range(3)]]]
    x = RANDOM.standard_normal((2, 18, 3, 2))
    net = layer_net(layer(V2), [np.zeros((1, 18, 2, 2))])
    for array, wanted in ((x, second([x])), (x[:0], np.empty((0, 7)))):
        forward_again(net, b0=array)
        np.testing.assert_allclose(net.blob_by_name("y").data[0, 0], wanted)
    with pytest.raises(ConfigError, match="YoloDetectionOutput has no gradient; it is for phase TEST"):
        run_backward(net, [0])
    for text, maps, bottom, (image, channel, row, column), value, words in (
            (V2, [np.zeros((2, 18, 2, 2))], 0, (1, 2, 1, 0), 2000, r": .* = \[0.25, 0.75, inf, "),
            (V3, [np.zeros((1, 16, 2, 2)) for _ in range(2)], 1, (0, 8, 0, 1), np.nan, "")):
        maps[bottom][image, channel, row, column] = value
        with pytest.raises(DataError, match=rf"bottom\[{bottom}\]: the box at row {row}, column {column} of image {image} is not finite{words}"):
            run_forward(layer_net(layer(text, len(maps)), maps))


ONE, TWO = [(1, 18, 2, 2)], [(1, 16, 2, 2)] * 2


@pytest.mark.parametrize("fields, shapes, message", [
    ("num_box: 2", ONE, f"{SECOND}.num_classes: must be given"), (V2.replace("4", "0"), ONE, f"{SECOND}.num_classes: must be at least 1, got 0"),
    (f"{V2} coords: 5", ONE, f"{SECOND}.coords: must be 4, got 5"),
    (V2.replace(", 1]", "]"), ONE, rf"{SECOND}.biases: give width and height for each of 2 boxes \(num_box\), got \["),
    (V2, [(1, 17, 2, 2)], r"bottom\[0\]: must have num_box x \(5 \+ num_classes\) = 2 x 9 = 18 channels, got \[1, 17"),
    (V2, [(1, 18, 2)], r"bottom\[0\]: must have 4 axes"), (V2, ONE * 3, r"bottom: YoloDetectionOutput takes at most 2, got 3"),
    (V2, [*ONE, (2, 18, 2, 2)], r"bottom\[1\]: has 2 images, bottom\[0\] has 1; they must be equal"),
    (V3, TWO[:1], f"{THIRD}.mask_group_num: must be the number of bottoms, 1, got 2"),
    (V3.replace("[16, 8]", "16"), TWO, rf"{THIRD}.anchors_scale: give one for each of 2 bottoms, got \[16\]"),
    *((V3.replace("[2, 3, 0, 1]", mask), TWO, f"{THIRD}.mask: give as many for each of 2 bottoms, at least num_box = 2.*, got {re.escape(mask)}")
      for mask in ("[1, 2]", "[2, 3, 0]", "[2, 3, 0, 1, 1]")),
    (V3.replace("50]", "50, 1]"), TWO, f"{THIRD}.biases: give width and height of each anchor up to 3, the last of mask"),
    (V3.replace("[2, 3", "[2, 4"), TWO, f"{THIRD}.biases: give width and height of each anchor up to 4, the last of mask"),
    (V3 + " gaussian_box: true", TWO, r"bottom\[0\]: must have num_box x \(9 \+ num_classes\) = 2 x 12 = 24 channels"),
    (V3 + " nms_thresh: 1", TWO, f"{THIRD}.nms_thresh: unknown field; did you mean 'nms_threshold'")])
def test_wrong_prototxt(fields, shapes, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"test.prototxt.*layer 'l' \(Yolo(v3)?DetectionOutput\): {message}"):
        layer_net(layer(fields, len(shapes)), [np.zeros(shape) for shape in shapes])
