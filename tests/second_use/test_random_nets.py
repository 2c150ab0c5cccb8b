"""Random nets through random changes, against a plain model in NumPy: data, losses and gradients of all blobs and parameters.

``--examples 5000`` tries so many nets, from a random seed on; a failure names its seed, and ``--program SEED`` runs that one.
"""

import numpy as np
import pytest
from random_nets import BATCHES, Program

import minicaffe
from minicaffe.engines import engine
from minicaffe.net.net import Net
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

TOLERANCE = 5e-4    # of the largest value; engine WINOGRAD and float32 in some ten layers


def look(index):
    """A hook."""


class Machine:
    """A net, its model, and what may be changed between two comparisons."""

    def __init__(self, seed, gpu, folder):
        self.program = Program(seed)
        self.dice, self.gpu, self.folder = self.program.dice, gpu, folder
        self.params = {key: array.copy() for key, array in self.program.params.items()}
        self.batch, self.plan, self.hooks, self.donor = BATCHES[0], self.dice.choice([None, "memory"]), [], None
        self.change_engine()
        self.net = self.build(self.program.text(), self.plan)
        self.write(self.net, self.params)

    def build(self, text, plan=None):
        param = parse_text(text, caffe_pb2.NetParameter)[0]
        param.state.phase, param.state.level = self.program.phase, self.program.level
        param.state.stage.extend(self.program.stages)
        return Net(param, plan=plan)

    def write(self, net, params, renamed=()):
        for layer in self.program.layers:
            for i, key in enumerate(layer.keys):
                blob = net.layer_dict[f"{layer.name}_other" if layer.name in renamed else layer.name].blobs[i]
                assert blob.shape == params[key].shape, (key, blob.shape)
                blob.data[...] = params[key]

    def fresh(self):
        """Other values for all parameters."""
        dice = np.random.default_rng(self.dice.randrange(1 << 30))
        return {key: array + dice.uniform(-0.05, 0.05, array.shape).astype(np.float32) * (array.shape != (1,)) for key, array in self.params.items()}

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

    def change_params(self):
        self.params = self.fresh()
        self.write(self.net, self.params)
        if self.donor is not None:
            self.check_params(self.donor)

    def check_params(self, net):
        for layer in self.program.layers:
            for blob, key in zip(net.layer_dict[layer.name].blobs, layer.keys):
                np.testing.assert_array_equal(blob.cpu_data, self.params[key], err_msg=f"parameter {key}")

    def share(self):
        self.donor = self.build(self.program.text())
        self.params = self.fresh()
        self.write(self.donor, self.params)
        self.net.share_with(self.donor)

    def copy(self):
        """From a file in which some layers have other names."""
        renamed = {layer.name for layer in self.program.layers if layer.keys and not layer.shared and self.dice.random() < 0.4}
        donor, values = self.build(self.program.text(renamed)), self.fresh()
        self.write(donor, values, renamed)
        name, copy = self.dice.choice([("a.caffemodel", donor.save), ("a.caffemodel.h5", donor.save_hdf5)])
        copy(str(self.folder / name))
        self.net.copy_from(str(self.folder / name))
        self.params |= {key: array for key, array in values.items() if key[0] not in renamed}
        self.check_params(self.net)

    def release(self):
        self.net.release()

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

    def close(self, found, wanted, what):
        wanted = np.asarray(wanted)
        assert found.shape == wanted.shape, f"{what}: {found.shape}, {wanted.shape}"
        np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * max(np.abs(wanted).max(initial=0), 0.1), err_msg=what)

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
        self.close(np.asarray(loss), wanted, "loss")
        outputs = {blob.name for blob in net.output_blobs}
        for name, value in last.items():
            if self.plan is None or name in outputs:
                self.close(net.blobs[name].cpu_data, value.data, f"blob {name}")

    def compare(self):
        """A forward and one or two backwards, whose gradients add up."""
        made = self.values()
        if made is None:
            return
        values, loss, first, last, params = made
        if self.dice.random() < 0.5:
            self.net.feed(**values)
        else:
            for name, array in values.items():
                self.net.blobs[name].reshape(*array.shape)
                self.net.blobs[name].data[...] = array
        self.forward(last, loss)
        self.take_updates(params)
        if self.plan and self.program.phase != minicaffe.TRAIN:
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
        for layer in self.program.layers:
            for blob, key in zip(self.net.layer_dict[layer.name].blobs if layer.keys else [], layer.keys):
                self.close(blob.cpu_data, self.params[key], f"parameter {key}")
                self.params[key] = blob.cpu_data.copy()

    def check_gradients(self, first, params, times):
        program, weighted = self.program, {t for layer in self.program.layers for t, w in zip(layer.tops, layer.weights) if w}
        for layer in program.layers:
            for i, (key, lr) in enumerate(zip(layer.keys, layer.lr)):
                if layer.kind == "BatchNorm":
                    continue
                wanted = params[key].grad if (lr or program.force) and params[key].grad is not None else np.zeros(self.params[key].shape)
                self.close(self.net.layer_dict[layer.name].blobs[i].cpu_diff, times * wanted, f"gradient of parameter {key}")
        overwritten = {layer.tops[0] for layer in program.layers if layer.tops == layer.bottoms}
        views = set()       # of their memories
        for layer in program.layers:
            if layer.kind in ("Reshape", "Flatten", "Concat", "Slice", "Split") and (overwritten | views).intersection(layer.bottoms):
                views.update(layer.tops)
        for name, value in first.items():
            blob = program.blobs[name]
            if value.grad is None or not blob.gets_diff or name in weighted or self.plan and name not in program.inputs:
                continue
            if name in program.inputs and program.inputs[name][1] or name in views or not self.hooks and name in overwritten:     # fused: of any place
                continue
            self.close(self.net.blobs[name].cpu_diff, value.grad, f"gradient of blob {name}")

    def run(self):
        changes = [self.change_batch, self.change_batch, self.change_plan, self.change_engine, self.change_threads, self.change_mode, self.change_hooks,
                   self.change_params, self.share, self.copy, self.release]
        for _ in range(self.dice.randint(1, 4)):
            self.compare()
            for change in self.dice.sample(changes, self.dice.randint(1, 3)):
                change()
        self.compare()


@pytest.mark.filterwarnings("ignore::minicaffe.errors.ConfigWarning")     # a file may have no layer of the net
def test_random_nets(programs, gpu, tmp_path):
    def run(seed):
        minicaffe.set_mode_cpu()
        minicaffe.set_num_threads(1)
        engine.prefer("")
        minicaffe.set_random_seed(1)
        machine = None
        try:
            machine = Machine(seed, gpu, tmp_path)
            machine.run()
        except Exception as error:
            if machine:
                error.add_note(machine.program.text())
            raise
    programs(run, 40)
