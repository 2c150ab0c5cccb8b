"""ImageData: pixels, order, resuming, and lists and pictures that are wrong."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from helpers import layer_text  # noqa: E402
from pictures import batch, planes, source_net, write_pictures  # noqa: E402

from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.common import TEST  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError  # noqa: E402


def text(fields="", transform="", source="list.txt", more=""):
    return layer_text("ImageData", "d", tops="data label", more=(
        f'image_data_param {{ source: "{source}" {fields} }} transform_param {{ {transform} }} {more}'))


def write_list(*rows):
    Path("list.txt").write_text("".join(f"{row}\n" for row in rows))


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Seven pictures and ``list.txt`` with labels 0 to 6, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_list(*(f"{i}.png {i}" for i in range(7)))
    return write_pictures(tmp_path, 7)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_pictures_in_order_round_and_round(pictures, dtype):
    net = source_net(text("batch_size: 3"), dtype)
    assert net.tops[0][0].shape == (3, 3, 6, 5) and net.tops[0][1].shape == (3,)
    for k in range(5):
        data, labels = batch(net)
        wanted = [(3 * k + i) % 7 for i in range(3)]
        assert labels.tolist() == wanted and data.dtype == (np.float32, np.float64)[dtype]
        np.testing.assert_array_equal(data, planes([pictures[i] for i in wanted]))


def test_transformed_pictures_and_paths(pictures):
    net = source_net(text("batch_size: 2 is_color: false new_height: 8 new_width: 9", "scale: 0.5 mean_value: 10 crop_size: 4"), phase=TEST)
    gray = [cv2.resize(cv2.imread(f"{i}.png", cv2.IMREAD_GRAYSCALE), (9, 8))[2:6, 2:6] for i in range(2)]
    np.testing.assert_allclose(batch(net)[0], (np.stack(gray)[:, None] - 10.0) * 0.5)
    shutil.copy("1.png", "a b.png")
    write_list("a b.png +7", "", "0.png -3")
    assert batch(source_net(text("batch_size: 2")))[1].tolist() == [7, -3]
    # The root folder is a plain prefix
    write_list("x.png 4")
    os.mkdir("my pics")
    shutil.copy("2.png", "my pics/ax.png")
    data, labels = batch(source_net(text('root_folder: "my pics/a"')))
    assert labels.tolist() == [4] and (data == planes(pictures[2:3])).all()


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_labels_that_are_real_numbers(pictures, tmp_path, dtype, device):
    labels = np.random.default_rng(4).normal(size=(7, 3))
    shutil.copy("1.png", "a b.png")
    names = ["0.png", "a b.png", *(f"{i}.png" for i in range(2, 7))]
    (tmp_path / "list.txt").write_text("\n\n".join(f"{name}  {a} {b!r} {c:e}" for name, (a, b, c) in zip(names, labels.tolist())))
    net = source_net(text("batch_size: 3 label_size: 3", "crop_size: 4 mirror: true"), dtype)
    assert net.tops[0][1].shape == (3, 3)
    for k in range(4):
        data, got = batch(net)
        wanted = labels[[(3 * k + i) % 7 for i in range(3)]]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
        assert data.shape == (3, 3, 4, 4) and got.dtype == (np.float32, np.float64)[dtype]
    shuffled = source_net(text("batch_size: 7 label_size: 3 shuffle: true"), dtype)
    data, got = batch(shuffled)
    order = [int(np.abs(labels - row).sum(axis=1).argmin()) for row in got]
    assert order != list(range(7))
    np.testing.assert_array_equal(data, planes([pictures[i] for i in order]))
    write_list("0.png 2.883", "1.png -7")
    got = batch(source_net(text("batch_size: 2 label_size: 1")))[1]
    assert got.shape == (2, 1) and got.ravel().tolist() == [np.float32(2.883), -7]


@pytest.mark.parametrize("fields, transform, more, error", [
    ("batch_size: 0", "", "", "image_data_param.batch_size: must be at least 1"),
    ("batch_size: 4294967295", "", "", "image_data_param.batch_size: must be at most"),
    ("new_height: 3", "", "", "image_data_param.new_height: give new_height and new_width"),
    ("new_height: 4294967295 new_width: 4294967295", "", "", "image_data_param.new_height: .* the budget"),
    ("", "crop_size: 7", "", r"image_data_param.source: list.txt:1: record 0: transform_param.crop_size: must be"),
    ("", "mean_value: 1 mean_value: 2", "", "transform_param.mean_value"),
    ("label_size: 0", "", "", "image_data_param.label_size: must be at least 1, got 0"),
    ("", "", "data_param { label_size: 1 }", "data_param.label_size: ImageData does not take it; give image_data_param.label_size"),
    ("", "", "data_param { prefetch: 0 }", "data_param.prefetch: must be at least 1"),
])
def test_wrong_fields(pictures, fields, transform, more, error):
    with pytest.raises((ConfigError, ShapeError, DataError), match=rf"layer 'd' \(ImageData\): .*({error})"):
        source_net(text(fields, transform, more=more))


@pytest.mark.parametrize("content, error", [
    ("", "list.txt: the image list is empty"),
    ("0.png 1\n0.png 2.883\n", "list.txt:2: label '2.883' is not an integer; label_size of ImageData, or --float-labels, takes"),
    ("\nnowhere.png 1\n", "list.txt:2: record 0: 'nowhere.png' cannot be read: No such file"),
    ("list.txt 1\n", "list.txt:1: record 0: 'list.txt' is text, where a picture is expected"),
    ("empty 1\n", "list.txt:1: record 0: 'empty' is empty, where a picture is expected"),
    ("/dev/zero 1\n", "list.txt:1: record 0: '/dev/zero' is no ordinary file"),
    (". 1\n", "list.txt:1: record 0: '.' cannot be read"), ("a\0b 1\n", "list.txt:1: .*cannot be read"),
])
def test_wrong_lists(pictures, tmp_path, content, error):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "list.txt").write_text(content)
    with pytest.raises((DataError, FileError), match=rf"test.prototxt:1: layer 'd' \(ImageData\): .*{error}"):
        source_net(text())
    with pytest.raises(FileError, match=r"image_data_param.source: nowhere: no such file"):
        source_net(text(source="nowhere"))


def test_bad_picture_names_line_and_record(pictures, tmp_path, monkeypatch):
    cv2.imwrite("2.png", np.zeros((2, 2, 3), np.uint8))
    (tmp_path / "3.png").write_bytes((tmp_path / "3.png").read_bytes()[:40])
    for rows, error in ((["0.png 0", "", "1.png 1", "2.png 2", "3.png 3"], "5: .*record 3: '3.png' is no picture: OpenCV cannot decode its"),
                        (["0.png 0", "1.png 1", "0.png 0", "2.png 2"], "4: .*record 3: is 3 x 2 x 2, the first of the batch is")):
        write_list(*rows)
        net = source_net(text("batch_size: 2"))
        batch(net)
        for _ in range(2):
            with pytest.raises(DataError, match=rf"list.txt:{error}"):
                batch(net)
    write_pictures(tmp_path, 4, 60, 50)     # the crop is small; the decoded pictures before it are not
    write_list(*(f"{i}.png {i}" for i in range(4)))
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "20KiB")
    assert batch(source_net(text("batch_size: 2", "crop_size: 4")))[0].shape == (2, 3, 4, 4)
    with pytest.raises(ShapeError, match=r"list.txt:3: .*record 2: the 3 first decoded pictures of a batch would take 27000 bytes"):
        batch(source_net(text("batch_size: 4", "crop_size: 4")))


def test_untrusted_net_stays_below_directory(pictures, tmp_path, monkeypatch):
    source_net(text(), trusted=False)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for definition in (text(source=tmp_path / "list.txt"), text(source="../list.txt")):
        with pytest.raises(ConfigError, match=r"image_data_param.source: the net is not trusted, and asks to read"):
            source_net(definition, trusted=False)
    source_net(text('root_folder: "../"', source="../list.txt"))
    os.symlink(tmp_path, "link")
    with pytest.raises(Error, match="not trusted"):
        source_net(text(source="link/list.txt"), trusted=False)
