"""VideoData: batches of the frames of a video file or a camera (SSD's video_data_layer.cpp). Needs OpenCV.

Different from Caffe: a file starts over at its end, as databases do (Caffe ended the process); a resumed run continues at the
same frame. A net that came with ``trusted=False`` reads no video: FFmpeg follows playlists, whatever their name is, and takes
``p_%03d.png`` for all files of that pattern.
"""

from minicaffe.addons.ssd.augment import Augmenter
from minicaffe.addons.ssd.video_batches import VideoBatches
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, in_field
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
        self.field = "video_data_param.video_file"
        self.numbered = param.video_type == caffe_pb2.VideoDataParameter.VIDEO
        if self.numbered:
            if not param.video_file:
                raise ConfigError("must be given for video_type: VIDEO", field=self.field)
            caffe.check_path(param.video_file, "video_data_param.video_file")
        else:
            self.field = "video_data_param.device_id"
            if param.device_id < 0:
                raise ConfigError(f"must be at least 0, got {param.device_id}", field=self.field)
        if not caffe.trusted:
            asks = "a video, which may be a playlist of other files" if self.field.endswith("file") else "a camera"
            raise ConfigError(f"the net is not trusted, and asks for {asks}; {REMEDY}", field=self.field)
        with in_field(self.field, but=ConfigError):
            return self.make_batches().infer_shape()

    def make_batches(self):
        param = self.param.video_data_param
        video = param.video_file if self.numbered else param.device_id
        return VideoBatches(video, self.transformer(), Augmenter(self.param.transform_param, self.seed),
                            param.skip_frames)
