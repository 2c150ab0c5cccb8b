"""DetectionEvaluate, and the precisions made of its rows (minicaffe/addons/ssd/mean_precision.py)."""

import itertools

import numpy as np
import pytest
from gradient import forward_net, layer_net, run_backward, run_forward
from ssd_boxes import overlap

from minicaffe.addons.ssd.mean_precision import DetectionOutputs, MeanPrecision, average_precision
from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.proto import caffe_pb2

CLASSES = 4


def layer(param, sizes=None, classes=CLASSES):
    """The layer; `sizes` are the pictures' heights and widths, or their file."""
    if sizes is not None:
        param += f' name_size_file: "{sizes}"'
    return ('layer { name: "l" type: "DetectionEvaluate" bottom: "d" bottom: "g" top: "y" detection_evaluate_param { '
            f"num_classes: {classes} {param} }} }}")


def written(folder, sizes):
    """Write the heights and widths of pictures to a file and return its path."""
    (folder / "sizes").write_text("".join(f"p{i} {height} {width}\n" for i, (height, width) in enumerate(sizes)))
    return folder / "sizes"


def in_pixels(box, size):
    return np.clip(box, 0, 1) * [size[1], size[0], size[1], size[0]]


def rows_of(text, found, known, dtype=Dtype.DOUBLE):
    arrays = [np.reshape(found, (1, 1, -1, 7)), np.reshape(known, (1, 1, -1, 8))]
    return forward_net(text, arrays, dtype).blob_by_name("y").data[0, 0]


def some(seed=1, images=3, objects=12, detections=40):
    """Objects, and detections that are objects moved about."""
    random = np.random.default_rng(seed)
    corner, side = random.uniform(0, 0.6, (objects, 2)), random.uniform(0.1, 0.4, (objects, 2))
    known = np.column_stack([random.integers(0, images, objects), random.integers(1, CLASSES, objects), np.arange(objects), corner,
                             corner + side, random.random(objects) < 0.3])
    of = random.integers(0, objects, detections)
    found = np.column_stack([known[of, 0], np.where(random.random(detections) < 0.8, known[of, 1], 1), random.random(detections),
                             known[of, 3:7] + random.normal(0, 0.03, (detections, 4))])
    return found[None, None], known[None, None]


def slow(found, known, background=0, threshold=0.5, difficult=True, sizes=None, mapped=lambda box, size: box):
    """The definition."""
    found, known = found.reshape(-1, 7), known.reshape(-1, 8)
    rows = [(-1, c, sum(1 for g in known if g[0] >= 0 and g[1] == c and (difficult or not g[7])), -1, -1)
            for c in range(CLASSES) if c != background]
    taken = set()
    for image in sorted({d[0] for d in found if d[1] >= 0}):
        for label in range(CLASSES):
            mine = sorted((d for d in found if d[0] == image and d[1] == label), key=lambda d: -d[2] if d[2] == d[2] else np.inf)
            for d in mine:
                size = sizes[int(image) % len(sizes)] if sizes else None
                overlaps = [(overlap(mapped(d[3:], size), mapped(g[3:7], size), 1 if sizes else 0), -i) for i, g in enumerate(known)
                            if g[0] == image and g[1] == label]
                best, i = max(overlaps, default=(-1, 0))
                if best < threshold:
                    verdict = (0, 1)
                elif known[-i][7] and not difficult:
                    verdict = (0, 0)
                else:
                    verdict = (0, 1) if -i in taken else (1, 0)
                    taken.add(-i)
                rows.append((image, label, d[2], *verdict))
    return np.array(rows, float)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("param, options", [
    ("", {}), ("overlap_threshold: 0.75", {"threshold": 0.75}), ("evaluate_difficult_gt: false", {"difficult": False}),
    ("background_label_id: 9", {"background": 9})])
def test_against_the_definition(param, options, dtype):
    for seed in range(4):
        found, known = (np.float32(a) for a in some(seed))
        wanted = slow(found, known, **options)
        assert wanted[3:, 3].sum() > 1 and wanted[3:, 4].sum() > 1
        np.testing.assert_allclose(rows_of(layer(param), found, known, dtype), wanted, rtol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_ties(seed):
    random = np.random.default_rng(seed)

    def boxes(count):
        corner = random.integers(0, 3, (count, 2))
        return np.concatenate([corner, corner + random.integers(1, 3, (count, 2))], 1) / 4
    known = np.column_stack([random.integers(0, 2, 14), random.integers(1, 3, 14), np.zeros(14), boxes(14), random.random(14) < 0.4])
    found = np.column_stack([random.integers(0, 2, 40), random.integers(1, 3, 40), random.choice([0.25, 0.5, 0.75, np.nan, -np.inf], 40),
                             boxes(40)])
    for param, options in (("", {}), ("evaluate_difficult_gt: false overlap_threshold: 0.25", {"difficult": False, "threshold": 0.25})):
        np.testing.assert_array_equal(rows_of(layer(param), found, known), slow(found, known, **options))


def test_nothing_and_thresholds():
    nothing, empty = np.array([[0, -1, -1, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1, -1]], float), np.full((1, 8), -1.0)
    found, known = some()
    for d, g in ((nothing, known), (found, empty), (nothing, empty)):
        net = layer_net(layer(""), [d.reshape(1, 1, -1, 7), g.reshape(1, 1, -1, 8)])
        assert net.blob_by_name("y").shape == (1, 1, 3, 5)
        run_forward(net)
        rows = net.blob_by_name("y").data[0, 0]
        assert rows[:3, 2].sum() == (0 if g is empty else known.shape[2])
        assert len(rows) == (3 if d is nothing else 43) and (rows[3:, 3:] == [0, 1]).all()
    assert rows_of(layer("", classes=1), np.full(7, -1.0), np.full(8, -1.0)).shape == (0, 5)
    assert rows_of(layer(""), [0, 1, 0.9, 0, 0, 0.5, 1], [0, 1, 0, 0, 0, 1, 1, 0])[-1, 3:].tolist() == [1, 0]


def test_batches_without_rows(tmp_path):
    """The images of a batch are those up to the last that has a detection or an object; a row without a class names one, too."""
    random, net, seen, ends = np.random.default_rng(3), None, 0, set()
    size = [(20, 30), (3, 2), (200, 100), (7, 50), (60, 9)]
    for batch in range(24):
        # Images from `last` on have no detections (0), neither but a row of class -1 (1), no objects (2), or both (3).
        found, known = some(seed=batch, images=4)
        last, side = int(random.integers(1, 4)), batch % 4
        if side < 2:
            found[..., 0] = np.where(found[..., 0] >= last, 0, found[..., 0])
        if side in (1, 2):
            known[..., 0] = np.where(known[..., 0] >= last, 0, known[..., 0])
        if side == 1:
            found[0, 0, 5] = last, -1, -1, -1, -1, -1, -1
        known[0, 0, random.integers(0, 12)] = -1
        if net is None:
            net = layer_net(layer("overlap_threshold: 0.75", written(tmp_path, size)), [found, known])
        net.blob_by_name("d").data[...], net.blob_by_name("g").data[...] = found, known
        start = seen % len(size)
        run_forward(net)
        found, known = (net.blob_by_name(name).data.astype(float) for name in "dg")
        wanted = slow(found, known, threshold=0.75, sizes=size[start:] + size[:start], mapped=in_pixels)
        np.testing.assert_allclose(net.blob_by_name("y").data[0, 0], wanted, rtol=1e-6)
        of_found, of_known = int(found[..., 0].max()), int(known[..., 0].max())
        seen += max(of_found, of_known) + 1
        assert net.layers[-1].get_state() == {"seen": seen}
        ends.add(np.sign(of_found - of_known))
    assert ends == {-1, 0, 1}
    net.layers[-1].set_state({"seen": 1})
    run_forward(net)
    wanted = slow(found, known, threshold=0.75, sizes=size[1:] + size[:1], mapped=in_pixels)
    np.testing.assert_allclose(net.blob_by_name("y").data[0, 0], wanted, rtol=1e-6)
    for wrong in {}, {"seen": "x"}, {"seen": -1}:
        with pytest.raises(DataError, match="the stored state needs a 'seen' from 0 to"):
            net.layers[-1].set_state(wrong)


def test_boxes_in_pixels(tmp_path):
    """With one pixel more than their corners say, boxes overlap by another share if the sides of the picture are exchanged."""
    for size, axes in (((10, 100), [0, 1, 2, 3]), ((100, 10), [1, 0, 3, 2])):
        box, other = np.array([[0.1, 0, 0.5, 1], [0.15, 0, 0.55, 1]])[:, axes]
        for threshold, right in ((36 / 46 - 0.005, 1), (36 / 46 + 0.005, 0)):   # of 41 pixels 36; by the short side 4.5 of 5.5
            rows = rows_of(layer(f"overlap_threshold: {threshold}", written(tmp_path, [size])), [0, 1, 0.9, *box], [0, 1, 0, *other, 0])
            assert rows[-1, 3] == right
    sizes, box = written(tmp_path, [(100, 100)]), np.array([0.5, 0.5, 0.6, 0.6])
    for (gap, right), way in itertools.product(((0, 1), (0.5, 0)), ((1, 0), (-1, 0), (0, 1), (0, -1))):      # those that share an edge overlap
        other = box + np.tile(way, 2) * (10 + gap) / 100
        rows = rows_of(layer("overlap_threshold: 0.01", sizes), [0, 1, 0.9, *box], [0, 1, 0, *other, 0])
        assert rows[-1, 3] == right, (gap, way)
    # Half of the padded picture's height is the picture; in its pixels the boxes are 21 x 21, and overlap by 21 x 11.
    sizes = written(tmp_path, [(100, 200)])
    for threshold, right in ((231 / 651 - 0.001, 1), (231 / 651 + 0.001, 0), (1, 0)):
        text = layer(f"resize_param {{ resize_mode: FIT_LARGE_SIZE_AND_PAD height: 50 width: 50 }} overlap_threshold: {threshold}", sizes)
        assert rows_of(text, [0, 1, 0.5, 0.1, 0.3, 0.2, 0.4], [0, 1, 0, 0.1, 0.35, 0.2, 0.45, 0])[-1, 3] == right


def test_wrong_fields_and_bottoms():
    for text, message in (
            (layer("").replace(f"num_classes: {CLASSES}", ""), "num_classes: must be given and at least 1, got 0"),
            (layer("overlap_threshold: 0"), "overlap_threshold: must be above 0 and at most 1, got 0"),
            (layer("", "/nowhere/x"), "name_size_file: .*no such file"),
            (layer("resize_param { width: 2 }"), "resize_param.height: must be given")):
        with pytest.raises((ConfigError, RuntimeError), match=rf"layer 'l' \(DetectionEvaluate\): detection_evaluate_param.{message}"):
            layer_net(text, some())
    found, known = some()
    for wrong in (known, np.array(1.0)):
        with pytest.raises(ShapeError, match=r"bottom\[0\]: must be rows of 7 numbers"):
            layer_net(layer(""), [wrong, known])
    for (bottom, row, column, value), message in (
                            ((0, 2, 1, 7), r"bottom\[0\]: row 2: label 7 of image .* is outside 0..3"),
                            ((0, 2, 1, 1.5), r"bottom\[0\]: row 2: image .* and label 1.5 must be integers; round"),
                            ((1, 2, 0, 0.5), r"bottom\[1\]: row 2: image 0.5 and label .* must be integers"),
                            ((1, 2, 1, 0), r"bottom\[1\]: row 2: label 0 of image .* is background"),
                            ((1, 4, 0, -3), r"bottom\[1\]: row 4: image -3 is not in the batch")):
        arrays = [found.copy(), known.copy()]
        arrays[bottom][0, 0, row, column] = value
        net = layer_net(layer(""), arrays)
        with pytest.raises(DataError, match=rf"layer 'l' \(DetectionEvaluate\): {message}"):
            run_forward(net)
    net = forward_net(layer(""), [found, known])
    with pytest.raises(ConfigError, match="DetectionEvaluate has no gradient"):
        run_backward(net, [0])


def test_precisions():
    # A level of recall is met to within a millionth: 200,000 of 2,000,001 are a tenth, 199,990 of 2,000,000 are not.
    for hits, objects, levels in ((200_000, 2_000_001, 2), (199_990, 2_000_000, 1)):
        assert average_precision(np.ones(hits), np.ones(hits), np.zeros(hits), objects, "11point") == pytest.approx(levels / 11)
    # What counts neither way changes nothing.
    assert average_precision([4, 3, 2, 1], [0, 0, 1, 1], [0, 1, 0, 0], 2) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert average_precision([], [], [], 3) == 0 and average_precision([1], [0], [1], 0) == 0
    with pytest.raises(ConfigError, match="ap_version: must be one of Integral, MaxIntegral, 11point, got '12point'"):
        average_precision([], [], [], 0, "12point")
    precision = MeanPrecision()
    assert np.isnan(precision.mean())
    precision.add([[-1, 1, 1, -1, -1], [-1, 2, 1, -1, -1], [-1, 3, 0, -1, -1], [0, 1, 0.9, 1, 0], [0, 3, 0.5, 0, 1]])
    assert precision.objects == {1: 1, 2: 1, 3: 0} and precision.by_class() == {1: 1, 2: 0} and precision.mean() == 0.5
    with pytest.raises(DataError, match="rows of DetectionEvaluate have 5 numbers"):
        precision.add(np.zeros((2, 7)))
    rows = 'layer { name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param { shape { dim: 1 dim: 5 } data_filler { value: 1 } } }'
    outputs = DetectionOutputs(layer_net(rows, []), caffe_pb2.SolverParameter(show_per_class_result=True))
    for blob, _ in outputs.outputs:
        blob.data[0, 0] = -1  # one object of class 1
    outputs.add()
    outputs.add([[[-1.0, 2, 1, -1, -1], [0, 2, 0.5, 1, 0]], [[-1.0, 1, 1, -1, -1], [0, 1, 0.5, 1, 0]]])     # of another process
    assert [(r["index"], r["name"], r["value"]) for r in outputs.records()] == [
        (0, "a", 0.5), (1, "a[1]", 0), (2, "a[2]", 1), (3, "b", 0.5), (4, "b[1]", 0.5)]


def plain_precision(detections, objects, version):
    """The average precision of one class, detection by detection; `detections` are (score, right, wrong) in their order."""
    points, hits, misses = [(0.0, 0.0)], 0, 0
    for _, right, wrong in sorted(detections, key=lambda detection: -detection[0]):    # of equal scores the earlier one first
        hits, misses = hits + right, misses + wrong
        points.append((hits / objects, hits / max(hits + misses, 1)))
    if version == "Integral":
        return sum(precision * (recall - before) for (before, _), (recall, precision) in zip(points, points[1:]))
    above = [max(precision for _, precision in points[i:]) for i in range(1, len(points))]
    if version == "MaxIntegral":
        return sum(high * (points[i + 1][0] - points[i][0]) for i, high in enumerate(above))
    return sum(max((precision for recall, precision in points[1:] if recall >= level / 10 - 1e-6), default=0) for level in range(11)) / 11


@pytest.mark.parametrize("version", ["Integral", "MaxIntegral", "11point"])
def test_random_rows_over_several_batches(version):
    rng = np.random.default_rng(5)
    for _ in range(40):
        precision, objects, found = MeanPrecision(version), {}, {}
        for _ in range(3):
            rows = [[-1, label, rng.integers(0, 25), -1, -1] for label in rng.permutation(4)[:3]]
            rows += [[0, rng.integers(0, 4), rng.integers(0, 4) / 4, *rng.permutation([1, 0])] for _ in range(rng.integers(0, 40))]
            precision.add(np.array(rows, float).reshape(1, 1, -1, 5))
            for image, label, value, right, wrong in rows:
                if image == -1:
                    objects[label] = objects.get(label, 0) + value
                else:
                    found.setdefault(label, []).append((value, right, wrong))
        wanted = {label: plain_precision(found.get(label, []), count, version) for label, count in objects.items() if count}
        assert precision.by_class() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert precision.mean() == pytest.approx(np.mean(list(wanted.values())), rel=1e-9, abs=1e-12)
