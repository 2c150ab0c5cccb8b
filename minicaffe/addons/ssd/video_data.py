"""VideoData: batches of the frames of a video file or a camera (SSD's video_data_layer.cpp). Needs OpenCV.

Different from Caffe: a file starts over at its end, as databases do (Caffe ended the process); a resumed run continues at the
same frame. A net that came with ``trusted=False`` reads no video: FFmpeg follows playlists, whatever their name is, and takes
``p_%03d.png`` for all files of that pattern.
"""

import os
from contextlib import closing

from minicaffe.addons.ssd.augment import Augmenter
from minicaffe.common import caffe
from minicaffe.data.datum import opencv
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError, in_field
from minicaffe.layers.data.base_data import PrefetchingLayer
from minicaffe.proto import caffe_pb2
from minicaffe.proto.files import REMEDY


class VideoDataLayer(PrefetchingLayer):
    """Tops: data (batch, channels, height, width), BGR, and if it is named label (batch,), all 0.

    Frames come from the file `video_data_param.video_file`, or from camera `device_id` for the type WEBCAM; `skip_frames` are
    left out between two. They go through `transform_param` with SSD's resize_param, noise_param, distort_param and expand_param.
    """

    min_top_blobs = 1
    max_top_blobs = 2
    batch_field = "data_param.batch_size"

    def prepare(self):
        param = self.param.video_data_param
        self.numbered = param.video_type == caffe_pb2.VideoDataParameter.VIDEO
        field = f"video_data_param.{'video_file' if self.numbered else 'device_id'}"
        if self.numbered and not param.video_file:
            raise ConfigError("must be given for video_type: VIDEO", field=field)
        if self.numbered:
            caffe.check_path(param.video_file, field)
        elif param.device_id < 0:
            raise ConfigError(f"must be at least 0, got {param.device_id}", field=field)
        if not caffe.trusted:
            asks = "a video, which may be a playlist of other files" if self.numbered else "a camera"
            raise ConfigError(f"the net is not trusted, and asks for {asks}; {REMEDY}", field=field)
        with in_field(field, but=ConfigError), closing(self.make_batches()) as reader:
            return reader.load(range(1)).shape[1:]

    def make_batches(self):
        param = self.param.video_data_param
        video = param.video_file if self.numbered else param.device_id
        return VideoBatches(video, self.transformer(), Augmenter(self.param.transform_param, self.seed), param.skip_frames)


class VideoBatches:
    """Make batches of transformed frames; a file starts over at its end, a camera has no end.

    `video` is a file, or the number of a camera. The augmenter is applied before the transformer. `skip` frames are left out
    between two that are used.
    """

    def __init__(self, video, transformer, augmenter, skip=0):
        self.video, self.transformer, self.augmenter, self.skip = video, transformer, augmenter, skip
        self.source = video if isinstance(video, str) else f"camera {video}"
        self._capture = None

    def fill(self, numbers, buffer):
        """Put the frames `numbers` into `buffer`; of a camera the next frames, with these numbers for random draws."""
        buffer.write(self.load(numbers), numbers)

    def close(self):
        """Release the video."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def _opened(self):
        if isinstance(self.video, str) and not os.path.isfile(self.video):
            relative = "" if os.path.isabs(self.video) else ", which is relative to the working directory"
            raise FileError(f"no such video file; check the path{relative}", file=self.video)
        capture = opencv().VideoCapture(self.video)
        if not capture.isOpened():
            remedy = "check its format" if isinstance(self.video, str) else "check device_id, and whether another program uses it"
            raise FileError(f"OpenCV cannot open it; {remedy}", file=self.source)
        return capture

    def _frame(self, number):
        """Return the frame of record `number`: of a file frame number x (skip + 1), of a camera the next one that is used."""
        record = number if isinstance(self.video, str) else self._records
        while self._frames <= record * (self.skip + 1):     # OpenCV cannot seek reliably
            self._grab()
            self._frames += 1
        self._records = record + 1
        found, frame = self._capture.retrieve()
        if not found:
            raise DataError("holds a frame that OpenCV cannot decode", file=self.source)
        return frame if frame.ndim == 3 else frame[:, :, None]

    def _grab(self):
        if self._capture.grab():
            return
        if not isinstance(self.video, str):
            raise DataError("returns no more frames; check the camera", file=self.source)
        self._capture.release()
        self._capture = self._opened()
        if not self._capture.grab():
            raise DataError("holds no frame that OpenCV can read; check its format", file=self.source)

    def load(self, numbers):
        """Return the frames `numbers` as a Batch."""
        if self._capture is None:
            self._capture = self._opened()
            self._records = self._frames = 0    # taken since then
        pictures = [self.augmenter.picture(self._frame(number), number) for number in numbers]
        try:
            return self.transformer.load_images(pictures)
        except (DataError, ShapeError) as error:
            if error.record is not None:
                error.record = numbers[error.record]
            raise error.at(file=self.source)
