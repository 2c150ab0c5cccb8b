"""Views of gradients that a program keeps show the sums of all ranks, in whatever order an engine keeps the gradients.

The ranks are threads of this process (tests/fake_mpi.py).
"""

import ctypes

import numpy as np
import pytest
from fake_mpi import Job

from minicaffe.blob import Blob
from minicaffe.memory import Layout
from minicaffe.parallel import exchange as exchanges
from minicaffe.parallel.exchange import Exchange
from minicaffe.parallel.group import Group
from minicaffe.parallel.transport import BlockingMpiTransport, MpiTransport


class Reversed(Layout):
    """The floats of an array from the last to the first, after two zeros."""

    def __init__(self, count):
        super().__init__(4 * (count + 2), 4 * count, "reversed", dims=(count,))
        self.count = count

    def __eq__(self, other):
        return isinstance(other, Reversed) and self.count == other.count

    def __hash__(self):
        return self.count

    def to_plain(self, plain, private, stream=0):
        floats(plain, self.count)[:] = floats(private, self.count + 2)[:1:-1]

    def from_plain(self, private, plain, stream=0):
        floats(private, self.count + 2)[:] = [0, 0, *floats(plain, self.count)[::-1]]


def floats(address, count):
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("alone", [0, 1 << 18], ids=["each alone", "together"])
@pytest.mark.parametrize("carrier", [BlockingMpiTransport, MpiTransport])
@pytest.mark.parametrize("kept_from", [0, 1, 2])
def test_a_view_shows_each_sum(monkeypatch, bf16, alone, carrier, kept_from):
    """Views that are taken before the first iteration, and after it, when all have agreed on the layouts."""
    monkeypatch.setattr(exchanges, "UNBUCKETED_MIN_BYTES", alone)
    job, counts = Job(3), (5, 40, 1)
    job.use(monkeypatch)
    dice = np.random.default_rng(1)
    given = dice.integers(-20, 21, (4, 3, sum(counts))).astype(np.float32)     # iteration, rank: small whole numbers, exact in bf16
    ends = np.cumsum(counts)[:-1]

    def run(rank):
        group = Group(job.comm(rank))
        params, layouts = [Blob((count,)) for count in counts], [Reversed(count) for count in counts]
        exchange, views = Exchange(group, params, [True] * len(params), carrier(group), bf16), []
        for iteration, gradients in enumerate(given):
            if iteration == kept_from:
                views = [blob.diff for blob in params]
            exchange.begin()
            exchange.start_loss_allgather(0.0, "none")
            for i, (blob, layout, gradient) in enumerate(zip(params, layouts, np.split(gradients[rank], ends))):
                block = blob.diff_memory.overwrite_private_data(layout)     # as a backward in that layout
                np.frombuffer(block, np.float32)[:] = [0, 0, *gradient[::-1]]
                blob.diff_memory.publish_private()
                del block
                exchange.submit([i], None, i == len(params) - 1)
            exchange.finish_loss_allgather()
            sums = np.split(gradients.sum(0), ends)
            for view, wanted in zip(views, sums):
                np.testing.assert_array_equal(view, wanted, err_msg=f"view in iteration {iteration}")
            for blob, wanted in zip(params, sums):
                np.testing.assert_array_equal(blob.diff if views else blob.cpu_diff, wanted, err_msg=f"iteration {iteration}")
        return [bucket.layouts for bucket in exchange.buckets]

    for layouts in job.together(run):
        assert all((layout is None) == (kept_from == 0) for of_bucket in layouts for layout in of_bucket)
    job.end("over")
