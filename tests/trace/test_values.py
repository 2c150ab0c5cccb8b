"""Values of the arrays of a net in a trace: statistics, histograms, and pictures of channels."""

import base64

import numpy as np
import pytest

from minicaffe import trace
from minicaffe.errors import WrongTypeError
from minicaffe.trace import values


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
    again = trace.Trace(made.document)
    assert again.document["values"] == made.document["values"]


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


def test_only_what_was_recorded(make_solver):
    with pytest.raises(WrongTypeError, match="target"):
        values.add(trace.Trace(None), "net.prototxt")
