"""Random nets through random changes and errors: each comparison is with a new net that computes in the plainest way.

``--examples 5000`` tries so many nets, from a random seed on; a failure names its seed, and ``--program SEED`` runs that one.
"""

import contextlib

import numpy as np
import pytest
from fragile import FragileLayer, conv, failing, failing_allocator, look, may_raise, plainest
from helpers import make_net
from random_nets import BATCHES, Program

import minicaffe
from minicaffe.engines import engine
from minicaffe.errors import DataError, Error, OutOfMemoryError, RecycledError
from minicaffe.memory import CPUPlace
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.ops.conv.operation import Convolution

TOLERANCE = 5e-4    # of the largest value; engine WINOGRAD and float32 in some ten layers


class Machine:
    """A net, its model, and what may be changed between two comparisons."""

    def __init__(self, program, gpu, folder):
        self.program, self.dice, self.gpu, self.folder = program, program.dice, gpu, folder
        self.params = {key: array.copy() for key, array in program.params.items()}
        self.batch, self.plan, self.hooks, self.views, self.donor = BATCHES[0], self.dice.choice([None, "memory"]), [], [], None
        self.compared = 0
        self.change_engine()
        self.net = self.build(program.text(), self.plan)
        self.write(self.net, self.params)
        self.feed(program.inputs_of(self.batch, 0))

    def build(self, text, plan=None):
        return make_net(text, self.program.phase, plan=plan)

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
        if part == "diff" and name in self.weighted():     # a loss has its weight there
            return
        with self.refused():
            self.views.append(getattr(self.net.blobs[name], part))
            fixed = any(name == i or name.startswith(f"{i}_") for i in self.program.inputs)
            if part == "data" and not fixed and self.dice.random() < 0.5:
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
        checked = any(one.kind in ("SoftmaxWithLoss", "HingeLoss", "Embed") for one in self.program.layers)
        values = self.program.inputs_of(self.batch, 1)
        self.feed({name: np.full_like(array, 9999) if self.program.inputs[name][1] else array for name, array in values.items()})
        with pytest.raises(DataError, match="9999") if checked else contextlib.suppress(DataError):
            self.net.forward_from_to(0, len(self.net.nodes) - 1)
        self.feed(values)

    def fail_by_memory(self):
        """The n-th block from now on is refused on the host."""
        with failing_allocator(CPUPlace(), self.dice.randint(1, 12)), contextlib.suppress(OutOfMemoryError):
            self.run_all()

    # ---- the comparison

    def weighted(self):
        return {top for one in self.program.layers for top, weight in zip(one.tops, one.weights) if weight}

    def parts(self, net, chance):
        """Random places where a pass stops, rather before layers that may be fused with the one before."""
        count = len(net.nodes)
        if self.dice.random() > chance:
            return [(0, count)]
        fused = [i for i, node in enumerate(net.nodes) if i and node.bottoms and node.bottoms == node.tops]
        stops = sorted(set(self.dice.choices(fused or [count // 2], k=self.dice.randint(0, 2)) + self.dice.choices(range(1, count), k=self.dice.randint(0, 2))))
        return list(zip([0, *stops], [*stops, count]))

    def compared_gradients(self):
        """Return the names of blobs whose gradients are not overwritten, recycled or left out."""
        overwritten = {one.tops[0] for one in self.program.layers if one.tops == one.bottoms}
        views = set()       # of their memories
        for one in self.program.layers:
            if one.kind in ("Reshape", "Flatten", "Concat", "Slice", "Split") and (overwritten | views).intersection(one.bottoms):
                views.update(one.tops)
        names = self.program.blobs_with_gradients() - self.weighted() - views
        names -= {name for name, (_, classes) in self.program.inputs.items() if classes}
        names -= set() if self.hooks else overwritten       # fused: of any place
        return names.intersection(self.program.inputs) if self.plan else names

    def run_both_passes(self, net, times, chance=0.0):
        """Run forward and `times` backward in random parts; return all numbers that are defined afterwards, by what they are."""
        found = {"loss": sum(net.forward_from_to(begin, end - 1) for begin, end in self.parts(net, 0.4 * chance))}
        readable = net.blob_names if self.plan is None else [blob.name for blob in self.net.output_blobs]
        found |= {f"blob {name}": net.blobs[name].cpu_data.copy() for name in readable}
        if self.goes_back:
            for _ in range(times):
                for begin, end in reversed(self.parts(net, chance)):
                    net.backward_from_to(end - 1, begin)
            found |= {f"gradient of blob {name}": net.blobs[name].cpu_diff.copy() for name in self.compared_gradients()}
        for i, blob in enumerate(net.param_table.params):
            found[f"parameter {i}"] = blob.cpu_data.copy()
            if self.goes_back:
                found[f"gradient of parameter {i}"] = blob.cpu_diff.copy()
        return found

    def wanted(self, batches, times):
        """Return what a new net gives for these inputs; None near a place where a gradient jumps."""
        with plainest():
            other = self.build(self.program.text())
            for when in AFTER_FORWARD, BEFORE_BACKWARD:     # so that layers run one by one
                other.add_hook(when, look)
            before, dice, results = [blob.cpu_data.copy() for blob in self.net.param_table.params], np.random.default_rng(1), []
            signs = [{name: dice.choice([-1, 1], array.shape) * (not self.program.inputs[name][1]) for name, array in values.items()} for values in batches]
            for shift in 0, 3e-5, -3e-5:
                for blob, data in zip(other.param_table.params, before, strict=True):
                    blob.data[...] = data
                other.clear_param_diffs()
                results.append([])
                for values, sign in zip(batches, signs):
                    self.feed({name: array + np.float32(shift) * sign[name].astype(np.float32) for name, array in values.items()}, other)
                    other.reshape_all()
                    results[-1].append(self.run_both_passes(other, times))
        for one, *others in zip(*results):
            if any(not np.isfinite(value).all() or np.abs(value).max(initial=0) > 1e3 for value in one.values()):
                return None
            for moved in others:
                for what, value in one.items():
                    if what != "loss" and np.abs(moved[what] - value).max(initial=0) > 1e-3 * max(np.abs(value).max(initial=0), 0.1):
                        return None
        return results[0]

    def compare(self):
        """One or two forwards, whose gradients add up, each with one or two backwards."""
        self.read_params()
        times = self.dice.randint(1, 2) if self.plan is None else 1
        for _ in range(6):
            batches = [self.program.inputs_of(self.batch, self.dice.randrange(1 << 30)) for _ in range(self.dice.choice([1, 1, 2]))]
            if (wanted := self.wanted(batches, times)) is not None:
                break
        else:
            return
        self.compared += 1
        self.net.clear_param_diffs()
        for values, numbers in zip(batches, wanted):
            if self.dice.random() < 0.5:
                self.net.feed(**values)
            else:
                self.feed(values)
            found = self.run_both_passes(self.net, times, 0.5)
            assert found.keys() == numbers.keys()
            for what, value in numbers.items():
                np.testing.assert_allclose(found[what], value, rtol=TOLERANCE, atol=TOLERANCE * max(np.abs(value).max(initial=0), 0.1), err_msg=what)
        for blob, key, _ in self.parameters(self.net):
            self.params[key] = blob.cpu_data.copy()

    def run(self):
        changes = [self.change_batch, self.change_batch, self.change_plan, self.change_engine, self.change_threads, self.change_mode, self.change_hooks,
                   self.change_views, self.change_params, self.share, self.copy, self.release, self.run_part, self.fail_in_python,
                   self.fail_by_a_label, self.fail_by_memory]
        for _ in range(self.dice.randint(1, 4)):
            self.compare()
            for change in self.dice.sample(changes, self.dice.randint(1, 4)):
                change()
                if change in (self.run_part, self.fail_in_python, self.fail_by_a_label, self.fail_by_memory):
                    self.read_params()
        self.compare()


@pytest.mark.filterwarnings("ignore::minicaffe.errors.ConfigWarning")     # a file may have no layer of the net
def test_random_nets(programs, gpu, tmp_path):
    exact, compared = engine.get_exact(), []

    def run(seed):
        minicaffe.set_mode_cpu()
        minicaffe.set_num_threads(1)
        engine.prefer("")
        engine.set_exact(exact)
        minicaffe.set_random_seed(1)
        FragileLayer.fails = None
        machine = None
        try:
            machine = Machine(Program(seed), gpu, tmp_path)
            machine.run()
            compared.append(machine.compared)
        except Exception as error:
            if machine:
                error.add_note(machine.program.text())
            raise
    programs(run, 50)
    assert sum(compared) > len(compared) or len(compared) == 1


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
