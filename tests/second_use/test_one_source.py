"""One random source of data through any sequence of calls: each batch is what a new source in its state gives, alone on the CPU."""

import gc
import itertools
import os
import random

import numpy as np
import pytest
from helpers import make_net
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

pytest.importorskip("cv2", reason="sources of pictures need OpenCV: pip install -r tests/requirements.txt")
pytest.importorskip("h5py", reason="HDF5Data needs h5py: pip install -r tests/requirements.txt")

from fragile import THEN, change, plainest  # noqa: E402
from leveldb_package import need_leveldb  # noqa: E402
from random_sources import SOURCES, Source  # noqa: E402

import minicaffe  # noqa: E402
from minicaffe.common import caffe  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, OutOfMemoryError  # noqa: E402
from minicaffe.layers.data.sources import RankSharding  # noqa: E402

FOLDERS = itertools.count()


class Breaking:
    """A maker of batches that fails as `faults` says: a dict of an exception by the number of a record."""

    def __init__(self, maker, faults):
        self.maker, self.faults, self.source = maker, faults, maker.source
        self.close, self.infer_shape = maker.close, getattr(maker, "infer_shape", None)

    def fill(self, numbers, buffer):
        for number in numbers:
            if number in self.faults:
                raise self.faults[number]
        self.maker.fill(numbers, buffer)


class SourceMachine(RuleBasedStateMachine):
    """`seed` and `position` are where the source must be; `turns` and `end` as `NumberedSource` has them."""

    def __init__(self, kind, folder, gpu):
        super().__init__()
        self.kind, self.folder, self.gpu, self.states, self.faults, self.views = kind, folder, gpu, [], {}, []

    def teardown(self):
        self.repair()
        if hasattr(self, "net"):
            self.forward(2)
        caffe.solver_count, caffe.solver_rank = 1, 0
        minicaffe.set_mode_cpu()

    @initialize(phase=st.sampled_from([minicaffe.TRAIN, minicaffe.TEST]), seed=st.integers(0, 1 << 30), on_gpu=st.booleans())
    def make(self, phase, seed, on_gpu=False, **fixed):
        minicaffe.set_mode_gpu() if on_gpu and self.gpu else minicaffe.set_mode_cpu()
        caffe.solver_count, caffe.solver_rank = 1, 0
        name = next(FOLDERS)
        twins = (self.kind, ""), (SOURCES["Data"] if self.kind is SOURCES["LevelDB"] else self.kind, "_copy")   # LMDB takes less time to open
        self.source, twin = (Source(kind, random.Random(seed), self.folder / f"{name}{copy}", **fixed) for kind, copy in twins)
        self.phase, self.batch, self.turns, self.end = phase, self.source.batch_size, None, None
        self.net, self.other = self.build(self.source), self.build(twin, "prefetch: 1")
        self.layer = self.net.layers[0]
        if self.threaded:
            real = self.layer.make_batches
            self.layer.make_batches = lambda: Breaking(real(), self.faults)
        self.seed = self.layer.seed
        self.position = self.layer.position
        self.save()

    def build(self, source, prefetch=None):
        tops = 'top: "data" ' + 'top: "label"' * (source.tops > 1)
        minicaffe.set_random_seed(3)
        net = make_net(f'layer {{ name: "in" {tops} {source.text.replace(source.prefetch, prefetch or source.prefetch)} }}', self.phase)
        net.layers[0].batch_size = self.batch
        return net

    @property
    def threaded(self):
        return hasattr(self.layer, "prefetcher")

    # ---- the model

    def numbers(self):
        """Return the numbers of the records of the next batch, and how many all processes read with it."""
        if self.turns is None and self.phase == minicaffe.TRAIN:
            together = self.batch * caffe.solver_count
            return [n for n in range(self.position, self.position + together) if n % caffe.solver_count == caffe.solver_rank], together
        count, rank = self.turns or (1, 0)
        first = self.position + rank * self.batch
        end = first + self.batch if self.end is None else min(first + self.batch, self.end)
        return list(range(first, end)), self.batch * count

    def expected(self):
        """Return the tops of one process that reads all records of the next batch, those of this process alone."""
        numbers, _ = self.numbers()
        shared = self.turns is None and self.phase == minicaffe.TRAIN
        count, first = (caffe.solver_count, self.position) if shared else (1, numbers[0])
        layer, before = self.other.layers[0], (caffe.solver_count, caffe.solver_rank)
        with plainest():
            caffe.solver_count, caffe.solver_rank, layer.batch_size = 1, 0, len(numbers) * count
            layer.set_state({"seed": self.seed, "position": first})
            self.other.forward_from_to(0, 0)
            tops = [blob.cpu_data.copy() for blob in self.other.tops[0]]
        caffe.solver_count, caffe.solver_rank = before
        places = [number - first for number in numbers]
        if self.kind is not SOURCES["AnnotatedData"]:
            return [top[places] for top in tops]
        boxes = [[places.index(box[0]), *box[1:]] for box in tops[1][0, 0] if box[0] in places]
        return [tops[0][places], np.reshape(boxes or [[-1] * 8], (1, 1, -1, 8))]

    def check(self, net, what):
        for blob, wanted in zip(net.tops[0], self.expected(), strict=True):
            np.testing.assert_array_equal(blob.cpu_data, wanted, err_msg=f"{what}: {blob.name}")

    # ---- batches

    @rule(count=st.integers(1, 6), looks=st.booleans())
    def forward(self, count=1, looks=True):
        """Some batches, of which each is looked at, or the last."""
        for i in range(count):
            numbers, step = self.numbers()
            if not numbers:     # behind the end of a test
                return
            self.net.forward_from_to(0, 0)
            if looks or i == count - 1:
                self.check(self.net, f"batch at {self.position}")
            self.position += step
            assert self.layer.position == self.position

    def step(self, count):
        self.forward(count)

    @rule()
    def forward_by_another(self):
        """A net of the same files in the same process."""
        other = self.build(self.source)
        seed, position, end = self.seed, self.position, self.end
        self.seed, self.position = other.layers[0].seed, other.layers[0].position
        turns, self.turns, self.end = self.turns, None, None
        other.forward_from_to(0, 0)
        self.check(other, "another net")
        self.seed, self.position, self.turns, self.end = seed, position, turns, end

    # ---- places

    @rule()
    def save(self):
        state = self.layer.get_state()
        assert state == {"seed": self.seed, "position": self.position}
        self.states.append((state, self.seed, self.position))

    @precondition(lambda self: self.turns is None)
    @rule(which=st.integers(0, 9), then=THEN)
    def restore(self, which, then=0):
        state, self.seed, self.position = self.states[which % len(self.states)]
        self.layer.set_state(dict(state))
        self.forward(then)

    @precondition(lambda self: self.turns is None)
    @rule(seed=st.sampled_from([5, 6, 1 << 40]), position=st.none() | st.integers(0, 30), then=THEN)
    def seek(self, seed, position, then=0):
        """The state of another run; None: at the same position."""
        self.seed, self.position = seed, self.position if position is None else position
        self.layer.set_state({"seed": self.seed, "position": self.position})
        self.forward(then)

    @rule(change=st.sampled_from([{"seed": -1}, {"position": 1.5}, {"position": None}, {"seed": 77, "position": "9"}]))
    def fail_to_restore(self, change):
        """A state that does not fit leaves the source as it is."""
        state = {"seed": self.seed, "position": self.position + 2, **change}
        with pytest.raises(DataError, match="the stored state needs"):
            self.layer.set_state(state)

    # ---- processes

    @precondition(lambda self: self.turns is None)
    @rule(count=st.integers(1, 3), rank=st.integers(0, 2), then=THEN)
    def ranks(self, count, rank, then=0):
        caffe.solver_count, caffe.solver_rank = count, rank % count
        self.forward(then)

    @precondition(lambda self: self.phase == minicaffe.TRAIN and self.turns is None)
    @rule()
    def fail_by_a_rank(self):
        before, caffe.solver_rank = caffe.solver_rank, caffe.solver_count
        with pytest.raises(ConfigError, match="solver_rank"):
            self.net.forward_from_to(0, 0)
        caffe.solver_rank = before

    @precondition(lambda self: self.turns is None)
    @rule(count=st.integers(1, 3), rank=st.integers(0, 2), records=st.none() | st.integers(1, 21), then=THEN)
    def stride(self, count, rank, records=None, then=0):
        """A test that processes share, of so many records."""
        self.turns, self.began = (count, rank % count), self.position
        self.end = None if records is None else self.position + records
        turn = self.turns[1] + self.layer.position // self.layer.batch_size
        self.sharding = RankSharding(self.net, count, turn % count, records)
        self.forward(then)

    @precondition(lambda self: self.turns is not None)
    @rule(batches=st.integers(0, 4), then=THEN)
    def rejoin(self, batches, then=0):
        self.position = self.began + batches * self.batch
        if self.end is not None:
            self.position = min(self.position, self.end)
        self.turns = self.end = None
        self.sharding.end(batches)
        assert self.layer.end is None
        self.forward(then)

    # ---- what changes no values

    mode = precondition(lambda machine: machine.gpu)(change("mode", [minicaffe.set_mode_cpu, minicaffe.set_mode_gpu], lambda machine, mode: mode()))
    release = change("release", [None], lambda machine, _: machine.net.release())
    collect = change("collect", [None], lambda machine, _: gc.collect())
    random_seed = change("random_seed", range(10), lambda machine, seed: minicaffe.set_random_seed(seed))   # it has the one with which it was made

    @precondition(lambda self: self.turns is None)
    @rule(batch=st.integers(1, 4), then=THEN)
    def batch_size(self, batch, then=0):
        """The program's own change of an attribute."""
        self.batch = self.layer.batch_size = batch
        self.forward(then)

    @rule(which=st.integers(0, 1), shape=st.sampled_from([(9,), (2, 3), (1, 1, 2, 2)]))
    def reshape_top(self, which, shape):
        self.net.tops[0][which % self.source.tops].reshape(*shape)

    @rule(which=st.integers(0, 1), keep=st.booleans())
    def write(self, which, keep):
        """As a layer in place does."""
        if not self.numbers()[0]:
            return
        self.forward()
        view = self.net.tops[0][which % self.source.tops].data
        view[...] = -9
        self.views = [view] if keep else []

    # ---- errors

    @precondition(lambda self: self.threaded)
    @rule(ahead=st.integers(0, 5), error=st.sampled_from([DataError, OutOfMemoryError, ZeroDivisionError]).map(lambda kind: kind("broken")),
          tries=st.integers(0, 2), fresh=st.booleans())
    def fail(self, ahead, error, tries, fresh):
        """A record that cannot be read: batches before it are whole, it raises as often as it is tried, and can be read when it is repaired."""
        if not self.numbers()[0]:
            return
        if fresh:       # else the thread may have read the record already
            self.net.release()
        broken = self.position + ahead
        self.faults[broken] = error
        for _ in range(ahead + 2):
            numbers, step = self.numbers()
            if not numbers or numbers[0] > broken:
                break
            try:
                self.net.forward_from_to(0, 0)
            except type(error) as caught:
                assert "broken" in str(caught)
                early = minicaffe.common.caffe.mode == "gpu" and not isinstance(error, DataError)     # of the machine, not of the data
                assert broken in numbers or early and broken < numbers[-1] + 1 + 2 * step
                for _ in range(tries):
                    with pytest.raises(type(error), match="broken"):
                        self.net.forward_from_to(0, 0)
                assert self.layer.position == self.position
                break
            assert not fresh or broken not in numbers
            self.check(self.net, f"batch at {self.position}, with record {broken} broken")
            self.position += step
        self.repair()
        self.forward(2)

    @precondition(lambda self: not self.threaded)
    @rule(number=st.integers(0, 4), count=st.integers(1, 3), restore=st.none() | st.integers(0, 9))
    def fail_by_a_file(self, number, count, restore=None):
        """A file that is gone for some batches."""
        name = f"{number % len(self.source.lengths)}.h5"
        path = str(self.source.folder / name)
        os.rename(path, path + ".away")
        try:
            for _ in range(count):
                numbers, step = self.numbers()
                if not numbers:
                    break
                try:
                    self.net.forward_from_to(0, 0)
                except Error as caught:
                    assert name in str(caught)
                    if restore is not None and self.turns is None:
                        self.save()
                    continue
                self.check(self.net, f"batch at {self.position}, with {name} gone")
                self.position += step
        finally:
            os.rename(path + ".away", path)
        if restore is not None and self.turns is None:
            self.restore(restore)
        self.forward(2)

    def repair(self):
        """A thread that read the record before may still hand out its error, once, in place of the batch with the record."""
        while self.faults:
            number, error = self.faults.popitem()
            if hasattr(self, "net") and self.layer.prefetcher is not None:
                self.drain(number, error)

    def drain(self, broken, error):
        for _ in range(18):     # what the thread holds at most, twice
            numbers, step = self.numbers()
            if not numbers:
                return
            try:
                self.net.forward_from_to(0, 0)
            except type(error):
                return
            self.check(self.net, f"batch at {self.position}, with record {broken} repaired")
            self.position += step


@pytest.mark.parametrize("name", SOURCES)
def test_any_sequence(search, gpu, tmp_path, name):
    if name == "LevelDB":
        need_leveldb()
    search(lambda: SourceMachine(SOURCES[name], tmp_path, gpu), 12 if name in ("VideoData", "LevelDB") else 24, 12)


CPU, GPU = minicaffe.set_mode_cpu, minicaffe.set_mode_gpu
SEQUENCES = {
    "from GPU to CPU between two batches": (["Data", "ImageData"], True, lambda m: (m.forward(2), m.mode(CPU, 2))),
    "from CPU to GPU and back, of arrays that a thread still fills": (["Data", "WindowData"], False, lambda m: (
        [(m.mode(CPU, 3), m.mode(GPU, 3)) for _ in range(6)])),
    "another seed at the same position": (["Data", "ImageData", "AnnotatedData", "WindowData", "HDF5Data"], False, lambda m: (
        m.forward(2), m.seek(1 << 40, None, 3))),
    "the same on a GPU": (["Data", "AnnotatedData", "VideoData"], True, lambda m: (m.forward(2), m.seek(6, None, 3))),
    "a state at the end of a file": (["HDF5Data"], False, lambda m: (
        [(m.forward(1), m.save()) for _ in range(4)], m.restore(0, 5), m.restore(1, 5), m.restore(4, 5), m.restore(2, 5))),
    "a state that does not fit": (["HDF5Data"], False, lambda m: (m.forward(1), m.fail_to_restore({"seed": 77, "position": "9"}), m.forward(2))),
    "a file that is gone and comes back": (["HDF5Data"], False, lambda m: [(m.release(None), m.fail_by_a_file(number, 3)) for number in (1, 2, 0)]),
    "a state behind an error in the first batch": (["HDF5Data"], False, lambda m: (m.batch_size(4), m.fail_by_a_file(1, 1, 0), m.forward(2))),
    "a record that can be read again": (["Data", "ImageData", "VideoData"], False, lambda m: (
        m.forward(1), m.fail(2, DataError("broken"), 2, True), m.fail(0, OutOfMemoryError("broken"), 1, True))),
    "the same on a GPU, after the batches before it": (["Data", "WindowData"], True, lambda m: (
        m.forward(1), m.fail(5, DataError("broken"), 2, True), m.fail(4, OutOfMemoryError("broken"), 1, True))),
    "ranks that come, and the last batch of a test": (["Data", "WindowData", "HDF5Data"], False, lambda m: (
        m.forward(1), m.seek(5, 7), m.ranks(3, 1, 3), m.ranks(2, 1, 2), m.stride(2, 1, 8, 3), m.rejoin(3, 2), m.ranks(1, 0, 2))),
    "shapes that the program gave": (list(SOURCES), False, lambda m: (
        m.forward(1), m.reshape_top(1, (9,)), m.forward(1), m.reshape_top(0, (2, 3)), m.forward(1))),
}


@pytest.mark.parametrize(("title", "name"), [(title, name) for title, (names, *_) in SEQUENCES.items() for name in names])
def test_sequences(gpu, tmp_path, title, name):
    """Those in which faults were found, or put in, and would not always be found by a few examples."""
    _, on_gpu, calls = SEQUENCES[title]
    if not gpu and "GPU" in title:
        pytest.skip("a build without CUDA")
    if name == "LevelDB":
        need_leveldb()
    for phase, shuffle in itertools.product((minicaffe.TRAIN, minicaffe.TEST), (True, False) if name in ("HDF5Data", "ImageData") else (True,)):
        machine = SourceMachine(SOURCES[name], tmp_path, gpu)
        machine.make(phase, 1, on_gpu, count=7, batch_size=3, depth=2, lengths=[3, 1, 3], shuffle=shuffle)
        try:
            calls(machine)
        finally:
            machine.teardown()


def test_memory_data_arrays_in_turn(gpu):
    """New ones begin at their begin, on either device."""
    dice = np.random.default_rng(1)
    net = make_net('layer { name: "in" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 1 height: 3 width: 2 } }')
    for count, shape in ((6, (6,)), (2, (2, 1, 1, 1)), (8, (8,))):
        data, labels = dice.uniform(-1, 1, (count, 1, 3, 2)).astype(np.float32), dice.integers(0, 9, count).astype(np.float32)
        net.layers[0].reset(data, labels.reshape(shape))
        for i in range(5):
            if gpu:
                (CPU if i % 3 else GPU)()
            net.forward_from_to(0, 0)
            begin = 2 * i % count
            np.testing.assert_array_equal(net.blobs["data"].cpu_data, data[begin:begin + 2])
            np.testing.assert_array_equal(net.blobs["label"].cpu_data.ravel(), labels[begin:begin + 2])
    CPU()
