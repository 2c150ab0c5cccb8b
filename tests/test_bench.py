"""The benchmark of nets counts only what computes the same, and its report says where it was measured."""

import sys
from pathlib import Path

import numpy as np
import pytest

from minicaffe.device import threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "bench"))
import distributed  # noqa: E402
import nets  # noqa: E402
import report  # noqa: E402

LENET = nets.Case("lenet", "forward", 2)


@pytest.fixture
def lenet():
    before = threads.get_num_threads()
    made, net = nets.forwards(LENET, lambda who, make: {})
    made["minicaffe"]()
    yield made, net
    threads.set_num_threads(before)


def test_a_peer_that_computes_something_else_is_found(lenet):
    made, net = lenet
    values = net.nodes[-1].tops[0].data.copy()
    made |= {"same": lambda: values * (1 + 1e-6), "other": lambda: values[::-1], "nothing": lambda: values * np.nan}
    assert nets.check(LENET, made, net).keys() == {"other", "nothing"}


def test_results_that_are_not_finite_raise(lenet):
    made, net = lenet
    net.input_blobs[0].data[...] = np.nan
    with pytest.raises(ArithmeticError, match="lenet forward.* not finite"):
        nets.check(LENET, made, net)


def test_a_report_says_where_its_rows_come_from():
    row = {"commit": "abc1234", "processor": "A"}
    assert report.measured([row, row]) == "Measured: commit abc1234 on A.\n"
    assert report.measured([row, {**row, "commit": None}]).startswith("Measured in several places")
    assert report.measured([{**row, "again": 2}, {**row, "again": 3, "shared": 1}]) == (
        "Measured: commit abc1234 on A. 5 turns were taken again, as the processors gave less than before; 1 count although they did.\n")


@pytest.mark.parametrize("looks, patience, taken, count", [
    ("ww", 60, "1", (0, 0)), ("w-ww", 60, "2", (1, 0)), ("--ww", 60, "1", (0, 0)), ("w-", 0, "1", (0, 1)), ("-", 0, "1", (0, 1))])
def test_a_turn_counts_if_all_processors_are_there_before_and_after_it(monkeypatch, looks, patience, taken, count):
    processors = nets.Processors(2, patience)
    looks, turns = iter(looks), iter("123")
    monkeypatch.setattr(processors, "whole", lambda: next(looks) == "w")
    assert processors.turn(lambda: next(turns)) == taken
    assert (processors.count["again"], processors.count["shared"]) == count and next(looks, None) is None


def test_a_look_at_processors_is_compared_with_the_fastest(monkeypatch):
    times = iter([1.9] * 6 + [1.9] * 6 + [1.0] * 6 + [1.2] * 6 + [1.3] * 6 + [0.9] * 6)      # the first by one thread
    monkeypatch.setattr(nets, "seconds_of", lambda run, calls: next(times))
    monkeypatch.setattr(nets.Processors, "fastest", {})
    before = threads.get_num_threads()
    processors = nets.Processors(2, 60)
    assert [processors.whole() for _ in range(5)] == [False, True, True, False, True] and next(times, None) is None
    assert nets.Processors(1, 60).whole()
    threads.set_num_threads(before)


def test_the_table_of_ranks_has_the_better_of_the_peers_kinds():
    ours = {distributed.ONE: [9, 10, 11], distributed.OURS: [7, 8, 9]}
    row = {"net": "lenet", "batch": 64, "ms": {**ours, "PyTorch DDP NCHW": [1, 20, 30], "PyTorch DDP channels-last": [1, 16, 17]}}
    without = {**row, "net": "googlenet", "ms": ours}
    assert distributed.table([row, without]).splitlines()[2:] == [
        "| LeNet, 64 | 10.00 (9.00 to 11.00) | 8.00 (7.00 to 9.00) | 1.25x | 16.00 | 0.50x |",
        "| GoogLeNet, 64 | 10.00 (9.00 to 11.00) | 8.00 (7.00 to 9.00) | 1.25x |  |  |"]
