"""Non-maximum suppression, readNet, getPerfProfile and models under OpenCV's names; compared with cv2 where that has them."""

from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import dnn
from minicaffe.errors import ConfigError, Error, ShapeError

RANDOM = np.random.default_rng(3)
NET = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
"""
ENDS = {
    "classes": 'layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.01 } } }',
    "places": "",
    "two": 'layer { name: "a" type: "ReLU" bottom: "conv" top: "a" } layer { name: "b" type: "TanH" bottom: "conv" top: "b" }',
}
# Boxes by hand: the location is a parameter of four inner products of nothing but biases.
DETECTION = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "loc" type: "InnerProduct" bottom: "data" top: "loc" inner_product_param { num_output: 16 weight_filler { type: "gaussian" std: 0.001 } } }
layer { name: "conf" type: "InnerProduct" bottom: "data" top: "conf" inner_product_param { num_output: 12 weight_filler { type: "gaussian" std: 0.003 } } }
layer { name: "confs" type: "Reshape" bottom: "conf" top: "confs" reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "soft" type: "Softmax" bottom: "confs" top: "soft" softmax_param { axis: 2 } }
layer { name: "flat" type: "Flatten" bottom: "soft" top: "flat" flatten_param { axis: 1 } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: MAX kernel_size: 4 stride: 4 } }
layer { name: "prior" type: "PriorBox" bottom: "pool" bottom: "data" top: "prior" prior_box_param { min_size: 3 clip: false variance: 0.1 } }
layer { name: "out" type: "DetectionOutput" bottom: "loc" bottom: "flat" bottom: "prior" top: "out"
  detection_output_param { num_classes: 3 share_location: true background_label_id: 0 nms_param { nms_threshold: 0.45 top_k: 10 }
    code_type: CENTER_SIZE keep_top_k: 5 confidence_threshold: 0.01 } }
"""


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
        boxes, scores, classes = boxes_of(n), RANDOM.random(n).astype(np.float32), RANDOM.integers(0, 3, n)
        scores[: n // 3] = 0.5      # ties
        for kind in (int, float):
            given = [tuple(map(kind, box)) for box in boxes]
            ours = dnn.NMSBoxes(given, scores.tolist(), 0.2, threshold, eta, top_k)
            theirs = cv2.dnn.NMSBoxes(given, scores.tolist(), 0.2, threshold, eta, top_k)
            np.testing.assert_array_equal(ours, theirs)
            assert type(ours) is type(theirs) and getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
            given = [(x, y, w + 1, h + 1) for x, y, w, h in given]  # OpenCV's batched form drops some boxes without an area
            given[0] = (900, 900, 3, 3)     # so far that OpenCV moves classes apart
            np.testing.assert_array_equal(dnn.NMSBoxesBatched(given, scores.tolist(), classes.tolist(), 0.2, threshold, eta, top_k),
                                          cv2.dnn.NMSBoxesBatched(given, scores.tolist(), classes.tolist(), 0.2, threshold, eta, top_k))


def test_limits_that_the_docstrings_state():
    boxes, scores = [(0, 0, 10, 10), (20, 0, 10, 10), (40, 0, 10, 10)], [0.5, 0.9, 0.3]
    for top_k, kept in ((-1, 3), (0, 3), (1, 1), (np.int64(2), 2), (4, 3)):
        assert list(dnn.NMSBoxes(boxes, scores, 0.1, 0.5, 1, top_k)) == [1, 0, 2][:kept]
    assert list(dnn.NMSBoxes(boxes, scores, 0.5, 0.5, 1e-9)) == [1]    # boxes of the threshold are left out
    assert dnn.blobFromImage(np.ones((4, 4, 4), np.float32), 1, (0, 0), (1, 2, 3, 4))[0, :, 0, 0].tolist() == [0, -1, -2, -3]


def test_nms_by_hand():
    boxes = [(0, 0, 10, 10), (1, 0, 10, 10), (20, 20, 5, 5), (0, 0, 10, 10)]
    assert list(dnn.NMSBoxes(boxes, [0.5, 0.9, 0.3, 0.1], 0.2, 0.5)) == [1, 2]
    assert list(dnn.NMSBoxesBatched(boxes, [0.5, 0.9, 0.3, 0.1], [0, 1, 0, 2], 0.05, 0.5)) == [1, 0, 2, 3]
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
    net = dnn.readNet(*files(tmp_path, NET + ENDS["classes"]))
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


def frame(height=20, width=30):
    return np.random.default_rng(4).integers(0, 256, (height, width, 3), np.uint8)


def pair(kind, paths, **options):
    """Our model and OpenCV's, None where that has no importer."""
    cv2 = pytest.importorskip("cv2")
    ours = getattr(dnn, kind)(paths[1], paths[0])
    try:
        theirs = getattr(cv2.dnn, kind)(paths[1], paths[0])
    except (AttributeError, cv2.error):
        theirs = None
    for model in filter(None, (ours, theirs)):
        model.setInputParams(**options)
    return ours, theirs


def test_classification(tmp_path):
    paths = files(tmp_path, NET + ENDS["classes"])
    picture = frame()
    ours, theirs = pair("ClassificationModel", paths, scale=0.02, size=(6, 8), mean=(10, 20, 30), swapRB=True)
    net = dnn.readNet(*paths)
    net.setInput(dnn.blobFromImage(picture, 0.02, (6, 8), (10, 20, 30), True))
    scores = net.forward()[0]
    assert ours.classify(picture) == (scores.argmax(), pytest.approx(scores.max()))
    np.testing.assert_array_equal(ours.predict(picture)[0][0], scores)
    if theirs is not None:
        assert ours.classify(picture) == (theirs.classify(picture)[0], pytest.approx(theirs.classify(picture)[1], rel=1e-4))
    assert not ours.getEnableSoftmaxPostProcessing() and ours.setEnableSoftmaxPostProcessing(True) is ours
    shares = np.exp(scores - scores.max())
    assert ours.classify(picture)[1] == pytest.approx((shares / shares.sum()).max(), rel=1e-5)
    with pytest.raises(ConfigError, match="a ClassificationModel has one output, this one has a, b"):
        dnn.ClassificationModel(dnn.readNet(*files(tmp_path, NET + ENDS["two"], "two"))).classify(picture)


def test_setters_are_as_all_at_once(tmp_path):
    pytest.importorskip("cv2")
    paths, picture = files(tmp_path, NET), frame()
    one, other = dnn.Model(*paths), dnn.dnn_Model(dnn.readNet(*paths))
    np.testing.assert_array_equal(one.predict(picture)[0], other.setInputSize(6, 8).predict(picture)[0])    # by default the input's size
    one.setInputParams(0.5, (10, 12), (1, 2, 3), True, True)
    other.setInputScale(0.5).setInputSize((10, 12)).setInputMean((1, 2, 3)).setInputSwapRB(True).setInputCrop(True)
    other.setPreferableBackend(dnn.DNN_BACKEND_OPENCV).setPreferableTarget(dnn.DNN_TARGET_CPU)
    np.testing.assert_array_equal(one.predict(picture)[0], other.predict(picture)[0])
    assert one.predict(picture)[0].shape == (1, 4, 10, 8)


def test_segmentation(tmp_path):
    ours, theirs = pair("SegmentationModel", files(tmp_path, NET), size=(6, 8), scale=0.01, mean=(128, 128, 128))
    picture = frame()
    mask = ours.segment(picture)
    assert mask.shape == (6, 4) and mask.dtype == np.uint8 and len(np.unique(mask)) > 1
    np.testing.assert_array_equal(mask, ours.predict(picture)[0][0].argmax(0))
    if theirs is not None:
        np.testing.assert_array_equal(mask, theirs.segment(picture))
    with pytest.raises(ShapeError, match="segment needs an output"):
        dnn.SegmentationModel(dnn.readNet(*files(tmp_path, NET + ENDS["classes"], "ip"))).segment(picture)


@pytest.mark.parametrize("threshold", [0.1, 0.4])
def test_detection(tmp_path, threshold):
    ours, theirs = pair("DetectionModel", files(tmp_path, DETECTION), size=(8, 8))
    picture = frame(200, 300)
    classes, confidences, boxes = ours.detect(picture, threshold)
    assert len(classes) == len(confidences) == len(boxes) >= 1 and boxes.dtype == classes.dtype == np.int32 and confidences.dtype == np.float32
    assert (confidences >= threshold).all() and (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= (300, 200)).all()
    if theirs is not None:
        theirs_too = theirs.detect(picture, threshold)
        one, other = (np.lexsort((confidences, classes)), np.lexsort((theirs_too[1], theirs_too[0])))   # OpenCV mixes the classes
        np.testing.assert_array_equal(classes[one], theirs_too[0][other])
        np.testing.assert_allclose(confidences[one], theirs_too[1][other], rtol=1e-4)
        assert np.abs(boxes[one] - theirs_too[2][other]).max() <= 1     # a corner on a pixel's edge
    assert ours.detect(picture, 1.1) == ((), (), ())
    with pytest.raises(ConfigError, match=r"ends with DetectionOutput, the last layer is 'conv' \(Convolution\)"):
        dnn.DetectionModel(dnn.readNet(*files(tmp_path, NET, "plain"))).detect(picture)


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
    (lambda: dnn.imagesFromBlob(np.zeros(3)), "blob: must have axes"), (lambda: dnn.NMSBoxes([[0, 0, 1]], [1], 0, 0), "bboxes: a box is"),
    (lambda: dnn.NMSBoxes(np.zeros((4, 5)), [1] * 5, 0, 0), "bboxes: a box is"), (lambda: dnn.NMSBoxes(None, None, 0, 0), "bboxes"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [[1]], 0, 0), "scores: must have one axis"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], "a", 0), "score_threshold"), (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, 0, 1, "a"), "top_k"),
    (lambda: dnn.NMSBoxesBatched([[0, 0, 1, 1]], [1], None, 0, 0), "class_ids"), (lambda: dnn.readNetFromCaffe(None), "content as bytes"),
    (lambda: dnn.readNetFromCaffe(5), "content as bytes"), (lambda: dnn.readNetFromCaffe([300]), "content as bytes"),
    (lambda: dnn.readNet(None), "a path is"), (lambda: dnn.readNet("a.prototxt", framework=None), "framework"),
    (lambda: dnn.Model(5), "model: must be a Net"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (1.5, 4)), "size: must be .width, height., two whole numbers, got .1.5, 4."),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, 0, 1, 2.5), "top_k must be an int, got 2.5"),
    *((lambda eta=eta: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, 0, eta), "eta: must be above 0 and at most 1") for eta in (0, 1.001, np.nan)),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], -1e-9, 0), "score_threshold: must be at least 0"),
    (lambda: dnn.NMSBoxes([[0, 0, 1, 1]], [1], 0, -1e-9), "nms_threshold: must be at least 0"),
    (lambda: dnn.blobFromImage(np.zeros((4, 4, 5))), "images: a picture is .* 1 to 4 channels, got .4, 4, 5."),
    (lambda: dnn.blobFromImage(np.zeros((4, 4, 0))), "images: a picture is .* 1 to 4 channels"),
    (lambda: dnn.blobFromImage(IMAGE, 1, (0, 0), (1, 2, 3, 4, 5)), "mean: must be a number or up to 4, got 5"),
], ids=range(38))
def test_wrong_arguments(call, words):
    with pytest.raises(Error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call, words", [
    (lambda net: net.setInput(None), "blob: must be an array"), (lambda net: net.setInput("a"), "blob: must be an array"),
    (lambda net: net.setInput(IMAGE, "", None), "scalefactor"), (lambda net: net.forward(5), "outputName must be a list"),
    (lambda net: net.forwardAndRetrieve("prob"), "outBlobNames must be a list"), (lambda net: net.getParam(0), "layer: must be .* 1 to 2, got 0"),
    (lambda net: net.getParam(-1), "layer: must be"), (lambda net: net.getParam(3), "layer: must be"), (lambda net: net.getParam(1, "a"), "numParam"),
    (lambda net: dnn.Model(net).setInputSize(5), "size"), (lambda net: dnn.Model(net).setInputParams(size=5), "size"),
    (lambda net: dnn.readNetFromCaffe(net.caffe.file, 5), "content as bytes"),
], ids=range(12))
def test_wrong_arguments_of_a_net(tmp_path, call, words):
    net = dnn.readNet(files(tmp_path, PLAIN)[0])
    with pytest.raises(Error, match=words):
        call(net)
    assert net.getParam(np.int64(1)).shape == (4, 192)


def test_a_model_takes_a_path(tmp_path):
    assert dnn.ClassificationModel(Path(files(tmp_path, PLAIN)[0])).classify(IMAGE) == (0, 0.25)


def opencvs_box(corners, width, height):
    """The box of a row of DetectionOutput as OpenCV's model.cpp computes it, for one corner after the other."""
    left, top, right, bottom = (int(corner) for corner in corners)
    if right - left + 1 <= 2 or bottom - top + 1 <= 2:
        scaled = [np.float32(corner) * np.float32(side) for corner, side in zip(corners, (width, height, width, height))]
        left, top, right, bottom = map(int, scaled)
    wide, high = right - left + 1, bottom - top + 1
    left = 0 if left < 0 else width - 1 if left > width - 1 else left
    top = 0 if top < 0 else height - 1 if top > height - 1 else top
    wide = 1 if wide < 1 else width - left if wide > width - left else wide
    high = 1 if high < 1 else height - top if high > height - top else high
    return left, top, wide, high


def test_boxes_of_detections_at_and_beyond_each_edge():
    from minicaffe.addons.opencv.models import _box
    random, seen = np.random.default_rng(6), set()
    for _ in range(400):
        width, height = (int(side) for side in random.integers(3, 50, 2))
        if random.random() < 0.5:       # fractions, or pixels
            corners = random.choice([-0.5, 0, 0.1, 0.4, 0.8, 1, 1.5], 4).tolist()
        else:
            corners = [float(random.integers(-3, end + 4)) for end in (width, height, width, height)]
        box = _box(corners, width, height)
        assert box == opencvs_box(corners, width, height)
        seen |= {name for name, hit in (("left", box[0] == width - 1), ("top", box[1] == height - 1), ("wide", box[2] == 1)) if hit}
    assert seen == {"left", "top", "wide"}
    assert _box([1, 1, 3, 3], 9, 9) == (1, 1, 3, 3) and _box([1, 1, 2, 2], 9, 9) == (8, 8, 1, 1)     # three pixels, and two: fractions


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


def test_a_model_sets_the_target_of_its_net(tmp_path, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    model = dnn.ClassificationModel(dnn.readNet(*files(tmp_path, NET + ENDS["classes"])))
    try:
        assert model.setPreferableTarget(dnn.DNN_TARGET_CUDA) is model and caffe.common.caffe.mode == "gpu"
        assert model.setPreferableTarget(dnn.DNN_TARGET_CPU) is model and caffe.common.caffe.mode == "cpu"
    finally:
        caffe.set_mode_cpu()


def test_a_profile_runs_each_layer_once(tmp_path, monkeypatch):
    net = dnn.readNet(*files(tmp_path, NET + ENDS["classes"]))
    ran, clock = [], iter(range(0, 10**6, 7))
    net.setInput(np.ones((1, 3, 8, 6)))
    net.caffe.before_forward(ran.append)
    monkeypatch.setattr("minicaffe.addons.opencv.dnn.time.perf_counter_ns", lambda: next(clock))
    total, layers = net.getPerfProfile()
    assert ran == [0, 1, 2] and total == 21 and layers.tolist() == [7, 7]
    np.testing.assert_array_equal(net.caffe.blobs["data"].data, np.ones((1, 3, 8, 6)))


def test_a_segmentation_of_more_classes_than_a_byte_counts(tmp_path):
    model = dnn.SegmentationModel(dnn.readNet(*files(tmp_path, NET.replace("num_output: 4", "num_output: 256"))))
    assert model.segment(frame(8, 6)).shape == (6, 4)
    with pytest.raises(ShapeError, match="classes up to 256"):
        dnn.SegmentationModel(dnn.readNet(*files(tmp_path, NET.replace("num_output: 4", "num_output: 257"), "more"))).segment(frame(8, 6))


def test_a_model_changes_a_picture_by_its_options_alone(tmp_path):
    """It is resized to the input; red and blue are not swapped, and nothing is cut off."""
    pytest.importorskip("cv2")
    paths = files(tmp_path, NET + ENDS["places"])
    picture = frame()
    net = dnn.readNet(*paths)
    net.setInput(dnn.blobFromImage(picture, size=(6, 8)))
    wanted = net.forward()
    made = dnn.Model(*paths)
    np.testing.assert_array_equal(made.predict(picture)[0], wanted)
    for change in (made.setInputSwapRB, made.setInputCrop):
        change(True)
        assert not np.array_equal(made.predict(picture)[0], wanted)
        change(False)
        np.testing.assert_array_equal(made.predict(picture)[0], wanted)


def test_pictures_of_a_blob_that_is_no_array():
    [picture] = dnn.imagesFromBlob([[[[1, 2, 3]], [[4, 5, 6]]]])
    assert picture.tolist() == [[[1, 4], [2, 5], [3, 6]]]
    with pytest.raises(Error, match="^blob: must be an array of real numbers"):
        dnn.imagesFromBlob("blob")


@pytest.mark.parametrize("call, failed_to_read", [(lambda: dnn.blobFromImage(None), True), (lambda: dnn.blobFromImage("a.jpg"), False),
                                                  (lambda: dnn.blobFromImage(IMAGE, mean=None), False)])
def test_the_remedy_for_a_picture_that_is_none(call, failed_to_read):
    with pytest.raises(Error) as caught:
        call()
    assert ("cv2.imread gives None" in str(caught.value)) == failed_to_read


def test_a_segmentation_has_one_picture(tmp_path):
    halves = 'layer { name: "halves" type: "Reshape" bottom: "conv" top: "halves" reshape_param { shape { dim: 2 dim: 2 dim: 0 dim: 0 } } }'
    with pytest.raises(ShapeError, match=r"segment needs an output \(1, classes up to 256, height, width\), the net's is \[2, 2, 6, 4\]"):
        dnn.SegmentationModel(dnn.readNet(*files(tmp_path, NET + halves))).segment(frame(8, 6))


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


def test_rows_without_a_label_are_no_detections(tmp_path, monkeypatch):
    """DetectionOutput has one, of -1, for a picture without an object; a threshold may be below its confidence."""
    model = dnn.DetectionModel(dnn.readNet(*files(tmp_path, DETECTION)))
    monkeypatch.setattr(model, "_only_output", lambda frame: np.float32([[[[0, -1, -1, -1, -1, -1, -1], [0, 0, 0.5, 1, 1, 9, 9]]]]))
    for threshold in (-2, 0.5):     # a confidence that is the threshold is enough
        classes, confidences, boxes = model.detect(frame(20, 30), threshold)
        assert (classes.tolist(), confidences.tolist(), boxes.tolist()) == ([0], [0.5], [[1, 1, 9, 9]])
    assert model.detect(frame(20, 30), 0.51) == ((), (), ())


def test_the_smallest_size():
    pytest.importorskip("cv2")
    assert dnn.blobFromImage(IMAGE, 1, (1, 1)).shape == (1, 3, 1, 1)
