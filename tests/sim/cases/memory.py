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


def fills():
    p = upload(np.ones(16, "float32"))
    cu.MemsetD8Async(int(p) + 4, 0, 8, 0)
    assert list(download(p, 4)) == [1, 0, 0, 1]
    with raises("INVALID_VALUE", "cuMemsetD8Async", "65 bytes", "0 bytes past the end of allocation #1 (64 bytes"):
        cu.MemsetD8Async(p, 0, 65, 0)


def copies_out_of_bounds():
    p = cu.MemAlloc(100)
    x = np.zeros(400, "uint8")
    with raises("INVALID_VALUE", "cuMemcpyHtoD", "destination", "101 bytes", "0 bytes past the end of allocation #1 (100 bytes"):
        cu.MemcpyHtoD(p, x.ctypes.data, 101)
    with raises("INVALID_VALUE", "cuMemcpyDtoH", "source", "50 bytes past the end of allocation"):
        cu.MemcpyDtoH(x.ctypes.data, int(p) + 150, 10)
    with raises("INVALID_VALUE", "cuMemcpyDtoH", "4 bytes before allocation"):
        cu.MemcpyDtoH(x.ctypes.data, int(p) - 4, 10)
    q = cu.MemAlloc(50)
    with raises("INVALID_VALUE", "cuMemcpyDtoDAsync", "destination", "allocation #2"):
        cu.MemcpyDtoDAsync(q, p, 100, 0)
    with raises("INVALID_VALUE", "overlap"):
        cu.MemcpyDtoDAsync(int(p) + 4, p, 50, 0)


def use_after_free():
    p = upload(np.zeros(10, "float32"))
    cu.MemFree(p)
    with raises("INVALID_VALUE", "cuMemcpyDtoH", "allocation #1 (40 bytes", "freed before"):
        download(p, 10)
    assert int(cu.MemAlloc(40)) != int(p)


def wrong_frees():
    p = cu.MemAlloc(1000)
    with raises("INVALID_VALUE", "not the start of an allocation", "byte 256 of allocation #1"):
        cu.MemFree(int(p) + 256)
    with raises("INVALID_VALUE", "null pointer"):
        cu.MemFree(0)
    with raises("INVALID_VALUE", "host address"):
        cu.MemFree(np.zeros(1000).ctypes.data)
    cu.MemFree(p)
    with raises("INVALID_VALUE", "double free", "allocation #1 (1000 bytes) and was freed before"):
        cu.MemFree(p)


def wrong_kinds_of_pointers():
    p, q = cu.MemAlloc(64), cu.MemAlloc(64)
    x = np.zeros(64, "uint8")
    with raises("INVALID_VALUE", "destination must be device memory", "host address"):
        cu.MemcpyHtoD(x.ctypes.data, x.ctypes.data + 32, 8)
    with raises("INVALID_VALUE", "source must be host memory", "device address", "allocation #2"):
        cu.MemcpyHtoD(p, int(q), 8)
    with raises("INVALID_VALUE", "destination must be host memory"):
        cu.MemcpyDtoH(int(q), p, 8)
    with raises("INVALID_VALUE", "source", "null pointer"):
        cu.MemcpyHtoD(p, 0, 8)
    with raises("INVALID_VALUE", "not host memory", "neither device nor host"):
        cu.MemcpyHtoD(p, 0x123456789000, 8)


def an_allocation_of_nothing():
    with raises("INVALID_VALUE", "0 bytes"):
        cu.MemAlloc(0)


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
