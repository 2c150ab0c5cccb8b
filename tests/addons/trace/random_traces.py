"""Random records of a made-up net: what `Recorder` would collect, and beside each event the step that it belongs to.

Nothing of minicaffe.addons.trace is used here. `Story` makes a net of plain objects, runs it by dice, and writes down what happened.
"""

import random
from types import SimpleNamespace

from minicaffe import memory
from minicaffe.memory.reporter import Event
from minicaffe.memory.states import SyncedHead
from minicaffe.proto import caffe_pb2

HEADS = {str(head): head for head in SyncedHead}
HOST, DEVICE = memory.CPUPlace(), memory.CUDAPlace(0)
BEGAN = 5_000_000_000       # of the clock, in ns


class Memory:
    """A SyncedMemory of the made-up net, or one that is not the net's."""

    def __init__(self, name, size, head, address=None):
        self.name, self.size, self.state, self.address = name, size, head, id(self) if address is None else address
        self.unique = None      # its name in the trace

    head = property(lambda self: HEADS[self.state])


class Blob:
    def __init__(self, name, shape, dice, data=None, parts=("data", "diff")):
        self.name, self.shape = name, shape
        size = 4 * shape[0] * shape[1]
        self.data_memory = data or Memory(f"{name} data", size, dice.choice(list(HEADS)))
        self.diff_memory = Memory(f"{name} diff", size, dice.choice(list(HEADS))) if "diff" in parts else None
        self.layout = dice.choice([None, "nChw16c"])

    def layout_of_data(self):
        return self.layout and SimpleNamespace(name=self.layout)


class Story:
    """A record: `parts` of (iteration, events), and `events` with times since the start, `tags` their steps, `steps`."""

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        self.clock, self.events, self.tags, self.steps, self.parts = BEGAN, [], [], [], []
        self.open, self.ran, self.iteration, self.forwards = None, False, 0, {}
        self.changes = []       # of heads: number of the event, memory, head before and after
        self.make_net()
        self.solver = SimpleNamespace(history=self.history) if dice.random() < 0.6 else None
        if self.solver is None:
            self.history = []
        self.make_memories()
        self.start = SimpleNamespace(time=BEGAN, heads={m.address: (m.name, m.state) for m in self.at_start}, arenas=[], blocks=[])
        self.run()

    # ---- the net

    def make_net(self):
        dice, blobs, self.nodes, self.params, self.names = self.dice, [], [], [], set()
        for i in range(dice.randint(2, 6)):
            name = f"l{i}" + dice.choice(["", "", ", x"])
            bottoms = dice.sample(blobs, min(len(blobs), dice.randint(1, 2))) if i else []
            if bottoms and dice.random() < 0.25:
                tops = bottoms[:1]      # in place
            else:
                shape = [dice.randint(1, 9), dice.randint(1, 999)]
                shared = bottoms[0].data_memory if bottoms and dice.random() < 0.2 else None
                tops = [Blob(f"b{i}{k}", bottoms[0].shape if shared else shape, dice, shared if k == 0 else None)
                        for k in range(dice.randint(1, 2))]
            own = [Blob(f"{name}[{k}]", [dice.randint(1, 9), dice.randint(1, 99)], dice) for k in range(dice.randint(0, 2) if i else 0)]
            self.params += own
            if own and dice.random() < 0.2 and len(self.params) > len(own):
                own = [*own, self.params[0]]        # shared with an earlier layer
            blobs += [blob for blob in tops if blob not in blobs]
            engines = dice.choices([None, "CAFFE", "ONEDNN"], k=dice.randint(0, 2))
            operations = [SimpleNamespace(describe=lambda engine=engine: {"engine": engine}) for engine in engines]
            layer = SimpleNamespace(backward_reads_bottoms=dice.random() < 0.5, backward_reads_tops=dice.random() < 0.5,
                                    operations=lambda operations=operations: iter(operations))
            costs = {kind: SimpleNamespace(flops=dice.choice([None, dice.randint(1, 10**9)]), bytes=dice.randint(1, 10**7))
                     for kind in ("forward", "backward")}
            self.nodes.append(SimpleNamespace(
                name=name, type="ReLU", line=dice.choice([None, 3 * i + 1]), bottoms=bottoms, tops=tops, blobs=own, layer=layer, engines=engines, costs=costs,
                bottom_needs=[dice.random() < 0.7 for _ in bottoms], needs_backward=bool(i) and dice.random() < 0.8))
        self.fused = [dice.choice([[], ["other"]]) for _ in self.nodes]
        self.history = [Blob(f"{blob.name} history", blob.shape, dice, parts=("data",)) for _ in range(dice.randint(1, 2)) for blob in self.params]
        self.net = SimpleNamespace(name="made up", file="made/up.prototxt", phase=caffe_pb2.TRAIN, nodes=self.nodes, fused=lambda: self.fused,
                                   learnable_params=self.params, param_table=SimpleNamespace(params=self.params))

    def make_memories(self):
        """The net's memories, some of which begin their life in the record."""
        dice = self.dice
        blobs = [*self.params, *(blob for node in self.nodes for blob in node.tops), *self.history]
        self.own = list(dict.fromkeys(one for blob in blobs for one in (blob.data_memory, blob.diff_memory) if one))
        self.others, self.at_start = [], []
        self.next_address = 1000        # of memories that are not the net's
        for one in self.own:
            one.unique = one.name + (" #2" if one.name in self.names else "")     # two histories of a parameter
            self.names.add(one.unique)
            if dice.random() < 0.15:    # it grows in the record: another object had its name before
                one.state = "UNINITIALIZED"
                self.at_start.append(self.another(one.name, dice.choice(list(HEADS))))
            else:
                self.at_start.append(one)
        self.first_heads = {one.unique: one.state for one in self.own}

    def another(self, name, head="UNINITIALIZED"):
        """A memory that is not the net's: it may have the address of one that is gone."""
        gone = [one for one in self.others if one not in self.at_start]
        if gone and self.dice.random() < 0.4:
            self.others.remove(old := self.dice.choice(gone))
            address = old.address
        else:
            self.next_address = address = self.next_address + 16
        self.others.append(Memory(name, self.dice.randint(1, 9999), head, address))
        return self.others[-1]

    def a_name(self):
        return self.dice.choice([*(one.name for one in self.own), "scratch data", "a block", ""])

    def take_block(self):
        self.emit("alloc", DEVICE, 1 << 30, self.dice.randint(1, 1 << 20), self.a_name())

    # ---- events

    def emit(self, kind, place=None, address=0, nbytes=0, name="", detail="", took=0):
        self.clock += self.dice.choice([0, 1, self.dice.randint(1, 999_999)])
        if self.open is None and (not self.steps or self.steps[-1]["kind"] != "between" or self.steps[-1]["iteration"] != self.iteration):
            self.new_step("between", "", None)
        self.events.append(Event(self.clock, kind, place, address, nbytes, name, detail, took))
        self.tags.append(self.open or self.steps[-1])

    def new_step(self, kind, layer, node):
        self.steps.append({"iteration": self.iteration, "kind": kind, "layer": layer, "node": node, "with": None, "loss": None, "parameters": None})
        return self.steps[-1]

    def took(self):
        return self.dice.choice([0, self.dice.randint(1, 5000), self.dice.randint(1, 3_000_000)])

    def name_memories(self):
        """Give the others that have events unique names: those from before the record first; one address and name is one memory."""
        found, changed = {}, [one for _, one, _, _ in self.changes]
        for one in [*(one for one in self.at_start if one in self.others and one in changed), *changed]:
            if one.unique is None:
                number, key = 1, (one.address, one.name)
                while key not in found and (name := one.name if number == 1 else f"{one.name} #{number}") in self.names:
                    number += 1
                if key not in found:
                    found[key] = name
                    self.names.add(name)
                    self.first_heads[name] = next(before for _, other, before, _ in self.changes if other is one)
                one.unique = found[key]

    def change_head(self):
        dice = self.dice
        if dice.random() < 0.3:
            name = dice.choice(["scratch data", "[kept for backward] data", "next batch data", *(one.name for one in self.own[:3])])
            one = dice.choice([other for other in self.others if other.name == name and other not in self.at_start] or [None])
            if one is None or dice.random() < 0.3:
                one = self.another(name, dice.choice(["UNINITIALIZED", *HEADS]))
        else:
            one = dice.choice([*self.own, *(one for one in self.at_start if one in self.others)])
        after = dice.choice(list(HEADS))
        if dice.random() < 0.7:
            kind, way = dice.choice([("copy", "host to device"), ("copy", "device to host"), ("reorder", "plain to nChw16c"),
                                     ("reorder", "nChw16c to plain")])
            self.emit(kind, dice.choice([HOST, DEVICE]), 0, dice.randint(0, 1 << 24), one.name, way, self.took())
        self.emit("head", None, one.address, one.size, one.name, f"{one.state} -> {after} by {dice.choice(['cpu_data', 'mutable_gpu_data'])}")
        self.changes.append((len(self.events) - 1, one, one.state, after))
        one.state = after

    def compute(self):
        kind = self.dice.choice(["call", "launch", "travel"])
        detail = "2x1x1 blocks of 256 threads; x (9 bytes)" if kind == "launch" else ""
        self.emit(kind, DEVICE, 0, 9, self.dice.choice(["Each<ReluForward<float>>", "made_up"]), detail, self.took())

    def things(self, most=4):
        for _ in range(self.dice.randint(0, most)):
            self.dice.choice([self.change_head, self.change_head, self.take_block, self.compute])()

    # ---- steps

    def begin_and_end(self, address, name, kind, most):
        self.emit("begin", None, address, 0, name, kind)
        self.things(most)
        self.emit("end", None, address, 0, name, kind)

    def layer(self, i, kind, fail=False):
        """Run a layer. An error may leave it without an end."""
        node = self.nodes[i]
        if self.solver is None and kind == "forward" and self.new_pass and self.ran:
            self.iteration += 1
        self.new_pass, self.ran = False, True
        self.open = self.new_step(kind, node.name, i)
        if kind == "forward":
            self.forwards[id(node)] = self.open
        self.emit("begin", None, id(node), 0, node.name, kind)
        self.things()
        if self.dice.random() < 0.15:       # a layer that runs another net, or updates parameters at once
            self.begin_and_end(77, node.name, kind, 2)
        if self.dice.random() < 0.15:
            self.begin_and_end(0, ", ".join(blob.name for blob in self.params), "update", 0)
        if fail and self.dice.random() < 0.5:
            return      # it stays open until the next layer, or until the iteration ends
        fused = self.dice.choice([None, None, "l0, x"])
        self.emit("end", None, id(node), 0, node.name, f"{kind} with {fused}" if fused else kind)
        self.open["with"], self.open = fused, None
        if kind == "forward" and self.dice.random() < 0.3:
            loss = self.dice.choice([self.dice.uniform(-9, 9), 0.0, float("nan"), float("inf"), float("-inf")])
            self.emit("loss", None, id(node), 0, node.name, repr(loss))
            self.forwards[id(node)]["loss"] = loss if abs(loss) < float("inf") else repr(loss)

    def another_net(self):
        kind, name = self.dice.choice(["forward", "backward"]), self.dice.choice([self.nodes[0].name, "other"])
        if self.open is None:
            self.open = self.new_step(kind, f"{name} (another net)", None)
            self.begin_and_end(88, name, kind, 2)
            self.open = None
        else:
            self.begin_and_end(88, name, kind, 2)

    def update(self):
        which = self.params if self.dice.random() < 0.5 else self.dice.sample(self.params, self.dice.randint(0, len(self.params)))
        nested = self.open is not None
        if not nested:
            self.open = self.new_step("update", "update", None)
            self.open["parameters"], self.ran = [blob.name for blob in which], True
        self.begin_and_end(0, ", ".join(blob.name for blob in which), "update", 4)
        if not nested:
            self.open = None

    def one_iteration(self):
        """Forward, backward and an update, parts of them, or an error in the middle."""
        dice, count = self.dice, len(self.nodes)
        fails = dice.randrange(2 * count) if dice.random() < 0.3 else None
        self.new_pass = True
        self.things(2)
        first = dice.choice([0, 0, dice.randrange(count)])
        layers = range(first, count)
        for number, (i, kind) in enumerate([*((i, "forward") for i in layers), *((i, "backward") for i in reversed(layers))]):
            self.layer(i, kind, number == fails)
            if number == fails:
                break
            self.things(1)
            if dice.random() < 0.1:
                self.another_net()
        if fails is None or dice.random() < 0.3:
            for _ in range(dice.randint(0, 2)):
                self.update()
        self.things(2)

    def run(self):
        number = self.dice.randint(0, 9)
        for _ in range(self.dice.randint(0, 3)):
            if self.solver is not None:
                self.iteration = number
                number += 1
            before = len(self.events)
            self.one_iteration()
            if self.solver is not None:
                self.open = None
                self.parts.append(SimpleNamespace(**vars(self.start), iteration=self.iteration, events=self.events[before:]))
        if self.solver is None or not self.parts:
            self.parts = [SimpleNamespace(**vars(self.start), iteration=number, events=list(self.events))]
        self.name_memories()
