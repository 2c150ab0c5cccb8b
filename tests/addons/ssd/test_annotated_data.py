"""AnnotatedData: pictures, boxes that follow them, order, resuming, and what is wrong with records and fields."""

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from annotated import annotated, bright_box, rectangle, write_annotated  # noqa: E402
from pictures import batch, source_net  # noqa: E402

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
def test_pictures_and_boxes_in_order(some, tmp_path, dtype):
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
    pixels = {"channels": 1, "height": 1, "width": 1, "data": b"a"}
    records = [caffe_pb2.AnnotatedDatum(datum={"label": label, **pixels}).SerializeToString() for label in (5, 8)]
    source = write_annotated(tmp_path / "db3", records)
    net = source_net(text(source, size=2))
    assert net.tops[0][1].shape == (2, 1, 1, 1) and batch(net)[1].ravel().tolist() == [5, 8]
    net = source_net(text(source, "", "anno_type: BBOX", size=2))
    assert batch(net)[1].tolist() == [[[[-1] * 8]]]


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
    """The box of the label is that of the bright pixels, whatever is done to the picture."""
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


@pytest.mark.parametrize("emit, inside, at_edge", [
    ("", 2, 2), ("emit_constraint { }", 1, 2), ("emit_constraint { emit_type: CENTER }", 1, 2),
    *((f"emit_constraint {{ emit_type: MIN_OVERLAP emit_overlap: {least} }}", inside, at_edge)
      for least, inside, at_edge in ((0.2, 2, 2), (0.3, 1, 2), (0.49, 1, 2), (0.5, 1, 0)))])
def test_emit_constraint(tmp_path, emit, inside, at_edge):
    # The crop shows 0.25..0.75: the first box inside, the second by a quarter, the third by nothing, the fourth touches.
    boxes = [(1, 0.3, 0.3, 0.6, 0.6), (2, 0.65, 0.3, 1.05, 0.5), (3, 0.8, 0.8, 0.9, 0.9), (4, 0.75, 0.3, 0.9, 0.5)]
    halves = [(1, 0.1875, 0.25, 0.3125, 0.75), (2, 0.6875, 0.25, 0.8125, 0.75)]     # whose centres are on the edge
    source = write_annotated(tmp_path / "db", [annotated(np.zeros((40, 40, 3), np.uint8), some) for some in (boxes, halves)])
    net = source_net(text(source, f"crop_size: 20 {emit}"), phase=TEST)
    label = batch(net)[1][0, 0]
    assert label[:, 1].tolist() == [1, 2][:inside]
    np.testing.assert_allclose(label[0, 3:7], [0.1, 0.1, 0.7, 0.7], atol=1e-6)
    assert batch(net)[1][0, 0, :, 1].tolist() == ([1, 2][:at_edge] or [-1])


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
    for transform in ("saturation_prob: 1 saturation_lower: 0.5 saturation_upper: 1.5 hue_prob: 1 hue_delta: 18", "random_order_prob: 1", ""):
        # gray has neither saturation nor hue, and three equal channels
        np.testing.assert_array_equal(first(f"distort_param {{ {transform} }}"), image)
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
    image, means = some[1][0][0], "mean_value: 10 mean_value: 20 mean_value: 30"
    data = first(f"expand_param {{ max_expand_ratio: 4 }} {means}")
    assert data.shape > image.shape and (data == 0).all(2).sum() == data[..., 0].size - image[..., 0].size
    np.testing.assert_array_equal(first(f"expand_param {{ max_expand_ratio: 1 }} {means}"), image - np.array([10.0, 20, 30]))


@pytest.mark.parametrize("transform, wanted", [
    ("distort_param { brightness_delta: 32 contrast_lower: 0.5 contrast_upper: 0.5 saturation_lower: 0.5 saturation_upper: 0.5 "
     "hue_delta: 40 }", (40, 80, 200)),  # without a probability nothing is done
    ("distort_param { contrast_prob: 1 contrast_lower: 0.5 contrast_upper: 0.5 }", (20, 40, 100)),
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
    for step, field, value in (("distort", "saturation_prob", 1), ("distort", "hue_prob", 1), ("noise", "convert_to_hsv", "true"),
                               ("noise", "convert_to_lab", "true")):
        with pytest.raises(DataError, match=f"holds a picture of 1 channels; {step}_param.{field} needs 3"):
            first(f"{step}_param {{ {field}: {value} }}")
    floats = {"channels": 1, "height": 2, "width": 3, "float_data": np.arange(6) / 4}
    record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX, datum=floats)
    source = write_annotated(tmp_path / "floats", [record.SerializeToString()])
    np.testing.assert_array_equal(batch(source_net(text(source, "scale: 2")))[0].ravel(), np.arange(6) / 2)
    for name in ("distort_param", "noise_param"):
        with pytest.raises(DataError, match=f"holds a picture of float32; {name} works on pictures of bytes"):
            source_net(text(source, f"{name} {{ }}"))


def test_sizes_of_surroundings_boxes_batches(some, monkeypatch):
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
    transform = "mirror: true crop_size: 40 expand_param { max_expand_ratio: 2 } resize_param { height: 50 width: 50 }"
    one, three = (source_net(text(some[0], transform, SAMPLER.format("min_jaccard_overlap: 0.1"), size=size)) for size in (1, 3))
    single = [batch(one)[0][0] for _ in range(6)]
    np.testing.assert_array_equal(single, np.concatenate([batch(three)[0] for _ in range(2)]))


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


def test_wrong_batch_labels_and_trust(some, tmp_path, monkeypatch):
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
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="annotated_data_param.label_map_file: the net is not trusted"):
        source_net(text("db", "", 'label_map_file: "/etc/passwd"'), trusted=False)
    source_net(text("db"), trusted=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="data_param.source: the net is not trusted"):
        source_net(text(some[0]), trusted=False)
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
