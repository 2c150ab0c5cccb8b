"""By a plan a convolution computes layers with tops of their own, too, sums among them, and writes its part of a Concat's top; what only
they read is then never there."""

import numpy as np
import pytest
from helpers import layer_text
from watched import LEAKY, NORM, SCALE, fused, with_one_watched
from watched import PRELU as PRELU_OF_Y
from watched import RELU as RELU_OF_Y
from watched import net_of as net_of_text

import minicaffe as caffe
from minicaffe.blob import Blob
from minicaffe.engines import engine as engines
from minicaffe.errors import DependencyError, Error, RecycledError
from minicaffe.layer import Layer, register_layer

pytestmark = pytest.mark.usefixtures("onednn")

INPUT = 'layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }'
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "first" bottom: "y" top: "s" }'
RELU, PRELU = RELU_OF_Y.replace('"y"', '"s"'), PRELU_OF_Y.replace('"y"', '"s"')
SCALED = SCALE.replace('"y"', '"s"').replace('name: "scale"', 'name: "scaled"')
WITHOUT_PLAN = pytest.param({"plan": None}, marks=pytest.mark.no_plan("without one"))


def conv(bottom, top, outputs=20, kind="Convolution", more=""):
    return layer_text(kind, top, bottom, more=f"convolution_param {{ num_output: {outputs} kernel_size: 3 pad: 1 {more} "
                      'weight_filler { type: "xavier" } }')


FIRST = conv("x", "first")


def net_of(text, phase=caffe.TEST, **how):
    return net_of_text(INPUT + text, phase, **{"plan": "memory", **how})


def two_nets(text, shape=None, **how):
    """A net with a plan, and one with the same values that is read between layers and has none."""
    nets = with_one_watched([net_of(text, **how), net_of(text)])
    if shape:
        feed(nets, *shape)
    return nets


def multiply_inputs(nets, factor):
    for net in nets:
        net.blobs["x"].data[...] *= factor


def feed(nets, *shape):
    for net in nets:
        net.blobs["x"].reshape(*shape)
        net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal(shape)


def assert_same_output(net, watched, times=1):
    for _ in range(times):
        (name, mine), = net.forward().items()
        wanted = watched.forward()[name]
        np.testing.assert_allclose(mine, wanted, 1e-4, 1e-4 * np.abs(wanted).max())
        assert np.abs(wanted).max() > 0.1 and not fused(watched)


def assert_close(values, blob):
    np.testing.assert_allclose(values, blob.data, 1e-4, 1e-4)


@pytest.mark.parametrize(("layers", "names"), [
    (SUM, ["sum"]),
    (SUM.replace('"first" bottom: "y"', '"y" bottom: "first"'), ["sum"]),
    (SUM + RELU, ["sum", "relu"]), (NORM + SCALE + SUM + RELU, ["norm", "scale", "sum", "relu"]),
    (NORM + SUM + PRELU, ["norm", "sum", "prelu"]),
    (SUM + SCALED, ["sum"]),                    # an affine map after a sum is another matter
    (LEAKY + SUM + RELU, ["leaky"]),            # as is a sum after a slope
    (SUM.replace('"s"', '"s" eltwise_param { coeff: 1 coeff: 1 }'), ["sum"]),
    (SUM.replace('"s"', '"s" eltwise_param { coeff: 1 coeff: -1 }'), []),
    (SUM.replace('"s"', '"s" eltwise_param { operation: MAX }'), []),
    (SUM.replace('"s"', '"s" eltwise_param { operation: PROD }'), []),
    (SUM.replace('bottom: "y"', 'bottom: "y" bottom: "x1"'), []), (SUM.replace('bottom: "first"', 'bottom: "y"'), []),
    (conv("y", "other") + SUM, []),             # another layer reads y
])
def test_added_bottom_gives_same_numbers(layers, names):
    text = FIRST + (conv("x", "x1") if '"x1"' in layers else "") + conv("first", "y") + layers
    net, watched = two_nets(text + ("" if '"other"' not in layers else 'layer { type: "Silence" name: "no" bottom: "other" }'))
    for _ in range(3):
        assert_same_output(net, watched)
        assert fused(net).get("y", []) == names
        multiply_inputs((net, watched), 1.5)


@pytest.mark.parametrize("text", [conv("x", "y", 3) + SUM.replace("first", "x") + RELU, *(      # an addend in plain order, too
    conv("x", "first", outputs) + conv("first", "y", outputs, kind) + SUM + RELU + conv("s", "z")
    for kind in ("Convolution", "Deconvolution") for outputs in (1, 7, 16, 20, 33))])
def test_channels_that_do_not_fill_blocks(text):
    net, watched = two_nets(text)
    assert_same_output(net, watched, 2)
    assert fused(net)["y"] == ["sum", "relu"]


@pytest.mark.parametrize("engine", ["ONEDNN", "WINOGRAD"])
@pytest.mark.parametrize(("own", "names"), [
    ("nsr", ["norm", "scale", "relu"]), ("n", ["norm", "scale", "relu"]), ("s", ["norm", "scale", "relu"]),
    ("r", ["norm", "scale", "relu"]),
    ("N", []),              # what BatchNorm reads is read by another, too
    ("S", ["norm"]), ("R", ["norm", "scale"]),
])
def test_tops_of_their_own(own, names, engine):
    """Small letters: the layer has one; capitals: and its bottom is read by a layer behind it, too."""
    engines.prefer(engine)
    text, bottom, also = FIRST + conv("first", "y"), "y", ""
    for layer in (NORM, SCALE, RELU.replace('"s"', '"y"')):
        letter = layer.split('name: "')[1][0]
        top = letter if letter in own.lower() else bottom
        if letter.upper() in own:
            also = f'layer {{ name: "also" type: "Power" bottom: "{bottom}" top: "also" }}'
        text += layer.replace('bottom: "y" top: "y"', f'bottom: "{bottom}" top: "{top}"')
        bottom = top
    net, watched = two_nets(text + also + conv(bottom, "z") + ('layer { name: "no" type: "Silence" bottom: "also" }' if also else ""))
    assert_same_output(net, watched, 2)
    assert fused(net).get("y", []) == names


@pytest.mark.parametrize("engine", ["ONEDNN", "WINOGRAD"])
def test_one_changed_number_of_parameters(engine):
    """Of each parameter of fused layers, the last number too: factors of an earlier forward are used while all are the same."""
    engines.prefer(engine)
    net, watched = two_nets(FIRST + conv("first", "y") + NORM + SCALE + PRELU_OF_Y)
    for one in net, watched:
        one.params["scale"][1].data[...] = -1000        # so that the slopes matter
    assert_same_output(net, watched, 2)
    assert fused(net)["y"] == ["norm", "scale", "prelu"]
    for name in "y", "norm", "scale", "prelu":
        for k in range(len(net.params[name])):
            for one in net, watched:
                one.params[name][k].data.flat[-1] += 2
            before = net.blobs["y"].data.copy()
            assert_same_output(net, watched, 2)
            assert (net.blobs["y"].data != before).any(), (name, k)
    for one in net, watched:
        other = Blob(one.params["norm"][0].shape)
        other.data[...] = 7
        one.layer_dict["norm"].blobs[0] = other
    assert_same_output(net, watched, 2)


@pytest.mark.parametrize("how", [{"keep": ["y"]}, WITHOUT_PLAN])
def test_reader_of_convolution_finds_it(how):
    net, watched = two_nets(FIRST + conv("first", "y") + NORM + SUM + RELU, **how)
    for _ in range(2):
        assert_same_output(net, watched)
        assert fused(net)["y"] == ["norm"]
        assert_close(net.blobs["y"].data, watched.blobs["y"])


def test_holder_of_memory_finds_data():
    net, watched = two_nets(FIRST + conv("first", "y") + SUM)
    net.forward()
    assert fused(net)["y"] == ["sum"]
    net.forward(end="y")        # layer by layer
    view = net.blobs["y"].data
    assert_same_output(net, watched)
    assert "y" not in fused(net)
    assert_close(view, watched.blobs["y"])
    del view
    assert_same_output(net, watched)
    assert fused(net)["y"] == ["sum"]
    other = Blob(net.blobs["y"].shape)
    other.share_data(net.blobs["y"])
    assert_same_output(net, watched)
    assert "y" not in fused(net)
    assert_close(other.data, watched.blobs["y"])


@pytest.mark.parametrize("shape", [(3, 9, 8), (16, 9, 8), (20, 4, 4), (32, 13, 17), (37, 1, 1)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_winograd_adds(shape, kernel):
    engines.prefer("WINOGRAD")
    last = conv("first", "y", shape[0]).replace("kernel_size: 3 pad: 1", f"kernel_size: {kernel} pad: {kernel // 2}")
    net, watched = two_nets(conv("x", "first", shape[0]) + last + NORM + SUM + PRELU, (2, 3, *shape[1:]))
    assert_same_output(net, watched, 3)
    assert fused(net)["y"] == ["norm", "sum", "prelu"]
    assert {row["engine"] for row in net.engines() if row["operation"] == "Convolution"} == {"WINOGRAD"}


def test_other_shapes():
    net, watched = two_nets(FIRST + conv("first", "y") + NORM + SUM + RELU)
    for shape in ((2, 3, 9, 8), (3, 3, 12, 7), (1, 3, 5, 5)):
        feed((net, watched), *shape)
        assert_same_output(net, watched, 2)     # the first finds the new shapes
        assert fused(net)["y"] == ["norm", "sum", "relu"]
    # One memory, of which the convolution wants two layouts at once.
    text = (INPUT.replace("dim: 3 dim: 9 dim: 8", "dim: 16 dim: 16 dim: 16")
            + layer_text("Reshape", "reshape", "x", "s", "reshape_param { shape { dim: 0 dim: 64 dim: 8 dim: 8 } }")
            + conv("x", "y", 64).replace("kernel_size: 3 pad: 1", "kernel_size: 2 stride: 2")
            + layer_text("Eltwise", "sum", "y s", "z"))
    net, watched = with_one_watched([net_of_text(text, plan="memory") for _ in range(2)])
    for _ in range(3):
        assert_same_output(net, watched)
        assert fused(net) == {"y": ["sum"]}


def test_in_bf16():
    try:
        caffe.set_precision("bf16")
    except DependencyError as error:
        pytest.skip(str(error))
    net, watched = two_nets(FIRST + conv("x", "wide", 32) + conv("first", "y", 32) + NORM + SUM.replace("first", "wide") + RELU)
    (mine,), (wanted,) = net.forward().values(), watched.forward().values()
    assert fused(net)["y"] == ["norm", "sum", "relu"]
    np.testing.assert_allclose(mine, wanted, 0.02, 0.02 * np.abs(wanted).max())


BEHIND = (conv("x", "y", 32) + SCALE.replace('top: "y"', 'top: "b"') + RELU.replace('"s"', '"b"').replace('top: "b"', 'top: "c"')
          + conv("c", "z", 16))


def test_last_top_and_missing_blobs():
    net, watched = two_nets(BEHIND, keep=["c"])
    for sign in (1, -1, 0.5):
        multiply_inputs((net, watched), sign)
        assert_same_output(net, watched)
        if sign == 1:
            view = net.blobs["c"].data
        assert_close(view, watched.blobs["c"])
        assert fused(net)
    net = net_of(BEHIND)
    for shape in ((2, 3, 9, 8), (2, 3, 14, 14), (2, 3, 9, 8)):
        feed([net], *shape)
        net.forward()
        assert fused(net)["y"] == ["scale", "relu"]
        for name in ("y", "b"):
            with pytest.raises(RecycledError, match=f"{name}.*keep"):
                net.blobs[name].data  # noqa: B018


# ---- parts of a Concat's top

def joined(*bottoms, axis=1):
    return layer_text("Concat", "joined", " ".join(bottoms), "j", f"concat_param {{ axis: {axis} }}")


def relu(name):
    return layer_text("ReLU", f"relu_{name}", name, name)


def parts_of(net):
    return {name for name, names in fused(net).items() if "joined" in names}


WIDE, LAST, ONE, LARGE = conv("x", "first", 32), conv("j", "z"), (1, 3, 9, 8), (1, 3, 41, 32)
BRANCHES = WIDE + conv("x", "a", 16) + conv("first", "b", 32)
PARTS = BRANCHES + joined("a", "b") + LAST
NOTHING = 'layer { name: "nothing" type: "Silence" bottom: "%s" }'


@pytest.fixture
def two_threads():
    caffe.set_num_threads(2)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(("engine", "a", "b", "written"), [
    ("ONEDNN", 16, 32, "ab"), ("ONEDNN", 48, 16, "ab"), ("ONEDNN", 16, 20, ""), ("ONEDNN", 20, 12, ""),
    ("WINOGRAD", 16, 32, "ab"), ("WINOGRAD", 48, 16, "ab"), ("WINOGRAD", 20, 20, "ab"), ("WINOGRAD", 16, 20, "b"),
    ("WINOGRAD", 20, 16, "a"), ("WINOGRAD", 20, 12, "a"), ("CAFFE", 16, 16, "")])
def test_concat_parts_written_at_once(engine, a, b, written, images):
    """In blocks of channels where all are whole, and in plain order, in which WINOGRAD leaves channels that fill none."""
    engines.prefer(engine)
    text = WIDE + conv("x", "a", a) + relu("a") * (engine != "CAFFE") + conv("first", "b", b) + joined("a", "b") + LAST
    net, watched = two_nets(text, (images, *LARGE[1:]))     # enough work for images one by one
    assert_same_output(net, watched, 3)
    found = fused(net)
    assert found.get("a", []) == ["relu_a"] * (engine != "CAFFE") + ["joined"] * ("a" in written)
    assert found.get("b", []) == ["joined"] * ("b" in written)
    for name in "abj":
        with pytest.raises(RecycledError):
            net.blobs[name].data  # noqa: B018
    multiply_inputs((net, watched), 2)
    assert_same_output(net, watched)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("group", "outputs"), [(2, 32), (2, 24), (2, 64), (4, 16)])
@pytest.mark.parametrize("engine", ["ONEDNN", "WINOGRAD"])
def test_a_part_by_groups(engine, group, outputs):
    """Each group lies among the channels of the whole, in blocks where those of a group fill them."""
    engines.prefer(engine)
    text = WIDE + conv("first", "b", outputs, more=f"group: {group}") + conv("x", "a", outputs) + joined("a", "b") + LAST
    net, watched = two_nets(text, (3, *LARGE[1:]))
    assert_same_output(net, watched, 2)
    assert {row["layer"]: row["engine"] for row in net.engines()}["b"] == engine
    (found,) = net.forward().values()
    engines.prefer("CAFFE")
    plain, _ = two_nets(text, (3, *LARGE[1:]))
    (wanted,) = plain.forward().values()
    np.testing.assert_allclose(found, wanted, 1e-3, 1e-4 * np.abs(wanted).max())


@pytest.mark.usefixtures("two_threads")
def test_small_images_computed_and_copied():
    net, watched = two_nets(PARTS)
    for images, names in ((2, []), (1, ["joined"]), (2, [])):
        feed((net, watched), images, *ONE[1:])
        assert_same_output(net, watched, 2)
        assert fused(net).get("a", []) == names


@pytest.mark.parametrize(("layers", "written"), [
    (joined("a", "b"), "ab"),
    (joined("x", "a", "b"), ""),                # all together do not fill blocks
    (conv("x", "c", 20) + conv("x", "d", 12) + joined("a", "c", "d", "b"), ""),     # nor does each
    (joined("a", "p"), "a"),
    (joined("a", "a") + NOTHING % "b", ""),     # of which a Split makes two
    (joined("a", "a2", axis=2) + NOTHING % "b", ""),
    ('layer { name: "power" type: "Power" bottom: "a" top: "a" power_param { scale: 2 } }' + joined("a", "b"), "b"),
    (joined("a", "b") + NOTHING % "a", "b"),
    (SUM.replace('"y"', '"b"').replace('"s"', '"c"') + joined("a", "c"), "a"),      # a sum is copied
])
def test_which_parts_are_written(layers, written):
    text = BRANCHES + conv("x", "a2", 16) * ('"a2"' in layers)
    text += 'layer { name: "p" type: "Pooling" bottom: "b" top: "p" pooling_param { kernel_size: 3 pad: 1 } }' * ('"p"' in layers)
    net, watched = two_nets(text + layers + LAST, ONE)
    assert_same_output(net, watched, 3)
    assert parts_of(net) == set(written)


@pytest.mark.parametrize("how", [{"keep": ["a"]}, {"keep": ["j"]}, WITHOUT_PLAN])
def test_reader_of_part_finds_it(how):
    net, watched = two_nets(PARTS, ONE, **how)
    name = how.get("keep", ["a"])[0]
    for sign in (1, -1, 2):
        multiply_inputs((net, watched), sign)
        assert_same_output(net, watched)
        assert_close(net.blobs[name].cpu_data, watched.blobs[name])
    assert parts_of(net) == (set() if not net.plan else {"a": {"b"}, "j": {"a", "b"}}[name])


@pytest.mark.parametrize("held", ["aj", "j"])
def test_view_of_whole_or_part(held):
    net, watched = two_nets(PARTS, ONE, keep=["j"])
    net.forward(end="joined")
    views = {name: net.blobs[name].data for name in held}
    for sign in (1, -1):
        multiply_inputs((net, watched), sign)
        assert_same_output(net, watched)
        assert not fused(net)
        for name in views:
            assert_close(views[name], watched.blobs[name])
    views.clear()
    assert_same_output(net, watched, 2)     # the first leaves the whole in blocks
    assert {"a", "b"} <= set(fused(net))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("bottoms", ["ab", "ba"])
def test_part_of_other_layout_copied(bottoms):
    """Here in plain order beside one in blocks. To write it would reorder the whole."""
    engines.prefer("WINOGRAD")
    parts = {"a": conv("x", "a", 16), "b": conv("five", "b", 16)}
    net, watched = two_nets(conv("x", "five", 5) + "".join(parts[name] for name in bottoms) + joined(*bottoms) + LAST, LARGE)
    for _ in range(3):
        assert_same_output(net, watched)
        assert parts_of(net) == {bottoms[0]}


@pytest.mark.parametrize("how", ["a hook", "a part of the net", "without a plan"])
def test_written_parts_copied_for_separate_layers(how):
    ran = []
    net, watched = two_nets(PARTS, ONE)
    for factor in (1, 2, -1.5):
        assert_same_output(net, watched, 2)
        assert fused(net) == {"a": ["joined"], "b": ["joined"]}
        multiply_inputs((net, watched), factor + 1)
        if how == "a hook":
            net.add_hook(0, ran.append)
            assert_same_output(net, watched)
            net.remove_hook(0, ran.append)
        elif how == "a part of the net":
            np.testing.assert_allclose(net.forward(end="joined")["j"], watched.forward(end="joined")["j"], 1e-4, 1e-3)
        else:
            net.set_plan(None, net.output_blobs, False)
            assert_same_output(net, watched)
            net.set_plan("memory", net.output_blobs, False)


def test_shared_memory_of_whole_stays():
    """Of two blobs that share a memory, as they may by turns, the whole has it from the Concat on."""
    text = WIDE + conv("x", "early", 64) + BRANCHES.removeprefix(WIDE) + conv("early", "c", 16) + joined("a", "b", "c") + LAST
    net, watched = two_nets(text, ONE)
    for each in (net, watched):
        each.reshape()
        each.blobs["early"].share_data(each.blobs["j"])
    assert_same_output(net, watched, 3)
    assert not parts_of(net)


class Stopping(Layer):
    fails = False

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward_cpu(self, bottom, top):
        if self.fails:
            raise Error("not now")
        top[0].data[...] = bottom[0].data


@pytest.mark.parametrize("keep", [[], ["j"]])
def test_a_run_that_stopped_between_parts(monkeypatch, keep):
    """Neither the next run nor a reader takes what is left of it for the whole."""
    register_layer("Stopping", Stopping)
    text = conv("x", "a", 16) + layer_text("Stopping", "stop", "x", "t") + conv("t", "b", 16) + joined("a", "b") + LAST
    net, watched = two_nets(text, ONE, keep=keep)
    assert_same_output(net, watched, 2)
    assert fused(net) == {"a": ["joined"], "b": ["joined"]}
    monkeypatch.setattr(Stopping, "fails", True)
    with pytest.raises(Error, match="not now"):
        net.forward()
    for name in "a" if keep else "aj":
        with pytest.raises(RecycledError):
            net.blobs[name].data  # noqa: B018
    if keep:
        net.blobs["j"].data[...] *= 1       # in plain order from now on, so that parts are copied
    multiply_inputs((net, watched), 3)
    with pytest.raises(Error, match="not now"):
        net.forward()
    monkeypatch.undo()
    if keep:
        assert_same_output(net, watched)
        return
    multiply_inputs((net, watched), 2)
    net.forward(start="stop", end="b")      # layer by layer: b has its own memory now, a still none
    np.testing.assert_allclose(net.blobs["b"].data, watched.forward(end="b")["b"], 1e-4, 1e-4)
    assert_same_output(net, watched)
    assert fused(net) == {"a": ["joined"], "b": ["joined"]}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("engine", ["ONEDNN", "WINOGRAD"])
def test_parts_wait_for_whole_shape(engine):
    """Two inputs grow or shrink; who writes the first part does not know what the Concat will become."""
    engines.prefer(engine)
    more = 'layer { name: "more" type: "Input" top: "x2" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }'
    net, watched = two_nets(more + conv("x", "a", 16) + conv("x2", "b", 32) + joined("a", "b") + LAST)
    for shape in (ONE, (1, 3, 64, 64), (5, 3, 64, 64), ONE, ONE):
        feed((net, watched), *shape)
        for each in (net, watched):
            each.blobs["x2"].reshape(*shape)
            each.blobs["x2"].data[...] = each.blobs["x"].data * 2
        assert_same_output(net, watched, 2)
        assert {"a", "b"} <= set(fused(net))


def test_parts_of_one_pixel_of_winograd():
    """Which is in plain order, also where the engine computes channels in lanes."""
    engines.prefer("WINOGRAD")
    text = conv("x", "a", 16) + conv("x", "b", 20) + joined("b", "a") + 'layer { name: "z" type: "Power" bottom: "j" top: "z" }'
    assert_same_output(*two_nets(text.replace("pad: 1", ""), (4, 3, 3, 3)), times=3)


LOSS = 'layer { name: "loss" type: "Reduction" bottom: "j" top: "loss" loss_weight: 1 reduction_param { operation: SUMSQ } }'
IN_PLACE = NORM.replace('"y"', '"j"').replace('"norm"', '"later"')


def params_of(net):
    return [blob for layer in net.layers for blob in layer.blobs]


def trained(text, shape=ONE, between=lambda net: None, **how):
    """A net with a plan whose gradients, after two iterations, are those of one without; `between` forward and backward."""
    net, other = (net_of(text, phase=caffe.TRAIN, **how, plan=plan) for plan in ("memory", None))
    for blob, same in zip(params_of(net), params_of(other), strict=True):
        same.data[...] = blob.data
    feed((net, other), *shape)
    for _ in range(2):
        for each in (net, other):
            each.clear_param_diffs()
            each.forward()
            if each is net:
                between(net)
            each.backward()
        for blob, same in zip(params_of(net), params_of(other), strict=True):
            np.testing.assert_array_equal(blob.diff, same.diff)
        assert all(np.abs(layer.blobs[0].diff).max() > 0 for layer in net.layers if layer.type == "Convolution")
    return net


@pytest.mark.parametrize(("layers", "written"), [
    (relu("b") + joined("a", "b") + LOSS, "ab"),                # the Concat computes the ReLU's gradient, from its own top
    (relu("b") + conv("x", "c", 16) + relu("c") + joined("b", "a", "c") + LOSS, "abc"),
    (relu("b").replace("top", "relu_param { negative_slope: 0.25 } top") + joined("a", "b") + LOSS, "a"),
    (relu("b") + joined("a", "b") + IN_PLACE + LOSS, "a"),      # which changes that top
    (relu("b") + joined("a", "b") + 'layer { name: "twice" type: "Concat" bottom: "j" bottom: "j" top: "t" }'
     + LOSS.replace('"j"', '"t"'), "ab"),
    (NORM.replace('"y"', '"b"') + relu("b") + joined("a", "b") + LOSS, "a"),    # BatchNorm's backward computes the ReLU's
    (SUM.replace('"y"', '"b"').replace('"s"', '"c"') + joined("a", "c") + LOSS, "a")])      # in training no sum is computed along
def test_parts_in_training(layers, written):
    net = trained(BRANCHES + layers)
    assert parts_of(net) == set(written) and not any("sum" in names for names in fused(net).values())


@pytest.mark.parametrize("engine", ["CAFFE", "ONEDNN", "WINOGRAD"])
@pytest.mark.parametrize("channels", [(8, 24), (16, 32), (24, 16), (5, 7)])
def test_parts_of_any_size_in_training(engine, channels):
    engines.prefer(engine)
    text = conv("x", "a", channels[0]) + conv("x", "b", channels[1]) + relu("a") + relu("b") + joined("a", "b") + LOSS
    for shape in (ONE, (3, 3, 12, 12)):
        trained(text, shape)


def test_layer_by_layer_after_fused_concat():
    seen, text = [], BRANCHES + relu("b") + joined("a", "b") + LOSS
    trained(text, keep=["j"], between=lambda net: net.before_backward(seen.append) if not seen else None)
    assert len(seen) >= 2 * 5
    net = trained(text, keep=["j"])
    before = [blob.diff.copy() for blob in params_of(net)]
    relu_b = next(layer for layer in net.layers if layer.type == "ReLU")
    assert relu_b.deferred
    net.before_forward(lambda index: None)      # layer by layer from here on
    net.clear_param_diffs()
    net.forward()
    assert not relu_b.deferred
    net.backward()
    for blob, values in zip(params_of(net), before, strict=True):
        np.testing.assert_allclose(blob.diff, values, 1e-4, 1e-4 * np.abs(values).max())
