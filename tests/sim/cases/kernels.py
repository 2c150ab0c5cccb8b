"""Launches: results, limits, arguments, and kernels that go where they must not."""

import ctypes
import mmap

import numpy as np

from sim_runner import D, F, L, P, S, U, configure, cu, download, function, image, last_name, launch, new_context, raises, scale, struct  # isort: skip
from sim_runner import upload, user_function  # isort: skip


def long_names():
    """The compiler's spelling of a type, of which errors show the type."""
    name = last_name()
    assert "Each<test::Scale>" in name and len(name) > 30
    with raises("ILLEGAL_ADDRESS", "kernel ", "Each<test::Scale>, block (0, 0, 0)"):
        scale(function(name), 1, 0, 0, 1)


def barriers():
    x = np.random.default_rng(3).random(5 * 256).astype("float32")
    p = upload(x)
    launch(function("reverse"), struct((p, P)), grid=5, block=256)
    assert (download(p, x.size).reshape(5, 256) == x.reshape(5, 256)[:, ::-1]).all()
    out = cu.MemAlloc(20)
    launch(function("sum"), struct((p, P), (out, P)), grid=5, block=256)
    assert np.allclose(download(out, 5), x.reshape(5, 256).sum(1), rtol=1e-5)  # another order of additions


def three_dimensions():
    for f, arguments in ((function("position"), struct), (user_function("positions"), None)):
        p = cu.MemAlloc(24 * 30 * 4)
        cu.MemsetD8Async(p, 0, 24 * 30 * 4, 0)
        argument = arguments((p, P)) if arguments else P(int(p))
        launch(f, argument, grid=(2, 3, 4), block=(5, 3, 2))
        wanted = np.arange(24)[:, None] * 1000 + np.arange(30) + (1 if arguments else 0)
        assert (download(p, 720, "int32").reshape(24, 30) == wanted).all()


def shared_memory_is_fresh():
    p = cu.MemAlloc(3 * 64)
    launch(function("shared_out"), struct((p, P)), grid=3)
    assert (download(p, 48, "uint32") == 0xFFFFFFFF).all()


def user_text():
    x = np.random.default_rng(4).random(1000).astype("float32")
    p, q = upload(x), upload(x[::-1])
    launch(user_function("saxpy"), P(int(p)), P(int(q)), F(2), S(1000), grid=4, block=256)
    assert np.allclose(download(q, 1000), 2 * x + x[::-1], rtol=1e-6)  # the compiler may fuse
    out = upload(np.zeros(1, "float32"))
    launch(user_function("sum_of_squares"), P(int(p)), P(int(out)), S(1000), grid=4, block=256)
    assert np.allclose(download(out, 1), (x * x).sum(), rtol=1e-5)
    launch(user_function("dynamic_reverse"), P(int(p)), block=100, shared=400)
    assert (download(p, 100) == x[99::-1]).all()
    words = cu.MemAlloc(16)
    launch(user_function("fresh_shared"), P(int(words)), grid=4)
    assert (download(words, 4, "uint32") == 0xFFFFFFFF).all()


def texts_with_one_name():
    x = np.ones(32)
    p = upload(x)
    first, other = user_function("saxpy"), user_function("saxpy", other=True)
    launch(other, P(int(p)), D(3), block=32)
    assert (download(p, 32, "float64") == 3).all()
    q = upload(x.astype("float32"))
    launch(first, P(int(q)), P(int(q)), F(2), S(32), block=32)
    assert (download(q, 32) == 3).all()


def user_text_faults():
    p = cu.MemAlloc(40)
    f = user_function("wild")
    with raises("ILLEGAL_ADDRESS", "kernel wild, block (1, 0, 0), thread (3, 2, 0) wrote", "0 bytes past the end of allocation #1 (40 "):
        launch(f, P(int(p)), L(10), grid=2, block=(8, 4))
    new_context()
    with raises("LAUNCH_FAILED", "kernel divergent", "barrier not reached by all threads (7 of the block wait, 57 have ended)"):
        launch(user_function("divergent"), block=64)


def out_of_bounds_in_the_slack():
    """An end that is no multiple of 256: found by the pattern that was there."""
    x, y = upload(np.ones(256, "float32")), cu.MemAlloc(1000)
    with raises("ILLEGAL_ADDRESS", "kernel scale wrote to 8 bytes outside allocation #2 (1000 bytes"):
        scale(function("scale"), 1, x, y, 252)


def wrong_addresses():
    """The end of an allocation, rounded up to 256 bytes, touches a closed page. Each of these loses the context."""
    def at(name, p, index, *more, grid=2, block=64):
        launch(function(name), struct((p, P), (index, L), *more), grid=grid, block=block)

    def freed():
        p = cu.MemAlloc(1000)
        cu.MemFree(p)
        at("write_at", p, 3)

    far = "kernel write_at, block (1, 0, 0), thread (5, 0, 0) wrote address 0x"     # without barriers the compiler keeps the thread's number, too
    for call, *words in (
            *((lambda index=index: at("write_at", cu.MemAlloc(1000), index), far, place, "allocation #1 (1000 ") for index, place in (
                (250, "0 bytes past"), (256, "24 bytes past"), (10_000, "39000 bytes past"), (-2048, "8192 bytes before"))),
            (lambda: at("read_at", cu.MemAlloc(1024), 256, (cu.MemAlloc(4), P), grid=1), "kernel read_at, block (0, 0, 0), thread (", "read address",
             "0 bytes past the end of allocation #1"),
            (lambda: at("fiber_write", cu.MemAlloc(256), 65, grid=4, block=256), "kernel fiber_write, block (2, 0, 0), thread (9, 0, 0) wrote",
             "4 bytes past the end of allocation #1"),
            (freed, "kernel write_at", "in allocation #1 (1000 bytes", "freed before"),
            (lambda: at("write_at", 0, 3), "address 0xc: a null pointer"), (lambda: at("write_at", 0xDEAD << 48, 3), "a number as a pointer that no address can be"),
            (lambda: at("write_at", 0x200000000000, 3), "in no allocation of device 0"),
            (lambda: (launch(function("shared_overrun"), struct((15, U))), launch(function("shared_overrun"), struct((17, U)))),
             "kernel shared_overrun", "4 bytes past the end of 64 bytes of shared memory")):
        with raises("ILLEGAL_ADDRESS", *words):
            call()
        new_context()
    p, f = cu.MemAlloc(4), function("divide")
    launch(f, struct((7, S), (0, S), (p, P), (1, L)))
    with raises("LAUNCH_FAILED", "kernel divide, block (0, 0, 0), thread (", "divided an integer by zero"):
        launch(f, struct((0, S), (0, S), (p, P), (1, L)))


def lost_context_stays_lost():
    f, stream = function("write_at"), cu.StreamCreate(0)
    p = cu.MemAlloc(16)
    with raises("ILLEGAL_ADDRESS"):
        launch(f, struct((p, P), (999, L)), grid=2, block=64)
    for call in (lambda: cu.MemAlloc(16), lambda: cu.CtxSynchronize(), lambda: cu.MemFree(p), lambda: download(p, 4),
                 lambda: cu.StreamSynchronize(stream), lambda: cu.ModuleLoadData(image())):  # fmt: skip
        with raises("ILLEGAL_ADDRESS", "kernel write_at", "the context is lost by this error"):
            call()
    assert cu.DeviceGetCount() == 1
    new_context()
    assert (download(upload(np.ones(4, "float32")), 4) == 1).all()
    with raises("INVALID_HANDLE", "stream #", "destroyed before"):
        cu.StreamSynchronize(stream)


def barrier_not_reached_by_all():
    f = function("half_barrier")
    launch(f, struct((0, U), (3, U)), grid=2, block=128)
    for first, rounds in ((64, 0), (64, 5)):
        with raises("LAUNCH_FAILED", "kernel half_barrier", "barrier not reached by all threads (64 of the block wait, 64 have ended)"):
            launch(f, struct((first, U), (rounds, U)), grid=2, block=128)
        new_context()
        f = function("half_barrier")


def stack_overflow():
    p = cu.MemAlloc(4)
    launch(function("stack_hog"), struct((50, S), (p, P)), block=2)
    with raises("ILLEGAL_ADDRESS", "kernel stack_hog", "a thread's stack is full"):
        launch(function("stack_hog"), struct((500, S), (p, P)), block=2)
    new_context()
    p = upload(np.ones(256, "float32"))  # and the stacks are good as before
    launch(function("reverse"), struct((p, P)), block=256)


def limits():
    p = cu.MemAlloc(4096)
    f, arguments = function("position"), struct((p, P))
    for grid, block, words in (
        (0, 1, "a grid of 0 x 1 x 1"), ((1, 65536), 1, "a grid of 1 x 65536 x 1"), (1 << 31, 1, "a grid of 2147483648"),
        (1, 0, "0 x 1 x 1 threads"), (1, 1025, "1025 x 1 x 1 threads"), (1, (32, 33), "32 x 33 x 1"), (1, (1, 1, 65), "1 x 1 x 65"),
    ):  # fmt: skip
        with raises("INVALID_VALUE", "cuLaunchKernel: kernel position", words):
            launch(f, arguments, grid=grid, block=block)
    for grid, block in ((1, 1024), (1, (1024, 1)), (1, (32, 32)), (1, (1, 1, 64)), ((1, 65535), 1), ((1, 1, 65535), 1), (70000, 1)):
        blocks, threads = int(np.prod(grid)), int(np.prod(block))
        out = upload(np.zeros(blocks * threads, "int32"))
        launch(f, struct((out, P)), grid=grid, block=block)
        wanted = 1 + np.arange(blocks)[:, None] * 1000 + np.arange(threads)
        assert (download(out, blocks * threads, "int32").reshape(blocks, threads) == wanted).all(), (grid, block)
    scale(function("scale"), 1, p, p, 4, block=256)
    with raises("LAUNCH_OUT_OF_RESOURCES", "kernel scale was compiled for at most 256 threads in a block, 257 were asked"):
        scale(function("scale"), 1, p, p, 4, block=257)
    with raises("INVALID_VALUE", "50176 bytes of shared memory", "at most 49152"):
        launch(function("too_much_shared"), struct((0, S)))
    with raises("INVALID_VALUE", "49153 of them dynamic"):
        launch(f, arguments, shared=49153)
    launch(f, arguments, shared=49136)


def arguments():
    f = function("scale")
    p = cu.MemAlloc(64)
    with raises("INVALID_VALUE", "kernel scale takes 1 arguments, the list of them is null"):
        cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    places = (ctypes.c_void_p * 1)(None)
    with raises("INVALID_VALUE", "kernel scale: argument 0 is null"):
        cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(places), 0)
    places = (ctypes.c_void_p * 1)(0x123456789000)
    with raises("INVALID_VALUE", "kernel scale: argument 0 is at 0x123456789000"):
        cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(places), 0)
    # Mapped memory lies beyond 4 GiB; below, where a heap may be, an address looks like a number and is not checked.
    memory = mmap.mmap(-1, 4096)
    x = np.frombuffer(memory, "float32", 16)
    x[:] = 1
    with raises("INVALID_VALUE", "kernel scale, argument 0, byte 8: 0x", "is a host address"):
        scale(f, 1, x.ctypes.data, p, 16)
    pinned = cu.MemHostAlloc(64, 0)  # which the device can reach
    ctypes.memmove(pinned, x.ctypes.data, 64)
    scale(f, 3, pinned, p, 16)
    assert (download(p, 16) == 3).all()


def images_and_names():
    with raises("INVALID_IMAGE", "must begin with MCHOST1"):
        cu.ModuleLoadData(b".version 8.0\n.target sm_90\n" + bytes(64))
    with raises("INVALID_IMAGE"):
        cu.ModuleLoadData(0)
    module = cu.ModuleLoadData(image())
    with raises("NOT_FOUND", "no kernel 'scales'; it has 14: scale, write_at"):
        function("scales", module)
    f = function("scale", module)
    cu.ModuleUnload(module)
    with raises("INVALID_HANDLE", "function #", "destroyed before"):
        scale(f, 1, 0, 0, 0)
    with raises("INVALID_HANDLE", "module #", "destroyed before"):
        cu.ModuleUnload(module)


def uninitialized_reads():
    configure("uninitialized=1")
    x, y = cu.MemAlloc(64), cu.MemAlloc(64)
    f = function("scale")
    with raises("INVALID_VALUE", "kernel scale: uninitialized: it read allocation #1 (64 bytes", "nothing of which was ever written"):
        scale(f, 1, x, y, 16)


def many_threads_are_quick():
    """400 blocks of 256 threads with nine barriers: no system threads."""
    x = np.ones(256 * 400, "float32")
    p, out = upload(x), cu.MemAlloc(1600)
    launch(function("sum"), struct((p, P), (out, P)), grid=400, block=256)
    assert (download(out, 400) == 256).all()
