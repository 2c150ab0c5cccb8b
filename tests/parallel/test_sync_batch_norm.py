"""BatchNorm with the statistics of all ranks' batches: what one process with the batches of all of them computes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ranks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "layers"))

from gradient import layer_net, run_backward, run_forward  # noqa: E402

from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.engines.engine import prefer  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402
from minicaffe.proto.text import parse_text  # noqa: E402
from minicaffe.solver import create_solver  # noqa: E402

FILLED = 'weight_filler { type: "xavier" }'
NET = """
layer { name: "data" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "%(folder)s/list.txt" batch_size: %(batch)d } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 16 kernel_size: 3 %(filled)s } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "%(norm)s" batch_norm_param { moving_average_fraction: 0.9 %(more)s } }
layer { name: "scale" type: "Scale" bottom: "%(norm)s" top: "%(norm)s" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "%(norm)s" top: "%(norm)s" }
layer { name: "ip" type: "InnerProduct" bottom: "%(norm)s" top: "ip" inner_product_param { num_output: 5 %(filled)s } }
layer { name: "rows" type: "BatchNorm" bottom: "ip" top: "rows" batch_norm_param { moving_average_fraction: 0.9 %(more)s } }
layer { name: "out" type: "InnerProduct" bottom: "rows" top: "out" inner_product_param { num_output: 3 %(filled)s } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    random = np.random.default_rng(0)
    label = random.integers(0, 3, 48)
    mean = label + 5 * (np.arange(48) % 2)      # odd records, which are rank 1's, look otherwise
    return ranks.write_rows(tmp_path_factory.mktemp("records"), data=random.normal(mean[:, None, None, None], 1, (48, 2, 6, 6)), label=label)


def train(folder, batch, dtype, norm, more, solver, plan, engine, options):
    """Train with these options of `distribute`, or alone; return all parameters, running statistics among them, and the loss."""
    param = parse_text(f'base_lr: 0.02 momentum: 0.9 lr_policy: "fixed" random_seed: 3 {solver}', caffe_pb2.SolverParameter)[0]
    net = parse_text(NET % {"folder": folder, "batch": batch, "norm": norm, "more": more, "filled": FILLED}, caffe_pb2.NetParameter)[0]
    param.net_param.CopyFrom(net)
    prefer(engine)
    solver = create_solver(param, dtype=Dtype[dtype], plan=plan)
    if options is not None:
        solver.distribute(**options)
    solver.step(20)
    prefer("")
    return [*(blob.data.tolist() for blob in solver.net.param_table.params), solver.smoothed_loss]


@pytest.mark.parametrize("case", [
    ["DOUBLE", "conv", "", "", None, "CAFFE"], ["DOUBLE", "norm", "", "iter_size: 2", None, ""],
    ["FLOAT", "conv", "", "", "memory", "ONEDNN"], ["FLOAT", "norm", "", "iter_size: 2", "memory", "CAFFE"]], ids=lambda case: "-".join(filter(None, case)))
def test_ranks_normalise_like_one_process(folder, case):
    """In place and not, with layers behind it computed in the same pass, in lanes of channels, with a plan."""
    *alone, loss = train(folder, 8, *case, None)
    together = ranks.run(2, __file__, "train", folder, 4, *case, {"sync_batch_norm": True})
    assert together[0] == together[1]       # bit for bit, running statistics, too
    *ours, mean = together[0]
    tolerance = 1e-9 if case[0] == "DOUBLE" else 1e-5
    assert mean == pytest.approx(loss, rel=tolerance)
    for mine, theirs in zip(ours, alone, strict=True):
        np.testing.assert_allclose(mine, theirs, tolerance, tolerance * max(1, np.abs(theirs).max()))


def test_unsynchronised_rank_normalises_alone(folder):
    case = "DOUBLE", "conv", "", "", None, ""
    *alone, loss = train(folder, 8, *case, None)
    *_, mean = ranks.run(2, __file__, "train", folder, 4, *case, {})[0]
    assert abs(mean - loss) > 1e-3


LAYER = 'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "%s" }'
X = np.random.default_rng(1).normal(1000, 0.1, (5, 3, 7, 6))


# Where the batch is cut for three ranks, the top, the type, whether there is a NaN.
PARTS = [([0, 1, 4, 5], "y", "DOUBLE", False), ([0, 3, 3, 5], "x", "DOUBLE", False), ([0, 2, 4, 5], "y", "FLOAT", False),
         ([0, 1, 1, 5], "x", "FLOAT", True)]


def all_parts():
    return [part(*case) for case in PARTS]


def part(cuts, top, dtype, wrong):
    """What the layer gives of this rank's records of X: top, diff of the bottom, running sums."""
    from minicaffe.parallel.group import Group
    group = Group()
    own = slice(*cuts[group.rank:group.rank + 2])
    x = X.copy()
    if wrong:
        x[0, 1, 0, 0] = np.nan
    net = layer_net(LAYER % top, [x[own]], Dtype[dtype])
    assert net.layers[-1].synchronise(group)
    for _ in range(2):
        net.blob_by_name("x").data[...] = x[own]
        net.forward_from_to(1, 1)
        y = net.blob_by_name(top).data.tolist()
        run_backward(net, [0], [np.cos(X * 30)[own]])
    return [y, net.blob_by_name("x").diff.tolist(), *(blob.data.tolist() for blob in net.layers[-1].blobs)]


@pytest.fixture(scope="module")
def parts():
    return ranks.run(3, __file__, "all_parts")


@pytest.mark.parametrize("case", range(len(PARTS)))
def test_batches_of_different_sizes(parts, case):
    """One of them empty; the mean far larger than the deviation; a NaN, which stays in its channel."""
    tops, diffs, means, variances, weights = zip(*(rank[case] for rank in parts))
    _, _, dtype, wrong = PARTS[case]
    for sums in (means, variances, weights):    # the same on all ranks
        np.testing.assert_array_equal(sums, [sums[0]] * len(sums))
    x = X.astype(np.float64 if dtype == "DOUBLE" else np.float32).astype(np.float64)
    dz, axes = np.cos(X * 30), (0, 2, 3)
    deviation = np.sqrt(x.var(axes, keepdims=True) + np.float32(1e-5))
    z = (x - x.mean(axes, keepdims=True)) / deviation
    dx = (dz - dz.mean(axes, keepdims=True) - z * (dz * z).mean(axes, keepdims=True)) / deviation
    right = [0, 2] if wrong else [0, 1, 2]
    tolerance = 1e-8 if dtype == "DOUBLE" else 2e-3     # in float32 of the mean: 3e-5
    for found, wanted in ((tops, z), (diffs, dx)):
        found = np.concatenate([np.reshape(part, (-1, *X.shape[1:])) for part in found])
        np.testing.assert_allclose(found[:, right], wanted[:, right], tolerance, tolerance)
        assert not wrong or np.isnan(found[:, 1]).all()
    np.testing.assert_allclose(np.array(means[0])[right], 1.999 * x.mean(axes)[right], 1e-6)
    np.testing.assert_allclose(np.array(variances[0])[right], 1.999 * x.var(axes, ddof=1)[right], tolerance)


ALONE = SimpleNamespace(size=1, rank=0, gather_array=lambda values: values[None])    # a group of one


def test_what_a_synchronised_layer_cannot():
    net = layer_net(LAYER % "y", [X], Dtype.FLOAT)
    layer = net.layers[-1]
    layer.synchronise(ALONE)
    assert layer.capture_obstacle() == "it uses the mean and variance of all ranks' batches"
    run_forward(net)
    run_backward(net, [0], [X])
    described = layer.operations()[0].describe()
    assert described["engine"] == "CAFFE" and not described["refused"]
    given = layer_net(LAYER.replace("}", "batch_norm_param { use_global_stats: true } }") % "y", [X])
    assert not given.layers[-1].synchronise(ALONE)


def test_useless_sync_batch_norm_is_reported(folder):
    assert ranks.run(2, __file__, "warned", folder) == [True, False]     # rank 0 speaks for all


def warned(folder):
    lines = ranks.heard("minicaffe.solver", "WARNING")
    train(folder, 4, "FLOAT", "conv", "use_global_stats: true", "", None, "", {"sync_batch_norm": True})
    return any(line.startswith("sync_batch_norm changes nothing") for line in lines)
