"""Precision bf16: what is rounded, what stays float32, and how near the results are to those of float32."""

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers import net_solver
from test_engine_onednn import SHAPES, STACK, TOLERANCE, conv, engines, input_layer, layer, make, numbers, step
from test_library import run

import minicaffe as caffe
from minicaffe import cli, errors
from minicaffe.engines import engine
from minicaffe.engines.onednn import library
from minicaffe.inspection import cost
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

ROOT = Path(__file__).resolve().parents[3]
STEPS = 60
NEAR = 0.02     # relative to the largest value: bf16 has 8 bits, and 2^-9 is lost at each rounding


@pytest.fixture
def bf16(onednn, monkeypatch):
    """Compute in bf16; a visible skip where the processor does not."""
    try:
        library.check_bf16()
    except errors.DependencyError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(engine, "_logged_refusals", set())
    engine.set_precision("bf16")


def rounded(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)


def assert_near(ours, exact, names=None, tolerance=NEAR):
    for name in names or exact:
        assert np.abs(ours[name] - exact[name]).max() <= tolerance * np.abs(exact[name]).max(), name


def both(text, prepare=lambda net: None, steps=2):
    found = []
    for name in ("bf16", "float32"):
        engine.set_precision(name)
        net = make(text)
        prepare(net)
        for _ in range(steps):
            step(net)
        found.append((net, numbers(net)))
    return found


@pytest.mark.parametrize("case", SHAPES)
def test_convolution(bf16, case):
    shape, fields = SHAPES[case]
    text = input_layer(shape) + conv("conv", "x", "y", fields)
    (net, ours), (_, exact) = both(text)
    assert set(engines(net)) == {"ONEDNN"}
    assert np.array_equal(ours["y data"], rounded(ours["y data"])) and not np.array_equal(ours["y data"], exact["y data"])
    assert np.array_equal(ours["x diff"], rounded(ours["x diff"]))
    assert not np.array_equal(ours["conv[0] diff"], rounded(ours["conv[0] diff"]))  # parameters' are float32
    assert_near(ours, exact)


def test_convolutions_computed_in_float32(bf16, caplog):
    (net, ours), (_, exact) = both(input_layer((3, 1, 9, 7)) + conv("conv", "x", "y", "num_output: 20 kernel_size: 3"))
    assert engines(net) == ["ONEDNN/CAFFE"]
    forward, backward, weights, last = net.layers[-1].operations()[0].primitives()
    assert forward is backward is last and (forward.engine, weights.engine) == ("ONEDNN", "CAFFE")
    assert_near(ours, exact)
    engine.set_precision("bf16")
    caplog.clear()
    engine.prefer("")
    fields = "num_output: 50 kernel_size: 5"
    text = input_layer((8, 20, 24, 24)) + conv("a", "x", "a", fields) + conv("b", "x", "b", f"{fields} engine: CAFFE") + conv(
        "c", "x", "c", "num_output: 20 kernel_size: 1") + conv("d", "c", "d", fields) + conv(
        "e", "x", "e", "num_output: 32 kernel_size: 3 group: 4")
    net = make(text)
    with caplog.at_level(logging.WARNING, engine.log.name):
        step(net)
    assert engines(net) == ["WINOGRAD", "CAFFE", "CAFFE", "WINOGRAD", "CAFFE"]
    (record,) = caplog.records
    assert record.getMessage() == ("engine ONEDNN refuses: channels that do not fill blocks of 16; MINICAFFE_ENGINE=onednn computes "
                                   "them all the same; float32 instead")


@pytest.mark.parametrize("rows, phase, param, expected", [
    (128, caffe.TRAIN, "", "CAFFE"), (129, caffe.TRAIN, "", "ONEDNN"), (1, caffe.TEST, "", "ONEDNN"),
    (1, caffe.TRAIN, "param { lr_mult: 0 }", "ONEDNN"), (1, caffe.TRAIN, "param { decay_mult: 0 }", "CAFFE")])
def test_few_rows_multiplied_in_float32(bf16, caplog, rows, phase, param, expected):
    """Unless the engine was named: rounding the weights after each update takes longer than bf16 saves."""
    text = input_layer((rows, 64)) + layer("InnerProduct", "x", "y", param + " inner_product_param { num_output: 32 }")
    def computed():
        definition = parse_text(text, caffe_pb2.NetParameter, "test.prototxt")[0]
        definition.state.phase = phase
        net = Net(definition)
        net.forward_from_to(0, 1)
        return engines(net)
    assert computed() == ["ONEDNN"]
    engine.prefer("")
    with caplog.at_level(logging.WARNING, engine.log.name):
        assert computed() == computed() == [expected]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (expected == "CAFFE")
    assert all(f"inner product of {rows} rows" in line and "float32 instead" in line for line in messages)


@pytest.mark.parametrize("kind", ["Pooling", "LRN"])
def test_layout_dependence_is_no_warning(bf16, caplog, kind):
    """A bottom in plain order is float32 already, so nothing is lost there."""
    engine.prefer("")
    net = make(input_layer((2, 16, 6, 6)) + layer(kind, "x", "y", "pooling_param { kernel_size: 2 }" * (kind == "Pooling")))
    with caplog.at_level(logging.WARNING, engine.log.name):
        step(net)
    assert engines(net) == ["CAFFE"] and "ONEDNN" in net.engines()[0]["refused"] and not caplog.records


def test_stack_concat_and_slice(bf16):
    (net, ours), (_, exact) = both(STACK)
    a, b, c, d, e = (ours[f"{name} data"] for name in "abcde")
    for name in "abcde":
        assert net.blob_by_name(name).layout_of_data().nbytes < 4 * 2 * 32 * 16 * 16, name  # two bytes each, channels padded
        assert np.array_equal(ours[f"{name} data"], rounded(ours[f"{name} data"])), name
    assert np.array_equal(c, rounded(a + b)) and np.array_equal(d, np.maximum(c, 0))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(d, [(0, 0), (0, 0), (0, 1), (0, 1)]), (3, 3), (2, 3))[:, :, ::2, ::2]
    assert np.array_equal(e, windows.max((-1, -2)))
    assert_near(ours, exact, [f"{name} data" for name in "abcdey"])
    text = (input_layer((2, 3, 9, 7)) + conv("one", "x", "a", "num_output: 16 kernel_size: 3 pad: 1")
            + conv("two", "x", "b", "num_output: 32 kernel_size: 3 pad: 1") + layer("Concat", "a b", "c")
            + 'layer { name: "slice" type: "Slice" bottom: "c" top: "d" top: "e" slice_param { slice_point: 32 } }'
            + conv("three", "d", "f", "num_output: 16 kernel_size: 1") + conv("four", "e", "g", "num_output: 16 kernel_size: 1")
            + layer("Eltwise", "f g", "y"))
    (net, ours), (_, exact) = both(text)
    joined = np.concatenate([ours["a data"], ours["b data"]], 1)
    assert np.array_equal(ours["c data"], joined)
    assert np.array_equal(ours["d data"], joined[:, :32]) and np.array_equal(ours["e data"], joined[:, 32:])
    assert np.array_equal(ours["c diff"], np.concatenate([ours["d diff"], ours["e diff"]], 1))
    assert net.blob_by_name("c").layout_of_data() is not None
    assert_near(ours, exact)


CONV3 = "num_output: 16 kernel_size: 3"


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_eltwise(bf16, operation):
    text = input_layer((2, 16, 6, 6)) + "".join(conv(name, "x", name, CONV3) for name in "abc")
    (net, ours), _ = both(text + layer("Eltwise", "a b c", "y", f"eltwise_param {{ operation: {operation} }}"))
    a, b, c = (ours[f"{name} data"] for name in "abc")
    found = {"SUM": a + b + c, "PROD": a * b * c, "MAX": np.maximum(np.maximum(a, b), c)}[operation]
    assert net.blob_by_name("y").layout_of_data() is not None
    assert np.array_equal(ours["y data"], rounded(found))


@pytest.mark.parametrize("behind", [
    layer("LRN", "a", "y", "lrn_param { alpha: 0.5 k: 2 }"), layer("Pooling", "a", "y", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }"),
    layer("Eltwise", "a a", "b", "eltwise_param { operation: SUM coeff: 2 coeff: 0.5 }") + conv("end", "b", "y", "num_output: 16 kernel_size: 1")])
def test_layers_behind_a_convolution(bf16, behind):
    (_, ours), (_, exact) = both(input_layer((2, 3, 9, 7)) + conv("conv", "x", "a", "num_output: 32 kernel_size: 3 pad: 1") + behind)
    assert_near(ours, exact)


def test_special_values_and_updates(bf16):
    net = make(input_layer((1, 16, 4, 4)) + conv("conv", "x", "a", "num_output: 16 kernel_size: 1") + layer("ReLU", "a", "b")
               + layer("Eltwise", "a b", "y"))
    x = net.blob_by_name("x")
    for i, value in enumerate((np.nan, np.inf, np.float32(3.4e38))):    # the last is infinite when rounded
        x.data[0, :, 0, i] = value
        net.layers[1].blobs[0].data[...] = 1
    net.forward_from_to(0, len(net.layers) - 1)
    for name in "aby":
        values = net.blob_by_name(name).cpu_data[0, :, 0]
        assert np.isnan(values[:, 0]).all() and np.isposinf(values[:, 1:3]).all() and np.isfinite(values[:, 3]).all()
    # Steps much smaller than the distance of neighbours in bf16 add up.
    net = make(STACK)
    blob = net.layers[1].blobs[0]
    before = blob.cpu_data.copy()
    for _ in range(3):
        net.clear_param_diffs()
        step(net)
        blob.diff[...] = 1e-6
        blob.update()
    assert np.allclose(blob.cpu_data, before - np.float32(3e-6), rtol=0, atol=1e-7)
    assert not np.array_equal(blob.cpu_data, rounded(blob.cpu_data))


@pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")
def test_precision_change_converts_kept_weights(bf16):
    net = make(STACK)
    step(net)
    engine.set_precision("float32")
    net.blob_by_name("y").diff[...] = 0
    net.forward_from_to(2, len(net.layers) - 1)     # from a, which is in bf16
    reference = make(STACK)
    reference.blob_by_name("a").data[...] = net.blob_by_name("a").cpu_data
    reference.forward_from_to(2, len(reference.layers) - 1)
    values = reference.blob_by_name("y").cpu_data
    assert np.abs(net.blob_by_name("y").cpu_data - values).max() <= TOLERANCE * np.abs(values).max()


@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
@pytest.mark.parametrize("steps, sequences, size", [(5, 11, 33), (3, 1, 7), (4, 3, 64), (6, 2, 40)])
def test_recurrent_layers_round_products(bf16, kind, steps, sequences, size):
    """The state before each step and its weights, as the products that all steps have in common do."""
    fields = f'recurrent_param {{ num_output: {size} weight_filler {{ type: "uniform" min: -0.3 max: 0.3 }} }}'
    text = input_layer((steps, sequences, 5)) + input_layer((steps, sequences), "cont") + layer(kind, "x cont", "y", fields)
    (net, ours), (_, exact) = both(text, lambda net: net.blob_by_name("cont").data.fill(1), steps=1)
    assert_near(ours, exact)
    if kind == "RNN":
        w, b, u, v, o = (blob.cpu_data for blob in net.layers[-1].blobs)
        h, x = np.zeros((sequences, size)), net.blob_by_name("x").cpu_data
        for t in range(steps):
            h = np.tanh(rounded(x[t]) @ rounded(w).T + b + rounded(h) @ rounded(u).T)
            y = np.tanh(rounded(h) @ rounded(v).T + o)
            # where a state is as near to two numbers of bf16 either may be taken
            assert np.abs(y - ours["y data"][t]).max() <= 2e-4 + np.abs(y - exact["y data"][t]).max() / 4, t


@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_recurrent_layers_follow_sequence_count(bf16, kind):
    fields = 'recurrent_param { num_output: 16 weight_filler { type: "uniform" min: -0.3 max: 0.3 } }'
    first, *nets = (make(input_layer((4, n, 32)) + input_layer((4, n), "cont") + layer(kind, "x cont", "y", fields)) for n in (2, 7, 3))
    step(first)
    for net in nets:
        for ours, theirs in zip(first.layers[-1].blobs, net.layers[-1].blobs):
            ours.data[...], ours.diff[...] = theirs.cpu_data, 0
        for ours, theirs in zip(first.input_blobs, net.input_blobs):
            ours.reshape(*theirs.shape)
            ours.data[...] = theirs.cpu_data
        for each in (first, net):
            step(each)
        found = numbers(first)
        for name, values in numbers(net).items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5 * np.abs(values).max(), err_msg=name)


NORMS = (input_layer((4, 16, 14, 14)) + conv("conv1", "x", "a", "num_output: 20 kernel_size: 3")
         + layer("BatchNorm", "a", "a") + layer("Scale", "a", "a", "scale_param { bias_term: true }")
         + layer("ReLU", "a", "a") + conv("conv2", "a", "y", "num_output: 16 kernel_size: 3"))


def test_batch_norm_stays_in_bf16(bf16):
    (one, ours), (two, exact) = both(NORMS)
    for a, b in zip(*(next(each for each in net.layers if each.type == "BatchNorm").blobs for net in (one, two)), strict=True):
        assert np.abs(a.cpu_data - b.cpu_data).max() <= 3 * NEAR * np.abs(b.cpu_data).max()
    for name, values in exact.items():
        distance = np.linalg.norm(ours[name] - values)      # not the largest: rounding puts some values on ReLU's other side
        assert distance <= 3 * NEAR * max(np.linalg.norm(values), 4), name      # conv1's bias has no gradient but by rounding
    engine.set_precision("bf16")
    net = make(NORMS)
    step(net)
    a = net.blob_by_name("a")
    before = a.data_memory.reorders, a.diff_memory.reorders
    step(net)
    assert next(row["fused"] for row in net.engines() if row["layer"] == "BatchNorm_a") == ["Scale_a", "ReLU_a"]
    assert (a.data_memory.reorders, a.diff_memory.reorders) == before
    assert np.array_equal(a.cpu_data, rounded(a.cpu_data)) and np.array_equal(a.cpu_diff, rounded(a.cpu_diff))


SIDES = "num_output: 64 kernel_size: 1 bias_term: false"     # a bias before BatchNorm has no gradient but by rounding
WIDE = input_layer((2, 64, 64, 48)) + conv("first", "x", "a", SIDES)


@pytest.mark.parametrize("middle", [
    conv("depthwise", "a", "b", "num_output: 64 group: 64 kernel_size: 3 pad: 1"),
    conv("depthwise", "a", "b", "num_output: 64 group: 64 kernel_size: 3 pad: 1 stride: 2"),
    layer("BatchNorm", "a", "b"), layer("BatchNorm", "a", "b", "batch_norm_param { use_global_stats: true }"),
    conv("other", "x", "c", SIDES) + layer("Concat", "a c", "b"), layer("Pooling", "a", "b", "pooling_param { pool: AVE kernel_size: 2 }")],
    ids=["depthwise", "stride", "statistics", "sums", "Concat", "Pooling"])
def test_layers_keep_convolutions_layout(bf16, middle):
    """Blocks of 16 channels, or by AMX channels last, which loops over channels read in parts that a cache keeps."""
    (net, ours), (_, exact) = both(WIDE + middle + conv("last", "b", "y", SIDES), steps=1)
    for name in exact:
        assert np.linalg.norm(ours[name] - exact[name]) <= NEAR * max(np.linalg.norm(exact[name]), 4), name
    engine.set_precision("bf16")
    net = make(WIDE + middle + conv("last", "b", "y", SIDES))
    net.forward_from_to(0, len(net.layers) - 1)
    blobs = [net.blob_by_name(name) for name in "ab"]
    assert all(blob.layout_of_data() is not None for blob in blobs)
    before = [blob.data_memory.reorders for blob in blobs]
    net.forward_from_to(0, len(net.layers) - 1)
    assert [blob.data_memory.reorders for blob in blobs] == before


def test_images_normalized_one_by_one(bf16):
    """MVN sees the channels of each image as channels of their own, which it reads in plain order."""
    (_, ours), (_, exact) = both(WIDE + layer("MVN", "a", "b") + conv("last", "b", "y", SIDES), steps=1)
    for name in exact:
        assert np.linalg.norm(ours[name] - exact[name]) <= 2 * NEAR * max(np.linalg.norm(exact[name]), 4), name


@pytest.mark.parametrize("plan", [None, "memory"])
def test_rectified_parts_of_a_concat(bf16, plan):
    """With a plan Concat computes the gradients of the ReLUs; forward alone, the convolutions may write into its top."""
    text = (WIDE + layer("ReLU", "a", "a") + conv("other", "x", "c", SIDES) + layer("ReLU", "c", "c") + layer("Concat", "a c", "b")
            + conv("last", "b", "y", SIDES))
    found = []
    for precision in ("bf16", "float32"):
        engine.set_precision(precision)
        net = make(text, plan=plan)
        step(net)
        found.append({"x": net.blob_by_name("x").cpu_diff.copy(), "y": net.blob_by_name("y").cpu_data.copy()}
                     | {f"{one.name}[{i}]": blob.cpu_diff.copy() for one in net.layers for i, blob in enumerate(one.blobs)})
    ours, exact = found
    for name, values in exact.items():
        assert np.linalg.norm(ours[name] - values) <= 2 * NEAR * np.linalg.norm(values), name
    engine.set_precision("bf16")
    test = make(text, plan=plan, phase=caffe.TEST)
    test.forward_from_to(0, len(test.layers) - 1)
    assert np.array_equal(test.blob_by_name("y").cpu_data, ours["y"])


def accuracy(name, seed):
    text = (ROOT / "models" / name / "net.prototxt").read_text().replace("models/data/", f"{ROOT}/models/data/")
    solver = net_solver(text, base_lr=0.02, weight_decay=0.0005, random_seed=seed, test_iter=[10], test_interval=1000, test_initialization=False)
    solver.step(STEPS)
    for values in (blob.cpu_data for blob in solver.net.learnable_params):
        assert values.dtype == np.float32
    outputs = solver.test(0)["outputs"]
    return next(output["value"] for output in outputs if output["name"] == "accuracy")


@pytest.mark.slow(5)
@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_bf16_training_accuracy(bf16, name):
    found = {}
    for precision in ("float32", "bf16"):
        engine.set_precision(precision)
        found[precision] = [accuracy(name, seed) for seed in (1, 2, 3)]
    assert found["float32"] != found["bf16"]
    assert abs(np.mean(found["bf16"]) - np.mean(found["float32"])) <= max(np.ptp(found["float32"]), 0.01), found


def test_refused_precisions(bf16, monkeypatch):
    engine.prefer("CAFFE")
    with pytest.raises(errors.ConfigError, match="only engine CUDNN or ONEDNN computes in bf16, and MINICAFFE_ENGINE is caffe; unset one"):
        caffe.set_precision("bf16")
    monkeypatch.setattr(library, "AVX512_BF16", 0x1000e7)
    with pytest.raises(errors.DependencyError, match="precision bf16 needs a processor with AVX512_BF16 or AMX; use float32"):
        library.check_bf16()
    with pytest.raises(errors.ConfigError, match="precision: must be float32 or tf32 or bf16, got 'half'"):
        caffe.set_precision("half")
    monkeypatch.setattr(engine, "_precision", None)
    monkeypatch.setenv("MINICAFFE_PRECISION", "bf32")
    with pytest.raises(errors.ConfigError, match="MINICAFFE_PRECISION: must be float32 or tf32 or bf16, got 'bf32'"):
        caffe.get_precision()


def test_bf16_without_library(tmp_path):
    code = "try:\n    net.forward()\nexcept caffe.errors.DependencyError as error:\n    print(error)"
    out, _ = run(code, tmp_path, MINICAFFE_PRECISION="bf16", MINICAFFE_ONEDNN="off", MINICAFFE_ENGINE="")
    assert "oneDNN is switched off by MINICAFFE_ONEDNN=off" in out


@pytest.mark.no_plan("minicaffe time runs backward what a net by itself would not, and has no plan")
def test_the_environment_and_the_option(bf16, tmp_path, monkeypatch, capsys):
    out, _ = run("net.forward(); print(caffe.get_precision(), net.engines()[0]['engine'])", tmp_path, MINICAFFE_PRECISION="bf16",
                 MINICAFFE_ENGINE="")
    assert out.split() == ["bf16", "ONEDNN"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")
    assert cli.main(["time", "net.prototxt", "--iterations", "1", "--precision", "bf16"]) == 0
    assert caffe.get_precision() == "bf16"
    assert cli.main(["time", "net.prototxt", "--iterations", "1", "--precision", "half"]) == 2
    assert "precision: must be float32 or tf32 or bf16, got 'half'" in capsys.readouterr().err


def test_bytes_of_step_by_element(bf16):
    fields, found = "num_output: 32 kernel_size: 3 bias_term: false", {}
    for name in "float32", "bf16":
        engine.set_precision(name)
        net = make(input_layer((4, 16, 12, 12)) + conv("one", "x", "y", fields) + conv("two", "y", "z", fields))
        for _ in range(2):
            net.forward_from_to(0, 2)
        found[name] = cost.step(net.nodes[-1:], "forward"), net.nodes[-1].bottoms[0], cost.of_node(net.nodes[-1], "forward")
    (wide, _, plain), (narrow, y, _) = found["float32"], found["bf16"]
    assert y.layout_of_data().dtype != y.dtype and wide == plain
    assert narrow.flops == wide.flops and narrow.bytes <= wide.bytes - 2 * y.count
