"""What tests of many folders use: nets from text."""

from minicaffe.blob import Dtype
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


def make_net(text, phase=None, dtype=Dtype.FLOAT, **options):
    """Return the net of a definition as text; `options` are those of Net."""
    param = parse_text(text, caffe_pb2.NetParameter, "test.prototxt", keep_layer_fields=True)[0]
    if phase is not None:
        param.state.phase = phase
    return Net(param, dtype, **options)
