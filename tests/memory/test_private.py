"""The private side of a SyncedMemory: views that see it, other layouts, failures, random walks. The table is in test_synced.py."""

import contextlib
import ctypes

import numpy as np
import pytest
from doubles import Backwards, HostDouble
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from synced_states import CONTENT, DEVICE_LAYOUT, LAYOUT, ROUTES, N, in_state, read, write

from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, OutOfMemoryError, RecycledError, WrongTypeError
from minicaffe.memory import CPUPlace, CUDAPlace, FailAllocator, Layout, LimitAllocator, SyncedHead, SyncedMemory, SystemAllocator
from minicaffe.memory.allocator import Allocator
from minicaffe.memory.buffer import wrap
from minicaffe.memory.registry import registry
from minicaffe.memory.reporter import live
from minicaffe.memory.zeros import claim_lazy_zeros, mark_zero

FLOAT, BF16 = 0, 3    # kernels/types.hpp
ON_DEVICE_ALONE = SyncedHead.HEAD_AT_GPU, SyncedHead.HEAD_AT_GPU_PRIVATE, SyncedHead.SYNCED_GPU_PRIVATE


@pytest.mark.parametrize("source_state", [state for state in ROUTES if state != "RECYCLED"])
@pytest.mark.parametrize("state", ROUTES)
def test_copy_of_a_first_part(host, device, state, source_state):
    """What the rest held is brought to the device, wherever it is valid; a copy of all brings nothing."""
    route, source = ROUTES[state][0], in_state(source_state)
    content, held = (CONTENT if ROUTES[source_state][0] else bytes(N)), bytes(range(100, 100 + N)) if route else bytes(N)
    for nbytes in 5, N - 1, N:
        mem = in_state(state, held, ["mutable_gpu_data", *route] if route else [])
        if state == "RECYCLED" and nbytes < N:
            with pytest.raises(RecycledError, match=r"the data of blob 'blob' is gone"):
                mem.copy_on_device(source, nbytes)
            assert mem.head == SyncedHead.RECYCLED
            continue
        before = mem.bytes_copied
        mem.copy_on_device(source, nbytes)
        assert mem.head == SyncedHead.HEAD_AT_GPU
        assert read(mem.gpu_data()) == read(mem.cpu_data()) == content[:nbytes] + held[nbytes:]
        if nbytes == N:
            assert mem.bytes_copied - before == 2 * N       # the copy, and the one to the host that was just read


def test_refused_copies_on_the_device(host, device):
    mem, small = in_state("HEAD_AT_CPU"), SyncedMemory(N - 1, "small")
    for target, source, nbytes in (mem, small, N), (small, mem, N), (mem, mem, 1), (mem, mem, N):
        with pytest.raises(ConfigError, match=f"copy_on_device cannot copy {nbytes} bytes here"):
            target.copy_on_device(source, nbytes)
    with pytest.raises(WrongTypeError, match="source must be a SyncedMemory, got "):
        mem.copy_on_device(bytearray(N), N)
    assert device.calls == [] and mem.head == SyncedHead.HEAD_AT_CPU and small.head == SyncedHead.UNINITIALIZED


@pytest.mark.parametrize("call", ["cpu_data", "gpu_data", "private_data"])
def test_clearing_costs_nothing_until_a_read(host, device, call):
    mem = in_state("SYNCED_PRIVATE")
    assert not mark_zero(mem, N)      # the plain side is valid, too
    write(mem.mutable_private_data(LAYOUT), LAYOUT.arranged(CONTENT))
    mem.publish_private()
    before = mem.reorders
    assert mark_zero(mem, N) and mark_zero(mem, N)
    seen = read(getattr(mem, call)(LAYOUT) if "private" in call else getattr(mem, call)())
    assert seen == bytes(len(seen)) and mem.reorders == before


def test_clearing_of_values_in_use(host):
    mem = in_state("HEAD_AT_CPU")
    view = np.ndarray(N, np.uint8, buffer=mem.mutable_cpu_data())
    mem.mutable_private_data(LAYOUT)
    assert not mark_zero(mem, N)
    del view
    mem.mutable_private_data(Backwards(N - 4, 8))
    assert not mark_zero(mem, N)      # behind the array lies more
    mem.publish_private()
    assert read(mem.cpu_data()) == CONTENT
    mem = in_state("HEAD_AT_CPU")
    assert not claim_lazy_zeros(mem)    # something to add to
    assert not mark_zero(mem, N - 1) and read(mem.cpu_data()) == CONTENT
    assert mark_zero(mem, N) and mem.head == SyncedHead.UNINITIALIZED
    assert read(mem.mutable_cpu_data()) == bytes(N)
    write(mem.mutable_cpu_data(), CONTENT)
    assert mark_zero(mem, N) and claim_lazy_zeros(mem) and not claim_lazy_zeros(mem)
    assert mem.head == SyncedHead.HEAD_AT_CPU and read(mem.cpu_data()) == CONTENT   # not yet overwritten


@pytest.mark.parametrize("first, then, details, head", [
    (LAYOUT, Backwards(N, 8), [], "HEAD_AT_PRIVATE"),     # an equal one
    (LAYOUT, Backwards(N, 16), ["backwards after 8 to plain", "plain to backwards after 16"], "SYNCED_PRIVATE"),
    (LAYOUT, Backwards(N, 16, True), ["backwards after 8 to backwards after 16"], "HEAD_AT_PRIVATE"),
    *((Backwards(N, 3, True, on_device=not to_device), Backwards(N, 5, True, on_device=to_device),
       ["backwards after 3 to plain", "host to device" if to_device else "device to host", "plain to backwards after 5"],
       "SYNCED_GPU_PRIVATE" if to_device else "SYNCED_PRIVATE") for to_device in (False, True))])
def test_another_layout(host, device, first, then, details, head):
    """A conversion reads and writes memory of one side: between host and device also what knows other layouts goes by way of the plain sides."""
    mem = SyncedMemory(N)
    write(mem.overwrite_private_data(first), first.arranged(CONTENT))
    mem.publish_private()
    with memory.record() as events:
        assert read(mem.private_data(then)) == then.arranged(CONTENT)
    assert [e.detail for e in events if e.kind in ("reorder", "copy")] == details
    assert mem.reorders == sum("backwards" in detail for detail in details) and SyncedHead(mem.head).name == head
    assert mem.layout() == then and read(mem.cpu_data()) == CONTENT
    before = mem.reorders
    assert read(mem.overwrite_private_data(Backwards(N, 32))) == bytes(N + 32)      # in which all is overwritten
    assert mem.reorders == before and mem.head == SyncedHead.HEAD_AT_PRIVATE


class Dirty(Allocator):
    """Blocks full of ones."""

    def alloc(self, nbytes):
        address = super().alloc(nbytes)
        ctypes.memset(address, 0xFF, nbytes)
        return address


@pytest.mark.parametrize("padding", [0, 8])
@pytest.mark.parametrize("dtype", [FLOAT, BF16])
def test_padding_is_cleared(dtype, padding):
    """BF16 takes half of what the plain array takes, so the bytes of the block do not show whether there is padding."""
    block = N // 2 if dtype == BF16 else N
    mem = SyncedMemory(N)
    mem.pool, mem.skip_zero_fill = Dirty(CPUPlace(), registry.allocator(CPUPlace(), "plain")), True
    given = read(mem.overwrite_private_data(Layout(block + padding, N, "with padding", dtype=dtype)))
    assert given == (bytes(block + padding) if padding else b"\xff" * block)
    mem.pool = None


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("written", ["overwrite_private_data", "mutable_private_data", "private_data"])
@pytest.mark.parametrize(("before", "then"), [("written", "drop_plain"), ("written", "drop_host"), ("written", "publish_private"),
                                              ("cleared", "publish_private"), ("new", "publish_private")])
def test_rest_behind_a_part(host, device, on_device, written, before, then):
    """A blob that shrank keeps its memory. Behind its part are values, or zeros of what was cleared or is new, in dirty blocks, too."""
    small, mem = Backwards(N - 4, 8, on_device=on_device), in_state("HEAD_AT_GPU" if on_device else "HEAD_AT_CPU")
    whole = CONTENT if before == "written" else bytes(N)
    if before == "new":
        for place in CPUPlace(), CUDAPlace(0):
            memory.use(place, Dirty(place, SystemAllocator(place)))
        mem = SyncedMemory(N)
    elif before == "cleared":
        mem.mutable_cpu_data()
        assert mark_zero(mem, N) and mem.head == SyncedHead.UNINITIALIZED
    else:
        read(mem.cpu_data())
        (mem.mutable_gpu_data if on_device else mem.cpu_data)()
    buffer = getattr(mem, written)(small)
    if written != "overwrite_private_data":
        assert read(buffer) == small.arranged(whole[:N - 4])
    if written != "private_data":
        whole = b"\x09" * (N - 4) + whole[N - 4:]
        write(buffer, small.arranged(whole[:N - 4]))
    del buffer
    getattr(mem, then)()
    assert read(mem.gpu_data() if on_device else mem.cpu_data()) == read(mem.cpu_data()) == read(mem.gpu_data()) == whole


@pytest.mark.parametrize("call", ["private_data", "mutable_private_data", "overwrite_private_data"])
def test_layouts_refused(host, call):
    mem, more = in_state("HEAD_AT_CPU"), rf"blob data: SyncedMemory.{call} has {N} bytes, the layout needs {N + 1}"
    for wrong, error, words in (*((wrong, WrongTypeError, "layout must be a Layout, got ") for wrong in (3, None, "plain")), (Backwards(N + 1, 0), ConfigError, more)):
        with pytest.raises(error, match=words):
            getattr(mem, call)(wrong)
    assert mem.head == SyncedHead.HEAD_AT_CPU and read(mem.cpu_data()) == CONTENT


@pytest.mark.parametrize("state", ["HEAD_AT_CPU", "HEAD_AT_PRIVATE"])
def test_a_failure_changes_nothing(host, state):
    layout, mem = Backwards(N, 8), in_state("HEAD_AT_CPU")
    if state == "HEAD_AT_PRIVATE":
        mem.mutable_private_data(layout)
        mem.publish_private()
    layout.broken = True
    with pytest.raises(OSError, match="reorder failed"):
        mem.cpu_data() if state == "HEAD_AT_PRIVATE" else mem.private_data(layout)
    assert SyncedHead(mem.head).name == state
    layout.broken = False
    assert read(mem.cpu_data()) == CONTENT


def test_blobs_carry_their_layout(host):
    blob, other, layout = Blob((2, 3), name="x"), Blob((6,), name="y"), Backwards(24, 8)
    blob.data[...] = np.arange(6).reshape(2, 3)
    blob.data_memory.mutable_private_data(layout)
    blob.data_memory.publish_private()
    other.share_data(blob)
    for _ in range(2):      # a reader changes nothing, nor does a reshape to the same shape
        assert blob.layout_of_data() is other.layout_of_data() is layout and blob.layout_of_diff() is None
        assert other.cpu_data.tolist() == [0, 1, 2, 3, 4, 5]
        blob.reshape(2, 3)


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
@pytest.mark.parametrize("part", ["data", "diff"])
def test_reshape_frees_private_side(host, device, part, written, on_device):
    """Its layout is that of another shape; the values stay on the plain side of the same device."""
    blob, layout, head = Blob((2, 3), name="x"), Backwards(24, 8, on_device=on_device), "HEAD_AT_GPU" if on_device else "HEAD_AT_CPU"
    mem, layout_of = getattr(blob, part + "_memory"), getattr(blob, "layout_of_" + part)
    getattr(blob, part)[...] = np.arange(6).reshape(2, 3)
    (mem.mutable_private_data if written else mem.private_data)(layout)
    mem.publish_private()
    assert layout_of() is layout and 32 in [b.nbytes for b in live() if b.name == "x " + part]
    with memory.record() as events:
        blob.reshape(3, 2)
    assert SyncedHead(mem.head).name == head and layout_of() is None and 32 not in [b.nbytes for b in live() if b.name == "x " + part]
    assert [e.detail for e in events if e.kind == "head"][-1].endswith(f" -> {head} by free_private")
    assert getattr(blob, "cpu_" + part).tolist() == [[0, 1], [2, 3], [4, 5]]


class PrivateMachine(RuleBasedStateMachine):
    """Each reader sees what was written last, by any writer; so do views of the plain side where the private one is."""

    @initialize(size=st.sampled_from([1, 7, 64]))
    def start(self, size):
        self.host, self.device = LimitAllocator(SystemAllocator(), 1 << 20), LimitAllocator(SystemAllocator(CUDAPlace(0)), 1 << 20)
        self.before = memory.use(CPUPlace(), self.host)
        self.side = HostDouble(CUDAPlace(0))
        memory.register(CUDAPlace, lambda place: self.device, lambda place: self.side)
        self.size = size
        self.layouts = [Backwards(size, 8), Backwards(size, 0), Backwards(size, 3, knows_others=True),
                        Backwards(size, 0, on_device=True), Backwards(size, 2, on_device=True, knows_others=True),
                        Backwards(size - size // 3, 4), Backwards(size - size // 2, 1, on_device=True)]     # of a part: a blob that shrank
        self.mems = [SyncedMemory(size, "model"), SyncedMemory(size, "other")]
        self.contents = [bytes(size), bytes(size)]
        self.view = self.device_view = None     # of the first memory

    def renewed(self, which):
        """After `recycle` the next one to write begins."""
        if self.mems[which].head == SyncedHead.RECYCLED:
            self.mems[which].renew()
            self.contents[which] = bytes(self.size)

    which = st.sampled_from([0, 0, 0, 1])

    @rule(which=which, side=st.sampled_from(["cpu_data", "gpu_data", 0, 1, 2, 3, 4, 5, 6]))
    def look(self, which, side):
        mem = self.mems[which]
        if mem.head == SyncedHead.RECYCLED:
            with pytest.raises(RecycledError):
                getattr(mem, side)() if isinstance(side, str) else mem.private_data(self.layouts[side])
        elif isinstance(side, str):
            assert read(getattr(mem, side)()) == self.contents[which]
        else:
            layout = self.layouts[side]
            before = mem.head
            assert read(mem.private_data(layout)) == layout.arranged(self.contents[which][:layout.plain_nbytes])
            plain = SyncedHead.HEAD_AT_GPU if layout.on_device else SyncedHead.HEAD_AT_CPU
            assert mem.layout() is (None if mem.head == plain else mem.layout()) and mem.layout() in (layout, None)
            if mem.head == plain:
                held = self.device_view if layout.on_device else self.view
                assert which == 0 and held is not None or not (mem.own_gpu_data if layout.on_device else mem.own_cpu_data), before

    @rule(which=which, side=st.sampled_from(["cpu_data", "gpu_data"]), byte=st.integers(0, 255))
    def write_plain(self, which, side, byte):
        self.renewed(which)
        buffer = getattr(self.mems[which], f"mutable_{side}")()
        assert read(buffer) == self.contents[which]
        self.contents[which] = bytes([byte]) * self.size
        write(buffer, self.contents[which])

    @rule(which=which, number=st.integers(0, 6), byte=st.integers(0, 255), whole=st.booleans())
    def write_private(self, which, number, byte, whole):
        self.renewed(which)
        layout, mem = self.layouts[number], self.mems[which]
        buffer = mem.overwrite_private_data(layout) if whole else mem.mutable_private_data(layout)
        size = layout.plain_nbytes
        assert whole or read(buffer) == layout.arranged(self.contents[which][:size])
        content = bytes([byte]) * (size // 2) + bytes([byte // 2]) * (size - size // 2)
        write(buffer, layout.arranged(content))
        del buffer
        mem.publish_private()
        self.contents[which] = content + self.contents[which][size:]

    @rule(which=which)
    def clear(self, which):
        if self.mems[which].head != SyncedHead.RECYCLED and mark_zero(self.mems[which], self.size):
            self.contents[which] = bytes(self.size)

    @rule(which=which)
    def drop_plain(self, which):
        mem = self.mems[which]
        mem.drop_plain()
        if which == 1 and mem.layout() is not None and mem.layout().plain_nbytes == self.size:
            assert mem.head == (SyncedHead.HEAD_AT_GPU_PRIVATE if mem.layout().on_device else SyncedHead.HEAD_AT_PRIVATE)

    @rule(which=which)
    def drop_host(self, which):
        self.mems[which].drop_host()
        if which == 0 and self.mems[0].head in ON_DEVICE_ALONE:
            self.view = None    # it shows what was

    @rule(which=which)
    def recycle(self, which):
        held = which == 0 and (self.view is not None or self.device_view is not None)
        done = self.mems[which].recycle()
        assert not (done and held)
        if done:
            self.contents[which] = None

    @rule(number=st.integers(0, 4))
    def exchange(self, number):
        layout = self.layouts[number]
        for which in 0, 1:
            self.renewed(which)
            self.mems[which].private_data(layout)
        self.mems[0].exchange_private(self.mems[1])
        self.contents.reverse()
        assert [mem.layout() for mem in self.mems] == [layout, layout]
        for mem in self.mems:
            mem.publish_private()

    @rule(which=which)
    def copy_on_device(self, which):
        if SyncedHead.RECYCLED in (mem.head for mem in self.mems):
            return
        self.mems[which].copy_on_device(self.mems[1 - which], self.size)
        self.contents[which] = self.contents[1 - which]

    @rule(which=which)
    def push(self, which):
        if self.mems[which].head in (SyncedHead.HEAD_AT_CPU, SyncedHead.HEAD_AT_PRIVATE, SyncedHead.SYNCED_PRIVATE):
            self.mems[which].async_gpu_push("stream")
            self.side.synchronise()

    @rule(on_device=st.booleans())
    def take_view(self, on_device):
        self.renewed(0)
        if on_device:
            self.device_view = self.mems[0].mutable_gpu_data()
        else:
            self.view = np.ndarray(self.size, np.uint8, buffer=self.mems[0].mutable_cpu_data())

    @rule(on_device=st.booleans())
    def drop_view(self, on_device):
        setattr(self, "device_view" if on_device else "view", None)

    @precondition(lambda self: self.view is not None and self.mems[0].head == SyncedHead.HEAD_AT_CPU)
    @rule(byte=st.integers(0, 255))
    def write_through_view(self, byte):
        self.view[...] = byte
        self.contents[0] = bytes([byte]) * self.size

    @precondition(lambda self: self.device_view is not None and self.mems[0].head == SyncedHead.HEAD_AT_GPU)
    @rule(byte=st.integers(0, 255))
    def write_through_device_view(self, byte):
        self.contents[0] = bytes([byte]) * self.size
        write(self.device_view, self.contents[0])

    @rule(byte=st.integers(0, 255), on_device=st.booleans())
    def adopt(self, byte, on_device):
        """Adopted memory counts as shown."""
        array = np.full(self.size, byte, np.uint8)
        if on_device:
            self.mems[0].set_gpu_data(array.ctypes.data, array)
            self.device_view = wrap(array.ctypes.data, self.size, CUDAPlace(0), array)
        else:
            self.mems[0].set_cpu_data(array)
            self.view = array
        self.contents[0] = array.tobytes()

    @rule(which=which)
    def adopt_copy(self, which):
        mem = self.mems[which]
        if mem.head in (*ON_DEVICE_ALONE, SyncedHead.SYNCED):
            mem.set_cpu_copy(bytearray(self.contents[which]))
            if which == 0:
                self.view = None

    @rule(which=which, call=st.sampled_from(["cpu_data", "mutable_cpu_data", "gpu_data", "mutable_gpu_data", 0, 3]))
    def fail(self, which, call):
        """Without memory a call may raise, and loses no value."""
        mem, places = self.mems[which], (CPUPlace(), CUDAPlace(0))
        if mem.head == SyncedHead.RECYCLED:
            return
        working = [memory.use(place, FailAllocator(registry.allocator(place), 1)) for place in places]
        with contextlib.suppress(OutOfMemoryError):
            getattr(mem, call)() if isinstance(call, str) else mem.private_data(self.layouts[call])
        for place, allocator in zip(places, working):
            memory.use(place, allocator)

    @invariant()
    def views_show_it(self):
        """A view beside the private side is current; one on the other side, as ever, only while that is valid."""
        if getattr(self, "mems", None) is None:
            return
        head = self.mems[0].head
        if self.view is not None and head in (SyncedHead.HEAD_AT_CPU, SyncedHead.SYNCED, SyncedHead.HEAD_AT_PRIVATE, SyncedHead.SYNCED_PRIVATE):
            assert self.view.tobytes() == self.contents[0]
        if self.device_view is not None and head in (*ON_DEVICE_ALONE, SyncedHead.SYNCED):
            assert read(self.device_view) == self.contents[0]

    def teardown(self):
        if hasattr(self, "mems"):
            memory.use(CPUPlace(), self.before)
            memory.unregister(CUDAPlace)
            self.mems = self.view = self.device_view = None
            assert (self.host.stats().live, self.device.stats().live) == (0, 0)


TestPrivateMachine = PrivateMachine.TestCase
TestPrivateMachine.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize("step", ["mutable_cpu_data", "mutable_gpu_data", "set_cpu_data"])
def test_recycling(host, device, step):
    mem = SyncedMemory(N)
    view = mem.set_cpu_data(bytearray(N)) if step == "set_cpu_data" else getattr(mem, step)()
    assert not mem.recycle() and mem.head != SyncedHead.RECYCLED
    before = len(live())
    del view
    if step == "set_cpu_data":
        assert not mem.recycle()
        return
    assert mem.recycle() and mem.head == SyncedHead.RECYCLED and len(live()) == before - 1
    mem.renew()
    assert mem.head == SyncedHead.UNINITIALIZED and read(mem.cpu_data()) == bytes(N)
    mem.renew()     # nothing to do
    assert mem.head == SyncedHead.HEAD_AT_CPU


@pytest.mark.parametrize("layout", [LAYOUT, DEVICE_LAYOUT])
def test_exchange_of_private_sides(device, layout):
    a, b = in_state("HEAD_AT_CPU"), in_state("HEAD_AT_CPU", CONTENT[::-1])
    b.name = "b"
    block = a.private_data(layout).address
    b.private_data(layout)
    a.exchange_private(b)
    assert a.head == b.head == (SyncedHead.HEAD_AT_GPU_PRIVATE if layout.on_device else SyncedHead.HEAD_AT_PRIVATE) and a.reorders == 1
    assert b.private_data(layout).address == block and b.private_data(layout).name == "b"
    assert bytes(a.cpu_data()) == CONTENT[::-1] and bytes(b.cpu_data()) == CONTENT


@pytest.mark.parametrize("layouts", [(None, None), (None, LAYOUT), (LAYOUT, None), (LAYOUT, Backwards(N, 0)), (DEVICE_LAYOUT, Backwards(N, 0))])
def test_exchange_refused(host, device, layouts):
    mems = [in_state("HEAD_AT_CPU", content) for content in (CONTENT, CONTENT[::-1])]
    for mem, layout in zip(mems, layouts):
        if layout is not None:
            mem.private_data(layout)
    before = [mem.head for mem in mems]
    for other, error, words in ((mems[1], ConfigError, "exchange_private needs a memory whose private side has the same layout, got <SyncedMemory"),
                                (3, WrongTypeError, "other must be a SyncedMemory, got 3")):
        with pytest.raises(error, match=words):
            mems[0].exchange_private(other)
    assert [mem.head for mem in mems] == before and [read(mem.cpu_data()) for mem in mems] == [CONTENT, CONTENT[::-1]]


@pytest.mark.parametrize("on_device", [False, True])
def test_new_name_of_all_sides(host, device, on_device):
    mem = SyncedMemory(N, "old")
    mem.cpu_data()
    mem.gpu_data()
    mem.private_data(Backwards(N, 0, on_device=on_device))
    mem.name = "new"
    assert mem.name == "new" and "'new'" in repr(mem)
    assert [block.name for block in live() if block.name in ("old", "new")] == ["new"] * 3
    assert mem.recycle()
    mem.renew()
    assert mem.cpu_data().name == mem.gpu_data().name == "new"      # of later blocks, too


class Kind(Backwards):
    """Backwards, of a type of elements, whole or of a part."""

    def __init__(self, nbytes, dtype, scaled, on_device):
        Layout.__init__(self, nbytes, nbytes, "kind", dtype=dtype, scaled=scaled, on_device=on_device)
        self.padding, self.knows_others, self.broken = 0, False, False


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("why", ["", "view", "bf16", "scaled", "part", "no private side", "not valid"])
def test_drop_plain(host, device, why, on_device):
    """Not while a view shows it; nor where the private side has less: of rounded or scaled elements, of a part, or of earlier values."""
    mem = in_state("HEAD_AT_GPU" if on_device else "HEAD_AT_CPU")
    if why != "no private side":
        mem.private_data(Kind(N - 4 if why == "part" else N, BF16 if why == "bf16" else FLOAT, why == "scaled", on_device))
    view = (mem.gpu_data() if on_device else mem.cpu_data()) if why == "view" else None
    if why == "not valid":
        write(mem.mutable_gpu_data() if on_device else mem.mutable_cpu_data(), CONTENT[::-1])
    dropped = mem.head if why else SyncedHead.HEAD_AT_GPU_PRIVATE if on_device else SyncedHead.HEAD_AT_PRIVATE
    assert (mem.layout() is None) == (why in ("scaled", "no private side", "not valid"))
    mem.drop_plain()
    assert mem.head == dropped and (mem.own_gpu_data if on_device else mem.own_cpu_data) == bool(why)
    assert view is None or read(view) == CONTENT
    assert read(mem.cpu_data()) == read(mem.gpu_data()) == (CONTENT[::-1] if why == "not valid" else CONTENT)


@pytest.mark.parametrize("call, head", [("mutable_private_data", "HEAD_AT_GPU_PRIVATE"), ("private_data", "SYNCED_GPU_PRIVATE")])
def test_drop_host(host, device, call, head):
    mem = in_state("HEAD_AT_GPU", route=["mutable_cpu_data", "mutable_gpu_data"])
    getattr(mem, call)(DEVICE_LAYOUT)
    mem.drop_host()
    assert not mem.own_cpu_data and SyncedHead(mem.head).name == head and bytes(mem.cpu_data()) == CONTENT
