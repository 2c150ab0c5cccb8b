"""Inner products with a bias, and a ReLU behind it, by one call of cuBLASLt (minicaffe/cuda/cublaslt.hpp).

On the simulated device a library of the tests checks what it is given and computes it (fake_cublaslt.hpp); with ``--device gpu`` it
is NVIDIA's.
"""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from cplusplus import compiler
from processes import run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

SETUP = f"HERE = {str(HERE)!r}" + """
import json
sys.path.insert(0, HERE)
from training import losses, make_solver
from minicaffe.blob import Dtype
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, text
minicaffe.set_mode_gpu()

def layers(fields, relu=None):
    "The text of an inner product; `relu`: the fields of a ReLU behind it, in place unless they name a top."
    ip = ('layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { weight_filler { type: "gaussian" } '
          'bias_filler { type: "gaussian" } ' + fields + ' } } ')
    if relu is None:
        return ip
    return ip + 'layer { name: "relu" type: "ReLU" bottom: "y" ' + (relu if "top" in relu else 'top: "y" ' + relu) + ' }'

def make(body, shape=(3, 4), dtype=Dtype.FLOAT):
    minicaffe.set_random_seed(3)
    dims = " ".join(f"dim: {size}" for size in shape)
    param = text.parse_text('force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { '
                            + dims + ' } } } ' + body, caffe_pb2.NetParameter)[0]
    net = Net(param, dtype)
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
    return blob.gpu_data.__cuda_array_interface__["data"][0]
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
                net = make(layers(f"num_output: {outputs} {fields}", relu), (rows, inputs))
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
def test_results(place, request, tmp_path):
    """Those of NumPy, for shapes of one and of odd sizes; NaN in one row is NaN in that row alone, also behind a ReLU."""
    fake = request.getfixturevalue("fake") if place == "sim" else None
    precisions = [("float32", 1e-5)] if place == "sim" else [("float32", 1e-5), ("tf32", 2e-3)]
    go(place, f"PRECISIONS = {precisions}\n" + AGAINST_NUMPY, fake, tmp_path)


def test_one_call(fake, tmp_path):
    """For product, bias and ReLU; nothing else is launched. Without a bias and a ReLU it is cuBLAS, as in float64."""
    go("sim", """
for fields, relu, what in (
        ("", None, "epilogue 4"), ("", "", "epilogue 6"), ("bias_term: false", "", "epilogue 2"), ("bias_term: false", None, None),
        ("", "relu_param { negative_slope: 0.5 }", "epilogue 4"), ("", 'top: "z"', "epilogue 4")):
    net = make(layers("num_output: 5 " + fields, relu))
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
forward(make(layers("num_output: 5 transpose: true")))
assert products()[-1]["what"] == "[5,3,4] trans [0,0] ld [5,4,5] epilogue 4 compute 68"
forward(make(layers("num_output: 5"), dtype=Dtype.DOUBLE))
assert products()[-1]["call"] == "cublasDgemmStridedBatched"
""", fake, tmp_path)


@pytest.mark.parametrize("deterministic", ["0", "1"])
def test_the_algorithm_of_a_shape(fake, tmp_path, deterministic):
    """It is found once for each shape, epilogue, alignment and precision, by what the settings allow."""
    go("sim", """
def found():
    return calls("cublasLtMatmulAlgo")
nets = [make(layers("num_output: 5", relu), (rows, 4)) for relu in (None, "") for rows in (3, 6, 3)]
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
    net, block = make(layers("num_output: 5")), Blob((64,), name="block")
    x = net.blob_by_name("x")
    values = np.array(x.data)
    x.data_memory.set_gpu_data(at(block) + shift, block)
    x.data[...] = values
    forward(net)
    assert found()[-1]["aligned"] == shift, found()[-1]
""", fake, tmp_path, MINICAFFE_DETERMINISTIC=deterministic)


@pytest.mark.parametrize("none", ["", "relu", "bias,relu"])
def test_training(fake, tmp_path, none):
    """By single launches and by replays, also where there is no algorithm for an epilogue: the losses of the CPU."""
    go("sim", """
NET = 'layer { name: "in" type: "DummyData" top: "x" top: "label" dummy_data_param { shape { dim: 6 dim: 9 } shape { dim: 6 } ' \\
    'data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } } ' + layers("num_output: 8", "") + \\
    'layer { name: "two" type: "InnerProduct" bottom: "y" top: "b" inner_product_param { num_output: 4 ' \\
    'weight_filler { type: "xavier" } } } ' \\
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "b" bottom: "label" top: "loss" }'
found, by_library = [], []
for mode, graphs in (minicaffe.set_mode_gpu, False), (minicaffe.set_mode_gpu, True), (minicaffe.set_mode_cpu, False):
    mode()
    before = len(calls())
    solver = make_solver(NET)
    solver.use_graphs = graphs
    found.append(losses(solver, 6))
    by_library.append([call["what"].split(" ")[-3] for call in calls()[before:]])
for other in found[:2]:
    np.testing.assert_allclose(other, found[2], rtol=1e-4)
assert found[2][5] < found[2][0]
none = os.environ["FAKE_LT"]
# A graph has the calls of its recording, after two iterations by single launches. What is refused with a ReLU is computed with the bias
# alone from the second iteration on.
step = [] if "bias" in none else ["4", "4"] if none else ["6", "4"]
skipped = none == "relu"
assert by_library == [(step * 6)[skipped:], (step * 3)[skipped:], []], by_library
""", fake, tmp_path, "uninitialized=1,race=1", FAKE_LT=none)  # fmt: skip


def test_layers_of_several_products_fuse_nothing(fake, tmp_path):
    """An LSTM computes its gates by inner products: a ReLU behind it is not theirs."""
    go("sim", """
LSTM = ('layer { name: "begin" type: "Input" top: "cont" input_param { shape { dim: 3 dim: 2 } } } '
        'layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "y" recurrent_param { num_output: 5 '
        'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" } } } '
        'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }')
found = []
for mode in minicaffe.set_mode_gpu, minicaffe.set_mode_cpu:
    mode()
    net = make(LSTM, (3, 2, 4))
    net.blob_by_name("cont").data[1:] = 1
    forward(net)
    found.append(np.array(net.blob_by_name("y").data))
np.testing.assert_allclose(*found, atol=1e-5)
assert found[0].min() == 0 and found[0].max() > 0
""", fake, tmp_path)


@pytest.mark.slow(5)
@pytest.mark.parametrize("call", ["cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescCreate",
                                  "cublasLtMatmulPreferenceSetAttribute"])  # fmt: skip
def test_what_fails(fake, tmp_path, call):
    """It is an error with the name of the call; another forward tries again."""
    go("sim", f"""
net = make(layers("num_output: 5", ""))
os.environ["FAKE_FAIL"] = "{call}=13"
refused(errors.DeviceError, lambda: forward(net), "{call}: CUBLAS_STATUS_EXECUTION_FAILED", "nvidia-cublas")
os.environ["FAKE_FAIL"] = ""
forward(net)
assert net.blob_by_name("y").data.max() > 0 and calls()
""", fake, tmp_path)


@pytest.mark.slow(5)
def test_a_cublas_without_it(place, tmp_path):
    if place != "sim":
        pytest.skip("a library of the tests, for the simulated device")
    library = tmp_path / "libwithout.so"
    subprocess.run([*compiler(), "-std=c++17", "-O0", "-DWITHOUT_CUBLASLT", "-shared", "-fPIC", f"-I{ROOT}",
                    str(HERE / "fake_cudnn.cpp"), "-o", str(library)], check=True)  # fmt: skip
    logged = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    code = "PRECISIONS = [('float32', 1e-5)]\n" + AGAINST_NUMPY + "assert products() and not calls()"
    calls = tmp_path / "calls"
    calls.write_text("")
    text = run(logged + SETUP + code, "sim", MINICAFFE_CUBLAS=str(library), FAKE_LOG=str(calls), FAKE_COMPUTES="1")
    assert text.count("no cuBLASLt (") == 1 and "biases are added by our own kernel" in text


# ---- NVIDIA's declarations, where they are installed


def test_declarations_against_the_header(tmp_path):
    spec = importlib.util.find_spec("nvidia")
    homes = [Path(home) for home in spec.submodule_search_locations] if spec else []
    named = os.environ.get("MINICAFFE_CUBLAS_INCLUDE")
    folders = [Path(named)] if named else [path.parent for home in homes for path in home.glob("*/include/cublasLt.h")]
    if not folders:
        pytest.skip("no cublasLt.h: install nvidia-cublas, or name its folder in MINICAFFE_CUBLAS_INCLUDE")
    # What these headers need of the compiler nvcc.
    (tmp_path / "crt").mkdir()
    words = ("__host__", "__device__", "__device_builtin__", "__cudart_builtin__", "CUDARTAPI", "__align__(n)", "__builtin_align__(n)")
    (tmp_path / "crt" / "host_defines.h").write_text("".join(f"#define {word}\n" for word in words))
    (tmp_path / "cuda_fp16.h").write_text("struct __half;\n")
    (tmp_path / "cuda_bf16.h").write_text("struct __nv_bfloat16;\n")
    source = tmp_path / "declarations.cpp"
    source.write_text(HEADER_CHECK)
    done = subprocess.run([*compiler(), "-std=c++17", "-fsyntax-only", "-w", f"-I{ROOT}", f"-I{tmp_path}",
                           "-isystem", str(folders[0]), str(source)], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


HEADER_CHECK = r"""
#include <cublasLt.h>
#include <cstddef>
#include <type_traits>
#include "minicaffe/cuda/cublaslt.hpp"

template <class A, class B> constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <class Ours, class Theirs> struct Same : std::false_type {};
template <class... A, class... B> struct Same<int (*)(A...), cublasStatus_t(B...)> {
  static constexpr bool value = [] { if constexpr (sizeof...(A) == sizeof...(B)) return (alike<A, B> && ...); else return false; }();
};
#define CHECK(name, ...) static_assert(Same<decltype(mc::cuda::CublasLtCalls::name), decltype(::name)>::value, #name);
MC_CUBLASLT_CALLS(CHECK)

using namespace mc::cuda;
#define CHECK_NUMBER(name, number) static_assert(int(lt::name) == int(CUBLASLT_##name), #name);
MC_CUBLASLT_NUMBERS(CHECK_NUMBER)
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == 6 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == 7);
static_assert(lt::kReal32 == CUDA_R_32F && lt::kCompute32 == CUBLAS_COMPUTE_32F && lt::kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(lt::kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED && sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::Choice) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              offsetof(lt::Choice, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(lt::Choice, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
"""
