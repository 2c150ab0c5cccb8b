# MINICAFFE_SIM=devices=3,memory=64MiB,peers=0-1,1-2
"""Two devices: peers, and what belongs to which."""

import numpy as np
from sim_runner import P, configure, cu, download, function, launch, new_context, raises, scale, struct, upload


def _both():
    second, first = new_context(1), new_context(0)
    return first, second


def two_devices():
    assert cu.DeviceGetCount() == 3
    can = [[int(cu.DeviceCanAccessPeer(a, b)) for b in range(3)] for a in range(3)]
    assert can == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    first, second = _both()
    cu.MemAlloc(1 << 20)
    assert cu.MemGetInfo()[0] == 63 << 20
    cu.CtxSetCurrent(second)
    assert int(cu.CtxGetDevice()) == 1 and cu.MemGetInfo() == (64 << 20, 64 << 20)


def peer_copies():
    first, second = _both()
    p = upload(np.arange(64, dtype="float32"))
    cu.CtxSetCurrent(second)
    q = cu.MemAlloc(256)
    cu.MemcpyPeerAsync(q, second, p, first, 256, 0)
    assert (download(q, 64) == np.arange(64)).all()
    with raises("INVALID_VALUE", "destination must be on device 0", "on device 1"):
        cu.MemcpyPeerAsync(q, first, p, first, 256, 0)
    with raises("INVALID_VALUE", "cuMemcpyPeerAsync", "past the end of allocation #1 (256 bytes", "on device 1"):
        cu.MemcpyPeerAsync(q, second, p, first, 260, 0)


def peer_access_by_kernels():
    first, second = _both()
    p = upload(np.ones(64, "float32"))
    cu.CtxSetCurrent(second)
    q, f = cu.MemAlloc(256), function("scale")
    cu.CtxEnablePeerAccess(first, 0)
    scale(f, 2, p, q, 64)
    assert (download(q, 64) == 2).all()
    with raises("PEER_ACCESS_ALREADY_ENABLED"):
        cu.CtxEnablePeerAccess(first, 0)
    cu.CtxDisablePeerAccess(first)
    with raises("PEER_ACCESS_NOT_ENABLED"):
        cu.CtxDisablePeerAccess(first)
    with raises("ILLEGAL_ADDRESS", "allocation #1 (256 bytes", "on device 0), and device 1 has no peer access"):
        scale(f, 2, p, q, 64)
    cu.CtxSetCurrent(first)
    download(p, 64)  # only the second is lost


def no_peers_no_access():
    first, third = new_context(0), new_context(2)
    with raises("PEER_ACCESS_UNSUPPORTED", "device 2 and device 0 are not peers", "peers="):
        cu.CtxEnablePeerAccess(first, 0)
    cu.CtxSetCurrent(first)
    with raises("PEER_ACCESS_UNSUPPORTED"):
        cu.CtxEnablePeerAccess(third, 0)
    configure("peers=0-2")
    cu.CtxEnablePeerAccess(third, 0)
    assert [cu.DeviceCanAccessPeer(*pair) for pair in ((0, 2), (2, 0), (0, 1), (1, 2))] == [1, 1, 0, 0]  # in place of those before
    configure("peers=")
    assert not any(cu.DeviceCanAccessPeer(i, j) for i in range(3) for j in range(3) if i != j)
    configure("peers=0-1,1-2")


def streams_and_functions_have_a_device():
    first, second = _both()
    f, s, e = function("write_at"), cu.StreamCreate(0), cu.EventCreate(0)
    p = cu.MemAlloc(256)
    cu.CtxSetCurrent(second)
    with raises("INVALID_HANDLE", "was loaded on device 0", "is of device 1"):
        launch(f, struct((p, P), (0, P)), grid=2, block=64)
    with raises("INVALID_HANDLE", "the event is of device 0, the stream of device 1"):
        cu.EventRecord(e, 0)
    launch(f, struct((p, P), (0, P)), grid=2, block=64, stream=s)  # a stream of the kernel's device will do
