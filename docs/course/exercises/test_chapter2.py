"""Checks the answers of chapter2.py against SyncedMemory on the simulated device."""

import itertools
import os
import random
from contextlib import contextmanager

os.environ["MINICAFFE_DEVICE"] = "sim"

from chapter2 import copies, mean, next_head

import minicaffe as caffe
from minicaffe.blob import Blob

CALLS = ["cpu_data", "mutable_cpu_data", "gpu_data", "mutable_gpu_data"]
TO_REACH = {"UNINITIALIZED": [], "HEAD_AT_CPU": ["mutable_cpu_data"], "HEAD_AT_GPU": ["mutable_gpu_data"],
            "SYNCED": ["mutable_cpu_data", "gpu_data"]}


@contextmanager
def gpu_mode():
    caffe.set_mode_gpu()
    try:
        yield
    finally:
        caffe.set_mode_cpu()


def looked_at(calls):
    """A blob after these calls, and the copies that they made."""
    blob = Blob((6,))
    for call in calls:
        getattr(blob, call)
    return blob, blob.data_memory.copies


@gpu_mode()
def test_next_head():
    for (head, way), call in itertools.product(TO_REACH.items(), CALLS):
        blob, before = looked_at(way)
        getattr(blob, call)
        assert next_head(head, call) == (blob.data_memory.head.name, blob.data_memory.copies > before), (head, call)


@gpu_mode()
def test_copies():
    draw = random.Random(0)
    for length in range(12):
        calls = draw.choices(CALLS, k=length)
        assert copies(calls) == looked_at(calls)[1], calls


@gpu_mode()
def test_mean():
    for values in ([1, 2, 3, 6], [-1, 0, 0, -3]):
        blob = Blob((4,))
        blob.data[...] = values
        assert blob.mutable_gpu_data is not None
        assert mean(blob) == sum(values) / 4
        assert blob.data_memory.head.name in ("SYNCED", "HEAD_AT_GPU"), "the device's side is old now"
