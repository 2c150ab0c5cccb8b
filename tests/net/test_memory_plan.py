"""The memory plan: the same numbers to the last bit as without one, out of memory that holds NaN whenever it changes its owner."""

import ctypes
import gc
import os
import random
import weakref

import numpy as np
import pytest
from helpers import layer_text, make_net, net_solver, one_of

import minicaffe
from minicaffe.blob import Blob, Dtype
from minicaffe.engines import engine
from minicaffe.errors import ConfigError, Error, MissingNameError, RecycledError
from minicaffe.layer import Layer, register_layer
from minicaffe.layers.inner_product import InnerProductLayer
from minicaffe.memory import CPUPlace, SyncedHead, SyncedMemory
from minicaffe.memory.allocator import Allocator
from minicaffe.memory.registry import registry
from minicaffe.memory.zeros import claim_lazy_zeros
from minicaffe.net.run import BEFORE_BACKWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import SGDSolver

ALLOCATORS = []     # the collector clears an allocator in a cycle before the blocks that it has to free


class Poison(Allocator):
    """Blocks that hold NaN when they are given out and when they come back."""

    def __init__(self):
        super().__init__(CPUPlace(), registry.allocator(CPUPlace(), "plain"))
        self.nbytes, self.most = {}, 0

    def alloc(self, nbytes):
        address = self.upstream.alloc(nbytes)
        ctypes.memset(address, 0xFF, nbytes)
        self.nbytes[address] = nbytes
        self.most = max(self.most, sum(self.nbytes.values()))
        return address

    def free(self, address):
        ctypes.memset(address, 0xFF, self.nbytes.pop(address))
        self.upstream.free(address)


@pytest.fixture
def poison(monkeypatch):
    """The pool of all nets with a plan."""
    allocator = Poison()
    ALLOCATORS.append(allocator)
    monkeypatch.setattr(registry, "host_pool", lambda: allocator)
    return allocator


def net_of(text, phase="TRAIN", **options):
    minicaffe.set_random_seed(7)
    return make_net(text, caffe_pb2.Phase.Value(phase), **options)


def feed(net, seed):
    values = np.random.RandomState(seed)
    for blob in net.input_blobs:
        label = blob.name.startswith("label")
        blob.data[...] = values.randint(0, 3, blob.shape) if label else values.uniform(-1, 1, blob.shape)


def fed_forward(net, seed=0):
    feed(net, seed)
    net.forward_from_to(0, len(net.nodes) - 1)


def trace(net, steps=3, accumulate=1, backward=True):
    """Every number that a training gives: losses, outputs, and data and gradients of the parameters, step for step."""
    seen = []
    for step in range(steps):
        net.clear_param_diffs()
        for part in range(accumulate):
            feed(net, 10 * step + part)
            seen.append(net.forward_backward() if backward else net.forward_from_to(0, len(net.nodes) - 1))
            seen += [blob.cpu_data.copy() for blob in net.output_blobs]
        seen += [blob.cpu_diff.copy() for blob in net.learnable_params]
        for blob in net.learnable_params:
            blob.scale_diff(0.01)
        net.update()
        seen += [blob.cpu_data.copy() for blob in net.learnable_params]
    return seen


CHANNELS_LAST = os.environ.get("MINICAFFE_CUDNN_LAYOUT") == "nhwc"


def same(one, other, rtol=0):
    assert len(one) == len(other) and all(np.isfinite(x).all() for x in other)
    for i, (x, y) in enumerate(zip(one, other, strict=True)):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.abs(y).max(initial=0), err_msg=f"number {i}")


def recycled(net):
    return [blob.name for blob in net.blob_list if blob.data_memory.head == SyncedHead.RECYCLED]


INPUT = """layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
"""
LOSS = """layer { name: "score" type: "InnerProduct" bottom: "%s" top: "score" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


def layer(name, kind, bottoms, tops, param=""):
    return layer_text(kind, name, " ".join(bottoms), " ".join(tops), param)


CONV = 'convolution_param {{ num_output: {} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }}'
SAME_SHAPE = {      # kind: parameters; may it work in place
    "ReLU": ("", True), "Sigmoid": ("", True), "TanH": ("", True), "Dropout": ("dropout_param { dropout_ratio: 0.3 }", True),
    "Power": ("power_param { scale: 0.5 shift: 0.1 }", True), "BatchNorm": ("", True), "Scale": ("scale_param { bias_term: true }", True),
    "Bias": ("", True), "PReLU": ("", True), "ELU": ("", False), "BNLL": ("", False), "LRN": ("", False), "AbsVal": ("", False),
    "MVN": ("", False), "Softmax": ("", False), "Swish": ("", True), "Clip": ("clip_param { min: -1 max: 0.5 }", False),
    "Exp": ("exp_param { scale: 0.1 }", True), "Pooling": ("pooling_param { kernel_size: 3 stride: 1 pad: 1 }", False),
    "Tile": ("tile_param { tiles: 1 }", False)}
TOP_IS_FREE = ("BatchNorm", "Scale", "Bias", "Power", "Dropout")    # backward does not read the top, which others may overwrite


KINDS = {"same": 8, "Convolution": 4, "Eltwise": 3, "Concat": 2, "Slice": 2, "Reshape": 1, "Reduction": 1}


def random_net(seed):
    """A graph of layers on arrays of 4 x channels x 8 x 8: branches, in place, views, losses in the middle, blobs without a reader."""
    dice, text, live = random.Random(seed), INPUT, {"x": 3}
    free = set()        # blobs without another reader, and whose layers do not need them in backward
    for count in range(dice.randint(4, 16)):
        name, bottom, kind = f"l{count}", dice.choice(list(live)), dice.choices(list(KINDS), KINDS.values())[0]
        channels, more, bottoms, tops = live[bottom], "", [bottom], {name: live[bottom]}
        if kind == "same":
            kind = dice.choice(sorted(SAME_SHAPE))
            more, in_place = SAME_SHAPE[kind]
            if in_place and bottom in free and dice.random() < 0.6:
                tops = {bottom: channels}
        elif kind == "Convolution":
            tops = {name: dice.choice([3, 5, 8, 16])}
            more = CONV.format(tops[name])
        elif kind == "Eltwise":
            bottoms.append(dice.choice([other for other in live if live[other] == channels]))
            more = f"eltwise_param {{ operation: {dice.choice(['SUM', 'MAX', 'PROD'])} }}"
        elif kind == "Concat":
            bottoms.append(dice.choice(list(live)))
            tops = {name: channels + live[bottoms[1]]}
        elif kind == "Slice" and channels > 1:
            cut = dice.randint(1, channels - 1)
            tops, more = {f"{name}a": cut, f"{name}b": channels - cut}, f"slice_param {{ slice_point: {cut} }}"
        elif kind == "Reduction":
            tops, more = {}, "reduction_param { operation: SUMSQ } loss_weight: 0.01"
        else:
            kind, more = "Reshape", "reshape_param { shape { dim: 0 dim: 0 dim: 8 dim: -1 } }"
        text += layer(name, kind, bottoms, tops or [f"{name}_loss"], more)
        if bottom not in tops or kind not in TOP_IS_FREE:
            free -= set(bottoms)
        if kind == "Convolution":
            free.add(name)
        live |= tops
    return text + LOSS % dice.choice(list(live)[-3:])


STATES = layer("in", "Input", [], ["x", "c", "label", "s"], "input_param { shape { dim: 3 dim: 4 dim: 5 } shape { dim: 3 dim: 4 } "
               "shape { dim: 3 } shape { dim: 1 dim: 4 dim: 5 } }")
SIX_STATES = "recurrent_param { num_output: 6 %s weight_filler { type: 'uniform' min: -0.1 max: 0.1 } }"
FIRST = INPUT + layer("c", "Convolution", ["x"], ["c"], CONV.format(8))
NETS = {
    "in place": FIRST + layer("r", "ReLU", ["c"], ["c"]) + LOSS % "c",
    "one reader stops the gradient": FIRST + layer("am", "ArgMax", ["c"], ["am"]) + layer("s", "Silence", ["am"], []) + LOSS % "c",
    "means": FIRST + layer("p", "Pooling", ["c"], ["p"], "pooling_param { pool: AVE kernel_size: 2 stride: 2 }") + LOSS % "p",
    "a mask that another layer reads": FIRST + layer("p", "Pooling", ["c"], ["p", "m"], "pooling_param { kernel_size: 2 stride: 2 }")
    + layer("a", "ArgMax", ["m"], ["a"]) + layer("s", "Silence", ["a"], []) + LOSS % "p",
    "accuracy": FIRST + LOSS % "c" + layer("acc", "Accuracy", ["score", "label"], ["acc"]),
    "probabilities of the loss": INPUT + layer("c", "InnerProduct", ["x"], ["c"], "inner_product_param { num_output: 3 }")
    + layer("l", "SoftmaxWithLoss", ["c", "label"], ["l", "p"]) + layer("e", "Power", ["p"], ["e"], "power_param { scale: 2 }"),
    "shared weights": INPUT + "".join(layer(top, "Convolution", [bottom], [top], 'param { name: "w" } param { name: "b" }' + CONV.format(3))
                                      for bottom, top in ("xa", "ab")) + LOSS % "b",
    "a loss that others read": FIRST + layer("q", "Reduction", ["c"], ["q"], "reduction_param { operation: SUMSQ } loss_weight: 0.1")
    + layer("t", "Power", ["q"], ["t"], "power_param { scale: 0.5 } loss_weight: 1") + LOSS % "c",
    "a parameter as top": layer("w", "Parameter", [], ["w"], "parameter_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } }") + INPUT
    + layer("sum", "Eltwise", ["x", "w"], ["sum"]) + LOSS % "sum",
    "a gradient that begins with zeros": FIRST
    + layer("small", "Pooling", ["x"], ["small"], "pooling_param { kernel_size: 2 stride: 2 }")
    + layer("crop", "Crop", ["c", "small"], ["crop"], "crop_param { axis: 2 offset: 1 }") + LOSS % "crop",
    "LSTM": STATES.replace('top: "s"', "").replace("shape { dim: 1 dim: 4 dim: 5 }", "")
    + layer("one", "Power", ["c"], ["one"], "power_param { scale: 0 shift: 1 } propagate_down: false")
    + layer("y", "InnerProduct", ["x"], ["y"], "inner_product_param { num_output: 5 axis: 2 weight_filler { type: 'xavier' } }")
    + layer("lstm", "LSTM", ["y", "one"], ["h"], SIX_STATES % "") + LOSS % "h",
    "LSTM whose states are learned": STATES + "".join(
        layer(name, "InnerProduct", ["s"], [name], "inner_product_param { num_output: 6 axis: 2 weight_filler { type: 'xavier' } }")
        for name in ("h0", "c0"))
    + layer("lstm", "LSTM", ["x", "c", "h0", "c0"], ["h", "hT", "cT"], SIX_STATES % "expose_hidden: true")
    + layer("end", "Silence", ["hT", "cT"], []) + LOSS % "h",
    **{f"random {seed}": random_net(seed) for seed in range(30)},
}


@pytest.mark.parametrize("name", one_of(3, NETS))
@pytest.mark.parametrize("how", ["train", "iter_size", "test"])
def test_numbers_are_those_without_a_plan(name, how, poison, device):
    options = {"accumulate": 2 if how == "iter_size" else 1, "backward": how != "test", "steps": 2}
    phase = "TEST" if how == "test" else "TRAIN"
    want = trace(net_of(NETS[name], phase), **options)
    # Where no backward follows, oneDNN scales and shifts within a convolution, with another rounding.
    rtol = 1e-5 if how == "test" and engine.preferred() == "ONEDNN" else 0
    same(trace(net_of(NETS[name], phase, plan="memory"), **options), want, rtol)
    assert poison.most > 0 or device != "cpu"


@pytest.mark.parametrize("name", NETS)
def test_fused_equals_separate_layers(name):
    """A net that is observed computes no layers together."""
    seen = trace(net_of(NETS[name], dtype=Dtype.DOUBLE), 1)
    watched = net_of(NETS[name], dtype=Dtype.DOUBLE)
    watched.add_hook(BEFORE_BACKWARD, lambda index: None)
    for one, other in zip(seen, trace(watched, 1), strict=True):
        np.testing.assert_allclose(one, other, 1e-9, 1e-9)


@pytest.mark.slow(1)
def test_with_private_layouts(onednn, poison):
    used = 0
    for text in NETS.values():
        want = trace(net_of(text), steps=2)
        net = net_of(text, plan="memory")
        same(trace(net, steps=2), want)
        used += any(row["engine"] == "ONEDNN" for row in net.engines())
    assert used > 20


def test_less_memory(poison, on_cpu, monkeypatch):
    """A chain of 12 inner products: forward needs two blobs at once, a training the data of all and the diffs of two."""
    monkeypatch.setattr(engine, "_preferred", "CAFFE")      # another would keep some of them in two layouts
    text, blob = INPUT, 4 * 256 * 4
    for i in range(13):
        text += layer(f"c{i}", "InnerProduct", [f"c{i - 1}" if i else "x"], [f"c{i}"], "inner_product_param { num_output: 256 }")
    trace(net_of(text + LOSS % "c12", "TEST", plan="memory"), 2, backward=False)
    assert 2 * blob <= poison.most < 3 * blob
    poison.most = 0
    trace(net_of(text + LOSS % "c12", plan="memory"), 2)
    assert 13 * blob < poison.most < 16 * blob


def test_memory_freed_with_net(poison, on_cpu):
    """Not with a collection later."""
    gc.collect()
    before = minicaffe.memory.used(CPUPlace())
    gc.disable()
    try:
        net = net_of(FIRST + LOSS % "c", plan="memory")
        trace(net, 2)
        assert minicaffe.memory.used(CPUPlace()) > before
        del net
        assert minicaffe.memory.used(CPUPlace()) == before
    finally:
        gc.enable()


BRANCH = FIRST.replace("8 kernel", "3 kernel") + layer("n", "BatchNorm", ["c"], ["c"])
POOLED = layer("p", "Pooling", ["c"], ["p"], "pooling_param { kernel_size: 2 stride: 2 }") + LOSS % "p"


@pytest.mark.parametrize("text, gone", [
    # A residual net: what BatchNorm and Scale did in place is not read again, once the sum is there
    (BRANCH + layer("s", "Scale", ["c"], ["c"]) + layer("e", "Eltwise", ["c", "x"], ["e"]) + layer("r", "ReLU", ["e"], ["e"])
     + layer("d", "Dropout", ["e"], ["d"]) + layer("b", "Bias", ["d"], ["b"]) + LOSS % "b", ["c", "d"]),
    # BatchNorm in place carries a ReLU; backward of a Sigmoid reads its top, which that of MAX pooling does not
    (BRANCH + layer("r", "ReLU", ["c"], ["c"]) + POOLED, ["c"]), (BRANCH + layer("r", "Sigmoid", ["c"], ["c"]) + POOLED, [])])
def test_unread_data_ends_with_forward(text, gone, poison, on_cpu):
    net, want = net_of(text, plan="memory"), net_of(text)
    fed_forward(net)
    assert recycled(net) == gone
    same(trace(net_of(text, plan="memory")), trace(net_of(text)))
    trace(want, 1), trace(net, 1, backward=False)
    if "Dropout" in text:       # which draws other numbers in this run
        return
    net.clear_param_diffs()
    net.add_hook(BEFORE_BACKWARD, lambda index: None)       # now they run one by one
    net.backward_from_to(len(net.nodes) - 1, 0)
    for got, expected in zip(net.learnable_params, want.learnable_params, strict=True):
        np.testing.assert_allclose(got.diff * 0.01, expected.diff, 1e-4, 1e-8)     # which `trace` has scaled


@pytest.mark.parametrize("slope", [0, 0.1])
def test_concat_with_relu_gradient_keeps_top(slope, poison, on_cpu, monkeypatch):
    """Though backward of no other layer reads it. Of a ReLU with a slope it does not compute the gradient."""
    monkeypatch.setattr(engine, "_preferred", "CAFFE")      # another would compute them with their Convolutions
    text = INPUT + "".join(layer(name, "Convolution", ["x"], [name], CONV.format(4)) + layer(
        f"{name}_relu", "ReLU", [name], [name], f"relu_param {{ negative_slope: {slope} }}") for name in "ab")
    text += layer("j", "Concat", ["a", "b"], ["j"]) + layer("p", "Pooling", ["j"], ["p"], "pooling_param { pool: AVE kernel_size: 2 stride: 2 }") + LOSS % "p"
    net = net_of(text, plan="memory")
    frees = next(row.frees for row in net.schedule().rows if row.direction == "backward" and row.layers == ["j"])
    assert ("j data" in frees) == (slope == 0)
    same(trace(net, 2), trace(net_of(text), 2))


def test_weights_are_kept_in_one_order(onednn, poison):
    text = FIRST.replace("8 kernel", "16 kernel") + LOSS % "c"
    want, net = net_of(text), net_of(text, plan="memory")
    same(trace(net, 1), trace(want, 1))
    weight = net.learnable_params[0]
    memory = weight.data_memory
    for _ in range(2):
        fed_forward(net)
        if memory.layout() is not None:     # oneDNN has one of its own on every processor that it computes on, but need not
            assert memory.head == SyncedHead.HEAD_AT_PRIVATE and not memory.own_cpu_data
            weight.cpu_data  # noqa: B018 - the second forward drops it again
            assert memory.head == SyncedHead.SYNCED_PRIVATE
    np.testing.assert_array_equal(weight.cpu_data, want.learnable_params[0].cpu_data)
    view = weight.data      # its holder may write there
    view[...] = 0
    net.forward_from_to(0, len(net.nodes) - 1)
    assert not weight.cpu_data.any() and memory.own_cpu_data


def test_recycled_and_kept_blobs(poison, device):
    """By a caller's `keep`, by a view or by another blob with the same memory."""
    text = NETS["in place"]
    net, kept, want = net_of(text, "TEST", plan="memory"), net_of(text, "TEST", plan="memory", keep=["c"]), net_of(text, "TEST")
    outside, view = Blob(net.blobs["score"].shape), net.blobs["c"].data
    outside.share_data(net.blobs["score"])
    for each in net, kept, want:
        fed_forward(each)
    np.testing.assert_array_equal(outside.data, want.blobs["score"].data)
    if device == "cpu":     # a view is of the host
        np.testing.assert_array_equal(view, want.blobs["c"].data)
    del view, outside
    fed_forward(net)
    assert recycled(net) == ["c", "score"] and recycled(kept) == ["score"]
    for read in (lambda: net.blobs["c"].data, lambda: net.blobs["c"].cpu_data, lambda: net.blobs["c"].data_at(0, 0, 0, 0),
                 lambda: net.blobs["c"].asum_data(), lambda: np.array(net.blobs["c"])):
        with pytest.raises(RecycledError, match=r"data of blob 'c' is gone.*keep=\['c'\]"):
            read()
    with pytest.raises(RecycledError, match="'c'"):     # from the middle on
        net.forward_from_to(3, 4)
    np.testing.assert_array_equal(kept.blobs["c"].data, want.blobs["c"].data)
    kept.forward_from_to(3, 4)
    want, net = net_of(text), net_of(text, plan="memory", keep=["score"])
    trace(want, 1), trace(net, 1)
    np.testing.assert_array_equal(net.blobs["score"].diff, want.blobs["score"].diff)
    with pytest.raises(RecycledError, match="diff of blob 'c'"):
        net.blobs["c"].diff  # noqa: B018
    with pytest.raises(ConfigError, match="plan: must be one of memory.* got 'memry'.*memory"):
        net_of(text, plan="memry")
    with pytest.raises(MissingNameError, match="no blob 'd'"):
        net_of(text, plan="memory", keep=["d"])


@pytest.mark.parametrize("look", ["hook", "debug_info", "layer by layer"])
def test_no_plan_with_observers(look, poison):
    want, net, seen = net_of(NETS["in place"]), net_of(NETS["in place"], plan="memory"), []
    trace(want, 2), trace(net, 1)
    if look == "hook":
        net.add_hook(1, lambda i: seen.append([top.cpu_data.copy() for top in net.nodes[i].tops]))
    net.debug_info = look == "debug_info"
    feed(net, 10)
    net.clear_param_diffs()
    if look == "layer by layer":
        for i in range(len(net.nodes)):
            net.forward_from_to(i, i)
        for i in reversed(range(len(net.nodes))):
            net.backward_from_to(i, i)
    else:
        net.forward_backward()
    assert recycled(net) == [] and len(seen) == len(net.nodes) * (look == "hook")
    # A hook reads arrays that have channels last, and sums of what was read run in plain order.
    tolerance = 1e-5 if look == "hook" and CHANNELS_LAST else 0
    for blob in net.blob_list:
        np.testing.assert_allclose(blob.data, want.blobs[blob.name].data, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(blob.diff, want.blobs[blob.name].diff, rtol=tolerance, atol=tolerance)


def test_shapes_that_change(poison):
    """Also with a test net that has the training net's memory."""
    def run(plan):
        net = net_of(NETS["accuracy"], plan=plan)
        test = make_net(NETS["accuracy"], minicaffe.TEST, workspace=net.parameters, plan=plan)
        seen = trace(net, 1) + trace(test, 1, backward=False)
        for batch in (2, 6, 3):
            for blob in net.input_blobs:
                blob.reshape(batch, *blob.shape[1:])
            seen += trace(net, 2) + trace(test, 1, backward=False)
        return seen

    same(run("memory"), run(None))


def solver_of(text, fields="", plan="memory"):
    fields = {field.name: value for field, value in parse_text(fields, caffe_pb2.SolverParameter)[0].ListFields()}
    return net_solver(text, plan, **{"weight_decay": 0.01, "random_seed": 7, **fields})


def training_of(solver, steps=3):
    """Losses, parameters and history, step for step."""
    seen = []
    for step in range(steps):
        feed(solver.net, step)
        solver.step(1)
        seen += [solver.smoothed_loss, *(blob.cpu_data.copy() for blob in solver.net.learnable_params + solver.history)]
    return seen


def check_training(text, fields="", steps=3, prepare=lambda solver: []):
    """Compare a training with the plan and one without, also lists that `prepare` gives; return the solver of the first."""
    solvers, seen = [], []
    for plan in "memory", None:
        solvers.append(solver_of(text, fields, plan))
        more = prepare(solvers[-1])
        seen.append(training_of(solvers[-1], steps) + more)
    same(*seen)
    return solvers[0]


def gradients_gone(solver):
    return sum(blob.diff_memory.head == SyncedHead.RECYCLED for blob in solver.net.learnable_params)


@pytest.mark.parametrize("name", one_of(3, NETS))
def test_an_update_along_with_backward(name, poison, on_cpu):
    solver = check_training(NETS[name])
    assert gradients_gone(solver) or not solver.net.learnable_params


def test_resumed_training_on_a_device(device):
    """Gradients that were recycled on the CPU begin at zero there."""
    if device == "cpu":
        pytest.skip("needs a device: pytest --device sim")
    seen = []
    for plan in "memory", None:
        minicaffe.set_mode_cpu()
        solver = solver_of(NETS["in place"], plan=plan)
        seen.append(training_of(solver, 2))
        minicaffe.set_mode_gpu()
        assert gradients_gone(solver) or not plan
        seen[-1] += training_of(solver, 2)
    for one, other in zip(*seen, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


@pytest.mark.parametrize("rule", ["Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_each_rule_along_with_backward(rule, poison, onednn):
    fields = f"type: '{rule}' delta: 1e-4" + (" momentum: 0" if rule in ("AdaGrad", "RMSProp") else "")
    assert gradients_gone(check_training(NETS["random 3"], fields))


@pytest.mark.parametrize("fields", ["iter_size: 2", "clip_gradients: 0.1", "clip_gradients: 0", "snapshot_diff: true snapshot_prefix: 'x'",
                                    "lr_policy: 'plateau' gamma: 0.5 plateau_winsize: 1", "callback"])
def test_gradients_stay_if_all_needed(fields, poison, on_cpu):
    def prepare(solver):
        norms = []
        if fields == "callback":
            solver.add_callback(lambda: None, lambda: norms.append([blob.asum_diff() for blob in solver.net.learnable_params]))
        return norms

    assert gradients_gone(check_training(NETS["in place"], fields.replace("callback", ""), prepare=prepare)) == 0

    class Own(SGDSolver):
        def apply_update(self):
            norms.append(sum(blob.asum_diff() for blob in self.net.learnable_params))
            return super().apply_update()

    solver, norms = Own(solver_of(NETS["in place"]).param, plan="memory"), []
    training_of(solver, 1)
    assert norms[0] > 0 and gradients_gone(solver) == 0


def test_lost_gradients_return_when_read(poison, on_cpu):
    """An iteration with debug_info between others; and the error for who reads a gradient that was used."""
    solver = check_training(NETS["in place"], "debug_info: true display: 2", 4)
    assert gradients_gone(solver) == 4
    with pytest.raises(RecycledError, match=r"diff of blob 'c\[0\]' is gone.*make the net without a plan"):
        solver.net.learnable_params[0].diff  # noqa: B018
    feed(solver.net, 4)
    solver.step(1)      # of an even number
    assert gradients_gone(solver) == 0


def test_gradientless_parameters_decay(poison, on_cpu):
    frozen = FIRST + layer("cut", "Power", ["c"], ["cut"], "propagate_down: false") + LOSS % "cut"
    before = solver_of(frozen).net.learnable_params[0].cpu_data.copy()
    solver = check_training(frozen)
    assert abs(solver.net.learnable_params[0].cpu_data - before).max() > 0 and not solver.net.nodes[1].needs_backward
    assert gradients_gone(solver) == len(solver.net.learnable_params)


def test_overwritten_recycled_gradient_skips_zeros(poison, on_cpu):
    read, overwritten = SyncedMemory(64), SyncedMemory(64)
    read.pool = overwritten.pool = poison
    assert not np.ndarray(64, np.uint8, buffer=read.cpu_data()).any() and claim_lazy_zeros(overwritten)
    assert np.ndarray(64, np.uint8, buffer=overwritten.cpu_data()).all() and not claim_lazy_zeros(overwritten)


@pytest.mark.no_plan("a net without a plan goes backward several times")
def test_saved_data_ends_with_backward(poison, onednn):
    text = FIRST.replace("8 kernel", "16 kernel") + layer("b", "BatchNorm", ["c"], ["c"]) + layer("n", "LRN", ["c"], ["n"])
    text += layer("p", "Pooling", ["n"], ["p"], "pooling_param { kernel_size: 2 }") + LOSS % "p"

    def kept_blocks():
        return sum(block.name == "[kept for backward] data" for block in minicaffe.memory.reporter.live())

    before, net = kept_blocks(), net_of(text, plan="memory")
    seen = trace(net)
    assert not poison.nbytes and poison.most > 4 * 4 * 16 * 64      # one array of c's size at least
    net.forward_from_to(0, len(net.nodes) - 1)
    assert kept_blocks() > before
    net.skip_backward()
    assert kept_blocks() == before
    fed_forward(net_of(text, "TEST", plan="memory"))
    assert kept_blocks() == before
    alone = net_of(text)
    same(seen, trace(alone))
    for _ in range(2):      # without a plan backward runs as often as one likes
        alone.backward_from_to(len(alone.nodes) - 1, 0)


class Parts(Layer):
    """Copies the records of its bottom that have their turn; the others keep what they had, in the top and in the gradient."""

    turn = 0

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward_cpu(self, bottom, top):
        self.turn += 1
        top[0].data[self.turn % 2::2] = bottom[0].cpu_data[self.turn % 2::2]

    def backward_cpu(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[self.turn % 2::2] = top[0].cpu_diff[self.turn % 2::2]


class Frozen(InnerProductLayer):
    """Drops the gradient of its weights."""

    def backward_cpu(self, top, propagate_down, bottom):
        super().backward_cpu(top, propagate_down, bottom)
        self.blobs[0].diff[...] = 0


for made in Parts, Frozen:
    register_layer(made.__name__, made)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (1, 2), (3, 0), (3, 3)])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_unwritten_memory_returns(before, after, phase, poison):
    """Zeros or what the layer wrote there before, not what other owners of the memory left: where a caller reads too early, and where a
    user's layer leaves a part, between convolutions that take and free memory.
    """
    text, last = INPUT, "x"
    for i in range(before):
        text, last = text + layer(f"a{i}", "Convolution", [last], [f"a{i}"], CONV.format(4)) + layer(f"r{i}", "ReLU", [f"a{i}"], [f"a{i}"]), f"a{i}"
    text, last = text + layer("own", "Parts", [last], ["own"]), "own"
    for i in range(after):
        text, last = text + layer(f"b{i}", "Convolution", [last], [f"b{i}"], CONV.format(4)), f"b{i}"
    net, plain = (net_of(text + LOSS % last, phase, plan=plan, keep=["a0"] if plan else []) for plan in ("memory", None))
    fed_forward(net), fed_forward(plain)
    assert not net.blobs["a0"].cpu_diff.any() and not net.blobs["score"].cpu_diff.any()
    found, wanted = (trace(each, 6, backward=phase == "TRAIN") for each in (net, plain))
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(one, other, 1e-4, 1e-6, err_msg=f"number {number}")


def test_lost_top_stays_gone(poison, on_cpu):
    text = INPUT + "".join(layer(top, "Convolution", [bottom], [top], CONV.format(4)) for bottom, top in ("xa", "ab"))
    net = net_of(text + layer("e", "Eltwise", ["a", "b"], ["e"]) + layer("r", "ReLU", ["e"], ["e"]) + LOSS % "e", plan="memory")
    trace(net, 1)
    assert net.fused()[net.layer_index("e")] == ["r"]
    net.add_hook(BEFORE_BACKWARD, lambda index: None)
    with pytest.raises(RecycledError):
        net.backward_from_to(len(net.nodes) - 1, 0)
    with pytest.raises(RecycledError, match="data of blob 'e'"):
        net.blobs["e"].data  # noqa: B018


BIG = "inner_product_param {{ num_output: {} weight_filler {{ type: 'xavier' }} bias_filler {{ value: 0.1 }} {} }}"
LARGE = INPUT + layer("a", "InnerProduct", ["x"], ["a"], BIG.format(1100, "")) + layer("r", "ReLU", ["a"], ["a"]) + layer(
    "b", "InnerProduct", ["a"], ["b"], BIG.format(1000, "")) + LOSS % "b"


@pytest.mark.parametrize("rule", one_of(4, ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"]))
@pytest.mark.parametrize("rows", [4, 40])
def test_large_gradients_used_in_parts(rule, rows, poison, on_cpu):
    """There is never all of one; the numbers are the same to the last bit."""
    fields = f"type: '{rule}' delta: 1e-4" + (" momentum: 0" if rule in ("AdaGrad", "RMSProp") else "")
    solver = check_training(LARGE.replace("dim: 4", f"dim: {rows}"), fields, 2)
    assert gradients_gone(solver) == 6 and poison.most < 4 * 1100 * 1000
    if rule == "SGD":       # a script that holds a view of one
        solver = check_training(LARGE, steps=2, prepare=lambda solver: [solver.net.layer_dict["b"].blobs[0].diff])
        assert solver.net.layer_dict["b"].blobs[0].diff.any()


@pytest.mark.parametrize("change", ["transpose: true", "shared", "tied by hand", "user's layer"])
def test_large_gradients_needed_whole(change, poison, on_cpu):
    text = LARGE.replace("dim: 3 dim: 8 dim: 8", "dim: 1100").replace("num_output: 1000", "num_output: 1100")
    if change == "shared":
        for bottom, top in ("ab", "xa"):
            text = text.replace(f'bottom: "{bottom}" top: "{top}"', f'param {{ name: "w" }} bottom: "{bottom}" top: "{top}"')
    elif change == "tied by hand":      # the lower layer's backward reads them after the upper one's gradient is complete
        text = text.replace('bottom: "x" top: "a"', 'bottom: "f" top: "a"')
        text = text.replace('layer { name: "a"', layer("f", "InnerProduct", ["x"], ["f"], BIG.format(1100, "")) + 'layer { name: "a"')
    elif change == "user's layer":
        text = LARGE.replace('name: "b" type: "InnerProduct"', 'name: "b" type: "Frozen"')
    else:
        text = text.replace("num_output: 1100", "num_output: 1100 transpose: true")

    def prepare(solver):
        if change == "tied by hand":
            solver.net.layer_dict["b"].blobs[0].share_data(solver.net.layer_dict["a"].blobs[0])
        return []

    solver = check_training(text, steps=2, prepare=prepare)
    assert gradients_gone(solver) == len(solver.net.learnable_params)


@pytest.mark.no_plan("a plan gives them part by part")
def test_large_gradients_whole_without_plan(on_cpu):
    net, parts = net_of(LARGE), []
    feed(net, 0)
    net.clear_param_diffs()
    net.forward_backward(on_gradients=lambda which, part, last: parts.append(part))
    assert set(parts) == {None} and all(blob.diff.any() for blob in net.learnable_params)


def test_what_takes_gradients_is_not_kept(poison, on_cpu):
    """Not by a layer that gave its gradient as a whole either."""
    for transpose in "true", "false":
        net, parts = net_of(LARGE.replace("num_output: 1000", f"num_output: 1000 transpose: {transpose}"), plan="memory"), []

        def take(which, part, last, parts=parts):
            parts.append(part)

        kept = weakref.ref(take)
        net.forward_backward(on_gradients=take)
        del take
        assert kept() is None and parts[-1] is None and (len(parts) > parts.count(None)) == (transpose == "false")


def test_small_layer_rows_within_gradient(poison, on_cpu):
    text = INPUT.replace("dim: 4 dim: 3 dim: 8 dim: 8", "dim: 1 dim: 1048576").replace("shape { dim: 4 }", "shape { dim: 1 }")
    training_of(solver_of(text + LOSS % "x"), 1)
    assert poison.most < 2 * 4 * 3 * 1048576


def test_error_during_update(poison, tmp_path, device):
    fields = f"snapshot_prefix: '{tmp_path}/s'"
    solver, want = solver_of(LARGE, fields), solver_of(LARGE, fields)
    training_of(solver, 4), training_of(want, 4)        # enough for a device to record a graph
    state = solver.snapshot()[1]
    update, calls, rates = solver.update, [], iter([solver.learning_rate()])

    def fail(*which):
        calls.append(which)
        if len(calls) == 3:
            raise KeyboardInterrupt
        update(*which)

    cases = [("learning_rate", lambda: next(rates), StopIteration)]     # there is none for the count
    for name, value, error in cases + [("update", fail, KeyboardInterrupt)] * (device == "cpu"):
        setattr(solver, name, value)
        with pytest.raises(error):
            solver.step(1)
        delattr(solver, name)
        for use in (lambda: solver.step(1), solver.snapshot):
            with pytest.raises(Error, match=r"iteration 4 ended in the middle of its update: some parameters may have it.*restore\(\)"):
                use()
        solver.restore(state)
    same(training_of(solver), training_of(want))
