"""Allocations, copies and fills: bounds, lifetimes, kinds of pointers."""

import ctypes

import numpy as np
from sim_runner import configure, cu, download, driver, new_context, raises, upload


def device_properties():
    assert cu.DriverGetVersion() == 13000 and cu.DeviceGetCount() == 1
    device = cu.DeviceGet(0)
    assert cu.DeviceGetName(64, device).rstrip(b" \0") == b"minicaffe simulated device"
    attribute = driver.CUdevice_attribute
    assert cu.DeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == 9
    assert cu.DeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, device) == 32
    assert cu.MemGetInfo() == (4 << 30, 4 << 30)
    assert cu.DeviceGetPCIBusId(13, device).rstrip(b"\0") == b"0000:01:00.0"
    with raises("INVALID_DEVICE", "device 1 of 1"):
        cu.DeviceGet(1)


def error_names():
    code = driver.CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    assert cu.GetErrorName(code) == b"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
    assert cu.GetErrorString(code) == b"peer access unsupported"


def wrong_addresses_and_sizes():
    p, q, gone = int(cu.MemAlloc(100)), int(cu.MemAlloc(50)), int(upload(np.zeros(10, "float32")))
    x, y = np.zeros(400, "uint8"), np.zeros(1000)
    cu.MemFree(gone)
    assert int(cu.MemAlloc(40)) != gone
    for call, *words in (
            (lambda: cu.MemsetD8Async(p, 0, 101, 0), "cuMemsetD8Async", "101 bytes", "0 bytes past the end of allocation #1 (100 bytes"),
            (lambda: cu.MemcpyHtoD(p, x.ctypes.data, 101), "cuMemcpyHtoD", "destination", "101 bytes", "0 bytes past the end of allocation #1 (100 bytes"),
            (lambda: cu.MemcpyDtoH(x.ctypes.data, p + 150, 10), "cuMemcpyDtoH", "source", "50 bytes past the end of allocation"),
            (lambda: cu.MemcpyDtoH(x.ctypes.data, p - 4, 10), "cuMemcpyDtoH", "4 bytes before allocation"),
            (lambda: cu.MemcpyDtoDAsync(q, p, 100, 0), "cuMemcpyDtoDAsync", "destination", "allocation #2"),
            (lambda: cu.MemcpyDtoDAsync(p + 4, p, 50, 0), "overlap"),
            (lambda: download(gone, 10), "cuMemcpyDtoH", "allocation #3 (40 bytes", "freed before"),
            (lambda: cu.MemFree(p + 64), "not the start of an allocation", "byte 64 of allocation #1"),
            (lambda: cu.MemFree(0), "null pointer"), (lambda: cu.MemFree(y.ctypes.data), "host address"),
            (lambda: cu.MemFree(gone), "double free", "allocation #3 (40 bytes) and was freed before"),
            (lambda: cu.MemAlloc(0), "0 bytes"),
            (lambda: cu.MemcpyHtoD(x.ctypes.data, x.ctypes.data + 32, 8), "destination must be device memory", "host address"),
            (lambda: cu.MemcpyHtoD(p, q, 8), "source must be host memory", "device address", "allocation #2"),
            (lambda: cu.MemcpyDtoH(q, p, 8), "destination must be host memory"), (lambda: cu.MemcpyHtoD(p, 0, 8), "source", "null pointer"),
            (lambda: cu.MemcpyHtoD(p, 0x123456789000, 8), "not host memory", "neither device nor host")):
        with raises("INVALID_VALUE", *words):
            call()


def pinned_memory():
    p = cu.MemHostAlloc(4096, 0)
    q = cu.MemAlloc(4096)
    ctypes.memset(p, 7, 4096)
    cu.MemcpyHtoD(q, p, 4096)
    assert (download(q, 4096, "uint8") == 7).all()
    attribute = driver.CUpointer_attribute
    assert cu.PointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) == driver.CUmemorytype.CU_MEMORYTYPE_HOST
    assert cu.PointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q) == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert cu.PointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, q) == 0
    with raises("INVALID_VALUE", "host address"):
        cu.PointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, np.zeros(1000).ctypes.data)
    with raises("INVALID_VALUE", "out of bounds", "pinned host memory"):
        cu.MemcpyHtoD(q, p + 2048, 2049)
    cu.MemFreeHost(p)
    with raises("INVALID_VALUE", "cuMemFreeHost"):
        cu.MemFreeHost(p)


def attributes_of_pointers():
    kind = driver.CUpointer_attribute
    p, pinned = cu.MemAlloc(1000), cu.MemHostAlloc(5000, 0)
    for memory, start, size in ((int(p) + 8, int(p), 1000), (pinned + 8, pinned, 5000)):
        assert int(cu.PointerGetAttribute(kind.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory)) == start
        assert int(cu.PointerGetAttribute(kind.CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory)) == size
        assert not cu.PointerGetAttribute(kind.CU_POINTER_ATTRIBUTE_IS_MANAGED, memory)
    with raises("NOT_SUPPORTED", "does not know attribute 7"):
        cu.PointerGetAttribute(kind.CU_POINTER_ATTRIBUTE_BUFFER_ID, p)


def failing_calls():
    configure("fail=cuMemAlloc:3")
    cu.MemAlloc(16)
    p = cu.MemAlloc(16)
    with raises("OUT_OF_MEMORY", "cuMemAlloc: made to fail by MINICAFFE_SIM"):
        cu.MemAlloc(16)
    cu.MemAlloc(16)
    configure("fail=cuMemcpyHtoDAsync:2,fail=cuStreamCreate:1:CUDA_ERROR_NOT_SUPPORTED")
    x = np.zeros(4, "float32")
    cu.MemcpyHtoDAsync(p, x.ctypes.data, 16, 0)
    with raises("UNKNOWN", "cuMemcpyHtoDAsync: made to fail"):
        cu.MemcpyHtoDAsync(p, x.ctypes.data, 16, 0)
    with raises("NOT_SUPPORTED", "cuStreamCreate: made to fail"):
        cu.StreamCreate(0)


def contexts():
    context = new_context()
    assert int(cu.CtxGetDevice()) == 0
    assert int(cu.DevicePrimaryCtxRetain(0)) == int(context)
    cu.CtxSetCurrent(0)
    with raises("INVALID_CONTEXT", "cuMemAlloc: this thread has no current context"):
        cu.MemAlloc(16)
    cu.CtxSetCurrent(context)
    cu.DevicePrimaryCtxReset(0)
    with raises("CONTEXT_IS_DESTROYED", "was released"):
        cu.MemAlloc(16)
    assert int(new_context()) == int(context)
