"""Small nets as those that people have from forks of Caffe: they load, compute, keep their weights, and train."""

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import gradcheck
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

RANDOM = np.random.default_rng(2)


def data(*shape, name="data"):
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }}\n'


def layer(kind, bottoms, tops, fields=""):
    named = " ".join([*(f'bottom: "{name}"' for name in bottoms.split()), *(f'top: "{name}"' for name in tops.split())])
    return f'layer {{ name: "{tops.split()[0]}/{kind}" type: "{kind}" {named} {fields} }}\n'


def conv(bottom, top, outputs, kernel=1, more=""):
    return layer("Convolution", bottom, top, f"""convolution_param {{ num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} {more}
        weight_filler {{ type: "gaussian" std: 0.3 }} }}""")


NETS = {
    "shufflenet": data(2, 4, 6, 6) + conv("data", "a", 8, 1, "group: 2") + layer("ReLU6", "a", "a")
    + layer("ShuffleChannel", "a", "b", "shuffle_channel_param { group: 2 }")
    + layer("ConvolutionDepthwise", "b", "c", 'convolution_param { kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.3 } }')
    + layer("Eltwise", "b c", "d") + layer("Pooling", "d", "p", "pooling_param { pool: AVE global_pooling: true }")
    + layer("InnerProduct", "p", "scores", 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }'),
    "senet": data(2, 3, 5, 5) + conv("data", "x", 6, 3) + layer("Pooling", "x", "p", "pooling_param { pool: AVE global_pooling: true }")
    + conv("p", "q", 6) + layer("Sigmoid", "q", "q") + conv("data", "y", 6) + layer("Axpy", "q x y", "scores"),
    "pspnet": data(2, 3, 7, 7) + conv("data", "a", 4, 3, "bias_term: false")
    + layer("BN", "a", "b", 'bn_param { slope_filler { type: "constant" value: 1 } bias_filler { type: "constant" value: 0 } }')
    + layer("ReLU", "b", "b") + layer("Pooling", "b", "p", "pooling_param { pool: AVE kernel_size: 4 stride: 3 }")
    + conv("p", "q", 2) + layer("Interp", "q", "r", "interp_param { height: 7 width: 7 }") + layer("Concat", "b r", "c")
    + conv("c", "s", 3) + layer("Interp", "s", "scores", "interp_param { zoom_factor: 2 }"),
    "segnet": data(2, 3, 8, 8) + conv("data", "a", 4, 3) + layer("BN", "a", "b", "bn_param { bn_mode: INFERENCE scale_filler { value: 1.5 } shift_filler { value: 0.1 } }")
    + layer("ReLU", "b", "b") + layer("Pooling", "b", "p mask", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }")
    + conv("p", "q", 4, 3) + layer("Upsample", "q mask", "u", "upsample_param { scale: 2 }") + conv("u", "scores", 3, 3),
}
DETECTORS = {
    "yolo": data(1, 3, 8, 8) + conv("data", "a", 8, 3, "stride: 2") + conv("a", "coarse", 3 * 7, 3, "stride: 2") + conv("a", "b", 4, 1)
    + layer("Upsample", "coarse", "u", "upsample_param { scale: 2 }") + layer("Concat", "b u", "c") + conv("c", "fine", 3 * 7)
    + layer("Yolov3DetectionOutput", "coarse fine", "found", """yolov3_detection_output_param { num_classes: 2 num_box: 3 confidence_threshold: 0.3
        biases: [4, 4, 6, 3, 3, 6, 2, 2, 3, 1, 1, 3] mask: [0, 1, 2, 3, 4, 5] mask_group_num: 2 anchors_scale: [4, 2] }"""),
    "faster r-cnn": data(1, 3, 16, 16) + data(1, 3, name="im_info") + conv("data", "a", 8, 3, "stride: 2") + layer("ReLU", "a", "a")
    + conv("a", "rpn", 8, 3) + conv("rpn", "score", 6) + conv("rpn", "delta", 12)
    + layer("Reshape", "score", "s2", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }") + layer("Softmax", "s2", "prob")
    + layer("Reshape", "prob", "p2", "reshape_param { shape { dim: 0 dim: 6 dim: -1 dim: 0 } }")
    + layer("Proposal", "p2 delta im_info", "rois", "proposal_param { feat_stride: 2 base_size: 4 min_size: 2 ratio: 1 scale: 1 scale: 2 scale: 3 post_nms_topn: 7 }")
    + layer("ROIPooling", "a rois", "pooled", "roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.5 }")
    + layer("InnerProduct", "pooled", "scores", 'inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } }'),
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "net.prototxt").write_text(text)
        return "net.prototxt"
    return write


def filled(net):
    for name in net.inputs:
        net.blobs[name].data[...] = [16, 16, 1] if name == "im_info" else RANDOM.standard_normal(net.blobs[name].shape)
    return net


@pytest.mark.parametrize("name", [*NETS, *DETECTORS])
def test_nets_of_forks(written, name):
    file = written({**NETS, **DETECTORS}[name])
    net = filled(caffe.Net(file, caffe.TEST))
    wanted = {top: value.copy() for top, value in net.forward().items()}
    assert all(np.isfinite(value).all() and value.size for value in wanted.values())
    net.save("w.caffemodel")
    again = caffe.Net(file, caffe.TEST, weights="w.caffemodel")
    planned = Net(read_net(file, caffe_pb2.TEST)[0], plan="memory")
    planned.copy_from("w.caffemodel")
    for one in (again, planned):
        for top in net.inputs:
            one.blobs[top].data[...] = net.blobs[top].data
    found = again.forward()
    planned.forward_from_to(0, len(planned.layers) - 1)
    for top, value in wanted.items():
        np.testing.assert_array_equal(found[top], value)
        np.testing.assert_array_equal(planned.blobs[top].data, value)


@pytest.mark.parametrize("name", NETS)
def test_its_gradients_are_right(written, name):
    text = NETS[name] + layer("EuclideanLoss", "scores target", "loss")
    net = Net(read_net(written(NETS[name]), caffe_pb2.TRAIN)[0])
    shape = net.blob_by_name("scores").shape
    param = read_net(written("force_backward: true\n" + data(*shape, name="target") + text), caffe_pb2.TRAIN)[0]
    report = gradcheck(param)
    assert report.ok, str(report)
