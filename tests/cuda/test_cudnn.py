"""Engine CUDNN. On a GPU each case is compared with engine CAFFE. Everywhere else a fake cuDNN records the calls on the simulated
device: which, in what order, with which descriptors, pointers, factors and workspace; what is refused and what fails. Asked to,
it computes what cuDNN's book says of each call (slow_cudnn.hpp), and is compared with engine CAFFE too. It checks itself what it
is given, and says on standard error what is wrong (fake_graph.hpp).

A real cuDNN computes with ``--device gpu`` alone.
"""

import itertools
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from cudnn_cases import CASES
from declarations import check_declarations
from processes import run, run_gpu, start

pytestmark = pytest.mark.slow(42)    # all together

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 1 << 20


def cases(what, specs, device, **environment):
    with tempfile.TemporaryDirectory() as cache:    # no choice of an earlier test
        text = start([sys.executable, str(HERE / "cudnn_cases.py"), what, json.dumps(specs)], device, "", 0, None,
                     **{"MINICAFFE_CACHE": cache, **environment})  # fmt: skip
    assert "the slow cuDNN" not in text, text
    return json.loads(re.search(r"^RESULT (.*)$", text, re.MULTILINE)[1])


def record(fake, tmp_path, *specs, **environment):
    return cases("record", specs, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(tmp_path / "calls"), **environment)


def calls_of(tmp_path):
    """The calls in the fake's log."""
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def named(result, *names):
    """The calls that compute something, or those called `names`."""
    pattern = re.compile("|".join(names) if names else "cudnn(BackendExecute|LRN|Batch)")
    return [call for call in result["calls"] if pattern.match(call["call"])]


def products(result):
    """The convolutions in their order: (product, the executions to measure it, the one that computes)."""
    groups = [(product, list(group)) for product, group in itertools.groupby(named(result, "cudnnBackendExecute"), lambda call: call["product"])]
    return [(product, group[:-1], group[-1]) for product, group in groups]


@pytest.fixture(scope="module")
def recorded(fake, tmp_path_factory):
    """Two steps of every case, by its name."""
    specs = ({"name": name, "steps": 2, "use": name == "batch norm"} for name in CASES)
    results = record(fake, tmp_path_factory.mktemp("record"), *specs)
    return dict(zip(CASES, results))


def test_convolution(recorded):
    """Each product is measured in the first step and computed in both; weights add to their gradient, nothing else does."""
    result, at = recorded["conv"], recorded["conv"]["at"]
    assert result["error"] is None and not result["log"]
    assert [call["call"] for call in result["calls"][:2]] == ["cudnnCreate", "cudnnSetStream"]
    assert result["calls"][1]["handle"] == 0x1234 and result["calls"][1]["stream"]
    assert sum(call["call"] == "cudnnCreate" for other in recorded.values() for call in other["calls"]) == 1
    found = products(result)
    assert [product for product, _, _ in found] == ["forward", "data", "weights"] * 2
    places = {"forward": ("x", "w0", "y"), "data": ("dx", "w0", "dy"), "weights": ("x", "dw0", "dy")}
    for i, (product, trials, last) in enumerate(found):
        whole = product != "data"   # the graph has more than the product: the bias, or what was there
        for call in [*trials, last]:
            assert [call[name] for name in "xwy"] == ["0 [2,6,9,7] [378,63,7,1] 16", "0 [4,3,3,2] [18,6,2,1] 16", "0 [2,4,5,6] [120,30,6,1] 16"]
            assert call["conv"] == "pad [1,0] [1,0] stride [2,1] dilation [1,1] mode 1 type 0" and call["alpha"] == 1
            assert call["beta"] == float(product == "weights" and call["engine"] > 100)
            assert call["pbias"] == (at["w1"] if product == "forward" and call["engine"] > 100 else 0)
            # A gradient that is added to is not for trials.
            for name, place in zip("xwy", places[product]):
                assert (call[f"p{name}"] == at[place]) == (call is last or place != "dw0")
            assert call["workspace"] not in (call["px"], call["pw"], call["py"]) and bool(call["workspace"]) == bool(call["bytes"])
        assert last["engine"] == (111 if whole else 11) and last["bytes"] == MIB
        # In float32 neither on tensor cores (12) nor with rounded inputs (16); nor what does not fit (13) or cannot be made (14).
        engines = {call["engine"] for call in trials}
        assert engines == ({10, 11, 15} | ({110, 111, 115} if whole else set()) if i < 3 else set())


def test_engines_that_use_cudnn(fake, tmp_path):
    uses = [{}, {"use": False}, {"use": True}]      # use_cudnn; by default it is not called
    specs = [{"name": "lrn", "engine": engine, **use} for engine in ("CAFFE", "DEFAULT", "CUDNN") for use in uses]
    asked = [bool(named(result)) for result in record(fake, tmp_path, *specs)]
    assert asked == [False, False, False, True, False, True, True, True, True]
    for environment in "caffe", "cudnn":
        code = "minicaffe.set_mode_gpu(); from cudnn_cases import make_net, step; step(*make_net('lrn', 'DEFAULT'))"
        calls = tmp_path / environment
        calls.write_text("")
        run(code, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls), MINICAFFE_ENGINE=environment)
        assert ("cudnnLRNCrossChannelForward" in calls.read_text()) == (environment == "cudnn")


LEFT_TO_CAFFE = {"conv 4 axes": "more than 3 axes", "conv large window": "larger than the padded image", "lrn within": "within a channel",
                 "lrn 17": "local_size above 16"}


def test_what_is_refused_here(recorded):
    """Engine CAFFE computes it; with a warning, unless cuDNN is never asked for it."""
    for name in *LEFT_TO_CAFFE, "relu", "softmax", "ave", "lrn empty", "batch norm":
        result, why = recorded[name], LEFT_TO_CAFFE.get(name)
        assert not named(result) and result["error"] is None, name
        if why:
            assert len(result["log"]) == 1 and why in result["log"][0] and "engine CAFFE computes instead" in result["log"][0], name
        else:
            assert result["engines"] == ["CAFFE"] and not result["calls"] and not result["log"], name


def test_refused_by_default(fake, tmp_path):
    """The log has it at level debug; after `use_cudnn` and with ``engine: CUDNN`` it is a warning."""
    specs = [{"name": "lrn 17", "engine": "DEFAULT"}, {"name": "lrn 17", "engine": "DEFAULT", "use": True}, {"name": "lrn 17"}]
    default, *asked = record(fake, tmp_path, *specs)
    assert default["log"] == [] and default["engines"] == ["CAFFE"]
    assert [len(result["log"]) for result in asked] == [1, 0]      # once for each reason


REFUSALS = [
    ("conv", "cudnnBackendFinalize graph"), ("conv", "cudnnBackendFinalize heuristic"), ("conv", "cudnnBackendFinalize plan"),
    ("conv", "cudnnBackendExecute"), ("conv", "cudnnBackendFinalize data"), ("conv", "cudnnBackendCreateDescriptor weights"),
    ("lrn", "cudnnLRNCrossChannelForward"), ("lrn", "cudnnLRNCrossChannelBackward")]  # fmt: skip
PLANS = "cudnnBackendFinalize plan", "cudnnBackendExecute"


def test_what_cudnn_refuses(fake, tmp_path):
    """Said once and not tried again; who refuses a gradient still computes the rest."""
    specs = [{"name": name, "fail": f"{call}=3002", "images": 10 + i, "steps": 2, "use": True} for i, (name, call) in enumerate(REFUSALS)]
    for (name, call), result in zip(REFUSALS, record(fake, tmp_path, *specs)):
        assert result["error"] is None, (name, call)
        said = call.split()[0]
        assert result["log"] == [f"engine CUDNN refuses: {said}: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; engine CAFFE computes instead"] or (
            name == "conv" and not result["log"])   # the same reason was said before
        gradient = call.endswith((" data", " weights"))
        assert result["engines"] == ["CUDNN/CAFFE" if gradient else "CAFFE"], (name, call)
        if name == "conv":
            computed = [product for product, _, _ in products(result)]
            other = "weights" if call.endswith("data") else "data"
            assert computed == (["forward", other] * 2 if gradient else [])
        else:
            assert len(named(result, f"{call}$")) == 1


def test_what_fails(fake, tmp_path):
    """It is an error; only where all plans fail does engine CAFFE compute."""
    specs = [{"name": name, "fail": f"{call}=5000", "images": 10 + i, "use": True} for i, (name, call) in enumerate(REFUSALS)]
    for (_, call), result in zip(REFUSALS, record(fake, tmp_path, *specs)):
        said = call.split()[0]
        if call in PLANS:
            assert result["error"] is None and result["engines"] == ["CAFFE"]
            assert result["log"] == [f"engine CUDNN refuses: {said}: CUDNN_STATUS_EXECUTION_FAILED; engine CAFFE computes instead"]
            continue
        text, code = result["error"]
        assert code == "CUDNN_STATUS_EXECUTION_FAILED" and not result["log"]
        assert f"{said}: CUDNN_STATUS_EXECUTION_FAILED: said the fake" in text and "engine: CAFFE" in text


def engines(result):
    """The engines that compute, by the product."""
    return {product: last["engine"] for product, _, last in products(result)}


@pytest.mark.slow(5)
def test_choice_of_plans(fake, tmp_path):
    """Deterministic ones, those that fit: settings of the process. Without measuring it is the first, and no choice is kept."""
    one = {"name": "conv 1x1"}
    for environment, expected, trials in (
            ({}, {"forward": 111, "data": 11, "weights": 111}, True),
            ({"MINICAFFE_CUDNN_TUNE": "1"}, {"forward": 111, "data": 11, "weights": 111}, True),
            ({"MINICAFFE_CUDNN_TUNE": "0"}, {"forward": 110, "data": 10, "weights": 110}, False),
            ({"MINICAFFE_DETERMINISTIC": "1"}, {"forward": 110, "data": 10, "weights": 110}, False),
            ({"MINICAFFE_DETERMINISTIC": "1", "FAKE_OFFERS": "11/N/0/0/0/0;17//0/0/0/0"}, {"forward": 117, "data": 17, "weights": 117}, False),
            ({"MINICAFFE_CUDNN_WORKSPACE": "8KiB"}, {"forward": 110, "data": 10, "weights": 110}, True),
            ({"MINICAFFE_CUDNN_WORKSPACE": "0"}, {"forward": 115, "data": 15, "weights": 115}, True),
            ({"FAKE_WHOLE": "4"}, {"forward": 11, "data": 11, "weights": 11}, True),
            ({"FAKE_NONE": "beta"}, {"forward": 111, "data": 11, "weights": 11}, True),
            ({"FAKE_NONE": "bias"}, {"forward": 11, "data": 11, "weights": 111}, True),
            ({"FAKE_NONE": "instant"}, {"forward": 130, "data": 30, "weights": 130}, True),
            ({"FAKE_OFFERS": ";".join(f"{i}//0/{8000 if i < 57 else 1}/0/0" for i in range(50, 60))},
             {"forward": 157, "data": 57, "weights": 157}, True)):  # fmt: skip
        cache = tmp_path / f"cache {len(list(tmp_path.iterdir()))}"
        result = record(fake, tmp_path, one, MINICAFFE_CACHE=str(cache), **environment)[0]
        assert engines(result) == expected, environment
        assert result["error"] is None and not result["log"]
        assert all(bool(measured) == trials for _, measured, _ in products(result)), environment
        assert len(list(cache.glob("*.plan"))) == (3 if trials else 0)
        if "FAKE_OFFERS" in environment and trials:     # the first 8 of each graph
            assert {call["engine"] for call in products(result)[1][1]} == set(range(50, 58))
        weights = products(result)[2][2]
        apart = weights["engine"] < 100     # then our kernel adds what is in memory apart
        assert weights["beta"] == (not apart) and (weights["pw"] == result["at"]["dw0"]) == (not apart)
        assert not apart or not weights["workspace"] or weights["workspace"] == weights["pw"] + 256


@pytest.mark.parametrize(("environment", "why"), [
    ({"FAKE_NONE": "instant,fallback"}, "convolution: no plan"),
    ({"FAKE_NONE": "fallback", "FAKE_OFFERS": "11/N/0/0/0/0", "MINICAFFE_DETERMINISTIC": "1"}, "convolution: no plan that repeats its results"),
    ({"FAKE_NONE": "fallback", "FAKE_OFFERS": "12/T/0/0/0/0;16/D/0/0/0/0"}, "convolution: no plan"),
    ({"FAKE_OFFERS": "11//4096/0/0/0", "MINICAFFE_CUDNN_WORKSPACE": "1KiB"}, "convolution: no plan within the workspace limit"),
    ({"FAKE_OFFERS": "11//0/0/3002/0;12//0/0/3000/0"}, "cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED_SHAPE")])  # fmt: skip
@pytest.mark.parametrize("tune", ["0", "1"])
def test_no_plan_at_all(fake, tmp_path, environment, why, tune):
    result = record(fake, tmp_path, {"name": "conv 1x1", "steps": 2}, MINICAFFE_CUDNN_TUNE=tune, **environment)[0]
    assert result["log"] == [f"engine CUDNN refuses: {why}; engine CAFFE computes instead"]
    assert result["error"] is None and result["engines"] == ["CAFFE"] and not named(result)
    made = [call["engine"] for call in named(result, "cudnnBackendFinalize") if call["kind"] == "plan"]
    assert len(made) == len(set(made))      # nothing is tried twice


@pytest.mark.parametrize("tune", ["0", "1"])
def test_plan_that_fails_running(fake, tmp_path, tune):
    """The next one is taken, in the measurement and without one; one line says so."""
    offers = "10//0/1/0/5000;11//0/1/0/3000;12//0/3000/0/0"
    environment = {"MINICAFFE_CUDNN_TUNE": tune, "FAKE_OFFERS": offers, "FAKE_COMPUTES": "1"}
    with tempfile.TemporaryDirectory() as cache:
        text = start([sys.executable, str(HERE / "cudnn_cases.py"), "compare", json.dumps([{"name": "conv", "dtype": "FLOAT"}])], "sim", "", 0,
                     None, MINICAFFE_CUDNN=str(fake), MINICAFFE_CACHE=cache, FAKE_LOG=str(tmp_path / "calls"), **environment)  # fmt: skip
    assert json.loads(re.search(r"^RESULT (.*)$", text, re.MULTILINE)[1])[0]["worst"] < 1e-5
    ran = [call["engine"] for call in calls_of(tmp_path) if call["call"] == "cudnnBackendExecute"]
    assert all(ran.count(engine) == (2 if engine > 100 else 3 if tune == "1" else 1) for engine in (10, 11)), ran
    assert ran[-1] in (12, 112) and "leaves out a plan of a convolution: cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED" in text


@pytest.mark.slow(6)
def test_choices_are_kept(fake, tmp_path):
    """By all that they depend on; what is damaged, or is there no longer, is measured again."""
    cache = tmp_path / "cache"

    def trials(spec=None, **environment):
        """How many products were measured, and whether engine 11 was the fastest."""
        result = record(fake, tmp_path, {"name": "conv 1x1", **(spec or {})}, MINICAFFE_CACHE=str(cache), **environment)[0]
        assert result["error"] is None and not result["log"]
        return sum(bool(measured) for _, measured, _ in products(result)), set(engines(result).values())

    assert trials() == (3, {11, 111})
    files = {path: path.read_bytes() for path in cache.glob("*.plan")}
    assert len(files) == 3 == len(list(cache.iterdir())) and any(b"1: engine 111" in content for content in files.values())
    assert any(b"cuDNN 92800 on minicaffe simulated device, at most 268435456 bytes: " in content for content in files.values())
    assert trials() == (0, {11, 111})
    for (path, content), damage in zip(files.items(), (lambda whole: b"", lambda whole: whole[:40], lambda whole: whole[:-1] + b"x")):
        path.write_bytes(damage(content))
        assert trials()[0] == 1 and path.read_bytes() == content
    assert trials(FAKE_VERSION="92900")[0] == trials({"images": 5})[0] == trials({"dtype": "DOUBLE"})[0] == 3
    assert trials({"precision": "tf32"})[0] == trials(MINICAFFE_CUDNN_WORKSPACE="2MiB")[0] == 3
    assert len(list(cache.glob("*.plan"))) == 18
    assert trials() == (0, {11, 111})
    assert trials(MINICAFFE_CUDNN_TUNE="0") == (0, {10, 110}) and trials(MINICAFFE_DETERMINISTIC="1") == (0, {10, 110})
    # Place 1 of the list is another engine, or there is no place 1.
    assert trials(FAKE_OFFERS="10//0/2000/0/0;17//0/9000/0/0") == (3, {10, 110})
    assert trials() == (0, {10, 110})       # that was measured here, so that it holds here
    for path in files:
        path.write_bytes(files[path])
    assert trials(FAKE_OFFERS="10//0/1/0/0")[0] == 3
    for path in files:
        path.write_bytes(files[path])
    assert trials(FAKE_OFFERS="10//0/4000/0/0;11//0/1/3000/0;17//0/9000/0/0") == (3, {10, 110})     # it can no longer be made


def test_a_first_gradient_is_overwritten(fake, tmp_path):
    """By the product alone, also when it is measured: with beta 0, where it lies. The second one is added."""
    result = record(fake, tmp_path, {"name": "conv", "steps": 2, "start": None})[0]
    (_, trials, first), (_, more, second) = [found for found in products(result) if found[0] == "weights"]
    for call in [*trials, first]:
        assert (call["beta"], call["pw"]) == (0, result["at"]["dw0"]) and call["engine"] < 100, call
    assert trials and more and (second["beta"], second["pw"], second["engine"]) == (1, result["at"]["dw0"], 111)
    assert result["error"] is None and not result["log"]


@pytest.mark.parametrize(("environment", "precision"), [
    ({}, "float32"), ({"MINICAFFE_CUDNN_TUNE": "0"}, "float32"), ({"MINICAFFE_CUDNN_LAYOUT": "nhwc"}, "float32"),
    ({}, "bf16"), ({"FAKE_WHOLE": "4"}, "bf16"), ({"FAKE_NONE": "nhwc", "MINICAFFE_CUDNN_LAYOUT": "nhwc"}, "float32"),
    ({"FAKE_FAIL": "cudnnBackendFinalize weights=3002"}, "float32"), ({"FAKE_FAIL": "cudnnBackendExecute=3002"}, "float32")])  # fmt: skip
def test_first_and_second_gradients_together(fake, tmp_path, environment, precision):
    """Two steps give the sum, by plans that write float or bf16, and if cuDNN refuses after the memory was taken."""
    specs = [{"name": name, "dtype": "FLOAT", "start": None, "precision": precision} for name in ("conv", "conv 1x1", "deconv")]
    results = cases("compare", specs, "sim", MINICAFFE_CUDNN=str(fake), FAKE_COMPUTES="1", FAKE_LOG=os.devnull, **environment)
    assert all(result["worst"] < (1e-4 if precision == "float32" else 0.02) for result in results), results


def test_bf16_bias_alignment(fake, tmp_path):
    """cuDNN refuses a tensor of floats that is said to be aligned to two bytes."""
    calls = tmp_path / "calls"
    text = run_gpu("""
    from cudnn_cases import make_net
    minicaffe.set_precision("bf16")
    net, _ = make_net("conv", "DEFAULT")
    block, bias = Blob((64,)), net.layers[-1].blobs[1]
    bias.data_memory.set_gpu_data(block.gpu_data.__cuda_array_interface__["data"][0] + 4, block)
    bias.data[...] = 1
    net.forward_from_to(0, len(net.layers) - 1)
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls), MINICAFFE_CUDNN_TUNE="0", MINICAFFE_CACHE=str(tmp_path / "cache"))
    assert "the slow cuDNN" not in text, text
    found = named({"calls": calls_of(tmp_path)})
    assert [(call["product"], call["engine"] >= 100, call["pbias"] % 16) for call in found] == [("forward", True, 4)]


def test_without_cudnn(fake, tmp_path):
    """Missing, of an old version, no cuDNN at all, or one that does not start."""
    code = """
    import logging
    logging.basicConfig(level=logging.INFO)
    from cudnn_cases import make_net, step
    minicaffe.set_mode_gpu()
    for name in "conv", "lrn", "conv", "lrn":
        net, rng = make_net(name, ENGINE)
        step(net, rng)
        assert net.engines()[0]["engine"] == "CAFFE"
        assert ENGINE == "CUDNN" or ("CUDNN" in net.engines()[0]["refused"]) == ("MINICAFFE_CUDNN" in os.environ)
    """
    none = {"MINICAFFE_CUDNN": str(tmp_path / "none.so")}
    for environment, words in (({}, "the simulated device has none"), (none, "none.so"), ({"MINICAFFE_CUDNN": str(fake), "FAKE_VERSION": "8907"}, "version 8907"),
                               ({"MINICAFFE_CUDNN": "libm.so.6"}, "cudnnCreate")):
        text = run(code.replace("ENGINE", "'CUDNN'"), "sim", **environment)
        assert text.count("engine CAFFE computes instead") == 1 and words in text, text
    # By default one line where a library was expected, on the simulated device no sign of cuDNN; never a warning.
    text = run(code.replace("ENGINE", "'DEFAULT'"), "sim", **none)
    assert text.count("no cuDNN") == 1 and "INFO:minicaffe.cuda.libraries:no cuDNN" in text and "WARNING" not in text
    assert "cuDNN" not in run(code.replace("ENGINE", "'DEFAULT'"), "sim")
    run_gpu("""
    from cudnn_cases import make_net, step
    for _ in range(2):
        error = refused(errors.DeviceError, lambda: step(*make_net("conv")), "cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED", "engine: CAFFE")
        assert error.code == "CUDNN_STATUS_NOT_INITIALIZED"
    step(*make_net("conv", "CAFFE"))
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_FAIL="cudnnCreate=1001")


@pytest.mark.parametrize(("variable", "value", "words"), [
    ("MINICAFFE_CUDNN_TUNE", "off", "must be 0 or 1, got"), ("MINICAFFE_DETERMINISTIC", "2", "must be 0 or 1, got"),
    ("MINICAFFE_ENGINE", "gpu", "must be caffe or cudnn or onednn or plain or winograd, got 'gpu'"), ("MINICAFFE_CUDNN_WORKSPACE", "much", "much")])  # fmt: skip
def test_wrong_settings(fake, variable, value, words):
    run(f"""
    from cudnn_cases import make_net, step
    for _ in range(2):
        refused(errors.ConfigError, lambda: (minicaffe.set_mode_gpu(), step(*make_net("lrn"))), {variable!r}, {words!r})
    """, "sim", MINICAFFE_CUDNN=str(fake), **{variable: value})


def test_in_a_graph(fake, tmp_path):
    """Measured in the steps before it is recorded; replayed without a call."""
    calls = tmp_path / "calls"
    calls.write_text("")
    run_gpu(f"""
    from training import NET, make_solver
    solver = make_solver(NET)
    counts = []
    for _ in range(5):
        solver.step(1)
        counts.append(len(open({str(calls)!r}).readlines()))
    assert counts[0] < counts[2] == counts[3] == counts[4], counts
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls))
    found = products({"calls": calls_of(tmp_path)})
    assert [(product, bool(trials)) for product, trials, _ in found] == [("forward", True), ("weights", True), *[("forward", False), ("weights", False)] * 2]
    # The gradient of the data is not needed.


def test_new_shape_in_a_recording(fake, tmp_path):
    """Nothing can be measured then: the first plan is taken, or the one that was chosen in an earlier run."""
    calls = tmp_path / "calls"
    for engine in 110, 111:
        calls.write_text("")
        run_gpu("""
        from cudnn_cases import make_net, step
        net, rng = make_net("conv", "DEFAULT")
        cuda.use_cudnn(False)
        step(net, rng)
        cuda.use_cudnn()
        with cuda.Graph(cuda.current()):
            net.forward_from_to(0, len(net.layers) - 1)
        net.forward_from_to(0, len(net.layers) - 1)
        """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(calls), MINICAFFE_CACHE=str(tmp_path / "cache"))
        found = named({"calls": calls_of(tmp_path)})
        assert [(call["product"], call["engine"]) for call in found] == [("forward", engine)] * 2
        record(fake, tmp_path, {"name": "conv"}, MINICAFFE_CACHE=str(tmp_path / "cache"))


@pytest.mark.parametrize("tune", ["0", "1"])
def test_any_call_that_fails(fake, tmp_path, tune):
    """An error or a right result, and no descriptor is left behind; the next step computes."""
    run(f"""
    import ctypes
    from cudnn_cases import CASES, conv, make_net, results, step
    fake = ctypes.CDLL({str(fake)!r})
    minicaffe.set_mode_gpu()
    layer = conv("num_output: 2 kernel_h: 2 kernel_w: 1 pad_h: 1 group: 2")

    def check(width):
        "The calls, and the descriptors that stay."
        CASES["small"] = layer, (1, 4, 3, width)
        calls, live = fake.fake_calls(), fake.fake_live()
        net, rng = make_net("small")
        step(net, rng)
        expected, rng = make_net("small", "CAFFE")
        step(expected, rng)
        for a, b in zip(results(net), results(expected)):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        return fake.fake_calls() - calls, fake.fake_live() - live

    check(1)
    calls, stay = check(2)
    assert check(2)[1] == 0 and calls > 200 and 0 < stay < 60
    errors_seen = right = 0
    for n, at in enumerate(range(0, calls, {3 if tune == "0" else 17})):
        before = fake.fake_live()
        fake.fake_fail_at(at, (4000, 3000, 5000)[n % 3])
        try:
            check(3 + n)
            right += 1
        except errors.DeviceError as error:
            assert "said the fake" in str(error), error
            errors_seen += 1
        fake.fake_fail_at(-1 - fake.fake_calls(), 0)
        check(3 + n)
        assert check(3 + n)[1] == 0
        assert fake.fake_live() - before <= stay + 1, (at, fake.fake_live() - before, stay)
    # Which calls fail depends on which plan was the fastest; while plans are measured, most failures only leave one out.
    assert errors_seen and right > 5, (errors_seen, right)
    """, "sim", MINICAFFE_CUDNN=str(fake), MINICAFFE_CUDNN_TUNE=tune, FAKE_COMPUTES="1",
        FAKE_OFFERS="10//4096/0/0/0;11/N/0/0/0/0;14//0/0/3000/0", FAKE_LOG=os.devnull)  # fmt: skip


def test_threads(fake):
    """They meet the same new shape at once."""
    text = run_gpu("""
    import helpers
    from cudnn_cases import make_net, results, step
    nets = [make_net("conv", images=3) for _ in range(4)]
    expected, rng = make_net("conv", "CAFFE", images=3)
    step(expected, rng)
    helpers.in_threads(lambda number: (minicaffe.set_mode_gpu(), step(*nets[number])), range(4))
    for net, _ in nets:
        for one, other in zip(results(net), results(expected)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_COMPUTES="1", FAKE_LOG=os.devnull)
    assert "the slow cuDNN" not in text, text


@pytest.mark.parametrize("none", ["", "beta,bias"])
def test_nan(fake, tmp_path, none):
    """What was in a result does not matter, a NaN in an operand does as with engine CAFFE."""
    run_gpu("""
    from cudnn_cases import make_net, results, run_backward, run_forward
    found = []
    for engine in "CAFFE", "CUDNN":
        for name in "conv", "deconv":
            net, rng = make_net(name, engine)
            x, y = net.bottoms[-1][0], net.tops[-1][0]
            y.data[...] = np.nan
            x.diff[...] = np.nan
            x.data[0, 1, 2, 2] = np.nan     # where no window meets the padding, by whose zeros engine CAFFE multiplies
            for blob in net.layers[-1].blobs:
                blob.diff[...] = 0.25
            run_forward(net)
            dy = rng.standard_normal(y.shape)
            dy[1, 2, 1, 1] = np.nan
            run_backward(net, [0], [dy])
            found.append(results(net))
    for a, b in zip(found[:2], found[2:]):
        for one, other in zip(a, b):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
            assert np.isnan(one).any()
        assert not all(np.isnan(one).all() for one in a[:2])
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_COMPUTES="1", FAKE_NONE=none, FAKE_LOG=os.devnull)


def test_arrays_at_any_element(fake, tmp_path):
    """Arrays that are aligned to their elements alone give the same numbers."""
    run_gpu("""
    from cudnn_cases import Dtype, make_net, results, step
    for dtype in Dtype.FLOAT, Dtype.DOUBLE:
        found = []
        for engine in "CAFFE", "CUDNN":
            net, rng = make_net("conv", engine, dtype)
            for blob in net.bottoms[-1][0], net.tops[-1][0], net.layers[-1].blobs[0]:
                block, values = Blob((blob.count + 1,), dtype), np.array(blob.data)
                blob.set_gpu_data(block.mutable_gpu_data[1:])
                blob.data[...] = values
            for _ in range(2):
                step(net, rng)
            found.append(results(net))
        for a, b in zip(*found):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    """, "sim", MINICAFFE_CUDNN=str(fake), FAKE_COMPUTES="1", FAKE_LOG=str(tmp_path / "calls"), MINICAFFE_CACHE=str(tmp_path / "cache"))
    assert {re.sub(r".*\] ", "", call["x"]) for call in named({"calls": calls_of(tmp_path)})} >= {"4", "8"}


def test_declarations_against_the_headers(tmp_path):
    check_declarations(tmp_path, "cudnn.h", "nvidia-cudnn-cu13", "MINICAFFE_CUDNN_INCLUDE", HEADER_CHECK, {     # all that these headers want of the CUDA runtime's
        "cuda_runtime_api.h": "#include <stddef.h>\ntypedef struct CUstream_st* cudaStream_t;\ntypedef struct CUgraph_st* cudaGraph_t;",
        "library_types.h": "typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;"})


HEADER_CHECK = r"""
#include <cudnn_graph.h>
#include <cudnn_ops.h>
#include <cstddef>
#include <type_traits>
#include "minicaffe/ops/conv/cudnn.hpp"

#define CHECK(name, ...) static_assert(Same<decltype(mc::cuda::CudnnCalls::name), decltype(::name)>::value, #name);
MC_CUDNN_CALLS(CHECK)

using namespace mc::cuda;
#define CHECK_NUMBER(name, number) static_assert(nv::name == CUDNN_##name, #name);
MC_CUDNN_NUMBERS(CHECK_NUMBER)
// The attributes of an operation in a row: alpha, beta, convolution, weights, image, columns.
#define CHECK_ROW(kind, w, x, y, product) static_assert( \
  CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA == nv::ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA + 6 * product && \
  CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_BETA == CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 1 && \
  CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_CONV_DESC == CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 2 && \
  CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##w == CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 3 && \
  CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##x == CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 4 && \
  CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##y == CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 5, #kind);
CHECK_ROW(FORWARD, W, X, Y, kForward)
CHECK_ROW(BWD_DATA, W, DX, DY, kBackwardData)
CHECK_ROW(BWD_FILTER, DW, X, DY, kBackwardWeights)
static_assert(kMaxNotes >= CUDNN_NUMERICAL_NOTE_TYPE_COUNT && std::is_same_v<cudnnBackendDescriptor_t, void*> && sizeof(cudnnHandle_t) == sizeof(void*));
static_assert(sizeof(cudnnDataType_t) == 4 && sizeof(cudnnConvolutionMode_t) == 4 && sizeof(cudnnBackendHeurMode_t) == 4 &&
              sizeof(cudnnPointwiseMode_t) == 4 && sizeof(cudnnBackendNumericalNote_t) == 4 && sizeof(bool) == 1);
static_assert(kNchw == CUDNN_TENSOR_NCHW && kAcrossChannels == CUDNN_LRN_CROSS_CHANNEL_DIM1);
static_assert(CUDNN_DATA_FLOAT == 0 && CUDNN_DATA_DOUBLE == 1 && CUDNN_STATUS_SUCCESS == 0);
static_assert(CUDNN_STATUS_NOT_SUPPORTED == kNotSupported && CUDNN_STATUS_INTERNAL_ERROR == kNotSupportedEnd);
static_assert(CUDNN_LRN_MAX_N == 16 && CUDNN_LRN_MIN_K == 1e-5 && CUDNN_LRN_MIN_BETA == 0.01);
"""


def check_engines(place, refusals_logged, **environment):
    """Compare the results of both engines; return in how many cases they differ at all."""
    pairs = [{"name": name, "dtype": dtype} for name in CASES for dtype in ("FLOAT", "DOUBLE")]
    results = cases("compare", pairs, place, **environment)
    for case, result in zip(pairs, results, strict=True):
        # Sums of some dozens of terms in another order, or by way of a Winograd or Fourier transform.
        assert result["worst"] < (1e-4 if case["dtype"] == "FLOAT" else 1e-11), case
        text = "\n".join(result["log"])
        assert "no cuDNN" not in text, text
        if case["name"] not in LEFT_TO_CAFFE and (case["dtype"] == "FLOAT" or refusals_logged):
            assert not text, (case, text)
    return sum(result["worst"] > 0 for result in results)


@pytest.mark.slow(7)
def test_what_the_calls_mean(fake):
    """cuDNN as its book has it gives engine CAFFE's results: pointers, shapes and factors are right."""
    environment = {"MINICAFFE_CUDNN": str(fake), "FAKE_COMPUTES": "1", "FAKE_LOG": os.devnull}
    for other in {}, {"FAKE_NONE": "beta,bias"}, {"FAKE_NONE": "instant"}, {"MINICAFFE_CUDNN_TUNE": "0"}:
        # Not because both were engine CAFFE: sums in another order differ.
        assert check_engines("sim", True, **environment, **other) > len(CASES) // 2, other


def test_against_engine_caffe(place):
    if place != "gpu":
        pytest.skip("no GPU here: cuDNN's results have not been compared with engine CAFFE's (pytest --device gpu)")
    check_engines("gpu", False)


def test_open_libraries(fake, tmp_path):
    """cuBLAS opens with the device, cuDNN with the first layer that asks. A call of cuBLAS that fails is no event."""
    text = run_gpu("""
    from gradient import layer_net, run_forward
    assert cuda.state().devices[0].handles == {"cuBLAS": 130100, "cuDNN": None}
    run_forward(layer_net('layer { name: "n" type: "LRN" bottom: "x" top: "y" lrn_param { engine: CUDNN } }', [np.ones((2, 3, 1, 1))]))
    assert cuda.state().devices[0].handles == {"cuBLAS": 130100, "cuDNN": 92800}
    print(cuda.state())
    from training import make_solver
    solver = make_solver()
    with memory.record() as events:
        cuda.current().record_launches(True)
        refused(errors.DeviceError, lambda: solver.step(1), "cublasGemmStridedBatched: CUBLAS_STATUS_EXECUTION_FAILED", "nvidia-cublas")
    kinds = [event.kind for event in events]
    assert "launch" in kinds and "call" not in kinds
    """, "sim", MINICAFFE_CUBLAS=str(fake), MINICAFFE_CUDNN=str(fake), FAKE_LOG=str(tmp_path / "calls"), MINICAFFE_ENGINE="caffe",
                   FAKE_FAIL="cublasSgemmStridedBatched=13")
    assert "cuBLAS 130100, cuDNN 92800" in text
    calls = calls_of(tmp_path)
    assert [call["call"] for call in calls[:4]] == ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetMathMode", "cublasSetWorkspace_v2"]
    assert calls[2]["mode"] == 0 and calls[3]["bytes"] == 4 * MIB and calls[3]["memory"]    # CUBLAS_DEFAULT_MATH


def test_trace_of_library_calls(fake):
    """Each with its time, in the step that makes it; without a record no thread waits for one."""
    run_gpu("""
    import helpers
    from minicaffe.addons import trace
    from minicaffe.addons.trace import perfetto, table
    from minicaffe.inspection import timing
    net = helpers.make_net('force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 4, 6, 6] } } }'
        + helpers.layer_text("Convolution", "conv", "x", "y", "convolution_param { num_output: 4 kernel_size: 3 engine: CUDNN }")
        + helpers.layer_text("LRN", "lrn", "y", "l", "lrn_param { engine: CUDNN }")
        + helpers.layer_text("BatchNorm", "norm", "l", "n", "batch_norm_param { use_global_stats: false }")
        + helpers.layer_text("InnerProduct", "ip", "n", "z", "inner_product_param { num_output: 3 }"))
    for _ in range(2):
        net.forward_backward()
    with trace.record(net) as made:
        net.forward_backward()
    found = {}
    for number, step in enumerate(made.steps):
        busy = [event for event in made.events[step["first"]:step["last"]] if event.kind in ("launch", "call")]
        calls = [event for event in busy if event.kind == "call"]
        found[step["kind"], step["layer"]] = [event.name for event in calls]
        assert all(event.took > 0 and event.place == "CUDAPlace(0)" for event in calls), calls
        if calls:
            there, lines, row = sum(event.took for event in busy), table.describe(made, number), table.row(made, number)
            assert f"{there / 1e6:.3f} ms of it on the device" in lines[1] and f"  call {calls[0].name}, {calls[0].took / 1e6:.3f} ms" in lines, lines
            assert (row[3], row[5], row[-2]) == (f"{there / 1e6:.3f}", f"{step['bytes'] / there:.1f}", str(len(busy))), row
    assert found["forward", "conv"] == ["cudnnBackendExecute"] and found["forward", "ip"] == ["cublasLtMatmul"], found
    assert found["forward", "lrn"] == ["cudnnLRNCrossChannelForward"] and found["backward", "lrn"] == ["cudnnLRNCrossChannelBackward"]
    assert not found["forward", "norm"] and not found["backward", "norm"], found
    assert found["backward", "conv"] == ["cudnnBackendExecute"] * 2 and len(found["backward", "ip"]) == 2, found
    total = sum(map(len, found.values()))
    assert any(line.startswith(f"calls of libraries: {total}, ") for line in table.summary(made))
    assert len([row for row in perfetto.events(made) if row.get("cat") == "call" and row["dur"] > 0]) == total
    with memory.record() as events:
        net.forward_backward()
    assert not [event for event in events if event.kind in ("launch", "call")]
    minicaffe.set_precision("tf32")
    assert timing.measure(net, 1).total_ms > 0
    """, "sim", MINICAFFE_CUBLAS=str(fake), MINICAFFE_CUDNN=str(fake), MINICAFFE_CUDNN_TUNE="0")


def test_product_without_nhwc_plans(fake, tmp_path):
    """Each of the three by itself; the strides of x give the order, and nothing is refused."""
    for none, last in (("", True), ("nhwc", False)):
        result = record(fake, tmp_path, {"name": "conv", "steps": 2}, MINICAFFE_CUDNN_LAYOUT="nhwc", FAKE_NONE=none)[0]
        strides = {json.loads(call["x"].split(" ")[2])[1] for _, _, call in products(result)}
        assert len(products(result)) == 6 and strides == {1 if last else 9 * 7}, (none, result["calls"])
        assert result["engines"] == ["CUDNN"] and not result["log"], result
