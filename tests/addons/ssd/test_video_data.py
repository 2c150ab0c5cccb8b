"""VideoData: frames of a file that the test writes; a camera only in that there is none."""

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from pictures import batch, planes, source_net  # noqa: E402

from minicaffe.addons.ssd.augment import Augmenter  # noqa: E402
from minicaffe.addons.ssd.video_data import VideoBatches  # noqa: E402
from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.common import TEST  # noqa: E402
from minicaffe.data.transform import Transformer  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, FileError  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402


def text(fields, size=1, transform="", top='top: "data" top: "label"'):
    return (f'layer {{ name: "v" type: "VideoData" {top} data_param {{ batch_size: {size} }} video_data_param {{ {fields} }} '
            f"transform_param {{ {transform} }} }}")


@pytest.fixture
def video(tmp_path, monkeypatch):
    """Seven frames of 32 x 48 in ``film.avi`` in the working directory, as OpenCV reads them."""
    monkeypatch.chdir(tmp_path)
    writer = cv2.VideoWriter("film.avi", cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (48, 32))
    assert writer.isOpened()
    for i in range(7):
        frame = np.full((32, 48, 3), 30 * i, np.uint8)
        frame[:, :24, 2] = 200
        writer.write(frame)
    writer.release()
    capture = cv2.VideoCapture("film.avi")
    frames = [capture.read()[1] for _ in range(7)]
    assert not capture.read()[0] and [round(frame[:, 24:].mean() / 30) for frame in frames] == list(range(7))
    return frames


FILE = 'video_type: VIDEO video_file: "film.avi"'


@pytest.mark.parametrize("dtype, skip", [(Dtype.FLOAT, 2), (Dtype.DOUBLE, 0)])
def test_frames_in_order_round_and_round(video, dtype, skip):
    net = source_net(text(f"{FILE} skip_frames: {skip}", 3), dtype)
    assert net.tops[0][0].shape == (3, 3, 32, 48) and net.tops[0][1].shape == (3,)
    for k in range(5):
        data, labels = batch(net)
        np.testing.assert_array_equal(data, planes([video[(skip + 1) * (3 * k + i) % 7] for i in range(3)]))
        assert (labels == 0).all()


def test_frames_that_are_transformed(video):
    transform = "scale: 0.5 mean_value: 10 crop_size: 16 resize_param { height: 20 width: 30 } noise_param { inverse: true }"
    net = source_net(text(FILE, 2, transform, 'top: "data"'), phase=TEST)
    net.forward_from_to(0, 0)
    wanted = [(255 - cv2.resize(frame, (30, 20)))[2:18, 7:23] for frame in video[:2]]
    np.testing.assert_array_equal(net.tops[0][0].cpu_data, (planes(wanted) - 10) * 0.5)


def test_what_is_refused(video, tmp_path):
    (tmp_path / "text.avi").write_text("no film")
    for fields, size, error, message in (
            (FILE, 0, ConfigError, "data_param.batch_size: must be at least 1, got 0"),
            ("video_type: VIDEO", 1, ConfigError, "video_data_param.video_file: must be given for video_type: VIDEO"),
            (FILE.replace("film", "nowhere"), 1, FileError, "video_data_param.video_file: nowhere.avi: no such video file"),
            (FILE.replace("film", "text"), 1, FileError, "video_data_param.video_file: text.avi: OpenCV cannot open it; check its format"),
            ("device_id: -1", 1, ConfigError, "video_data_param.device_id: must be at least 0, got -1"),
            ("device_id: 63", 1, FileError, "video_data_param.device_id: camera 63: OpenCV cannot open it; check device_id")):
        with pytest.raises(error, match=rf"test.prototxt.*layer 'v' \(VideoData\): {message}"):
            source_net(text(fields, size))
    for transform, message in (("crop_size: 40", "crop_size: must be at most height"),
                               ("mean_value: 1 mean_value: 2", "mean_value: give one value, or one for each of the 3")):
        with pytest.raises(Error, match=rf"layer 'v' \(VideoData\): .*film.avi: .*record 0: transform_param.{message}"):
            batch(source_net(text(FILE, 2, transform)))
    (tmp_path / "list.avi").write_text(f"ffconcat version 1.0\nfile '{tmp_path}/film.avi'\n")
    cv2.imwrite("p_001.png", video[1])
    for name, rule in (("film.avi", "asks for a video, which may be a playlist"), ("list.avi", "asks for a video"),
                       ("p_%03d.png", "asks for a video"), ("/film.avi", "asks to read '/film.avi' outside the working")):
        with pytest.raises(ConfigError, match=f"video_data_param.video_file: the net is not trusted, and {rule}"):
            source_net(text(f'video_type: VIDEO video_file: "{name}"'), trusted=False)
    with pytest.raises(ConfigError, match="video_data_param.device_id: the net is not trusted, and asks for a camera"):
        source_net(text(""), trusted=False)
    net = source_net(text(FILE, 4))
    (tmp_path / "film.avi").write_bytes(b"")
    with pytest.raises((FileError, DataError), match="film.avi.*OpenCV cannot open it"):
        batch(net)


class Capture:
    """Frames 0, 1, ... of a camera; counts what is grabbed and decoded."""

    def __init__(self, frames=1000):
        self.frames, self.grabbed, self.decoded, self.released = frames, 0, [], 0

    def isOpened(self):
        return True

    def grab(self):
        self.grabbed += 1
        return self.grabbed <= self.frames

    def retrieve(self):
        self.decoded.append(self.grabbed - 1)
        return True, np.full((2, 3, 3), self.grabbed - 1, np.uint8)

    def release(self):
        self.released += 1


def reader_of(video, monkeypatch, skip):
    param, capture = caffe_pb2.TransformationParameter(), Capture()
    monkeypatch.setattr(VideoBatches, "_opened", lambda reader: capture)
    return VideoBatches(video, Transformer(param, TEST), Augmenter(param), skip), capture


@pytest.mark.parametrize(("skip", "start"), [(0, 0), (2, 0), (2, 5)])
def test_frames_of_a_camera(monkeypatch, skip, start):
    reader, capture = reader_of(0, monkeypatch, skip)
    batch = reader.load(range(start, start + 6, 3))        # of every third record: a camera has no others to pass over
    assert capture.decoded == [0, skip + 1] and batch.shape == (2, 3, 2, 3)
    reader.load(range(start + 6, start + 9))
    assert capture.decoded == [(skip + 1) * i for i in range(5)] and capture.grabbed == 4 * (skip + 1) + 1
    reader.close()
    reader.close()
    assert capture.released == 1
    reader, capture = reader_of("film", monkeypatch, skip)     # frames that are skipped are not decoded
    reader.load(range(4, 12, 3))
    reader.load(range(13, 15))
    assert capture.decoded == [(skip + 1) * i for i in (4, 7, 10, 13, 14)] and capture.grabbed == 14 * (skip + 1) + 1


def test_cameras_and_files(monkeypatch):
    reader, capture = reader_of(1, monkeypatch, 0)
    reader.close()      # that was never opened
    assert reader.load(range(1)).shape[1:] == (3, 2, 3)
    reader.close()
    reader.load(range(2))
    assert capture.released == 1
    reader.close()
    assert capture.released == 2
    reader, capture = reader_of("film", monkeypatch, 0)
    monkeypatch.setattr(capture, "retrieve", lambda: (True, np.zeros((2 + (capture.grabbed > 9), 3, 3), np.uint8)))
    reader.load(range(4, 6))
    with pytest.raises(DataError, match="^film: record 9: is 3 x 3 x 3, the first of the batch is 3 x 2 x 3; use batch_size: 1"):
        reader.load(range(6, 12, 3))
    reader, opened = reader_of("film", monkeypatch, 0)[0], []
    monkeypatch.setattr(VideoBatches, "_opened", lambda reader: (opened.append(Capture(frames=2)), opened[-1])[1])
    reader.load(range(5))
    reader.close()
    assert [(capture.decoded, capture.released) for capture in opened] == [([0, 1], 1), ([0, 1], 1), ([0], 1)]
