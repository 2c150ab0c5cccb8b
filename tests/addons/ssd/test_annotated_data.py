"""AnnotatedData: pictures, boxes that follow them, order, resuming, and what is wrong with records and fields."""

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from annotated import annotated, bright_box, rectangle, write_annotated  # noqa: E402
from pictures import batch, source_net  # noqa: E402

from minicaffe.addons.ssd.augment import Augmenter  # noqa: E402
from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.common import TEST, TRAIN  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, ShapeError  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402


def text(source, transform="", fields="", size=1, top='top: "data" top: "label"'):
    return (f'layer {{ name: "d" type: "AnnotatedData" {top} data_param {{ source: "{source}" batch_size: {size} backend: LMDB }} '
            f"annotated_data_param {{ {fields} }} transform_param {{ {transform} }} }}")


@pytest.fixture
def some(tmp_path):
    """Five pictures of 48 x 64 with one bright rectangle each, and their database."""
    random = np.random.default_rng(4)
    pictures = [rectangle(random) for _ in range(5)]
    source = write_annotated(tmp_path / "db", [annotated(image, [(i + 1, *box, 7, i == 2)]) for i, (image, box) in enumerate(pictures)])
    return source, pictures


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_pictures_and_boxes_in_order(some, dtype):
    source, pictures = some
    net = source_net(text(source, size=2), dtype)
    assert net.tops[0][0].shape == (2, 3, 48, 64) and net.tops[0][1].shape == (1, 1, 1, 8)
    for k in range(4):
        data, label = batch(net)
        assert data.dtype == (np.float32, np.float64)[dtype] and label.shape == (1, 1, 2, 8)
        for i in range(2):
            n = (2 * k + i) % 5
            np.testing.assert_array_equal(data[i], pictures[n][0].transpose(2, 0, 1))
            np.testing.assert_allclose(label[0, 0, i], [i, n + 1, 7, *pictures[n][1], n == 2], rtol=1e-6)


def test_raw_records_give_the_same(some, tmp_path):
    _, pictures = some
    raw = write_annotated(tmp_path / "raw", [annotated(image, [(1, *box)], encoded=False) for image, box in pictures])
    data, label = batch(source_net(text(raw, size=5, transform="scale: 0.5 mean_value: 16")))
    for i, (image, box) in enumerate(pictures):
        np.testing.assert_array_equal(data[i], (image.transpose(2, 0, 1) - 16.0) * 0.5)
        np.testing.assert_allclose(label[0, 0, i, 3:7], box, rtol=1e-6)


def test_records_and_their_labels(tmp_path):
    image, box = rectangle(np.random.default_rng(1))
    records = [annotated(image, []), annotated(image, [(3, *box), (1, 0, 0, 1, 1), (3, 0, 0, 0.5, 0.5, 1, True)]), annotated(image, [])]
    net = source_net(text(write_annotated(tmp_path / "db", records), size=1))
    assert batch(net)[1].tolist() == [[[[-1] * 8]]]
    label = batch(net)[1]
    assert label.shape == (1, 1, 3, 8) and label[0, 0, :, 1].tolist() == [3, 3, 1] and label[0, 0, :, 7].tolist() == [0, 1, 0]
    net = source_net(text(write_annotated(tmp_path / "db2", records), size=3))
    assert batch(net)[1][0, 0, :, 0].tolist() == [1, 1, 1]
    image = np.zeros((4, 4, 3), np.uint8)
    records = []
    for label in (5, 8):
        record = caffe_pb2.AnnotatedDatum.FromString(annotated(image, []))
        record.ClearField("type")
        record.datum.label = label
        records.append(record.SerializeToString())
    source = write_annotated(tmp_path / "db3", records)
    net = source_net(text(source, size=2))
    assert net.tops[0][1].shape == (2, 1, 1, 1) and batch(net)[1].ravel().tolist() == [5, 8]
    net = source_net(text(source, "", "anno_type: BBOX", size=2))
    assert batch(net)[1].tolist() == [[[[-1] * 8]]]


# ---- boxes follow what is done to the picture: the box of the label is that of the bright pixels

SAMPLER = ("batch_sampler {{ sampler {{ min_scale: 0.3 max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }} "
           "sample_constraint {{ {} }} max_sample: 1 max_trials: 50 }}")
FOLLOWED = [
    ("mirror: true", "", 48, 64), ("crop_size: 40", "", 40, 40), ("crop_h: 20 crop_w: 50 mirror: true", "", 20, 50),
    ("resize_param { height: 96 width: 96 interp_mode: LINEAR interp_mode: AREA interp_mode: NEAREST interp_mode: CUBIC "
     "interp_mode: LANCZOS4 }", "", 96, 96),
    ("resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 100 width: 80 }", "", 100, 80),
    ("resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 40 width: 120 } mirror: true", "", 40, 120),
    ("resize_param { resize_mode: FIT_SMALL_SIZE height: 96 width: 96 }", "", 96, 128),
    ("resize_param { resize_mode: FIT_SMALL_SIZE height: 24 width: 96 } crop_size: 40", "", 40, 40),
    ("expand_param { max_expand_ratio: 4 } mean_value: 16 resize_param { height: 192 width: 256 }", "", 192, 256),
    ("resize_param { height: 80 width: 80 } mirror: true", SAMPLER.format("min_object_coverage: 0.3"), 80, 80),
    ("expand_param { max_expand_ratio: 2 } mean_value: 16 resize_param { height: 90 width: 90 } crop_h: 80 crop_w: 70 mirror: true",
     SAMPLER.format("min_jaccard_overlap: 0.1"), 80, 70),
]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("transform, fields, height, width", FOLLOWED)
def test_boxes_follow_the_picture(some, transform, fields, height, width, phase):
    net = source_net(text(some[0], transform, fields), phase=phase)
    seen, offset = set(), 16 if "mean_value" in transform else 0
    for _ in range(20):
        data, label = batch(net)
        assert data.shape == (1, 3, height, width)
        rows = label[0, 0]
        box = bright_box(data[0, 0] + offset)
        mine = None if rows[0, 0] == -1 else rows[0, 3:7]
        assert len(rows) == 1
        if mine is None or box is None:  # all that one of them sees is a rest of a pixel or two
            rest = box if mine is None else mine
            assert rest is None or (rest[2:] - rest[:2]).min() < 3 / 20
        else:
            np.testing.assert_allclose(rows[0, 3:7], box, atol=2.6 / min(height, width))  # half a pixel of the source, enlarged
            seen.add(tuple(np.round(rows[0, 3:7], 3)))
    assert len(seen) >= 5  # of at least the five pictures; more where something is drawn
    random = ("mirror" in transform or "expand" in transform or fields) or ("crop" in transform and phase == TRAIN)
    assert not random or len(seen) > 5


@pytest.mark.parametrize("emit, left", [("", 2), ("emit_constraint { }", 1), ("emit_constraint { emit_type: CENTER }", 1),
                                        ("emit_constraint { emit_type: MIN_OVERLAP emit_overlap: 0.2 }", 2),
                                        ("emit_constraint { emit_type: MIN_OVERLAP emit_overlap: 0.3 }", 1)])
def test_emit_constraint(tmp_path, emit, left):
    image = np.zeros((40, 40, 3), np.uint8)
    # The crop shows 0.25..0.75: the first box inside, the second by a quarter, the third by nothing, the fourth touches.
    boxes = [(1, 0.3, 0.3, 0.6, 0.6), (2, 0.65, 0.3, 1.05, 0.5), (3, 0.8, 0.8, 0.9, 0.9), (4, 0.75, 0.3, 0.9, 0.5)]
    net = source_net(text(write_annotated(tmp_path / "db", [annotated(image, boxes)]), f"crop_size: 20 {emit}"), phase=TEST)
    label = batch(net)[1][0, 0]
    assert label[:, 1].tolist() == [1, 2][:left]
    np.testing.assert_allclose(label[0, 3:7], [0.1, 0.1, 0.7, 0.7], atol=1e-6)


@pytest.mark.parametrize("emit, labels", [("CENTER", [1, 2]), ("MIN_OVERLAP emit_overlap: 0.5", []),
                                          ("MIN_OVERLAP emit_overlap: 0.49", [1, 2])])
def test_emit_constraint_at_its_limit(tmp_path, emit, labels):
    """The crop shows half of each box, whose centre is on its edge."""
    boxes = [(1, 0.1875, 0.25, 0.3125, 0.75), (2, 0.6875, 0.25, 0.8125, 0.75)]
    source = write_annotated(tmp_path / "db", [annotated(np.zeros((40, 40, 3), np.uint8), boxes)])
    net = source_net(text(source, f"crop_size: 20 emit_constraint {{ emit_type: {emit} }}"), phase=TEST)
    assert batch(net)[1][0, 0, :, 1].tolist() == (labels or [-1])


def test_parts_of_pictures(tmp_path):
    """What no part meets, no trials, no samples, or not of the original picture: the picture stays whole."""
    source = write_annotated(tmp_path / "db", [annotated(np.zeros((50, 50, 3), np.uint8), [(1, 0.4, 0.4, 0.6, 0.6)])])
    half = "batch_sampler {{ sampler {{ min_scale: 0.5 max_scale: 0.5 }} sample_constraint {{ {} }} max_sample: {} max_trials: {} }}"
    for fields in (half.format("min_object_coverage: 1 max_object_coverage: 1 min_jaccard_overlap: 0.9", 1, 50), half.format("", 1, 0),
                   half.format("", 0, 9), half.format("", 1, 9)[:-1] + " use_original_image: false }"):
        assert batch(source_net(text(source, "", fields)))[0].shape == (1, 3, 50, 50)
    assert batch(source_net(text(source, "", half.format("min_object_coverage: 1", 1, 1000))))[0].shape == (1, 3, 25, 25)
    image = np.zeros((3, 4, 3), np.uint8)
    source = write_annotated(tmp_path / "pixel", [annotated(image, [])])
    net = source_net(text(source, "", "batch_sampler { sampler { min_scale: 0.1 max_scale: 0.1 } max_sample: 1 max_trials: 1 }"))
    assert {batch(net)[0].shape for _ in range(10)} == {(1, 3, 1, 1)}


def test_colours_of_pictures(some):
    source, pictures = some

    def first(transform):
        return batch(source_net(text(source, transform)))[0][0].transpose(1, 2, 0)

    image = pictures[0][0].astype(float)
    bright = first("distort_param { brightness_prob: 1 brightness_delta: 32 }") - image
    shift = np.median(bright)
    assert abs(shift) > 0 and abs(shift) <= 32 and (np.abs(bright - shift) <= 32).all()
    contrast = first("distort_param { contrast_prob: 1 contrast_lower: 0.5 contrast_upper: 0.5 }")
    np.testing.assert_array_equal(contrast, image / 2)
    for transform in ("distort_param { saturation_prob: 1 saturation_lower: 0.5 saturation_upper: 1.5 hue_prob: 1 hue_delta: 18 }",
                      "distort_param { random_order_prob: 1 }", "distort_param { }"):
        np.testing.assert_array_equal(first(transform), image)  # gray has neither saturation nor hue, and three equal channels
    np.testing.assert_array_equal(first("noise_param { prob: 0 inverse: true }"), image)
    assert set(np.unique(first("noise_param { hist_eq: true }"))) <= {0, 255}
    peppered = first("noise_param { saltpepper: true saltpepper_param { fraction: 0.1 value: 99 } }")
    assert 0.05 < (peppered == 99).mean() < 0.1 and ((peppered == 99) | (peppered == image)).all()
    eroded = first("noise_param { erode: true }")
    assert (eroded > 128).sum() < (image > 128).sum() and (eroded <= image).all()
    assert 0 < np.abs(first("noise_param { jpeg: 20 }") - image).max() < 120
    assert (first("noise_param { gauss_blur: true }") != image).any() and (first("noise_param { clahe: true }") != image).any()
    lab = first("noise_param { convert_to_lab: true }")
    assert lab.max() > 90 and np.abs(lab[..., 1:]).max() < 0.1  # lightness up to 100, no colour
    image = some[1][0][0]
    means = "mean_value: 10 mean_value: 20 mean_value: 30"
    data = batch(source_net(text(some[0], f"expand_param {{ max_expand_ratio: 4 }} {means}")))[0][0].transpose(1, 2, 0)
    assert data.shape > image.shape and (data == 0).all(2).sum() == data[..., 0].size - image[..., 0].size
    data = batch(source_net(text(some[0], f"expand_param {{ max_expand_ratio: 1 }} {means}")))[0][0].transpose(1, 2, 0)
    np.testing.assert_array_equal(data, image - np.array([10.0, 20, 30]))


def test_colour_changes_in_colour(tmp_path):
    image = np.zeros((6, 6, 3), np.uint8)
    image[...] = (40, 80, 200)
    source = write_annotated(tmp_path / "db", [annotated(image, [])] * 2)
    for transform in ("saturation_prob: 1 saturation_lower: 0.5 saturation_upper: 0.5", "hue_prob: 1 hue_delta: 40",
                      "random_order_prob: 1"):
        net = source_net(text(source, f"distort_param {{ {transform} }}"))
        pixels = {tuple(batch(net)[0][0, :, 0, 0]) for _ in range(12)}
        if transform.startswith("saturation"):
            (blue, green, red), = pixels
            assert red == 200 and 110 <= blue <= 125 and abs((red - blue) - 80) <= 4
        else:
            assert len(pixels) > 3
            if transform.startswith("random"):
                assert {tuple(sorted(pixel)) for pixel in pixels} == {(40, 80, 200)}


@pytest.mark.parametrize("transform, wanted", [
    ("distort_param { brightness_delta: 32 contrast_lower: 0.5 contrast_upper: 0.5 saturation_lower: 0.5 saturation_upper: 0.5 "
     "hue_delta: 40 }", (40, 80, 200)),  # without a probability nothing is done
    ("noise_param { }", (40, 80, 200)), ("noise_param { jpeg: 0 }", (40, 80, 200)), ("noise_param { inverse: true }", (215, 175, 55)),
    ("noise_param { posterize: true }", (32, 96, 224)), ("noise_param { decolorize: true }", (111, 111, 111)),
    ("noise_param { saltpepper_param { fraction: 1 value: 9 } }", (40, 80, 200)),  # not asked for
    ("noise_param { saltpepper: true saltpepper_param { fraction: 0 value: 9 value: 8 } }", (40, 80, 200)),
    ("noise_param { convert_to_hsv: true }", (8, 204, 200)), ("resize_param { height: 1 width: 1 }", (40, 80, 200))])
def test_a_colour_becomes(tmp_path, transform, wanted):
    image = np.full((6, 6, 3), (40, 80, 200), np.uint8)
    data = batch(source_net(text(write_annotated(tmp_path / "db", [annotated(image, [])]), transform)))[0]
    assert {tuple(pixel) for pixel in data[0].reshape(3, -1).T} == {wanted}


def test_gray_and_float_pictures(tmp_path):
    image = np.full((6, 6, 1), 50, np.uint8)
    image[:3] = 60
    source = write_annotated(tmp_path / "db", [annotated(image, [])])

    def first(transform):
        return batch(source_net(text(source, transform)))[0][0, 0]

    np.testing.assert_array_equal(first("noise_param { decolorize: true }"), image[..., 0])
    np.testing.assert_array_equal(first("noise_param { hist_eq: true }"), np.where(image[..., 0] == 50, 0, 255))
    assert first("noise_param { jpeg: 100 gauss_blur: true erode: true }").shape == (6, 6)
    for transform, field in (("distort_param { saturation_prob: 1 }", "distort_param.saturation_prob"),
                             ("distort_param { hue_prob: 1 }", "distort_param.hue_prob"),
                             ("noise_param { convert_to_hsv: true }", "noise_param.convert_to_hsv"),
                             ("noise_param { convert_to_lab: true }", "noise_param.convert_to_lab")):
        with pytest.raises(DataError, match=f"holds a picture of 1 channels; {field} needs 3"):
            first(transform)
    record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
    record.datum.channels, record.datum.height, record.datum.width = 1, 2, 3
    record.datum.float_data.extend(np.arange(6) / 4)
    source = write_annotated(tmp_path / "floats", [record.SerializeToString()])
    np.testing.assert_array_equal(batch(source_net(text(source, "scale: 2")))[0].ravel(), np.arange(6) / 2)
    for name in ("distort_param", "noise_param"):
        with pytest.raises(DataError, match=f"holds a picture of float32; {name} works on pictures of bytes"):
            source_net(text(source, f"{name} {{ }}"))


def test_sizes_of_surroundings_and_boxes(some, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("minicaffe.addons.ssd.resize.MOST_PIXELS", 48 * 64)
        with pytest.raises(ShapeError, match="transform_param.expand_param: a picture of 48 x 64 would become .*; lower max_expand_ratio"):
            source_net(text(some[0], "expand_param { max_expand_ratio: 9 }"))
        source_net(text(some[0], "expand_param { max_expand_ratio: 1 }"))       # exactly as many as are allowed
    transform = "resize_param {{ resize_mode: FIT_SMALL_SIZE height: 96 width: 96 {} }}"
    plain = batch(source_net(text(some[0], transform.format(""))))[1][0, 0, 0, 3:7]
    scaled = batch(source_net(text(some[0], transform.format("height_scale: 48 width_scale: 64"))))[1][0, 0, 0, 3:7]
    np.testing.assert_allclose(scaled, plain * 2, rtol=1e-5)
    warped = batch(source_net(text(some[0], "resize_param { height: 96 width: 128 height_scale: 48 width_scale: 64 }")))
    np.testing.assert_allclose(warped[1][0, 0, 0, 3:7], plain, rtol=1e-5)  # only there has a picture another size


# ---- resuming

def test_resumed_runs_and_batch_sizes(some):
    transform = "mirror: true crop_size: 40 expand_param { max_expand_ratio: 2 } distort_param { brightness_prob: 0.5 brightness_delta: 32 } " \
                "resize_param { height: 50 width: 50 }"
    net = source_net(text(some[0], transform, SAMPLER.format("min_jaccard_overlap: 0.1"), size=2))
    for _ in range(3):
        batch(net)
    state = net.layers[0].get_state()
    wanted = [batch(net) for _ in range(3)]
    other = source_net(text(some[0], transform, SAMPLER.format("min_jaccard_overlap: 0.1"), size=2), seed=99)
    other.layers[0].set_state(state)
    for data, label in wanted:
        again = batch(other)
        np.testing.assert_array_equal(data, again[0])
        np.testing.assert_array_equal(label, again[1])
    transform = "mirror: true crop_size: 40 expand_param { max_expand_ratio: 2 } resize_param { height: 50 width: 50 }"
    one, three = (source_net(text(some[0], transform, size=size)) for size in (1, 3))
    single = [batch(one)[0][0] for _ in range(6)]
    np.testing.assert_array_equal(single, np.concatenate([batch(three)[0] for _ in range(2)]))


# ---- what is wrong

@pytest.mark.parametrize("transform, fields, message", [
    ("", "batch_sampler { sampler { min_scale: 0 } }", r"annotated_data_param.batch_sampler\[0\].sampler.min_scale: must be above 0 and at most 1, got 0"),
    ("", "batch_sampler { sampler { max_scale: 2 } }", r"batch_sampler\[0\].sampler.max_scale: must be at least min_scale, 1, and at most 1, got 2"),
    ("", "batch_sampler { sampler { min_aspect_ratio: 2 } }", r"sampler.max_aspect_ratio: must be at least min_aspect_ratio, 2, and finite, got 1"),
    ("", "batch_sampler { sample_constraint { min_jaccard_overlap: 0.5 max_jaccard_overlap: 0.25 } }",
     r"sample_constraint.max_jaccard_overlap: must be at least min_jaccard_overlap, 0.5, got 0.25"),
    ("crop_h: 3", "", "transform_param.crop_h: give crop_h and crop_w, or neither, got 3 and 0"),
    ("crop_h: 3 crop_w: 3 crop_size: 3", "", "transform_param.crop_size: give crop_size, or crop_h and crop_w, not both"),
    ("crop_h: 30 crop_w: 65", "", "transform_param.crop_h: must be at most height and width of the picture, got 30 x 65"),
    ("resize_param { height: 99 width: 5 resize_mode: FIT_LARGE_SIZE_AND_PAD pad_value: 1 pad_value: 2 }", "",
     "resize_param.pad_value: give one, or one for each of the 3 channels, got 2"),
    ("expand_param { prob: 2 }", "", "expand_param.prob: must be from 0 to 1, got 2"),
    ("distort_param { hue_prob: -1 }", "", "distort_param.hue_prob: must be from 0 to 1, got -1"),
    ("distort_param { brightness_delta: -1 }", "", "distort_param.brightness_delta: must be at least 0 and below 1e6, got -1"),
    ("distort_param { hue_delta: 1e6 }", "", r"distort_param.hue_delta: must be at least 0 and below 1e6, got 1e\+06"),
    ("distort_param { contrast_upper: 1e6 }", "", r"distort_param.contrast_upper: must be below 1e6 and at least .*, got 1e\+06 and 0"),
    ("emit_constraint { emit_type: MIN_OVERLAP emit_overlap: 2 }", "", "emit_constraint.emit_overlap: must be from 0 to 1, got 2"),
    ("crop_size: 65", "", "transform_param.crop_size"),
    ("", 'label_map_file: "/nowhere/labels.prototxt"', "annotated_data_param.label_map_file: .*no such file")])
def test_wrong_prototxt(some, transform, fields, message):
    with pytest.raises(Error, match=rf"test.prototxt.*layer 'd' \(AnnotatedData\): .*{message}"):
        source_net(text(some[0], transform, fields))


def test_wrong_batch_and_labels(some, tmp_path):
    with pytest.raises(ConfigError, match="data_param.batch_size: must be at least 1, got 0"):
        source_net(text(some[0], size=0))
    with pytest.raises(ConfigError, match="resize_mode: FIT_SMALL_SIZE gives each picture its own size; it needs batch_size 1, got 2"):
        source_net(text(some[0], "resize_param { resize_mode: FIT_SMALL_SIZE height: 9 width: 9 }", size=2))
    (tmp_path / "map").write_text("".join(f'item {{ name: "thing {i}" label: {i} }}' for i in range(1, 6)))
    batch(source_net(text(some[0], "", f'label_map_file: "{tmp_path}/map"', size=5)))
    (tmp_path / "map").write_text('item { name: "thing" label: 1 }')
    net = source_net(text(some[0], "", f'label_map_file: "{tmp_path}/map"', size=5))
    with pytest.raises(DataError, match=r"record 1 \(key '00000001'\): has label 2, which label_map_file does not name"):
        batch(net)
    net = source_net(text(some[0], top='top: "data"'))
    net.forward_from_to(0, 0)
    assert len(net.tops[0]) == 1 and net.tops[0][0].shape == (1, 3, 48, 64)


def test_wrong_records(tmp_path):
    image, box = rectangle(np.random.default_rng(1))
    good = annotated(image, [(1, *box)])
    empty = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX).SerializeToString()
    for i, (record, message) in enumerate((
            (b"\xff\xff", "is no AnnotatedDatum"), (empty, "without a picture"), (annotated(image, [(1, np.nan, 0, 1, 1)]), "corners"),
            (annotated(image[:, :9], []), "is 3 x 48 x 9, the first of the batch is 3 x 48 x 64"))):
        source = write_annotated(tmp_path / f"db{i}", [good, record])
        net = source_net(text(source, size=2))
        with pytest.raises(DataError, match=rf"record 1 \(key '00000001'\): .*{message}") as caught:
            batch(net)
        assert source in str(caught.value)
        if i < 3:  # as first record it is met when the net is built
            with pytest.raises(DataError, match=rf"layer 'd' \(AnnotatedData\): .*{message}"):
                source_net(text(write_annotated(tmp_path / f"first{i}", [record, good])))


def test_untrusted(some, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="annotated_data_param.label_map_file: the net is not trusted"):
        source_net(text("db", "", 'label_map_file: "/etc/passwd"'), trusted=False)
    source_net(text("db"), trusted=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="data_param.source: the net is not trusted"):
        source_net(text(some[0]), trusted=False)


def test_distortions_go_both_ways():
    """Brightness and hue are drawn from -delta to delta, contrast and saturation from lower to upper, for each record."""
    Param = caffe_pb2.TransformationParameter
    image = np.full((3, 4, 3), (60, 100, 140), np.uint8)
    changes = {}
    for name, fields in (("brightness", {"brightness_prob": 1, "brightness_delta": 32}), ("hue", {"hue_prob": 1, "hue_delta": 20}),
                         ("contrast", {"contrast_prob": 1, "contrast_lower": 0.5, "contrast_upper": 1.5}),
                         ("saturation", {"saturation_prob": 1, "saturation_lower": 0.5, "saturation_upper": 1.5})):
        augmenter = Augmenter(Param(distort_param=fields), seed=3)
        made = np.array([augmenter.picture(image, number)[0, 0] for number in range(60)]).astype(int)
        assert (made == [augmenter.picture(image, number)[0, 0] for number in range(60)]).all()
        hsv = cv2.cvtColor(made.astype(np.uint8)[np.newaxis], cv2.COLOR_BGR2HSV)[0].astype(int)
        changes[name] = {"brightness": made[:, 1] - 100, "hue": hsv[:, 0] - 15, "contrast": made[:, 1] / 100, "saturation": hsv[:, 1] / 146}[name]
    for name, (lower, upper) in {"brightness": (-32, 32), "hue": (-20, 20), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5)}.items():
        found, middle = changes[name], (lower + upper) / 2
        if name == "hue":
            found = (found + 90) % 180 - 90     # OpenCV's hues are 0 to 180
        slack = 0.1 * (upper - lower)
        assert found.min() >= lower - slack and found.max() <= upper + slack, name
        assert found.min() < (lower + middle) / 2 and found.max() > (upper + middle) / 2, name


@pytest.mark.parametrize("fields, message", [
    ({"expand_param": {"max_expand_ratio": 1000}}, "expand_param.max_expand_ratio: must be at least 1 and below 1000, got 1000"),
    ({"expand_param": {"max_expand_ratio": 0.5}}, "expand_param.max_expand_ratio: must be at least 1 and below 1000, got 0.5"),
    ({"distort_param": {"contrast_lower": 2, "contrast_upper": 1}},
     "distort_param.contrast_upper: must be below 1e6 and at least contrast_lower, which must be at least 0, got 1 and 2"),
    ({"distort_param": {"hue_delta": -1}}, "distort_param.hue_delta: must be at least 0 and below 1e6, got -1"),
    ({"resize_param": {"height": 3}}, "resize_param.width: must be given and at least 1, got 0"),
    ({"resize_param": {"height": 3, "width": 3, "width_scale": 2}}, "resize_param.height_scale: give height_scale and width_scale, or neither"),
    ({"resize_param": {"height": 1 << 15, "width": 1 << 16}}, "resize_param.height: 32768 x 65536 pixels are too many for one picture"),
    ({"resize_param": {"height": 3, "width": 3, "prob": 1.5}}, "resize_param.prob: must be from 0 to 1, got 1.5"),
    ({"resize_param": {"height": 3, "width": 3, "prob": -0.5}}, "resize_param.prob: must be from 0 to 1, got -0.5")])
def test_messages_of_wrong_transformations(fields, message):
    with pytest.raises(ConfigError) as caught:
        Augmenter(caffe_pb2.TransformationParameter(**fields))
    assert str(caught.value) == f"transform_param.{message}"
    for prob in 0, 1:
        Augmenter(caffe_pb2.TransformationParameter(resize_param={"height": 3, "width": 3, "prob": prob}))


def test_pepper_and_empty_boxes(recwarn):
    Param = caffe_pb2.TransformationParameter
    augmenter = Augmenter(Param(noise_param={"saltpepper": True, "saltpepper_param": {"fraction": 0.9, "value": [1, 2]}}))
    with pytest.raises(ConfigError, match=r"^transform_param.noise_param.saltpepper_param.value: give one, or one for each of the 3 channels, got 2$"):
        augmenter.picture(np.zeros((4, 4, 3), np.uint8), 0)
    made = augmenter.picture(np.zeros((4, 4, 2), np.uint8), 0)
    assert {tuple(pixel) for pixel in made.reshape(-1, 2)} <= {(0, 0), (1, 2)} and made.any()
    augmenter = Augmenter(caffe_pb2.TransformationParameter(emit_constraint={"emit_type": "MIN_OVERLAP", "emit_overlap": 0}))
    objects = np.array([[1, 0, 0.5, 0.5, 0.5, 0.7, 0], [2, 0, 0.25, 0.25, 0.75, 0.75, 0], [3, 0, 0.5, 0.5, 0.6, 0.4, 0]])
    assert augmenter.project(objects, np.array([0, 0, 1, 1])).tolist() == objects[1:2].tolist() and not recwarn.list
