"""The memory plan: the same numbers to the last bit as without one, out of memory that holds NaN whenever it changes its owner."""

import ctypes
import gc
import os
import random
import weakref

import numpy as np
import pytest
from helpers import make_net

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
from minicaffe.net.net import Net
from minicaffe.net.run import BEFORE_BACKWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import SGDSolver, create_solver

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
    param = parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)[0]
    param.state.phase = caffe_pb2.Phase.Value(phase)
    minicaffe.set_random_seed(7)
    return Net(param, **options)


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


def same(one, other):
    assert len(one) == len(other) and all(np.isfinite(x).all() for x in other)
    for i, (x, y) in enumerate(zip(one, other, strict=True)):
        np.testing.assert_array_equal(x, y, err_msg=f"number {i}")


def recycled(net):
    return [blob.name for blob in net.blob_list if blob.data_memory.head == SyncedHead.RECYCLED]


INPUT = """layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
"""
LOSS = """layer { name: "score" type: "InnerProduct" bottom: "%s" top: "score" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


def layer(name, kind, bottoms, tops, param=""):
    words = " ".join(f'bottom: "{b}"' for b in bottoms) + " " + " ".join(f'top: "{t}"' for t in tops)
    return f'layer {{ name: "{name}" type: "{kind}" {words} {param} }}\n'


CONV = 'convolution_param {{ num_output: {} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }}'
SAME_SHAPE = {      # kind: parameters; may it work in place
    "ReLU": ("", True), "Sigmoid": ("", True), "TanH": ("", True), "Dropout": ("dropout_param { dropout_ratio: 0.3 }", True),
    "Power": ("power_param { scale: 0.5 shift: 0.1 }", True), "BatchNorm": ("", True), "Scale": ("scale_param { bias_term: true }", True),
    "Bias": ("", True), "PReLU": ("", True), "ELU": ("", False), "BNLL": ("", False), "LRN": ("", False), "AbsVal": ("", False),
    "MVN": ("", False), "Softmax": ("", False), "Swish": ("", True), "Clip": ("clip_param { min: -1 max: 0.5 }", False),
    "Exp": ("exp_param { scale: 0.1 }", True), "Pooling": ("pooling_param { kernel_size: 3 stride: 1 pad: 1 }", False),
    "Tile": ("tile_param { tiles: 1 }", False)}
TOP_IS_FREE = ("BatchNorm", "Scale", "Bias", "Power", "Dropout")    # backward does not read the top, which others may overwrite


def random_net(seed):
    """A graph of layers on arrays of 4 x channels x 8 x 8: branches, in place, views, losses in the middle, blobs without a reader."""
    dice = random.Random(seed)
    text, live, count = INPUT, [("x", 3)], 0
    in_place_ok = set()         # blobs without another reader, and whose layers do not need them in backward
    for _ in range(dice.randint(4, 16)):
        count += 1
        name, choice = f"l{count}", dice.random()
        bottom, channels = dice.choice(live)
        if choice < 0.2:
            made = dice.choice([3, 5, 8, 16])
            text += layer(name, "Convolution", [bottom], [name], CONV.format(made))
            live.append((name, made))
            in_place_ok.add(name)
        elif choice < 0.6:
            kind = dice.choice(sorted(SAME_SHAPE))
            param, in_place = SAME_SHAPE[kind]
            if in_place and bottom in in_place_ok and dice.random() < 0.6:
                text += layer(name, kind, [bottom], [bottom], param)
                if kind not in TOP_IS_FREE:
                    in_place_ok.discard(bottom)
            else:
                text += layer(name, kind, [bottom], [name], param)
                in_place_ok.discard(bottom)
                live.append((name, channels))
        elif choice < 0.72:
            others = [b for b, c in live if c == channels]
            pair = [bottom, dice.choice(others)]
            text += layer(name, "Eltwise", pair, [name], f"eltwise_param {{ operation: {dice.choice(['SUM', 'MAX', 'PROD'])} }}")
            in_place_ok -= set(pair)
            live.append((name, channels))
        elif choice < 0.82:
            other = dice.choice(live)
            text += layer(name, "Concat", [bottom, other[0]], [name])
            in_place_ok -= {bottom, other[0]}
            live.append((name, channels + other[1]))
        elif choice < 0.9 and channels > 1:
            cut = dice.randint(1, channels - 1)
            text += layer(name, "Slice", [bottom], [name + "a", name + "b"], f"slice_param {{ slice_point: {cut} }}")
            in_place_ok.discard(bottom)
            live += [(name + "a", cut), (name + "b", channels - cut)]
        elif choice < 0.95:
            text += layer(name, "Reshape", [bottom], [name], "reshape_param { shape { dim: 0 dim: 0 dim: 8 dim: -1 } }")
            in_place_ok.discard(bottom)
            live.append((name, channels))
        else:
            text += layer(name, "Reduction", [bottom], [name + "_loss"], "reduction_param { operation: SUMSQ } loss_weight: 0.01")
            in_place_ok.discard(bottom)
    return text + LOSS % dice.choice(live[-3:])[0]


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
    "LSTM": """layer { name: "in" type: "Input" top: "x" top: "cont" top: "label" input_param { shape { dim: 3 dim: 4 dim: 5 }
  shape { dim: 3 dim: 4 } shape { dim: 3 } } }
layer { name: "c" type: "Power" bottom: "cont" top: "c" power_param { scale: 0 shift: 1 } propagate_down: false }
layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 5 axis: 2
  weight_filler { type: "xavier" } } }
layer { name: "lstm" type: "LSTM" bottom: "y" bottom: "c" top: "h" recurrent_param { num_output: 6
  weight_filler { type: "uniform" min: -0.1 max: 0.1 } } }
""" + LOSS % "h",
    "LSTM whose states are learned": """layer { name: "in" type: "Input" top: "x" top: "c" top: "label" top: "s" input_param {
  shape { dim: 3 dim: 4 dim: 5 } shape { dim: 3 dim: 4 } shape { dim: 3 } shape { dim: 1 dim: 4 dim: 5 } } }
""" + "".join(
        layer(name, "InnerProduct", ["s"], [name], "inner_product_param { num_output: 6 axis: 2 weight_filler { type: 'xavier' } }")
        for name in ("h0", "c0"))
    + layer("lstm", "LSTM", ["x", "c", "h0", "c0"], ["h", "hT", "cT"], """recurrent_param { num_output: 6 expose_hidden: true
  weight_filler { type: "uniform" min: -0.1 max: 0.1 } }""") + layer("end", "Silence", ["hT", "cT"], []) + LOSS % "h",
    **{f"random {seed}": random_net(seed) for seed in range(60)},
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("how", ["train", "iter_size", "test"])
def test_numbers_are_those_without_a_plan(name, how, poison, device):
    options = {"accumulate": 2 if how == "iter_size" else 1, "backward": how != "test", "steps": 2}
    phase = "TEST" if how == "test" else "TRAIN"
    want = trace(net_of(NETS[name], phase), **options)
    same(trace(net_of(NETS[name], phase, plan="memory"), **options), want)
    assert poison.most > 0 or device != "cpu"


@pytest.mark.parametrize("name", NETS)
def test_fused_equals_separate_layers(name):
    """A net that is observed computes no layers together."""
    seen = trace(net_of(NETS[name], dtype=Dtype.DOUBLE), 1)
    watched = net_of(NETS[name], dtype=Dtype.DOUBLE)
    watched.add_hook(BEFORE_BACKWARD, lambda index: None)
    for one, other in zip(seen, trace(watched, 1), strict=True):
        np.testing.assert_allclose(one, other, 1e-9, 1e-9)


def test_with_private_layouts(onednn, poison):
    used = 0
    for text in NETS.values():
        want = trace(net_of(text), steps=2)
        net = net_of(text, plan="memory")
        same(trace(net, steps=2), want)
        used += any(row["engine"] == "ONEDNN" for row in net.engines())
    assert used > 20


def test_training_and_test_net_share_workspace(poison):
    def run(plan):
        training = net_of(NETS["accuracy"], plan=plan)
        test = make_net("state { phase: TEST }" + NETS["accuracy"], workspace=training.parameters, plan=plan)
        return [part for _ in range(3) for part in trace(training, 1) + trace(test, 1, backward=False)]

    same(run("memory"), run(None))


def test_less_memory(poison, on_cpu, monkeypatch):
    """A chain of 12 inner products: forward needs two blobs at once, a training the data of all and the diffs of two."""
    monkeypatch.setattr(engine, "_preferred", "CAFFE")      # another would keep some of them in two layouts
    inner = "inner_product_param { num_output: 256 }"
    text = INPUT + layer("c0", "InnerProduct", ["x"], ["c0"], inner)
    for i in range(12):
        text += layer(f"c{i + 1}", "InnerProduct", [f"c{i}"], [f"c{i + 1}"], inner)
    text += LOSS % "c12"
    blob = 4 * 256 * 4
    net = net_of(text, "TEST", plan="memory")
    trace(net, 2, backward=False)
    assert 2 * blob <= poison.most < 3 * blob
    net = None
    poison.most = 0
    trace(net_of(text, plan="memory"), 2)
    assert 13 * blob < poison.most < 16 * blob


def test_memory_freed_with_net(poison, on_cpu):
    """Not with a collection later."""
    gc.collect()
    before = minicaffe.memory.used(CPUPlace())
    gc.disable()
    try:
        net = net_of(INPUT + layer("c", "Convolution", ["x"], ["c"], CONV.format(16)) + LOSS % "c", plan="memory")
        trace(net, 2)
        assert minicaffe.memory.used(CPUPlace()) > before
        del net
        assert minicaffe.memory.used(CPUPlace()) == before
    finally:
        gc.enable()


def test_unread_data_ends_with_forward(poison, on_cpu):
    """As the branch of a residual net: what BatchNorm and Scale did in place is not read again, once the sum is there."""
    branch = layer("n", "BatchNorm", ["c"], ["c"]) + layer("s", "Scale", ["c"], ["c"])
    text = INPUT + layer("c", "Convolution", ["x"], ["c"], CONV.format(3)) + branch + layer("e", "Eltwise", ["c", "x"], ["e"])
    text += layer("r", "ReLU", ["e"], ["e"]) + layer("d", "Dropout", ["e"], ["d"]) + layer("b", "Bias", ["d"], ["b"]) + LOSS % "b"
    net = net_of(text, plan="memory")
    fed_forward(net)
    assert recycled(net) == ["c", "d"]
    same(trace(net_of(text, plan="memory")), trace(net_of(text)))


@pytest.mark.parametrize("kind, gone", [("ReLU", ["c"]), ("Sigmoid", [])])
def test_carried_data_ends_with_forward(kind, gone, poison, on_cpu):
    """BatchNorm in place carries a ReLU; backward of a Sigmoid reads its top, which that of MAX pooling does not."""
    text = FIRST + layer("n", "BatchNorm", ["c"], ["c"]) + layer("r", kind, ["c"], ["c"])
    text += layer("p", "Pooling", ["c"], ["p"], "pooling_param { kernel_size: 2 stride: 2 }") + LOSS % "p"
    net = net_of(text, plan="memory")
    fed_forward(net)
    assert recycled(net) == gone
    same(trace(net_of(text, plan="memory")), trace(net_of(text)))
    want = net_of(text)
    trace(want, 1), trace(net, 1, backward=False)
    net.clear_param_diffs()
    net.add_hook(BEFORE_BACKWARD, lambda index: None)       # now they run one by one
    net.backward_from_to(len(net.nodes) - 1, 0)
    for got, expected in zip(net.learnable_params, want.learnable_params, strict=True):
        np.testing.assert_allclose(got.diff * 0.01, expected.diff, 1e-4, 1e-8)     # which `trace` has scaled


@pytest.mark.parametrize("slope", [0, 0.1])
def test_concat_with_relu_gradient_keeps_top(slope, poison, on_cpu, monkeypatch):
    """Though backward of no other layer reads it. Of a ReLU with a slope it does not compute the gradient."""
    monkeypatch.setattr(engine, "_preferred", "CAFFE")      # another would compute them with their Convolutions
    text = INPUT
    for name in "ab":
        text += layer(name, "Convolution", ["x"], [name], CONV.format(4))
        text += layer(f"{name}_relu", "ReLU", [name], [name], f"relu_param {{ negative_slope: {slope} }}")
    text += layer("j", "Concat", ["a", "b"], ["j"]) + layer("p", "Pooling", ["j"], ["p"], "pooling_param { pool: AVE kernel_size: 2 stride: 2 }")
    net = net_of(text + LOSS % "p", plan="memory")
    frees = next(row.frees for row in net.schedule().rows if row.direction == "backward" and row.layers == ["j"])
    assert ("j data" in frees) == (slope == 0)
    same(trace(net, 2), trace(net_of(text + LOSS % "p"), 2))


def test_weights_are_kept_in_one_order(onednn, poison):
    text = INPUT + layer("c", "Convolution", ["x"], ["c"], CONV.format(16)) + LOSS % "c"
    want, net = net_of(text), net_of(text, plan="memory")
    same(trace(net, 1), trace(want, 1))
    memory = net.learnable_params[0].data_memory
    values = want.learnable_params[0].cpu_data
    for _ in range(2):
        fed_forward(net)
        if memory.layout() is not None:     # oneDNN has one of its own on every processor that it computes on, but need not
            assert memory.head == SyncedHead.HEAD_AT_PRIVATE and not memory.own_cpu_data
            net.learnable_params[0].cpu_data  # noqa: B018 - the second forward drops it again
            assert memory.head == SyncedHead.SYNCED_PRIVATE
    np.testing.assert_array_equal(net.learnable_params[0].cpu_data, values)
    view = net.learnable_params[0].data     # its holder may write there
    view[...] = 0
    net.forward_from_to(0, len(net.nodes) - 1)
    assert not net.learnable_params[0].cpu_data.any() and memory.own_cpu_data


def test_recycled_and_kept_blobs(poison):
    net = net_of(NETS["in place"], "TEST", plan="memory")
    trace(net, 1, backward=False)
    assert recycled(net) == ["c", "score"]
    for read in (lambda: net.blobs["c"].data, lambda: net.blobs["c"].cpu_data, lambda: net.blobs["c"].data_at(0, 0, 0, 0),
                 lambda: net.blobs["c"].asum_data(), lambda: np.array(net.blobs["c"])):
        with pytest.raises(RecycledError, match=r"data of blob 'c' is gone.*keep=\['c'\]"):
            read()
    with pytest.raises(RecycledError, match="'c'"):     # from the middle on
        net.forward_from_to(3, 4)
    want = net_of(NETS["in place"], "TEST")
    trace(want, 1, backward=False)
    kept = net_of(NETS["in place"], "TEST", plan="memory", keep=["c"])
    trace(kept, 1, backward=False)
    assert recycled(kept) == ["score"]
    np.testing.assert_array_equal(kept.blobs["c"].data, want.blobs["c"].data)
    kept.forward_from_to(3, 4)
    want, net = net_of(NETS["in place"]), net_of(NETS["in place"], plan="memory", keep=["score"])
    trace(want, 1), trace(net, 1)
    np.testing.assert_array_equal(net.blobs["score"].diff, want.blobs["score"].diff)
    with pytest.raises(RecycledError, match="diff of blob 'c'"):
        net.blobs["c"].diff  # noqa: B018
    with pytest.raises(ConfigError, match="plan: must be one of memory.* got 'memry'.*memory"):
        net_of(NETS["in place"], plan="memry")
    with pytest.raises(MissingNameError, match="no blob 'd'"):
        net_of(NETS["in place"], plan="memory", keep=["d"])


@pytest.mark.parametrize("look", ["hook", "debug_info", "layer by layer"])
def test_no_plan_with_observers(look, poison):
    want, net = net_of(NETS["in place"]), net_of(NETS["in place"], plan="memory")
    trace(want, 2), trace(net, 1)
    seen = []
    if look == "hook":
        net.add_hook(1, lambda i: seen.append([top.cpu_data.copy() for top in net.nodes[i].tops]))
    elif look == "debug_info":
        net.debug_info = True
    feed(net, 10)
    net.clear_param_diffs()
    if look == "layer by layer":
        for i in range(len(net.nodes)):
            net.forward_from_to(i, i)
        for i in reversed(range(len(net.nodes))):
            net.backward_from_to(i, i)
    else:
        net.forward_backward()
    assert recycled(net) == []
    assert look != "hook" or len(seen) == len(net.nodes)
    # A hook reads arrays that have channels last, and sums of what was read run in plain order.
    tolerance = 1e-5 if look == "hook" and CHANNELS_LAST else 0
    for blob in net.blob_list:
        np.testing.assert_allclose(blob.data, want.blobs[blob.name].data, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(blob.diff, want.blobs[blob.name].diff, rtol=tolerance, atol=tolerance)


def test_views_and_memory_of_others_stay(poison, on_cpu):
    net = net_of(NETS["in place"], "TEST", plan="memory")
    outside = Blob(net.blobs["score"].shape)
    view = net.blobs["c"].data
    outside.share_data(net.blobs["score"])
    want = net_of(NETS["in place"], "TEST")
    fed_forward(net), fed_forward(want)
    np.testing.assert_array_equal(view, want.blobs["c"].data)
    np.testing.assert_array_equal(outside.data, want.blobs["score"].data)
    del view, outside
    net.forward_from_to(0, len(net.nodes) - 1)
    assert recycled(net) == ["c", "score"]


def test_shapes_that_change(poison):
    def run(plan):
        net = net_of(NETS["random 3"], plan=plan)
        seen = trace(net, 1)
        for batch in (2, 6, 3):
            for blob in net.input_blobs:
                blob.reshape(batch, *blob.shape[1:])
            seen += trace(net, 2)
        return seen

    same(run("memory"), run(None))


def solver_of(text, fields="", plan="memory"):
    param = parse_text("type: 'SGD' base_lr: 0.05 lr_policy: 'fixed' momentum: 0.9 weight_decay: 0.01 random_seed: 7",
                       caffe_pb2.SolverParameter)[0]
    param.MergeFrom(parse_text(fields, caffe_pb2.SolverParameter)[0])
    param.net_param.CopyFrom(parse_text(text, caffe_pb2.NetParameter)[0])
    return create_solver(param, plan=plan)


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


@pytest.mark.parametrize("name", NETS)
def test_an_update_along_with_backward(name, poison, on_cpu):
    solver = check_training(NETS[name])
    assert gradients_gone(solver) or not solver.net.learnable_params


def test_resumed_training_on_a_device(device):
    """Gradients that were recycled on the CPU begin at zero there."""
    if device == "cpu":
        pytest.skip("needs a device: pytest --device sim")

    def run(plan):
        minicaffe.set_mode_cpu()
        try:
            solver = solver_of(NETS["in place"], plan=plan)
            seen = training_of(solver, 2)
        finally:
            minicaffe.set_mode_gpu()
        assert gradients_gone(solver) or not plan
        return seen + training_of(solver, 2)

    for one, other in zip(run("memory"), run(None), strict=True):
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

    solver = check_training(NETS["in place"], fields if fields != "callback" else "", prepare=prepare)
    assert gradients_gone(solver) == 0


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


def test_user_update_gets_all_gradients(poison, on_cpu):
    class Own(SGDSolver):
        def apply_update(self):
            norms.append(sum(blob.asum_diff() for blob in self.net.learnable_params))
            return super().apply_update()
    solver, norms = Own(solver_of(NETS["in place"]).param, plan="memory"), []
    feed(solver.net, 0)
    solver.step(1)
    assert norms[0] > 0 and gradients_gone(solver) == 0


def test_overwritten_recycled_gradient_skips_zeros(poison, on_cpu):
    read, overwritten = SyncedMemory(64), SyncedMemory(64)
    read.pool = overwritten.pool = poison
    assert not np.ndarray(64, np.uint8, buffer=read.cpu_data()).any()
    assert claim_lazy_zeros(overwritten) and overwritten.head == SyncedHead.HEAD_AT_CPU
    assert np.ndarray(64, np.uint8, buffer=overwritten.cpu_data()).all() and not claim_lazy_zeros(overwritten)


@pytest.mark.no_plan("a net without a plan goes backward several times")
def test_saved_data_ends_with_backward(poison, onednn):
    text = INPUT + layer("c", "Convolution", ["x"], ["c"], CONV.format(16)) + layer("b", "BatchNorm", ["c"], ["c"])
    text += layer("n", "LRN", ["c"], ["n"]) + layer("p", "Pooling", ["n"], ["p"], "pooling_param { kernel_size: 2 }") + LOSS % "p"
    def kept_blocks():
        return sum(block.name == "[kept for backward] data" for block in minicaffe.memory.reporter.live())

    before, net = kept_blocks(), net_of(text, plan="memory")
    seen = trace(net)
    assert not poison.nbytes and poison.most > 4 * 4 * 16 * 64      # one array of c's size at least
    net.forward_from_to(0, len(net.nodes) - 1)
    assert kept_blocks() > before
    net.skip_backward()
    assert kept_blocks() == before
    tested = net_of(text, "TEST", plan="memory")
    tested.forward_from_to(0, len(tested.nodes) - 1)
    assert kept_blocks() == before
    alone = net_of(text)
    same(seen, trace(alone))
    for _ in range(2):      # without a plan backward runs as often as one likes
        alone.backward_from_to(len(alone.nodes) - 1, 0)


class TwoRows(Layer):
    """Passes two of its rows on, and leaves the others."""

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward_cpu(self, bottom, top):
        top[0].data[:2] = bottom[0].data[:2]

    def backward_cpu(self, top, propagate_down, bottom):
        bottom[0].diff[:2] = top[0].diff[:2]


class Frozen(InnerProductLayer):
    """Drops the gradient of its weights."""

    def backward_cpu(self, top, propagate_down, bottom):
        super().backward_cpu(top, propagate_down, bottom)
        self.blobs[0].diff[...] = 0


for made in TwoRows, Frozen:
    register_layer(made.__name__, made)


def test_unwritten_memory_is_zero(poison, on_cpu):
    """Not what other owners of the memory left: where a caller reads too early, and where a user's layer leaves a part."""
    text = FIRST + layer("t", "TwoRows", ["c"], ["t"]) + LOSS % "t"
    net = net_of(text, plan="memory", keep=["c"])
    fed_forward(net)
    assert not net.blobs["c"].cpu_diff.any() and not net.blobs["score"].cpu_diff.any()
    same(trace(net_of(text, plan="memory")), trace(net_of(text)))


def test_lost_top_stays_gone(poison, on_cpu):
    text = INPUT + layer("a", "Convolution", ["x"], ["a"], CONV.format(4)) + layer("b", "Convolution", ["a"], ["b"], CONV.format(4))
    text += layer("e", "Eltwise", ["a", "b"], ["e"]) + layer("r", "ReLU", ["e"], ["e"]) + LOSS % "e"
    net = net_of(text, plan="memory")
    trace(net, 1)
    assert net.fused()[[node.name for node in net.nodes].index("e")] == ["r"]
    net.add_hook(BEFORE_BACKWARD, lambda index: None)
    with pytest.raises(RecycledError):
        net.backward_from_to(len(net.nodes) - 1, 0)
    with pytest.raises(RecycledError, match="data of blob 'e'"):
        net.blobs["e"].data  # noqa: B018


BIG = "inner_product_param {{ num_output: {} weight_filler {{ type: 'xavier' }} bias_filler {{ value: 0.1 }} {} }}"
LARGE = INPUT + layer("a", "InnerProduct", ["x"], ["a"], BIG.format(1100, "")) + layer(
    "r", "ReLU", ["a"], ["a"]) + layer("b", "InnerProduct", ["a"], ["b"], BIG.format(1000, "")) + LOSS % "b"


@pytest.mark.parametrize("rule", ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
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
        text = text.replace('name: "a" type: "InnerProduct" bottom: "x"', 'name: "a" type: "InnerProduct" bottom: "f"')
        text = text.replace('layer { name: "a"', layer("f", "InnerProduct", ["x"], ["f"], BIG.format(1100, "")) + 'layer { name: "a"')
    elif change == "user's layer":
        text = LARGE.replace('name: "b" type: "InnerProduct"', 'name: "b" type: "Frozen"')
    else:
        text = text.replace("num_output: 1100", "num_output: 1100 transpose: true")

    def prepare(solver):
        if change == "tied by hand":
            layers = solver.net.layer_dict
            layers["b"].blobs[0].share_data(layers["a"].blobs[0])
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
    class Take:
        def __call__(self, which, part, last):
            parts.append(part)

    for transpose in "true", "false":
        net, parts, take = net_of(LARGE.replace("num_output: 1000", f"num_output: 1000 transpose: {transpose}"), plan="memory"), [], Take()
        kept = weakref.ref(take)
        net.forward_backward(on_gradients=take)
        del take
        assert kept() is None and parts[-1] is None and (len(parts) > parts.count(None)) == (transpose == "false")


def test_small_layer_rows_within_gradient(poison, on_cpu):
    text = INPUT.replace("dim: 4 dim: 3 dim: 8 dim: 8", "dim: 1 dim: 1048576").replace("shape { dim: 4 }", "shape { dim: 1 }")
    solver = solver_of(text + LOSS % "x")
    training_of(solver, 1)
    assert poison.most < 2 * 4 * 3 * 1048576


def test_an_error_between_update_and_count(poison, on_cpu, tmp_path):
    solver = solver_of(LARGE, f"snapshot_prefix: '{tmp_path}/s'")
    training_of(solver, 1)
    rates = iter([solver.learning_rate()])      # for the update; there is none for the count
    solver.learning_rate = lambda: next(rates)
    with pytest.raises(StopIteration):
        solver.step(1)
    with pytest.raises(Error, match="iteration 1 ended in the middle of its update: some parameters may have it"):
        solver.snapshot()


def test_error_during_update(poison, on_cpu, tmp_path):
    fields = f"snapshot_prefix: '{tmp_path}/s'"
    solver, want = solver_of(LARGE, fields), solver_of(LARGE, fields)
    training_of(solver, 1), training_of(want, 1)
    state = solver.snapshot()[1]
    update, calls = solver.update, []

    def fail(*which):
        calls.append(which)
        if len(calls) == 3:
            raise KeyboardInterrupt
        update(*which)

    solver.update = fail
    with pytest.raises(KeyboardInterrupt):
        solver.step(1)
    del solver.update
    for use in (lambda: solver.step(1), solver.snapshot):
        with pytest.raises(Error, match=r"iteration 1 ended in the middle of its update.*restore\(\)"):
            use()
    solver.restore(state)
    same(training_of(solver), training_of(want))
