"""Stream capture and graphs."""

import numpy as np
from sim_runner import configure, cu, download, driver, function, image, raises, scale, upload

GLOBAL, RELAXED = driver.CUstreamCaptureMode(0), driver.CUstreamCaptureMode(2)
NON_BLOCKING = 1


def _start(mode=GLOBAL):
    f, s, x = function("scale"), cu.StreamCreate(NON_BLOCKING), upload(np.ones(64, "float32"))
    cu.StreamBeginCapture(s, mode)
    return f, s, x


def capture_and_launch():
    f, s, x = _start()
    scale(f, 2, x, x, 64, stream=s)
    cu.MemsetD8Async(int(x) + 128, 0, 128, s)
    assert cu.StreamIsCapturing(s) == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    graph = cu.StreamEndCapture(s)
    assert (download(x, 64) == 1).all()  # nothing was done
    assert cu.GraphGetNodes(graph, 0)[1] == 2
    with raises("NOT_SUPPORTED", "only counts nodes"):
        cu.GraphGetNodes(graph, 2)
    run = cu.GraphInstantiate(graph, 0)
    cu.GraphDestroy(graph)
    for _ in range(3):
        cu.GraphLaunch(run, s)
    cu.StreamSynchronize(s)
    assert list(download(x, 64)[[0, 63]]) == [8, 0]
    cu.GraphExecDestroy(run)
    with raises("INVALID_HANDLE", "executable graph #", "destroyed before"):
        cu.GraphLaunch(run, s)


def _wait(stream, other):
    event = cu.EventCreate(2)
    cu.EventRecord(event, other)
    cu.StreamWaitEvent(stream, event, 0)


def capture_across_streams():
    configure("race=1")
    f, s, x = _start()
    t = cu.StreamCreate(NON_BLOCKING)
    scale(f, 2, x, x, 64, stream=s)
    _wait(t, s)
    scale(f, 3, x, x, 32, stream=t)
    _wait(s, t)
    scale(f, 5, x, x, 64, stream=s)
    run = cu.GraphInstantiate(cu.StreamEndCapture(s), 0)
    for _ in range(2):
        cu.GraphLaunch(run, s)
    cu.StreamSynchronize(s)
    assert list(download(x, 64)[[0, 63]]) == [900, 100]
    scale(f, 1, x, x, 64, stream=t)  # t is a plain stream again
    with raises("INVALID_VALUE", "race: ", "graph node 0", "stream #"):
        cu.GraphLaunch(run, s)
    f, s, x = _start()
    _wait(t, s)
    scale(f, 3, x, x, 64, stream=t)
    scale(f, 5, x, x, 64, stream=s)
    _wait(s, t)
    run = cu.GraphInstantiate(cu.StreamEndCapture(s), 0)
    with raises("INVALID_VALUE", "race: ", "graph node 0", "graph node 1"):
        cu.GraphLaunch(run, s)


def unjoined_streams():
    f, s, x = _start()
    t = cu.StreamCreate(NON_BLOCKING)
    _wait(t, s)
    scale(f, 3, x, x, 64, stream=t)
    with raises("STREAM_CAPTURE_UNMATCHED", "the capture began in stream #"):
        cu.StreamEndCapture(t)
    with raises("STREAM_CAPTURE_UNJOINED", "does not wait for kernel scale"):
        cu.StreamEndCapture(s)
    cu.StreamSynchronize(t)


def what_breaks_a_capture():
    outside = cu.EventCreate(2)
    cu.EventRecord(outside, 0)
    p = cu.MemAlloc(64)
    x = np.zeros(16, "float32")
    for code, words, call in (
        ("STREAM_CAPTURE_UNSUPPORTED", "cuStreamSynchronize: stream #", lambda s: cu.StreamSynchronize(s)),
        ("STREAM_CAPTURE_UNSUPPORTED", "cuMemAlloc is not allowed while", lambda s: cu.MemAlloc(64)),
        ("STREAM_CAPTURE_UNSUPPORTED", "cuModuleLoadData is not allowed while", lambda s: cu.ModuleLoadData(image())),
        ("STREAM_CAPTURE_UNSUPPORTED", "cuMemcpyHtoD is not allowed while", lambda s: cu.MemcpyHtoD(p, x.ctypes.data, 64)),
        ("STREAM_CAPTURE_UNSUPPORTED", "cuCtxSynchronize is not allowed", lambda s: cu.CtxSynchronize()),
        ("STREAM_CAPTURE_ISOLATION", "recorded outside of the capture", lambda s: cu.StreamWaitEvent(s, outside, 0)),
    ):
        f, s, y = _start()
        with raises(code, words):
            call(s)
        with raises("STREAM_CAPTURE_INVALIDATED", words):
            scale(f, 1, y, y, 64, stream=s)
        with raises("STREAM_CAPTURE_INVALIDATED", words):
            cu.StreamEndCapture(s)
        scale(f, 1, y, y, 64, stream=s)
    blocking = cu.StreamCreate(0)
    cu.StreamBeginCapture(blocking, RELAXED)
    with raises("STREAM_CAPTURE_IMPLICIT", "the default stream would wait for stream #"):
        cu.MemsetD8Async(p, 0, 4, 0)
    with raises("STREAM_CAPTURE_INVALIDATED"):
        cu.StreamEndCapture(blocking)
    with raises("STREAM_CAPTURE_UNSUPPORTED", "the default stream cannot be captured"):
        cu.StreamBeginCapture(0, GLOBAL)
    with raises("ILLEGAL_STATE", "not being captured"):
        cu.StreamEndCapture(blocking)


def captured_events_are_no_times():
    f, s, x = _start()
    e = cu.EventCreate(2)
    cu.EventRecord(e, s)
    with raises("CAPTURED_EVENT", "last recorded in a captured stream"):
        cu.EventSynchronize(e)


def relaxed_capture_allows_allocations():
    f, s, x = _start(RELAXED)
    y = cu.MemAlloc(64)
    cu.ModuleLoadData(image())
    scale(f, 4, x, y, 16, stream=s)
    cu.GraphLaunch(cu.GraphInstantiate(cu.StreamEndCapture(s), 0), 0)
    assert (download(y, 16) == 4).all()
    cu.StreamBeginCapture(s, RELAXED)
    cu.GraphLaunch(cu.GraphInstantiate(cu.StreamEndCapture(s), 0), 0)   # an empty one
    cu.CtxSynchronize()


def launches_that_are_refused():
    f, s, x = _start()
    scale(f, 2, x, x, 64, stream=s)
    run = cu.GraphInstantiate(cu.StreamEndCapture(s), 0)
    cu.StreamBeginCapture(s, GLOBAL)
    with raises("NOT_SUPPORTED", "no graph within a graph"):
        cu.GraphLaunch(run, s)
    with raises("STREAM_CAPTURE_INVALIDATED", "no graph within a graph"):
        cu.StreamEndCapture(s)
    cu.MemFree(x)
    with raises("ILLEGAL_ADDRESS", "kernel scale", "freed before"):
        cu.GraphLaunch(run, s)


def deferred_graph():
    configure("deferred=1")
    f, s, x = _start()
    scale(f, 2, x, x, 64, stream=s)
    run = cu.GraphInstantiate(cu.StreamEndCapture(s), 0)
    for _ in range(3):
        cu.GraphLaunch(run, s)
    done = cu.EventCreate(2)
    cu.EventRecord(done, s)
    with raises("NOT_READY"):
        cu.EventQuery(done)
    assert (download(x, 64) == 8).all()
