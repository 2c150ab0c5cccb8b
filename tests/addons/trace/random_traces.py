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
HOST, PINNED, DEVICE = memory.CPUPlace(), memory.PinnedPlace(), memory.CUDAPlace(0)
BEGAN = 5_000_000_000       # of the clock, in ns
CALLS = ["cpu_data", "gpu_data", "mutable_cpu_data", "mutable_gpu_data", "overwrite_gpu_data"]
WAYS = {"copy": ["host to device", "device to host"], "reorder": ["plain to nChw16c", "nChw16c to plain"]}


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
        self.moments = []       # blocks and segments before each event, and after the last
        self.changes = []       # of heads: number of the event, memory, head before and after
        self.make_net()
        self.solver = SimpleNamespace(history=self.history) if dice.random() < 0.6 else None
        if self.solver is None:
            self.history = []
        self.make_memories()
        self.start = SimpleNamespace(time=BEGAN, heads={m.address: (m.name, m.state) for m in self.at_start}, blocks=[
            {"place": repr(place), "address": at, "bytes": n, "name": name} for (place, at), (n, name) in self.blocks.items()],
            arenas=self.arenas())
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
            node = SimpleNamespace(name=name, type=dice.choice(["Convolution", "ReLU"]), line=dice.choice([None, 3 * i + 1]), bottoms=bottoms,
                                   tops=tops, blobs=own, layer=layer, bottom_needs=[dice.random() < 0.7 for _ in bottoms],
                                   needs_backward=bool(i) and dice.random() < 0.8, engines=engines)
            node.costs = {kind: SimpleNamespace(flops=dice.choice([None, 0, dice.randint(1, 10**9)]), bytes=dice.choice([None, dice.randint(1, 10**7)]))
                          for kind in ("forward", "backward")}
            self.nodes.append(node)
        self.fused = [dice.choice([[], ["other"]]) for _ in self.nodes]
        self.history = [Blob(f"{blob.name} history", blob.shape, dice, parts=("data",)) for _ in range(dice.randint(1, 2)) for blob in self.params]
        self.net = SimpleNamespace(name=dice.choice(["", "made up"]), file="made/up.prototxt", phase=caffe_pb2.TRAIN, nodes=self.nodes,
                                   learnable_params=self.params, param_table=SimpleNamespace(params=self.params), fused=lambda: self.fused)

    def make_memories(self):
        """The net's memories, some of which begin their life in the record, and blocks that live from before."""
        dice, own = self.dice, {}
        for blob in self.params:
            own[id(blob.data_memory)], own[id(blob.diff_memory)] = blob.data_memory, blob.diff_memory
        for node in self.nodes:
            for blob in node.tops:
                own[id(blob.data_memory)], own[id(blob.diff_memory)] = blob.data_memory, blob.diff_memory
        for blob in self.history:
            own[id(blob.data_memory)] = blob.data_memory
        self.own, self.others, self.at_start = list(own.values()), [], []
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
        self.blocks, self.segments, self.next_block, self.freed = {}, [], 1 << 20, None
        for i in range(dice.randint(0, 4)):
            self.blocks[dice.choice([HOST, DEVICE]), 64 + 4096 * i] = dice.randint(1, 1 << 22), self.a_name()
        if dice.random() < 0.5:
            self.segments.append({"address": 1 << 19, "bytes": 4096, "blocks": [
                {"address": 1 << 19, "bytes": 1024, "used": True}, {"address": (1 << 19) + 1024, "bytes": 512, "used": True},    # waits for a stream
                {"address": (1 << 19) + 1536, "bytes": 2560, "used": False}]})
            self.blocks[DEVICE, 1 << 19] = 1000, self.a_name()

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

    # ---- events

    def emit(self, kind, place=None, address=0, nbytes=0, name="", detail="", took=0):
        self.moments.append((dict(self.blocks), self.arenas()[0]["segments"]))
        self.clock += self.dice.choice([0, 1, self.dice.randint(1, 999_999)])
        if self.open is None and (not self.steps or self.steps[-1]["kind"] != "between" or self.steps[-1]["iteration"] != self.iteration):
            self.new_step("between", "", None)
        step = self.open or self.steps[-1]
        self.events.append(Event(self.clock, kind, place, address, nbytes, name, detail, took))
        self.tags.append(step)

    def arenas(self):
        return [{"place": repr(DEVICE), "allocator": "caching", "segments": [
            {**one, "blocks": [dict(block) for block in one["blocks"]]} for one in sorted(self.segments, key=lambda one: one["address"])]}]

    def new_step(self, kind, layer, node):
        self.steps.append({"iteration": self.iteration, "kind": kind, "layer": layer, "node": node, "with": None, "loss": None, "parameters": None})
        return self.steps[-1]

    def some_bytes(self):
        return self.dice.choice([0, self.dice.randint(1, 2000), self.dice.randint(1, 1 << 24)])

    def took(self):
        return self.dice.choice([0, self.dice.randint(1, 5000), self.dice.randint(1, 3_000_000)])

    def name_memories(self):
        """Give the others that have events unique names: those from before the record first; one address and name is one memory."""
        found = {}
        for one in [*(one for one in self.at_start if one in self.others), *(one for _, one, _, _ in self.changes)]:
            if one.unique is None and any(other is one for _, other, _, _ in self.changes):
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
        kind = dice.choice(["copy", "reorder", None])
        if kind:
            self.emit(kind, dice.choice([HOST, DEVICE]), 0, self.some_bytes(), one.name, dice.choice(WAYS[kind]), self.took())
        self.emit("head", None, one.address, one.size, one.name, f"{one.state} -> {after} by {dice.choice(CALLS)}")
        self.changes.append((len(self.events) - 1, one, one.state, after))
        one.state = after

    def take_block(self):
        dice, name = self.dice, self.a_name()
        nbytes = dice.randint(1, 1 << 20)
        if dice.random() < 0.5:
            self.next_block += 1 << 21
            place, address = dice.choice([HOST, PINNED]), self.next_block
            on_host = [key for key in self.blocks if key[0] is not DEVICE]
            if on_host and dice.random() < 0.3:
                place, address = dice.choice(on_host)       # its free is missing, such as from another thread
            elif self.freed and dice.random() < 0.5:
                place, nbytes = self.freed      # the same peak again, of other roles
            self.emit("alloc", place, address, nbytes, name)
            self.blocks[place, address] = nbytes, name
            return
        free = [(segment, block) for segment in self.segments for block in segment["blocks"] if not block["used"]]
        if free and dice.random() < 0.6:
            segment, block = dice.choice(free)
            self.emit("cache hit", DEVICE, block["address"], block["bytes"])
        else:
            self.next_block += 1 << 21
            block = {"address": self.next_block, "bytes": 1 << 20, "used": False}
            self.emit("segment taken", DEVICE, self.next_block, 1 << 20)
            segment = {"address": self.next_block, "bytes": 1 << 20, "blocks": [block]}
            self.segments.append(segment)
        if block["bytes"] > 512 and dice.random() < 0.7:
            part = block["bytes"] // 512 // 2 * 512 or 256
            self.emit("split", DEVICE, block["address"], part)
            i = segment["blocks"].index(block)
            segment["blocks"].insert(i + 1, {"address": block["address"] + part, "bytes": block["bytes"] - part, "used": False})
            block["bytes"] = part
        asked = dice.randint(1, block["bytes"])
        self.emit("alloc", DEVICE, block["address"], asked, name)
        block["used"] = True
        self.blocks[DEVICE, block["address"]] = asked, name

    def give_block(self):
        if not self.blocks or self.dice.random() < 0.1:
            self.emit("free", HOST, 13, 99, "never taken")
            return
        (place, address), (nbytes, name) = self.dice.choice(list(self.blocks.items()))
        self.emit("free", place, address, nbytes, name)
        del self.blocks[place, address]
        if place is not DEVICE:
            self.freed = place, nbytes
        for segment in self.segments if place is DEVICE else ():
            blocks = segment["blocks"]
            for i, block in enumerate(blocks):
                if block["address"] == address:
                    block["used"] = False
                    if i + 1 < len(blocks) and not blocks[i + 1]["used"]:
                        self.emit("merge", DEVICE, address, block["bytes"] + blocks[i + 1]["bytes"])
                        block["bytes"] += blocks.pop(i + 1)["bytes"]
                    if len(blocks) == 1:
                        self.emit("segment given back", DEVICE, segment["address"], segment["bytes"])
                        self.segments.remove(segment)
                    return

    def compute(self):
        if self.dice.random() < 0.3:
            self.emit("call", DEVICE, 0, 0, "cublasSgemm", "", self.took())
            return
        grid = [self.dice.choice([1, self.dice.randint(1, 999)]) for _ in range(3)]
        arrays = [(self.a_name() or "x", self.some_bytes()) for _ in range(self.dice.randint(0, 3))]
        detail = "; ".join([f"{'x'.join(map(str, grid))} blocks of {self.dice.choice([1, 256, 1024])} threads", *(f"{name} ({n} bytes)" for name, n in arrays)])
        self.emit("launch", DEVICE, 0, sum(n for _, n in arrays), self.dice.choice(["Each<Fill<float>>", "made_up"]), detail, self.took())

    def transfer(self):
        self.emit("travel", None, 0, self.some_bytes(), "l1[0] diff, l1[1] diff", "", self.took())

    def things(self, most=4):
        for _ in range(self.dice.randint(0, most)):
            self.dice.choice([self.change_head, self.change_head, self.take_block, self.give_block, self.compute, self.transfer])()

    # ---- steps

    def layer(self, i, kind, fail=False):
        """Run a layer; return whether it fails. An error may leave it without an end."""
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
            self.emit("begin", None, 77, 0, node.name, kind)
            self.things(2)
            self.emit("end", None, 77, 0, node.name, kind)
        if self.dice.random() < 0.15:
            self.emit("begin", None, 0, 0, ", ".join(blob.name for blob in self.params), "update")
            self.emit("end", None, 0, 0, ", ".join(blob.name for blob in self.params), "update")
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
        kind = self.dice.choice(["forward", "backward"])
        name = self.dice.choice([self.nodes[0].name, "other"])
        nested = self.open is not None
        if not nested:
            self.open = self.new_step(kind, f"{name} (another net)", None)
        self.emit("begin", None, 88, 0, name, kind)
        self.things(2)
        self.emit("end", None, 88, 0, name, kind)
        if not nested:
            self.open = None

    def update(self):
        which = self.params if self.dice.random() < 0.5 else self.dice.sample(self.params, self.dice.randint(0, len(self.params)))
        names = ", ".join(blob.name for blob in which)
        nested = self.open is not None
        if not nested:
            self.open = self.new_step("update", "update", None)
            self.open["parameters"], self.ran = [blob.name for blob in which], True
        self.emit("begin", None, 0, 0, names, "update")
        self.things()
        self.emit("end", None, 0, 0, names, "update")
        if not nested:
            self.open = None

    def one_iteration(self):
        """Forward, backward and an update, parts of them, or an error in the middle."""
        dice, count = self.dice, len(self.nodes)
        fails = dice.randrange(2 * count) if dice.random() < 0.3 else None
        self.new_pass = True
        self.things(2)
        first = dice.choice([0, 0, dice.randrange(count)])
        work = [(i, "forward") for i in range(first, count)] + [(i, "backward") for i in reversed(range(first, count))]
        for number, (i, kind) in enumerate(work):
            self.layer(i, kind, number == fails)
            if number == fails:
                break
            if dice.random() < 0.4:
                self.things(3)
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
                self.parts.append(SimpleNamespace(iteration=self.iteration, start=self.start, events=self.events[before:]))
        if self.solver is None or not self.parts:
            self.parts = [SimpleNamespace(iteration=number, start=self.start, events=list(self.events))]
        self.moments.append((dict(self.blocks), self.arenas()[0]["segments"]))
        self.name_memories()
