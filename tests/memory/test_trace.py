"""Traces of allocations (tools/bench): from a record to a file and back, invented ones, and the replay."""

import subprocess
import sys
from pathlib import Path

import pytest

from minicaffe import memory
from minicaffe.errors import DataError
from minicaffe.memory import Buffer, CPUPlace, CUDAPlace, SystemAllocator, make_allocator

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench" / "replay.py"
sys.path.insert(0, str(TOOL.parent))

import allocation_trace as trace  # noqa: E402
from allocation_trace import Step  # noqa: E402


def test_trace_of_a_record(tmp_path):
    host, device = SystemAllocator(), SystemAllocator(CUDAPlace(0))
    older = Buffer(host, 1, "older")
    with memory.record() as events:
        one = Buffer(host, 100, "één")
        two = Buffer(device, 200, "two")
        del older
        del one
        again = Buffer(host, 100, "again")  # most likely at the address of `one`
        del two
    steps = trace.from_events(events)
    assert steps == [Step("alloc", 0, 100, "één"), Step("alloc", 1, 200, "two"), Step("free", 0, 0, ""), Step("alloc", 2, 100, "again"),
                     Step("free", 1, 0, "")]
    assert [s.nbytes for s in trace.from_events(events, CUDAPlace(0))] == [200, 0]
    trace.save(steps, tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text("utf-8").splitlines()[2] == '{"kind": "free", "block": 0}'
    assert trace.load(tmp_path / "t.jsonl") == steps
    del again


@pytest.mark.parametrize("line", [
    "alloc 1 2", "[]", "{}", '{"kind": "alloc", "block": 5}', '{"kind": "alloc", "block": 5, "nbytes": -1}',
    '{"kind": "alloc", "block": 5, "nbytes": "much"}', '{"kind": "alloc", "block": 0, "nbytes": 1}', '{"kind": "free", "block": 5}',
    '{"kind": "move", "block": 0}'])
def test_a_wrong_line_is_named(tmp_path, line):
    path = tmp_path / "t.jsonl"
    path.write_text('{"kind": "alloc", "block": 0, "nbytes": 4}\n' + line + "\n")
    with pytest.raises(DataError, match=r"t\.jsonl:2: is no step of an allocation trace"):
        trace.load(path)


def test_seed_of_synthetic_traces(tmp_path):
    trace.save(trace.synthetic(3), tmp_path / "t.jsonl")
    assert trace.load(tmp_path / "t.jsonl") == trace.synthetic(3) != trace.synthetic(4)     # and they are in order


@pytest.mark.parametrize("place", [CPUPlace(), CUDAPlace(0)])
@pytest.mark.parametrize("name", ["plain", "caching", "buddy"])
def test_replay_measures(name, place):
    steps = [Step("alloc", 8, 1000, "a"), Step("alloc", 3, 3000, "b"), Step("free", 8, 0, ""), Step("alloc", 9, 500, "c")]
    upstream = SystemAllocator(place)
    result = trace.replay(steps, lambda below: make_allocator(name, below), upstream, least_seconds=0)
    assert (result.calls, result.peak_live) == (6, 4000)  # two frees at the end
    if name == "plain":
        assert (result.peak_reserved, result.upstream_calls, result.idle) == (4000, 3, 0)
    else:
        assert result.peak_reserved == {"caching": 2 << 20, "buddy": 1 << 20}[name]
        assert result.upstream_calls == 1 and 0.99 < result.idle < 1
    assert result.nanoseconds > 0
    assert upstream.stats().live == 0  # the allocator is gone, with all it held
    assert trace.replay([], lambda below: below, SystemAllocator(), least_seconds=0) == (0, 0, 0, 0, 0, 0)


@pytest.mark.slow(1)
def test_the_tool_prints_a_table(tmp_path):
    path = tmp_path / "t.jsonl"
    done = subprocess.run([sys.executable, TOOL, path, "--synthetic", "1", "--allocator", "caching", "limit:1KiB"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["allocator", "caching", "limit:1KiB"]
    assert "out of memory" in done.stdout
    done = subprocess.run([sys.executable, TOOL, path, "--allocator", "budy"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("ns/call")) == (1, 0)
    assert done.stderr == "replay: unknown allocator 'budy'; did you mean 'buddy'?; known are plain, caching, buddy, limit\n"
