"""One solver through any sequence of calls: its weights are those of a new solver that did the same steps in the plainest way.

The plainest way is on the CPU, with one thread, engine CAFFE, no plan, no CUDA graph, no snapshot and no error. The log of a machine holds
what the new solver has to do; `restore` puts back the log of the snapshot.
"""

import contextlib
import json

import h5py
import numpy as np
import pytest
from fragile import THEN, FragileLayer, change, conv, failing, failing_allocator, layer, look, may_raise, plainest, product
from helpers import make_net
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import minicaffe
from minicaffe.data.db import open_db
from minicaffe.engines import engine
from minicaffe.errors import Error, OutOfMemoryError
from minicaffe.memory import CPUPlace
from minicaffe.net.run import AFTER_FORWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import SGDSolver, create_solver, sgd, snapshot

LOSS = layer("loss", "SoftmaxWithLoss", "score label", "loss")
REST = (product("one", "h", "g") + layer("own", "SecondUseFragile", "g", "i") + layer("relu", "ReLU", "i", "i") + product("two", "i", "j")
        + layer("drop", "Dropout", "j", "j") + product("score", "j", "score") + LOSS)
NETS = {
    "pictures": layer("in", "Data", "", "x label", 'data_param { source: "FOLDER/db" batch_size: 3 backend: LMDB prefetch: 2 } '
                      "transform_param { crop_size: 4 mirror: true scale: 0.01 }")
                + layer("conv", "Convolution", "x", "c", 'convolution_param { num_output: 8 bias_term: false kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }')
                + layer("norm", "BatchNorm", "c", "c") + layer("scale", "Scale", "c", "c", "scale_param { bias_term: true }")
                + layer("crelu", "ReLU", "c", "c") + product("h", "c", "h") + REST,
    "rows": layer("in", "HDF5Data", "", "h label", 'hdf5_data_param { source: "FOLDER/list.txt" batch_size: 3 shuffle: true }') + REST,
    "sequences": layer("in", "DummyData", "", "x cont label", 'dummy_data_param { shape { dim: 2 dim: 3 dim: 4 } shape { dim: 2 dim: 3 } '
                       'shape { dim: 2 dim: 3 } data_filler { type: "gaussian" std: 1 } data_filler { value: 1 } data_filler { value: 2 } }')
                 + layer("lstm", "LSTM", "x cont", "h", 'recurrent_param { num_output: 5 weight_filler { type: "uniform" min: -0.5 max: 0.5 } }')
                 + REST.replace("axis: 1", "axis: 2").replace('top: "loss"', 'top: "loss" softmax_param { axis: 2 }'),
}
LENET = (layer("in", "Data", "", "x label", 'data_param { source: "FOLDER/db" batch_size: 3 backend: LMDB prefetch: 2 } transform_param { scale: 0.01 }')
         + conv("c1", "x", 8) + layer("p1", "Pooling", "c1", "p1", "pooling_param { kernel_size: 2 stride: 2 }") + conv("c2", "p1", 12)
         + layer("p2", "Pooling", "c2", "p2", "pooling_param { kernel_size: 2 stride: 2 }") + product("h", "p2", "h") + REST)
TIED = 'param { name: "w" } param { name: "b" }'
KINDS = ["SGD", "Adam", "RMSProp", "own"]
TOLERANCE = {"rtol": 2e-3, "atol": 2e-4}    # of other orders of sums, after some steps


class OwnSolver(SGDSolver):
    """A user's class."""

    def apply_update(self):
        return super().apply_update()


def make_files(folder):
    dice = np.random.default_rng(2)
    with open_db(str(folder / "db"), "LMDB", "w") as db:
        for i in range(7):
            pixels = dice.integers(0, 256, (3, 6, 6), np.uint8)
            db.put(b"%08d" % i, caffe_pb2.Datum(channels=3, height=6, width=6, label=i % 5, data=pixels.tobytes()).SerializeToString())
    for name, rows in ("a", 4), ("b", 6):       # a batch ends where the first file does not, and where the second does
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["h"], file["label"] = dice.uniform(-1, 1, (rows, 5)).astype("f"), dice.integers(0, 5, rows).astype("f")
    (folder / "list.txt").write_text(f"{folder}/a.h5\n{folder}/b.h5\n")


def build(name, kind, folder, plan=None, seed=3):
    param = caffe_pb2.SolverParameter(base_lr=0.02, lr_policy="step", stepsize=3, gamma=0.7, random_seed=seed, snapshot_after_train=False,
                                      weight_decay=0.01, type="SGD" if kind == "own" else kind)
    if kind == "RMSProp":
        param.rms_decay = 0.9
    else:
        param.momentum = 0.8
    param.delta = 0.01      # Adam and RMSProp would make steps of the rounding errors of gradients that are zero
    param.net_param.CopyFrom(parse_text({**NETS, "lenet": LENET}[name].replace("FOLDER", str(folder)), caffe_pb2.NetParameter)[0])
    return OwnSolver(param, plan=plan) if kind == "own" else create_solver(param, plan=plan)


def tied_net(name, seed):
    """Return a net whose layers `one` and `two` have the same weights, for a solver's net to share them."""
    text = ('layer { name: "in" type: "Input" top: "i" input_param { shape { dim: 2 dim: 5 } } }'
            + "".join(layer(n, "InnerProduct", "i", n, f"{TIED} inner_product_param {{ num_output: 5 }}") for n in ("one", "two")))
    net = make_net(text)
    dice = np.random.default_rng(seed)
    for blob in net.learnable_params:
        blob.data[...] = dice.uniform(-0.5, 0.5, blob.shape)
    return net


class SolverMachine(RuleBasedStateMachine):
    """`log` has what happened since the solver was made from `first_seed`, as far as restores have not undone it."""

    def __init__(self, name, gpu, folder):
        super().__init__()
        self.name, self.gpu, self.folder = name, gpu, folder
        FragileLayer.fails = None

    @initialize(kind=st.sampled_from(KINDS), plan=st.sampled_from(["memory", None]), on_gpu=st.booleans(), then=THEN)
    def make(self, kind, plan, on_gpu=False, then=0):
        minicaffe.set_mode_gpu() if on_gpu and self.gpu else minicaffe.set_mode_cpu()
        minicaffe.set_num_threads(1)
        engine.prefer("")
        self.kind, self.first_seed, self.log, self.snapshots, self.views = kind, 3, [], [], []
        self.solver = build(self.name, kind, self.folder, plan)
        self.donors, self.stepped = [], False       # whether the loss is that of the last step in the log
        self.snapshot()
        self.step(then)

    # ---- what the new solver does, too

    @rule(n=st.integers(1, 4))
    def step(self, n):
        if not n:
            return
        self.solver.step(n)
        self.stepped = True
        self.log.append(("step", n, self.solver.param.base_lr, self.solver.param.iter_size))

    seed = change("seed", range(6), lambda machine, seed: (minicaffe.set_random_seed(seed), machine.log.append(("seed", seed))))
    write = change("write", range(6), lambda machine, seed: (write(machine.solver, seed), machine.log.append(("write", seed))))
    write_history = change("write_history", range(6), lambda machine, seed: (write_history(machine.solver, seed), machine.log.append(("write_history", seed))))

    @rule(seed=st.integers(0, 5), then=THEN)
    def share(self, seed, then=0):
        """From here on two layers have one memory for their weights; states of before would not fit."""
        self.log.append(("share", seed))
        self.donors.append(tied_net(self.name, seed))
        self.solver.net.share_with(self.donors[-1])
        self.snapshots.clear()
        self.snapshot()
        self.step(then)

    base_lr = change("base_lr", [0.02, 0.05, 0.0], lambda machine, rate: setattr(machine.solver.param, "base_lr", rate))
    iter_size = change("iter_size", [1, 2], lambda machine, size: setattr(machine.solver.param, "iter_size", size))

    # ---- what changes nothing

    @rule()
    def snapshot(self):
        self.solver.param.snapshot_prefix = str(self.folder / str(len(self.snapshots)))
        self.snapshots.append((self.solver.snapshot()[1], list(self.log), self.first_seed))

    @rule(which=st.integers(0, 9), then=THEN)
    def restore(self, which, then=0):
        path, log, self.first_seed = self.snapshots[which % len(self.snapshots)]
        self.solver.restore(path)
        self.log, self.stepped = list(log), False
        self.step(then)

    @precondition(lambda self: not self.donors)
    @rule(seed=st.integers(4, 6), n=st.integers(0, 4), then=THEN)
    def restore_another(self, seed, n, then=0):
        """The state of a training from another seed, which may be at the same iteration."""
        with plainest():
            other = build(self.name, self.kind, self.folder, seed=seed)
            other.param.snapshot_prefix = str(self.folder / "other")
            other.step(n)
            path = other.snapshot()[1]
        self.solver.restore(path)
        self.first_seed, self.stepped = seed, False
        self.log = [("step", n, other.param.base_lr, 1)] if n else []
        self.step(then)

    mode = precondition(lambda machine: machine.gpu)(change("mode", [minicaffe.set_mode_cpu, minicaffe.set_mode_gpu], lambda machine, mode: mode()))
    graphs = change("graphs", [False, True], lambda machine, use: setattr(machine.solver, "use_graphs", use))
    threads = change("threads", [1, 2, 3], lambda machine, count: minicaffe.set_num_threads(count))
    prefer = change("prefer", ["", "CAFFE", "ONEDNN"], lambda machine, name: engine.prefer(name))
    set_plan = change("set_plan", ["memory", None], lambda machine, plan: machine.solver.net.set_plan(plan, machine.solver.net.output_blobs, True))
    release = change("release", [None], lambda machine, _: machine.solver.net.release())

    @rule(history=st.booleans())
    def view(self, history):
        """Keep a view of a parameter or of its history."""
        self.views.append((self.solver.history if history else self.solver.net.learnable_params)[-1].data)

    @rule()
    def hook(self):
        self.solver.net.add_hook(AFTER_FORWARD, look)
        self.step(1)
        self.solver.net.remove_hook(AFTER_FORWARD, look)

    @rule()
    def look_at_gradients(self):
        """An update of one's own for one iteration."""
        self.solver.apply_update = type(self.solver).apply_update.__get__(self.solver)
        try:
            self.step(1)
        finally:
            del self.solver.apply_update

    # ---- errors, after which only a restore is right

    @rule(where=st.sampled_from(["forward", "backward"]), which=st.integers(0, 9), then=THEN)
    def fail_in_a_layer(self, where, which, then=0):
        with failing(where), may_raise(ArithmeticError, where):
            self.solver.step(2)
        self.restore(which, then)

    @rule(nth=st.integers(1, 3), which=st.integers(0, 9), then=THEN)
    def fail_in_the_update(self, nth, which, then=0):
        """The n-th part of an update raises; by CUDA graph there may be none that the host computes."""
        real, calls = sgd.update_params, []

        def failing(*arguments):
            calls.append(arguments)
            if len(calls) == nth:
                raise ArithmeticError("update")
            return real(*arguments)

        sgd.update_params = failing
        try:
            with contextlib.suppress(ArithmeticError):
                self.solver.step(2)
        finally:
            sgd.update_params = real
        self.restore(which, then)

    @rule(nth=st.integers(1, 9), which=st.integers(0, 9), then=THEN)
    def fail_by_memory(self, nth, which, then=0):
        with failing_allocator(CPUPlace(), nth), contextlib.suppress(OutOfMemoryError):
            self.solver.step(1)
        self.restore(which, then)

    @rule()
    def fail_to_restore(self):
        """A state that does not fit leaves the solver as it is."""
        path = self.folder / "broken.solverstate"
        path.write_bytes(open(self.snapshots[-1][0], "rb").read()[:-20])
        with pytest.raises(Error, match="broken.solverstate"):
            self.solver.restore(str(path))

    # ---- the comparison

    @rule()
    def compare(self):
        with plainest():
            other = build(self.name, self.kind, self.folder, seed=self.first_seed)
            other.use_graphs = False
            for what, *arguments in self.log:
                replay(self.name, other, what, *arguments)
            expected = snapshot.own_state(other)
            loss = other.smoothed_loss
        found = snapshot.own_state(self.solver)
        assert self.solver.iter == other.iter
        assert found["generator"] == expected["generator"]
        if self.name != "sequences":        # whose states are arrays of float32
            assert json.dumps(found["train"]) == json.dumps(expected["train"])
        if self.stepped:
            np.testing.assert_allclose(self.solver.smoothed_loss, loss, rtol=5e-3, atol=1e-3)
        for mine, theirs in zip([*self.solver.net.param_table.params, *self.solver.history],
                                [*other.net.param_table.params, *other.history], strict=True):
            np.testing.assert_allclose(mine.cpu_data, theirs.cpu_data, err_msg=theirs.name, **TOLERANCE)

    def teardown(self):
        if hasattr(self, "donors"):
            self.compare()
        minicaffe.set_mode_cpu()


def write(solver, seed):
    dice = np.random.default_rng(seed)
    for blob in solver.net.learnable_params:
        blob.data[...] = dice.uniform(-0.4, 0.4, blob.shape)


def write_history(solver, seed):
    dice = np.random.default_rng(seed)
    for blob in solver.history:
        blob.data[...] = dice.uniform(0, 0.1, blob.shape)


def replay(name, solver, what, *arguments):
    """Do what an entry of a log says."""
    if what == "step":
        n, solver.param.base_lr, solver.param.iter_size = arguments
        solver.step(n)
    elif what == "seed":
        minicaffe.set_random_seed(*arguments)
    elif what in ("write", "write_history"):
        globals()[what](solver, *arguments)
    else:
        solver.net.share_with(tied_net(name, *arguments))


@pytest.mark.parametrize("name", sorted(NETS))
def test_any_sequence(search, gpu, tmp_path, name):
    make_files(tmp_path)
    search(lambda: SolverMachine(name, gpu, tmp_path), 20, 12)


SEQUENCES = {
    "a seed while a graph is replayed": ("pictures", True, lambda m: (m.step(4), m.seed(2, 3))),
    "from GPU to CPU between two batches": ("pictures", True, lambda m: (m.step(2), m.mode(minicaffe.set_mode_cpu, 2))),
    "from CPU to GPU and back": ("pictures", False, lambda m: (m.step(1), m.mode(minicaffe.set_mode_gpu, 1), m.mode(minicaffe.set_mode_cpu, 2))),
    "a state of another seed at the same iteration": ("pictures", False, lambda m: (m.step(2), m.restore_another(5, 2, 2))),
    "the same on a GPU": ("pictures", True, lambda m: (m.step(2), m.restore_another(5, 2, 2))),
    "a state in the middle of a file": ("rows", False, lambda m: (m.step(1), m.snapshot(), m.step(1), m.restore(1, 3))),
    "a state at the end of a file": ("rows", False, lambda m: (m.step(2), m.snapshot(), m.step(2), m.restore(1, 3), m.step(5), m.snapshot(),
                                                               m.step(1), m.restore(2, 4))),
    "layers that get one memory": ("rows", False, lambda m: (m.step(2), m.share(3, 3))),
    "an error in the middle of an update": ("rows", False, lambda m: (m.step(1), m.fail_in_the_update(2, 0, 3))),
    "a history that is written while a graph is replayed": ("sequences", True, lambda m: (m.step(4), m.write_history(1, 2))),
}


@pytest.mark.parametrize("plan", ["memory", None])
@pytest.mark.parametrize("title", SEQUENCES)
def test_sequences(gpu, tmp_path, title, plan):
    """Those in which faults were found, or put in, and would not always be found by a few examples."""
    name, on_gpu, calls = SEQUENCES[title]
    if not gpu and "GPU" in title + "GPU" * on_gpu:
        pytest.skip("a build without CUDA")
    make_files(tmp_path)
    machine = SolverMachine(name, gpu, tmp_path)
    machine.make("SGD", plan, on_gpu)
    calls(machine)
    machine.teardown()
