"""The reporter knows every live block; the record knows what happened."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minicaffe import memory
from minicaffe.memory import CPUPlace, CUDAPlace, SyncedMemory
from minicaffe.memory.reporter import Block, event, is_recording, live, record, stats, table


def test_live_blocks_with_names(host, device):
    small, large, foreign = SyncedMemory(10, "small block"), SyncedMemory(1000, "large block"), SyncedMemory(8, "foreign")

    def found():
        return [(block.name, block.nbytes, block.place) for block in live() if block.name in ("small block", "large block", "foreign")]

    assert found() == []    # nothing is allocated before the first access
    small.cpu_data()
    large.cpu_data()
    large.gpu_data()
    foreign.set_cpu_data(bytearray(8))
    on_host = [("large block", 1000, CPUPlace()), ("small block", 10, CPUPlace())]
    assert sorted(found(), key=repr) == [on_host[0], ("large block", 1000, CUDAPlace(0)), on_host[1]] and found()[-1] == on_host[1]
    assert Block(small.cpu_data().address, 10, CPUPlace(), "small block") in live()
    view = np.ndarray(1000, np.uint8, buffer=large.cpu_data())
    del large
    assert found() == on_host       # a view keeps its block
    del view
    assert found() == on_host[1:]


def test_stats_and_table(host):
    before = stats().get(CPUPlace(), memory.reporter.Stats(0, 0, 0, 0, 0))
    mem = SyncedMemory(1 << 20, "a blob of one mebibyte")
    mem.cpu_data()
    after, lines = memory.stats(CPUPlace()), table().splitlines()
    assert (after.live - before.live, after.count - before.count, after.allocations - before.allocations) == (1 << 20, 1, 1)
    assert after.reserved == 1 << 20 and lines[0].split() == ["bytes", "place", "address", "name"]
    line = next(row for row in lines if "a blob of one mebibyte" in row)
    assert "1,048,576" in line and "CPUPlace()" in line and hex(mem.cpu_data().address) in line
    used = stats()[CPUPlace()]
    assert f"{used.live:>15,}  CPUPlace()     live in {used.count} blocks, at most {used.peak:,}" in lines
    del mem
    assert memory.stats(CPUPlace()).live == before.live and memory.stats(CPUPlace()).peak >= before.live + (1 << 20)


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
