"""The reporter knows every live block; the record knows what happened."""

import threading

import numpy as np
import pytest

from minicaffe import memory
from minicaffe.memory import CPUPlace, CUDAPlace, SyncedMemory
from minicaffe.memory.reporter import Block, event, is_recording, live, record, stats, table


def named(*names):
    return [block for block in live() if block.name in names]


def test_live_blocks_with_names(host, device):
    small, large = SyncedMemory(10, "small block"), SyncedMemory(1000, "large block")
    assert named("small block", "large block") == []  # nothing is allocated before the first access
    small.cpu_data()
    large.cpu_data()
    large.gpu_data()
    places = sorted((b.place for b in named("large block")), key=repr)
    assert places == [CPUPlace(), CUDAPlace(0)]
    assert [b.nbytes for b in named("small block", "large block")] == [1000, 1000, 10]
    assert Block(small.cpu_data().address, 10, CPUPlace(), "small block") in live()
    del large
    assert [b.name for b in named("small block", "large block")] == ["small block"]


def test_a_new_name_reaches_the_blocks(host):
    mem = SyncedMemory(10, "old name")
    mem.cpu_data()
    mem.name = "new name"
    assert (len(named("old name")), len(named("new name"))) == (0, 1)


def test_view_keeps_block_listed(host):
    mem = SyncedMemory(8, "kept by a view")
    view = np.ndarray(8, np.uint8, buffer=mem.cpu_data())
    del mem
    assert len(named("kept by a view")) == 1
    del view
    assert named("kept by a view") == []


def test_foreign_memory_is_not_ours(host):
    mem = SyncedMemory(8, "foreign")
    mem.set_cpu_data(bytearray(8))
    assert named("foreign") == []


def test_stats_and_table(host):
    before = stats().get(CPUPlace(), memory.reporter.Stats(0, 0, 0, 0, 0))
    mem = SyncedMemory(1 << 20, "a blob of one mebibyte")
    mem.cpu_data()
    after = memory.stats(CPUPlace())
    assert (after.live - before.live, after.count - before.count) == (1 << 20, 1)
    assert (after.allocations - before.allocations, after.reserved) == (1, 1 << 20)
    line = next(row for row in table().splitlines() if "a blob of one mebibyte" in row)
    assert "1,048,576" in line and "CPUPlace()" in line and hex(mem.cpu_data().address) in line
    used = stats()[CPUPlace()]
    assert f"{used.live:>15,}  CPUPlace()     live in {used.count} blocks, at most {used.peak:,}" in table().splitlines()
    assert table().splitlines()[0].split() == ["bytes", "place", "address", "name"]
    del mem
    assert memory.stats(CPUPlace()).live == before.live
    assert memory.stats(CPUPlace()).peak >= before.live + (1 << 20)


def test_record_of_one_life(host, device):
    with record() as events:
        mem = SyncedMemory(16, "blob")
        mem.mutable_cpu_data()
        mem.gpu_data()
        mem.mutable_cpu_data()
        del mem
    assert [(e.kind, e.place, e.nbytes, e.detail) for e in events if e.name == "blob"] == [
        ("alloc", CPUPlace(), 16, ""),
        ("head", CUDAPlace(0), 16, "UNINITIALIZED -> HEAD_AT_CPU by mutable_cpu_data"),
        ("alloc", CUDAPlace(0), 16, ""),
        ("copy", CUDAPlace(0), 16, "host to device"),
        ("head", CUDAPlace(0), 16, "HEAD_AT_CPU -> SYNCED by gpu_data"),
        ("head", CUDAPlace(0), 16, "SYNCED -> HEAD_AT_CPU by mutable_cpu_data"),
        ("free", CPUPlace(), 16, ""),
        ("free", CUDAPlace(0), 16, ""),
    ]
    times = [e.time for e in events]
    assert times == sorted(times) and [e.kind for e in events if e.took] == ["copy"]


def test_records_nest_and_end(host):
    with record() as outer:
        event("one")
        with record() as inner:
            event("two", place=CPUPlace(), address=64, nbytes=3, name="n", detail="d")
        event("three")
        assert is_recording()
    assert not is_recording()
    event("four")
    assert [e.kind for e in outer] == ["one", "two", "three"]
    assert [tuple(e)[1:] for e in inner] == [("two", CPUPlace(), 64, 3, "n", "d", 0)]


@pytest.mark.parametrize("before", [0, 2])
def test_records_of_same_events(before):
    with record() as outer:
        with record() as inner:
            for _ in range(before):
                event("both")
        event("outer alone")
        with record() as second:
            event("last")
    assert [e.kind for e in outer] == ["both"] * before + ["outer alone", "last"]
    assert [e.kind for e in inner] == ["both"] * before and [e.kind for e in second] == ["last"]


def test_record_hears_other_threads():
    with record() as events:
        threads = [threading.Thread(target=lambda i=i: [event(f"t{i}") for _ in range(200)]) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    kinds = [e.kind for e in events]
    assert [kinds.count(f"t{i}") for i in range(4)] == [200] * 4
