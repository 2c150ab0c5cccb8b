"""ROIPooling, PSROIPooling, ROIAlign, Proposal, DecodeBBox and BoxOutput of forks, against plain loops."""

import math
import re

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN
from minicaffe.errors import ConfigError, DataError, ShapeError

SEED = 3
RANDOM = np.random.default_rng(SEED)
POOL = "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 }"
ROI_KINDS = {"ROIPooling": POOL, "ROIAlign": POOL, "PSROIPooling": "psroi_pooling_param { spatial_scale: 0.5 output_dim: 2 group_size: 2 }"}
# Whole map, its edges, one pixel, inverted, across the border, outside before and after, halves.
SPECIAL = np.array([[0, 0, 0, 17, 13], [0, 0, 0, 18, 14], [1, 4, 4, 4, 4], [0, 9, 8, 3, 2], [1, -6, -5, 40, 30], [0, -30, -30, -20, -20], [1, 60, 50, 70, 90],
                    [0, 1, 3, 5, 11], [1, -1, -3, 6.5, 7]], float)


@pytest.fixture(autouse=True)
def same_numbers():
    """Give each test the same random numbers, whichever tests run."""
    RANDOM.bit_generator.state = np.random.default_rng(SEED).bit_generator.state


def layer(kind, fields, bottoms=2, tops=1):
    return layer_text(kind, "l", " ".join(f"b{i}" for i in range(bottoms)), " ".join(f"t{i}" for i in range(tops)), fields)


def some_rois(count, images=2, size=18):
    points = RANDOM.uniform(-3, size + 3, (count, 2, 2))
    return np.concatenate([RANDOM.integers(images, size=(count, 1)), points.min(1), points.max(1)], 1)


def top(net, index=0):
    return net.blob_by_name(f"t{index}").data


def away(value):
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)


def cells_of(x, n, rows, columns):
    return [x[int(n), :, a, b] for a in rows for b in columns if 0 <= a < x.shape[2] and 0 <= b < x.shape[3]]


def roi_pooling(x, rois, rows, columns, scale, pad=0.0):
    y = np.zeros((len(rois), x.shape[1], rows, columns))
    for r, (n, x1, y1, x2, y2) in enumerate(rois):
        dx, dy = pad * (x2 - x1 + 1), pad * (y2 - y1 + 1)
        x1, y1, x2, y2 = away((x1 - dx) * scale), away((y1 - dy) * scale), away((x2 + dx) * scale), away((y2 + dy) * scale)
        width, height = max(x2 - x1 + 1, 1) / columns, max(y2 - y1 + 1, 1) / rows
        for i, j in np.ndindex(rows, columns):
            cells = cells_of(x, n, range(math.floor(i * height) + y1, math.ceil((i + 1) * height) + y1),
                             range(math.floor(j * width) + x1, math.ceil((j + 1) * width) + x1))
            y[r, :, i, j] = np.max(cells, 0) if cells else 0
    return y


def psroi_pooling(x, rois, dim, group, scale):
    y = np.zeros((len(rois), dim, group, group))
    for r, (n, x1, y1, x2, y2) in enumerate(rois):
        x1, y1, x2, y2 = away(x1) * scale, away(y1) * scale, (away(x2) + 1) * scale, (away(y2) + 1) * scale
        width, height = max(x2 - x1, 0.1) / group, max(y2 - y1, 0.1) / group
        for i, j in np.ndindex(group, group):
            cells = cells_of(x, n, range(math.floor(i * height + y1), math.ceil((i + 1) * height + y1)),
                             range(math.floor(j * width + x1), math.ceil((j + 1) * width + x1)))
            y[r, :, i, j] = np.mean(cells, 0)[[(d * group + i) * group + j for d in range(dim)]] if cells else 0
    return y


def roi_align(x, rois, rows, columns, scale, pad=0.0):
    y = np.zeros((len(rois), x.shape[1], rows + 1, columns + 1))
    height, width = x.shape[2:]
    for r, (n, x1, y1, x2, y2) in enumerate(rois):
        dx, dy = pad * (x2 - x1 + 1), pad * (y2 - y1 + 1)
        left, right = (x1 - dx) * scale - 0.5, (x2 + dx) * scale - 0.5
        high, low = (y1 - dy) * scale - 0.5, (y2 + dy) * scale - 0.5
        for i, j in np.ndindex(rows + 1, columns + 1):
            a, b = high + i * (low - high) / rows, left + j * (right - left) / columns
            if left >= right or high >= low or not (-0.5 <= a <= height - 0.5 and -0.5 <= b <= width - 0.5):
                continue
            a, b = min(max(a, 0), height - 1), min(max(b, 0), width - 1)
            for p, u in ((int(a), 1 - a % 1), (min(int(a) + 1, height - 1), a % 1)):
                for q, v in ((int(b), 1 - b % 1), (min(int(b) + 1, width - 1), b % 1)):
                    y[r, :, i, j] += u * v * x[int(n), :, p, q]
    return y


SLOW = {
    "ROIPooling": [(POOL, lambda x, r: roi_pooling(x, r, 3, 2, 0.5)),
                   ("roi_pooling_param { pooled_size: 4 }", lambda x, r: roi_pooling(x, r, 4, 4, 1)),
                   ("roi_pooling_param { pooled_size: [1, 7] spatial_scale: 0.25 }", lambda x, r: roi_pooling(x, r, 1, 7, 0.25)),
                   (f"{POOL[:-1]} pad_ratio: 0.25 }}", lambda x, r: roi_pooling(x, r, 3, 2, 0.5, 0.25))],
    "PSROIPooling": [("psroi_pooling_param { spatial_scale: 0.5 output_dim: 2 group_size: 3 }", lambda x, r: psroi_pooling(x, r, 2, 3, 0.5)),
                     ("psroi_pooling_param { spatial_scale: 0.25 output_dim: 18 group_size: 1 }", lambda x, r: psroi_pooling(x, r, 18, 1, 0.25))],
    "ROIAlign": [(POOL, lambda x, r: roi_align(x, r, 3, 2, 0.5)),
                 ("roi_pooling_param { pooled_h: 1 pooled_w: 5 spatial_scale: 0.5 pad_ratio: 0.5 }", lambda x, r: roi_align(x, r, 1, 5, 0.5, 0.5))],
}
CASES = [(kind, fields, slow) for kind, cases in SLOW.items() for fields, slow in cases]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("kind, fields, slow", CASES, ids=[f"{kind}-{fields.split('{')[1]}" for kind, fields, _ in CASES])
def test_pooling_against_the_definition(kind, fields, slow, dtype):
    for height, width in ((7, 9), (1, 3)):
        x = np.float32(RANDOM.standard_normal((2, 18, height, width)))
        rois = np.round(np.concatenate([SPECIAL, some_rois(12)]) * 4) / 4    # exact in both types
        net = forward_net(layer(kind, fields), [x, rois], dtype)
        assert top(net).dtype == (np.float32 if dtype == Dtype.FLOAT else np.float64)
        np.testing.assert_allclose(top(net), slow(x.astype(float), rois), rtol=1e-5, atol=1e-5)  # bilinear weights, sums in float32


@pytest.mark.parametrize("kind, fields, slow", CASES[::2])
def test_pooling_of_new_shapes(kind, fields, slow):
    net = layer_net(layer(kind, fields), [np.zeros((1, 18, 4, 4)), np.zeros((1, 5))])
    for rois in (SPECIAL[:, :, None, None], np.empty((0, 5)), SPECIAL[:3]):
        x = RANDOM.standard_normal((2, 18, 6, 5))
        forward_again(net, b0=x, b1=rois)
        np.testing.assert_allclose(top(net), slow(x, rois.reshape(-1, 5)), atol=1e-12)
        net.bottoms[-1][0].diff[...] = 9.123
        run_backward(net, [0], [1])
        assert (net.bottoms[-1][0].diff != 9.123).all() and net.bottoms[-1][0].diff.any() == bool(len(rois))


@pytest.mark.parametrize("kind, fields", [(kind, fields.replace("output_dim: 2", "output_dim: 1").replace("dim: 18", "dim: 9"))
                                          for kind, fields, _ in CASES])
def test_pooling_gradient(kind, fields):
    shape = (2, 9, 2, 3) if kind == "PSROIPooling" else (2, 2, 3, 4)
    check_gradient(layer(kind, fields), [RANDOM.standard_normal(shape), np.concatenate([SPECIAL, some_rois(3, size=8)])], [0])


def test_pooling_of_special_rois():
    net = layer_net(layer("ROIPooling", "roi_pooling_param { pooled_h: 1 pooled_w: 1 }"), [np.zeros((1, 1, 3, 3)), [[0, 1, 1, 2, 2]] * 2])
    x = net.bottoms[-1][0]
    for values, place in ((((0, 0), (0, 0)), (1, 1)), (((0, 5), (5, 0)), (1, 2)), (((1, 2), (2, 2)), (1, 2))):
        x.data[0, 0, 1:, 1:] = values
        run_forward(net)
        run_backward(net, [0], [[[[[3]]], [[[4]]]]])
        assert x.diff[0, 0][place] == 7 and x.diff.sum() == 7
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 0, 0] = np.nan
    for kind, channels in (("ROIPooling", 1), ("ROIAlign", 1), ("PSROIPooling", 8)):
        net = forward_net(layer(kind, ROI_KINDS[kind]), [np.repeat(x, channels, 1), [[0, 0, 0, 7, 7]]])
        nan = np.isnan(top(net)[0, 0])
        assert nan[0, 0] and not nan[-1].any() and not nan[:, -1].any(), kind
        net.blobs["b1"].diff[...] = 7
        run_backward(net, [1], [1])
        assert (net.blobs["b1"].diff == 0).all()
    far = [[0, -1e30, -1e30, -1e29, -1e29], [0, 1e30, 2e30, 3e30, 3e30]]
    for kind, fields in ROI_KINDS.items():
        net = forward_net(layer(kind, fields), [np.ones((1, 8, 3, 4)), far], Dtype.FLOAT)
        assert (top(net) == 0).all()
        assert top(forward_net(layer(kind, fields), [np.ones((0, 8, 3, 4)), np.empty((0, 5))])).size == 0
        net = layer_net(layer(kind, fields), [np.ones((0, 8, 3, 4)), np.zeros((1, 5))])
        with pytest.raises(DataError, match="ROI 0: .* of an image; the batch is empty, got 0"):
            run_forward(net)


@pytest.mark.parametrize("kind", ROI_KINDS)
def test_wrong_rois(kind):
    for roi, message in (
            ([2, 0, 0, 1, 1], r"the index in the batch must be an integer from 0 to 1, got 2"), ([-1, 0, 0, 1, 1], ".* from 0 to 1, got -1"),
            ([0.5, 0, 0, 1, 1], ".* got 0.5"), ([np.nan, 0, 0, 1, 1], ".* got nan"),
            ([0, 0, np.inf, 1, 1], r"coordinates must be finite, got \(0, inf, 1, 1\)"),
            ([0, 0, 0, 1, np.nan], r"coordinates must be finite, got \(0, 0, 1, nan\)")):
        net = layer_net(layer(kind, ROI_KINDS[kind]), [np.zeros((2, 8, 3, 4)), [[0, 0, 0, 1, 1], roi]])
        with pytest.raises(DataError, match=rf"layer 'l' \({kind}\): bottom\[1\]: ROI 1: {message}"):
            run_forward(net)


TWO_BY_TWO = "pooled_h: 2 pooled_w: 2"


@pytest.mark.parametrize("kind, fields, shapes, message", [
    *(("ROIPooling", f"roi_pooling_param {{ {fields} }}", 0, f"roi_pooling_param.{message}") for fields, message in (
        ("pooled_h: 2", "pooled_w: must be given and at least 1, got 0"), ("", "pooled_h: must be given and at least 1, got 0"),
        ("pooled_size: [1, 2, 3]", r"pooled_size: give one or two numbers, .* got \[1, 2"), ("pooled_size: 0", "pooled_size: must be at least 1, got 0"),
        ("pooled_size: 2 pooled_w: 2", "pooled_size: give one or two numbers, or pooled_h and pooled_w"),
        (f"{TWO_BY_TWO} spatial_scale: 0", r"spatial_scale: must be above 0 and less than 1e\+09, got 0"),
        (f"{TWO_BY_TWO} spatial_scale: 1e9", r"spatial_scale: must be above 0 and less than 1e\+09, got"),
        (f"{TWO_BY_TWO} pad_ratio: inf", r"pad_ratio: must be less than 1e\+09, got inf"),
        (f"{TWO_BY_TWO} pad_ratio: 1e9", r"pad_ratio: must be less than 1e\+09, got 1e\+?0?9|got 1000000000"),
        (f"{TWO_BY_TWO} pad_ratio: -1", "pad_ratio: must be at least 0, got -1"), ("pooled_l: 2", "pooled_l: unknown field"))),
    ("ROIPooling", POOL, ((2, 8, 3), (2, 5)), r"bottom\[0\]: must have 4 axes"),
    ("ROIPooling", POOL, ((2, 8, 3, 0), (2, 5)), r"bottom\[0\]: must have 4 axes .* none of them empty"),
    *(("ROIAlign", POOL, ((2, 8, 3, 3), shape), rf"bottom\[1\]: must be ROIs .* \(R, 5\), got {re.escape(str(list(shape)))}")
      for shape in ((2, 4), (5,), (1, 5, 2))),
    ("ROIAlign", "roi_align_param { pooled_h: 2 pooled_w: 2 }", 0, r"roi_align_param: py-RFCN-priv and synopsys compute different things"),
    ("ROIAlign", "roi_pooling_param { pooled_h: 2 }", 0, r"roi_pooling_param.pooled_w: must be given"),
    ("PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 }", 0, r"psroi_pooling_param.spatial_scale: must be given"),
    ("PSROIPooling", "psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 3 }", 0,
     r"bottom\[0\]: must have output_dim x group_size\^2 = 2 x 3\^2 = 18 channels, got 8")])
def test_wrong_prototxt(kind, fields, shapes, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"test.prototxt.*layer 'l' \({kind}\): .*{message}"):
        layer_net(layer(kind, fields), [np.zeros(shape) for shape in shapes or ((2, 8, 3, 4), (2, 5))])


def overlap(a, b, pixels, kind="IOU"):
    width, height = (min(a[2 + k], b[2 + k]) - max(a[k], b[k]) + pixels for k in (0, 1))
    first, second = ((box[2] - box[0] + pixels) * (box[3] - box[1] + pixels) for box in (a, b))
    inside = max(width, 0) * max(height, 0)
    return inside / {"IOU": first + second - inside, "IOMU": min(first, second), "IOFU": first}[kind]


def best(boxes, scores, before, threshold, after, pixels, kind="IOU"):
    """Indices of the boxes that are kept, by falling score."""
    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i])[:before]:
        if len(kept) < after and all(overlap(boxes[k], boxes[i], pixels, kind) <= threshold for k in kept):
            kept.append(i)
    return kept


def proposals(scores, codes, info, stride=16, base=16, least=16, ratios=(0.5, 1, 2), scales=(1, 3), before=6000, after=300, limit=0.7):
    count, rois, kept = len(ratios) * len(scales), [], []
    for n in range(len(scores)):
        boxes, own = [], []
        for row, column, a in np.ndindex(scores.shape[2], scores.shape[3], count):
            ratio, scale = ratios[a // len(scales)], scales[a % len(scales)]
            w = int(math.sqrt(base * base / ratio) + 0.5)
            h = int(w * ratio + 0.5)
            dx, dy, dw, dh = codes[n, 4 * a:4 * a + 4, row, column]
            # an anchor of w s pixels around the middle of the pixel (base - 1) / 2 has the middle base / 2
            x, y = base / 2 + column * stride + dx * w * scale, base / 2 + row * stride + dy * h * scale
            w, h = math.exp(dw) * w * scale, math.exp(dh) * h * scale
            box = [min(max(v, 0), info[1 - k % 2] - 1) for k, v in enumerate((x - w / 2, y - h / 2, x + w / 2, y + h / 2))]
            small = box[2] - box[0] + 1 < least * info[-1] or box[3] - box[1] + 1 < least * info[2]
            boxes.append(box)
            own.append(0 if small else scores[n, count + a, row, column])
        for i in best(boxes, own, before, limit, after, 1):
            rois.append([n, *boxes[i]])
            kept.append(own[i])
    return np.array(rois), np.array(kept)


def rpn(images=1, anchors=6, height=4, width=5):
    return (RANDOM.uniform(0, 1, (images, 2 * anchors, height, width)).round(3),
            RANDOM.uniform(-0.5, 0.5, (images, 4 * anchors, height, width)).round(3))


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("fields, options, info, images", [
    ("", {}, [64, 80, 1], 1), ("min_size: 8", {"least": 8}, [60.5, 70, 1.5], 3),
    ("min_size: 8 feat_stride: 8 base_size: 9", {"least": 8, "stride": 8, "base": 9}, [40, 50, 1.25, 2], 2),
    ("pre_nms_topn: 20 post_nms_topn: 5 nms_thresh: 0.3 min_size: 0", {"least": 0, "before": 20, "after": 5, "limit": 0.3}, [64, 80, 1], 2)])
def test_proposal_against_the_definition(fields, options, info, images, dtype):
    scores, codes = rpn(images)
    wanted, wanted_scores = proposals(scores, codes, info, **options)
    fields = f"proposal_param {{ ratio: [0.5, 1, 2] scale: [1, 3] {fields} }}"
    for shape in ((1, -1), (-1,), (1, -1, 1, 1)):
        net = forward_net(layer("Proposal", fields, 3, 2), [scores, codes, np.reshape(info, shape)], dtype, TEST)
        assert top(net).shape == wanted.shape and len(wanted) > 1
        np.testing.assert_allclose(top(net), wanted, atol=1e-4)     # coordinates of about 100 in float32
        np.testing.assert_allclose(top(net, 1), wanted_scores, rtol=1e-6)


def test_proposal_ties_and_infinite_codes():
    scores, codes = rpn(2)
    scores[...] = 0.5
    fields = layer("Proposal", "proposal_param { ratio: [0.5, 1, 2] scale: [1, 3] min_size: 4 nms_thresh: 0.5 }", 3)
    net = forward_net(fields, [scores, codes, [[64, 80, 1], [40, 30, 1]]])
    both = top(net).copy()
    for image, info in enumerate(([64, 80, 1], [40, 30, 1])):
        net = forward_net(fields, [scores[[image]], codes[[image]], [info]])
        np.testing.assert_array_equal(top(net)[:, 1:], both[both[:, 0] == image][:, 1:])
        np.testing.assert_allclose(top(net), proposals(scores[[image]], codes[[image]], info, least=4, limit=0.5)[0])
    scores, codes = rpn()
    codes[0, 2] = codes[0, 4] = 1e5
    net = forward_net(layer("Proposal", "proposal_param { ratio: [0.5, 1, 2] scale: [1, 3] }", 3), [scores, codes, [[64, 80, 1]]], Dtype.FLOAT)
    assert np.isfinite(top(net)).all()
    net.bottoms[-1][0].diff[...] = 7
    run_backward(net, [0, 1, 2])
    assert not net.bottoms[-1][0].diff.any()


@pytest.mark.parametrize("fields, change, message", [
    *((fields, {}, f"proposal_param.{message}") for fields, message in (
        ("scale: 1", r"ratio: give at least one, finite and above 0, got \[\]"), ("ratio: 1 scale: 0", r"scale: give at least one, finite and above 0, got \[0"),
        ("ratio: inf scale: 1", r"ratio: give at least one, finite and above 0, got \[inf"),
        ("ratio: 1 scale: 1e30", r"scale: with base_size and ratio gives an anchor of 1.6e\+31 pixels"),
        ("ratio: 1e-320 scale: 1", "scale: with base_size and ratio gives an anchor of inf pixels"),
        ("ratio: 1 scale: 1e9 base_size: 1", r"scale: with base_size and ratio gives an anchor of 1e\+09 pixels, too large"),
        ("ratio: 1 scale: 1 base_size: 9999999999", r"base_size: must be from -2\^31 to 2\^31 - 1, got 9999999999"),
        ("ratio: 1 scale: 1 post_nms_topn: 0", "post_nms_topn: must be at least 1, got 0"), ("ratio: 1 anchor_scale: 3", "anchor_scale: unknown field"))),
    *(("ratio: 1 scale: 1", {bottom: np.zeros(value) if isinstance(value, tuple) else np.array(value)}, rf"bottom\[{bottom}\]: {message}")
      for bottom, value, message in (
        (0, (1, 2, 4), r"must have 4 axes \(num, channels, height, width\), .* got \[1, 2, 4\]"),
        (1, (1, 4, 4), r"must have 4 axes \(num, channels, height, width\), .* got \[1, 4, 4\]"),
        (1, (2, 4, 2, 2), r"has shape \[2, 4, 2, 2\], bottom\[0\] has \[1, 2, 2, 2\]"),
        (0, (1, 3, 2, 2), r"must have 2 probabilities for each of 1 anchors .* 2 channels, got \[1, 3"),
        (1, (1, 8, 2, 2), r"must have 4 codes for each of 1 anchors .* 4 channels, got \[1, 8"),
        (1, (1, 4, 2, 3), r"has shape \[1, 4, 2, 3\], bottom\[0\] has \[1, 2, 2, 2\]"),
        (2, (1, 5), r"must be height, width and scale, .* got \[1, 5\]"), (2, 5.0, r"must be height, width and scale, .* got \[\]"),
        (2, (2, 3), r"must be height, width and scale, .* each of 1, got \[2, 3\]"),
        (2, [9, 0, 1], r"size and scale of image 0 must be finite and above 0, got \[9.0, 0.0, 1.0\]"),
        (0, [[[[np.nan] * 2] * 2] * 2], "the score of anchor 0 at row 0, column 0 of image 0 is not a"),
        (1, [[[[np.nan] * 2] * 2] * 4], "the box of anchor 0 at row 0, column 0 of image 0 is not a")))])
def test_wrong_proposals(fields, change, message):
    arrays = {0: np.zeros((1, 2, 2, 2)), 1: np.zeros((1, 4, 2, 2)), 2: np.array([[32, 32, 1]]), **change}
    with pytest.raises((ConfigError, ShapeError, DataError), match=rf"layer 'l' \(Proposal\): .*{message}"):
        run_forward(layer_net(layer("Proposal", f"proposal_param {{ {fields} }}", 3), list(arrays.values())))


def decoded(rois, codes, mean, std):
    rows = []
    for (n, x1, y1, x2, y2), code in zip(rois, codes):
        tx, ty, tw, th = code[4:] * std + mean
        w, h = (x2 - x1 + 1) * math.exp(tw), (y2 - y1 + 1) * math.exp(th)
        x, y = (x1 + x2) / 2 + tx * (x2 - x1 + 1) - (w - 1) / 2, (y1 + y2) / 2 + ty * (y2 - y1 + 1) - (h - 1) / 2
        rows.append([n, x, y, x + w - 1, y + h - 1])
    return np.array(rows).reshape(-1, 5)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_decode_bbox(dtype):
    for fields, mean, std in (("", 0, 1), ("bbox_reg_param { bbox_mean: [0, 0.5, 0, 1] bbox_std: [0.1, 0.1, 0.2, 0.2] cls_aware: false }",
                                           np.array([0, 0.5, 0, 1]), np.array([0.1, 0.1, 0.2, 0.2]))):
        for count in (9, 0):
            rois, codes = some_rois(count), RANDOM.standard_normal((count, 8))
            net = forward_net(layer("DecodeBBox", fields), [codes, rois], dtype, TEST)
            assert top(net).shape == (count, 5, 1, 1)
            np.testing.assert_allclose(top(net)[:, :, 0, 0], decoded(rois, codes, mean, std), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["bbox_mean", "bbox_std"])
def test_lone_field_is_ignored(name, caplog):
    rois, codes, maps = some_rois(3), RANDOM.standard_normal((3, 8)), [RANDOM.standard_normal((1, 7, 6, 8))]
    field = f"bbox_reg_param {{ {name}: [0.5, 0.5, 2, 2] }}"
    net = forward_net(layer("DecodeBBox", field), [codes, rois], phase=TEST)
    np.testing.assert_allclose(top(net)[:, :, 0, 0], decoded(rois, codes, 0, 1), rtol=1e-9)
    net = forward_net(layer("BoxOutput", "box_output_param { fg_thr: 0.5 field_h: 30 field_w: 20 downsample_rate: 8 } " + field, 1, 2), maps, phase=TEST)
    np.testing.assert_allclose(top(net, 1), box_output(maps, [30], [20], [8], 0.5), rtol=1e-9)
    assert caplog.text.count(f"layer 'l': bbox_reg_param.{name} is ignored") == 2


def test_decode_bbox_in_training():
    rois, codes = some_rois(5), np.zeros((5, 8))
    rois[2, 3] = rois[2, 1] - 5
    rois[4, 3:] = rois[4, 1:3]      # one pixel, which is a box
    objects = np.zeros((5, 5))
    objects[:, 4] = 0.5, 0.9, 0, 0.95, 0.2
    net = forward_net(layer("DecodeBBox", "decode_bbox_param { gt_iou_thr: 0.9 }", 3), [codes, rois, objects], phase=TRAIN)
    np.testing.assert_allclose(top(net)[:, :, 0, 0], rois[[0, 4]])
    run_backward(net, [0, 1, 2])
    assert not any(blob.diff.any() for blob in net.bottoms[-1])
    net.bottoms[-1][2].data[...] = 1
    run_forward(net)
    assert top(net).shape == (0, 5, 1, 1)


@pytest.mark.parametrize("fields, shapes, phase, message", [
    ("", [(3, 4), (3, 5)], TEST, r"bottom\[0\]: must be 8 codes for each of 3 ROIs, got \[3, 4\]"),
    ("", [(2, 8), (3, 5)], TEST, r"bottom\[0\]: must be 8 codes for each of 3 ROIs, got \[2, 8\]"),
    ("", [(), (1, 5), (1, 1)], TRAIN, r"bottom\[0\]: must be 8 codes for each of 1 ROIs, got \[\]"),
    ("", [(3, 8), (3, 5)], TRAIN, r"bottom: give codes and ROIs, and in phase TRAIN their objects too, got 2 in TRAIN"),
    ("", [(3, 8), (3, 5), (3, 5)], TEST, r"bottom: .* got 3 in TEST"), ("", [(1, 8), (1, 5), ()], TRAIN, r"bottom\[2\]: must have a row for each of 1 ROIs, got \[\]"),
    *(("", [(3, 8), (3, 5), shape], TRAIN, rf"bottom\[2\]: must have a row for each of 3 ROIs, got {re.escape(str(list(shape)))}")
      for shape in ((2, 5), (2, 4), (3, 0))),
    ("bbox_reg_param { bbox_mean: 0 bbox_std: [1, 2] }", [(3, 8), (3, 5)], TEST, r"bbox_reg_param.bbox_mean: give none or four, .* got 1"),
    ("bbox_reg_param { box_std: 1 }", [(3, 8), (3, 5)], TEST, r"bbox_reg_param.box_std: unknown field; did you mean 'bbox_std'"),
    ("decode_bbox_param { gt_iou_thr: -1 }", [(3, 8), (3, 5)], TEST, r"decode_bbox_param.gt_iou_thr: must be at least 0, got -1")])
def test_wrong_decode_bbox(fields, shapes, phase, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"layer 'l' \(DecodeBBox\): {message}"):
        layer_net(layer("DecodeBBox", fields, len(shapes)), [np.zeros(shape) for shape in shapes], phase=phase)


def box_output(maps, heights, widths, rates, least, side=15, whr=2, xyr=2, mean=0, std=1, **options):
    rows = []
    for n in range(len(maps[0])):
        boxes, scores = [], []
        for data, field_h, field_w, rate in zip(maps, heights, widths, rates):
            for row, column in np.ndindex(data.shape[2], data.shape[3]):
                *classes, dx, dy, dw, dh = data[n, :, row, column] * ([1] * (data.shape[1] - 4) + [1] * 4)
                dx, dy, dw, dh = np.array([dx, dy, dw, dh]) * std + mean
                score = max(classes[1:]) - classes[0]
                corner, size = [], []
                for d, e, field, cell, limit in ((dx, dw, field_w, column, data.shape[3]), (dy, dh, field_h, row, data.shape[2])):
                    length = field * math.exp(min(max(e, -math.log(whr)), math.log(whr)))
                    corner.append(max(min(max(d, -1 / xyr), 1 / xyr) * field + (cell + 0.5) * rate - length / 2, 0))
                    size.append(min(length, limit * rate - corner[-1]))
                if score >= least and min(size) >= side:
                    boxes.append([*corner, corner[0] + size[0], corner[1] + size[1]])
                    scores.append(score)
        rows += [[n, *boxes[i], scores[i]] for i in best(boxes, scores, options.get("before") or 10**9, options.get("limit", 0.5),
                                                         options.get("after") or 10**9, 0, options.get("kind", "IOU"))]
    return np.array(rows)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("fields, options", [
    ("", {}), ('nms_type: "IOMU" iou_thr: 0.6', {"kind": "IOMU", "limit": 0.6}), ('nms_type: "IOFU"', {"kind": "IOFU"}),
    ("max_nms_num: 20 max_post_nms_num: 6", {"before": 20, "after": 6}),
    ("field_whr: 3 field_xyr: 1.5 min_size: 3", {"whr": 3, "xyr": 1.5, "side": 3})])
def test_box_output_against_the_definition(fields, options, dtype):
    maps = [np.float32(RANDOM.standard_normal((2, 7, 6, 8))), np.float32(RANDOM.standard_normal((2, 7, 3, 4)))]
    mean, std = np.array([0.1, 0, 0, 0.5]), np.array([0.5, 0.5, 1, 1])
    wanted = box_output([m.astype(float) for m in maps], (30, 60), (20, 40), (8, 16), 0.5, mean=mean, std=std, **options)
    fields = (f"box_output_param {{ fg_thr: 0.5 field_h: [30, 60] field_w: [20, 40] downsample_rate: [8, 16] {fields} }} "
              "bbox_reg_param { bbox_mean: [0.1, 0, 0, 0.5] bbox_std: [0.5, 0.5, 1, 1] }")
    net = forward_net(layer("BoxOutput", fields, 2, 2), maps, dtype, TEST)
    assert top(net, 1).shape == wanted.shape and len(wanted) > 5
    np.testing.assert_allclose(top(net, 1), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(top(net), top(net, 1)[:, :5])


def test_boxes_at_limits_and_missing():
    """Scores of 5/8 and 1/2, sides of 16, and an overlap of 1/2 of each box."""
    data = np.zeros((1, 6, 1, 2))
    data[0, 1, 0] = 0.625, 0.5
    data[0, 2, 0] = 0, -0.5
    for least, side, overlap, wanted in ((0.5, 16, 0.5, [[0, 0, 0, 16, 16, 0.625], [0, 8, 0, 24, 16, 0.5]]), (0.5625, 16, 0.5, [[0, 0, 0, 16, 16, 0.625]]),
                                         (0.5, 17, 0.5, [[0] * 6]), (0.5, 16, 0.375, [[0, 0, 0, 16, 16, 0.625]])):
        fields = f'field_h: 16 field_w: 16 downsample_rate: 16 field_whr: 1 nms_type: "IOMU" fg_thr: {least} min_size: {side} iou_thr: {overlap}'
        assert top(forward_net(layer("BoxOutput", f"box_output_param {{ {fields} }}", 1, 2), [data]), 1).tolist() == wanted
    for least, score in ((17, 0.75), (18, 0)):
        fields = f"proposal_param {{ ratio: 1 scale: 1 min_size: {least} }}"
        net = forward_net(layer("Proposal", fields, 3, 2), [np.array([[[[0.25]], [[0.75]]]]), np.zeros((1, 4, 1, 1)), [[64, 64, 1]]])
        assert top(net).tolist() == [[0, 0, 0, 16, 16]] and top(net, 1).tolist() == [score]
    codes = np.zeros((2, 8))
    codes[1, 6] = 1000
    net = layer_net(layer("DecodeBBox", ""), [codes, some_rois(2)], phase=TEST)
    with pytest.raises(DataError, match=r"bottom\[0\]: the box of ROI 1 is not finite; its codes are \[0.0, 0.0, 1000.0, 0.0\]"):
        run_forward(net)
    data = np.zeros((1, 6, 2, 2))
    data[0, 5, 1, 0] = np.nan
    net = layer_net(layer("BoxOutput", "box_output_param { field_h: 3 field_w: 3 downsample_rate: 8 }", 1), [data])
    with pytest.raises(DataError, match=r"bottom\[0\]: row 1, column 0 of image 0 is not a number"):
        run_forward(net)
    net = forward_net(layer("BoxOutput", "box_output_param { fg_thr: 9 field_h: 30 field_w: 20 downsample_rate: 8 }", 1, 2),
                      [np.zeros((2, 6, 3, 4))])
    assert top(net).tolist() == [[0, 1, 1, 10, 10]] and top(net, 1).tolist() == [[0] * 6]


ONE, TWO = "field_h: 3 field_w: 3 downsample_rate: 8", "field_h: [3, 3] field_w: [3, 3] downsample_rate: [8, 8]"
PICTURE = (1, 6, 2, 2)


@pytest.mark.parametrize("fields, shapes, message", [
    (TWO, [(1, 6, 4), PICTURE], r"bottom\[0\]: must have 4 axes \(num, channels, height, width\), none of them empty, got \[1, 6, 4\]"),
    (TWO, [PICTURE, (1, 6, 2, 0)], r"bottom\[1\]: must have 4 axes \(num, channels, height, width\), none of them empty, got"),
    (TWO, [PICTURE, (2, 6, 2, 2)], r"bottom\[1\]: has shape \[2, 6, 2, 2\], bottom\[0\] has \[1, 6, 2, 2\]; images and channels"),
    (TWO, [PICTURE, (1, 7, 1, 1)], r"bottom\[1\]: has shape \[1, 7, 1, 1\], bottom\[0\] has \[1, 6, 2, 2\]; images and channels"),
    (ONE, [(1, 5, 2, 2)], r"bottom\[0\]: must have the scores of at least 2 classes and 4 codes, got"),
    ("field_h: 3 downsample_rate: 8", [PICTURE], r"box_output_param.field_w: give one for each of the 1 bottoms, got \[\]"),
    ("field_h: 3 field_w: 3 downsample_rate: 0", [PICTURE], "box_output_param.downsample_rate: must be at least 1, got 0"),
    *((f"{ONE} {fields}", [PICTURE], f"box_output_param.{message}") for fields, message in (
        ('nms_type: "IOX"', "nms_type: must be IOU or IOMU or IOFU, got IOX"), ("field_whr: 0.5", "field_whr: must be finite and at least 1, got 0.5"),
        ("field_whr: inf", "field_whr: must be finite and at least 1, got inf"), ("field_xyr: 0", "field_xyr: must be finite and above 0, got 0"),
        ("field_xyr: inf", "field_xyr: must be finite and above 0, got inf")))])
def test_wrong_box_output(fields, shapes, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"layer 'l' \(BoxOutput\): {message}"):
        layer_net(layer("BoxOutput", f"box_output_param {{ {fields} }}", len(shapes)), [np.zeros(shape) for shape in shapes])
