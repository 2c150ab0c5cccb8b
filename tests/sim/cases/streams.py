"""Streams, events, races, deferred work and handles."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sim_runner import L, P, U, configure, cu, download, driver, function, launch, raises, scale, struct, upload

NON_BLOCKING, DISABLE_TIMING = 1, 2


def _two_streams(flags=NON_BLOCKING):
    return function("scale"), cu.StreamCreate(flags), cu.StreamCreate(flags), upload(np.ones(64, "float32"))


def streams_and_events():
    f, s, t, x = _two_streams()
    y = cu.MemAlloc(256)
    begin, end = cu.EventCreate(0), cu.EventCreate(0)
    cu.EventRecord(begin, s)
    scale(f, 3, x, y, 64, stream=s)
    cu.EventRecord(end, s)
    cu.StreamWaitEvent(t, end, 0)
    scale(f, 2, y, x, 64, stream=t)
    cu.StreamSynchronize(t)
    cu.EventSynchronize(end)
    assert cu.EventElapsedTime(begin, end) >= 0
    assert (download(x, 64) == 6).all()
    assert int(cu.StreamGetCtx(s)) == int(cu.StreamGetCtx(0))
    untimed = cu.EventCreate(DISABLE_TIMING)
    cu.EventRecord(untimed, s)
    with raises("INVALID_HANDLE", "DISABLE_TIMING"):
        cu.EventElapsedTime(begin, untimed)
    with raises("INVALID_HANDLE", "never recorded"):
        cu.EventElapsedTime(begin, cu.EventCreate(0))


def default_streams():
    f, s, t, x = _two_streams(0)
    for stream in (0, 1):
        scale(f, 2, x, x, 64, stream=stream)
        cu.StreamSynchronize(stream)
    assert (download(x, 64) == 4).all()


def threads():
    """Several host threads, each with a stream; the main one has Python's stack for signals, the others have not."""
    context, p = cu.StreamGetCtx(0), upload(np.zeros(8 * 64, "float32"))

    def work(i):
        cu.CtxSetCurrent(context)
        f, x, stream = function("scale"), upload(np.full(64, i, "float32")), cu.StreamCreate(0)
        meeting.wait()
        for _ in range(50):
            scale(f, 1, x, int(p) + 256 * i, 64, stream=stream)
        cu.StreamSynchronize(stream)
        assert (download(int(p) + 256 * i, 64) == i).all()

    meeting = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    with raises("ILLEGAL_ADDRESS", "a thread's stack is full"):
        with ThreadPoolExecutor(1) as one:
            one.submit(lambda: (cu.CtxSetCurrent(context), launch(function("stack_hog"), struct((500, U), (p, P)), block=2))).result()


def dead_handles():
    f, s, t, x = _two_streams()
    e, gone = cu.EventCreate(0), cu.EventCreate(0)
    cu.StreamDestroy(s)
    cu.EventDestroy(gone)
    for call, *words in (
            (lambda: cu.StreamSynchronize(s), "stream #", "destroyed before"), (lambda: cu.StreamDestroy(s), "stream #", "destroyed before"),
            (lambda: scale(f, 1, x, x, 1, stream=s), "stream #", "destroyed before"), (lambda: cu.EventRecord(e, s), "stream #", "destroyed before"),
            (lambda: cu.EventRecord(gone, t), "event #", "destroyed before"),
            (lambda: cu.StreamSynchronize(driver.CUstream(int(e))), "a stream is needed, this is a event"),
            (lambda: cu.StreamSynchronize(driver.CUstream(0x1234)), "0x1234 never was a stream")):
        with raises("INVALID_HANDLE", *words):
            call()


def host_functions():
    seen = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def called(data):
        count = driver.cuDeviceGetCount()
        seen.append((data, count[0].name))

    cu.LaunchHostFunc(0, driver.CUhostFn(ctypes.cast(called, ctypes.c_void_p).value), 7)
    cu.CtxSynchronize()
    assert seen == [(7, "CUDA_ERROR_NOT_PERMITTED")]


def race_between_kernels():
    configure("race=1")
    f, s, t, x = _two_streams()
    y, z = cu.MemAlloc(256), cu.MemAlloc(256)
    cu.CtxSynchronize()
    scale(f, 2, x, y, 64, stream=s)
    scale(f, 2, x, z, 64, stream=t)  # both only read x
    with raises("INVALID_VALUE", "race: kernel scale in stream #", "reads and kernel scale in stream #", "writes the same bytes of allocation #2"):
        scale(f, 2, y, z, 64, stream=t)


def _pinned():
    address = cu.MemHostAlloc(256, 0)
    floats = np.ctypeslib.as_array((ctypes.c_float * 64).from_address(address))
    floats[:] = 0
    return address, floats


def deferred_work():
    configure("deferred=1")
    f, s, t, x = _two_streams()
    (h, host), pageable = _pinned(), np.zeros(64, "float32")
    scale(f, 5, x, x, 64, stream=s)
    cu.MemcpyDtoHAsync(h, x, 256, s)
    assert (host == 0).all()  # no thread has waited
    cu.StreamSynchronize(t)
    assert (host == 0).all()
    cu.StreamSynchronize(s)
    assert (host == 5).all()
    scale(f, 5, x, x, 64, stream=s)
    cu.MemcpyDtoHAsync(pageable.ctypes.data, x, 256, s)
    assert (pageable == 25).all()  # is there when the call returns


def deferred_copies_to_the_device():
    configure("deferred=1")
    f, s, t, x = _two_streams()
    (h, pinned), pageable = _pinned(), np.ones(64, "float32")
    pinned[:] = 1
    cu.MemcpyHtoDAsync(x, h, 256, s)
    pinned[:] = 2  # too early: the copy takes this
    cu.StreamSynchronize(s)
    assert (download(x, 64) == 2).all()
    cu.MemcpyHtoDAsync(x, pageable.ctypes.data, 256, s)
    pageable[:] = 2  # was taken at the call
    cu.StreamSynchronize(s)
    assert (download(x, 64) == 1).all()


def deferred_events():
    configure("deferred=1")
    f, s, t, x = _two_streams()
    e, early = cu.EventCreate(0), cu.EventCreate(0)
    cu.EventRecord(early, s)
    scale(f, 3, x, x, 64, stream=s)
    cu.EventRecord(e, s)
    cu.StreamWaitEvent(t, e, 0)
    scale(f, 7, x, x, 64, stream=t)
    with raises("NOT_READY"):
        cu.EventElapsedTime(early, e)
    with raises("NOT_READY"):
        cu.EventQuery(e)
    cu.EventQuery(e)  # a device would have continued by now
    assert cu.EventElapsedTime(early, e) >= 0
    cu.EventRecord(early, t)
    with raises("NOT_READY"):
        cu.EventQuery(early)
    cu.EventQuery(early)
    cu.StreamDestroy(s)
    assert (download(x, 64) == 21).all()


def deferred_work_of_a_destroyed_stream():
    """It gets done: before the context is idle, before the default stream continues, and before memory ends."""
    f, s, t, x = _two_streams(0)
    y = cu.MemAlloc(256)
    for wait in (cu.CtxSynchronize, lambda: cu.StreamSynchronize(0), lambda: cu.MemFree(cu.MemAlloc(16))):
        cu.MemcpyHtoD(y, np.zeros(64, "float32").ctypes.data, 256)
        configure("deferred=1")
        gone = cu.StreamCreate(0)
        scale(f, 3, x, y, 64, stream=gone)
        cu.StreamDestroy(gone)
        wait()
        configure("deferred=0")
        assert (download(y, 64) == 3).all()


def deferred_work_is_done_before_its_memory_ends():
    configure("deferred=1")
    f, s, t, x = _two_streams()
    for take, copy, free in ((lambda: cu.MemAlloc(256), cu.MemcpyDtoDAsync, cu.MemFree),
                             (lambda: cu.MemHostAlloc(256, 0), cu.MemcpyDtoHAsync, cu.MemFreeHost)):
        p = take()
        scale(f, 3, x, x, 64, stream=s)
        copy(p, x, 256, s)
        free(p)
        cu.StreamSynchronize(s)     # nothing is left that would reach the memory


def deferred_launches():
    """Arguments are copied at the call; faults come with the wait."""
    configure("deferred=1")
    arguments = struct((cu.MemAlloc(64), P), (3, L))
    launch(function("write_at"), arguments, grid=2, block=64)
    arguments.f0 = 0
    cu.CtxSynchronize()
    launch(function("write_at"), arguments, grid=2, block=64)
    with raises("ILLEGAL_ADDRESS", "kernel write_at", "null pointer"):
        cu.CtxSynchronize()


def queued_work_behind_a_failure():
    """All queued work runs, the first failure is reported, and once only."""
    configure("deferred=1,uninitialized=1")
    s, host, p, q = cu.StreamCreate(NON_BLOCKING), int(cu.MemHostAlloc(64, 0)), int(cu.MemAlloc(64)), int(cu.MemAlloc(64))
    for source in (p, q):
        cu.MemcpyDtoHAsync(host, source, 64, s)
    cu.MemsetD8Async(p, 7, 64, s)
    with raises("INVALID_VALUE", "uninitialized", f"0x{p:x}"):
        cu.StreamSynchronize(s)
    cu.StreamSynchronize(s)
    cu.MemcpyDtoHAsync(host, p, 64, s)
    cu.StreamSynchronize(s)
    assert (np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(host)) == 7).all()


def times_of_events_whose_work_has_not_run():
    configure("deferred=1")
    s, begin, end = cu.StreamCreate(NON_BLOCKING), cu.EventCreate(0), cu.EventCreate(0)
    cu.EventRecord(begin, s)
    cu.EventSynchronize(begin)
    cu.EventRecord(end, s)
    for pair in ((begin, end), (end, begin)):
        with raises("NOT_READY", "the work before an event is not done"):
            cu.EventElapsedTime(*pair)
    cu.EventSynchronize(end)
    assert cu.EventElapsedTime(begin, end) >= 0 >= cu.EventElapsedTime(end, begin)
