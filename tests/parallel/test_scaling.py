"""What tools/scaling.py predicts, against cases worked out by hand, and the form of its tables and picture."""

import re
import xml.etree.ElementTree

import pytest
import ranks
import scaling

# 10 s of a process alone: 3 forward, 6 backward, 1 update. Two buckets, complete after 2 and 6 seconds of backward.
STEP = scaling.Step(single=10, forward=3, backward=6, rest=1, buckets=((2, 100), (6, 300)))


def test_all_reduce_takes_faster_algorithm():
    # 8 ranks, 100 B/s, 1 s: 3 (1 + 8/100) or 6 + 14/100; of 8,000 bytes 3 (1 + 80) or 6 + 7/4 80
    assert scaling.allreduce(8, 8, bandwidth=100, latency=1) == pytest.approx(3.24)
    assert scaling.allreduce(8000, 8, bandwidth=100, latency=1) == pytest.approx(146)
    assert scaling.allreduce(8000, 2, bandwidth=100, latency=1) == pytest.approx(81)
    assert scaling.allreduce(8000, 1, bandwidth=100, latency=1) == 0


@pytest.mark.parametrize("n", [2, 4])
def test_fit_finds_latency_and_bandwidth(n):
    times = [[size, scaling.allreduce(size, n, bandwidth=3e9, latency=4e-6)] for size in (4 ** k for k in range(1, 14))]
    assert scaling.fit(times, n) == pytest.approx((3e9, 4e-6), rel=1e-6)


@pytest.mark.parametrize(("buckets", "transfer", "add", "overlap", "seconds"), [
    (STEP.buckets, lambda size: 0, lambda size: 0, True, 10), (STEP.buckets, lambda size: 0, lambda size: 0, False, 10),    # what costs nothing
    # 1 and 3 seconds. The first is there after 3 seconds, and updated (1/4 s) at the end of backward at 6; the second at 6 + 3, its update takes 3/4.
    (STEP.buckets, lambda size: size / 100, lambda size: 0, True, 3 + 6 + 3 + 0.75), (STEP.buckets, lambda size: size / 100, lambda size: 0, False, 3 + 6 + 1 + 3 + 0.75),
    (STEP.buckets, lambda size: 10, lambda size: 0, True, 3 + 22 + 0.75),   # the first is sent from 2 to 12, the second from 12 to 22
    # To add takes 1, 1 and 2 seconds, with the updates 1.25, 1.25 and 2.5. The second is complete at 2, as the first arrives at 1.5; from then
    # its work delays: 3.25. The third: 6 + 1.25, and 1.25 more.
    (((1, 100), (2, 100), (6, 200)), {100: 0.5, 200: 4}.get, lambda size: size / 100, True, 3 + 6 + 1.25 + 4 + 2.5)])
def test_seconds_of_a_step(buckets, transfer, add, overlap, seconds):
    assert scaling.predict(STEP._replace(buckets=buckets), transfer, add, overlap=overlap) == pytest.approx(seconds)


def test_step_parts_sum_up():
    known = measured()
    known["lenet 1"] = {**known["lenet 1"], "alone": 0.08}
    step = scaling.step_of(known, "lenet", "bf16")
    assert step[:4] == pytest.approx((0.08, 0.024, 0.048, 0.008 + 0.002))
    assert step.buckets == (pytest.approx((0.016, 1 << 20)), pytest.approx((0.048, 1 << 19)))


def measured():
    """What a run has measured: two nets of which all is known, one of which something is missing."""
    host = {"commit": "abc1234", "processor": "A"}
    times = [[size, scaling.allreduce(size, 2, 1e9, 1e-5)] for size in (4, 4096, 1 << 22)]
    known = {f"allreduce {n} {wire} {when}": {**host, "times": times, "adding": 1e-10, "library": "B"}
             for n in (2, 4) for wire in scaling.WIRES for when in scaling.WHEN}
    single = {**host, "alone": 0.1, "forward": 0.03, "backward": 0.06, "update": 0.01, "copies": {"float32": 0.001, "bf16": 0.002},
              "buckets": [[0.02, 2 << 20], [0.06, 1 << 20]]}
    for net in ("lenet", "resnet50", "vgg16"):
        known |= {f"{net} 1": single} | {f"{net} 2 {when}": {**host, "alone": 0.12, "together": 0.15} for when in scaling.WHEN}
    for net in ("lenet", "resnet50"):
        known |= {f"{net} 4 {when}": {**host, "alone": 0.2, "together": 0.3} for when in scaling.WHEN}
    return known


def test_tables_list_known_nets():
    made = scaling.tables(measured())
    assert made["scaling measured"] == "Measured: commit abc1234 on A.\n"
    for name, count in (("here", 2 * 2 * 2), ("machines", 2 * 2 * 2)):
        head, line, *rows = (line for line in made[f"scaling {name}"].splitlines() if line.startswith("|"))
        assert len(rows) == count and {row.count("|") for row in (head, line, *rows)} == {head.count("|")}
        assert all(row.startswith(("| LeNet, 64 |", "| ResNet-50, 4 |")) for row in rows)
    page = (scaling.report.DOCS / "clusters.md").read_text()
    for name in ("scaling measured", "scaling machines"):
        assert made[name] in scaling.report.written(page, name, made[name])


def test_predictions_and_picture_are_complete():
    known = measured()
    rows = scaling.predictions(known)
    assert len(rows) == 2 * 3 * 2 * 2 * len(scaling.MACHINES)
    assert all(row["ms"] >= 100 and 0 < row["efficiency"] <= 1 for row in rows)
    picture = xml.etree.ElementTree.fromstring(scaling.svg(known))
    assert len(picture.findall("{*}polyline")) == 2 * 3 * 2 * 2


def test_plan_names_ranks_and_batches():
    made = scaling.measurements(8)
    assert made["vgg16 4 after"] == (4, "steps", ["vgg16", 1, 2, False]) and made["lenet 1"] == (1, "parts", ["lenet", 64, 8])
    assert made["allreduce 2 bf16 during"] == (2, "allreduce", ["bf16", True])


def added():
    """What part of an array that is summed in bf16 this rank adds up itself."""
    import numpy as np

    from minicaffe.parallel.group import Group
    from minicaffe.parallel.launch import mpi
    from minicaffe.parallel.transport import MpiTransport
    transport, counts = MpiTransport(Group()), []
    op = mpi().Op.Create(lambda x, y, _: counts.append(len(x)), commute=True)
    array = np.zeros(1 << 16, np.uint16)
    transport.comm.Iallreduce(transport.in_place, [array, array.size, transport.types[True]], op).Wait()
    return sum(counts) / array.nbytes


def test_page_settings_keep_rank_share():
    page = (scaling.report.DOCS / "clusters.md").read_text()
    settings = dict(re.findall(r"^export ((?:OMPI|MPIR)_\w+)=(\w+)", page, re.M))
    assert list(settings) == ["MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM"]
    assert ranks.run(4, __file__, "added", **settings) == [0.75] * 4
