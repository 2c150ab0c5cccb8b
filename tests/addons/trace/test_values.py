"""Values of the arrays of a net in a trace: statistics, histograms, and pictures of channels."""

import base64

import numpy as np
import pytest
from small_net import NET

from minicaffe.addons import trace
from minicaffe.errors import WrongTypeError
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.addons.trace import values


def levels_of(found):
    return np.frombuffer(base64.b64decode(found["levels"]), np.uint8).reshape(found["count"], found["height"], found["width"])


def test_values_of_each_array_of_one_more_iteration(where, make_solver):
    solver = make_solver(plan="memory")
    with trace.record(solver) as made:
        solver.step(2)
    events = len(made)
    values.add(made, solver)
    assert solver.iter == 3 and len(made) == events and made.document["values"]["iteration"] == 2
    twin = make_solver()
    twin.step(2)
    before = {blob.name: blob.cpu_data.copy() for blob in twin.net.param_table.params}
    twin.step(1)
    found = {array["title"]: array for array in made.document["values"]["arrays"]}
    blobs = twin.net.blobs
    assert {"data", "label", "conv", "conv diff", "ip", "ip diff", "loss", "conv[0]", "conv[0] diff"} <= set(found)
    for title, array in [("conv", blobs["conv"].cpu_data), ("ip", blobs["ip"].cpu_data), ("ip diff", blobs["ip"].cpu_diff),
                         ("conv[0]", before["conv[0]"])]:
        one = found[title]
        assert one["shape"] == list(array.shape) and one["wrong"] == 0 and sum(one["histogram"]) == array.size
        assert (one["min"], one["max"], one["mean"]) == pytest.approx((array.min(), array.max(), array.mean()), rel=1e-3, abs=1e-5)
        assert one["zeros"] == pytest.approx(np.mean(array == 0)) and one["norm"] == pytest.approx(np.linalg.norm(array), rel=1e-3)
    assert found["conv"]["layer"] == "relu" and found["conv"]["min"] == 0       # the last layer in place
    maps = levels_of(found["conv"]["maps"])
    first = blobs["conv"].cpu_data[0]
    assert maps.shape == first.shape and found["conv"]["maps"]["of"] == 4
    np.testing.assert_allclose(maps / 254 * first.max(), first, atol=first.max() / 254)
    # No gradients of what nothing computes one for.
    assert set(found) == {"data", "label", "conv", "conv diff", "ip", "ip diff", "loss", "loss diff", *(
        f"{blob.name}{part}" for blob in solver.net.param_table.params for part in ("", " diff"))}
    assert {title: one["maps"]["what"] for title, one in found.items() if title[:7] == "conv[0]"} == dict.fromkeys(
        ("conv[0]", "conv[0] diff"), "filters, the first channel of each")
    again = trace.Trace(made.document)
    assert again.document["values"] == made.document["values"]


def test_tops_of_splits_are_left_out(on_cpu, make_solver):
    """They hold what the blob that is split holds; its gradient is that of all who read it."""
    more = 'layer { name: "more" type: "Power" bottom: "ip" top: "more" loss_weight: 1 }\n'
    solver = make_solver(NET + more)
    assert any(node.type == "Split" for node in solver.net.nodes)
    parameters = [blob.name for blob in solver.net.param_table.params]
    for target, parts in ((solver, ("", " diff")), (solver.net, ("",))):
        made = trace.Trace(None)
        values.add(made, target)
        titles = [array["title"] for array in made.document["values"]["arrays"]]
        assert sorted(titles) == sorted(["data", "label", *(f"{name}{part}" for name in ("conv", "ip", "loss", "more", *parameters) for part in parts)])


def test_a_constant_array_has_the_least_level():
    with np.errstate(all="raise"):
        for array in np.full((2, 3), 5.0), np.full((2, 3, 1, 1), -7.0), np.zeros(4):
            assert not levels_of(values.maps(array)).any() and values.values_of(array)["histogram"][16] == array.size
    assert values.values_of(np.array([0.1]))["min"] == values.values_of([0.1])["min"] == float(np.float32(0.1))


def test_a_net_alone_runs_forward(where, make_solver):
    net = make_solver().net
    with trace.record(net) as made:
        net.forward_from_to(0, len(net.nodes) - 1)
    values.add(made, net)
    titles = [array["title"] for array in made.document["values"]["arrays"]]
    assert made.document["values"]["iteration"] is None and "conv" in titles and not [title for title in titles if "diff" in title]


@pytest.mark.parametrize(("shape", "pictures"), [
    ((2, 20, 100, 40), (16, 25, 20)), ((20, 1, 5, 5), (16, 5, 5)), ((3, 500), (1, 3, 84)), ((7,), (1, 1, 7)), ((), (1, 1, 1)),
    ((2, 3, 4), (1, 2, 12)), ((2, 3, 4, 5, 6), (3, 4, 30))])
def test_pictures_have_a_size_that_fits_the_page(shape, pictures):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = levels_of(values.maps(array))
    assert found.shape == pictures and (found.min(), found.max()) == ((0, 254) if array.size > 1 else (0, 0))


def test_pictures_are_of_channels_of_filters_or_of_samples():
    array = np.arange(2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 2, 2)
    found = values.maps(array), values.maps(array, filters=True), values.maps(array[:, :1])
    assert [(one["what"].split()[0].strip(","), one["of"], one["count"]) for one in found] == [
        ("channels", 3, 3), ("filters", 2, 2), ("samples", 2, 2)]
    assert levels_of(found[0])[1].ravel().tolist() == [92, 115, 139, 162]       # 4 to 7 of 0 to 11
    assert levels_of(found[1])[1].ravel().tolist() == [203, 220, 237, 254]      # 12 to 15 of 0 to 15


def test_values_that_are_not_finite_are_counted_and_marked():
    found = values.values_of(np.array([[1, np.nan, 3], [np.inf, 2, 1]], np.float32))
    assert (found["min"], found["max"], found["mean"], found["wrong"], sum(found["histogram"])) == (1, 3, 1.75, 2, 4)
    assert levels_of(found["maps"]).tolist() == [[[0, 255, 254], [255, 127, 0]]]
    empty = values.values_of(np.full((2, 2), np.nan, np.float32))
    assert (empty["min"], empty["mean"], empty["histogram"], empty["wrong"]) == (None, None, [], 4)


@pytest.mark.parametrize("values_of_range", [(1, 1 + 1.2e-7), (-3e38, 3e38), (0, 1e-45)], ids=["neighbours", "large", "small"])
def test_ranges_that_float32_cannot_divide_have_a_histogram(values_of_range):
    """np.histogram raises ValueError for them, or counts nothing. More values than are binned at once."""
    array = np.tile(np.float32(values_of_range), values.BLOCK)
    assert values.values_of(array)["histogram"] == [values.BLOCK, *[0] * (values.BINS - 2), values.BLOCK]


@pytest.mark.parametrize("fails", [None, "forward", "backward"])
def test_nothing_of_it_stays_in_the_solver(on_cpu, make_solver, fails):
    """Also after an error in the further iteration: hooks would slow each later one, and change its fusion."""
    solver = make_solver()
    with trace.record(solver) as made:
        solver.step(1)

    def fail(index):
        raise KeyError(fails)

    before = [list(solver.callbacks), solver.net.observer_reason()]
    if fails:
        hook = AFTER_FORWARD if fails == "forward" else BEFORE_BACKWARD
        solver.net.add_hook(hook, fail)
        with pytest.raises(KeyError, match=fails):
            values.add(made, solver)
        solver.net.remove_hook(hook, fail)
        assert "values" not in made.document
    else:
        values.add(made, solver)
    assert [list(solver.callbacks), solver.net.observer_reason()] == before
    with trace.record(solver) as after:
        solver.step(1)
    assert any(step["with"] for step in after.steps)


@pytest.mark.parametrize("seed", range(30))
def test_figures_of_random_arrays(seed):
    """Each counted value by value."""
    dice = np.random.default_rng(seed)
    shape = tuple(dice.integers(1, [4, 5, 40, 70][: dice.integers(1, 5)], endpoint=True))
    array = dice.normal(size=shape).astype(np.float32) * (dice.random(shape) < 0.8)
    array[dice.random(shape) < 0.05] = dice.choice([np.nan, np.inf, -np.inf])
    filters = bool(dice.integers(2))
    found = values.values_of(array, filters)
    all_values = [float(x) for x in array.ravel()]
    finite = [x for x in all_values if abs(x) < float("inf")]
    assert (found["shape"], found["wrong"], found["zeros"]) == (list(shape), len(all_values) - len(finite), all_values.count(0) / len(all_values))
    if not finite:
        assert (found["min"], found["max"], found["mean"], found["histogram"]) == (None, None, None, [])
        return
    low, high = min(finite), max(finite)
    assert (found["min"], found["max"]) == (low, high)
    assert (found["mean"], found["norm"]) == pytest.approx((sum(finite) / len(finite), sum(x * x for x in finite) ** 0.5), rel=1e-5, abs=1e-7)
    assert len(found["histogram"]) == 32 and sum(found["histogram"]) == len(finite)
    counts = np.cumsum(found["histogram"])
    for i in range(31) if low < high else ():       # values near an edge may be on either side of it
        edge, near = low + (high - low) * (i + 1) / 32, (high - low) * 1e-5
        assert sum(x < edge - near for x in finite) <= counts[i] <= sum(x < edge + near for x in finite)
    if len(shape) == 4:
        pictures = [one[0] for one in array] if filters or shape[1] == 1 else list(array[0])
        side = 32
    else:
        pictures, side = [array.reshape(shape[0] if len(shape) > 1 else 1, -1)], 96
    steps = [-(-n // side) for n in pictures[0].shape]
    assert found["maps"]["of"] == len(pictures)
    pictures = [one[:: steps[0], :: steps[1]] for one in pictures[:16]]
    levels, shown = levels_of(found["maps"]), [float(x) for one in pictures for x in one.ravel() if np.isfinite(x)]
    assert levels.shape == (len(pictures), *pictures[0].shape)
    for level, value in zip(levels.ravel(), (float(x) for one in pictures for x in one.ravel()), strict=True):
        if not np.isfinite(value):
            assert level == 255
        else:
            assert abs(level - 254 * (value - min(shown)) / (max(shown) - min(shown) or 1)) <= 0.5 + 1e-6


def test_only_what_was_recorded(make_solver):
    with pytest.raises(WrongTypeError, match="target"):
        values.add(trace.Trace(None), "net.prototxt")
