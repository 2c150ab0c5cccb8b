"""Pictures in PNG files, for the tests of the layers that read them; all are synthetic and seeded."""

import cv2
import numpy as np

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


def write_pictures(folder, count, height=6, width=5):
    """Write ``0.png`` and so on into `folder`; return their pixels, uint8 (height, width, 3) in BGR."""
    random = np.random.default_rng(3)
    pictures = [random.integers(0, 256, (height, width, 3), np.uint8) for _ in range(count)]
    for i, picture in enumerate(pictures):
        assert cv2.imwrite(str(folder / f"{i}.png"), picture)
    return pictures


def source_net(text, dtype=Dtype.FLOAT, phase=TRAIN, seed=5, **options):
    """Return a net of one layer that reads files, built with the random numbers started again."""
    param, positions = parse_text(text, caffe_pb2.NetParameter, "test.prototxt")
    param.state.phase = phase
    caffe.seed(seed)
    return Net(param, dtype, file="test.prototxt", positions=positions, **options)


def batch(net):
    """Run the net; return copies of data and labels."""
    net.forward_from_to(0, 0)
    return tuple(blob.cpu_data.copy() for blob in net.tops[0])


def planes(pictures):
    """Return pictures as a batch (N, 3, height, width)."""
    return np.stack(pictures).transpose(0, 3, 1, 2).astype(float)
