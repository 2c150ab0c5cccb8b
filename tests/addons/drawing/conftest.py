"""The net that is drawn."""

import pytest

from minicaffe.proto import caffe_pb2, text

NET = """name: "a \\"net\\""
layer { name: "d" type: "Data" top: "x" top: "y" data_param { batch_size: 64 } include { phase: TRAIN } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { lr_mult: 2 }
        convolution_param { num_output: 8 kernel_h: 3 kernel_w: 5 stride: 2 } }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 pool: AVE } exclude { phase: TEST } }
"""


@pytest.fixture
def net():
    return text.parse_text(NET, caffe_pb2.NetParameter, "net.prototxt")[0]
