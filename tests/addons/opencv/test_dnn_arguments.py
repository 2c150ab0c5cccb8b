"""Non-maximum suppression, readNet, getPerfProfile and wrong arguments under OpenCV's names; compared with cv2 where that has them."""

from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import dnn
from minicaffe.errors import ConfigError, Error

RANDOM = np.random.default_rng(3)
NET = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
"""
CLASSES = 'layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }'


def files(tmp_path, text, name="net"):
    paths = str(tmp_path / f"{name}.prototxt"), str(tmp_path / f"{name}.caffemodel")
    Path(paths[0]).write_text(text)
    caffe.set_random_seed(5)
    caffe.Net(paths[0], caffe.TEST).save(paths[1])
    return paths


def boxes_of(n):
    return np.concatenate([RANDOM.integers(0, 40, (n, 2)), RANDOM.integers(0, 30, (n, 2))], axis=1)


@pytest.mark.parametrize("eta, top_k", [(1.0, 0), (0.7, 0), (1.0, 12)])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9])
def test_nms_is_opencvs(eta, top_k, threshold):
    cv2 = pytest.importorskip("cv2")
    for n in (1, 5, 60):
        boxes, scores = boxes_of(n), RANDOM.random(n).astype(np.float32)
        scores[: n // 3] = 0.5      # ties
        for kind in (int, float):
            given = [tuple(map(kind, box)) for box in boxes]
            ours = dnn.NMSBoxes(given, scores.tolist(), 0.2, threshold, eta, top_k)
            theirs = cv2.dnn.NMSBoxes(given, scores.tolist(), 0.2, threshold, eta, top_k)
            np.testing.assert_array_equal(ours, theirs)
            assert type(ours) is type(theirs) and getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)


def test_limits_that_the_docstrings_state():
    boxes, scores = [(0, 0, 10, 10), (20, 0, 10, 10), (40, 0, 10, 10)], [0.5, 0.9, 0.3]
    for top_k, kept in ((-1, 3), (0, 3), (1, 1), (np.int64(2), 2), (4, 3)):
        assert list(dnn.NMSBoxes(boxes, scores, 0.1, 0.5, 1, top_k)) == [1, 0, 2][:kept]
    assert list(dnn.NMSBoxes(boxes, scores, 0.5, 0.5, 1e-9)) == [1]    # boxes of the threshold are left out
    assert dnn.blobFromImage(np.ones((4, 4, 4), np.float32), 1, (0, 0), (1, 2, 3, 4))[0, :, 0, 0].tolist() == [0, -1, -2, -3]


def test_nms_by_hand():
    boxes = [(0, 0, 10, 10), (1, 0, 10, 10), (20, 20, 5, 5), (0, 0, 10, 10)]
    assert list(dnn.NMSBoxes(boxes, [0.5, 0.9, 0.3, 0.1], 0.2, 0.5)) == [1, 2]
    assert list(dnn.NMSBoxes(boxes[0], [0.5], 0.2, 0.5)) == [0]     # one box alone
    assert dnn.NMSBoxes([], [], 0.2, 0.5) == () and dnn.NMSBoxes(boxes, [0.1] * 4, 0.2, 0.5) == ()
    for arguments, words in (((boxes, [1], 0.1, 0.1), "scores: must have one score"), ((boxes, [1] * 4, -1, 0.1), "score_threshold: must be at least 0"),
                             ((boxes, [1] * 4, 0, float("nan")), "nms_threshold: must be at least 0, got nan"),
                             ((boxes, [1] * 4, 0, 0, 0), "eta: must be above 0 and at most 1, got 0")):
        with pytest.raises(ValueError, match=words):
            dnn.NMSBoxes(*arguments)


def test_read_net(tmp_path):
    paths = files(tmp_path, NET)
    x = RANDOM.random((1, 3, 8, 6)).astype(np.float32)
    want = caffe.Net(paths[0], caffe.TEST, weights=paths[1]).forward(data=x)["conv"]
    for arguments in (paths, paths[::-1], (*paths, "Caffe"), tuple(map(Path, paths))):
        net = dnn.readNet(*arguments)
        net.setInput(x)
        np.testing.assert_array_equal(net.forward(), want)
    assert dnn.readNet(paths[0]).getLayerNames() == ("conv",)
    for arguments, words in ((("a.onnx",), "readNet takes a .prototxt and a .caffemodel of Caffe, got a.onnx; cv2.dnn.readNet reads others"),
                             ((*paths, "darknet"), "got 'darknet'"), ((paths[1],), "give one .prototxt"), ((paths[0], paths[0]), "give one .prototxt"),
                             (("",), "got nothing")):
        with pytest.raises(ConfigError, match=words):
            dnn.readNet(*arguments)


@pytest.mark.parametrize("place", ["cpu", "sim"])
def test_perf_profile(tmp_path, place, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    net = dnn.readNet(*files(tmp_path, NET + CLASSES))
    try:
        net.setPreferableTarget(dnn.DNN_TARGET_CUDA if place == "sim" else dnn.DNN_TARGET_CPU)
        x = RANDOM.random((2, 3, 8, 6)).astype(np.float32)
        net.setInput(x)
        before = net.forward()
        total, layers = net.getPerfProfile()
        assert isinstance(total, int) and layers.shape == (2,) == (len(net.getLayerNames()),) and (layers > 0).all() and total >= layers.sum() > 0
        np.testing.assert_array_equal(net.forward(), before)
    finally:
        caffe.set_mode_cpu()


def test_other_targets_are_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    net = dnn.readNet(*files(tmp_path, NET))
    net.setPreferableTarget(dnn.DNN_TARGET_CPU)
    assert not caplog.records
    net.setPreferableTarget(dnn.DNN_TARGET_CUDA_FP16)
    assert caffe.common.caffe.mode == "gpu" and "computes in float32" in caplog.text
    net.setPreferableTarget(dnn.DNN_TARGET_OPENCL)
    assert caffe.common.caffe.mode == "cpu" and "there is no target 1 here, so the CPU computes" in caplog.text


def test_every_name_is_in_cv2():
    cv2 = pytest.importorskip("cv2")
    for name in dnn.__all__:
        theirs = getattr(cv2.dnn, name, getattr(cv2, name, None))
        assert theirs is not None, name
        if name.startswith("DNN_"):
            assert theirs == getattr(dnn, name), name


PLAIN = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [1, 3, 8, 8] } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
IMAGE = np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize("call, words", [
    (lambda: dnn.blobFromImage(None), "images: must be an array.*cv2.imread gives None"), (lambda: dnn.blobFromImage("a.jpg"), "images"),
    (lambda: dnn.blobFromImage([[1, 2], [3]]), "images"), (lambda: dnn.blobFromImage(IMAGE * 1j), "images"),
    (lambda: dnn.blobFromImages(None), "images: must be a sequence"), (lambda: dnn.blobFromImage(IMAGE, 1, 8), "size: must be .width"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (8,)), "size"), (lambda: dnn.blobFromImage(IMAGE, 1, (0, 4)), "size: must be at least 1 x 1"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (-3, 4)), "size"), (lambda: dnn.blobFromImage(IMAGE, None), "scalefactor: must be a number"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (8, 8), "a"), "mean"), (lambda: dnn.blobFromImage(IMAGE, 1, (8, 8), None), "mean"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (8, 8), ((1, 2), (3, 4))), "mean"),
    (lambda: dnn.blobFromImage(IMAGE.astype(np.int64), 1, (4, 4)), "images: OpenCV cannot resize .* int64 to 4 x 4; give uint8"),
    (lambda: dnn.NMSBoxes([[0, 0, 1]], [1], 0, 0), "bboxes: a box is"),
    (lambda: dnn.NMSBoxes(np.zeros((4, 5)), [1] * 5, 0, 0), "bboxes: a box is"), (lambda: dnn.NMSBoxes(None, None, 0, 0), "bboxes"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [[1]], 0, 0), "scores: must have one axis"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], "a", 0), "score_threshold"), (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, 0, 1, "a"), "top_k"),
    (lambda: dnn.readNetFromCaffe(None), "content as bytes"),
    (lambda: dnn.readNetFromCaffe(5), "content as bytes"), (lambda: dnn.readNetFromCaffe([300]), "content as bytes"),
    (lambda: dnn.readNet(None), "a path is"), (lambda: dnn.readNet("a.prototxt", framework=None), "framework"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (1.5, 4)), "size: must be .width, height., two whole numbers, got .1.5, 4."),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, 0, 1, 2.5), "top_k must be an int, got 2.5"),
    *((lambda eta=eta: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, 0, eta), "eta: must be above 0 and at most 1") for eta in (0, 1.001, np.nan)),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], -1e-9, 0), "score_threshold: must be at least 0"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, -1e-9), "nms_threshold: must be at least 0"),
    (lambda: dnn.blobFromImage(np.zeros((4, 4, 5))), "images: a picture is .* 1 to 4 channels, got .4, 4, 5."),
    (lambda: dnn.blobFromImage(np.zeros((4, 4, 0))), "images: a picture is .* 1 to 4 channels"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (0, 0), (1, 2, 3, 4, 5)), "mean: must be a number or up to 4, got 5"),
], ids=range(35))
def test_wrong_arguments(call, words):
    with pytest.raises(Error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call, words", [
    (lambda net: net.setInput(None), "blob: must be an array"), (lambda net: net.setInput("a"), "blob: must be an array"),
    (lambda net: net.setInput(IMAGE, "", None), "scalefactor"), (lambda net: net.forward(5), "outputName must be a list"),
    (lambda net: dnn.readNetFromCaffe(net.caffe.file, 5), "content as bytes"),
], ids=range(5))
def test_wrong_arguments_of_a_net(tmp_path, call, words):
    net = dnn.readNet(files(tmp_path, PLAIN)[0])
    with pytest.raises(Error, match=words):
        call(net)


def test_messages_of_a_net_name_what_is_wrong(tmp_path):
    net = dnn.readNet(*files(tmp_path, NET))
    for call, message in ((lambda: net.forward("cov"), "the net has no layer 'cov'; did you mean 'conv'?"),
                          (lambda: net.setInput(np.zeros((1, 3, 8, 6)), "dta"), "the net has no input 'dta'; did you mean 'data'?; its inputs are data"),
                          (lambda: net.setInput(np.zeros((1, 5, 8, 6)), mean=1), "mean: is for blobs of 1 to 4 channels, the blob is [1, 5, 8, 6]"),
                          (lambda: net.setInput(np.zeros(4), mean=1), "mean: is for blobs of 1 to 4 channels, the blob is [4]"),
                          (lambda: dnn.blobFromImage(np.zeros((4, 4)), ddepth=dnn.CV_8U), "ddepth: CV_8U takes pictures of uint8, got float64")):
        with pytest.raises(Error) as caught:
            call()
        assert str(caught.value) == message
    for channels in 1, 4:
        net.setInput(np.full((2, channels, 3), 9.0), mean=(1, 2, 3, 4), scalefactor=0.5)
        np.testing.assert_array_equal(net._input_arrays["data"][1, :, 2], [4, 3.5, 3, 2.5][:channels])
    net.setInput(np.full((1, 5, 2, 2), 8), scalefactor=0.5)      # without a mean of any shape
    np.testing.assert_array_equal(net._input_arrays["data"], np.full((1, 5, 2, 2), 4))


def test_a_profile_runs_each_layer_once(tmp_path, monkeypatch):
    net = dnn.readNet(*files(tmp_path, NET + CLASSES))
    ran, clock = [], iter(range(0, 10**6, 7))
    net.setInput(np.ones((1, 3, 8, 6)))
    net.caffe.before_forward(ran.append)
    monkeypatch.setattr("minicaffe.addons.opencv.dnn.time.perf_counter_ns", lambda: next(clock))
    total, layers = net.getPerfProfile()
    assert ran == [0, 1, 2] and total == 21 and layers.tolist() == [7, 7]
    np.testing.assert_array_equal(net.caffe.blobs["data"].data, np.ones((1, 3, 8, 6)))


@pytest.mark.parametrize("call, failed_to_read", [(lambda: dnn.blobFromImage(None), True), (lambda: dnn.blobFromImage("a.jpg"), False),
                                                  (lambda: dnn.blobFromImage(IMAGE, mean=None), False)])
def test_the_remedy_for_a_picture_that_is_none(call, failed_to_read):
    with pytest.raises(Error) as caught:
        call()
    assert ("cv2.imread gives None" in str(caught.value)) == failed_to_read


@pytest.mark.parametrize("threshold, kept", [(0.5, [0, 1]), (0.51, [0])])
def test_eta_lowers_thresholds_above_a_half(threshold, kept):
    """The two boxes share a third of their union."""
    assert list(dnn.NMSBoxes([(0, 0, 10, 10), (5, 0, 10, 10)], [0.9, 0.8], 0.1, threshold, 0.5)) == kept


@pytest.mark.parametrize("call, message", [
    (lambda: dnn.NMSBoxes(None, [1], 0, 0), "bboxes: must be an array of real numbers, got None"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], None, 0, 0), "scores: must be an array of real numbers, got None"),
    (lambda: dnn.NMSBoxes(5, [1], 0, 0), "bboxes: a box is (x, y, width, height), got shape []"),
    (lambda: dnn.blobFromImage(np.zeros(3)), "images: a picture is (H, W) or (H, W, C) with 1 to 4 channels, got [3]"),
    (lambda: dnn.blobFromImage(np.zeros((1, 2, 3, 3))), "images: a picture is (H, W) or (H, W, C) with 1 to 4 channels, got [1, 2, 3, 3]"),
    (lambda: dnn.blobFromImage(np.zeros((0, 3))), "images: a picture is (H, W) or (H, W, C) with 1 to 4 channels, got [0, 3]")], ids=range(6))
def test_arrays_of_the_wrong_form(call, message):
    with pytest.raises(Error) as caught:
        call()
    assert str(caught.value) == message


def test_the_smallest_size():
    pytest.importorskip("cv2")
    assert dnn.blobFromImage(IMAGE, 1, (1, 1)).shape == (1, 3, 1, 1)
