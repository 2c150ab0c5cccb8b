"""One net through any sequence of calls: then forward and backward give the bits that a new net in the same state gives."""

import contextlib

import numpy as np
import pytest
from fragile import FragileLayer, conv, layer, may_raise, product
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import minicaffe
from minicaffe.engines import engine
from minicaffe.errors import DataError, Error, OutOfMemoryError, RecycledError, ShapeError
from minicaffe.memory import CPUPlace, FailAllocator
from minicaffe.memory.registry import registry
from minicaffe.net.net import Net
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.ops.conv.operation import Convolution
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

LOSS = layer("loss", "SoftmaxWithLoss", "score label", "loss")
NETS = {
    "branches": 'force_backward: true layer { name: "in" type: "Input" top: "x" top: "label" input_param {'
                "shape { dim: 2 dim: 16 dim: 8 dim: 8 } shape { dim: 2 } } }\n"
                + conv("a", "x") + layer("abn", "BatchNorm", "a", "a", "batch_norm_param { eps: 0.5 }") + layer("asc", "Scale", "a", "a", "scale_param { bias_term: true }")
                + layer("arelu", "ReLU", "a", "a") + conv("b", "a") + layer("brelu", "ReLU", "b", "b")
                + conv("t", "b").replace("Convolution", "Deconvolution") + conv("c", "a", 8)
                + layer("join", "Concat", "t c", "join") + layer("pool", "Pooling", "join", "pool", "pooling_param { kernel_size: 2 stride: 2 }")
                + conv("d", "pool", 24) + layer("sum", "Eltwise", "d pool", "sum") + layer("srelu", "ReLU", "sum", "sum")
                + layer("drop", "Dropout", "sum", "sum") + layer("own", "SecondUseFragile", "sum", "own") + product("score", "own", "score") + LOSS,
    "shared": 'force_backward: true layer { name: "in" type: "Input" top: "x" top: "label" input_param {'
              "shape { dim: 2 dim: 5 } shape { dim: 2 } } }\n"
              + product("one", "x", "h", 'param { name: "w" } param { name: "b" }') + layer("relu", "ReLU", "h", "h")
              + layer("own", "SecondUseFragile", "h", "g") + product("two", "g", "i", 'param { name: "w" } param { name: "b" }')
              + layer("more", "Eltwise", "h i", "score", "eltwise_param { operation: PROD }") + LOSS,
    "recurrent": 'force_backward: true layer { name: "in" type: "Input" top: "x" top: "cont" top: "label" input_param {'
                 "shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } shape { dim: 3 dim: 2 } } }\n"
                 + layer("lstm", "LSTM", "x cont", "h", 'recurrent_param { num_output: 4 weight_filler { type: "uniform" min: -0.5 max: 0.5 } }')
                 + layer("own", "SecondUseFragile", "h", "g") + product("score", "g", "score", axis=2)
                 + LOSS.replace("top:", "softmax_param { axis: 2 } top:"),
}
ENGINES = ["", "CAFFE", "ONEDNN", "WINOGRAD"]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}    # of other orders of the same sums, and of fused layers


def build(name, phase, plan, batch):
    param = parse_text(NETS[name], caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    net = Net(param, plan=plan)
    resize(net, batch)
    return net


def resize(net, batch):
    for blob in net.input_blobs:
        shape = list(blob.shape)
        shape[1 if net.layer_dict.get("lstm") else 0] = batch
        blob.reshape(*shape)


def values_of(net, seed):
    """Return an array for each input by name."""
    dice = np.random.default_rng(seed)
    made = {"x": lambda shape: dice.uniform(-1, 1, shape), "label": lambda shape: dice.integers(0, 5, shape),
            "cont": lambda shape: dice.integers(0, 2, shape)}
    return {blob.name: made[blob.name](blob.shape).astype(np.float32) for blob in net.input_blobs}


def states_of(net):
    return {node.name: state for node in net.nodes if (state := node.layer.get_state()) is not None}


def look(index):
    """A hook."""


class NetMachine(RuleBasedStateMachine):
    """Calls in any order; `compare` builds the other net."""

    def __init__(self, name, gpu, folder):
        super().__init__()
        self.name, self.gpu, self.folder = name, gpu, folder
        self.views, self.hooks, self.values = [], [], {}
        FragileLayer.fails = None

    @initialize(phase=st.sampled_from([minicaffe.TRAIN, minicaffe.TEST]), plan=st.sampled_from(["memory", None]))
    def make(self, phase, plan):
        minicaffe.set_mode_cpu()
        minicaffe.set_num_threads(1)
        engine.prefer("")
        minicaffe.set_random_seed(1)
        self.phase, self.plan, self.batch = phase, plan, 2
        self.net, self.donor = (build(self.name, phase, p, 2) for p in (plan, None))
        self.shared = False
        self.feed(0, "data")

    # ---- changes

    @rule(batch=st.integers(1, 3), seed=st.integers(0, 9), propagate=st.booleans())
    def reshape(self, batch, seed, propagate):
        self.batch = batch
        resize(self.net, batch)
        if propagate:
            self.net.reshape_all()
        self.feed(seed, "data")

    @rule(seed=st.integers(0, 9), how=st.sampled_from(["data", "feed", "cpu_data", "view"]))
    def feed(self, seed, how):
        self.values = values_of(self.net, seed)
        if how == "feed":
            self.net.feed(**self.values)
            return
        for name, array in self.values.items():
            blob = self.net.blobs[name]
            view = blob.mutable_cpu_data if how == "cpu_data" else blob.data
            view[...] = array
            if how == "view":
                self.views.append(view)

    @rule(seed=st.integers(0, 9), of_donor=st.booleans(), how=st.sampled_from(["data", "gpu", "scale"]))
    def write_weights(self, seed, of_donor, how):
        dice, net = np.random.default_rng(seed), self.donor if of_donor else self.net
        for blob in net.learnable_params:
            if how == "scale":
                blob.scale_data(0.5)
                continue
            width = np.sqrt(3 / max(np.prod(blob.shape[1:]), 3))     # so that numbers neither grow from layer to layer nor end
            values = dice.uniform(-width, width, blob.shape).astype(np.float32)
            blob.data[...] = values
            if how == "gpu" and self.gpu and minicaffe.common.caffe.mode == "gpu":
                blob.mutable_gpu_data  # noqa: B018  (only the device's copy is valid)
        for node in net.nodes:
            if node.type == "BatchNorm":    # sums, and how many: 0 means a net that was never trained
                node.layer.blobs[1].data[...] = np.abs(node.layer.blobs[1].cpu_data)
                node.layer.blobs[2].data[...] = seed % 3

    @rule()
    def share(self):
        self.net.share_with(self.donor)
        self.shared = True

    @rule(seed=st.integers(0, 9))
    def copy_from(self, seed):
        self.write_weights(seed, True, "data")
        path = str(self.folder / f"{seed}.caffemodel")
        self.donor.save(path)
        self.net.copy_from(path)
        for mine, other in zip(self.net.param_table.params, self.donor.param_table.params, strict=True):
            np.testing.assert_array_equal(mine.cpu_data, other.cpu_data)

    @precondition(lambda self: self.gpu)
    @rule(mode=st.sampled_from([minicaffe.set_mode_cpu, minicaffe.set_mode_gpu]))
    def mode(self, mode):
        mode()

    @rule(count=st.integers(1, 4))
    def threads(self, count):
        minicaffe.set_num_threads(count)

    @rule(name=st.sampled_from(ENGINES))
    def prefer(self, name):
        engine.prefer(name)

    @rule(exact=st.booleans())
    def exact(self, exact):
        engine.set_exact(exact)

    @rule(plan=st.sampled_from(["memory", None]))
    def set_plan(self, plan):
        self.plan = plan
        self.net.set_plan(plan, self.net.output_blobs, self.phase == minicaffe.TRAIN)

    @rule(when=st.sampled_from([AFTER_FORWARD, BEFORE_BACKWARD]))
    def add_hook(self, when):
        self.net.add_hook(when, look)
        self.hooks.append(when)

    @precondition(lambda self: self.hooks)
    @rule()
    def remove_hook(self):
        self.net.remove_hook(self.hooks.pop(), look)

    @rule(data=st.data(), part=st.sampled_from(["data", "diff"]), writes=st.booleans())
    def view(self, data, part, writes):
        """Keep a view of a blob, and write what the next pass overwrites."""
        name = data.draw(st.sampled_from(self.net.blob_names))
        if part == "diff" and name == "loss":     # a loss has its weight there
            return
        with self.refused():
            view = getattr(self.net.blobs[name], part)
            self.views.append(view)
            if writes and (part == "diff" or name not in self.values and not name.startswith(("x_", "label_", "cont_"))):
                view[...] = 7

    @rule()
    def drop_views(self):
        self.views.clear()

    @rule()
    def release(self):
        self.net.release()

    # ---- runs

    @property
    def last(self):
        return len(self.net.nodes) - 1

    @property
    def goes_back(self):
        """A plan of a net in phase TEST keeps nothing for backward."""
        return self.phase == minicaffe.TRAIN or not self.plan

    def run(self):
        self.net.forward_from_to(0, self.last)
        if self.goes_back:
            self.net.backward_from_to(self.last, 0)

    @contextlib.contextmanager
    def refused(self):
        """What a plan or `release` freed cannot be read, and backward needs a forward before it; no other error is right."""
        try:
            yield
        except RecycledError:
            pass
        except Error as error:
            if not any(words in str(error) for words in ("run forward before backward", "saved nothing for its backward")):
                raise

    @rule()
    def forward(self):
        self.net.forward_from_to(0, self.last)

    @precondition(lambda self: self.goes_back)
    @rule()
    def backward(self):
        with self.refused():
            self.net.backward_from_to(self.last, 0)

    @rule(data=st.data(), backward=st.booleans())
    def part(self, data, backward):
        start = data.draw(st.integers(0, self.last))
        end = data.draw(st.integers(start, self.last))
        self.net.reshape_all()
        with self.refused():
            if not backward:
                self.net.forward_from_to(start, end)
            elif self.goes_back:
                self.net.backward_from_to(end, start)

    @rule(where=st.sampled_from(["forward", "backward"]))
    def fail_in_python(self, where):
        if where == "backward" and not self.goes_back:
            return
        FragileLayer.fails = where
        try:
            with may_raise(ArithmeticError, where):
                self.run()
        finally:
            FragileLayer.fails = None

    @rule()
    def fail_by_a_label(self):
        labels = self.net.blobs["label"]
        labels.data[...] = 99
        with pytest.raises(DataError, match="99"):
            self.net.forward_from_to(0, self.last)
        labels.data[...] = self.values["label"]

    @rule(nth=st.integers(1, 12))
    def fail_by_memory(self, nth):
        """The n-th block from now on is refused on the host."""
        before = registry.allocator(CPUPlace())
        failing = FailAllocator(before, nth)
        minicaffe.memory.use(CPUPlace(), failing)
        try:
            with contextlib.suppress(OutOfMemoryError):
                self.run()
        finally:
            failing.nth = 1 << 60      # blocks of a pool may come from it later
            minicaffe.memory.use(CPUPlace(), before)

    # ---- the comparison

    @rule()
    def compare(self):
        other = build(self.name, self.phase, self.plan, self.batch)
        other.reshape_all()
        for mine, theirs in zip(self.net.param_table.params, other.param_table.params, strict=True):
            theirs.data[...] = mine.cpu_data
        for name, state in states_of(self.net).items():
            with contextlib.suppress(ShapeError):   # of a batch of another size: both begin with zeros
                other.layer_dict[name].set_state(state)
        for name, array in self.values.items():
            np.testing.assert_array_equal(self.net.blobs[name].cpu_data, array, err_msg=name)
            other.blobs[name].data[...] = array
        for when in self.hooks:
            other.add_hook(when, look)
        if self.shared:
            for mine, theirs in zip(self.net.learnable_params, self.donor.learnable_params, strict=True):
                np.testing.assert_array_equal(mine.cpu_data, theirs.cpu_data)
        before = [blob.cpu_data.copy() for blob in other.param_table.params]
        wanted_all = result(other, self.goes_back)
        for i, (found, wanted) in enumerate(zip(result(self.net, self.goes_back), wanted_all, strict=True)):
            assert np.isfinite(wanted).all(), f"number {i}"
            if self.views:      # what a view shows is not fused
                np.testing.assert_allclose(found, wanted, err_msg=f"number {i}", **TOLERANCE)
            else:
                np.testing.assert_array_equal(found, wanted, err_msg=f"number {i}")

        plain = build(self.name, self.phase, None, self.batch)
        plain.add_hook(AFTER_FORWARD, look)     # so that nothing is fused
        for mine, theirs in zip(before, plain.param_table.params, strict=True):
            theirs.data[...] = mine
        for name, array in self.values.items():
            plain.blobs[name].data[...] = array
        if not states_of(plain):
            np.testing.assert_allclose(wanted_all[0], result(plain, False)[0], **TOLERANCE)

    def teardown(self):
        if hasattr(self, "net"):
            self.compare()
        minicaffe.set_mode_cpu()


def result(net, goes_back):
    """Return the numbers of two forwards and a backward: what is read from outside, parameters and gradients."""
    minicaffe.set_random_seed(5)
    net.clear_param_diffs()
    seen = []
    for _ in range(2):      # the second begins with the states that the first left
        seen += [net.forward_from_to(0, len(net.nodes) - 1), *(blob.cpu_data.copy() for blob in net.output_blobs)]
    if goes_back:
        net.backward_from_to(len(net.nodes) - 1, 0)
        seen += [net.blobs["x"].cpu_diff.copy(), *(blob.cpu_diff.copy() for blob in net.learnable_params)]
    return [*seen, *(blob.cpu_data.copy() for blob in net.param_table.params)]


@pytest.mark.parametrize("name", sorted(NETS))
def test_any_sequence(search, gpu, tmp_path, name):
    search(lambda: NetMachine(name, gpu, tmp_path), 25, 15)


SEQUENCES = {
    "a net that was never trained, fused": ("branches", minicaffe.TEST, lambda m: (m.prefer("ONEDNN"), m.write_weights(3, False, "data"))),
    "an error in a fused step": ("branches", minicaffe.TRAIN, lambda m: (m.prefer("ONEDNN"), m.compare(), m.fail_by_a_label(), m.compare())),
    "layers that get one memory": ("shared", minicaffe.TRAIN, lambda m: (m.compare(), m.share(), m.write_weights(2, True, "data"))),
    "a release while there is a view": ("branches", minicaffe.TRAIN, lambda m: (m.feed(1, "view"), m.forward(), m.release(), m.feed(2, "feed"))),
}


@pytest.mark.parametrize("plan", ["memory", None])
@pytest.mark.parametrize("title", SEQUENCES)
def test_sequences(gpu, tmp_path, title, plan):
    """Those in which faults that were put in would not always be found by a few examples."""
    name, phase, calls = SEQUENCES[title]
    machine = NetMachine(name, gpu, tmp_path)
    machine.make(phase, plan)
    calls(machine)
    machine.teardown()


def test_engines_choose_again_for_another_number_of_threads(gpu, monkeypatch):
    """What one made may be of a number of threads; a net that ran already does not keep it."""
    made = []
    for one in engine.ENGINES.values():
        if Convolution in one.kinds:
            make, *rest = one.kinds[Convolution]
            monkeypatch.setitem(one.kinds, Convolution, (lambda operation, make=make: made.append(operation) or make(operation), *rest))
    net = build("branches", minicaffe.TRAIN, None, 2)
    for count in 1, 2, 3:
        made.clear()
        minicaffe.set_num_threads(count)
        result(net, True)
        assert len({id(operation) for operation in made}) == sum("onvolution" in node.type for node in net.nodes), count
