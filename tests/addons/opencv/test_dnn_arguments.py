"""readNet, getPerfProfile and wrong arguments under OpenCV's names."""

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


def test_net_and_its_messages(tmp_path):
    paths = files(tmp_path, NET)
    x = RANDOM.random((1, 3, 8, 6)).astype(np.float32)
    want = caffe.Net(paths[0], caffe.TEST, weights=paths[1]).forward(data=x)["conv"]
    for arguments in (paths, paths[::-1], (*paths, "Caffe"), tuple(map(Path, paths))):
        net = dnn.readNet(*arguments)
        net.setInput(x)
        np.testing.assert_array_equal(net.forward(), want)
    assert dnn.readNet(paths[0]).getLayerNames() == ("conv",)
    for arguments, words in ((("a.onnx",), "readNet takes a .prototxt and a .caffemodel of Caffe, or the first alone, got a.onnx; cv2.dnn.readNet reads others"),
                             ((*paths, "darknet"), " of darknet; "), ((paths[1],), f"got {paths[1]}; "), ((paths[0], paths[0]), f"got {paths[0]}, {paths[0]}; "),
                             (("",), "got nothing")):
        with pytest.raises(ConfigError, match=words):
            dnn.readNet(*arguments)
    net = dnn.readNet(*files(tmp_path, NET))
    for call, message in ((lambda: net.forward("cov"), "the net has no layer 'cov'; did you mean 'conv'?"),
                          (lambda: net.setInput(np.zeros((1, 3, 8, 6)), "dta"), "the net has no input 'dta'; did you mean 'data'?; its inputs are data"),
                          (lambda: net.setInput(np.zeros((1, 5, 8, 6)), mean=1), "mean: is for blobs of 1 to 4 channels, the blob is [1, 5, 8, 6]"),
                          (lambda: net.setInput(np.zeros(4), mean=1), "mean: is for blobs of 1 to 4 channels, the blob is [4]")):
        with pytest.raises(Error) as caught:
            call()
        assert str(caught.value) == message
    for channels in 1, 4:
        net.setInput(np.full((2, channels, 3), 9.0), mean=(1, 2, 3, 4), scalefactor=0.5)
        np.testing.assert_array_equal(net._input_arrays["data"][1, :, 2], [4, 3.5, 3, 2.5][:channels])
    net.setInput(np.full((1, 5, 2, 2), 8), scalefactor=0.5)      # without a mean of any shape
    np.testing.assert_array_equal(net._input_arrays["data"], np.full((1, 5, 2, 2), 4))


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


@pytest.mark.parametrize("call, words", [
    (lambda net: dnn.readNetFromCaffe(None), "content as bytes"), (lambda net: dnn.readNetFromCaffe(5), "content as bytes"),
    (lambda net: dnn.readNetFromCaffe([300]), "content as bytes"), (lambda net: dnn.readNetFromCaffe(net.caffe.file, 5), "content as bytes"),
    (lambda net: dnn.readNetFromCaffe("no.prototxt"), "no.prototxt: no such file"), (lambda net: dnn.readNetFromCaffe(b"layer { nme: 'x' }"), "nme"),
    (lambda net: dnn.readNet(None), "a path is"), (lambda net: dnn.readNet("a.prototxt", framework="onnx"), " of onnx; "),
    (lambda net: net.setInput(None), "blob: must be an array"), (lambda net: net.setInput("a"), "blob: must be an array"),
    (lambda net: net.setInput(np.zeros((8, 8, 3), np.uint8), "", None), "scalefactor"), (lambda net: net.forward(5), "outputName must be a list")],
    ids=range(12))
def test_wrong_arguments(tmp_path, call, words):
    net = dnn.readNet(files(tmp_path, NET)[0])
    with pytest.raises(Error, match=words) as caught:
        call(net)
    assert "\n" not in str(caught.value)


def test_a_profile_runs_each_layer_once(tmp_path, monkeypatch):
    net = dnn.readNet(*files(tmp_path, NET + CLASSES))
    ran, clock = [], iter(range(0, 10**6, 7))
    net.setInput(np.ones((1, 3, 8, 6)))
    net.caffe.before_forward(ran.append)
    monkeypatch.setattr("minicaffe.addons.opencv.dnn.time.perf_counter_ns", lambda: next(clock))
    total, layers = net.getPerfProfile()
    assert ran == [0, 1, 2] and total == 21 and layers.tolist() == [7, 7]
    np.testing.assert_array_equal(net.caffe.blobs["data"].data, np.ones((1, 3, 8, 6)))
