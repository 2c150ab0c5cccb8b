"""SSD's steps of transform_param: alone, and in Data and ImageData; in AnnotatedData: test_annotated_data.py."""

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from pictures import batch, planes, source_net, write_pictures  # noqa: E402
from records import datum  # noqa: E402
from test_data import LABELS, check_draws, real_valued, text, three_records, with_size, write  # noqa: E402
from test_image_data import text as image_text  # noqa: E402

from minicaffe.addons.ssd.augment import Augmenter  # noqa: E402
from minicaffe.common import TEST  # noqa: E402
from minicaffe.data.mean_file import write_mean  # noqa: E402
from minicaffe.data.transform import Transformer  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, ShapeError  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402

PICTURE = np.random.default_rng(1).integers(0, 256, (7, 5, 3), np.uint8)


def param(**fields):
    return caffe_pb2.TransformationParameter(**fields)


@pytest.fixture
def source(tmp_path):
    return three_records(tmp_path)


def test_mean_file_and_changing_sizes(tmp_path):
    """A mean file cannot fit pictures that expand_param or resize_param gives another size: the remedy is mean_value."""
    write_mean(tmp_path / "mean", np.zeros((3, 4, 4), np.float32))
    mean = str(tmp_path / "mean")
    expand = {"prob": 0.5, "max_expand_ratio": 4}
    with pytest.raises(ConfigError, match="expand_param: gives each picture a size of its own, which no mean_file fits; give a mean_value"):
        Augmenter(param(mean_file=mean, expand_param=expand))
    both = param(mean_file=mean, expand_param=expand, resize_param={"height": 7, "width": 5, "prob": 1})
    Augmenter(both)     # every picture gets one size
    with pytest.raises(ConfigError, match="gives each picture a size of its own"):
        Augmenter(param(mean_file=mean, expand_param=expand, resize_param={"height": 7, "width": 5, "prob": 0.99}))
    Augmenter(param(mean_file=mean, expand_param={"prob": 0.5, "max_expand_ratio": 1}))
    with pytest.raises(ShapeError, match="after expand_param and resize_param.; give a mean_value for each channel") as error:
        Transformer(both, TEST).load([datum(PICTURE.transpose(2, 0, 1))]).shape[1:]
    assert "make the mean file" not in str(error.value)
    Augmenter(param(mean_value=[1], expand_param=expand))
    Augmenter(param(mean_file=mean, expand_param={"prob": 0, "max_expand_ratio": 4}))


EVERY_STEP = {
    "distort_param": [{f"{name}_prob": 1, **more} for name, more in (
        ("brightness", {"brightness_delta": 30}), ("contrast", {"contrast_lower": 0.5, "contrast_upper": 0.6}),
        ("saturation", {"saturation_lower": 0.5, "saturation_upper": 0.6}), ("hue", {"hue_delta": 30}), ("random_order", {}))],
    "expand_param": [{"prob": 1, "max_expand_ratio": 2}], "resize_param": [{"height": 7, "width": 5}, {"height": 3, "width": 9}],
    "noise_param": [{name: True} for name in ("decolorize", "gauss_blur", "hist_eq", "clahe", "erode", "posterize", "inverse", "convert_to_hsv", "convert_to_lab")]
    + [{"jpeg": 20}, {"saltpepper": True, "saltpepper_param": {"fraction": 0.5, "value": [9]}}],
}


@pytest.mark.parametrize(("step", "fields"), [(step, fields) for step, several in EVERY_STEP.items() for fields in several])
def test_steps_keep_their_picture(step, fields):
    """A picture may lie in a cache or in a database's pages."""
    before, picture = PICTURE, PICTURE.copy()
    picture.flags.writeable = False
    augmenter = Augmenter(param(**{step: fields}), seed=2)
    made = [augmenter.picture(picture, number) for number in range(6)]
    np.testing.assert_array_equal(picture, before)
    assert any(one.shape != before.shape or (one != before).any() for one in made) or fields == {"height": 7, "width": 5}
    for number, one in enumerate(made):
        np.testing.assert_array_equal(augmenter.picture(picture, number), one)      # of the seed and the number alone
    if step in ("resize_param", "expand_param"):
        objects = np.array([[1, 0, 0.25, 0.25, 0.75, 0.5, 0]])
        pad = {"resize_mode": caffe_pb2.ResizeParameter.FIT_LARGE_SIZE_AND_PAD} if step == "resize_param" else {}
        _, moved = Augmenter(param(**{step: {**fields, **pad}}))(picture[:, :3], objects, 0)
        assert objects.tolist() == [[1, 0, 0.25, 0.25, 0.75, 0.5, 0]] and moved.shape == (1, 7) and (moved != objects).any()


def test_steps_have_their_probability():
    for step, fields in (("resize_param", {"height": 3, "width": 4}), ("expand_param", {"max_expand_ratio": 4}), ("noise_param", {"inverse": True})):
        for prob in 0, 0.5, 1:
            augmenter = Augmenter(param(**{step: {**fields, "prob": prob}}), seed=1)
            changed = sum(not np.shares_memory(augmenter.picture(PICTURE, number), PICTURE) for number in range(60))
            assert changed == 60 * prob or prob == 0.5 and 15 < changed < 45, step


def test_distortions_go_both_ways():
    """Brightness and hue are drawn from -delta to delta, contrast and saturation from lower to upper, for each record."""
    image = np.full((3, 4, 3), (60, 100, 140), np.uint8)
    ranges = {"brightness": (-32, 32), "hue": (-20, 20), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5)}
    for name, (lower, upper) in ranges.items():
        fields = {f"{name}_delta": upper} if lower < 0 else {f"{name}_lower": lower, f"{name}_upper": upper}
        augmenter = Augmenter(param(distort_param={f"{name}_prob": 1, **fields}), seed=3)
        made = np.array([augmenter.picture(image, number)[0, 0] for number in range(60)]).astype(int)
        hsv = cv2.cvtColor(made.astype(np.uint8)[np.newaxis], cv2.COLOR_BGR2HSV)[0].astype(int)
        hue = (hsv[:, 0] + 75) % 180 - 90     # OpenCV's hues are 0 to 180
        found = {"brightness": made[:, 1] - 100, "hue": hue, "contrast": made[:, 1] / 100, "saturation": hsv[:, 1] / 146}[name]
        middle, slack = (lower + upper) / 2, 0.1 * (upper - lower)
        assert found.min() >= lower - slack and found.max() <= upper + slack, name
        assert found.min() < (lower + middle) / 2 and found.max() > (upper + middle) / 2, name
    colours = np.full((1, 1, 3), (40, 80, 200), np.uint8)
    for fields in {"saturation_prob": 1, "saturation_lower": 0.5, "saturation_upper": 0.5}, {"hue_prob": 1, "hue_delta": 40}, {"random_order_prob": 1}:
        augmenter = Augmenter(param(distort_param=fields))
        made = {tuple(augmenter.picture(colours, number)[0, 0].tolist()) for number in range(12)}
        if "saturation_prob" in fields:
            (blue, green, red), = made
            assert red == 200 and 110 <= blue <= 125 and abs((red - blue) - 80) <= 4
        else:
            assert len(made) > 3 and ("hue_prob" in fields or {tuple(sorted(colour)) for colour in made} == {(40, 80, 200)})


@pytest.mark.parametrize(("channels", "means", "border"), [
    (3, [1, 2, 6], [1, 2, 6]), (3, [5], [5, 5, 5]), (3, [], [0, 0, 0]), (1, [1, 2, 6], [3]), (1, [4], [4]), (2, [1, 2, 6], [3, 3]), (5, [1, 2, 6], [3] * 5)])
def test_border_of_expanded_pictures(tmp_path, channels, means, border):
    picture = np.full((4, 6, channels), 200, np.uint8)
    fields = {"expand_param": {"prob": 1, "max_expand_ratio": 3}, "resize_param": {"height": 90, "width": 90, "interp_mode": [caffe_pb2.ResizeParameter.NEAREST]}}
    which = [{"mean_value": means}]
    if len(means) > 1:
        write_mean(tmp_path / "mean", np.stack([np.array([[mean - 1.0, mean + 1.0]]) for mean in means]))
        which.append({"mean_file": f"{tmp_path}/mean"})
    for mean in which:
        made = Augmenter(param(**fields, **mean)).picture(picture, 3)
        assert {tuple(pixel) for pixel in made.reshape(-1, channels).tolist()} == {tuple(border), (200,) * channels}


SALT, SIZE = "noise_param.saltpepper_param", {"height": 3, "width": 3}


@pytest.mark.parametrize(("fields", "message"), [
    ({"expand_param": {"max_expand_ratio": 1000}}, "expand_param.max_expand_ratio: must be at least 1 and below 1000, got 1000"),
    ({"expand_param": {"max_expand_ratio": 0.5}}, "expand_param.max_expand_ratio: must be at least 1 and below 1000, got 0.5"),
    ({"distort_param": {"contrast_lower": 2, "contrast_upper": 1}},
     "distort_param.contrast_upper: must be below 1e6 and at least contrast_lower, which must be at least 0, got 1 and 2"),
    ({"distort_param": {"hue_delta": -1}}, "distort_param.hue_delta: must be at least 0 and below 1e6, got -1"),
    ({"resize_param": {"height": 3}}, "resize_param.width: must be given and at least 1, got 0"),
    ({"resize_param": {**SIZE, "width_scale": 2}}, "resize_param.height_scale: give height_scale and width_scale, or neither"),
    ({"resize_param": {"height": 1 << 15, "width": 1 << 16}}, "resize_param.height: 32768 x 65536 pixels are too many for one picture"),
    *(({"resize_param": {**SIZE, "prob": prob}}, f"resize_param.prob: must be from 0 to 1, got {prob}") for prob in (1.5, -0.5)),
    *(({"noise_param": noise}, message) for noise, message in (
        ({"saltpepper": True, "saltpepper_param": {"fraction": 0.1}}, f"{SALT}.value: give the value of the pixels, one for all channels or one for each"),
        ({"saltpepper_param": {"fraction": -0.5}}, f"{SALT}.fraction: must be from 0 to 1, got -0.5"),
        ({"jpeg": 100.5}, "noise_param.jpeg: must be a quality up to 100, got 100.5"), ({"prob": 1.5}, "noise_param.prob: must be from 0 to 1, got 1.5"),
        ({"convert_to_hsv": True, "convert_to_lab": True}, "noise_param.convert_to_lab: give convert_to_hsv or convert_to_lab, not both")))])
def test_messages_of_wrong_transformations(fields, message):
    with pytest.raises(ConfigError) as caught:
        Augmenter(param(**fields))
    assert str(caught.value) == f"transform_param.{message}"


def test_fields_at_their_limits(recwarn):
    picture = np.full((8, 8, 3), 9, np.uint8)
    pepper = {"saltpepper": True, "saltpepper_param": {"fraction": 0.1, "value": [0]}}
    for noise in ({"saltpepper": True, "saltpepper_param": {"fraction": 0}}, {"saltpepper": True}, {"saltpepper_param": {"fraction": 0.1}}, pepper,
                  {"jpeg": 100}, {"jpeg": -1}, {"convert_to_hsv": True}, {"convert_to_lab": True}):
        assert Augmenter(param(noise_param=noise)).picture(picture, 0).shape == picture.shape, noise
    for prob in 0, 1:
        Augmenter(param(resize_param={**SIZE, "prob": prob}))
    augmenter = Augmenter(param(noise_param={"saltpepper": True, "saltpepper_param": {"fraction": 0.9, "value": [1, 2]}}))
    with pytest.raises(ConfigError, match=rf"^transform_param.{SALT}.value: give one, or one for each of the 3 channels, got 2$"):
        augmenter.picture(picture, 0)
    made = augmenter.picture(np.zeros((4, 4, 2), np.uint8), 0)
    assert {tuple(pixel) for pixel in made.reshape(-1, 2)} <= {(0, 0), (1, 2)} and made.any()
    augmenter = Augmenter(param(emit_constraint={"emit_type": "MIN_OVERLAP", "emit_overlap": 0}))
    objects = np.array([[1, 0, 0.5, 0.5, 0.5, 0.7, 0], [2, 0, 0.25, 0.25, 0.75, 0.75, 0], [3, 0, 0.5, 0.5, 0.6, 0.4, 0]])
    assert augmenter.project(objects, np.array([0, 0, 1, 1])).tolist() == objects[1:2].tolist() and not recwarn.list


def test_order_and_gray(source):
    path, pixels = source
    net = source_net(text(path, "scale: 0.5 mean_value: 9 crop_size: 4 resize_param { height: 12 width: 10 } noise_param { inverse: true }"),
                     phase=TEST)
    assert net.tops[0][0].shape == (2, 3, 4, 4)
    for k in range(3):
        data, labels = batch(net)
        for i in range(2):
            n = (2 * k + i) % 3
            wanted = (255 - cv2.resize(np.ascontiguousarray(pixels[n].transpose(1, 2, 0)), (10, 12)))[4:8, 3:7]
            np.testing.assert_array_equal(data[i], (wanted.transpose(2, 0, 1) - 9.0) / 2)
            assert labels[i] == n + 4
    data, _ = batch(source_net(text(path, "resize_param { height: 12 width: 10 } force_color: true")))
    assert data.shape == (2, 3, 12, 10)
    gray = np.ascontiguousarray(pixels[1].transpose(1, 2, 0))
    only = write(path + "1", [caffe_pb2.Datum(encoded=True, data=cv2.imencode(".png", gray)[1].tobytes()).SerializeToString()])
    data, _ = batch(source_net(text(only, "resize_param { height: 8 width: 6 interp_mode: NEAREST } force_gray: true", 1)))
    np.testing.assert_array_equal(data[0, 0], cv2.imdecode(cv2.imencode(".png", gray)[1], cv2.IMREAD_GRAYSCALE))


def test_wrong_fields_and_records(source, tmp_path):
    with pytest.raises(ConfigError, match=r"test.prototxt.*layer 'd' \(Data\): transform_param.resize_param.width: must be given"):
        source_net(text(source[0], "resize_param { height: 3 }"))
    with pytest.raises(Error, match=r"layer 'd' \(Data\): data_param.source: .*no such database"):
        source_net(text("nowhere", "resize_param { height: 3 width: 3 }"))
    with pytest.raises(ShapeError, match=r"record 0 \(key '00000000'\): transform_param.crop_size: .* got 6 for 3 x 4 x 5"):
        source_net(text(source[0], "crop_size: 6 resize_param { height: 4 width: 5 }"))
    good = caffe_pb2.Datum(channels=1, height=1, width=1, data=b"a").SerializeToString()
    net = source_net(text(write(tmp_path / "bad", [good, b"\xff\xff"]), "resize_param { height: 3 width: 3 }"))
    with pytest.raises(DataError, match=r"record 1 \(key '00000001'\): .*is no Datum"):
        batch(net)


def test_steps_of_image_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures = write_pictures(tmp_path, 2)
    (tmp_path / "list.txt").write_text("0.png 0\n1.png 1\n")
    transform = "resize_param {{ height: 9 width: 12 }} noise_param {{ inverse: true }} {}"
    net = source_net(image_text("batch_size: 2", transform.format("crop_size: 5")), phase=TEST)
    wanted = planes([(255 - cv2.resize(picture, (12, 9)))[2:7, 3:8] for picture in pictures[:2]])
    np.testing.assert_array_equal(batch(net)[0], wanted)
    net = source_net(image_text("batch_size: 2 is_color: false", transform.format("")))
    gray = [255 - cv2.resize(cv2.imread(f"{i}.png", cv2.IMREAD_GRAYSCALE), (12, 9)) for i in range(2)]
    np.testing.assert_array_equal(batch(net)[0], np.stack(gray)[:, None])
    with pytest.raises(ConfigError, match="transform_param.resize_param.width: must be given"):
        source_net(image_text("", "resize_param { height: 9 }"))


@pytest.mark.parametrize("label_size", [None, 3])
def test_draws_of_a_record(source, tmp_path, monkeypatch, label_size):
    path, pixels = real_valued(tmp_path) if label_size else source
    transform = "expand_param { max_expand_ratio: 2 } resize_param { height: 8 width: 7 } mirror: true crop_size: 5"
    if label_size:
        data, labels = batch(source_net(with_size(text(path, "noise_param { inverse: false }"), 3)))
        np.testing.assert_array_equal(labels, LABELS[:2])
        np.testing.assert_array_equal(data, pixels[:2])
    check_draws(path, transform, label_size, monkeypatch)
