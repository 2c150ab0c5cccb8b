"""WindowData: what is cut out, what is drawn, resuming, and window files that are wrong."""

import math
from pathlib import Path

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from helpers import layer_text  # noqa: E402
from pictures import batch, source_net, write_pictures  # noqa: E402

from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.common import TEST  # noqa: E402
from minicaffe.data import window_batches  # noqa: E402
from minicaffe.data.mean_file import write_mean  # noqa: E402
from minicaffe.data.prefetch import BatchArrays  # noqa: E402
from minicaffe.data.window_batches import LINE, WindowBatches, WindowList  # noqa: E402
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError  # noqa: E402

HEIGHT, WIDTH, CROP = 20, 24, 8
OBJECT, BACKGROUND = (3, 4, 12, 15), (0, 0, 7, 9)


FIELDS = "batch_size: 4 fg_fraction: 0.25 bg_threshold: 0.3"


def text(fields="", transform="", source="windows.txt", crop=CROP):
    return layer_text("WindowData", "d", tops="data label", more=(
        f'window_data_param {{ source: "{source}" {fields} }} transform_param {{ crop_size: {crop} {transform} }}'))


def windows_of(name, *rows, number=0, channels=3):
    return f"# {number}\n{name}\n{channels}\n{HEIGHT}\n{WIDTH}\n{len(rows)}\n" + "".join(" ".join(map(str, r)) + "\n" for r in rows)


def write_windows(*rows):
    Path("windows.txt").write_text(windows_of("0.png", *rows))


@pytest.fixture
def picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_windows((2, 0.9, *OBJECT), (1, 0.1, *BACKGROUND), (1, 0.4, 0, 0, 0, 0))
    return write_pictures(tmp_path, 1, HEIGHT, WIDTH)[0]


def warped(picture, x1, y1, x2, y2):
    return cv2.resize(picture[y1:y2 + 1, x1:x2 + 1], (CROP, CROP)).transpose(2, 0, 1).astype(float)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_background_first_then_objects(picture, dtype):
    net = source_net(text(FIELDS), dtype)
    assert net.tops[0][0].shape == (4, 3, CROP, CROP)
    data, labels = batch(net)
    assert labels.tolist() == [0, 0, 0, 2] and data.dtype == (np.float32, np.float64)[dtype]
    np.testing.assert_array_equal(data, [warped(picture, *BACKGROUND)] * 3 + [warped(picture, *OBJECT)])
    write_windows(*((1, overlap, 0, 0, 1, 1) for overlap in (0.8, 0.7, 0.5, 0.3, 0.2)))
    windows = WindowList("windows.txt", "", 0.7, 0.3)
    assert windows.foreground[:, LINE].tolist() == [7, 8]  # the lines of 0.8 and 0.7
    assert windows.background[:, LINE].tolist() == [11]


@pytest.mark.parametrize("phase", [0, TEST])
def test_mirror_mean_and_scale(picture, phase):
    """The scale is that of window_data_param, the mean that of transform_param."""
    net = source_net(text(FIELDS + " scale: 0.5", "mirror: true mean_value: 3 mean_value: 4 mean_value: 5 scale: 9"), phase=phase)
    wanted = (warped(picture, *BACKGROUND) - np.array([3, 4, 5])[:, None, None]) * 0.5
    seen = set()
    for _ in range(10):
        for window in batch(net)[0][:3]:
            flipped = not np.allclose(window, wanted)
            np.testing.assert_allclose(window[:, :, ::-1] if flipped else window, wanted)
            seen.add(flipped)
    assert seen == {True, False}


def test_mean_files(picture, tmp_path):
    mean = np.random.default_rng(1).uniform(0, 255, (3, 11, 13)).astype(np.float32)
    write_mean(tmp_path / "mean", mean)
    data = batch(source_net(text(FIELDS, 'mean_file: "mean"')))[0]
    np.testing.assert_allclose(data[0], warped(picture, *BACKGROUND) - mean[:, 2:10, 2:10], rtol=1e-5)
    # For windows of 8 x 8; the offset of their first row, too, is that of the width.
    for shape in (3, 8, 8), (3, 8, 9), (3, 9, 10):
        write_mean(tmp_path / "mean", np.zeros(shape, np.float32))
        assert batch(source_net(text("batch_size: 1", "mean_file: 'mean'")))[0].shape == (1, 3, 8, 8)
    for shape in (3, 8, 10), (1, 9, 9), (4, 9, 9), (3, 9, 7), (3, 7, 8):
        write_mean(tmp_path / "mean", np.zeros(shape, np.float32))
        with pytest.raises(ShapeError, match=rf"mean_file: 'mean' is {shape[0]} x {shape[1]} x {shape[2]}, too small for windows of 3 x 8 x 8"):
            source_net(text("batch_size: 1", "mean_file: 'mean'"))


def nearest(x):
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def with_context(picture, box, context, square, flip, mean=None, scale_of_values=1):
    """The window as layers.md says it: grown about its centre, clipped, and put where its part belongs. IndexError if it lies outside."""
    x1, y1, x2, y2 = box
    if not context and not square:
        x2, y2 = x2 - 1, y2 - 1     # both edges belong to the window, which grows by nothing
    half = np.array([x2 - x1 + 1, y2 - y1 + 1]) / 2
    centre = np.array([x1, y1]) + half
    half = (np.full(2, half.max()) if square else half) * CROP / (CROP - 2 * context)
    out, begin, size, after, cut = np.zeros((3, CROP, CROP)), [], [], [], []
    for a, b, limit in zip(map(nearest, centre - half), map(nearest, centre + half), (WIDTH, HEIGHT)):
        scale, low, high = CROP / (b - a + 1), max(0, -a), max(0, b - limit + 1)
        if a + low > b - high or not context and not square and (low or high):
            raise IndexError
        cut.append(slice(a + low, b - high + 1))
        begin.append(nearest(low * scale))
        after.append(nearest(high * scale))
        size.append(nearest((b - high - a - low + 1) * scale))
    left = after[0] if flip else begin[0]
    w, h = min(size[0], CROP - left), min(size[1], CROP - begin[1])
    if min(w, h) < 1:
        return out
    patch = cv2.resize(picture[cut[1], cut[0]], (w, h))
    patch = (patch[:, ::-1] if flip else patch).transpose(2, 0, 1).astype(float)
    if mean is not None:
        offset = (mean.shape[2] - CROP) // 2
        patch -= mean[:, offset + begin[1]:, offset + left:][:, :h, :w]
    out[:, begin[1]:begin[1] + h, left:left + w] = patch * scale_of_values
    return out


@pytest.mark.parametrize("context, square", [(1, False), (3, False), (2, True), (0, True)])
@pytest.mark.parametrize("mirror", [False, True])
def test_context_and_squares(picture, context, square, mirror):
    for box in (0, 0, 9, 5), (14, 3, 23, 19), (8, 8, 13, 11), (20, 0, 23, 19), (5, 5, 5, 5):
        write_windows((1, 1, *box))
        fields = f'batch_size: 6 fg_fraction: 1 context_pad: {context} crop_mode: "{"square" if square else "warp"}"'
        net = source_net(text(fields, f"mirror: {str(mirror).lower()}"), Dtype.DOUBLE)
        plain, flipped = (with_context(picture, box, context, square, flip) for flip in (False, True))
        for window in batch(net)[0]:
            assert np.array_equal(window, plain) or mirror and np.array_equal(window, flipped), box


@pytest.mark.parametrize("fields, transform, crop, error", [
    ("batch_size: 0", "", 8, "window_data_param.batch_size: must be at least 1"),
    ("batch_size: 4294967295", "", 8, "window_data_param.batch_size: must be at most"),
    ("batch_size: 1", "", 0, "transform_param.crop_size: must be given"),
    ("batch_size: 1", "", 4294967295, "transform_param.crop_size"),
    ("batch_size: 1 context_pad: 4", "", 8, "window_data_param.context_pad: must be less than half of crop_size 8, got 4"),
    ("batch_size: 1 context_pad: 4294967295", "", 8, "window_data_param.context_pad"),
    ("batch_size: 1 crop_mode: 'round'", "", 8, "window_data_param.crop_mode: must be 'warp' or 'square', got 'round'"),
    ("batch_size: 1 fg_fraction: 1.5", "", 8, "window_data_param.fg_fraction: must be from 0 to 1"),
    ("batch_size: 1 fg_fraction: nan", "", 8, "window_data_param.fg_fraction: must be from 0 to 1"),
    ("batch_size: 1", "mean_value: 1 mean_value: 2", 8, "transform_param.mean_value: give one value"),
    ("batch_size: 1", "mean_value: 1 mean_file: 'mean'", 8, "cannot both be set"),
    ("batch_size: 1 bg_threshold: 0", "", 8, "has no window with an overlap below 0"),
    ("batch_size: 1 fg_fraction: 1 fg_threshold: 2", "", 8, "has no window with an overlap of at least 2"),
])
def test_wrong_fields(picture, fields, transform, crop, error):
    with pytest.raises((ConfigError, ShapeError, DataError), match=rf"layer 'd' \(WindowData\): .*{error}"):
        source_net(text(fields, transform, crop=crop))


GOOD = windows_of("0.png", (2, 0.9, *OBJECT), (1, 0.1, *BACKGROUND))


@pytest.mark.parametrize("content, error", [
    ("", "windows.txt: the window file is empty"), (GOOD.replace("# 0", "# 1"), "windows.txt:1: must be '# 0'"),
    (GOOD.replace("# 0", "## 0"), "windows.txt:1: must be '# 0'"), (GOOD + GOOD, "windows.txt:9: must be '# 1'"),
    (GOOD.replace("\n3\n", "\nthree\n"), "windows.txt:3: channels, height, width or the number of windows .three. is not an integer"),
    (GOOD.replace("\n3\n", "\n1\n"), "windows.txt: says that the last picture has 1 channels"),
    (GOOD.replace("\n2\n", "\n3\n"), "windows.txt:6: 3 windows are announced, the file ends after 2"),
    (GOOD.replace("\n2\n", "\n999999999\n"), "windows.txt:6: 999999999 windows are announced"),
    (GOOD.replace("\n2\n", "\n99999999999999999999\n"), "windows.txt:6: channels, height, width or the number of windows 99999999999999999999 does not fit"),
    (GOOD.replace("0.9", "x"), "windows.txt:7: a window is"), (GOOD.replace("0.9", "nan"), "windows.txt:7: a window is"),
    (GOOD.replace("0.9 3", "0.9 3.5"), "windows.txt:7: a window is"),
    (GOOD.replace("2 0.9", "2.5 0.9"), "windows.txt:7: a window is"),
    (GOOD.replace("2 0.9", "1_0 0.9"), "windows.txt:7: a window is"), (GOOD.replace("2 0.9", "\u0662 0.9"), "windows.txt:7: a window is"),
    (GOOD.replace("0.9 3", "0.9 9999999999"), "windows.txt:7: a window is"),
    (GOOD.replace("0.9 3", "0.9"), "windows.txt:7: a window is"),
    *((GOOD.replace("1 0.1 0 0 7 9", row), "windows.txt:8: a window is 'class overlap x1 y1 x2 y2', integers but for the overlap, got '" + row)
      for row in ("1 x 0 0 7 9", "1.5 0.1 0 0 7 9", "1 0.1 0.5 0 7 9", "1 0.1 0 0 7", "1 0.1 0 0 7 9 9", "1 0.1 0 0 7 2147483648", "1 nan 0 0 7 9",
                  *(" ".join(["1"] * place + [number] + ["1"] * (5 - place)) for place in range(6) for number in ("-2147483649", "2147483648", "1e300")
                    if place != 1))),
    (GOOD.replace("\n3\n", "\n-1\n"), "windows.txt:3: channels, height, width or the number of windows .*-1"),
    (GOOD.replace("\n2\n", "\n-1\n"), "windows.txt:6: channels, height, width or the number of windows .*-1"),
    (GOOD.replace("2 0.9", "0 0.9"), "windows.txt:7: an object's class must be at least 1"),
    (GOOD.replace("0.1 0 0 7 9", "0.1 8 0 7 9"), "windows.txt:8: needs x1 <= x2"),
    ("# 0\n0.png\n3\n", "windows.txt:1: channels, height, width or the number of windows '' is not"),
])
def test_wrong_files(picture, tmp_path, content, error):
    (tmp_path / "windows.txt").write_text(content)
    with pytest.raises((DataError, FileError), match=rf"layer 'd' \(WindowData\): window_data_param.source: {error}"):
        source_net(text("batch_size: 2 fg_fraction: 0.5"))


def test_files_that_are_gone(picture, tmp_path):
    with pytest.raises(FileError, match=r"window_data_param.source: nowhere: no such file"):
        source_net(text("batch_size: 1", source="nowhere"))
    (tmp_path / "0.png").unlink()
    with pytest.raises(FileError, match=r"windows.txt:8: layer 'd' \(WindowData\): record 0: '0.png' cannot be read"):
        batch(source_net(text(FIELDS)))


@pytest.mark.parametrize("row, fields, error", [
    ((0, 0, 24, 5), "", r"the window x1 y1 x2 y2 = 0 0 24 5 reaches beyond '0.png', which is 20 x 24"),
    ((-1, 0, 4, 5), "", "reaches beyond"), ((90, 90, 95, 95), "context_pad: 1", "lies outside '0.png'")])
def test_windows_outside_name_line_and_record(picture, row, fields, error):
    write_windows((1, 1, *row))
    with pytest.raises(DataError, match=rf"windows.txt:7: layer 'd' \(WindowData\): record 0: .*{error}"):
        batch(source_net(text("batch_size: 1 fg_fraction: 1 " + fields)))


@pytest.mark.parametrize("context, square", [(1, False), (3, False), (2, True), (0, True), (0, False)])
def test_random_windows_like_the_plain_version(picture, context, square):
    """Thin ones, those that reach beyond each edge and those that lie outside; with a mean picture, about the place of the window."""
    random, kinds = np.random.default_rng(context), set()
    mean = random.uniform(0, 255, (3, 11, 13))
    begin = (13 - CROP) // 2
    batches = WindowBatches(WindowList("windows.txt", "", 0.5, 0.5), 1, 0, CROP, 0, context=context, square=square,
                            mean=mean[:, begin:begin + CROP, begin:begin + CROP], scale=0.5, cache=True)
    for _ in range(250):
        x1, x2 = np.sort(random.integers(-12, WIDTH + 12, 2)).tolist()
        y1, y2 = np.sort(random.integers(-12, HEIGHT + 12, 2)).tolist()
        if random.random() < 0.3:
            x2, y2 = min(x2, x1 + int(random.integers(3))), min(y2, y1 + int(random.integers(3)))
        box, flip = (x1, y1, x2, y2), bool(random.integers(2))
        row, out = np.array([0, 1, *box, 7], np.int32), np.zeros((3, CROP, CROP))
        try:
            wanted = with_context(picture, box, context, square, flip, mean, 0.5)
        except LookupError:
            kinds.add("outside")
            with pytest.raises(DataError) as caught:
                batches._put(row, flip, out)
            where = "lies outside" if context or square else "reaches beyond"
            assert str(caught.value) == f"the window x1 y1 x2 y2 = {' '.join(map(str, box))} {where} '0.png', which is {HEIGHT} x {WIDTH}"
            assert not out.any()
            continue
        batches._put(row, flip, out)
        np.testing.assert_allclose(out, wanted, rtol=1e-12, err_msg=str((box, flip)))
        kinds.add("nothing of it is seen" if not wanted.any() else "a part" if (wanted == 0).all(0).any() else "all")
    assert kinds >= ({"outside", "all", "a part"} if context or square else {"outside", "all"})


@pytest.mark.parametrize("cache", [False, True])
def test_pictures_read_once_with_cache(picture, tmp_path, cache, monkeypatch):
    read, files = window_batches.read_content, []
    monkeypatch.setattr(window_batches, "read_content", lambda path, within: (files.append((path, within)), read(path, within))[1])
    batches = WindowBatches(WindowList("windows.txt", "", 0.5, 0.5), 0.5, 0, CROP, 0, cache=cache, within=str(tmp_path))
    for _ in range(2):
        batches.fill(range(3), BatchArrays(np.dtype(np.float32), True, np.empty))
    assert files == [("0.png", str(tmp_path))] * (1 if cache else 6)


def test_ignored_fields_and_missing_kinds(picture, caplog):
    source_net(text("batch_size: 1", "scale: 2 mirror: true force_gray: true"))
    assert "layer 'd' (WindowData): transform_param: scale, force_gray ignored: " in caplog.text
    write_windows((1, 1, 0, 0, 1, 1), (1, 1, 0, 0, 2, 2))
    batches = WindowBatches(WindowList("windows.txt", "", 0.5, 0.5), 0.5, 0, CROP, 0)
    with pytest.raises(DataError) as caught:
        batches.fill(range(0, 12, 3), BatchArrays(np.dtype(np.float32), True, np.empty))
    assert str(caught.value) == "windows.txt: has 0 windows of background and 2 of objects, and the batches of 3 processes need both"


@pytest.mark.parametrize("numbers, labels", [
    (range(10, 15), [0, 0, 0, 2, 2]), (range(10, 13), [0, 0, 2]),       # the last batch of a test that ranks divide
    (range(10, 20, 2), [0, 0, 0, 2, 2]), (range(11, 20, 2), [0, 0, 0, 2, 2])])
def test_background_first_in_each_batch(picture, numbers, labels):
    batches = WindowBatches(WindowList("windows.txt", "", 0.5, 0.3), 0.4, 0, CROP, 0)
    arrays = BatchArrays(np.dtype(np.float32), True, np.empty)
    batches.fill(numbers, arrays)
    assert arrays.reshape((len(numbers), 3, CROP, CROP))[1].tolist() == labels
