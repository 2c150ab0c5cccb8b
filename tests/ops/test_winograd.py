"""Engine WINOGRAD against engine CAFFE, and what it rounds (minicaffe/ops/conv/winograd.hpp)."""

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import layer_text, make_net

import minicaffe
from minicaffe import cli
from minicaffe.blob import Blob, Dtype
from minicaffe.common import TEST, TRAIN, caffe
from minicaffe.device import threads
from minicaffe.engines import engine
from minicaffe.engines.onednn import library
from minicaffe.errors import DependencyError
from minicaffe.memory.states import SyncedHead

# Relative to the root of the mean square: seen are 8e-6 at most, sums of float32 themselves have 1e-6.
TOLERANCE = 2e-5

SHAPES = {
    "3x3": ((2, 16, 9, 9), "num_output: 32 kernel_size: 3 pad: 1"),
    "5x5": ((2, 16, 9, 11), "num_output: 32 kernel_size: 5 pad: 2"),
    "no padding": ((2, 20, 12, 12), "num_output: 50 kernel_size: 5"),
    "much padding": ((2, 5, 4, 6), "num_output: 7 kernel_size: 3 pad: 4"),
    "other padding": ((2, 16, 7, 8), "num_output: 16 kernel_size: 5 pad_h: 0 pad_w: 3"),
    "one output": ((3, 24, 3, 3), "num_output: 17 kernel_size: 3"),
    "one channel": ((2, 1, 13, 10), "num_output: 1 kernel_size: 3"),
    "no bias": ((2, 33, 8, 8), "num_output: 16 kernel_size: 3 bias_term: false"),
    "groups": ((2, 32, 8, 8), "num_output: 64 kernel_size: 3 group: 2 pad: 1"),
    "lanes that a block does not fill": ((2, 28, 9, 9), "num_output: 30 kernel_size: 3 pad: 1"),
    "odd groups": ((2, 9, 8, 8), "num_output: 6 kernel_size: 5 group: 3 pad: 1"),
    "blocks of tiles": ((2, 16, 121, 70), "num_output: 16 kernel_size: 3 pad: 1"),
    "blocks of outputs": ((1, 256, 5, 5), "num_output: 160 kernel_size: 3 pad: 1"),
    "outputs for each thread": ((1, 256, 5, 5), "num_output: 384 kernel_size: 3 pad: 1"),
}
# Of rounding. With few and many channels, small and large images, with padding and without; the last three are of real nets.
ROUNDED = {
    "3x3, few channels": ((4, 8, 40, 40), "num_output: 8 kernel_size: 3 pad: 1"),
    "3x3, small images": ((16, 24, 7, 7), "num_output: 40 kernel_size: 3 pad: 1"),
    "3x3, no padding": ((2, 64, 30, 30), "num_output: 96 kernel_size: 3"),
    "3x3, a large image": ((1, 16, 120, 160), "num_output: 24 kernel_size: 3 pad: 1"),
    "3x3, many channels": ((4, 512, 7, 7), "num_output: 192 kernel_size: 3 pad: 1"),
    "3x3, many outputs": ((4, 48, 14, 14), "num_output: 512 kernel_size: 3 pad: 1"),
    "5x5, few channels": ((4, 12, 28, 28), "num_output: 16 kernel_size: 5 pad: 2"),
    "5x5, much padding": ((8, 32, 6, 7), "num_output: 48 kernel_size: 5 pad: 4"),
    "5x5, many channels": ((4, 256, 9, 9), "num_output: 64 kernel_size: 5 pad: 2"),
    "3x3 of VGG": ((2, 128, 28, 28), "num_output: 128 kernel_size: 3 pad: 1"),
    "5x5 of GoogLeNet": ((8, 32, 14, 14), "num_output: 96 kernel_size: 5 pad: 2"),
    "5x5 of LeNet": ((64, 20, 12, 12), "num_output: 50 kernel_size: 5"),
}
IN_LANES = {"3x3", "5x5", "groups", "lanes that a block does not fill", "other padding", "blocks of tiles", "blocks of outputs",
            "outputs for each thread"}


def has_onednn():
    try:
        library.version()
    except DependencyError:
        return False
    return True


@pytest.fixture
def use(on_cpu):
    """use(engine): layers with engine DEFAULT ask for it first."""
    return engine.prefer


def make(shape, fields, behind="", dtype=Dtype.FLOAT, phase=TRAIN):
    """A net of one convolution and what is behind it, with gradients for all, filled from one seed."""
    caffe.seed(5)
    net = make_net(f"force_backward: {str(phase == TRAIN).lower()} " + conv_text(shape, fields) + behind, phase, dtype)
    net.blob_by_name("x").data[...] = np.random.default_rng(3).standard_normal(shape)
    return net


def conv_text(shape, fields):
    fillers = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" }'
    return (layer_text("Input", "x", more=f"input_param {{ shape {{ dim: {list(shape)} }} }}")
            + layer_text("Convolution", "conv", "x", "y", f"convolution_param {{ {fields} {fillers} }}"))


def step(net, dtype=np.float64):
    last = net.tops[-1][0]
    net.forward_from_to(0, len(net.layers) - 1)
    last.diff[...] = np.random.default_rng(4).standard_normal(last.shape, dtype)
    net.backward_from_to(len(net.layers) - 1, 0)
    found = {"y": last.cpu_data.copy(), "dx": net.blob_by_name("x").cpu_diff.copy()}
    for one in net.layers:
        found.update({f"d{one.name}[{i}]": blob.cpu_diff.copy() for i, blob in enumerate(one.blobs)})
    return found


def close(ours, others):
    assert ours.keys() == others.keys()
    for name, values in others.items():
        assert np.abs(ours[name] - values).max() <= TOLERANCE * np.sqrt(np.mean(values ** 2)), name
        assert np.abs(values).max() > 0, name


def who(net):
    return net.engines()[0]["engine"]


def forward(net):
    net.forward_from_to(0, len(net.layers) - 1)
    return {"y": net.tops[-1][0].cpu_data.copy()}


def check(use, *arguments, run=step, engines=("CAFFE", "WINOGRAD"), types=(Dtype.DOUBLE, Dtype.FLOAT), **options):
    """Compare what two engines compute, CAFFE in float64; return the second net."""
    results = []
    for name, dtype in zip(engines, types):
        use(name)
        net = make(*arguments, dtype=dtype, **options)
        results.append(run(net))
    close(*reversed(results))
    return net


@pytest.mark.parametrize("case", SHAPES)
def test_convolution(use, case):
    use("CAFFE")
    exact = step(make(*SHAPES[case], dtype=Dtype.DOUBLE))
    use("WINOGRAD")
    net = make(*SHAPES[case])
    close(step(net), exact)
    assert who(net) == "WINOGRAD"
    net.forward_from_to(0, 1)
    layout = net.tops[-1][0].data_memory.layout()
    assert bool(layout and layout.lanes) == (case in IN_LANES and has_onednn())
    close(step(net), {name: values * (2 if name.startswith("dconv") else 1) for name, values in exact.items()})   # a second step adds


@pytest.mark.parametrize("case", SHAPES)
def test_kept_values_of_kernels(use, case):
    """Weights that are not learned are evaluated once, to the same bits, and again when they change."""
    use("WINOGRAD")
    learned, fixed = make(*SHAPES[case]), make(*SHAPES[case], phase=TEST)
    weights = fixed.layers[1].blobs[0]
    for evaluated, factor in enumerate((1, -2), start=1):
        for net in learned, fixed:
            net.layers[1].blobs[0].data[...] *= factor
        for _ in range(2):
            np.testing.assert_array_equal(forward(fixed)["y"], forward(learned)["y"])
        assert weights.data_memory.reorders == (0 if case in ("one channel", "blocks of tiles") else evaluated)     # tiles are most of the work
    np.testing.assert_array_equal(weights.cpu_data, learned.layers[1].blobs[0].cpu_data)
    fixed.release()
    assert weights.data_memory.head == SyncedHead.HEAD_AT_CPU       # the values are freed
    np.testing.assert_array_equal(forward(fixed)["y"], forward(learned)["y"])


def test_kept_values_of_new_memory(use):
    """Memory that was never written is zeros in plain order, too."""
    use("")
    net = make((1, 64, 14, 14), "num_output: 64 kernel_size: 3 bias_term: false", phase=TEST)
    mine = Blob(net.layers[1].blobs[0].shape)
    net.layers[1].blobs[0].share_data(mine)
    assert not forward(net)["y"].any() and who(net) == "WINOGRAD"
    assert mine.data_memory.head == SyncedHead.SYNCED_PRIVATE and not mine.data.any()
    mine.data[...] = 1
    assert forward(net)["y"].any()


@pytest.mark.parametrize("case", ROUNDED)
def test_rounding(use, case):
    """Errors of at most four times those of ONEDNN, against float64 on the same data."""
    shape, fields = ROUNDED[case]
    nets = {"WINOGRAD": make(shape, fields), "CAFFE": make(shape, fields, dtype=Dtype.DOUBLE)}
    if has_onednn():
        nets["ONEDNN"] = make(shape, fields)
    found = {}
    for name, net in nets.items():
        for blob, same in zip([net.blob_by_name("x"), *net.layers[1].blobs],
                              [nets["WINOGRAD"].blob_by_name("x"), *nets["WINOGRAD"].layers[1].blobs], strict=True):
            blob.data[...] = same.cpu_data
        use(name)
        found[name] = step(net, np.float32)
        assert who(net) == name
    for name, exact in found["CAFFE"].items():
        ours, theirs = (np.sqrt(np.mean((found[engine][name] - exact) ** 2) / np.mean(exact ** 2)) if engine in found else None
                        for engine in ("WINOGRAD", "ONEDNN"))
        # Without oneDNN the bound is four times what its errors mostly are in y and dx: 2.1e-7 (3x3) and 3.2e-7 (5x5), and in dw more.
        bound = 4 * theirs if theirs is not None else 13e-7 if "5x5" in case or name == "dconv[0]" else 8.5e-7
        assert ours <= bound, (name, ours, theirs)


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_other_processors(on_cpu, isa):
    code = f"""
import sys
sys.path[:0] = [{os.path.dirname(__file__)!r}, {os.path.dirname(os.path.dirname(__file__))!r}]
import test_winograd as t
for case in t.SHAPES:
    t.engine.prefer("CAFFE")
    exact = t.step(t.make(*t.SHAPES[case], dtype=t.Dtype.DOUBLE))
    t.engine.prefer("WINOGRAD")
    net = t.make(*t.SHAPES[case])
    t.close(t.step(net), exact)
    assert t.who(net) == "WINOGRAD"
    print(case)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "MINICAFFE_ISA": isa, "MINICAFFE_DEVICE": "cpu"},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(SHAPES)


@pytest.mark.parametrize("case", ["no padding", "groups", "blocks of tiles", "blocks of outputs", "outputs for each thread"])
def test_the_number_of_threads_changes_nothing(use, case):
    use("WINOGRAD")
    results = []
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        results.append(step(make(*SHAPES[case])))
        for name, values in results[0].items():
            np.testing.assert_array_equal(results[-1][name], values, err_msg=name)


def behind(kind, fields=""):
    return layer_text(kind, kind, "y", "y", fields)


PRELU = 'prelu_param { filler { type: "uniform" } }'


@pytest.mark.parametrize("shape", [((2, 20, 12, 12), "num_output: 50 kernel_size: 5"), ((2, 32, 9, 9), "num_output: 32 kernel_size: 3"),
                                   ((2, 32, 9, 9), "num_output: 64 kernel_size: 3 group: 2"),
                                   ((2, 16, 9, 9), "num_output: 16 kernel_size: 3 bias_term: false")])
@pytest.mark.parametrize(("layers", "phase"), [
    (behind("ReLU"), TRAIN), (behind("ReLU", "relu_param { negative_slope: 0.25 }"), TRAIN), (behind("PReLU", PRELU), TEST),
    (behind("Scale", 'scale_param { bias_term: true filler { type: "uniform" } bias_filler { type: "uniform" } }') + behind("ReLU"),
     TEST)])  # fmt: skip
def test_what_follows_is_computed_along(use, shape, layers, phase):
    net = check(use, *shape, layers, phase=phase, run=step if phase == TRAIN else forward)
    assert who(net) == "WINOGRAD" and net.engines()[0]["fused"]


UNIFORM = 'filler { type: "uniform" min: 1 max: 2 }'


@pytest.mark.parametrize(("kind", "fields"), [
    ("BatchNorm", ""), ("Scale", f"scale_param {{ bias_term: true {UNIFORM} bias_{UNIFORM} }}"), ("Bias", f"bias_param {{ {UNIFORM} }}")])
def test_relu_after_sum(use, kind, fields):
    def run(net):
        if kind == "BatchNorm":
            for blob, value in zip(net.layers[-1].blobs, (0.5, 3, 2)):
                blob.data[...] = value
        net.set_plan("memory", net.output_blobs, False)     # only then is the sum computed along
        return forward(net)
    more = layer_text("Eltwise", "sum", "y x", "z") + layer_text(kind, kind, "z", "z", fields)
    net = check(use, (2, 16, 9, 9), "num_output: 16 kernel_size: 3 pad: 1", more, phase=TEST, run=run)
    assert who(net) == "WINOGRAD" and net.engines()[0]["fused"] == ["sum"]


@pytest.mark.parametrize("engine_", ["WINOGRAD", "ONEDNN"])
def test_other_channel_axis_not_fused(use, engine_):
    """The slopes of PReLU are for axis 1, rows of the image here, as many as channels."""
    check(use, (1, 18, 18), "num_output: 16 kernel_size: 3 axis: 0", behind("PReLU", PRELU), phase=TEST, run=forward,
          engines=("CAFFE", engine_), types=(Dtype.FLOAT, Dtype.FLOAT))


def test_special_values_and_many_tiles(use):
    use("WINOGRAD")
    net = make(*SHAPES["3x3"], behind("ReLU"))
    y = forward(net)["y"]
    assert net.engines()[0]["fused"] and (y == 0).any() and not np.signbit(y).any()
    net.blob_by_name("x").data[1, 3, 0, 0] = np.nan
    y = forward(net)["y"]
    assert np.isnan(y[1, :, :2, :2]).all()              # as everywhere; with it the rest of the tile
    assert np.isfinite(y[0]).all() and np.isfinite(y[1, :, 4:]).all() and np.isfinite(y[1, :, :, 4:]).all()
    # The gradient of weights over positive numbers, as after ReLU, grows with each of 12,544 tiles.
    def run(net):
        net.blob_by_name("x").data[...] = np.random.default_rng(3).random((4, 16, 224, 224))
        return {name: values for name, values in step(net).items() if name.startswith("dconv")}
    check(use, (4, 16, 224, 224), "num_output: 16 kernel_size: 3 pad: 1", run=run)


UP = 'layer { name: "up" type: "Deconvolution" bottom: "y" top: "z" convolution_param { num_output: 4 kernel_size: 3 } }'


@pytest.mark.parametrize(("shape", "fields", "reason", "more"), [
    ((2, 16, 9, 9), "kernel_size: 1", "a kernel other than 3x3 or 5x5", {}), ((2, 16, 9, 9), "kernel_size: 7", "a kernel other", {}),
    ((2, 16, 9, 9), "kernel_h: 3 kernel_w: 5", "a kernel other", {}), ((2, 16, 9), "kernel_size: 3", "a kernel other", {}),
    ((2, 16, 9, 9), "kernel_size: 3 stride: 2", "a stride", {}), ((2, 16, 9, 9), "kernel_size: 3 dilation: 2", "a stride or a dilation", {}),
    ((2, 16, 9, 9), "kernel_size: 3", "float64", {"dtype": Dtype.DOUBLE}), ((2, 16, 9, 9), "kernel_size: 3", "a deconvolution", {"behind": UP})])
def test_refused(use, shape, fields, reason, more):
    use("WINOGRAD")
    net = make(shape, f"num_output: 16 {fields}", **more)
    step(net)
    row = net.engines()[-1]
    assert row["engine"] == "CAFFE" and reason in row["refused"]["WINOGRAD"]


@pytest.mark.parametrize(("shape", "fields", "expected"), [
    ((64, 20, 12, 12), "num_output: 50 kernel_size: 5", True), ((8, 64, 56, 56), "num_output: 64 kernel_size: 3 pad: 1", True),
    ((8, 512, 7, 7), "num_output: 512 kernel_size: 3 pad: 1", True), ((1, 512, 7, 7), "num_output: 512 kernel_size: 3 pad: 1", False),
    ((1, 256, 14, 14), "num_output: 256 kernel_size: 3 pad: 1", False), ((8, 16, 56, 56), "num_output: 64 kernel_size: 3 pad: 1", True),
    ((8, 64, 56, 56), "num_output: 64 kernel_size: 3 engine: CAFFE", False), ((8, 3, 32, 32), "num_output: 32 kernel_size: 5 pad: 2", False), ((8, 8, 56, 56), "num_output: 16 kernel_size: 3 pad: 1", False)])
def test_where_it_pays(use, shape, fields, expected):
    use("")
    net = make(shape, fields)
    net.forward_from_to(0, 1)
    assert (who(net) == "WINOGRAD") is expected


@pytest.mark.parametrize(("phase", "behind", "expected"), [(TEST, "", True), (TRAIN, "param { lr_mult: 0 }", True), (TRAIN, "param { lr_mult: 1 }", False)])
def test_fixed_weights_of_few_tiles(use, phase, behind, expected):
    use("")
    text = conv_text((1, 256, 14, 14), "num_output: 256 kernel_size: 3 pad: 1").replace('top: "y"', f'top: "y" {behind}')
    net = make_net(text, phase)
    net.forward_from_to(0, 1)
    assert (who(net) == "WINOGRAD") is expected


def test_shapes_refused_and_exact_sums(use, monkeypatch):
    use("")
    net = make((1, 64, 4, 4), "num_output: 64 kernel_size: 3 pad: 1")
    for side, pays in ((4, False), (40, True), (4, False)):
        net.blob_by_name("x").reshape(1, 64, side, side)
        net.forward_from_to(0, 1)
        found = net.engines()[0]
        assert (found["engine"] == "WINOGRAD", "WINOGRAD" not in found["refused"]) == (pays, pays), side
    net = make(*PAYS)
    for preferred, exact, engine_, refused in (
            ("", False, "WINOGRAD", {}), ("", True, "CAFFE", None), ("", False, "WINOGRAD", None), ("WINOGRAD", False, "WINOGRAD", {}),
            ("WINOGRAD", True, "CAFFE", {"WINOGRAD": "exact sums are asked for (--exact, set_exact, MINICAFFE_EXACT)"})):
        use(preferred)
        minicaffe.set_exact(exact)
        net.forward_from_to(0, 1)
        assert minicaffe.get_exact() is exact and (who(net) == "WINOGRAD") is (engine_ == "WINOGRAD")
        assert preferred == "" or (who(net), net.engines()[0]["refused"]) == (engine_, refused)
    for value, exact in ("1", True), ("0", False), ("", False):
        monkeypatch.setattr(engine, "_exact", None)
        monkeypatch.setenv("MINICAFFE_EXACT", value)
        assert minicaffe.get_exact() is exact


PAYS = ((8, 64, 56, 56), "num_output: 64 kernel_size: 3 pad: 1")    # a convolution that WINOGRAD computes by default


def test_exact_sums_by_an_option(use, tmp_path, monkeypatch, capsys):
    use("")
    minicaffe.set_exact(False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")
    (tmp_path / "net.prototxt").write_text(conv_text(*PAYS))
    for option, words in ((), "WINOGRAD"), (("--exact",), "WINOGRAD refused: exact sums are asked for"):
        assert cli.main(["time", "net.prototxt", "--iterations", "1", *option, "--verbose"]) == 0
        assert words in capsys.readouterr().out and minicaffe.get_exact() is bool(option)
