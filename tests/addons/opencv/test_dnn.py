"""dnn: OpenCV's names, shapes and numbers; compared with cv2.dnn where that still has what is compared."""

import re
from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import dnn
from minicaffe.errors import ConfigError, Error, RecycledError, ShapeError

NET = """input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layer { name: "conv" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "constant" value: -0.3 } } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "pool" type: "Pooling" bottom: "c" top: "pool" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "a" type: "InnerProduct" bottom: "pool" top: "a" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "b" type: "InnerProduct" bottom: "pool" top: "b" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "a" top: "prob" }
layer { name: "only in training" type: "Dropout" bottom: "b" top: "x" include { phase: TRAIN } }
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "deploy.prototxt").write_text(NET)
    paths = str(tmp_path / "deploy.prototxt"), str(tmp_path / "w.caffemodel")
    caffe.Net(paths[0], caffe.TEST).save(paths[1])
    return paths


def test_net_and_buffers(files):
    net = dnn.readNetFromCaffe(*files)
    assert net.getLayerNames() == ("c", "relu", "pool", "a", "b", "prob") and not net.empty()
    assert net.getUnconnectedOutLayersNames() == ("b", "prob")
    assert list(net.getUnconnectedOutLayers()) == [5, 6] and net.getLayerId("pool") == 3 and net.getLayerId("no") == -1
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    net.setInput(x)
    prob = net.forward()
    ours = caffe.Net(files[0], caffe.TEST, weights=files[1])
    ours.blobs["data"].reshape(*x.shape)
    want = ours.forward(data=x, blobs=["b", "c"])
    np.testing.assert_allclose(prob, want["prob"], rtol=1e-5)
    b, first = net.forward(["b", "conv"])
    np.testing.assert_allclose(b, want["b"], rtol=1e-5)
    assert first.min() < 0  # the convolution's own output, before the ReLU that works in place
    np.testing.assert_allclose(np.maximum(first, 0), net.forward("relu"), rtol=1e-6)
    np.testing.assert_array_equal(net.forward("c"), first)  # OpenCV calls a convolution by its top
    net.setInput(x + 2, "data", 0.5, (1, 1, 1))
    np.testing.assert_allclose(net.forward(), ours.forward(data=(x + 1) / 2)["prob"], rtol=1e-5)
    kept = net.forward()
    net.setInput(x)
    assert not np.array_equal(net.forward(), kept) and kept.shape == (2, 5)
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    for options, there in (({}, False), ({"keep": ["pool"]}, True), ({"plan": None}, True)):
        net = dnn.readNetFromCaffe(*files, **options)
        net.setInput(x)
        net.forward()
        if there:
            np.testing.assert_array_equal(net.caffe.blobs["pool"].data, net.forward("pool"))
        else:
            with pytest.raises(RecycledError):
                net.caffe.blobs["pool"].data  # noqa: B018
    contents = [open(path, "rb").read() for path in files]
    x = np.ones((1, 3, 8, 8), np.float32)
    made = []
    for pair in (files, contents, [np.frombuffer(c, np.uint8) for c in contents], [bytearray(c) for c in contents]):
        net = dnn.readNetFromCaffe(*pair)
        net.setInput(x)
        made.append(net.forward())
    for other in made[1:]:
        np.testing.assert_array_equal(other, made[0])


def test_layer_name_before_blob_name():
    """A blob is what its last layer in place makes of it; the other layers of the blob are found by their own names."""
    net = dnn.readNetFromCaffe(b"""input: "data" input_shape { dim: 2 dim: 3 }
        layer { name: "fc" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 1 } } }
        layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }
        layer { name: "minus" type: "Power" bottom: "ip1" top: "ip1" power_param { scale: -2 shift: -1 } }
        layer { name: "one" type: "AbsVal" bottom: "ip1" top: "abs" }
        layer { name: "two" type: "Power" bottom: "ip1" top: "one" power_param { shift: 5 } }""")
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    net.setInput(x)
    fc = x @ net.caffe.params["fc"][0].data.T
    assert (fc < 0).any() and (fc > 0).any()
    made = {"fc": fc, "relu": np.maximum(fc, 0), "minus": -2 * np.maximum(fc, 0) - 1}
    made |= {"ip1": made["minus"], "one": -made["minus"], "abs": -made["minus"], "two": made["minus"] + 5}
    for name, want in made.items():
        np.testing.assert_allclose(net.forward(name), want, rtol=1e-5, atol=1e-6, err_msg=name)
    for result, want in zip(net.forward(list(made)), made.values(), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


def test_tops_and_outputs():
    net = dnn.readNetFromCaffe(b"""input: "data" input_shape { dim: 1 dim: 4 }
        layer { name: "cut" type: "Slice" bottom: "data" top: "left" top: "right" slice_param { axis: 1 } }
        layer { name: "p" type: "Power" bottom: "left" top: "q" }""")
    net.setInput(np.arange(4).reshape(1, 4))
    np.testing.assert_array_equal(net.forward("right"), [[2, 3]])
    for found, wanted in zip(net.forward(["right", "left", "cut", "q"]), ([[2, 3]], [[0, 1]], [[0, 1]], [[0, 1]]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    net = dnn.readNetFromCaffe(b"""input: "data" input_dim: 1 input_dim: 4 input_dim: 2 input_dim: 2
        layer { name: "cut" type: "Slice" bottom: "data" top: "left" top: "right" slice_param { axis: 1 } }
        layer { name: "halves" type: "Slice" bottom: "right" top: "up" top: "down" slice_param { axis: 2 } }
        layer { name: "ip" type: "InnerProduct" bottom: "left" top: "ip" inner_product_param { num_output: 2 } }
        layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
        layer { name: "quiet" type: "Silence" bottom: "up" }
        layer { name: "both" type: "Slice" bottom: "down" top: "l" top: "r" slice_param { axis: 3 } }
        layer { name: "half" type: "Slice" bottom: "l" top: "first" top: "second" slice_param { axis: 1 } }
        layer { name: "reads one" type: "ReLU" bottom: "first" top: "positive" }""")
    # One top of half is read; the ReLU overwrites what ip made; Silence has no output.
    assert net.getUnconnectedOutLayersNames() == ("relu", "reads one")
    assert dnn.readNetFromCaffe(b"\xef\xbb\xbf# \xff\n" + NET.encode()).getLayerNames() == dnn.readNetFromCaffe(NET.encode()).getLayerNames()
    with pytest.raises(ConfigError, match="^<prototxt>:1:"):
        dnn.readNetFromCaffe(b'name: "\xff" ' + NET.encode())


def test_names_of_opencv():
    cv2 = pytest.importorskip("cv2")
    for name in dnn.FUNCTIONS:
        assert getattr(dnn, name) is getattr(cv2.dnn, name)
    assert dnn.blobFromImage(np.ones((4, 5, 3), np.uint8), 2, (2, 2), (1, 0, 0)).tolist() == [[[[0, 0]] * 2, [[2, 2]] * 2, [[2, 2]] * 2]]
    with pytest.raises(AttributeError, match="has no attribute 'blobFrom'"):
        _ = dnn.blobFrom
    for name in ("setInput", "forward", "getLayerNames", "getLayerId", "getUnconnectedOutLayers", "getUnconnectedOutLayersNames",
                 "empty", "setPreferableBackend", "setPreferableTarget", "getPerfProfile"):
        assert hasattr(cv2.dnn.Net, name) and hasattr(dnn.Net, name)
    for name in dnn.__all__:
        theirs = getattr(cv2.dnn, name, getattr(cv2, name, None))
        assert theirs is not None and (not name.startswith("DNN_") or theirs == getattr(dnn, name)), name


def test_same_as_opencv(files):
    cv2 = pytest.importorskip("cv2")
    with open(files[0], "w") as file:
        file.write(NET.partition('layer { name: "only')[0])  # OpenCV does not leave out what is for training
    try:
        theirs = cv2.dnn.readNetFromCaffe(*files)
    except (AttributeError, cv2.error) as error:
        pytest.skip(f"this OpenCV ({cv2.__version__}) has no Caffe importer: {str(error)[:80]}")
    ours = dnn.readNetFromCaffe(*files)
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    for net in (ours, theirs):
        net.setInput(x)
    assert tuple(ours.getLayerNames()) == tuple(theirs.getLayerNames())
    assert tuple(ours.getUnconnectedOutLayersNames()) == tuple(theirs.getUnconnectedOutLayersNames())
    for name in ours.getLayerNames():
        np.testing.assert_allclose(ours.forward(name), theirs.forward(name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names, layers", [(["b", "conv"], "conv relu pool a b"), (["prob", "c", "pool", "c"], "conv relu pool a b prob"), (["conv"], "conv"),
                                           ([], "")])
def test_each_layer_runs_once(files, names, layers, monkeypatch):
    net, ran, clock = dnn.readNetFromCaffe(*files, plan=None), [], iter(range(0, 10**6, 7))
    net.setInput(np.ones((1, 3, 8, 8), np.float32))
    net.caffe.before_forward(lambda index: ran.append(net.caffe.nodes[index]))
    assert len(net.forward(names)) == len(names)
    assert [node.name for node in ran if node.type not in ("Input", "Split")] == layers.split() and len(ran) == len(set(map(id, ran)))
    ran.clear()
    monkeypatch.setattr("minicaffe.addons.opencv.dnn.time.perf_counter_ns", lambda: next(clock))
    total, times = net.getPerfProfile()
    assert [node.name for node in ran if node.type not in ("Input", "Split")] == "conv relu pool a b prob".split()
    assert total == 7 * len(ran) and times.tolist() == [7] * 6
    np.testing.assert_array_equal(net.caffe.blobs["data"].data, np.ones((1, 3, 8, 8)))


@pytest.mark.parametrize("place", ["cpu", "sim"])
def test_perf_profile(files, place, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    net = dnn.readNet(*files)
    try:
        net.setPreferableTarget(dnn.DNN_TARGET_CUDA if place == "sim" else dnn.DNN_TARGET_CPU)
        net.setInput(np.random.default_rng(3).random((2, 3, 8, 8)).astype(np.float32))
        before = net.forward()
        total, layers = net.getPerfProfile()
        assert isinstance(total, int) and layers.shape == (6,) == (len(net.getLayerNames()),) and (layers > 0).all() and total >= layers.sum() > 0
        np.testing.assert_array_equal(net.forward(), before)
    finally:
        caffe.set_mode_cpu()


def test_other_targets_are_named(files, caplog, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    net = dnn.readNet(*files)
    net.setPreferableTarget(dnn.DNN_TARGET_CPU)
    assert not caplog.records
    net.setPreferableTarget(dnn.DNN_TARGET_CUDA_FP16)
    assert caffe.common.caffe.mode == "gpu" and "computes in float32" in caplog.text
    net.setPreferableTarget(dnn.DNN_TARGET_OPENCL)
    assert caffe.common.caffe.mode == "cpu" and "there is no target 1 here, so the CPU computes" in caplog.text


def test_files_of_read_net(files):
    x, made = np.random.default_rng(3).random((1, 3, 8, 8)).astype(np.float32), []
    for arguments in (files, files[::-1], (*files, "Caffe"), tuple(map(Path, files))):
        net = dnn.readNet(*arguments)
        net.setInput(x)
        made.append(net.forward())
        np.testing.assert_array_equal(made[-1], made[0])
    assert dnn.readNet(files[0]).getLayerNames() == net.getLayerNames()
    np.testing.assert_array_equal(made[0], caffe.Net(files[0], caffe.TEST, weights=files[1]).forward(data=x)["prob"])
    net.setInput(np.full((1, 5, 2, 2), 8), scalefactor=0.5)      # without a mean of any shape
    np.testing.assert_array_equal(net._input_arrays["data"], np.full((1, 5, 2, 2), 4))


@pytest.mark.parametrize("call, words", [
    (lambda net: dnn.readNetFromCaffe(None), "content as bytes"), (lambda net: dnn.readNetFromCaffe(5), "content as bytes"),
    (lambda net: dnn.readNetFromCaffe([300]), "content as bytes"), (lambda net: dnn.readNetFromCaffe(net.caffe.file, 5), "content as bytes"),
    (lambda net: dnn.readNetFromCaffe("no.prototxt"), "no.prototxt: no such file"), (lambda net: dnn.readNetFromCaffe(b"layer { nme: 'x' }"), "nme"),
    (lambda net: dnn.readNet(None), "a path is"), (lambda net: dnn.readNet("a.prototxt", framework="onnx"), " of onnx; "),
    (lambda net: dnn.readNet("a.onnx"),
     "^readNet takes a .prototxt and a .caffemodel of Caffe, or the first alone, got a.onnx; cv2.dnn.readNet reads others"),
    (lambda net: dnn.readNet("a.caffemodel"), "got a.caffemodel; "), (lambda net: dnn.readNet("a.prototxt", "a.prototxt"), "got a.prototxt, a.prototxt; "),
    (lambda net: dnn.readNet("a.prototxt", "a.caffemodel", "darknet"), " of darknet; "), (lambda net: dnn.readNet(""), "got nothing"),
    (lambda net: net.forward("pol"), r"^the net has no layer 'pol'; did you mean 'pool'\?$"), (lambda net: net.forward(5), "outputName must be a list"),
    (lambda net: dnn.readNetFromCaffe(b"layer { name: 'in' type: 'Input' top: 'x' input_param { shape { dim: 1 } } }"
                                      b"layer { name: 'unit' type: 'ReLU' bottom: 'x' top: 'y' }").forward("uit"), "did you mean 'unit'"),
    (lambda net: net.setInput(np.zeros((1, 3, 8, 8)), "dta"), r"^the net has no input 'dta'; did you mean 'data'\?; its inputs are data$"),
    (lambda net: net.setInput(None), "blob: must be an array"), (lambda net: net.setInput("a"), "blob: must be an array"),
    (lambda net: net.setInput(np.zeros((8, 8, 3), np.uint8), "", None), "scalefactor")], ids=range(20))
def test_wrong_arguments(files, call, words):
    net = dnn.readNet(files[0])
    with pytest.raises(Error, match=words) as caught:
        call(net)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("shape", "right"), [((3,), False), ((2, 3), True), ((2, 5), False), ((2, 4, 3, 2), True), ((1, 5, 3, 2), False), ((2, 1, 7), True)])
def test_mean_of_an_input(tmp_path, shape, right):
    (tmp_path / "net.prototxt").write_text("""layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 } } }
        layer { name: "p" type: "Power" bottom: "data" top: "p" }""")
    net, x = dnn.readNetFromCaffe(tmp_path / "net.prototxt"), np.random.default_rng(0).normal(size=shape).astype(np.float32)
    if not right:
        with pytest.raises(ShapeError, match=rf"^mean: is for blobs of 1 to 4 channels, the blob is {re.escape(str(list(shape)))}$"):
            net.setInput(x, mean=(1, 2, 3, 4))
        return
    net.setInput(x, "data", 2, (1, 2, 3, 4))
    wanted = (x - np.array([1, 2, 3, 4][:shape[1]], np.float32).reshape(-1, *[1] * (len(shape) - 2))) * 2
    np.testing.assert_array_equal(net.forward("p"), wanted)
    assert (x != wanted).any()      # the given array is left alone
