"""The reporter knows every live block; the record knows what happened."""

from concurrent.futures import ThreadPoolExecutor

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
    view, foreign = np.ndarray(1000, np.uint8, buffer=large.cpu_data()), SyncedMemory(8, "foreign")
    foreign.set_cpu_data(bytearray(8))
    del large
    assert [b.name for b in named("small block", "large block", "foreign")] == ["large block", "small block"]     # a view keeps its block
    del view
    assert [b.name for b in named("small block", "large block")] == ["small block"]


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


@pytest.mark.parametrize("before", [0, 2])
def test_records_nest_and_end(before):
    with record() as outer:
        with record() as inner:
            for _ in range(before):
                event("both", place=CPUPlace(), address=64, nbytes=3, name="n", detail="d")
        event("outer alone")
        with record() as second:
            event("last")
        assert is_recording()
    assert not is_recording()
    event("after")
    assert [e.kind for e in outer] == ["both"] * before + ["outer alone", "last"]
    assert [tuple(e)[1:] for e in inner] == [("both", CPUPlace(), 64, 3, "n", "d", 0)] * before and [e.kind for e in second] == ["last"]


def test_record_hears_other_threads():
    with record() as events:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: [event(f"t{i}") for _ in range(200)], range(4)))
    kinds = [e.kind for e in events]
    assert [kinds.count(f"t{i}") for i in range(4)] == [200] * 4
