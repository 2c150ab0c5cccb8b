"""A net's schedule: when it is compiled again, what interrupts it, and how it is shown."""

import numpy as np
import pytest
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe import memory
from minicaffe.engines import engine
from minicaffe.errors import Error, RecycledError, ShapeError
from minicaffe.inspection.schedule_table import ScheduleRow
from minicaffe.layer import Layer, layer_class, register_layer
from minicaffe.layers.eltwise import EltwiseLayer
from minicaffe.net.run import BEFORE_BACKWARD, BEFORE_FORWARD

ALONE = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}"
  convolution_param {{ num_output: 16 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
"""
CONV = ALONE + 'layer {{ name: "{0}_relu" type: "ReLU" bottom: "{0}" top: "{0}" }}\n'
IP = "inner_product_param { num_output: 7 weight_filler { type: \"xavier\" } }"
LOSS = layer_text("EuclideanLoss", "loss", "b a")
INPUT = 'force_backward: true ' + layer_text("Input", "x", "", more="input_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } }")
TWO = CONV.format("a", "x") + CONV.format("b", "a") + LOSS
NET = 'name: "small" ' + INPUT + TWO
class Twice(Layer):
    fail, adds = False, False

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward_cpu(self, bottom, top):
        if Twice.fail:
            raise ArithmeticError("no more")
        top[0].data[...] = (top[0].data / 2 if Twice.adds else bottom[0].data) + bottom[0].data

    def backward_cpu(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * top[0].diff


class Growing(Layer):
    """A layer, or a source, whose top has other shapes than its `reshape` says."""

    def reshape(self, bottom, top):
        top[0].reshape(1, 16, 8, 8)

    def forward_cpu(self, bottom, top):
        Growing.count += 1
        top[0].reshape(1 + Growing.count % 3, 16, 8, 8)
        top[0].data[...] = Growing.count

    def backward_cpu(self, top, propagate_down, bottom):
        pass


class Careless(EltwiseLayer):
    """Changes the plan of its net in the middle."""

    def forward_cpu(self, bottom, top):
        super().forward_cpu(bottom, top)
        if Careless.net is not None:
            Careless.net.set_plan(None, [], True)


class OwnConvolution(layer_class("Convolution")):
    def forward_cpu(self, bottom, top):
        super().forward_cpu(bottom, top)
        top[0].data[...] -= 1


class OwnConcat(layer_class("Concat")):
    def forward_cpu(self, bottom, top):
        super().forward_cpu(bottom, top)
        top[0].data[...] += bottom[0].data.max()


for own in Twice, Growing, Careless, OwnConvolution, OwnConcat:
    register_layer(own.__name__, own)


@pytest.fixture(autouse=True)
def own_layers():
    Twice.fail, Twice.adds, Growing.count, Careless.net = False, False, 0, None


@pytest.fixture
def winograd():
    engine.prefer("WINOGRAD")


def made(text, plan="memory", phase=caffe.TRAIN):
    caffe.set_random_seed(3)
    net = make_net(INPUT + text if '"x" type' not in text else "force_backward: true " + text, phase, plan=plan)
    if net.nodes[0].type == "Input":
        net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal(net.blobs["x"].shape)
    return net


def run(net):
    return net.forward_from_to(0, len(net.nodes) - 1)


def gradients(net):
    net.clear_param_diffs()
    loss = net.forward_backward()
    return [loss, *(blob.cpu_diff.copy() for blob in net.learnable_params)]


def same(found, wanted):
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted):
        np.testing.assert_array_equal(ours, theirs)


def freed(net):
    with memory.record() as events:
        gradients(net)
    return [event.name for event in events if event.kind == "head" and event.detail.endswith("by recycle") and "scratch" not in event.name]


def test_user_layer_in_the_middle():
    text = CONV.format("a", "x") + layer_text("Twice", "own", "a") + CONV.format("b", "own") + LOSS
    net, plain = made(text), made(text, None)
    steps = [row.layers for row in net.schedule().rows if row.direction == "forward"]
    assert ["own"] in steps and not any("own" in layers for layers in steps if len(layers) > 1)
    for _ in range(3):
        same(gradients(net), gradients(plain))
    Twice.fail = True
    with pytest.raises((Error, ArithmeticError), match="no more"):
        gradients(net)
    Twice.fail = False
    same(gradients(net), gradients(plain))
    assert freed(net)
    Twice.adds = True       # it reads its previous top
    net, plain = made(text), made(text, None)
    for _ in range(3):
        same(gradients(net), gradients(plain))


@pytest.mark.parametrize("phase", [caffe.TEST, caffe.TRAIN])
def test_shape_changed_during_run(onednn, phase):
    """What was fused for the former shape is computed layer by layer, with tops of the new one."""
    text = (INPUT.replace("force_backward: true", "") + layer_text("Growing", "g", "x") + ALONE.format("a", "g")
            + layer_text("ReLU", "b", "a") + CONV.format("c", "b") + layer_text("Flatten", "d", "c"))
    seen = []
    for plan in (None, "memory"):
        Growing.count, net = 0, made(text, plan, phase)
        assert plan is None or phase == caffe.TRAIN or ["a", "b"] in [row.layers for row in net.schedule().rows] or caffe.common.caffe.mode == "gpu"
        for _ in range(5):
            run(net)
            assert net.blobs["d"].shape[0] == 1 + Growing.count % 3
            seen.append(net.blobs["d"].cpu_data.copy())
    for ours, theirs in zip(seen[:5], seen[5:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_source_with_changing_shape():
    """The schedule is compiled behind the sources: a plan holds in each iteration."""
    text = layer_text("Growing", "x") + CONV.format("a", "x") + CONV.format("b", "a") + CONV.format("c", "b") + LOSS.replace('"b"', '"c"')
    net, plain = made(text), made(text, None)
    for count in range(4):
        found = []
        for each in (net, plain):
            Growing.count = count
            found.append(gradients(each))
        same(*found)
        Growing.count = count
        assert len(freed(net)) > 3
    for plan in "memory", None:
        net = made(layer_text("Growing", "x") + layer_text("Power", "p", "x"), plan, caffe.TEST)
        for _ in range(3):
            run(net)
            np.testing.assert_array_equal(net.blobs["p"].data, np.full((1 + Growing.count % 3, 16, 8, 8), Growing.count))


def test_shape_changed_before_backward():
    net, plain = made(TWO), made(TWO, None)
    values, last = net.blobs["x"].cpu_data.copy(), len(net.nodes) - 1
    for shape, reshape in ((3, 16, 8, 8), lambda: None), ((2, 16, 4, 16), net.reshape_all), ((3, 16, 8, 8), net.reshape_all):
        net.forward_from_to(0, last)
        net.blobs["x"].reshape(*shape)
        reshape()
        reshape()   # which changes nothing more, and the forward is still missing
        with pytest.raises(Error, match="run forward before backward"):
            net.backward_from_to(last, 0)
    net.blobs["x"].reshape(2, 16, 8, 8)
    net.blobs["x"].data[...] = values
    same(gradients(net), gradients(plain))


def test_hooks_come_and_go():
    net, plain, seen = made(TWO), made(TWO, None), []
    wanted = gradients(plain)
    same(gradients(net), wanted)
    net.clear_param_diffs()
    run(net)
    net.add_hook(BEFORE_BACKWARD, seen.append)      # in between
    assert "layer by layer, as callbacks run between layers" in str(net.schedule())
    net.backward_from_to(len(net.nodes) - 1, 0)
    assert seen == list(reversed(range(len(net.nodes)))) and freed(net) == []
    same([blob.cpu_diff for blob in net.learnable_params], wanted[1:])
    net.remove_hook(BEFORE_BACKWARD, seen.append)
    assert net.schedule().observed is None and freed(net)

    def once(index):
        net.remove_hook(BEFORE_BACKWARD, once)

    net.add_hook(BEFORE_BACKWARD, once)
    net.add_hook(BEFORE_BACKWARD, seen.append)
    seen.clear()
    same(gradients(net), wanted)
    assert seen == list(reversed(range(len(net.nodes))))


def test_settings_compile_it_again(on_cpu):
    """The engine, the plan, in the middle of a run, too, and the blobs that it keeps."""
    net = made(TWO)
    for name in ("CAFFE", "WINOGRAD", "CAFFE"):
        engine.prefer(name)
        for _ in range(2):
            rows = [row for row in net.schedule().rows if row.types[0] == "Convolution"]
            assert {row.engine for row in rows} == {name} and rows[0].layers == (["a"] if name == "CAFFE" else ["a", "a_relu"])
            gradients(net)
    text = CONV.format("a", "x") + CONV.format("b", "a") + layer_text("Careless", "c", "b x") + LOSS.replace('"b"', '"c"')
    net, plain = made(text), made(text, None)
    wanted, Careless.net = gradients(plain), net
    same(gradients(net), wanted)
    assert net.fused() is not None
    Careless.net = None
    run(net)
    net.set_plan("memory", [], True)
    net.clear_param_diffs()
    net.backward_from_to(len(net.nodes) - 1, 0)
    same([blob.cpu_diff for blob in net.learnable_params], wanted[1:])
    net = made(CONV.format("a", "x") + CONV.format("b", "a") + CONV.format("c", "b"), "memory", caffe.TEST)
    for kept in "a", "b":
        net.set_plan("memory", [*net.output_blobs, net.blobs[kept]], False)
        for _ in range(2):      # the first compiles it again where an engine refuses to compute layers together
            run(net)
        assert [name for name in "ab" if net.blobs[name].data_memory.head == memory.SyncedHead.RECYCLED] == ["b" if kept == "a" else "a"]


def test_error_reveals_no_other_blob(on_cpu):
    """The top of the failed layer holds no bytes of another blob; one in place has its bottom."""
    text = layer_text("Input", "i", more="input_param { shape { dim: 4 } }") + layer_text(
        "Embed", "e", "i", more='embed_param { num_output: 64 input_dim: 8 weight_filler { type: "gaussian" } }')
    text += "".join(layer_text("InnerProduct", top, bottom, more=IP.replace("7", "64")) for top, bottom in ("pe", "qp", "rq"))
    net = make_net(text, caffe.TEST, plan="memory")
    run(net)
    net.blobs["i"].data[...] = 99
    with pytest.raises(Error, match="99"):
        run(net)
    with pytest.raises(RecycledError):
        net.blobs["e"].data  # noqa: B018
    net.blobs["i"].data[...] = 1
    run(net)
    text = (INPUT.replace("dim: 2", "dim: 1").replace("force_backward: true", "") + layer_text("Growing", "g", "x") + ALONE.format("a", "x")
            + layer_text("Bias", "plus", "a g", "a", "bias_param { axis: 0 }") + CONV.format("b", "a"))
    net, plain = (made(text, plan, caffe.TEST) for plan in ("memory", None))
    for each in (net, plain):
        Growing.count = 0
        each.blobs["x"].data[...] = 2
        with pytest.raises(ShapeError, match="layer 'plus'"):
            run(each)
    assert plain.blobs["a"].data.any()
    np.testing.assert_array_equal(net.blobs["a"].data, plain.blobs["a"].data)


@pytest.mark.parametrize("phase", [caffe.TEST, caffe.TRAIN])
@pytest.mark.parametrize("plan", [None, "memory"])
def test_concat_slices_after_error(on_cpu, winograd, phase, plan):
    """A run of another kind after it copies all of them: what was written before the error is not of its batch."""
    text = (CONV.format("a", "x") + layer_text("Input", "i", more="input_param { shape { dim: 2 } }")
            + layer_text("BatchReindex", "rows", "x i", more="propagate_down: false propagate_down: false")
            + CONV.format("b", "x") + layer_text("Concat", "join", "a b"))
    net, plain = made(text, "memory", phase), made(text, None, phase)
    run(net)
    assert "join" in net.fused()[net.layer_index("a")]
    net.blobs["i"].data[...] = 99
    with pytest.raises(Error, match="99"):
        run(net)
    with pytest.raises(RecycledError, match="data of blob 'a'"):     # they were in the top of the Concat
        net.blobs["a"].data  # noqa: B018
    net.blobs["i"].data[...] = 0
    for each in (net, plain):
        each.blobs["x"].data[...] = 1
    if plan is None:
        net.set_plan(None, net.output_blobs, phase == caffe.TRAIN)
    net.add_hook(BEFORE_FORWARD, lambda index: None)
    run(net), run(plain)
    np.testing.assert_allclose(net.blobs["join"].data, plain.blobs["join"].data, 1e-4, 1e-4)


def test_error_ends_fused_run(onednn):
    """A run layer by layer after it applies the ReLU once."""
    text = CONV.format("a", "x").replace('type: "ReLU"', 'type: "ReLU" relu_param { negative_slope: 0.5 }')
    net, plain = made(text, None, caffe.TEST), made(text, None, caffe.TEST)
    run(net)
    assert net.fused()[1] == ["a_relu"]
    weights = net.learnable_params[0].cpu_data.copy()
    net.learnable_params[0].data_memory.recycle()
    with pytest.raises(RecycledError, match="layer 'a'"):
        net.forward_from_to(0, 2)
    net.learnable_params[0].data_memory.renew()
    net.learnable_params[0].data[...] = weights
    for each in (net, plain):
        each.add_hook(BEFORE_FORWARD, lambda index: None)
        each.forward_from_to(0, 2)
    np.testing.assert_allclose(net.blobs["a"].data, plain.blobs["a"].data, 1e-4, 1e-4)


@pytest.mark.parametrize("text", [CONV.format("own", "x").replace('"Convolution"', '"OwnConvolution"'),
                                  CONV.format("a", "x") + CONV.format("b", "x") + layer_text("OwnConcat", "own", "a b")])
@pytest.mark.parametrize("plan", ["memory", None])
def test_user_class_not_fused(text, plan, on_cpu, winograd):
    """It changes its top behind the forward of the built-in class, and reads its bottoms."""
    net, plain = made(text, plan, caffe.TEST), made(text, None, caffe.TEST)
    plain.add_hook(BEFORE_FORWARD, lambda index: None)
    run(net), run(plain)
    assert net.fused()[net.layer_index("own")] == [] and not any("own" in names for names in net.fused())
    np.testing.assert_allclose(net.output_blobs[0].data, plain.output_blobs[0].data, 1e-4, 1e-4)


@pytest.mark.no_plan("a plan frees what has the layouts")
def test_engines_and_layouts_of_run(onednn):
    """What depends on the layout of a bottom is not known before."""
    text = CONV.format("a", "x") + layer_text("Pooling", "p", "a", more="pooling_param { kernel_size: 2 }") + layer_text("LRN", "n", "p")
    net = made(text, None, caffe.TEST)
    before = [(row.engine, row.layout) for row in net.schedule().rows]
    assert before == [(None, None), ("ONEDNN", None), (None, None), (None, None)]
    run(net)
    for row in net.schedule().rows[1:]:
        blob = net.nodes[net.layer_index(row.layers[0])].tops[0]
        assert row.engine and bool(row.layout) == (blob.data_memory.layout() is not None) and "bf16" not in str(row.layout)


@pytest.mark.no_plan("compares a net without one")
def test_inputs_of_gradientless_layers_end_early(on_cpu):
    """Nothing is kept for them, and what has no writer in the net is not freed."""
    text = layer_text("InnerProduct", "a", "x", more="param { lr_mult: 0 } param { lr_mult: 0 } " + IP) + layer_text("TanH", "b", "a")
    text += layer_text("InnerProduct", "c", "b", more=IP) + layer_text("ArgMax", "aside", "c") + layer_text("Reduction", "d", "c", more="loss_weight: 1")
    net = make_net("state { phase: TRAIN } " + INPUT.replace("force_backward: true", "") + text, plan="memory")
    frees = {(row.direction, *row.layers): sorted(row.frees) for row in net.schedule().rows if row.frees}
    assert frees == {("forward", "b"): ["a data"], ("backward", "d"): ["c data"], ("backward", "c_c_0_split"): ["c_c_0_split_1 diff"],
                     ("backward", "c"): ["b data", "c diff"]}


def test_bytes_of_listings(on_cpu):
    """A fused backward writes the diffs of the first layer's bottom, and of parameters: a mean, a variance and a factor here."""
    text = layer_text("InnerProduct", "a", "x", more=IP) + layer_text("BatchNorm", "n", "a", "a") + layer_text("ReLU", "r", "a", "a")
    net = made(text + layer_text("Reduction", "loss", "a", more="loss_weight: 1"), None)
    row = next(row for row in net.schedule().rows if row.direction == "backward" and row.layers == ["n", "r"])
    assert row.writes == 4 * (2 * 7 + 7 + 7 + 1)
    # Empty blobs have no memory that a plan could free
    text = INPUT.replace("dim: 2", "dim: 0") + layer_text("Power", "a", "x") + layer_text("Exp", "b", "a") + layer_text("TanH", "c", "b")
    rows = make_net("state { phase: TEST } " + text, plan="memory").schedule().rows
    assert len(rows) == 4 and not any(row.frees or row.saves or row.live for row in rows)
    # Shared parameters count once
    text = "".join(layer_text("InnerProduct", name, "x", more='param { name: "w" } inner_product_param { num_output: 3 bias_term: false }') for name in "ab")
    assert made(text).schedule().parameters == 4 * 3 * 16 * 64
    text = layer_text("Parameter", "w", "", more="parameter_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } }")
    listing = made(text + layer_text("Eltwise", "sum", "x w"), None, caffe.TEST).schedule()
    assert listing.parameters == 8192 and {row.live for row in listing.rows} == {2 * 8192}      # x and sum


def test_events_of_fused_run(on_cpu):
    """Each layer has its events, in the order in which a run layer by layer has them; only losses have a value."""
    text = layer_text("InnerProduct", "ip", "x", more=IP) + layer_text("BatchNorm", "norm", "ip", "ip")
    text += layer_text("Scale", "scale", "ip", "ip") + layer_text("ReLU", "relu", "ip", "ip") + layer_text("Reduction", "loss", "ip", more="loss_weight: 1")
    net = made(text, None)
    with memory.record() as events:
        loss = net.forward_backward()
    assert net.fused()[2] == ["scale", "relu"]
    found = [(event.kind, event.name, event.detail) for event in events if event.kind in ("begin", "end", "loss")]
    alone, together = [("begin", "forward"), ("end", "forward")], [("begin", "forward"), ("end", "forward with norm")]
    backward, with_norm = [("begin", "backward"), ("end", "backward")], [("begin", "backward"), ("end", "backward with norm")]
    wanted = [("x", alone), ("ip", alone), ("norm", alone), ("scale", together), ("relu", together), ("loss", alone), ("loss", [("loss", repr(loss))]),
              ("loss", backward), ("relu", with_norm), ("scale", with_norm), ("norm", backward), ("ip", backward), ("x", backward)]
    assert found == [(kind, name, detail) for name, pairs in wanted for kind, detail in pairs]


@pytest.mark.no_plan("a forward without a plan comes after one with it")
def test_backward_after_forwards_that_had_none(on_cpu, winograd):
    """The first fuses the ReLU into the Convolution for no backward, the second for one in which the ReLU has a step of its own."""
    net, plain = (made(CONV.format("a", "x") + LOSS.replace('bottom: "b"', 'bottom: "x"'), plan, caffe.TEST) for plan in ("memory", None))
    relu, last = net.layer_index("a_relu"), len(net.nodes) - 1
    run(net)
    assert "a_relu" in net.fused()[net.layer_index("a")]
    with pytest.raises(Error, match="layer 'a_relu'.*was fused into an earlier layer, which saved nothing for its backward"):
        net.backward_layer(relu)
    net.set_plan(None, net.output_blobs, True)
    plain.add_hook(BEFORE_FORWARD, lambda index: None)
    for each in (net, plain):
        each.clear_param_diffs()
        run(each)
        each.backward_from_to(last, 0)
    assert "a_relu" in net.fused()[net.layer_index("a")]
    for blob, other in zip([*net.learnable_params, net.blobs["x"]], [*plain.learnable_params, plain.blobs["x"]], strict=True):
        np.testing.assert_allclose(blob.diff, other.diff, 1e-3, 1e-3 * np.abs(other.diff).max())


def test_large_sum_compiled_once(on_cpu):
    """It computes no ReLU, so none is fused."""
    net = made(CONV.format("a", "x") + layer_text("Eltwise", "s", "a a a a a") + layer_text("ReLU", "r", "s", "s") + LOSS.replace('"b"', '"s"'))
    assert ["s"] in [row.layers for row in net.schedule().rows]
    gradients(net)


@pytest.mark.no_plan("compares a net without one")
@pytest.mark.parametrize("keep", ["a", "b", "c", "d"])
def test_kept_or_viewed_blobs_written(keep, on_cpu, onednn):
    """A Convolution with a ReLU out of place, and two with a Concat, in phase TEST; a view of a blob or `keep` rule that out."""
    text = ALONE.format("a", "x") + layer_text("ReLU", "b", "a") + CONV.format("c", "b") + CONV.format("d", "b") + layer_text("Concat", "e", "c d")
    plain, fused = made(text, None, caffe.TEST), made(text, "memory", caffe.TEST)
    steps = [row.layers + [row.part_of] * (row.part_of is not None) for row in fused.schedule().rows]
    assert ["a", "b"] in steps and ["c", "c_relu", "e"] in steps and ["d", "d_relu", "e"] in steps
    run(plain), run(fused)
    view = fused.blobs[keep].data_memory.renew() or fused.blobs[keep].data
    view[...] = 7
    run(fused)
    np.testing.assert_allclose(view, plain.blobs[keep].data, rtol=1e-5, atol=1e-5)
    kept = make_net(INPUT + text, caffe.TEST, plan="memory", keep=[keep])
    kept.share_with(plain)
    kept.blobs["x"].data[...] = plain.blobs["x"].data
    for _ in range(2):
        run(kept)
        for name in keep, "e":
            np.testing.assert_allclose(kept.blobs[name].data, plain.blobs[name].data, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", ["memory", None])
def test_when_gradients_are_given(plan):
    """Each as soon as it is complete, or with others up to 2^19 elements; then what has no gradient; all at once of an observed run. Sources,
    also one behind layers that have bottoms, are not run twice.
    """
    text = "".join(layer_text("InnerProduct", *names, more=IP.replace("7", outputs)) for *names, outputs in
                   [("a", "x", "600"), ("b", "a", "900"), ("c", "b", "3"), ("aside", "x", "2")])
    text += layer_text("Silence", "out", "aside", "") + layer_text("Reduction", "loss", "c", more="loss_weight: 1")
    text += layer_text("DummyData", "noise", more='dummy_data_param { shape { dim: 2 } data_filler { type: "gaussian" } }')
    net, calls = make_net(INPUT.replace("force_backward: true", "") + text, caffe.TRAIN, plan=plan), []

    def take(which, part, last):
        calls.append((which, last))
        return []

    small = [([4, 5], False), ([2, 3], False), ([0, 1], False), ([6, 7], True)]
    large = [([4, 5, 2, 3], False), ([0, 1], False), ([6, 7], True)]
    for stream_large, wanted in ((False, small), (True, large), (False, small)):
        calls.clear()
        net.forward_backward(on_gradients=take, stream_large=stream_large)
        assert calls == wanted
    given = []      # by what uses none
    net.blobs["x"].data[...] = 1
    net.clear_param_diffs()
    net.run_sources()
    before = net.blobs["noise"].cpu_data.copy()
    net.forward_backward(on_gradients=lambda which, part, last: given.extend(which), run_sources=False)
    assert sorted(given) == list(range(8)) and all(blob.cpu_diff.any() for blob in net.learnable_params[:6])
    np.testing.assert_array_equal(net.blobs["noise"].cpu_data, before)
    net.add_hook(BEFORE_BACKWARD, lambda index: None)
    calls.clear()
    net.forward_backward(on_gradients=take)
    assert calls == [([0, 1, 2, 3, 4, 5, 6, 7], True)] and (net.blobs["noise"].cpu_data != before).any()


CHAIN = (layer_text("InnerProduct", "a", "x", more=IP) + layer_text("TanH", "b", "a") + layer_text("InnerProduct", "c", "b", more=IP)
         + layer_text("EuclideanLoss", "loss", "c b"))
DIAMOND = (layer_text("InnerProduct", "a", "x", more=IP) + layer_text("TanH", "b", "a") + layer_text("Sigmoid", "c", "a")
           + layer_text("Concat", "d", "b c") + layer_text("Power", "t", "d", "d") + layer_text("Flatten", "e", "d")
           + layer_text("InnerProduct", "f", "e", more=IP) + layer_text("EuclideanLoss", "loss", "f a"))
ROWS_OF_DIAMOND = """f x: 0 8192 16392; keeps x data
f a: 36892 56 16448; keeps a data
f a_a_0_split: 56 56 16448; keeps a data
f b: 56 56 16504; keeps b data
f c: 56 56 16560; keeps c data
f d: 112 112 16672; keeps d data
f t: 112 112 16672; keeps d data
f e: 112 112 16672; keeps d data
f f: 532 56 16728; keeps f data
f loss: 112 4 16728; keeps loss data
b loss: 120 112 16840; frees a data, f data
b f: 588 532 16840; frees d data, f diff
b e: 112 112 16672
b t: 112 112 16672
b d: 112 112 16784; frees d diff
b c: 112 56 16728; frees c data, c diff
b b: 112 56 16672; frees b data, b diff
b a_a_0_split: 168 56 16616; frees a_a_0_split_0 diff, a_a_0_split_1 diff, a_a_0_split_2 diff
b a: 36948 36892 16448; frees a diff
b x: 16384 0 16392"""


@pytest.mark.no_plan("compares a net without one")
def test_rows_of_a_net():
    """Bytes that each row reads and writes, and that live; what is saved for backward and freed: exact, as all rows are one layer each."""
    def line(row):
        more = [f"; {word} {', '.join(names)}" for word, names in (("keeps", row.saves), ("frees", row.frees)) if names]
        return f"{row.direction[0]} {row.layers[0]}: {row.reads} {row.writes} {row.live}{''.join(more)}"

    net = made(DIAMOND)
    listing = net.schedule()
    assert [line(row) for row in listing.rows] == ROWS_OF_DIAMOND.splitlines()
    assert listing.peak == max(row.live for row in listing.rows) and net.output_blobs[0].data_memory.head == memory.SyncedHead.UNINITIALIZED
    rows, tested = made(DIAMOND, None).schedule().rows, made(DIAMOND, phase=caffe.TEST).schedule().rows
    assert [(row.reads, row.writes, row.saves) for row in rows] == [(row.reads, row.writes, row.saves) for row in listing.rows]
    assert not any(row.frees for row in rows) and {row.live for row in rows} == {17232}
    assert [row.live for row in tested] == [8196, 8252, 8252, 8308, 8364, 8476, 8364, 8364, 8420, 8308] and not any(row.saves for row in tested)
    assert {row.layers[0]: row.frees for row in tested if row.frees} == {"d": ["b data", "c data"], "f": ["d data"], "loss": ["a data", "f data"]}


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
@pytest.mark.parametrize("kind, more", [("Flatten", ""), ("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }")])
def test_view_memory_ends_with_last_use(kind, more, phase):
    """The view writes nothing; a layer of one's own that is derived from it may."""
    text = DIAMOND.replace('type: "Flatten"', f'type: "{kind}"').replace('top: "e" ', f'top: "e" {more} ')
    net = made(text, "memory", phase)
    rows = {(row.direction, *row.layers): row.frees for row in net.schedule().rows}
    assert "d data" in rows["backward" if phase == caffe.TRAIN else "forward", "f"]
    if phase == caffe.TRAIN:
        assert "d diff" in rows["backward", "d"]
        for _ in range(3):
            same(gradients(net), gradients(made(text, None, phase)))
    name = f"{kind}Of{phase}"
    register_layer(name, type(name, (layer_class(kind),), {"forward_cpu": lambda self, bottom, top: top[0].mutable_cpu_data.fill(0)}))
    own = made(text.replace(f'type: "{kind}"', f'type: "{name}"'), "memory", phase)
    assert not any("d data" in row.frees for row in own.schedule().rows)


def test_all_of_a_listing_as_text(on_cpu):
    """Of steps with all that a step may have, and with nothing."""
    for threads in (1, 2):
        caffe.set_num_threads(threads)
        assert f"cpu, {threads} thread{'s' * (threads > 1)};" in str(made(TWO).schedule())
    listing = made(LOSS.replace('"b"', '"x"').replace('"a"', '"x"')).schedule()
    head = ["      engine    layout           reads   writes     live  layers", "forward"]
    listing.rows = [ScheduleRow("forward", ["a", "r"], ["Convolution", "ReLU"], "j", "ONEDNN", "nChw8c", 2048, 100, ["a data"], [], [], 3000),
                    ScheduleRow("forward", ["j"], ["Concat"], None, None, None, 0, 0, [], ["a data", "j"], [], 0),
                    ScheduleRow("backward", ["a", "r"], ["Convolution", "ReLU"], "j", "CAFFE", None, 7, 8, [], ["a diff"], ["a[0]", "a[1]"], 9)]
    listing.name, listing.phase, listing.place, listing.plan, listing.observed, listing.peak, listing.parameters = "", "TRAIN", "gpu", True, None, 3000, 0
    assert str(listing).splitlines() == [
        "net, phase TRAIN, gpu; plan: memory, each ends with its last use", "", *head,
        "   0  ONEDNN    nChw8c         2.0 KiB    100 B  2.9 KiB  a + r, into j; keeps a",
        "   1                               0 B      0 B      0 B  j; frees a, j",
        "backward",
        "   2  CAFFE                        7 B      8 B      9 B  a + r; frees a diff; updates a[0], a[1]",
        "", "2 steps forward, 1 backward; blobs that live at once: 2.9 KiB at most; parameters: 0 B"]
    listing.rows, listing.plan, listing.observed, listing.name = listing.rows[1:2], False, "debug_info reads every blob", "n"
    assert str(listing).splitlines() == [
        "n, phase TRAIN, gpu; plan: none, all blobs keep their memory", "", *head,
        "   0                               0 B      0 B      0 B  j; frees a, j",
        "", "1 steps forward, 0 backward; blobs that live at once: 2.9 KiB at most; parameters: 0 B",
        "at present runs go layer by layer, as debug_info reads every blob"]


@pytest.mark.no_plan("compares a net without one")
def test_layer_backward_after_freed_gradients():
    """What `backward_layer` writes gets memory again; gradients of layers in between are those of a whole run."""
    seen = []
    for plan in (None, "memory"):
        net = made(CHAIN, plan)
        gradients(net)
        net.clear_param_diffs()
        run(net)
        assert not plan or net.blobs["b"].diff_memory.head == memory.SyncedHead.RECYCLED
        with memory.record() as events:
            for i in reversed(range(1, len(net.nodes))):
                net.backward_layer(i)
        assert [(event.kind, event.name, event.detail) for event in events if event.kind in ("begin", "end")] == [
            (kind, node.name, "backward") for node in net.nodes[:0:-1] for kind in ("begin", "end")]
        seen.append([blob.cpu_diff.copy() for blob in [*net.learnable_params, net.blobs["x"], net.blobs["a"]]])
    same(*seen)


def test_listings_of_net_repeat():
    """Blobs that are freed together are in the order of the net."""
    text = "".join(CONV.format(name, "x") for name in "abcd") + layer_text("Eltwise", "s", "a b c d")
    nets = [made(text + LOSS.replace('"b"', '"s"'), "memory") for _ in range(8)]
    first, *others = [[row.frees for row in net.schedule().rows] for net in nets]
    assert max(map(len, first)) > 3 and all(other == first for other in others)
