"""Tests that ranks divide: the records of one process, bit for bit, on all ranks."""

import numpy as np
import pytest
import ranks
from helpers import layer_text

from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

XAVIER = 'weight_filler { type: "xavier" }'
TRAIN = (layer_text("HDF5Data", "data", "", "data label", 'hdf5_data_param { source: "%(folder)s/list.txt" batch_size: 4 }') + layer_text("BatchNorm", "norm", "data")
         + layer_text("InnerProduct", "ip", "norm", more=f"inner_product_param {{ num_output: 3 {XAVIER} }}") + layer_text("SoftmaxWithLoss", "loss", "ip label"))
# The top "id" is an output of the source itself.
SCORES = TRAIN.replace('top: "label"', 'top: "label" top: "id"', 1) + layer_text("Accuracy", "hits", "ip label")
STORED = (layer_text("Data", "stored", "", "data", 'data_param { source: "%(folder)s/db" batch_size: 3 backend: LMDB }') + layer_text("BatchNorm", "norm", "data"))
SEQUENCES = (layer_text("HDF5Data", "data", more='hdf5_data_param { source: "%(folder)s/list.txt" batch_size: 2 }')
             + layer_text("DummyData", "cont", more="dummy_data_param { shape { dim: 2 dim: 1 } data_filler { value: 1 } }")
             + layer_text("Reshape", "row", "data", more="reshape_param { shape { dim: 2 dim: 1 dim: -1 } }")
             + layer_text("LSTM", "lstm", "row cont", more=f"recurrent_param {{ num_output: 3 {XAVIER} }}") + layer_text("Reduction", "sum", "lstm"))
FOUND = (layer_text("HDF5Data", "boxes", "", "found known", 'hdf5_data_param { source: "%(folder)s/list.txt" batch_size: 1 }')
         + layer_text("DetectionEvaluate", "rows", "found known", more="detection_evaluate_param { num_classes: 4 }"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    random = np.random.default_rng(0)
    corner, side = random.uniform(0, 0.6, (37, 1, 9, 2)), random.uniform(0.1, 0.4, (37, 1, 9, 2))
    known = np.concatenate([np.zeros((37, 1, 9, 1)), random.integers(1, 4, (37, 1, 9, 1)), np.zeros((37, 1, 9, 1)), corner, corner + side,
                            np.zeros((37, 1, 9, 1))], axis=3)
    found = np.concatenate([known[..., :2], random.random((37, 1, 9, 1)), known[..., 3:7] + random.normal(0, 0.05, (37, 1, 9, 4))], axis=3)
    ranks.write_rows(folder, data=random.random((37, 2, 3, 3)), label=random.integers(0, 3, 37), id=random.random(37), found=found, known=known)
    with open_db(folder / "db", "LMDB", "w") as db:
        for i in range(11):
            db.put(b"%03d" % i, caffe_pb2.Datum(channels=2, height=3, width=3, data=random.bytes(18)).SerializeToString())
    return str(folder)


def make(folder, tests, fields, plan=None):
    nets = " ".join(f"test_net_param {{ {net % {'folder': folder}} }} test_iter: {batches}" for net, batches in tests)
    param = parse_text(f"base_lr: 0.1 lr_policy: 'fixed' random_seed: 3 test_interval: 100 {fields} "
                       f"train_net_param {{ {TRAIN % {'folder': folder}} }} {nets}", caffe_pb2.SolverParameter)[0]
    return create_solver(param, plan=plan)


def together(solver):
    """Distribute a solver, even if others of this process were: they are not used any more."""
    from minicaffe.common import caffe
    caffe.leave_group()
    solver.distribute()
    return solver


def scores(folder, plan, alone=False):
    """The records of some tests, and the positions of the sources afterwards."""
    solver = make(folder, [(SCORES, 5), (STORED, 5), (SEQUENCES, 5)], "test_compute_loss: true", plan)
    found = make(folder, [(FOUND, 3)], "eval_type: 'detection' show_per_class_result: true", plan)
    if not alone:
        together(solver)
    records = [solver.test(i) for _ in range(2) for i in range(3)]
    if not alone:
        together(found)
    records += [found.test(0) for _ in range(2)]
    states = [{layer.name: layer.get_state() for layer in net.layers if not layer.type == "LSTM"}
              for net in (*solver.test_nets, *found.test_nets)]
    return [records, states]


@pytest.mark.parametrize("plan", [None, "memory"])
def test_ranks_test_on_same_records(folder, plan):
    alone = scores(folder, plan, alone=True)
    assert {record["name"] for record in alone[0][0]["outputs"]} == {"id", "loss", "hits"} and alone[0][0]["loss"] > 0
    assert alone[0][0] != alone[0][3] and 0 < alone[0][6]["outputs"][0]["value"] < 1
    for rank in ranks.run(2 if plan else 3, __file__, "scores", folder, plan):
        assert rank == alone


def asked(folder):
    """What all ranks do if one of them gets an action; and BatchNorm's statistics."""
    solver = together(make(folder, [(SCORES, 6)], f"snapshot_prefix: '{folder}/asked'"))
    rank, announced = solver.group.rank, []
    solver.listeners.append(type("L", (), {"on_snapshot": lambda self, solver, *paths: announced.append(paths)})())
    answers = {0: ["none", "none", "none"], 1: ["snapshot", "none", "stop"]}[rank]
    solver.action = lambda: answers.pop(0)
    interrupted = solver.test(0)
    solver.action = None

    def statistics():
        return [blob.data.tolist() for blob in solver.net.layer_dict["norm"].blobs]
    solver.step(3)
    own = statistics()
    solver.test(0)
    mean = statistics()
    solver.test(0)
    again = statistics()
    if rank:
        solver.net.layer_dict["norm"].blobs[0].data[0] = np.nan
    solver.action = {0: ["stop", "none"], 1: ["none", "snapshot"]}[rank].pop
    solver.test(0)      # none is written of what is not finite, and all ranks find so
    return [interrupted, answers, announced, own, mean, again]


def test_all_ranks_follow_one_request(folder):
    first, second = ranks.run(2, __file__, "asked", folder)
    for interrupted, left, announced, *_ in (first, second):
        assert interrupted is None and left == []
        assert announced == [[f"{folder}/asked_iter_0.caffemodel", f"{folder}/asked_iter_0.solverstate"]]
    assert first[3] != second[3] and first[4] == second[4] == first[5] == second[5]
    for mine, theirs, mean in zip(first[3], second[3], first[4], strict=True):
        np.testing.assert_allclose(mean, (np.array(mine) + theirs) / 2, rtol=1e-6)
