"""The pycaffe of 2014: programs of then run."""

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.errors import ConfigError, FileError, MissingNameError, WrongTypeError

NET = """
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "y" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "y" top: "z" }
"""
PICTURE = np.random.default_rng(0).random((4, 4, 3)).astype(np.float32)
MEAN = np.arange(48, dtype=np.float32).reshape(3, 4, 4)


@pytest.fixture(autouse=True)
def phase_test_and_cpu():
    yield
    caffe.set_phase_test()
    caffe.set_mode_cpu()


@pytest.fixture
def files(tmp_path):
    net, model = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    net.write_text(NET)
    caffe.Net(str(net), caffe.TEST).save(str(model))
    return str(net), str(model)


def test_reshaped_input(files):
    net = caffe.Net(*files)
    net.set_raw_scale("data", 255)
    assert net.preprocess("data", PICTURE).shape == (3, 4, 4)
    net.blobs["data"].reshape(1, 3, 6, 5)
    net.set_mean("data", np.zeros((3, 6, 5)))
    assert net.preprocess("data", PICTURE).shape == (3, 6, 5)
    with pytest.raises(ConfigError, match="'y' is not one of the inputs"):
        net.set_raw_scale("y", 3)
    with pytest.raises(ConfigError, match="must have each axis once"):
        net.transformer.set_transpose("data", (3, 4, 5))


def test_a_program_of_2014(files, caplog):
    doubled = caffe.Classifier(*files, raw_scale=2).preprocess("data", PICTURE)
    np.testing.assert_allclose(doubled, 2 * PICTURE.transpose(2, 0, 1), rtol=1e-6)
    caffe.Net(files[0], caffe.TEST, weights=files[1])       # as today
    assert not any("use Net(" in record.message for record in caplog.records)
    net = caffe.Net(*files)
    assert net.phase == caffe.TEST
    net.set_phase_test()
    net.set_mode_cpu()
    net.set_mean("data", MEAN)
    net.set_raw_scale("data", 255)
    net.set_channel_swap("data", (2, 1, 0))
    net.set_input_scale("data", 0.5)
    blob = net.preprocess("data", PICTURE)
    np.testing.assert_allclose(blob, (PICTURE.transpose(2, 0, 1)[::-1] * 255 - MEAN) * 0.5, rtol=1e-5)
    np.testing.assert_allclose(net.deprocess("data", blob), PICTURE, atol=1e-5)
    out = net.forward(data=blob[np.newaxis])["z"]
    np.testing.assert_allclose(out[0], net.params["fc"][0].data @ blob.ravel(), rtol=1e-3)
    assert sum("use Net(" in record.message and "caffe.TEST, weights=" in record.message for record in caplog.records) == 1


def test_phases(files):
    caffe.set_phase_train()
    train = caffe.Net(*files)
    assert train.phase == caffe.TRAIN
    train.set_phase_train()
    with pytest.raises(ConfigError, match=r"phase: a net keeps its phase; build it by caffe.Net\(file, caffe.TEST, weights=model\)"):
        train.set_phase_test()
    caffe.set_phase_test()
    test = caffe.Net(*files)
    assert test.phase == caffe.TEST
    with pytest.raises(ConfigError, match=r"build it by caffe.Net\(file, caffe.TRAIN"):
        test.set_phase_train()


def test_means(files, tmp_path):
    np.save(tmp_path / "mean.npy", MEAN)
    net = caffe.Net(*files)
    for mean, mode, want in ((str(tmp_path / "mean.npy"), "elementwise", MEAN), (MEAN, "channel", MEAN.mean((1, 2), keepdims=True)),
                             ([1, 2, 3], "elementwise", np.array([1, 2, 3]).reshape(3, 1, 1))):
        net.set_mean("data", mean, mode=mode)
        np.testing.assert_allclose(net.preprocess("data", PICTURE), PICTURE.transpose(2, 0, 1) - want, rtol=1e-5)
    with pytest.raises(ConfigError, match="must be 'elementwise' or 'channel'"):
        net.set_mean("data", MEAN, mode="all")
    with pytest.raises(FileError, match="no such file"):
        net.set_mean("data", str(tmp_path / "none.npy"))
    with pytest.raises(FileError, match="is a prototxt, where a NumPy array"):
        net.set_mean("data", files[0])
    with pytest.raises(MissingNameError, match="no blob 'dat'.*did you mean 'data'"):
        net.preprocess("dat", PICTURE)


def test_gpu_mode(files, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    net = caffe.Net(*files)
    net.set_device(0)
    net.set_mode_gpu()
    assert caffe.common.caffe.mode == "gpu"
    net.set_mode_cpu()
    assert caffe.common.caffe.mode == "cpu"
    caffe.Classifier(*files, gpu=True)
    assert caffe.common.caffe.mode == "gpu"
    caffe.Detector(*files, gpu=False)
    assert caffe.common.caffe.mode == "cpu"


def test_wrong_arguments(files):
    net, model = files
    for phase in True, 7, 1.0, np.array([1, 0]), b"net.caffemodel":
        with pytest.raises(ConfigError, match="phase: must be TRAIN"):
            caffe.Net(net, phase)
    with pytest.raises(ConfigError, match="weights: is given twice"):
        caffe.Net(net, model, weights=model)
    for call in caffe.set_solver_count, caffe.set_solver_rank, caffe.init_log:
        for value in "a", 1.5:
            with pytest.raises(WrongTypeError, match="must be .*(number|int)"):
                call(value)
    with pytest.raises(ConfigError, match="level: must be an integer, got .*weights="):
        caffe.Net(net, caffe.TEST, model)
