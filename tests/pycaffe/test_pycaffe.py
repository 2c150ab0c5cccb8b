"""The pycaffe face: constructors, feeding, partial runs, weights both ways, and what it refuses."""

import copy
import gc
import logging
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from watched import net_of

import minicaffe as caffe
from minicaffe.errors import ConfigError, FileError, ShapeError
from minicaffe.pycaffe import settings

NET = """
force_backward: true
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "y" }
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    return str(tmp_path / "net.prototxt")


@pytest.mark.parametrize("given, used", [(" 2,4", 2), ("99999999999", None), ("\N{SUPERSCRIPT TWO}", None)])
def test_threads_of_the_environment(given, used):
    done = subprocess.run([sys.executable, "-c", "import minicaffe; print(minicaffe.get_num_threads())"], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": given})
    assert done.returncode == 0, done.stderr
    assert used is None or int(done.stdout) == used
    assert ("OMP_NUM_THREADS must be a number, 1 to 1024, got '" in done.stderr) == (used is None)


def test_names_and_forward(path):
    net = caffe.Net(path, caffe.TEST)
    assert (net.inputs, net.outputs, list(net.params)) == (["x"], ["y"], ["ip"])
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    weight, bias = (blob.data for blob in net.params["ip"])
    back = net.forward(x=x, blobs=["ip"])
    np.testing.assert_allclose(back["ip"], x @ weight.T + bias, rtol=1e-5)
    np.testing.assert_array_equal(back["y"], np.maximum(back["ip"], 0))
    net.blobs["ip"].data[...] = -1
    assert not net.forward(start="relu")["y"].any()
    gradient = net.backward(y=np.ones((2, 4), np.float32))["x"]
    np.testing.assert_allclose(gradient, ((net.blobs["ip"].data > 0) * 1.0) @ weight, atol=1e-6)
    net, seen = caffe.Net(path, caffe.TEST), []
    for name in ("before_forward", "after_forward", "before_backward", "after_backward"):
        getattr(net, name)(lambda layer, name=name: seen.append((name, layer)))
    net.forward()
    net.backward()
    assert seen == [(f"{when}_{way}", i) for way, layers in (("forward", (0, 1, 2)), ("backward", (2, 1, 0))) for i in layers
                    for when in ("before", "after")]


def test_weights_and_constructors(path, tmp_path):
    net = caffe.Net(path, caffe.TEST)
    wanted = net.params["ip"][0].data.copy()
    net.save(str(tmp_path / "w.caffemodel"))
    net.save_hdf5(str(tmp_path / "w.h5"))
    for other in (caffe.Net(path, str(tmp_path / "w.caffemodel"), caffe.TEST),
                  caffe.Net(path, caffe.TEST, weights=str(tmp_path / "w.h5"))):
        np.testing.assert_array_equal(other.params["ip"][0].data, wanted)
    view = net.params["ip"][0].data
    del net
    gc.collect()
    np.testing.assert_array_equal(view, wanted)     # it outlives the net


def test_forward_all(path):
    """Batches are of the input, not of an output of another first dimension."""
    with open(path, "a") as file:
        file.write('layer { name: "row" type: "Reshape" bottom: "y" top: "row" reshape_param { shape { dim: 1 dim: 8 } } }')
    net = caffe.Net(path, caffe.TEST)
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    made = net.forward_all(x=x)["row"]
    weight, bias = (blob.data for blob in net.params["ip"])
    np.testing.assert_allclose(made, np.maximum(x @ weight.T + bias, 0).reshape(2, 8), rtol=1e-5, atol=1e-6)


MEMORY_DATA = """layer { name: "m" type: "MemoryData" top: "x" top: "y"
  memory_data_param { batch_size: %d channels: %d height: %d width: %d } }"""


def test_input_arrays_given_again():
    net = net_of(MEMORY_DATA % (1, 1, 1, 1))
    for start in (0, 10):
        values = np.arange(start, start + 3, dtype=np.float32)
        net.set_input_arrays(values.reshape(3, 1, 1, 1), -values)
        assert [net.forward()["x"].item() for _ in range(2)] == [start, start + 1]      # ends in the middle
        assert net.blobs["y"].data.item() == -start - 1


X, L = np.arange(24, dtype=np.float32).reshape(4, 2, 3, 1), np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("data, labels, kind, message", [
    (X.astype(float), L, ConfigError, "data: must be float32, got float64; use np.ascontiguousarray(data, 'float32')"),
    (X, L.astype(int), ConfigError, "labels: must be float32, got int64; use np.ascontiguousarray(labels, 'float32')"),
    (X[::-1], L, ConfigError, "data: must be contiguous in C order, got shape (4, 2, 3, 1) and strides (-24, 12, 4, 4); use np.ascontiguousarray(data, 'float32')"),
    (X, L[::-1], ConfigError, "labels: must be contiguous in C order, got shape (4, 1, 1, 1) and strides (-4, "),
    (X.astype(">f4"), L, ConfigError, "data: must be float32, got >f4; use np.ascontiguousarray(data, 'float32')"),
    (X.reshape(4, 2, 1, 3), L, ShapeError, "data: must have shape (N, 2, 3, 1), got (4, 2, 1, 3)"),
    (X, L.reshape(2, 2), ShapeError, "labels: must have shape (N, 1, 1, 1), got (2, 2)"),
    (X, L[:2], ShapeError, "labels: 2 labels for 4 samples"),
    (X[:3], L[:3], ShapeError, "data: the number of samples must be a multiple of the batch size 2, got 3"),
    (X[:0], L[:0], ShapeError, "data: the number of samples must be a multiple of the batch size 2, got 0")])
def test_refused_input_arrays(data, labels, kind, message):
    net = net_of(MEMORY_DATA % (2, 2, 3, 1))
    with pytest.raises(ConfigError, match="has no data yet; call net.set_input_arrays"):
        net.forward()
    net.set_input_arrays(X, L.reshape(4, 1, 1, 1))
    net.forward()
    with pytest.raises(kind) as caught:
        net.set_input_arrays(data, labels)
    assert message in str(caught.value)
    np.testing.assert_array_equal(net.forward()["x"], X[2:])
    assert net.blobs["y"].data.ravel().tolist() == [2, 3]
    np.testing.assert_array_equal(net.forward()["x"], X[:2])


@pytest.mark.parametrize(("kind", "param"), [
    ("MemoryData", 'top: "y" memory_data_param { batch_size: 2 channels: 2 height: 3 width: 1 }'),
    ("DummyData", "dummy_data_param { shape { dim: 2 } }"), ("Input", "input_param { shape { dim: 2 } }")])
def test_transform_param_ignored(caplog, kind, param):
    net = net_of(f'layer {{ name: "d" type: "{kind}" top: "x" {param} transform_param {{ scale: 0.5 mean_value: 3 }} }}')
    for _ in range(2 if kind == "MemoryData" else 0):
        net.set_input_arrays(X, L)
    line, = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"layer 'd' ({kind}): transform_param: scale, mean_value ignored: ")


def test_a_part_of_a_pass(path):
    net = caffe.Net(path, caffe.TEST)
    x = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
    weight, bias = (blob.data for blob in net.params["ip"])
    net.blobs["y"].data[...] = 9
    made = net.forward(end="ip", blobs=["x"], x=x)
    assert list(made) == ["ip", "x"] and (net.blobs["y"].data == 9).all()
    np.testing.assert_allclose(made["ip"], x @ weight.T + bias, rtol=1e-5)
    net.blobs["ip"].data[...] = 4
    assert list(net.forward(start="relu", end="relu")) == ["y"] and (net.blobs["y"].data == 4).all()
    net.blobs["x"].diff[...] = 9
    made = net.backward(end="relu", diffs=["y"], y=np.full((2, 4), 3, np.float32))
    assert list(made) == ["ip", "y"] and (made["ip"] == 3).all() and (net.blobs["x"].diff == 9).all()
    net.blobs["y"].diff[...] = 5
    made = net.backward(start="ip")  # leaves the ReLU out
    assert list(made) == ["x"] and (net.blobs["ip"].diff == 3).all()
    np.testing.assert_allclose(made["x"], np.full((2, 4), 3) @ weight, rtol=1e-5)
    # `_forward` and `_backward` of pycaffe, which programs call that skip its checks
    net = caffe.Net(path, caffe.TEST)
    net.blobs["x"].data[...] = np.random.default_rng(4).normal(size=(2, 3))
    net._forward(0, 1)
    ip = net.blobs["ip"].data.copy()
    assert ip.any() and not net.blobs["y"].data.any()
    net._forward(2, 2)
    net.blobs["y"].diff[...] = 1
    net._backward(2, 2)
    assert (net.blobs["y"].data == np.maximum(ip, 0)).all() and not net.blobs["x"].diff.any()
    np.testing.assert_array_equal(net.blobs["ip"].diff, ip > 0)


def test_forward_backward_all(path):
    net, random = caffe.Net(path, caffe.TEST), np.random.default_rng(3)
    x, dy = (random.normal(size=(5, n)).astype(np.float32) for n in (3, 4))
    values, gradients = net.forward_backward_all(blobs=["ip"], diffs=["ip"], x=x, y=dy)
    weight, bias = (blob.data for blob in net.params["ip"])
    ip = x @ weight.T + bias
    assert sorted(values) == ["ip", "y"] and sorted(gradients) == ["ip", "x"]
    for made, wanted in ((values["ip"], ip), (values["y"], np.maximum(ip, 0)), (gradients["ip"], dy * (ip > 0)),
                         (gradients["x"], dy * (ip > 0) @ weight)):
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
    assert net.forward_all(blobs=["ip"], x=x)["ip"].shape == (5, 4)
    alone, gradients = net.forward_backward_all(x=x)
    np.testing.assert_array_equal(alone["y"], values["y"])
    assert gradients["x"].shape == x.shape
    with pytest.raises(ConfigError, match="forward_all needs an array for each input"):
        net.forward_all()


def test_solver_callbacks(tmp_path):
    (tmp_path / "net.prototxt").write_text("""layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param {
        shape { dim: 2 dim: 3 } shape { dim: 2 dim: 4 } data_filler { type: "gaussian" } data_filler { type: "constant" } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "t" top: "loss" }""")
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 5')
    solver = caffe.get_solver_from_file(str(tmp_path / "solver.prototxt"))
    seen = []
    solver.add_callback(lambda: seen.append("start"), lambda: seen.append("ready"))
    solver.step(2)
    assert seen == ["start", "ready"] * 2 and abs(solver.lr - 0.01) < 1e-8
    solver.net.params["ip"][0].diff[...] = 1
    before = solver.net.params["ip"][0].data.copy()
    solver.apply_update()
    np.testing.assert_allclose(solver.net.params["ip"][0].data, before - 0.01, rtol=1e-5)
    assert solver.iter == 3
    with pytest.raises(TypeError, match="on_gradients_ready"):
        solver.add_callback(object())
    from minicaffe.pycaffe import AdamSolver, set_random_seed
    assert AdamSolver is caffe.AdamSolver and set_random_seed is caffe.set_random_seed


def test_timers(caplog, monkeypatch):
    """On a device a timer waits for it, but not when it has stopped."""
    waits, mode = [], SimpleNamespace(mode="gpu")
    monkeypatch.setattr(settings, "caffe", mode)
    monkeypatch.setattr(settings, "cuda", SimpleNamespace(current=lambda: SimpleNamespace(synchronize=lambda: waits.append(mode.mode))))
    timer = caffe.Timer()
    timer.stop()        # does nothing, as it was not started
    with caplog.at_level("WARNING", "minicaffe"):
        assert timer.ms == 0 and "never been run" in caplog.text and not waits
    for count in 2, 4:      # the second time from zero
        timer.start()
        first = timer.ms
        timer.stop()
        assert 0 < first < 1000 and timer.ms == first and len(waits) == count
    mode.mode = "cpu"
    timer.start()
    assert timer.ms == timer.ms > 0 and len(waits) == 4


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda how: how.__name__)
@pytest.mark.parametrize("what", [lambda net: net, lambda net: net.blobs["data"], lambda net: net.layers[0], lambda net: net.nodes[0],
                                  lambda net: caffe.Layer(caffe.proto.caffe_pb2.LayerParameter(type="Python"))],
                         ids=["net", "blob", "layer", "node", "Python layer"])
def test_no_copies(what, how):
    with pytest.raises(TypeError, match="cannot pickle '.*' object"):
        how(what(net_of('layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 } } }')))


def test_wrong_files(tmp_path):
    (tmp_path / "net.prototxt").write_text('name: "n" layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 } } }')
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1')
    for make in (caffe.SGDSolver, caffe.get_solver):
        with pytest.raises(ConfigError, match="net.prototxt:1:1: name: .*nets have it: if this file is a net, give a solver's file"):
            make(str(tmp_path / "net.prototxt"))
    with pytest.raises(ConfigError, match="solver.prototxt:1:1: net: .*solvers have it: .* give the net of its field net"):
        caffe.Net(str(tmp_path / "solver.prototxt"), caffe.TEST)
    (tmp_path / "net.prototxt").write_text('layer { name: "d" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }')
    caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST).save(str(tmp_path / "net.caffemodel"))
    with pytest.raises(ConfigError, match="the net has no input, as it reads its data itself; give its deploy net"):
        caffe.Classifier(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel"))


def scorer(tmp_path, **options):
    (tmp_path / "scorer.prototxt").write_text(NET.replace("force_backward: true", "") + """
layer { name: "top" type: "InnerProduct" bottom: "y" top: "z" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }""")
    return caffe.Net(str(tmp_path / "scorer.prototxt"), caffe.TEST, **options)


def test_force_backward_as_an_argument(tmp_path, path, caplog):
    x, given = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32), np.eye(2, dtype=np.float32)
    net = scorer(tmp_path, force_backward=True)
    net.forward(x=x)
    first, second = net.params["ip"][0].data, net.params["top"][0].data
    want = (given @ second * (net.blobs["y"].data > 0)) @ first
    np.testing.assert_allclose(net.backward(z=given)["x"], want, atol=1e-6)
    assert not caplog.records
    off = caffe.Net(path, caffe.TEST, force_backward=False)     # the file says true
    off.forward(x=x)
    assert not off.backward(y=np.ones((2, 4)))["x"].any() and "computes nothing" in caplog.text
    param, _ = caffe.proto.upgrade.read_net_file(path)
    param.force_backward = False
    assert all(node.needs_backward for node in caffe.Net(param, caffe.TEST, force_backward=True).nodes) and not param.force_backward


def test_backward_of_nothing(tmp_path, caplog):
    net = scorer(tmp_path)
    net.forward(x=np.ones((2, 3)))
    for _ in range(2):
        assert not net.backward(z=np.ones((2, 2)))["x"].any()
    record, = caplog.records
    assert record.levelname == "WARNING" and "scorer.prototxt: backward computes nothing" in record.message
    assert "from 'top' down to 'in'" in record.message and "force_backward=True" in record.message
    net.backward(start="relu")
    assert len(caplog.records) == 2 and "from 'relu' down to 'in'" in caplog.text
    caplog.clear()
    net = net_of('name: "own" layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }')
    net.backward()
    assert [record.getMessage() for record in caplog.records] == [
        f"{net.file or 'own'}: backward computes nothing: no layer from 'x' down to 'x' needs a gradient, as none lies between a loss and a parameter; "
        "for the gradients of all blobs build the net by caffe.Net(..., force_backward=True)"]


def test_phase_of_a_message(tmp_path):
    """Once it was built for the phase of its own state, TRAIN if it says none."""
    param, _ = caffe.proto.text.parse_text("""state { level: 2 } layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }
        layer { name: "test" type: "Power" bottom: "x" top: "t" include { phase: TEST min_level: 2 } }
        layer { name: "train" type: "Power" bottom: "x" top: "y" include { phase: TRAIN } }""", caffe.proto.caffe_pb2.NetParameter)
    assert caffe.Net(param, caffe.TEST).layer_names == ["x", "test"] and caffe.Net(param, caffe.TRAIN).layer_names == ["x", "train"]
    assert caffe.Net(param, caffe.TEST, level=1).layer_names == ["x"] and param.state.level == 2 and not param.state.HasField("phase")


def test_wrong_arrays(path, tmp_path):
    net = caffe.Net(path, caffe.TEST)
    for call, kind, message in (
            (lambda: net.forward(z=np.zeros((2, 3)), a=np.zeros(1)), ConfigError, "inputs: give arrays for exactly the net's inputs ['x'], got ['a', 'z']"),
            (lambda: net.backward(x=np.zeros((2, 3))), ConfigError, "outputs: give arrays for exactly the net's outputs ['y'], got ['x']"),
            (lambda: net.forward(x=np.zeros((5, 3))), ShapeError,
             "inputs: 'x' has (5, 3), the blob (2, 3): the first dimension (batch) must be equal, others equal or 1; "
             "give such an array, or call net.blobs['x'].reshape(5, 3) first"),
            (lambda: net.forward(x=np.zeros(3)), ShapeError,
             "inputs: 'x' has (3,), the blob (2, 3): the first dimension (batch) must be equal, others equal or 1; "
             "give such an array; array[None] adds the first axis, which is the batch"),
            (lambda: net.backward(y=np.zeros(4)), ShapeError,
             "outputs: 'y' has (4,), the blob (2, 4): the first dimension (batch) must be equal, others equal or 1; "
             "give such an array; array[None] adds the first axis, which is the batch"),
            (lambda: net.forward(x=np.zeros(2)), ShapeError,
             "inputs: 'x' has (2,), the blob (2, 3): the first dimension (batch) must be equal, others equal or 1; give such an array"),
            (lambda: net.backward(y=np.zeros(())), ShapeError,
             "outputs: 'y' has (), the blob (2, 4): the first dimension (batch) must be equal, others equal or 1; give such an array"),
            (lambda: net.set_input_arrays(np.zeros((2, 3, 1, 1), np.float32), np.zeros(2, np.float32)), ConfigError,
             "set_input_arrays needs a net whose first layer is MemoryData")):
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value) == message
    # The missing file of weights is met before the net is built, which may take long.
    (tmp_path / "wrong.prototxt").write_text("layer { nme: 'x' }")
    with pytest.raises(FileError, match="^no.caffemodel: no such weights file; check the path"):
        caffe.Net(str(tmp_path / "wrong.prototxt"), caffe.TEST, weights="no.caffemodel")


@pytest.mark.parametrize("text, level", [(None, None), (" ", None), ("0", "INFO"), (" 1 ", "WARNING"), ("2", "ERROR"), ("3", "CRITICAL"),
                                         ("9", "CRITICAL"), ("-1", None), ("1.0", None), ("\N{SUPERSCRIPT TWO}", None), ("\u0662", None)])
def test_level_of_glog(monkeypatch, caplog, text, level):
    monkeypatch.delenv("GLOG_minloglevel", raising=False)
    if text is not None:
        monkeypatch.setenv("GLOG_minloglevel", text)
    assert settings.level_of_environment() == (level and getattr(logging, level))
    wrong = text not in (None, " ") and level is None
    assert [record.getMessage() for record in caplog.records] == [f"GLOG_minloglevel must be a number, 0 to 3, got {text!r}; it is ignored"] * wrong


def test_levels_log_and_multiprocess(monkeypatch):
    log = logging.Logger("of a test")
    monkeypatch.setattr(settings, "log_", log)
    settings.init_log(2, to_stderr=False)
    assert (log.level, log.handlers) == (logging.ERROR, [])
    for level, name in ((0, "INFO"), (1, "WARNING"), (3, "CRITICAL")):
        settings.init_log(level)
        assert log.level == getattr(logging, name) and len(log.handlers) == 1
    monkeypatch.setenv("GLOG_minloglevel", "1")
    settings.init_log()
    assert log.level == logging.WARNING
    for wrong in -1, 4:
        with pytest.raises(ConfigError, match=f"^level: must be 0 to 3, got {wrong}$"):
            settings.init_log(wrong)
    assert log.level == logging.WARNING
    # One that is shared by solvers of one process is refused there, as in Caffe
    from minicaffe.common import caffe as state
    monkeypatch.setattr(state, "multiprocess", False)
    caffe.set_multiprocess(1)
    assert state.multiprocess is True
    caffe.set_multiprocess(0)
    assert state.multiprocess is False
    try:
        caffe.set_solver_count(3)
        caffe.set_solver_rank(2)
        for call, name, least in ((caffe.set_solver_count, "solver_count", 1), (caffe.set_solver_rank, "solver_rank", 0)):
            with pytest.raises(ConfigError) as caught:
                call(least - 1)
            assert str(caught.value) == f"{name}: must be at least {least}, got {least - 1}"
        assert (caffe.solver_count(), caffe.solver_rank()) == (3, 2)
    finally:
        caffe.set_solver_count(1)
        caffe.set_solver_rank(0)


@pytest.mark.filterwarnings("ignore:.*has no loss")
@pytest.mark.parametrize("make", [caffe.get_solver, caffe.get_solver_from_file, caffe.SGDSolver, caffe.AdamSolver])
def test_options_of_a_solver(tmp_path, monkeypatch, make):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    text = 'layer {{ name: "in" type: "Input" top: "data" input_param {{ shape {{ dim: 1 }} }} {} }}'
    (tmp_path / "net.prototxt").write_text(text.format(""))
    (tmp_path / "in" / "unknown.prototxt").write_text("mem_param { }\n" + text.format(""))
    (tmp_path / "in" / "solver.prototxt").write_text('net: "../net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    (tmp_path / "in" / "other.prototxt").write_text('net: "unknown.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    make("solver.prototxt")
    with pytest.raises(ConfigError, match="net: the solver is not trusted"):
        make("solver.prototxt", trusted=False)
    with pytest.raises(ConfigError, match="unknown.prototxt:1:1: mem_param"):
        make("other.prototxt")
    assert make("other.prototxt", skip_unknown_fields=True).net._layer_names == ["in"]


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_older_constructor(path, tmp_path, caplog, monkeypatch, phase):
    monkeypatch.chdir(tmp_path)     # short names are shown whole
    path, weights = os.path.relpath(path), "w.caffemodel"
    caffe.Net(path, caffe.TEST).save(weights)
    caffe.Net(path, weights, getattr(caffe, phase))
    assert [record.getMessage() for record in caplog.records if "DEPRECATION" in record.getMessage()] == [
        f"DEPRECATION WARNING - deprecated use of Python interface; use Net('{path}', caffe.{phase}, weights='{weights}') instead"]


def test_levels_and_stages(tmp_path):
    path = tmp_path / "net.prototxt"
    rules = {"always": "", "deep": "include { min_level: 2 }", "staged": 'include { stage: "a" stage: "b" }', "train": "include { phase: TRAIN }"}
    path.write_text("".join(f'layer {{ name: "{name}" type: "Input" top: "{name}" {rule} }}' for name, rule in rules.items()))
    for given, names in (((), []), ((None,), []), ((2,), ["deep"]), ((1, ["a"]), []), ((None, ["a", "b", "c"]), ["staged"]), ((0, None, None), []),
                         ((3, ["b", "a"], None), ["deep", "staged"])):
        assert caffe.Net(str(path), caffe.TEST, *given)._layer_names == ["always", *names]
        assert caffe.Net(str(path), caffe.TEST, **dict(zip(("level", "stages", "weights"), given)))._layer_names == ["always", *names]
    assert caffe.Net(str(path), caffe.TRAIN, 2, ["a", "b"])._layer_names == list(rules)
    with pytest.raises(ConfigError, match="Net takes network_file, phase, level, stages and weights"):
        caffe.Net(str(path), caffe.TRAIN, 2, ["a"], None, 1)
