"""Settings at run time, and addresses that come round."""

import numpy as np
from sim_runner import configure, cu, download, driver, raises, upload

WRONG = {"devices=x": "'devices=x'", "memory=12Q": "'memory=12Q'", "capability=7": "must be a compute capability such as 7.5", "colour=1": "'colour=1': unknown",
         "race=yes": "'race=yes'", "peers=0-0": "'peers=0-0': must be pairs", "peers=0-1,1": "'1': unknown", "0-1": "'0-1': unknown",
         "fail=cuMemAlloc": "'fail=cuMemAlloc'", "fail=cuNothing:1": "'fail=cuNothing:1'", "fail=cuMemAlloc:0": "N must be",
         "fail=cuMemAlloc:1:NO": "the code must be a name", "devices=2": "'devices=2': cannot change after cuInit"}


def ill_formed_settings():
    for text, words in WRONG.items():
        with raises("INVALID_VALUE", words):
            configure(text)


def sizes():
    for text, size in (("memory=1MiB", 1 << 20), ("memory=3M", 3 << 20), ("memory=65536", 1 << 16), ("memory=2GB", 2 << 30)):
        configure(text)
        assert cu.MemGetInfo()[1] == size
    configure("memory=4GiB")


def capability():
    attribute = driver.CUdevice_attribute
    for text, (major, minor) in (("7.5", (7, 5)), ("12.0", (12, 0)), ("9.0", (9, 0))):
        configure(f"capability={text}")
        assert cu.DeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) == major
        assert cu.DeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0) == minor


def addresses_come_round():
    first, seen = None, 0
    for i in range(1000):
        p = cu.MemAlloc(1 << 30)
        cu.MemsetD8Async(int(p) + (1 << 30) - 1, 1, 1, 0)
        cu.MemFree(p)
        first = first or int(p)
        seen += int(p) == first
        if seen == 2:
            assert i > 200  # of 256 GiB, and guard pages
            break
    assert seen == 2
    q = upload(np.ones(4, "float32"))
    assert (download(q, 4) == 1).all()
