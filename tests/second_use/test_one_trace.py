"""Recordings in any sequence of calls: each holds what happened between its own start and its own stop, whatever else records.

The judge is one record of raw events that is open all the time, and what the test notes at each start, iteration and stop.
"""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import pytest
from fragile import FragileLayer, conv, failing, layer, may_raise, product
from helpers import make_net, net_solver
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import minicaffe
from minicaffe import memory
from minicaffe.addons.trace import Recorder, build, record
from minicaffe.errors import DataError
from minicaffe.memory import reporter
from minicaffe.net.run import AFTER_FORWARD

INPUTS = 'layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 2 dim: 1 dim: 6 dim: 6 } shape { dim: 2 } } }\n'
NET = ('name: "traced"\n' + INPUTS + conv("a", "x", 4) + layer("norm", "BatchNorm", "a", "a") + layer("relu", "ReLU", "a", "a")
       + layer("own", "SecondUseFragile", "a", "own") + product("score", "own", "score") + layer("loss", "SoftmaxWithLoss", "score label", "loss"))
NAMES = ["in", "a", "norm", "relu", "own", "score", "loss"]
FORWARD, BACKWARD = ([(kind, name) for name in names] for kind, names in (("forward", NAMES), ("backward", NAMES[:0:-1])))
UPDATE = [("update", "update")]


class Mark(NamedTuple):
    """What the test notes at a moment: how many raw events, the time, the iteration, heads by name, live blocks, reshapes so far."""

    raw: int
    time: int
    iteration: int
    heads: dict
    blocks: set
    shaped: int


class Taken:
    """A Recorder, and what is known of it from outside."""

    def __init__(self, machine, of, keep):
        self.of, self.keep = of, keep
        target = {"solver": machine.solver, "net": machine.net, "other": machine.other, "memory": None}[of]
        self.net = machine.other if of == "other" else machine.net if target is not None else None
        self.recorder = Recorder(target, keep)
        self.runs, self.made = False, None

    def start(self, machine):
        self.early = perf_counter_ns()
        self.recorder.start()
        self.marks, self.end, self.made, self.runs, self.alone = [machine.mark(self)], None, None, True, True

    def stop(self, machine):
        self.end = machine.mark(self)
        self.recorder.stop()
        self.runs = False

    @property
    def first(self):
        """The Mark at which what is kept begins."""
        return self.marks[0] if self.keep is None else self.marks[max(0, len(self.marks) - 1 - self.keep)]


class TraceMachine(RuleBasedStateMachine):
    """Runs and recordings in any order; `check` compares a trace with the raw events between its marks."""

    def __init__(self, on_gpu):
        super().__init__()
        self.on_gpu = on_gpu
        FragileLayer.fails = None
        self.taken, self.blocks, self.by_hand, self.shaped, self.last_raw = [], [], False, 0, 0

    @initialize(plan=st.sampled_from(["memory", None]))
    def make(self, plan):
        minicaffe.set_mode_gpu() if self.on_gpu else minicaffe.set_mode_cpu()
        minicaffe.set_num_threads(1)
        gc.collect()
        gc.disable()    # what it frees between a mark and a start would belong to neither
        self.solver = net_solver(NET, plan, random_seed=1)
        self.net, self.other = self.solver.net, make_net(NET, minicaffe.TRAIN, plan=plan)
        self.solver.listeners.append(self)      # before all recorders
        self.opened = memory.record()
        self.raw = self.opened.__enter__()

    def teardown(self):
        try:
            while self.running:
                self.stop(0, False)
        finally:
            if hasattr(self, "opened"):
                minicaffe.cuda.current().record_launches(False) if self.on_gpu else None
                self.opened.__exit__(None, None, None)
            gc.enable()
            minicaffe.set_mode_cpu()

    def mark(self, one):
        found = build.memories_of(one.net, self.solver if one.of == "solver" else None).values()
        heads = {one.called: str(one.head) for one in found}
        blocks = {(repr(b.place), b.address, b.nbytes, b.name) for b in reporter.live()}
        return Mark(len(self.raw), perf_counter_ns(), self.solver.iter, heads, blocks, self.shaped)

    def on_iteration(self, solver):
        for one in self.running:
            if one.of == "solver":
                one.marks.append(self.mark(one))

    @property
    def running(self):
        return [one for one in self.taken if one.runs]

    # ---- recordings

    @precondition(lambda self: len(self.taken) < 4)
    @rule(of=st.sampled_from(["solver", "solver", "net", "other", "memory"]), keep=st.sampled_from([None, None, 1, 2]), thread=st.booleans())
    def start(self, of, keep, thread):
        one = Taken(self, of, keep if of == "solver" else None)
        self.taken.append(one)
        at_once(lambda: one.start(self)) if thread else one.start(self)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 3), thread=st.booleans())
    def stop(self, number, thread):
        one = self.running[number % len(self.running)]
        at_once(lambda: one.stop(self)) if thread else one.stop(self)
        self.launches_are_recorded_while_a_trace_needs_them()
        one.made = self.check(one)

    @precondition(lambda self: any(not one.runs for one in self.taken))
    @rule(number=st.integers(0, 3), again=st.booleans())
    def stopped(self, number, again):
        """One that was stopped: a second stop changes nothing, what it holds stays whatever ran since; or it starts again."""
        ended = [one for one in self.taken if not one.runs]
        one = ended[number % len(ended)]
        one.recorder.stop()
        found, wanted = one.recorder.trace().document, one.made.document
        for key in found.keys() | wanted.keys():
            assert found.get(key) == wanted.get(key), key
        if again:
            one.start(self)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 3))
    def ask(self, number):
        """A trace of one that continues."""
        one = self.running[number % len(self.running)]
        one.end = self.mark(one)
        self.check(one)

    @rule(where=st.sampled_from(["forward", "backward"]))
    def block(self, where):
        """A recording that an error ends."""
        with pytest.raises(ZeroDivisionError), record(self.net) as made:
            first = len(self.raw)
            assert made.events == made.steps == []      # until the block ends
            self.fail(where)
            last = len(self.raw)
            raise ZeroDivisionError
        self.check_events(made, self.raw[first:last])

    @rule(on=st.booleans())
    def hand_launches(self, on):
        """Another recorder starts or stops to record launches."""
        if self.on_gpu:
            minicaffe.cuda.current().record_launches(on)
            self.by_hand = on
            self.launches_are_recorded_while_a_trace_needs_them()

    @invariant()
    def launches_are_recorded_while_a_trace_needs_them(self):
        if self.on_gpu and hasattr(self, "raw"):
            assert minicaffe.cuda.current().recording == bool(self.by_hand or self.running)

    # ---- runs

    def ran(self, expected, net=None):
        """Check the raw events since the last call against the steps that a run has."""
        found = self.begins(self.raw[self.last_raw:], net)
        assert found == expected
        self.last_raw = len(self.raw)

    def begins(self, events, net=None):
        own = {id(node) for node in (net or self.net).nodes}
        return [(event.detail, event.name if event.detail != "update" else "update") for event in events
                if event.kind == "begin" and (event.address in own or event.detail == "update")]

    @rule(count=st.integers(1, 3))
    def step(self, count):
        self.last_raw = len(self.raw)
        self.solver.step(count)
        self.ran(count * (FORWARD + BACKWARD + UPDATE))

    @rule(other=st.booleans(), backward=st.booleans())
    def pass_of_a_net(self, other, backward):
        net = self.other if other else self.net
        self.last_raw = len(self.raw)
        both(net) if backward else net.forward_from_to(0, len(NAMES) - 1)
        self.ran(FORWARD + (BACKWARD if backward else []), net)

    @rule(where=st.sampled_from(["forward", "backward"]))
    def fail(self, where):
        self.last_raw = len(self.raw)
        with failing(where), may_raise(ArithmeticError, where):
            both(self.net)

    @rule()
    def fail_by_a_label(self):
        self.net.blobs["label"].data[...] = 99
        with pytest.raises(DataError, match="99"):
            self.net.forward_from_to(0, len(NAMES) - 1)
        self.net.blobs["label"].data[...] = 1

    @rule(batch=st.integers(1, 5), other=st.booleans())
    def reshape(self, batch, other):
        net = self.other if other else self.net
        net.blobs["x"].reshape(batch, 1, 6, 6)
        net.blobs["label"].reshape(batch)
        net.blobs["x"].data[...] = np.random.default_rng(batch).uniform(-1, 1, (batch, 1, 6, 6))
        net.blobs["label"].data[...] = 1
        net.reshape_all()
        self.shaped += 1

    @rule()
    def release(self):
        self.net.release()
        self.shaped += 1    # its memories are others

    @rule(nbytes=st.sampled_from([1, 1000, 3 << 20]), drop=st.booleans())
    def allocate(self, nbytes, drop):
        place = memory.CPUPlace()
        self.blocks.append(memory.Buffer(memory.allocator_of(place), nbytes, f"block {len(self.blocks)}"))
        if drop:
            self.blocks.clear()

    @rule(of=st.sampled_from(["net", "memory"]))
    def in_the_middle(self, of):
        """A recording that begins and ends in hooks of one forward."""
        one = Taken(self, of, None)

        def hook(index):
            if index == 2:
                one.start(self)
            elif index == 5:
                one.stop(self)

        self.net.add_hook(AFTER_FORWARD, hook)
        try:
            self.net.forward_from_to(0, len(NAMES) - 1)
        finally:
            self.net.remove_hook(AFTER_FORWARD, hook)
        made = self.check(one)
        names = [step["layer"].partition(" (")[0] for step in made.steps if step["kind"] == "forward"]
        assert names == NAMES[3:6] if of == "net" else names[-3:] == NAMES[3:6]

    @rule()
    def two_at_once(self):
        """Each of two threads records its own net, and gets its steps and no others as its own."""
        made, meet = {}, threading.Barrier(2)

        def run(net):
            try:
                meet.wait()
                with record(net) as one:
                    for _ in range(2):
                        both(net)
                    meet.wait()
                made[id(net)] = one
            except BaseException:
                meet.abort()
                raise

        for one in self.running:
            one.alone = False
        at_once(lambda: run(self.net), lambda: run(self.other))
        assert len(made) == 2
        for one in made.values():
            for i in range(2):
                assert [(s["kind"], s["layer"]) for s in one.steps if s["iteration"] == i and s["node"] is not None] == FORWARD + BACKWARD

    # ---- the comparison

    def check(self, one):
        """Return the trace of a recorder, which must hold the raw events from its first mark to its end."""
        made, late = one.recorder.trace(), perf_counter_ns()
        first, end = one.first, one.end
        events = self.raw[first.raw:end.raw]
        began = made.document["start"]["time"]
        if first is one.marks[0]:
            assert one.early <= began <= first.time
        else:       # the recorder is called after the test's mark
            assert first.time <= began <= (events[0].time if events else late)
        self.check_events(made, events)
        nodes = [node.name for node in one.net.nodes] if one.net is not None else []
        assert [node["name"] for node in made.nodes] == nodes
        if one.net is not None:
            self.check_steps(one, made, events)
        now = made.at(len(made))
        assert {tuple(block.values()) for block in made.at(0).blocks} == first.blocks
        assert {tuple(block.values()) for block in now.blocks} == end.blocks
        assert {name: now.heads[name] for name in end.heads} == end.heads
        if first.shaped == end.shaped:
            assert {name: made.at(0).heads.get(name) for name in first.heads} == first.heads
        heads = made.at(0).heads
        for step in made.steps if one.alone else []:
            for touched in step["touched"]:
                assert heads.get(touched["memory"]) == touched["before"] or heads.get(touched["memory"]) is None
                heads[touched["memory"]] = touched["after"]
        return made

    def check_events(self, made, events):
        began = made.document["start"]["time"]
        assert [event.time for event in made.events] == [event.time - began for event in events]
        assert all(event.time >= event.took >= 0 for event in made.events)
        for found, wanted in zip(made.events, events, strict=True):
            assert (found.kind, found.address, found.nbytes, found.detail, found.took) == (
                wanted.kind, wanted.address, wanted.nbytes, wanted.detail, wanted.took)
            assert found.place == ("" if wanted.place is None else repr(wanted.place))
            assert found.name == wanted.name or found.name.startswith(f"{wanted.name} #")
        steps = made.steps
        assert [step["first"] for step in steps] + [len(made)] == [0] * bool(steps) + [step["last"] for step in steps] + [0] * (not steps)
        previous = 0    # the end of the step before: an event that began in it does not let the next step begin there
        for step in steps:
            inside = made.events[step["first"]:step["last"]]
            assert (step["begin"], step["end"]) == (max(inside[0].time - inside[0].took, previous), inside[-1].time)
            previous = step["end"]
            if step["kind"] != "between":
                assert (inside[0].kind, inside[0].detail) == ("begin", step["kind"])

    def check_steps(self, one, made, events):
        """Steps of the recorder's own net: which, and in which iteration."""
        own = [step for step in made.steps if step["node"] is not None or step["kind"] == "update"]
        found = [(step["kind"], step["layer"]) for step in own]
        if not one.alone:
            return
        assert found == self.begins(events, one.net)
        iteration, wanted, last = one.first.iteration if one.of == "solver" else 0, [], ("", 0)
        for kind, name in found:
            at = NAMES.index(name) if kind != "update" else 0
            if one.of != "solver" and kind == "forward" and last[0] and (last[0] != "forward" or at <= last[1]):
                iteration += 1      # a forward that does not continue the step before
            wanted.append(iteration)
            iteration += one.of == "solver" and kind == "update"
            last = kind, at
        assert [step["iteration"] for step in own] == wanted

def both(net):
    """Forward and backward, after whatever was released: gradients begin at 0."""
    net.clear_param_diffs()
    net.forward_backward()


def at_once(*functions):
    """Call each in a thread of its own; raise the first error of one."""
    with ThreadPoolExecutor(len(functions)) as pool:
        for call in [pool.submit(function) for function in functions]:
            call.result()


@pytest.fixture(params=["cpu", "sim"])
def machine(request, gpu):
    """A function that makes a machine on the CPU, and one on a device."""
    if request.param == "sim" and not gpu:
        pytest.skip("a build without CUDA")
    return lambda: TraceMachine(request.param == "sim")


def test_any_sequence(search, machine):
    search(machine, 8, 10)


SEQUENCES = {
    "the last iterations": lambda m: (m.step(1), m.start("solver", 1, False), m.step(3), m.ask(0), m.step(1), m.stop(0, True)),
    "again": lambda m: (m.start("solver", None, True), m.step(2), m.stop(0, False), m.stopped(0, True), m.step(1), m.stop(0, False)),
    "asked while it runs again": lambda m: (m.start("solver", None, False), m.step(1), m.stop(0, False), m.stopped(0, True), m.ask(0), m.step(2), m.ask(0),
                                            m.stop(0, False)),
    "two": lambda m: (m.start("solver", None, False), m.start("net", None, False), m.step(1), m.stop(0, False), m.step(1), m.ask(0)),
    "two in one block": lambda m: (m.start("other", None, False), m.pass_of_a_net(True, True), m.block("backward"), m.two_at_once(), m.ask(0)),
    "nothing": lambda m: (m.start("solver", 2, False), m.allocate(1, False), m.stop(0, False), m.stopped(0, True), m.stop(0, False)),
    "a net that changes later": lambda m: (m.start("net", None, False), m.pass_of_a_net(False, True), m.stop(0, False), m.reshape(5, False),
                                           m.pass_of_a_net(False, True), m.release(), m.stopped(0, False)),
    "iterations that a graph would replay": lambda m: (m.step(4), m.step(1), m.pass_of_a_net(False, False), m.step(2)),
    "launches by hand": lambda m: (m.hand_launches(True), m.start("net", None, False), m.step(1), m.stop(0, False), m.step(1)),
    "launches by hand while a recorder runs": lambda m: (
        m.start("net", None, False), m.hand_launches(True), m.step(1), m.stop(0, False), m.step(1), m.hand_launches(False)),
    "no more launches by hand while a recorder runs": lambda m: (
        m.hand_launches(True), m.start("net", None, False), m.hand_launches(False), m.step(1), m.start("other", None, False), m.stop(0, False), m.step(1),
        m.stop(0, False)),
    "an error": lambda m: (m.start("net", None, False), m.fail("forward"), m.fail("backward"), m.fail_by_a_label(),
                           m.in_the_middle("net"), m.in_the_middle("memory")),
}


@pytest.mark.parametrize("plan", ["memory", pytest.param(None, marks=pytest.mark.slow(1))])
@pytest.mark.parametrize("title", SEQUENCES)
def test_sequences(machine, title, plan):
    """Those in which faults that were put in would not always be found by a few examples."""
    one = machine()
    one.make(plan)
    try:
        one.launches_are_recorded_while_a_trace_needs_them()
        SEQUENCES[title](one)
        one.launches_are_recorded_while_a_trace_needs_them()
    finally:
        one.teardown()
