"""Small nets as those that people have from forks of Caffe: they load, compute, keep their weights, and train."""

import numpy as np
import pytest
from helpers import layer_text
from test_memory_plan import net_of, poison, recycled, same, trace  # noqa: F401 (poison is a fixture)

import minicaffe as caffe
from minicaffe import gradcheck
from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.orders import ReverseLayer
from minicaffe.net.net import Net
from minicaffe.net.node import overwrites_outputs
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.proto.upgrade import upgrade_net

RANDOM = np.random.default_rng(2)


def data(*shape, name="data"):
    return layer_text("Input", name, more=f"input_param {{ shape {{ dim: {list(shape)} }} }}")


def layer(kind, bottoms, tops, fields=""):
    return layer_text(kind, f"{tops.split()[0]}/{kind}", bottoms, tops, fields)


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
ROI_POOLING = layer("ROIPooling", "a rois", "pooled", "roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.5 }")
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
    + ROI_POOLING
    + layer("InnerProduct", "pooled", "scores", 'inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } }'),
}


def net_param(text, phase=caffe.TRAIN):
    param, _ = upgrade_net(parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)[0])
    param.state.phase = phase
    return param


def filled(net):
    for blob in net.input_blobs:
        blob.data[...] = [16, 16, 1] if blob.name == "im_info" else RANDOM.standard_normal(blob.shape)
    return net


def run(net):
    net.forward_from_to(0, len(net.layers) - 1)
    return {blob.name: blob.data.copy() for blob in net.output_blobs}


@pytest.mark.parametrize("name", [*NETS, *DETECTORS])
def test_nets_of_forks(name, tmp_path):
    text = {**NETS, **DETECTORS}[name]
    net = filled(Net(net_param(text, caffe.TEST)))
    wanted = run(net)
    assert all(np.isfinite(value).all() and value.size for value in wanted.values())
    net.save(str(tmp_path / "w.caffemodel"))
    for one in (Net(net_param(text, caffe.TEST), plan=plan) for plan in (None, "memory")):
        one.copy_from(str(tmp_path / "w.caffemodel"))
        for blob in one.input_blobs:
            blob.data[...] = net.blobs[blob.name].data
        for top, value in run(one).items():
            np.testing.assert_array_equal(value, wanted[top])


@pytest.mark.parametrize("kind, fields", [
    ("ROIPooling", "roi_pooling_param { pooled_size: 2 spatial_scale: 0.5 }"),
    ("PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 }"),
    ("ROIAlign", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 }")])
def test_a_net_of_two_stages_trains(kind, fields):
    text = DETECTORS["faster r-cnn"].replace(ROI_POOLING, layer(kind, "a rois", "pooled", fields)) + data(1, name="label")
    net = filled(Net(net_param(text + layer("SoftmaxWithLoss", "scores label", "loss"))))
    net.blobs["rois"].reshape(7, 5)     # there is one ROI before the first forward
    net.blobs["label"].reshape(7)
    net.blobs["label"].data[...] = np.arange(7) % 3
    net.forward_from_to(0, len(net.layers) - 1)
    net.backward_from_to(len(net.layers) - 1, 0)
    assert net.blobs["rois"].shape == (7, 5)
    learned = {name.split("/")[0]: bool(net.layers[i].blobs[0].diff.any()) for i, name in enumerate(net.layer_names) if net.layers[i].blobs}
    assert learned == {"a": True, "rpn": False, "score": False, "delta": False, "scores": True}


@pytest.mark.parametrize("name", NETS)
def test_its_gradients_are_right(name):
    target = data(*Net(net_param(NETS[name])).blobs["scores"].shape, name="target")
    report = gradcheck(net_param("force_backward: true\n" + target + NETS[name] + layer("EuclideanLoss", "scores target", "loss")))
    assert report.ok, str(report)


@pytest.mark.parametrize("name", [name for name in NETS if name != "senet"])    # read as layers of BVLC Caffe
def test_layers_write_their_outputs(name, poison, on_cpu):  # noqa: F811
    text = NETS[name].replace('"data" input_param', '"data" top: "target" input_param')
    scores = net_of(text).blobs["scores"].shape
    text = text.replace(" } }", f" }} shape {{ {' '.join(f'dim: {n}' for n in scores)} }} }}", 1)
    text += layer("EuclideanLoss", "scores target", "loss")
    net = net_of(text, plan="memory")
    same(trace(net), trace(net_of(text)))
    made = {node.tops[0].name for node in net.nodes if isinstance(node.layer, ForkLayer)}
    assert made and made <= set(recycled(net))


class Half(ReverseLayer):
    def forward(self, bottom, top):
        top[0].data[0] = bottom[0].data[0]


class Doubled(ReverseLayer):
    def order(self, array):
        return super().order(array)


def test_overwrites_outputs_of_user_classes():
    param = caffe_pb2.LayerParameter(name="l", type="Reverse", phase=caffe_pb2.TEST)
    assert overwrites_outputs(ReverseLayer(param)) and overwrites_outputs(Doubled(param)) and not overwrites_outputs(Half(param))
