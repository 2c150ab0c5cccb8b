"""Pictures to databases, and the mean of a database."""

import cv2
import numpy as np
import pytest
from records import datum

from minicaffe.data.convert import compute_mean, convert_images, quiet_opencv, resize_size
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.data.mean_file import read_mean, write_mean
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.proto import caffe_pb2


@pytest.fixture
def folder(tmp_path):
    """A folder with two colour PNGs, a JPEG, a file that is no picture, and their list."""
    root = tmp_path / "pictures"
    (root / "my cats").mkdir(parents=True)
    random = np.random.default_rng(2)
    for name, shape in (("a.png", (6, 4, 3)), ("my cats/b.png", (6, 4, 3)), ("c.JPG", (6, 4, 3))):
        cv2.imwrite(str(root / name), random.integers(0, 256, shape, np.uint8))
    (root / "broken.png").write_bytes(b"no picture")
    (root / "list.txt").write_text("a.png 3\nbroken.png 1\nmy cats/b.png -2\nc.JPG 0\n")
    return root


def convert(folder, **options):
    counts = convert_images(f"{folder}/", folder / "list.txt", folder / "db", **options)
    with open_db(folder / "db", options.get("backend", "lmdb")) as db:
        return counts, {bytes(k).decode(): bytes(v) for k, v in list(db.records())}


def test_raw_pictures(folder, backend, caplog):
    seen = []
    counts, records = convert(folder, backend=backend, progress=lambda *report: seen.append(report))
    assert counts == (3, 1) and seen == [("pictures", done, 4) for done in (1, 3, 4)]
    for (key, value), number, name, label in zip(records.items(), (0, 2, 3), ("a.png", "my cats/b.png", "c.JPG"), (3, -2, 0), strict=True):
        assert key == f"{number:08d}_{name}" and read_datum(value).label == label
        assert (picture_of(read_datum(value)) == cv2.imread(str(folder / name)).transpose(2, 0, 1)).all()
    assert "broken.png' is text, where a picture is expected; name another file; skipped" in caplog.text


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("size", [{}, {"resize_width": 3, "resize_height": 5}])
def test_gray_and_resize(folder, encoded, size):
    record = read_datum(convert(folder, gray=True, encoded=encoded, **size)[1]["00000000_a.png"])
    want = cv2.imread(str(folder / "a.png"), cv2.IMREAD_GRAYSCALE)
    assert record.encoded == encoded and (picture_of(record) == (cv2.resize(want, (3, 5)) if size else want)[None]).all()


def test_encoded_files(folder):
    """With a type only files of another type are encoded again; jpeg is jpg."""
    for kind, again, head in (None, None, b""), ("png", "00000003_c.JPG", b"\x89PNG"), ("jpeg", "00000000_a.png", b"\xff\xd8"):
        _, records = convert(folder, force=True, **{"encode_type": kind} if kind else {"encoded": True})
        for name, value in records.items():
            message, content = caffe_pb2.Datum.FromString(value), (folder / name[9:]).read_bytes()
            assert message.encoded and not message.HasField("channels")
            assert message.data.startswith(head) if name == again else message.data == content or kind == "jpeg" and name.endswith("png")
        if kind == "png":
            assert (picture_of(read_datum(records[again])) == cv2.imread(str(folder / "c.JPG")).transpose(2, 0, 1)).all()
    with pytest.raises(ConfigError, match="encode_type: OpenCV cannot write 'xyz'"):
        convert(folder, encode_type="xyz", force=True)
    assert convert(folder, encoded=True, resize_width=2, resize_height=4, force=True)[1].keys() == records.keys()


def test_shuffle_and_check_size(folder):
    assert convert(folder, check_size=True)[0] == (3, 1)
    cv2.imwrite(str(folder / "c.JPG"), np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=r"c.JPG: is 4 x 6, the first picture is 6 x 4"):
        convert(folder, check_size=True, force=True)
    (folder / "list.txt").write_text("".join(f"a.png {i}\n" for i in range(50)))
    _, records = convert(folder, shuffle=True, force=True)
    labels = [read_datum(v).label for v in records.values()]
    assert sorted(labels) == list(range(50)) != labels  # in order once in 50! runs
    assert list(records)[7] == "00000007_a.png"


def test_wrong_roots(folder):
    (folder / "numbers.txt").write_text("a.png 1.5 2 3\n")
    (folder / "absolute.txt").write_text(f"{folder}/a.png 0\n")
    for root, name, options, error, words in (
            ("/nowhere/", "list", {}, DataError, r"none of its 4 pictures can be read, the first would be '/nowhere/a.png'; is ROOT \('/nowhere/'\)"),
            (f"{folder}", "list", {}, FileError, f"{folder}a.png: no such picture: ROOT .* end it with a slash: '{folder}/'"),
            (f"{folder}/", "numbers", {"label_size": 2}, DataError,
             r"would be '.*a.png 1.5'; is ROOT \('.*'\) right, and is 2 the number of labels in a line\?"),
            *((f"{folder}{end}", "absolute", {}, FileError, "they are absolute, so give / as ROOT$") for end in ("", "/"))):
        with pytest.raises(error, match=words):
            convert_images(root, folder / f"{name}.txt", folder / "db", **options)
        assert not (folder / "db").exists()
    assert convert_images("/", folder / "absolute.txt", folder / "db") == (1, 0)


@pytest.mark.parametrize("kind", ["bytes", "floats", "png"])
def test_mean(make_db, pixels, kind, tmp_path):
    pixels, seen = np.concatenate([pixels] * 60), []  # more than one batch
    if kind == "floats":
        pixels = pixels.astype(np.float32) / 16
    values = [datum(p) for p in pixels]
    if kind == "png":
        files = [cv2.imencode(".png", p.transpose(1, 2, 0))[1].tobytes() for p in pixels]
        values = [caffe_pb2.Datum(data=f, encoded=True).SerializeToString() for f in files]
    with open_db(make_db(values), "LMDB") as db:
        mean = compute_mean(db, lambda *report: seen.append(report))
        assert mean.dtype == np.float32 and (mean == compute_mean(db)).all()
    np.testing.assert_allclose(mean, pixels.astype(np.float64).mean(axis=0), rtol=1e-6)  # one rounding to single
    assert seen == sorted(seen) and len(seen) > 1 and seen[-1] == ("records", 600, 600) and {(text, total) for text, _, total in seen} == {("records", 600)}
    write_mean(tmp_path / "mean", mean)
    assert (read_mean(tmp_path / "mean") == mean).all()
    blob = caffe_pb2.BlobProto.FromString((tmp_path / "mean").read_bytes())
    assert (blob.num, blob.channels, blob.height, blob.width) == (1, 3, 7, 5) and not blob.HasField("shape")


@pytest.mark.parametrize(("at", "other", "message"), [
    *((at, None, "is 3 x 2 x 5") for at in (5, 256, 300)), (4, b"\x08", "is no Datum")])
def test_records_without_a_mean(make_db, pixels, at, other, message):
    values = [datum(pixels[0])] * 310
    values[at:] = [other or datum(pixels[0][:, :2])] * (310 - at)
    with open_db(make_db(values), "LMDB") as db, pytest.raises(DataError, match=rf"db: record {at} \(key '{at:08d}'\): {message}"):
        compute_mean(db)


def test_sizes(tmp_path):
    with pytest.raises(FileError, match="cannot be written"):
        write_mean(tmp_path / "nowhere" / "mean", np.zeros((1, 1, 1), np.float32))
    most, fields = (1 << 31) - 1, "^resize_width and resize_height: "
    for width, height, error, words in (
            *((w, h, ShapeError, rf"a side must be below 2\^31, got {w} x {h}$") for w, h in ((1 << 31, 1), (1, 1 << 31))),
            (most, 200000, ShapeError, f"a picture of {most} x 200000 would take {3 * most * 200000} bytes"),
            *((w, h, ConfigError, f"give both above 0, or neither, got {w} and {h}$") for w, h in ((-1, -1), (-1, 5), (5, -1), (0, 5), (5, 0), (-1, 0)))):
        with pytest.raises(error, match=fields + words):
            resize_size(width, height)
    assert resize_size(0, 0) is None and resize_size(1, 2) == (1, 2)


def test_pictures_outside_of_a_folder(tmp_path):
    """The open file counts: a link, or a link in the place of a folder, may lead out."""
    (tmp_path / "in").mkdir()
    (tmp_path / "a.png").write_bytes(b"a")
    (tmp_path / "in" / "b.png").write_bytes(b"b")
    (tmp_path / "in" / "link.png").symlink_to("../a.png")
    (tmp_path / "in" / "folder").symlink_to("..")
    assert read_content(f"{tmp_path}/in/b.png", f"{tmp_path}/in") == b"b" and read_content(f"{tmp_path}/in/link.png") == b"a"
    for name in ("link.png", "folder/a.png", "../a.png"):
        with pytest.raises(FileError, match=f"^'{tmp_path}/in/{name}' lies outside {tmp_path}/in, and the net is not trusted"):
            read_content(f"{tmp_path}/in/{name}", f"{tmp_path}/in")


@pytest.mark.parametrize("count", range(1, 6))
def test_several_sizes(folder, caplog, count):
    entries = []
    for i in range(count):
        cv2.imwrite(str(folder / f"{i}.png"), np.zeros((i + 1, 9, 3), np.uint8))
        entries += [f"{i}.png 0\n"] * (10 - i)
    (folder / "list.txt").write_text("".join(entries))
    assert convert(folder)[0] == (len(entries), 0)
    named = ", ".join(f"{i + 1} x 9 ({10 - i})" for i in range(min(count, 3))) + ", ..." * (count > 3)
    wanted = [f"{folder}/db: its pictures have {count} sizes: {named}; all pictures of a batch must have one size: resize them with --resize-width and "
              "--resize-height, or let the net's crop_size cut one out"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == wanted * (count > 1)


def test_files_that_are_no_pictures():
    undecodable = "is no picture: OpenCV cannot decode its {} bytes; replace the file or drop it"
    for content, words in ((bytes(range(200, 256)), undecodable.format(56)), (b"words\n", "is text, where a picture is expected; name another file"),
                           (b"\x89PNG\r\n\x1a\n" + bytes(9), undecodable.format(17))):
        with pytest.raises(DataError) as caught:
            decode_picture(content, "file")
        assert str(caught.value) == f"'file' {words}"


def test_messages_of_opencv(folder, capfd):
    logging = cv2.utils.logging
    before = logging.getLogLevel()
    with pytest.raises(ValueError), quiet_opencv():
        assert logging.getLogLevel() == 0 != before
        raise ValueError
    (folder / "broken.png").write_bytes(b"BM" + bytes(100))
    convert(folder)
    # minicaffe's own line comes too, where a test before this one asked for logging.
    messages = [line for text in capfd.readouterr() for line in text.splitlines() if "convert.py" not in line]
    assert messages == [] and logging.getLogLevel() == before
