"""Engine CUDNN. On a GPU each case is compared with engine CAFFE. Everywhere else a fake cuDNN records the calls on the simulated
device: which, in what order, with which descriptors, pointers, factors and workspace; what is refused and what fails. Asked to,
it computes what cuDNN's book says of each call (slow_cudnn.hpp), and is compared with engine CAFFE too.

A real cuDNN computes with ``--device gpu`` alone.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cplusplus import compiler
from cudnn_cases import CASES
from processes import run, start

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KIB, MIB = 1 << 10, 1 << 20


def cases(what, wishes, device, **environment):
    text = start([sys.executable, str(HERE / "cudnn_cases.py"), what, json.dumps(wishes)], device, "", 0, None, **environment)
    return json.loads(re.search(r"^RESULT (.*)$", text, re.MULTILINE)[1])


def record(fake, tmp_path, *wishes, **environment):
    return cases("record", wishes, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(tmp_path / "calls"), **environment)


def named(result, *names):
    """The calls that compute something, or those called `names`."""
    pattern = re.compile("|".join(names) if names else "cudnn(Find|Convolution|LRN|Batch)")
    return [call for call in result["calls"] if pattern.match(call["call"])]


@pytest.fixture(scope="module")
def recorded(fake, tmp_path_factory):
    """Two steps of every case, by its name."""
    wishes = ({"name": name, "steps": 2, "use": name.startswith("batch norm")} for name in CASES)
    results = record(fake, tmp_path_factory.mktemp("record"), *wishes)
    return dict(zip(CASES, results))


# ---- the fake: calls


def test_the_library_is_opened_once_and_set_to_the_computing_stream(recorded):
    first = recorded["conv"]["calls"]
    assert [call["call"] for call in first[:2]] == ["cudnnCreate", "cudnnSetStream"]
    assert first[1]["handle"] == 0x1234 and first[1]["stream"]
    assert sum(call["call"] == "cudnnCreate" for result in recorded.values() for call in result["calls"]) == 1


def test_convolution(recorded):
    """Each product is measured in the first step and computed in both; weights add to their gradient, nothing else does."""
    result = recorded["conv"]
    x, y, w = "tensor 0 0 [2,6,9,7]", "tensor 0 0 [2,4,5,6]", "filter 0 0 [4,3,3,2]"
    how = "pad [1,0] stride [2,1] dilation [1,1] mode 1 type 0 groups 2 math 3"     # CUDNN_FMA_MATH
    at = result["at"]
    operands = {"Forward": (x, "x", w, "w0", y, "y"), "BackwardFilter": (x, "x", y, "dy", w, "dw0"),
                "BackwardData": (w, "w0", y, "dy", x, "dx")}
    order = ["cudnnFindConvolutionForwardAlgorithmEx", "cudnnConvolutionForward", "cudnnFindConvolutionBackwardDataAlgorithmEx",
             "cudnnConvolutionBackwardData", "cudnnFindConvolutionBackwardFilterAlgorithmEx", "cudnnConvolutionBackwardFilter"]
    calls = named(result)
    assert [call["call"] for call in calls] == [*order, *order[1::2]]
    for call in calls:
        kind = re.search("Forward|BackwardFilter|BackwardData", call["call"])[0]
        a, pa, b, pb, c, pc = operands[kind]
        assert (call["a"], call["b"], call["c"]) == (a, b, c)
        assert (call["pa"], call["pb"]) == (at[pa], at[pb])
        if call["call"].startswith("cudnnFind"):
            # In the memory of the algorithm that needs most below the limit.
            assert call["conv"] == how
            assert call["bytes"] == MIB and call["workspace"] and call["asked"] >= 8
            assert (call["pc"] == at[pc]) == (kind != "BackwardFilter")     # a gradient that is added to is not for trials
            if kind == "BackwardFilter":
                assert call["workspace"] == call["pc"] + 512 and call["pc"] not in at.values()  # 4x3x3x2 floats and a bit
        else:
            assert call["conv"] == how and call["pc"] == at[pc]
            assert (call["alpha"], call["beta"]) == (1, float(kind == "BackwardFilter"))
            assert (call["algo"], call["bytes"]) == (1, MIB) and call["workspace"] and call["workspace"] not in at.values()
    assert result["error"] is None and not result["log"]


@pytest.mark.parametrize(("name", "x", "y", "w", "how"), [
    ("conv without bias", "[2,2,8,9]", "[2,3,4,5]", "[3,2,3,3]", "pad [0,0] stride [1,1] dilation [2,2] mode 1 type 0 groups 1"),
    ("conv depthwise", "[2,4,8,8]", "[2,4,8,8]", "[4,1,3,3]", "pad [1,1] stride [1,1] dilation [1,1] mode 1 type 0 groups 4"),
    ("conv 1 axis", "[2,3,1,10]", "[2,4,1,6]", "[4,3,1,3]", "pad [0,2] stride [1,2] dilation [1,1] mode 1 type 0 groups 1"),
    ("conv 3 axes", "[2,2,4,5,6]", "[2,4,3,5,6]", "[4,2,2,3,1]",
     "pad [0,1,0] stride [1,1,1] dilation [1,1,1] mode 1 type 0 groups 1"),
])  # fmt: skip
def test_shapes_of_convolutions(recorded, name, x, y, w, how):
    call = named(recorded[name], "cudnnConvolutionForward")[0]
    assert (call["a"], call["b"], call["c"]) == (f"tensor 0 0 {x}", f"filter 0 0 {w}", f"tensor 0 0 {y}")
    assert call["conv"].startswith(how)


def test_deconvolution_is_the_same_backward(recorded):
    result, at = recorded["deconv"], recorded["deconv"]["at"]
    forward, weights, data = (named(result, f"cudnnConvolution{kind}$")[0] for kind in ("BackwardData", "BackwardFilter", "Forward"))
    image, columns, w = "tensor 0 0 [2,4,9,7]", "tensor 0 0 [2,6,5,4]", "filter 0 0 [6,2,3,3]"
    assert (forward["a"], forward["b"], forward["c"]) == (w, columns, image)
    assert (forward["pa"], forward["pb"], forward["pc"]) == (at["w0"], at["x"], at["y"])
    assert (weights["pa"], weights["pb"], weights["pc"], weights["beta"]) == (at["dy"], at["x"], at["dw0"], 1)
    assert (data["a"], data["pa"], data["pb"], data["pc"]) == (image, at["dy"], at["w0"], at["dx"])


def test_lrn(recorded):
    result, at = recorded["lrn"], recorded["lrn"]["at"]
    forward, backward = named(result)[:2]
    tensor = "tensor 0 0 [2,7,1,12]"
    for call in forward, backward:  # alpha as in the prototxt: cuDNN divides it by local_size
        assert call["op"] == "lrn 5 0.25 0.75 2" and (call["mode"], call["alpha"], call["beta"]) == (0, 1, 0)
    assert (forward["x"], forward["y"], forward["px"], forward["py"]) == (tensor, tensor, at["x"], at["y"])
    assert [backward[k] for k in ("px", "py", "pdy", "pdx")] == [at[k] for k in ("x", "y", "dy", "dx")]
    assert {backward[k] for k in ("x", "y", "dy", "dx")} == {tensor}


def test_batch_norm(recorded):
    result, at = recorded["batch norm"], recorded["batch norm"]["at"]
    forward, backward = named(result)[:2]
    for call in forward, backward:  # over images and pixels, results overwritten
        assert (call["mode"], call["alpha"], call["beta"], call["numbers"]) == (1, 1, 0, "tensor 0 0 [1,3,1,1]")
        assert call["x"] == "tensor 0 0 [4,3,10,1]" and call["px"] == at["x"]
        assert call["epsilon"] == pytest.approx(1e-3)
    assert (forward["y"], forward["py"], forward["rate"]) == (forward["x"], at["y"], 1)
    assert [backward[k] for k in ("dy", "pdy", "dx", "pdx")] == [forward["x"], at["dy"], forward["x"], at["dx"]]
    assert backward["saved"] == forward["saved"] and backward["scale"] == forward["scale"] and backward["beta_numbers"] == 0
    ours = {at[f"w{i}"] for i in range(3)}  # the running sums are not cuDNN's to write
    places = [*forward["running"], *forward["saved"], forward["scale"], forward["bias"], *backward["unused"]]
    assert not ours & set(places) and len(set(places)) == 7 and backward["unused"][0] == forward["running"][0]
    assert not named(recorded["batch norm in place"])
    assert recorded["batch norm in place"]["log"] == ["engine CUDNN refuses: BatchNorm in place; engine CAFFE computes instead"]
    assert recorded["batch norm of one"]["log"] == ["engine CUDNN refuses: batch normalisation of single values; engine CAFFE computes instead"]


def test_double(fake, tmp_path):
    """Tensors and factors are double then; single factors would be read as rubbish."""
    conv, lrn = record(fake, tmp_path, {"name": "conv 1x1", "dtype": "DOUBLE"}, {"name": "lrn", "dtype": "DOUBLE"})
    for call in named(conv, "cudnnConvolution"):
        assert call["a"].split()[2] == call["c"].split()[2] == "1" and " type 1 " in call["conv"]
        assert (call["alpha"], call["beta"]) == (1, float("Filter" in call["call"]))
    assert named(lrn)[0]["x"] == "tensor 0 1 [2,7,1,12]" and named(lrn)[0]["alpha"] == 1


# ---- the fake: who computes


def test_who_asks(fake, tmp_path):
    uses = [{}, {"use": False}, {"use": True}]      # use_cudnn; by default it is not called
    wishes = [{"name": "lrn", "engine": engine, **use} for engine in ("CAFFE", "DEFAULT", "CUDNN") for use in uses]
    asked = [bool(named(result)) for result in record(fake, tmp_path, *wishes)]
    assert asked == [False, False, False, True, False, True, True, True, True]
    assert not any(named(result) for result in record(fake, tmp_path, *({"name": "lrn", "engine": "DEFAULT"},), MINICAFFE_ENGINE="caffe"))
    code = "minicaffe.set_mode_gpu(); from cudnn_cases import make, step; step(*make('lrn', 'DEFAULT'))"
    calls = tmp_path / "calls"
    calls.write_text("")
    run(f"sys.path.insert(0, {str(HERE)!r}); {code}", "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls), MINICAFFE_ENGINE="cudnn")
    assert "cudnnLRNCrossChannelForward" in calls.read_text()


@pytest.mark.parametrize(("name", "why"), [
    ("conv 4 axes", "more than 3 axes"), ("conv large window", "larger than the padded image"),
    ("lrn within", "within a channel"), ("lrn 17", "local_size above 16")])  # fmt: skip
def test_what_is_refused_here(recorded, name, why):
    result = recorded[name]
    assert not named(result) and result["error"] is None
    assert len(result["log"]) == 1 and why in result["log"][0] and "engine CAFFE computes instead" in result["log"][0]


@pytest.mark.parametrize("name", ["relu", "softmax", "ave", "lrn empty"])
def test_what_is_never_asked_for(recorded, name):
    """Engine CAFFE computes it, also with ``engine: CUDNN``, without a warning."""
    result = recorded[name]
    assert result["engines"] == ["CAFFE"] and not result["calls"] and not result["log"] and result["error"] is None


def test_what_is_refused_by_default_is_no_warning(fake, tmp_path):
    """The log has it at level debug; after `use_cudnn` and with ``engine: CUDNN`` it is a warning."""
    wishes = [{"name": "lrn 17", "engine": "DEFAULT"}, {"name": "lrn 17", "engine": "DEFAULT", "use": True}, {"name": "lrn 17"}]
    default, *asked = record(fake, tmp_path, *wishes)
    assert default["log"] == [] and default["engines"] == ["CAFFE"]
    assert [len(result["log"]) for result in asked] == [1, 0]      # once for each reason


REFUSALS = [
    ("conv", "cudnnGetConvolutionForwardAlgorithm_v7"), ("conv", "cudnnFindConvolutionBackwardDataAlgorithmEx"),
    ("conv", "cudnnConvolutionBackwardFilter"), ("conv", "cudnnSetConvolutionGroupCount"),
    ("lrn", "cudnnLRNCrossChannelForward"), ("lrn", "cudnnLRNCrossChannelBackward"),
    ("batch norm", "cudnnBatchNormalizationForwardTraining"), ("batch norm", "cudnnBatchNormalizationBackward")]  # fmt: skip


def test_what_cudnn_refuses(fake, tmp_path):
    """Said once and not tried again; who refuses a gradient still computes the rest."""
    wishes = [{"name": name, "fail": f"{call}=3002", "images": 10 + i, "steps": 2, "use": True} for i, (name, call) in enumerate(REFUSALS)]
    for (name, call), result in zip(REFUSALS, record(fake, tmp_path, *wishes)):
        assert result["error"] is None, (name, call)
        assert result["log"] == [f"engine CUDNN refuses: {call}: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; engine CAFFE computes instead"]
        assert len(named(result, f"{call}$")) == 1
        gradient = "Backward" in call and name != "lrn"    # whose backward needs what its forward kept
        assert result["engines"] == ["CUDNN/CAFFE" if gradient else "CAFFE"], (name, call)
        if name == "conv":
            assert bool(named(result, "cudnnConvolution(Forward|BackwardData)$")) == gradient


def test_what_fails(fake, tmp_path):
    wishes = [{"name": name, "fail": f"{call}=5000", "images": 10 + i, "use": True} for i, (name, call) in enumerate(REFUSALS)]
    for (_, call), result in zip(REFUSALS, record(fake, tmp_path, *wishes)):
        text, code = result["error"]
        assert code == "CUDNN_STATUS_EXECUTION_FAILED" and not result["log"]
        assert f"{call}: CUDNN_STATUS_EXECUTION_FAILED: said the fake" in text and "engine: CAFFE" in text


def test_a_layer_goes_on_after_a_failure(fake, tmp_path):
    again = {"name": "conv", "images": 3}
    failed, result = record(fake, tmp_path, {**again, "fail": "cudnnConvolutionForward=5000"}, again)
    assert failed["error"] and result["error"] is None
    assert named(result, "cudnnConvolutionForward") and not named(result, "cudnnFindConvolutionForward")


def test_choice_of_algorithms(fake, tmp_path):
    """Deterministic ones, those that fit, exact arithmetic: settings of the process."""
    one = [{"name": "conv 1x1"}]
    result = record(fake, tmp_path, *one, MINICAFFE_DETERMINISTIC="1")[0]
    assert {(call["algo"], call["bytes"]) for call in named(result, "cudnnConvolution")} == {(0, 4 * KIB)}
    result = record(fake, tmp_path, *one, MINICAFFE_CUDNN_WORKSPACE="8KiB")[0]
    assert {call["bytes"] for call in named(result, "cudnnFindConvolutionForward")} == {4 * KIB}
    assert {call["algo"] for call in named(result, "cudnnConvolution")} == {0}
    result = record(fake, tmp_path, *one, MINICAFFE_CUDNN_WORKSPACE="0")[0]
    assert {(call["algo"], call["bytes"]) for call in named(result, "cudnnConvolution")} == {(2, 0)}


def test_no_algorithm_at_all(fake, tmp_path):
    wishes = [{"name": "conv 1x1", "fail": "cudnnGetConvolutionForwardWorkspaceSize=3000", "steps": 2}]
    result = record(fake, tmp_path, *wishes)[0]
    assert result["log"] == ["engine CUDNN refuses: convolution: no algorithm within the workspace limit; engine CAFFE computes instead"]
    assert len(named(result, "cudnnFindConvolutionForward")) == 1 and not named(result, "cudnnConvolutionForward")


def test_without_cudnn(fake, tmp_path):
    """Missing, of an old version, no cuDNN at all, or one that does not start."""
    code = f"""
    import logging
    logging.basicConfig()
    sys.path.insert(0, {str(HERE)!r})
    from cudnn_cases import make, step
    minicaffe.set_mode_gpu()
    for _ in range(2):
        step(*make("conv"))
        step(*make("lrn"))
    """
    for environment, words in (
            ({}, "the simulated device has none"), ({"MINICAFFE_CUDNN": str(tmp_path / "none.so")}, "none.so"),
            ({"MINICAFFE_CUDNN": str(fake), "FAKE_VERSION": "8907"}, "version 8907"),
            ({"MINICAFFE_CUDNN": "libm.so.6"}, "cudnnCreate")):  # fmt: skip
        text = run(code, "sim", **environment)
        assert text.count("engine CAFFE computes instead") == 1 and words in text, text
    text = run(f"""
    sys.path.insert(0, {str(HERE)!r})
    from cudnn_cases import make, step
    minicaffe.set_mode_gpu()
    for _ in range(2):
        error = refused(errors.DeviceError, lambda: step(*make("conv")), "cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED", "engine: CAFFE")
        assert error.code == "CUDNN_STATUS_NOT_INITIALIZED"
    step(*make("conv", "CAFFE"))
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_FAIL="cudnnCreate=1001")


def test_without_cudnn_by_default(place, tmp_path):
    """One line in the log where a library was expected, on the simulated device no sign of cuDNN; never a warning."""
    if place != "sim":
        pytest.skip("for the simulated device")
    code = f"""
    import logging
    logging.basicConfig(level=logging.INFO)
    sys.path.insert(0, {str(HERE)!r})
    from cudnn_cases import make, step
    minicaffe.set_mode_gpu()
    for name in "conv", "lrn":
        net, rng = make(name, "DEFAULT")
        step(net, rng)
        assert net.engines()[0]["engine"] == "CAFFE"
        assert ("CUDNN" in net.engines()[0]["refused"]) == ("MINICAFFE_CUDNN" in os.environ)
    """
    text = run(code, "sim", MINICAFFE_CUDNN=str(tmp_path / "none.so"))
    assert text.count("no cuDNN") == 1 and "INFO:minicaffe.cuda.libraries:no cuDNN" in text and "WARNING" not in text
    assert "cuDNN" not in run(code, "sim")


@pytest.mark.parametrize(("variable", "value", "words"), [
    ("MINICAFFE_ENGINE", "gpu", "must be caffe or cudnn or onednn or winograd, got 'gpu'"), ("MINICAFFE_CUDNN_WORKSPACE", "much", "much")])  # fmt: skip
def test_wrong_settings(fake, variable, value, words):
    run(f"""
    sys.path.insert(0, {str(HERE)!r})
    from cudnn_cases import make, step
    for _ in range(2):
        refused(errors.ConfigError, lambda: (minicaffe.set_mode_gpu(), step(*make("lrn"))), {variable!r}, {words!r})
    """, "sim", MINICAFFE_CUDNN=str(fake), **{variable: value})


def test_in_a_graph(fake, tmp_path):
    """Measured in the steps before it is recorded; replayed without a call."""
    calls = tmp_path / "calls"
    calls.write_text("")
    run(f"""
    sys.path.insert(0, {str(HERE)!r})
    from training import NET, make_solver
    minicaffe.set_mode_gpu()
    solver = make_solver(NET)
    counts = []
    for _ in range(5):
        solver.step(1)
        counts.append(len(open({str(calls)!r}).readlines()))
    assert counts[0] < counts[2] == counts[3] == counts[4], counts
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls))
    text = calls.read_text()
    assert text.count("cudnnFindConvolutionForward") == 1 and text.count('"cudnnConvolutionForward"') == 3
    assert "cudnnConvolutionBackwardData" not in text   # nobody wants the gradient of the data


def test_a_shape_first_met_while_a_graph_is_recorded(fake, tmp_path):
    """Nothing can be measured then: cuDNN's advice is taken."""
    calls = tmp_path / "calls"
    calls.write_text("")
    run(f"""
    sys.path.insert(0, {str(HERE)!r})
    from cudnn_cases import make, step, run_forward
    minicaffe.set_mode_gpu()
    step(*make("conv 1x1"))
    net, rng = make("conv", "DEFAULT")
    cuda.use_cudnn(False)
    step(net, rng)
    cuda.use_cudnn()
    with cuda.Graph(cuda.current()):
        run_forward(net)
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls))
    last = [json.loads(line) for line in calls.read_text().splitlines()][-1]
    assert last["call"] == "cudnnConvolutionForward" and last["algo"] == 0 and "[2,6,9,7]" in last["a"]
    assert calls.read_text().count("cudnnFindConvolutionForward") == 1


# ---- NVIDIA's declarations, where they are installed


def includes():
    """The folder of cudnn.h: MINICAFFE_CUDNN_INCLUDE, or that of the wheel."""
    if os.environ.get("MINICAFFE_CUDNN_INCLUDE"):
        return Path(os.environ["MINICAFFE_CUDNN_INCLUDE"])
    spec = importlib.util.find_spec("nvidia")
    homes = spec.submodule_search_locations if spec else []
    return next((path.parent for home in homes for path in Path(home).glob("cudnn/include/cudnn.h")), None)


def test_declarations_against_the_headers(tmp_path):
    folder = includes()
    if folder is None:
        pytest.skip("no cudnn.h: install nvidia-cudnn-cu13, or name its folder in MINICAFFE_CUDNN_INCLUDE")
    # All that these headers want of the CUDA runtime's.
    (tmp_path / "cuda_runtime_api.h").write_text("#include <stddef.h>\ntypedef struct CUstream_st* cudaStream_t;\n"
                                                  "typedef struct CUgraph_st* cudaGraph_t;")
    (tmp_path / "library_types.h").write_text("typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;")
    source = tmp_path / "declarations.cpp"
    source.write_text(HEADER_CHECK)
    done = subprocess.run([*compiler(), "-std=c++17", "-fsyntax-only", "-w", f"-I{ROOT}", f"-I{tmp_path}",
                           "-isystem", str(folder), str(source)], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


HEADER_CHECK = r"""
#include <cudnn_graph.h>
#include <cudnn_ops.h>
#include <cudnn_cnn.h>
#include <cstddef>
#include <type_traits>
#include "minicaffe/ops/conv/cudnn.hpp"

// Two types that are passed alike: both pointers, both floating, or both integers or enumerations of one size.
template <class A, class B> constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                                                   std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <class Ours, class Theirs> struct Same : std::false_type {};
template <class... A, class... B> struct Same<int (*)(A...), cudnnStatus_t(B...)> {
  static constexpr bool value = [] { if constexpr (sizeof...(A) == sizeof...(B)) return (alike<A, B> && ...); else return false; }();
};
#define CHECK(name, ...) static_assert(Same<decltype(mc::cuda::CudnnCalls::name), decltype(::name)>::value, #name);
MC_CUDNN_CALLS(CHECK)

using namespace mc::cuda;
static_assert(kNchw == CUDNN_TENSOR_NCHW && kCrossCorrelation == CUDNN_CROSS_CORRELATION);
static_assert(kAcrossChannels == CUDNN_LRN_CROSS_CHANNEL_DIM1 && kSpatial == CUDNN_BATCHNORM_SPATIAL);
static_assert(kDefaultMath == CUDNN_DEFAULT_MATH && kFmaMath == CUDNN_FMA_MATH && kDeterministic == CUDNN_DETERMINISTIC);
static_assert(CUDNN_DATA_FLOAT == 0 && CUDNN_DATA_DOUBLE == 1 && CUDNN_STATUS_SUCCESS == 0);
static_assert(CUDNN_STATUS_NOT_SUPPORTED == kNotSupported && CUDNN_STATUS_INTERNAL_ERROR == kNotSupportedEnd);
static_assert(CUDNN_LRN_MAX_N == 16 && CUDNN_LRN_MIN_K == 1e-5 && CUDNN_LRN_MIN_BETA == 0.01);

template <class Perf> constexpr bool laid_out = sizeof(Perf) == sizeof(CudnnPerf) &&
  offsetof(Perf, algo) == offsetof(CudnnPerf, algorithm) && offsetof(Perf, status) == offsetof(CudnnPerf, status) &&
  offsetof(Perf, memory) == offsetof(CudnnPerf, memory) && offsetof(Perf, determinism) == offsetof(CudnnPerf, determinism) &&
  offsetof(Perf, mathType) == offsetof(CudnnPerf, math);
static_assert(laid_out<cudnnConvolutionFwdAlgoPerf_t> && laid_out<cudnnConvolutionBwdDataAlgoPerf_t> &&
              laid_out<cudnnConvolutionBwdFilterAlgoPerf_t>);
"""


# ---- both engines


LEFT_TO_CAFFE = {"conv 4 axes", "conv large window", "lrn within", "lrn 17", "batch norm of one", "batch norm in place"}


def apart(place, **environment):
    """The cases, and how far the results of both engines are from each other."""
    pairs = [{"name": name, "dtype": dtype} for name in CASES for dtype in ("FLOAT", "DOUBLE")]
    return zip(pairs, cases("compare", pairs, place, **environment))


def check_engines(place, refusals_logged, **environment):
    for case, result in apart(place, **environment):
        # Sums of some dozens of terms in another order, or by way of a Winograd or Fourier transform.
        assert result["worst"] < (1e-4 if case["dtype"] == "FLOAT" else 1e-11), case
        text = "\n".join(result["log"])
        assert "no cuDNN" not in text, text
        if case["name"] not in LEFT_TO_CAFFE and (case["dtype"] == "FLOAT" or refusals_logged):
            assert not text, (case, text)


def test_the_comparison_itself(place):
    """Where there is no cuDNN both engines are CAFFE, and equal."""
    if place != "sim":
        pytest.skip("for the simulated device")
    assert {result["worst"] for _, result in apart("sim")} == {0.0}


def test_what_the_calls_mean(fake):
    """cuDNN as its book has it gives engine CAFFE's results: pointers, shapes and factors are right."""
    environment = {"MINICAFFE_CUDNN": str(fake), "FAKE_COMPUTES": "1", "FAKE_LOG": os.devnull}
    check_engines("sim", True, **environment)
    # Not because both were engine CAFFE: sums in another order differ.
    assert sum(result["worst"] > 0 for _, result in apart("sim", **environment)) > len(CASES) // 2


def test_against_engine_caffe(place):
    if place != "gpu":
        pytest.skip("no GPU here: cuDNN's results have not been compared with engine CAFFE's (pytest --device gpu)")
    check_engines("gpu", False)


# ---- cuBLAS


def test_the_state_says_which_libraries_are_open(fake):
    """cuBLAS opens with the device, cuDNN with the first layer that asks."""
    text = run(f"""
    sys.path.insert(0, {str(HERE.parent / "layers")!r})
    from gradient import layer_net, run_forward
    minicaffe.set_mode_gpu()
    assert cuda.state().devices[0].handles == {{"cuBLAS": 130100, "cuDNN": None}}
    run_forward(layer_net('layer {{ name: "n" type: "LRN" bottom: "x" top: "y" lrn_param {{ engine: CUDNN }} }}', [np.ones((2, 3, 1, 1))]))
    assert cuda.state().devices[0].handles == {{"cuBLAS": 130100, "cuDNN": 92800}}
    print(cuda.state())
    """, "sim", MINICAFFE_CUBLAS=str(fake), MINICAFFE_CUDNN=str(fake))
    assert "cuBLAS 130100, cuDNN 92800" in text


def test_cublas(fake, tmp_path):
    """The products of InnerProduct as cuBLAS would compute them from the arguments it got."""
    calls = tmp_path / "calls"
    calls.write_text("")
    run(f"""
    import json
    sys.path.insert(0, {str(HERE)!r})
    sys.path.insert(0, {str(HERE.parent / "layers")!r})
    from gradient import layer_net, run_backward, run_forward
    from cudnn_cases import addresses
    from minicaffe.blob import Dtype
    minicaffe.set_mode_gpu()
    for dtype in Dtype.FLOAT, Dtype.DOUBLE:
        rng = np.random.default_rng(1)
        net = layer_net('layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ num_output: 5 bias_term: false weight_filler {{ type: "gaussian" }} }} }}',
                        [rng.standard_normal((3, 4))], dtype)
        run_forward(net)
        run_backward(net, [0], [rng.standard_normal((3, 5))])
        at = addresses(net)
        x, y, w = net.bottoms[-1][0], net.tops[-1][0], net.layers[-1].blobs[0]
        values = {{"x": x.data.tolist(), "w0": w.data.tolist(), "dy": y.diff.tolist()}}
        with open({str(calls)!r}, "a") as file:
            file.write(json.dumps({{"call": "net", "at": at, "values": values}}) + chr(10))
    """, "sim", MINICAFFE_CUBLAS=str(fake), FAKE_LOG=str(calls))
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [call["call"] for call in found[:4]] == ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetMathMode", "cublasSetWorkspace_v2"]
    assert found[2]["mode"] == 0 and found[3]["bytes"] == 4 * MIB and found[3]["memory"]    # CUBLAS_DEFAULT_MATH
    products = []
    for call in found[4:]:
        if call["call"] != "net":
            products.append(call)
            continue
        x, w, dy = (np.array(call["values"][name]) for name in ("x", "w0", "dy"))
        where = {address: name for name, address in call["at"].items()}
        expected = {"y": x @ w.T, "dw0": dy.T @ x, "dx": dy @ w}
        assert sorted(where[product["c"]] for product in products) == sorted(expected)
        for product in products:
            name = where[product["c"]]
            a, b = (np.array(call["values"][where[product[side]]]).ravel() for side in "ab")
            np.testing.assert_allclose(column_major(product, a, b), expected[name].ravel(), rtol=1e-12)
            assert product["beta"] == (name == "dw0") and product["handle"] == 0x77 and product["batches"] == 1
        products = []


def column_major(call, a, b):
    """What the definition of gemm gives, as it lies in memory."""
    m, n, k = call["mnk"]
    (trans_a, trans_b), (lda, ldb, ldc) = call["trans"], call["ld"]
    c = np.zeros(ldc * n)
    for i in range(m):
        for j in range(n):
            c[i + j * ldc] = call["alpha"] * sum(
                a[p + i * lda if trans_a else i + p * lda] * b[j + p * ldb if trans_b else p + j * ldb] for p in range(k))
    return c


def test_cublas_that_fails(fake):
    run(f"""
    sys.path.insert(0, {str(HERE)!r})
    from training import make_solver
    minicaffe.set_mode_gpu()
    refused(errors.DeviceError, lambda: make_solver().step(1), "cublasGemmStridedBatched: CUBLAS_STATUS_EXECUTION_FAILED", "nvidia-cublas")
    """, "sim", MINICAFFE_CUBLAS=str(fake), FAKE_FAIL="cublasSgemmStridedBatched=13")
