"""Precision tf32: one setting for all devices in use, from one iteration to the next; the CPU and older GPUs refuse it.

What cuBLAS and cuDNN are set to is seen in the calls that a library records on the simulated device (fake_cudnn.cpp).
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from processes import command, run, run_gpu
from test_cudnn import calls_of, engines, products, record

import minicaffe
from minicaffe import cuda, errors
from minicaffe.blob import Dtype
from minicaffe.engines import engine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "layers"))

from gradient import layer_net, run_forward  # noqa: E402

HERE = Path(__file__).resolve().parent
PRODUCT = """layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param {{ num_output: {outputs} weight_filler {{ type: "gaussian" }} }} }}"""
pytestmark = pytest.mark.slow(40)    # all together


@pytest.fixture
def set_precision():
    """The function, whose effect ends with the test."""
    before = minicaffe.get_precision()
    yield minicaffe.set_precision
    minicaffe.set_precision(before)


def product(dtype=Dtype.FLOAT):
    return layer_net(PRODUCT.format(outputs=3), [np.ones((2, 4))], dtype)


TRAINING = """
import json
from cudnn_cases import take_fake_times
from training import NET, make_solver
log = os.environ["FAKE_LOG"]

def calls_of(work):
    "The calls that `work` makes, as dicts."
    open(log, "w").close()
    work()
    return [json.loads(line) for line in open(log)]

def step():
    "One iteration: the calls, and the number of launches; a replayed graph has neither."
    before = cuda.current().launches
    calls = calls_of(lambda: solver.step(1))
    return calls, cuda.current().launches - before

def convolutions(calls):
    "The products that were computed, and by which engine of cuDNN; before each those that were measured are left out."
    calls = [(call["product"], call["engine"]) for call in calls if call["call"] == "cudnnBackendExecute"]
    return [call for call, behind in zip(calls, [*calls[1:], ("", 0)]) if call[0] != behind[0]]

def measured(calls):
    return len([call for call in calls if call["call"] == "cudnnBackendExecute"]) > len(convolutions(calls))

minicaffe.set_mode_gpu()
take_fake_times()
solver = make_solver(NET)
"""


def test_change_in_a_training(fake, tmp_path):
    """The iteration after a change is computed, and then recorded, again."""
    run(TRAINING + """
def check_replay():
    step(), step()
    assert step() == ([], 0)

def check_mode(precision, mode):
    found = calls_of(lambda: minicaffe.set_precision(precision))
    assert [(call["call"], call["mode"]) for call in found] == [("cublasSetMathMode", mode)], found

step()
check_replay()

check_mode("tf32", 3)       # CUBLAS_TF32_TENSOR_OP_MATH
calls, launches = step()
assert launches and any(call["call"] == "cublasSgemmStridedBatched" for call in calls)
assert measured(calls) and convolutions(calls) == [("forward", 112), ("weights", 12)], convolutions(calls)     # on tensor cores
check_replay()
check_mode("float32", 0)
calls, launches = step()
assert launches and convolutions(calls) == [("forward", 111), ("weights", 11)] and not measured(calls)     # that was before
for use in False, True:     # so does another engine
    check_replay()
    cuda.use_cudnn(use)
    calls, launches = step()
    assert launches and bool(convolutions(calls)) == use
""", "sim", MINICAFFE_CUDNN=str(fake), MINICAFFE_CUBLAS=str(fake), FAKE_LOG=str(tmp_path / "calls"))


@pytest.mark.parametrize("setting", ["float32", "tf32"])
def test_every_device(fake, tmp_path, setting):
    """Those in use change, those that are used later begin with it; the first setting is that of the environment."""
    run_gpu("""
    from cudnn_cases import make_net, step
    step(*make_net("conv 1x1"))
    cuda.get_device(1)
    minicaffe.set_precision("tf32")
    cuda.get_device(2)
    minicaffe.set_precision("float32")
    """, "sim", "devices=3", MINICAFFE_PRECISION=setting, MINICAFFE_CUBLAS=str(fake), MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(tmp_path / "calls"))
    found = calls_of(tmp_path)
    modes = [call["mode"] for call in found if call["call"] == "cublasSetMathMode"]
    assert modes == [3 if setting == "tf32" else 0] * 3 + [3] * 3 + [0] * 3     # the first device: when it starts, and when a layer asks for the setting
    assert (12 in {call["engine"] for call in found if call["call"] == "cudnnBackendExecute"}) == (setting == "tf32")    # on tensor cores


def test_algorithms(fake, tmp_path):
    """In float32 none on tensor cores; each precision keeps its choice; float64 has one, since tensor cores round nothing of it."""
    one = {"name": "conv 1x1"}
    specs = [{**one, "precision": "tf32"}, one, {**one, "precision": "tf32"}, {**one, "dtype": "DOUBLE", "precision": "tf32"}]
    results = record(fake, tmp_path, *specs)
    assert [engines(result)["data"] for result in results] == [12, 11, 12, 12]
    assert [any(trials for _, trials, _ in products(result)) for result in results] == [True, True, False, True]


def test_tf32_on_a_gpu(place, set_precision):
    """Errors of 1e-3 and less, in the products of tf32 alone."""
    if place != "gpu" or cuda.current().capability < (8, 0) or cuda.current().library_versions["cuBLAS"] is None:
        pytest.skip("no GPU with TF32 and cuBLAS here: its errors were not measured (pytest --device gpu)")
    rng = np.random.default_rng(1)
    net = layer_net(PRODUCT.format(outputs=256), [rng.standard_normal((128, 512))], Dtype.FLOAT)
    exact = net.bottoms[-1][0].data.astype(np.float64) @ net.layers[-1].blobs[0].data.astype(np.float64).T

    def error(name):
        set_precision(name)
        run_forward(net)
        return np.abs(net.tops[-1][0].data - exact).max() / np.abs(exact).max()

    assert error("float32") < 2e-6 and 2e-5 < error("tf32") < 5e-3 and error("float32") < 2e-6


def test_the_cpu_refuses_tf32(set_precision):
    """Where the layer computes, so that GPU mode can come later; nets of float64 have one precision."""
    minicaffe.set_mode_cpu()
    set_precision("tf32")
    assert minicaffe.get_precision() == "tf32"
    net = product()
    with pytest.raises(errors.ConfigError, match=(
            r"layer 'ip' \(InnerProduct\): precision: must be float32 or bf16 on the CPU, got 'tf32'; use float32, or compute on a GPU "
            r"of compute capability 8\.0 or more$")):
        run_forward(net)
    run_forward(product(Dtype.DOUBLE))
    minicaffe.set_mode_gpu()
    run_forward(product())
    minicaffe.set_mode_cpu()
    set_precision("float32")
    run_forward(net)


def test_bf16_without_onednn(set_precision, monkeypatch):
    """An inner product computes from float32 there; on the CPU the first layer reports what is missing."""
    def missing():
        raise errors.DependencyError("no oneDNN")
    monkeypatch.setitem(engine.ENGINES["ONEDNN"].precisions, "bf16", missing)
    set_precision("bf16")
    run_forward(product())
    minicaffe.set_mode_cpu()
    with pytest.raises(errors.DependencyError, match="no oneDNN"):
        run_forward(product())
    with pytest.raises(errors.DependencyError, match="no oneDNN"):
        set_precision("bf16")


@pytest.mark.parametrize("environment", [{}, {"MINICAFFE_PRECISION": "tf32"}], ids=["call", "environment"])
def test_an_older_gpu_refuses_tf32(environment, folder):
    run_gpu(f"""
    from gradient import layer_net, run_forward
    from minicaffe.blob import Dtype
    if {not environment}:
        minicaffe.set_precision("tf32")
    net = layer_net({PRODUCT.format(outputs=3)!r}, [np.ones((2, 4))], Dtype.FLOAT)
    field = {"MINICAFFE_PRECISION" if environment else "precision"!r}
    refused(errors.ConfigError, lambda: run_forward(net), field + ": must be float32 on GPU 0 of compute capability 7.5, got 'tf32'; "
            "use float32, or compute on a GPU of compute capability 8.0 or more")
    minicaffe.set_precision("float32")
    run_forward(net)
    """, "sim", "capability=7.5", **environment)
    if not environment:
        text = command("train", "net.prototxt", "--precision", "bf16", cwd=folder, device="sim", settings="capability=7.5", status=2)
        assert "minicaffe: precision: must be float32 on GPU 0 of compute capability 7.5, got 'bf16'; use float32, or compute on the CPU, or a GPU" in text


@pytest.mark.parametrize("arguments", [
    ["train", "net.prototxt"], ["time", "net.prototxt"], ["trace", "net.prototxt"], ["summary", "net.prototxt"],
    ["test", "net.prototxt", "--weights", "w"], ["extract_features", "w", "net.prototxt", "ip", "db", "1"],
    ["classify", "x.npy", "--model", "net.prototxt", "--weights", "w"],
    ["detect", "x.npy", "--model", "net.prototxt", "--weights", "w"],
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_commands_refuse_it_before_anything_runs(folder, arguments, place):
    np.save(folder / "x.npy", np.zeros((1, 5, 5, 3)))
    text = command(*arguments, "--precision", "tf32", cwd=folder, device="cpu", status=2)
    assert text.strip().splitlines()[-1] == (
        "minicaffe: precision: must be float32 or bf16 on the CPU, got 'tf32'; use float32, or compute on a GPU of compute capability "
        "8.0 or more")
    assert "Iteration" not in text and "Creating" not in text and "Traceback" not in text
    if arguments[0] == "time":
        text = command(*arguments, cwd=folder, device="cpu", status=2, MINICAFFE_PRECISION="tf32")
        assert "minicaffe: MINICAFFE_PRECISION: must be float32 or bf16 on the CPU" in text
    if arguments[0] == "train":     # the mode is known only when the solver file is read
        assert "Use GPU with device ID 0" in command("train", "solver.prototxt", "--precision", "tf32", cwd=folder, device=place)
