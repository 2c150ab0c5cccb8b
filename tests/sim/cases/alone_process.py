"""What ends the process, or happens at its beginning or end: each runs alone."""

import ctypes
import faulthandler
import os

import numpy as np
from sim_runner import cu, driver, function, image, launch, new_context, raises, upload


def _setup():
    pass


def ill_formed_environment():
    for _ in range(2):
        with raises("INVALID_VALUE", "MINICAFFE_SIM: 'colour=1': unknown; known are devices, peers"):
            cu.Init(0)
    with raises("NOT_INITIALIZED", "cuDeviceGetCount: cuInit comes first"):
        cu.DeviceGetCount()


def no_device():
    with raises("NO_DEVICE"):
        cu.Init(0)


def init_fails_once():
    with raises("UNKNOWN", "cuInit: made to fail by MINICAFFE_SIM"):
        cu.Init(0)
    cu.Init(0)
    assert cu.DeviceGetCount() == 1


def fork():
    cu.Init(0)
    new_context()
    upload(np.ones(4, "float32"))
    child = os.fork()
    if not child:
        codes = [driver.cuInit(0)[0], driver.cuMemAlloc(16)[0], driver.cuDeviceGetCount()[0], driver.cuCtxSynchronize()[0]]
        os._exit(0 if {c.name for c in codes} == {"CUDA_ERROR_NOT_INITIALIZED"} else 1)
    assert os.waitpid(child, 0)[1] == 0
    cu.MemAlloc(16)


def leaks_at_exit():
    cu.Init(0)
    new_context()
    cu.MemFree(cu.MemAlloc(10))
    cu.MemAlloc(1000)
    cu.StreamCreate(0)
    cu.EventCreate(0)
    cu.ModuleLoadData(image())
    cu.MemHostAlloc(4096, 0)


def _touch():
    cu.Init(0)
    new_context()
    p = cu.MemAlloc(64)
    try:  # and a kernel's fault is still only an error
        launch(function("write_at"), ctypes.create_string_buffer(16), grid=2, block=64)
    except Exception:
        new_context()
        p = cu.MemAlloc(64)
    ctypes.string_at(int(p) + 8, 1)


def host_reads_device_memory():
    _touch()


def host_reads_with_faulthandler():
    faulthandler.enable()
    _touch()


def host_reads_with_late_faulthandler():
    cu.Init(0)
    faulthandler.enable()
    _touch()
