"""Inner products by cuBLASLt (minicaffe/cuda/cublaslt.hpp): bias and ReLU, or the gradients of weights and bias, in one call; in bf16.

On the simulated device a library of the tests checks what it is given and computes it (fake_cublaslt.hpp); with ``--device gpu`` it
is NVIDIA's.
"""

import subprocess
from pathlib import Path

import pytest
from cplusplus import compiler
from declarations import check_declarations
from processes import run

pytestmark = pytest.mark.slow(12)    # all together

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

SETUP = """
import itertools, json
import helpers
from helpers import layer_text
from training import losses, make_solver
from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN
minicaffe.set_mode_gpu()

def product(name, bottom, fields, weights="xavier", biases="gaussian", before=""):
    return layer_text("InnerProduct", name, bottom, name, before + ' inner_product_param { weight_filler { type: "' + weights
                      + '" } bias_filler { type: "' + biases + '" } ' + fields + ' }')

def layers(fields, relu=None):
    "The text of an inner product; `relu`: the fields of a ReLU behind it, in place unless they name a top."
    text = product("y", "x", fields, "gaussian")
    return text if relu is None else text + layer_text("ReLU", "relu", "y", "" if "top" in relu else "y", relu)

def make_net(body, shape=(3, 4), dtype=Dtype.FLOAT, phase=TEST):
    minicaffe.set_random_seed(3)
    body = "force_backward: true " + layer_text("Input", "in", "", "x", f"input_param {{ shape {{ dim: {list(shape)} }} }}") + body
    net = helpers.make_net(body, phase, dtype)
    net.blob_by_name("x").data[...] = np.random.default_rng(1).standard_normal(shape)
    return net

def forward(net):
    net.forward_from_to(0, len(net.layers) - 1)

def calls(*names):
    "Those of the library so far, of a name that begins so."
    found = [json.loads(line) for line in open(os.environ["FAKE_LOG"])]
    return [call for call in found if call["call"].startswith(names or "cublasLtMatmul") and (names or "Algo" not in call["call"])]

def products():
    return [call for call in calls("cublasLtMatmul", "cublasSgemm", "cublasDgemm") if "Algo" not in call["call"]]

def at(blob):
    return blob.gpu_data.address
"""


def go(place, code, fake=None, tmp_path=None, settings="", **environment):
    """Run Python text after SETUP; nothing of what the library got may be wrong."""
    if fake is not None:
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {"MINICAFFE_CUBLAS": str(fake), "FAKE_LOG": str(calls), "FAKE_COMPUTES": "1", **environment}
    text = run(SETUP + code, place, settings, **environment)
    assert "the slow cuDNN" not in text, text
    return text


AGAINST_NUMPY = """
for precision, rtol in PRECISIONS:
    minicaffe.set_precision(precision)
    for rows, inputs, outputs in (3, 4, 5), (1, 7, 1), (64, 33, 130), (5, 1, 3):
        for fields in "", "bias_term: false", "transpose: true":
            for relu in None, "", "relu_param { negative_slope: 0.5 }", 'top: "z"':
                net = make_net(layers(f"num_output: {outputs} {fields}", relu), (rows, inputs))
                x, w = net.blob_by_name("x").data, np.array(net.layers[1].blobs[0].data)
                x[0, 0] = np.nan
                want = x @ (w if "transpose" in fields else w.T) + (0 if "false" in fields else net.layers[1].blobs[1].data)
                if relu is not None:
                    want = np.where(want > 0, want, (0.5 if "slope" in relu else 0) * want)
                for _ in range(2):
                    forward(net)
                    np.testing.assert_allclose(net.tops[-1][0].cpu_data, want, rtol=rtol, atol=rtol * 10)
"""


@pytest.mark.slow(5)
@pytest.mark.parametrize("none", ["", "relu", "bias,relu"])
def test_results(place, request, tmp_path, none):
    """Those of NumPy, for shapes of one and of odd sizes, also where the library has no algorithm for an epilogue; NaN in one row is NaN in that row alone."""
    fake = request.getfixturevalue("fake") if place == "sim" else None
    precisions = [("float32", 1e-5)] if place == "sim" else [("float32", 1e-5), ("tf32", 2e-3)]
    go(place, f"PRECISIONS = {precisions}\n" + AGAINST_NUMPY, fake, tmp_path, FAKE_LT=none)


def test_one_call(fake, tmp_path):
    """For product, bias and ReLU; nothing else is launched. Without a bias and a ReLU it is cuBLAS, as in float64."""
    go("sim", """
for fields, relu, what in (
        ("", None, "epilogue 4"), ("", "", "epilogue 6"), ("bias_term: false", "", "epilogue 2"), ("bias_term: false", None, None),
        ("", "relu_param { negative_slope: 0.5 }", "epilogue 4"), ("", 'top: "z"', "epilogue 4")):
    net = make_net(layers("num_output: 5 " + fields, relu))
    net.use_graphs = False
    forward(net)
    before, launches = len(products()), cuda.current().launches
    forward(net)
    (call,) = products()[before:]
    # The library's own work is a launch of the simulated device, but not one of minicaffe.
    assert cuda.current().launches - launches == bool(relu), (fields, relu)
    if what is None:
        assert call["call"] == "cublasSgemmStridedBatched"
        continue
    weights = net.layers[1].blobs
    assert [call[name] for name in "abd"] == [at(weights[0]), at(net.blob_by_name("x")), at(net.blob_by_name("y"))]
    assert call["what"] == f"[5,3,4] trans [1,0] ld [4,4,5] {what} compute 68" and call["beta"] == 0 and call["bytes"] == 4096, call
    assert call["bias"] == (at(weights[1]) if len(weights) > 1 else 0)
forward(make_net(layers("num_output: 5 transpose: true")))
assert products()[-1]["what"] == "[5,3,4] trans [0,0] ld [5,4,5] epilogue 4 compute 68"
forward(make_net(layers("num_output: 5"), dtype=Dtype.DOUBLE))
assert products()[-1]["call"] == "cublasDgemmStridedBatched"
""", fake, tmp_path)


@pytest.mark.parametrize("deterministic", ["0", "1"])
def test_the_algorithm_of_a_shape(fake, tmp_path, deterministic):
    """It is found once for each shape, epilogue, alignment and precision, by what the settings allow."""
    go("sim", """
def found():
    return calls("cublasLtMatmulAlgo")
nets = [make_net(layers("num_output: 5", relu), (rows, 4)) for relu in (None, "") for rows in (3, 6, 3)]
for _ in range(2):
    for net in nets:
        net.use_graphs = False
        forward(net)
assert len(found()) == 4 and len(calls()) == 12
assert {(call["workspace"], call["aligned"]) for call in found()} == {(4 << 20, 256)}
assert {call["reductions"] for call in found()} == {0 if os.environ["MINICAFFE_DETERMINISTIC"] == "1" else 7}
for precision in "tf32", "bf16", "float32":
    minicaffe.set_precision(precision)
    forward(nets[0])
    assert calls()[-1]["what"].endswith("compute 68" if precision == "float32" else "compute 77")
assert len(found()) == 5
# Arrays that begin 16 and 4 bytes behind an aligned address.
for shift in 16, 4:
    net, block = make_net(layers("num_output: 5")), Blob((64,), name="block")
    x = net.blob_by_name("x")
    values = np.array(x.data)
    x.data_memory.set_gpu_data(at(block) + shift, block)
    x.data[...] = values
    forward(net)
    assert found()[-1]["aligned"] == shift, found()[-1]
# A bias is read by 16 bytes: at another address our kernels add it and its gradient.
net, block = make_net(layers("num_output: 5", "")), Blob((64,), name="block")
bias = net.layers[1].blobs[1]
values = np.array(bias.data)
forward(net)
want = np.array(net.tops[-1][0].cpu_data)
bias.data_memory.set_gpu_data(at(block) + 4, block)
bias.data[...] = values
before = len(calls())
forward(net)
np.testing.assert_allclose(net.tops[-1][0].cpu_data, want, rtol=1e-6)
assert len(calls()) == before
""", fake, tmp_path, MINICAFFE_DETERMINISTIC=deterministic)


BACKWARD = """
def backward(net):
    net.backward_from_to(len(net.layers) - 1, 0)

def gradients(net, passes=1):
    "Those of x and of the parameters, with a gradient of the top of ones, two, three..."
    forward(net)
    y = net.tops[-1][0]
    y.diff[...] = np.arange(y.count).reshape(y.shape) % 7 - 2
    net.clear_param_diffs()
    for _ in range(passes):
        backward(net)
    return [np.array(net.blob_by_name("x").diff), *(np.array(blob.diff) for blob in net.layers[1].blobs)]
"""


@pytest.mark.parametrize("none", ["", "sums"])
def test_gradients(place, request, tmp_path, none):
    """Those of NumPy: of weights and bias at once, and where the library has no algorithm for that; added in a second pass."""
    fake = request.getfixturevalue("fake") if place == "sim" else None
    go(place, BACKWARD + """
for dtype, (rows, inputs, outputs) in itertools.product((Dtype.FLOAT, Dtype.DOUBLE), ((3, 4, 5), (1, 7, 1), (64, 33, 130), (5, 1, 3))):
    for fields in "", "bias_term: false", "transpose: true":
        net = make_net(layers(f"num_output: {outputs} {fields}"), (rows, inputs), dtype)
        for passes in 1, 2, 1:
            dx, dw, *db = gradients(net, passes)
            x, w = net.blob_by_name("x").data, np.array(net.layers[1].blobs[0].data)
            dy, bias = net.blob_by_name("y").diff, net.layers[1].blobs[1].data if db else 0
            np.testing.assert_allclose(net.blob_by_name("y").data, x @ (w if "transpose" in fields else w.T) + bias, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(dx, dy @ (w.T if "transpose" in fields else w), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(dw, passes * (x.T @ dy if "transpose" in fields else dy.T @ x), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(db, [passes * dy.sum(0)] if db else [], rtol=1e-4, atol=1e-4)
""", fake, tmp_path, "uninitialized=1,race=1" if fake else "", FAKE_LT=none)  # fmt: skip


@pytest.mark.parametrize("deterministic", ["0", "1"])
def test_parameter_gradients_in_one_call(fake, tmp_path, deterministic):
    """The first of an iteration: the library overwrites the gradient of a bias. Nothing is launched besides."""
    go("sim", BACKWARD + """
def count(fields="", passes=1, dtype=Dtype.FLOAT):
    "The calls and launches of the last of several passes of backward."
    net = make_net(layers("num_output: 5 " + fields), dtype=dtype)
    net.use_graphs = False
    gradients(net)      # the next iteration overwrites what this one wrote
    forward(net)
    net.blob_by_name("y").gpu_diff
    net.clear_param_diffs()
    for _ in range(passes):
        calls_before, launches = len(products()), cuda.current().launches
        backward(net)
    made = products()[calls_before:]
    return [call.get("what", "").partition(" epilogue ")[2] or call["call"] for call in made], cuda.current().launches - launches, made, net
sgemm = "cublasSgemmStridedBatched"
# Of x by cuBLAS, and those of the parameters.
names, launches, made, net = count()
assert (names, launches) == ([sgemm, "512 compute 68"], 0), (names, launches)
call, (weight, bias) = made[1], net.layers[1].blobs
assert call["what"].startswith("[4,5,3] trans [0,1] ld [4,5,4]"), call
assert (call["d"], call["bias"], call["beta"]) == (weight.gpu_diff.address, bias.gpu_diff.address, 0)
names, launches, made, net = count("transpose: true")
assert (names, launches) == ([sgemm, "256 compute 68"], 0)
assert made[1]["what"].startswith("[5,4,3] trans [0,1] ld [5,4,5]"), made[1]
assert count("bias_term: false")[:2] == ([sgemm] * 2, 0)
assert count(dtype=Dtype.DOUBLE)[:2] == (["cublasDgemmStridedBatched"] * 2, 1)
# A second pass adds, to both.
assert count(passes=2)[:2] == ([sgemm] * 2, 1)
found = calls("cublasLtMatmulAlgo")[-1]
assert {call["reductions"] for call in calls("cublasLtMatmulAlgo")} == {0 if os.environ["MINICAFFE_DETERMINISTIC"] == "1" else 7}
minicaffe.set_precision("tf32")
assert count()[0] == [sgemm, "512 compute 77"]
os.environ["FAKE_LT"] = "sums"
minicaffe.set_precision("float32")
net = None
assert count("axis: 1")[:2] == ([sgemm, "512 compute 68"], 0)     # the algorithm of this shape is known
""", fake, tmp_path, MINICAFFE_DETERMINISTIC=deterministic)


def test_shared_weights_with_own_biases(fake, tmp_path):
    """The product is added to the gradient of the weights, by beta 1, and the gradients of the biases are overwritten: as on the CPU."""
    go("sim", """
NET = layer_text("Input", "in", "", "x t", "input_param { shape { dim: [6, 5] } shape { dim: [6, 5] } }") + "".join(
    product(name, bottom, "num_output: 5", before=f'param {{ name: "w" }} param {{ name: "{name}" }}') for name, bottom in (("a", "x"), ("b", "a"))
    ) + layer_text("EuclideanLoss", "loss", "b t")
found = []
for mode in minicaffe.set_mode_gpu, minicaffe.set_mode_cpu:
    mode()
    solver = make_solver(NET)
    solver.net.blob_by_name("x").data[...] = np.random.default_rng(1).standard_normal((6, 5))
    solver.step(4)
    found.append([np.array(param.data) for param in solver.net.learnable_params])
for one, other in zip(*found):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
last = [call for call in calls() if "epilogue 512" in call["what"]][-2:]
assert [call["beta"] for call in last] == [0, 1], last
""", fake, tmp_path, "uninitialized=1")  # fmt: skip


OF_BF16 = """
CONV = layer_text("Convolution", "c", "x", "c", 'convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "msra" } }')

def conv_net(rows=96, phase=TRAIN):
    def ip(name, bottom, outputs, more=""):
        return product(name, bottom, f"num_output: {outputs} {more}").replace('"gaussian"', '"gaussian" std: 0.2')
    def relu(name):
        return layer_text("ReLU", "relu_" + name, name, name)
    return make_net(layer_text("Input", "t", more=f"input_param {{ shape {{ dim: {rows} }} }}") + CONV + relu("c") + ip("a", "c", 16) + relu("a")
        + layer_text("Dropout", "drop", "a", "a", "dropout_param { dropout_ratio: 0 }") + ip("b", "a", 8, "bias_term: false") + relu("b")
        + ip("d", "b", 5) + layer_text("SoftmaxWithLoss", "loss", "d t"), (rows, 3, 5, 4), phase=phase)

def step(net):
    rng = np.random.default_rng(1)
    net.blob_by_name("x").data[...] = rng.standard_normal(net.blob_by_name("x").shape)
    net.blob_by_name("t").data[...] = rng.integers(0, 5, net.blob_by_name("t").shape)
    net.clear_param_diffs()
    net.forward_backward()
    found = {name: np.array(net.blob_by_name(name).data) for name in ("a", "b", "d", "loss")}
    found.update({f"{name} diff": np.array(net.blob_by_name(name).diff) for name in ("c", "a", "x")})
    found.update({f"gradient {i}": np.array(param.diff) for i, param in enumerate(net.learnable_params)})
    return found

def near(exact, rounded, most=0.12):      # as tests/cuda/test_device_bf16.py
    for name in exact:
        error = np.sqrt(((exact[name] - rounded[name]) ** 2).mean() / max((exact[name] ** 2).mean(), 1e-12))
        assert error < most, (name, error)

def rounded_products():
    return [call["what"].split(" ")[-1] == "float" and "weights" or ("forward" if "trans [1" in call["what"] else "data")
            for call in calls() if "bf16" in call["what"]]
"""


def test_products_of_bf16(fake, tmp_path):
    """Behind a convolution: nothing is converted but the picture, and the last result and its gradient, which the loss has in float32."""
    go("sim", OF_BF16 + """
from minicaffe import memory
exact = step(conv_net())
minicaffe.set_precision("bf16")
net = conv_net()
near(exact, step(net))
near(exact, step(net))
before = len(rounded_products())
net.blob_by_name("x").data[...] *= 1
net.clear_param_diffs()
with memory.record() as events:
    net.forward_backward()
assert rounded_products()[before:] == ["forward"] * 3 + ["data", "weights"] * 3, rounded_products()[before:]
epilogues = [call["what"].split(" ")[6] for call in calls() if "bf16" in call["what"]][-9:]
# Weights of b have no bias, and each has a ReLU behind it but d.
assert epilogues == ["6", "2", "4", "1", "512", "1", "1", "1", "512"], epilogues
moves = [event.name for event in events if event.kind == "reorder"]
assert moves == ["x data", "d data", "d diff"], moves
kinds = {name: net.blob_by_name(name).layout_of_data() for name in "abcd"}
assert all(kinds[name] is not None and kinds[name].dtype == 3 for name in "abd"), kinds
# Parameters and their gradients are float32; those of a have the order of the rows of c.
for param in net.learnable_params:
    layout = param.layout_of_diff()
    assert layout is None or layout.dtype == 0, layout
assert net.learnable_params[2].layout_of_diff().dims == (16, 4, 3, 2)
# Few rows, learned or not, are computed from float32.
before = len(rounded_products())
for few in conv_net(64), conv_net(phase=TEST):
    step(few)
assert len(rounded_products()) == before
""", fake, tmp_path, "uninitialized=1,race=1", MINICAFFE_CUDNN=str(fake), MINICAFFE_CUDNN_TUNE="0")


@pytest.mark.slow(5)
@pytest.mark.parametrize("none", ["bf16", "forward", "data", "weights", "relu", "bias", "sums", "weights,data"])
def test_bf16_products_without_algorithm(fake, tmp_path, none):
    """Each falls back to float32, or its bias, ReLU or sums to kernels of our own; results and gradients are as near."""
    go("sim", OF_BF16 + """
none = os.environ.pop("FAKE_LT")
exact = step(conv_net())
minicaffe.set_precision("bf16")
os.environ["FAKE_LT"] = none
net = conv_net()
for _ in range(3):
    near(exact, step(net))
kinds = set(rounded_products())
assert kinds == {"bf16": set(), "forward": set(), "bias": set(), "data": {"forward", "weights"}, "weights": {"forward", "data"},
                 "weights,data": {"forward"}}.get(none, {"forward", "data", "weights"}), (none, kinds)
""", fake, tmp_path, "uninitialized=1", MINICAFFE_CUDNN=str(fake), MINICAFFE_CUDNN_TUNE="0", FAKE_LT=none)


@pytest.mark.slow(5)
@pytest.mark.parametrize("plan", [None, "memory"])
def test_training_in_bf16(fake, tmp_path, plan):
    """By single launches and by replays of a graph: the same losses, near those of float32."""
    go("sim", OF_BF16 + f"plan = {plan!r}\n" + """
BODY = layer_text("DummyData", "in", "", "x t", 'dummy_data_param { shape { dim: [80, 3, 5, 4] } shape { dim: 80 } '
    'data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } }') + CONV + product("a", "c", "num_output: 16", biases="constant") + (
    layer_text("ReLU", "relu", "a", "a") + product("b", "a", "num_output: 5", biases="constant") + layer_text("SoftmaxWithLoss", "loss", "b t"))
found = []
for precision, graphs in ("float32", False), ("bf16", False), ("bf16", True), ("float32", True):
    minicaffe.set_precision(precision)
    minicaffe.set_random_seed(1)
    solver = make_solver(BODY, plan)
    solver.use_graphs = graphs
    found.append(losses(solver, 6))
    assert not graphs or solver.training_step.recorded.graph is not None
np.testing.assert_allclose(found[1], found[0], rtol=0.03)
np.testing.assert_array_equal(found[2:], [found[1], found[0]])
assert found[0][5] < found[0][0] and rounded_products()
""", fake, tmp_path, "uninitialized=1,race=1", MINICAFFE_CUDNN=str(fake), MINICAFFE_CUDNN_TUNE="0")


def test_layers_of_several_products_fuse_nothing(fake, tmp_path):
    """An LSTM computes its gates by inner products: a ReLU behind it is not theirs."""
    go("sim", """
LSTM = layer_text("Input", "cont", more="input_param { shape { dim: [3, 2] } }") + layer_text("LSTM", "lstm", "x cont", "y",
    'recurrent_param { num_output: 5 weight_filler { type: "gaussian" } bias_filler { type: "gaussian" } }') + layer_text("ReLU", "relu", "y", "y")
found = []
for mode in minicaffe.set_mode_gpu, minicaffe.set_mode_cpu:
    mode()
    net = make_net(LSTM, (3, 2, 4))
    net.blob_by_name("cont").data[1:] = 1
    forward(net)
    found.append(np.array(net.blob_by_name("y").data))
np.testing.assert_allclose(*found, atol=1e-5)
assert found[0].min() == 0 and found[0].max() > 0
""", fake, tmp_path)


@pytest.mark.slow(5)
def test_what_fails(fake, tmp_path):
    """It is an error with the name of the call; another forward tries again."""
    go("sim", """
for outputs, call in enumerate(("cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescCreate", "cublasLtMatmulPreferenceSetAttribute"), 5):
    net = make_net(layers(f"num_output: {outputs}", ""))
    os.environ["FAKE_FAIL"] = call + "=13"
    refused(errors.DeviceError, lambda: forward(net), call + ": CUBLAS_STATUS_EXECUTION_FAILED", "nvidia-cublas")
    os.environ["FAKE_FAIL"] = ""
    forward(net)
    assert net.blob_by_name("y").data.max() > 0 and calls()
""", fake, tmp_path)


@pytest.mark.slow(5)
def test_a_cublas_without_it(only_sim, tmp_path):
    library = tmp_path / "libwithout.so"
    subprocess.run([*compiler(), "-std=c++17", "-O0", "-DWITHOUT_CUBLASLT", "-shared", "-fPIC", f"-I{ROOT}",
                    str(HERE / "fake_cudnn.cpp"), "-o", str(library)], check=True)  # fmt: skip
    logged = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    code = "PRECISIONS = [('float32', 1e-5)]\n" + AGAINST_NUMPY + "assert products() and not calls()"
    calls = tmp_path / "calls"
    calls.write_text("")
    text = run(logged + SETUP + code, "sim", MINICAFFE_CUBLAS=str(library), FAKE_LOG=str(calls), FAKE_COMPUTES="1")
    assert text.count("no cuBLASLt (") == 1 and "biases are added by our own kernel" in text


def test_declarations_against_the_header(tmp_path):
    words = "__host__", "__device__", "__device_builtin__", "__cudart_builtin__", "CUDARTAPI", "__align__(n)", "__builtin_align__(n)"
    check_declarations(tmp_path, "cublasLt.h", "nvidia-cublas", "MINICAFFE_CUBLAS_INCLUDE", HEADER_CHECK, {      # what these headers need of the compiler nvcc
        "crt/host_defines.h": "".join(f"#define {word}\n" for word in words), "cuda_fp16.h": "struct __half;\n", "cuda_bf16.h": "struct __nv_bfloat16;\n"})


HEADER_CHECK = r"""
#include <cublasLt.h>
#include <cstddef>
#include <type_traits>
#include "minicaffe/cuda/cublaslt.hpp"

#define CHECK(name, ...) static_assert(Same<decltype(mc::cuda::CublasLtCalls::name), decltype(::name)>::value, #name);
MC_CUBLASLT_CALLS(CHECK)

using namespace mc::cuda;
#define CHECK_NUMBER(name, number) static_assert(int(lt::name) == int(CUBLASLT_##name), #name);
MC_CUBLASLT_NUMBERS(CHECK_NUMBER)
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == 6 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == 7);
static_assert(lt::kReal32 == CUDA_R_32F && lt::kBf16 == CUDA_R_16BF && lt::kCompute32 == CUBLAS_COMPUTE_32F && lt::kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(lt::kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED && sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::Choice) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              offsetof(lt::Choice, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(lt::Choice, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
"""
