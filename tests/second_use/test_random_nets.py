"""Random nets through random changes and errors: each comparison is with a plain model in NumPy, or with a new net.

``--examples 5000`` tries so many nets, from a random seed on; a failure names its seed, and ``--program SEED`` runs that one.
"""

import contextlib
import random

import numpy as np
import pytest
from fragile import FragileLayer, conv, failing, failing_allocator, layer, may_raise, product
from helpers import make_net
from random_nets import BATCHES, Program

import minicaffe
from minicaffe.engines import engine
from minicaffe.errors import DataError, Error, OutOfMemoryError, RecycledError, ShapeError
from minicaffe.memory import CPUPlace
from minicaffe.net.net import Net
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.ops.conv.operation import Convolution
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

TOLERANCE = 5e-4    # of the largest value; engine WINOGRAD and float32 in some ten layers


def look(index):
    """A hook."""


class Recurrent:
    """A net without a plain model, whose LSTM keeps a state: it is compared with new nets only."""

    TEXT = ('force_backward: true layer { name: "in" type: "Input" top: "x" top: "cont" top: "label" input_param {'
            "shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } shape { dim: 3 dim: 2 } } }\n"
            + layer("lstm", "LSTM", "x cont", "h", 'recurrent_param { num_output: 4 weight_filler { type: "uniform" min: -0.5 max: 0.5 } }')
            + layer("own", "SecondUseFragile", "h", "g") + product("score", "g", "score", axis=2)
            + layer("loss", "SoftmaxWithLoss", "score label", "loss", "softmax_param { axis: 2 }"))
    layers, params, level, stages = (), {}, 0, ()
    inputs = {"x": ((4,), None, True), "cont": ((), 2, True), "label": ((), 5, True)}

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.phase = self.dice.choice([minicaffe.TRAIN, minicaffe.TEST])

    def text(self, renamed=()):
        return self.TEXT

    def inputs_of(self, batch, seed):
        dice = np.random.default_rng(seed)
        return {name: (dice.uniform(-1, 1, (3, batch, *rest)) if classes is None else dice.integers(0, classes, (3, batch))).astype(np.float32)
                for name, (rest, classes, _) in self.inputs.items()}


class Machine:
    """A net, its model, and what may be changed between two comparisons."""

    def __init__(self, program, gpu, folder):
        self.program, self.dice, self.gpu, self.folder = program, program.dice, gpu, folder
        self.params = {key: array.copy() for key, array in program.params.items()}
        self.batch, self.plan, self.hooks, self.views, self.donor = BATCHES[0], self.dice.choice([None, "memory"]), [], [], None
        self.change_engine()
        self.net = self.build(program.text(), self.plan)
        self.write(self.net, self.params)
        self.feed(program.inputs_of(self.batch, 0))

    def build(self, text, plan=None):
        param = parse_text(text, caffe_pb2.NetParameter)[0]
        param.state.phase, param.state.level = self.program.phase, self.program.level
        param.state.stage.extend(self.program.stages)
        return Net(param, plan=plan)

    def feed(self, values, net=None):
        for name, array in values.items():
            blob = (net or self.net).blobs[name]
            blob.reshape(*array.shape)
            blob.data[...] = array

    def parameters(self, net, renamed=()):
        """Yield each blob, its key in the model, and its layer."""
        for one in self.program.layers:
            for i, key in enumerate(one.keys):
                yield net.layer_dict[f"{one.name}_other" if one.name in renamed else one.name].blobs[i], key, one

    def write(self, net, params, renamed=()):
        for blob, key, _ in self.parameters(net, renamed):
            assert blob.shape == params[key].shape, (key, blob.shape)
            blob.data[...] = params[key]

    def read_params(self):
        """Only a forward changes parameters, those of BatchNorm."""
        for blob, key, one in self.parameters(self.net):
            if one.kind != "BatchNorm":
                np.testing.assert_array_equal(blob.cpu_data, self.params[key], err_msg=f"parameter {key}")
            self.params[key] = blob.cpu_data.copy()

    def fresh(self):
        """Other values for all parameters."""
        dice = np.random.default_rng(self.dice.randrange(1 << 30))
        return {key: array + dice.uniform(-0.05, 0.05, array.shape).astype(np.float32) * (array.shape != (1,)) for key, array in self.params.items()}

    @property
    def goes_back(self):
        """A plan of a net in phase TEST keeps nothing for backward."""
        return self.program.phase == minicaffe.TRAIN or not self.plan

    # ---- changes

    def change_batch(self):
        self.batch = self.dice.choice(BATCHES)
        for name, array in self.program.inputs_of(self.batch, 0).items():
            self.net.blobs[name].reshape(*array.shape)
        if self.dice.random() < 0.5:
            self.net.reshape_all()

    def change_plan(self):
        self.plan = self.dice.choice([None, "memory"])
        self.net.set_plan(self.plan, self.net.output_blobs, self.program.phase == minicaffe.TRAIN)

    def change_engine(self):
        engine.prefer(self.dice.choice(["", "CAFFE", "ONEDNN", "ONEDNN", "ONEDNN", "WINOGRAD"]))
        engine.set_exact(self.dice.random() < 0.2)

    def change_threads(self):
        minicaffe.set_num_threads(self.dice.randint(1, 3))

    def change_mode(self):
        self.dice.choice([minicaffe.set_mode_cpu, minicaffe.set_mode_gpu] if self.gpu else [minicaffe.set_mode_cpu])()

    def change_hooks(self):
        if self.hooks:
            self.net.remove_hook(self.hooks.pop(), look)
        else:
            self.hooks.append(self.dice.choice([AFTER_FORWARD, BEFORE_BACKWARD]))
            self.net.add_hook(self.hooks[-1], look)

    def change_views(self):
        """Keep a view of a blob, and write what the next pass overwrites; or drop all views."""
        if self.dice.random() < 0.4:
            self.views.clear()
        name, part = self.dice.choice(self.net.blob_names), self.dice.choice(["data", "diff"])
        weighted = {top for one in self.program.layers for top, weight in zip(one.tops, one.weights) if weight} | {"loss"}
        if part == "diff" and name in weighted:     # a loss has its weight there
            return
        with self.refused():
            self.views.append(getattr(self.net.blobs[name], part))
            fixed = any(one.kind == "Parameter" for one in self.program.layers) or any(name == i or name.startswith(f"{i}_") for i in self.program.inputs)
            # A diff that nothing overwrites, of an output, is the gradient that a caller asks for.
            overwritten = not fixed if part == "data" else not self.program.layers
            if overwritten and self.dice.random() < 0.5:
                self.views[-1][...] = 7

    def change_params(self):
        self.params = self.fresh()
        self.write(self.net, self.params)
        if self.donor is not None:
            self.check_params(self.donor)

    def check_params(self, net):
        for blob, key, _ in self.parameters(net):
            np.testing.assert_array_equal(blob.cpu_data, self.params[key], err_msg=f"parameter {key}")

    def share(self):
        self.donor = self.build(self.program.text())
        self.params = self.fresh()
        self.write(self.donor, self.params)
        self.net.share_with(self.donor)

    def copy(self):
        """From a file in which some layers have other names."""
        renamed = {one.name for one in self.program.layers if one.keys and not one.shared and self.dice.random() < 0.4}
        donor, values = self.build(self.program.text(renamed)), self.fresh()
        self.write(donor, values, renamed)
        name, copy = self.dice.choice([("a.caffemodel", donor.save), ("a.caffemodel.h5", donor.save_hdf5)])
        copy(str(self.folder / name))
        self.net.copy_from(str(self.folder / name))
        self.params |= {key: array for key, array in values.items() if key[0] not in renamed}
        self.check_params(self.net)

    def release(self):
        self.net.release()

    # ---- runs that nothing compares, and errors

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

    def run_part(self):
        count = len(self.net.nodes)
        begin = self.dice.randrange(count)
        end = self.dice.randrange(begin, count)
        self.net.reshape_all()
        with self.refused():
            if self.dice.random() < 0.5:
                self.net.forward_from_to(begin, end)
            elif self.goes_back:
                self.net.backward_from_to(end, begin)

    def run_all(self):
        self.net.forward_from_to(0, len(self.net.nodes) - 1)
        if self.goes_back:
            self.net.backward_from_to(len(self.net.nodes) - 1, 0)

    def fail_in_python(self):
        where = self.dice.choice(["forward", "backward"])
        certain = where == "forward" and "own" in self.net.layer_dict
        with failing(where), may_raise(ArithmeticError, "forward") if certain else contextlib.suppress(ArithmeticError):
            self.run_all()

    def fail_by_a_label(self):
        """Labels of regressions may have any value."""
        checked = "loss" in self.net.layer_dict or any(one.kind in ("SoftmaxWithLoss", "HingeLoss", "Embed") for one in self.program.layers)
        values = self.program.inputs_of(self.batch, 1)
        self.feed({name: np.full_like(array, 99) if self.program.inputs[name][1] and name != "cont" else array for name, array in values.items()})
        with pytest.raises(DataError, match="99") if checked else contextlib.suppress(DataError):
            self.net.forward_from_to(0, len(self.net.nodes) - 1)
        self.feed(values)

    def fail_by_memory(self):
        """The n-th block from now on is refused on the host."""
        with failing_allocator(CPUPlace(), self.dice.randint(1, 12)), contextlib.suppress(OutOfMemoryError):
            self.run_all()

    # ---- the comparison

    def values(self):
        """Inputs that are not near a place where a gradient jumps, and what the model makes of them."""
        for _ in range(6):
            seed = self.dice.randrange(1 << 30)
            values = self.program.inputs_of(self.batch, seed)
            loss, first, last, params, nearest = self.program.run(values, self.params)
            if nearest > 3e-5 and all(np.isfinite(value.data).all() and np.abs(value.data).max() < 1e3 for value in last.values()):
                return values, loss, first, last, params
        return None

    def close(self, found, wanted, what, tolerance=TOLERANCE):
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert found.shape == wanted.shape, f"{what}: {found.shape}, {wanted.shape}"
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * max(np.abs(wanted).max(initial=0), 0.1), err_msg=what)

    def parts(self, chance):
        """Random places where a pass stops, rather before layers that may be fused with the one before."""
        count = len(self.net.nodes)
        if self.dice.random() > chance:
            return [(0, count)]
        fused = [i for i, node in enumerate(self.net.nodes) if i and node.bottoms and node.bottoms == node.tops]
        stops = sorted(set(self.dice.choices(fused or [count // 2], k=self.dice.randint(0, 2)) + self.dice.choices(range(1, count), k=self.dice.randint(0, 2))))
        return list(zip([0, *stops], [*stops, count]))

    def forward(self, last, wanted):
        net = self.net
        loss = sum(net.forward_from_to(begin, end - 1) for begin, end in self.parts(0.2))
        self.close(loss, wanted, "loss")
        outputs = {blob.name for blob in net.output_blobs}
        for name, value in last.items():
            if self.plan is None or name in outputs:
                self.close(net.blobs[name].cpu_data, value.data, f"blob {name}")

    def compare(self):
        """A forward and one or two backwards, whose gradients add up."""
        self.read_params()
        made = self.values()
        if made is None:
            return
        values, loss, first, last, params = made
        if self.dice.random() < 0.5:
            self.net.feed(**values)
        else:
            self.feed(values)
        self.forward(last, loss)
        self.take_updates(params)
        if not self.goes_back:
            return
        self.net.clear_param_diffs()
        times = self.dice.randint(1, 2) if self.plan is None else 1
        for _ in range(times):
            for begin, end in reversed(self.parts(0.5)):
                self.net.backward_from_to(end - 1, begin)
        self.check_gradients(first, params, times)
        if self.dice.random() < 0.3:
            made = self.values()
            if made is not None:    # of another batch, added to those of this one
                before = {key: value.grad for key, value in params.items()}
                values, loss, first, last, params = made
                self.net.feed(**values)
                self.forward(last, loss)
                self.take_updates(params)
                self.net.backward_from_to(len(self.net.nodes) - 1, 0)
                for key, value in params.items():
                    if before[key] is not None:
                        value.grad = times * before[key] + (0 if value.grad is None else value.grad)
                self.check_gradients(first, params, 1)

    def take_updates(self, params):
        for key, value in params.items():
            if value.updated is not None:
                self.params[key] = value.updated
        for blob, key, _ in self.parameters(self.net):
            self.close(blob.cpu_data, self.params[key], f"parameter {key}")
            self.params[key] = blob.cpu_data.copy()

    def check_gradients(self, first, params, times):
        program, weighted = self.program, {t for one in self.program.layers for t, w in zip(one.tops, one.weights) if w}
        for one in program.layers:
            for i, (key, lr) in enumerate(zip(one.keys, one.lr)):
                if one.kind == "BatchNorm":
                    continue
                wanted = params[key].grad if (lr or program.force) and params[key].grad is not None else np.zeros(self.params[key].shape)
                self.close(self.net.layer_dict[one.name].blobs[i].cpu_diff, times * wanted, f"gradient of parameter {key}")
        overwritten = {one.tops[0] for one in program.layers if one.tops == one.bottoms}
        views = set()       # of their memories
        for one in program.layers:
            if one.kind in ("Reshape", "Flatten", "Concat", "Slice", "Split") and (overwritten | views).intersection(one.bottoms):
                views.update(one.tops)
        for name, value in first.items():
            blob = program.blobs[name]
            if value.grad is None or not blob.gets_diff or name in weighted or self.plan and name not in program.inputs:
                continue
            if name in program.inputs and program.inputs[name][1] or name in views or not self.hooks and name in overwritten:     # fused: of any place
                continue
            self.close(self.net.blobs[name].cpu_diff, value.grad, f"gradient of blob {name}")

    def compare_with_new(self):
        """A new net in the same state computes the same; other bits where engines, layouts or views differ, as a view is not fused."""
        other = self.build(self.program.text(), self.plan)
        values = self.program.inputs_of(self.batch, self.dice.randrange(1 << 30))
        self.feed(values)
        self.feed(values, other)
        other.reshape_all()
        for mine, theirs in zip(self.net.param_table.params, other.param_table.params, strict=True):
            theirs.data[...] = mine.cpu_data
        for node in self.net.nodes:
            if (state := node.layer.get_state()) is not None:
                with contextlib.suppress(ShapeError):   # of a batch of another size: both begin with zeros
                    other.layer_dict[node.name].set_state(state)
        for when in self.hooks:
            other.add_hook(when, look)
        results = self.result(self.net), self.result(other)
        tolerance = TOLERANCE if self.views or self.net.engines() != other.engines() else 2e-5 if self.program.layers else 0
        for i, (found, wanted) in enumerate(zip(*results, strict=True)):
            self.close(found, wanted, f"number {i}", tolerance)
        for blob, key, _ in self.parameters(self.net):
            self.params[key] = blob.cpu_data.copy()

    def result(self, net):
        """Return the numbers of two forwards and a backward: what is read from outside, parameters and gradients."""
        net.clear_param_diffs()
        seen = []
        for _ in range(2):      # the second begins with the states that the first left
            seen += [net.forward_from_to(0, len(net.nodes) - 1), *(blob.cpu_data.copy() for blob in net.output_blobs)]
        if self.goes_back:
            net.backward_from_to(len(net.nodes) - 1, 0)
            seen += [blob.cpu_diff.copy() for blob in net.learnable_params]
        return [*seen, *(blob.cpu_data.copy() for blob in net.param_table.params)]

    def run(self):
        changes = [self.change_batch, self.change_batch, self.change_plan, self.change_engine, self.change_threads, self.change_mode, self.change_hooks,
                   self.change_views, self.change_params, self.share, self.copy, self.release, self.run_part, self.fail_in_python,
                   self.fail_by_a_label, self.fail_by_memory]
        comparisons = [self.compare, self.compare_with_new] if self.program.layers else [self.compare_with_new]
        for _ in range(self.dice.randint(1, 4)):
            self.dice.choice(comparisons)()
            for change in self.dice.sample(changes, self.dice.randint(1, 4)):
                change()
                if change in (self.run_part, self.fail_in_python, self.fail_by_a_label, self.fail_by_memory):
                    self.read_params()
        for comparison in self.dice.sample(comparisons, len(comparisons)):
            comparison()


@pytest.mark.filterwarnings("ignore::minicaffe.errors.ConfigWarning")     # a file may have no layer of the net
@pytest.mark.parametrize("kind, count", [(Program, 50), (Recurrent, 10)])
def test_random_nets(programs, gpu, tmp_path, kind, count):
    exact = engine.get_exact()

    def run(seed):
        minicaffe.set_mode_cpu()
        minicaffe.set_num_threads(1)
        engine.prefer("")
        engine.set_exact(exact)
        minicaffe.set_random_seed(1)
        FragileLayer.fails = None
        machine = None
        try:
            machine = Machine(kind(seed), gpu, tmp_path)
            machine.run()
        except Exception as error:
            if machine:
                error.add_note(machine.program.text())
            raise
    programs(run, count)


def test_engines_chosen_for_thread_count(gpu, monkeypatch):
    """What one made may be of a number of threads; a net that ran already does not keep it."""
    made = []
    for one in engine.ENGINES.values():
        if Convolution in one.kinds:
            make, *rest = one.kinds[Convolution]
            monkeypatch.setitem(one.kinds, Convolution, (lambda operation, make=make: made.append(operation) or make(operation), *rest))
    text = ('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 16 dim: 8 dim: 6 } } }' + conv("a", "x")
            + conv("b", "a").replace("Convolution", "Deconvolution") + conv("c", "b"))
    net = make_net(text)
    for count in 1, 2, 3:
        made.clear()
        minicaffe.set_num_threads(count)
        net.forward_from_to(0, 3)
        net.backward_from_to(3, 0)
        assert len({id(operation) for operation in made}) == 3, count
