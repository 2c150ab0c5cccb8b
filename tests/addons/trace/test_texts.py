"""What a written trace says: its steps in full, rows of the table, summary, rows of Chrome's format, and reasons of copies."""

import pytest

from minicaffe.addons.trace import Trace, html, perfetto, table
from minicaffe.addons.trace.reasons import CopyReasons
from minicaffe.addons.trace.schema import COLUMNS

GPU, HOST = "CUDAPlace(0)", "CPUPlace()"
EVENTS = [      # time, kind, place, address, bytes, name, detail, took
    (1000, "alloc", HOST, 64, 4096, "data data", "", 0), (2000, "reorder", HOST, 0, 3000, "data data", "plain to nChw16c", 0),
    (4000, "copy", GPU, 0, 3000, "data data", "host to device", 1000), (4000, "head", "", 1, 4096, "data data", "HEAD_AT_CPU -> SYNCED by gpu_data", 0),
    (5000, "segment taken", GPU, 512, 2048, "", "", 0), (5000, "cache hit", HOST, 0, 9, "", "", 0), (5000, "cache hit", GPU, 512, 2048, "", "", 0),
    (5000, "split", GPU, 512, 1024, "", "", 0), (5000, "split", GPU, 512, 512, "", "", 0), (5000, "alloc", GPU, 512, 500, "scratch data", "", 0),
    (9000, "launch", GPU, 0, 3000, "Each<F>", "4x1x2 blocks of 32 threads; scratch data (1000 bytes);  (8 bytes)", 2000),
    (9500, "call", GPU, 0, 0, "cublasSgemm", "", 500), (10000, "free", GPU, 512, 500, "scratch data", "", 0), (10000, "merge", GPU, 512, 1024, "", "", 0),
    (10000, "segment given back", GPU, 512, 2048, "", "", 0), (10000, "merge", HOST, 64, 9, "", "", 0),
    (10000, "head", "", 2, 512, "scratch data", "UNINITIALIZED -> HEAD_AT_GPU by overwrite_gpu_data", 0),
    (12000, "reorder", HOST, 0, 3000, "scratch data #2", "nChw16c to plain", 0), (13000, "copy", GPU, 0, 600, "scratch data", "device to host", 0),
    (14000, "travel", "", 0, 700, "w diff, v diff", "", 5000), (15000, "travel", "", 0, 300, "w diff", "", 3000),
    (16000, "copy", GPU, 0, 40, "w data", "device to host", 10), (17000, "copy", GPU, 0, 40, "w data", "peer to device", 0),
    (18000, "copy", GPU, 0, 40, "other data", "device to device", 0), (18000, "mark", "", 0, 0, "", "", 0)]


def step(kind, layer, last, node=None, iteration=0, touched=(), **more):
    """A step that ends before event `last`; the next one begins there."""
    return {"iteration": iteration, "kind": kind, "layer": layer, "node": node, "last": last, "with": None, "flops": None, "bytes": None, "loss": None,
            "touched": [dict(zip(("memory", "before", "after"), one)) for one in touched], **more}


def memory(name, role, nbytes, title=None, aliases=()):
    blob, part = name.removesuffix(" #2").rsplit(" ", 1)
    return {"name": name, "blob": blob, "part": part, "bytes": nbytes, "role": role, "aliases": list(aliases), "title": title or blob}


@pytest.fixture
def written():
    document = Trace(None).document
    texts = document["strings"] = list(dict.fromkeys(text for row in EVENTS for text in row if isinstance(text, str)))
    document["events"] = {key: [texts.index(value) if isinstance(value, str) else value for value in column] for key, column in zip(COLUMNS, zip(*EVENTS))}
    document["steps"] = steps = [
        step("between", "", 2), step("forward", "conv", 17, 0, flops=8_000_000, bytes=6000, loss=2.5, touched=[
            ("data data", "HEAD_AT_CPU", "SYNCED"), ("scratch data", "UNINITIALIZED", "HEAD_AT_GPU"), ("w data", "SYNCED", "SYNCED")]),
        step("between", "", 19), step("backward", "conv", 21, 0, **{"with": "relu"}),
        step("update", "update", 22, iteration=1, parameters=["w", "v"], touched=[("w data", "SYNCED", "HEAD_AT_CPU")]), step("between", "", 25, iteration=2)]
    for before, one in zip([{"last": 0, "end": 0}, *steps], steps):
        one |= {"first": before["last"], "begin": before["end"], "end": EVENTS[one["last"] - 1][0]}
    cost = {"forward": None, "backward": None}
    document["net"]["nodes"] = [{"name": "conv", "type": "Convolution", "line": 3, "bottoms": ["data"], "tops": ["c"], "params": ["w"], "shapes": {},
                                 "engine": "CAFFE", "layout": None, "flops": cost, "bytes": cost}]
    document["memories"] = [memory("data data", "input", 4096), memory("scratch data", "workspace", 512, "scratch of conv"),
                            memory("scratch data #2", "workspace", 512, "scratch of ip"), memory("w data", "parameter", 40, aliases=["v data"])]
    document["device"].update(kind="sim", copy_bandwidth=3e9)
    document["why"] = {"2": "because of x"}
    return Trace(document)


def test_steps_in_full(written):
    assert [table.describe(written, number) for number in range(6)] == [
        ["step 0 of 6, iteration 0: between layers", "simulated: 0.002 ms", "  +4.0 KiB host: data",
         "  reorder plain to nChw16c: data, 2.9 KiB, simulated: 0.000 ms"],
        ["step 1 of 6, iteration 0: layer conv, forward",
         "simulated: 0.008 ms, 0.003 ms of it on the device, 8.00 MFLOP (3200.0 GFLOP/s), 5.9 KiB (2.4 GB/s, 80% of a large copy's)", "loss 2.5",
         "  data               4.0 KiB  host -> host+device", "  scratch of conv      512 B  no data -> device", "  w                     40 B  host+device",
         "  copy host to device: data, 2.9 KiB, simulated: 0.001 ms, 3.0 GB/s", "    because of x",
         "  +500 B device 0: scratch (from the cache, the rest split off 2 times)", "  kernel Each<F>, 4 x 2 blocks of 32 threads",
         "    simulated: 0.002 ms, 2.9 KiB (1.5 GB/s, 50% of a large copy's)", "    arrays: scratch, no name", "  call cublasSgemm, 0.001 ms",
         "  -500 B device 0: scratch (joined with its free neighbours, a segment given back)"],
        ["step 2 of 6, iteration 0: between layers", "simulated: 0.003 ms", "  reorder nChw16c to plain: scratch of ip, 2.9 KiB, simulated: 0.000 ms",
         "  copy device to host: scratch of conv, 600 B, simulated: 0.000 ms"],
        ["step 3 of 6, iteration 0: layer conv, backward", "fused: computed with relu"],
        ["step 4 of 6, iteration 1: update of w, v", "simulated: 0.001 ms", "  w       40 B  host+device -> host",
         "  copy device to host: w, 40 B, simulated: 0.000 ms, 4.0 GB/s"],
        ["step 5 of 6, iteration 2: between layers", "simulated: 0.002 ms", "  copy peer to device: w, 40 B, simulated: 0.000 ms",
         "  copy device to device: other data, 40 B, simulated: 0.000 ms"]]
    assert html.data(written)["texts"][3] == ("state", "data: host -> host+device (gpu_data)")
    written.document["start"]["arenas"] = [{"place": place, "allocator": allocator, "segments": []} for place, allocator in ((HOST, "caching"), (GPU, "buddy"))]
    written.document["device"].update(kind="gpu", copy_bandwidth=None)
    written.document["strings"] = [text.replace("segment given", "pool given") for text in written.document["strings"]]
    lines = table.describe(Trace(written.document), 1)
    assert lines[1] == "0.008 ms, 0.003 ms of it on the device, 8.00 MFLOP (3200.0 GFLOP/s), 5.9 KiB (2.4 GB/s)"
    assert lines[8] == "  +500 B device 0: scratch (from the cache, cut in halves 2 times)"
    assert lines[-1] == "  -500 B device 0: scratch (joined with its buddy, a pool given back)"


def test_table_and_summary(written):
    assert [table.row(written, number) for number in range(6)] == [
        ["0", "between", "0.002", "", "", "", "1: 2.9 KiB", "+4.0 KiB", "", ""],
        ["1", "> conv", "0.008", "0.003", "3200.0", "2.4", "1: 2.9 KiB", "+500 B -500 B", "2", "data: host -> host+device, scratch of conv: no data -> device"],
        ["2", "between", "0.003", "", "", "", "2: 3.5 KiB", "", "", ""], ["3", "< conv", "fused", "", "", "", "", "", "", ""],
        ["4", "= update", "0.001", "", "", "", "1: 40 B", "", "", "w: host+device -> host"], ["5", "between", "0.002", "", "", "", "2: 80 B", "", "", ""]]
    assert [table.row(written, number, False) for number in (0, 1)] == [["0", "between", "0.002", "2.9 KiB", "+4.0 KiB", ""],
                                                                        ["1", "> conv", "0.008", "2.9 KiB", "", "2"]]
    wanted = ["6 steps in 3 iterations, 25 events", "copies: 5, 3.6 KiB, 0.001 ms simulated", "reorders: 2, 5.9 KiB, 0.000 ms simulated",
              "kernels: 1, 0.002 ms simulated", "calls of libraries: 1, 0.001 ms simulated",
              "gradients sent between processes: 2, 1000 B, 0.006 ms, 0.002 of them while layers ran backward",
              "live memory, host: at most 4.0 KiB (input 4.0 KiB)", "live memory, device 0: at most 500 B (workspace 500 B)",
              "times and speeds are those of the simulated device, which is not a GPU"]
    assert table.summary(written) == wanted
    written.document["device"]["kind"] = "gpu"
    assert table.summary(written) == [line.replace(" simulated", "") for line in wanted[:-1]]
    assert table.summary(Trace(None)) == ["0 steps in 0 iterations, 0 events", "copies: 0, 0 B, 0.000 ms"]


def test_rows_of_chrome(written):
    rows, found = perfetto.events(written), {}
    assert [row["args"] for row in rows if row["ph"] == "M"] == [{"name": "minicaffe: a net"}, *(argument for number, name in enumerate(
        ["layers", "kernels", "copies and reorders", "allocators", "gradient transfers"], 1) for argument in ({"name": name}, {"sort_index": number}))]
    timed = rows[11:]
    assert {row["pid"] for row in rows} == {1} and [row["ts"] for row in timed] == sorted(row["ts"] for row in timed)
    for row in timed:
        found.setdefault((row["ph"], row.get("tid")), []).append((row["name"], row["ts"], row.get("dur"), row["args"]))
    assert found["X", 1] == [
        ("between", 0, 2, {"iteration": 0}),
        ("conv forward", 2, 8, {"iteration": 0, "type": "Convolution", "line": 3, "engine": "CAFFE", "flops": 8_000_000, "loss": 2.5,
                                "states": ["data: host -> host+device", "scratch of conv: no data -> device"]}),
        ("between", 10, 3, {"iteration": 0}), ("conv backward", 13, 2, {"iteration": 0, "type": "Convolution", "line": 3, "engine": "CAFFE", "with": "relu"}),
        ("update", 15, 1, {"iteration": 1, "states": ["w: host+device -> host"]}), ("between", 16, 2, {"iteration": 2})]
    assert found["X", 2] == [("Each<F>", 7, 2, {"grid": [4, 1, 2], "block": 32, "arrays": {"scratch data": 1000, "": 8}}), ("cublasSgemm", 9, 0.5, {})]
    titles = "data", "data", "scratch of ip", "scratch of conv", "w", "w", "other data"
    assert found["X", 3] == [(f"{title}, {way}", (time - took) / 1000, took / 1000, {"bytes": n, "place": place, "way": way}) for title, (
        time, _, place, _, n, _, way, took) in zip(titles, (event for event in EVENTS if event[1] in ("copy", "reorder")), strict=True)]
    assert found["i", 4] == [(kind, time / 1000, None, {"bytes": n, "place": place, "address": hex(address), "detail": ""})
                             for time, kind, place, address, n, *_ in EVENTS if kind in ("cache hit", "split", "merge", "segment taken", "segment given back")]
    assert found["b", 5] == [("w diff, v diff", 9, None, {"bytes": 700}), ("w diff", 12, None, {"bytes": 300})]
    assert found["e", 5] == [("w diff, v diff", 14, None, {"bytes": 700}), ("w diff", 15, None, {"bytes": 300})]
    assert [row["id"] for row in timed if row.get("tid") == 5] == [14000, 15000, 14000, 15000]
    assert found["C", None] == [(f"bytes in use, {HOST}", 1, None, {"input": 4096}), (f"bytes in use, {GPU}", 5, None, {"workspace": 500}),
                                (f"bytes in use, {GPU}", 10, None, {"workspace": 0})]
    assert len(found) == 7


def test_reasons(written):
    before, between = "It was written before the record began.", "what runs between layer conv (forward) and layer conv (backward)"
    assert CopyReasons(written).all() == {
        1: f"data was reordered from plain to nChw16c (3,000 bytes): what runs before layer conv (forward) accessed it there. {before}",
        2: f"data was copied from host to device (3,000 bytes): layer conv (forward) accessed it on the device (gpu_data). {before} Its head was HEAD_AT_CPU, "
           "only the host's side is valid; since then it is SYNCED, host and device hold the same.",
        17: f"scratch of ip was reordered from nChw16c to plain (3,000 bytes): {between} accessed it there. {before}",
        18: f"scratch of conv was copied from device to host (600 bytes): {between} accessed it there. It was written last on the device, "
            "by a call of overwrite_gpu_data.",
        21: f"w was copied from device to host (40 bytes): the solver's update accessed it there. {before}",
        22: "w was copied from peer to device (40 bytes): what runs after the solver's update accessed it there. "
            "It was written last by the solver's update in iteration 1.",
        23: "other data was copied from another memory, device to device (40 bytes), by what runs after the solver's update."}
