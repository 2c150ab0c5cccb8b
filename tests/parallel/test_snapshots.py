"""Snapshots of ranks: one file of all, the same bits after a resume, other numbers of ranks, failures that all ranks hear of."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import ranks
from helpers import layer_text, net_solver
from test_testing import together

from minicaffe.data.db import open_db
from minicaffe.errors import Error
from minicaffe.proto import binary, caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver, snapshot

pytestmark = pytest.mark.slow(7)    # all together

# Everything that has a state: shuffled rows, crops and mirrors, masks, sequences that continue in the next batch, running statistics.
XAVIER = 'weight_filler { type: "xavier" }'
NET = (layer_text("HDF5Data", "rows", "", "data label cont", 'hdf5_data_param { source: "FOLDER/list.txt" batch_size: 4 shuffle: true }')
       + layer_text("Data", "stored", "", "pictures", 'data_param { source: "FOLDER/db" batch_size: 4 backend: LMDB } '
                    "transform_param { crop_size: 2 mirror: true scale: 0.01 }")
       + layer_text("BatchNorm", "norm", "data") + layer_text("Dropout", "drop", "norm", "norm")
       + layer_text("Reshape", "steps", "norm", more="reshape_param { shape { dim: 2 dim: 2 dim: -1 } }")
       + layer_text("Reshape", "marks", "cont", more="reshape_param { shape { dim: 2 dim: 2 } }")
       + layer_text("LSTM", "lstm", "steps marks", more=f"recurrent_param {{ num_output: 3 {XAVIER} }}")
       + layer_text("Reshape", "flat", "lstm", more="reshape_param { shape { dim: 4 dim: 3 } }")
       + "".join(layer_text("InnerProduct", *names, more=f"inner_product_param {{ num_output: 3 {XAVIER} }}") for names in (("ip1", "flat"), ("ip2", "pictures")))
       + layer_text("Eltwise", "sum", "ip1 ip2") + layer_text("SoftmaxWithLoss", "loss", "sum label"))
SOLVERS = {
    "SGD": "momentum: 0.9 lr_policy: 'multistep' gamma: 0.5 stepvalue: 3 stepvalue: 6",
    "Nesterov": "momentum: 0.9 lr_policy: 'plateau' gamma: 0.5 plateau_winsize: 2 plateau_winsize: 2 snapshot_format: HDF5",
    "AdaGrad": "iter_size: 2", "RMSProp": "clip_gradients: 0.5", "AdaDelta": "momentum: 0.95 delta: 1e-6", "Adam": "momentum: 0.9"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("kept"), np.random.default_rng(0)
    ranks.write_rows(folder, data=random.random((37, 2, 3, 3)), label=random.integers(0, 3, 37), cont=np.arange(37) % 5 != 0)
    with open_db(folder / "db", "LMDB", "w") as db:
        for i in range(11):
            db.put(b"%03d" % i, caffe_pb2.Datum(channels=2, height=3, width=3, label=i % 3, data=random.bytes(18)).SerializeToString())
    return str(folder)


def make(folder, kind, fields="", prefix="s", seed=3):
    net = NET.replace("FOLDER", folder)
    policy = "" if "lr_policy" in SOLVERS[kind] else "lr_policy: 'fixed'"
    param = parse_text(f"type: '{kind}' {SOLVERS[kind]} {policy} base_lr: 0.1 random_seed: {seed} snapshot_prefix: '{folder}/{prefix}' "
                       f"{fields or 'test_interval: 3'} test_iter: 3 test_initialization: false net_param {{ {net} }}",
                       caffe_pb2.SolverParameter)[0]
    return create_solver(param)


def everything(solver):
    """What two trainings that are the same have in common, as bytes and numbers."""
    return [*(blob.cpu_data.tobytes() for blob in (*solver.net.param_table.params, *solver.history)), snapshot.own_state(solver),
            solver.iter, solver.current_step, solver.param.lr_policy == "plateau" and (solver.minimum_loss, solver.iter_last_event)]


def record(solver):
    """Collect the records of tests, and what is written, from now on."""
    tests, files = [], []
    solver.listeners.append(type("L", (), {"on_test": lambda self, solver, record: tests.append(record),
                                           "on_snapshot": lambda self, solver, *paths: files.append(paths)})())
    return tests, files


def resume(folder, kinds):
    """Train, take a snapshot and continue; resume and do the same. Returns by kind what is equal, and each rank's loss at the end."""
    results = {}
    for kind in kinds:
        solver = together(make(folder, kind, prefix=kind))
        tests, files = record(solver)
        solver.step(4)
        model, state = solver.snapshot()
        tests.clear()
        solver.step(5)
        again = make(folder, kind, prefix=kind, seed=77)
        again.step(1)       # what it does before is forgotten
        together(again)
        retests, _ = record(again)
        again.restore(state)
        restored = again.iter
        again.step(5)
        results[kind] = [files == [(model, state)], restored, len(tests), tests == retests,
                         [a == b for a, b in zip(everything(solver), everything(again), strict=True)], solver.smoothed_loss]
    return results


@pytest.fixture(scope="module")
def resumed(folder):
    return ranks.run(2, __file__, "resume", folder, list(SOLVERS))


def test_same_ranks_resume_bit_by_bit(folder, resumed):
    for rank in resumed:
        assert rank == resumed[0]
        for kind, (written_once, restored, tests, same_tests, same, loss) in rank.items():
            assert written_once and restored == 4 and tests == 1 and same_tests, kind
            assert all(same) and np.isfinite(loss), (kind, same)
    assert not [path for path in Path(folder).iterdir() if path.name.startswith(".")]
    stored = json.loads(binary.read_solver_state(f"{folder}/SGD_iter_4.solverstate").resume_state)
    first, second = stored["ranks"]
    assert first == {name: stored[name] for name in first} and second["generator"]["seed"] == stored["generator"]["seed"] + 1 == 4
    assert {name for name in second["train"] if second["train"][name] != stored["train"][name]} == {"lstm"}


def test_one_process_resumes(folder, resumed, caplog):
    alone = make(folder, "SGD")
    alone.step(1)
    caplog.clear()
    alone.restore(f"{folder}/SGD_iter_4.solverstate")
    warning, = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING and entry.name == "minicaffe.solver"]
    assert warning.startswith(f"{folder}/SGD_iter_4.solverstate was written by 2 ranks, and 1 process continues: weights, ")
    assert warning.endswith("; layer 'lstm' (LSTM) begins with states of zero")
    assert alone.iter == 4 and alone.generator.seed == 3
    assert alone.net.layer_dict["lstm"].get_state() == make(folder, "SGD").net.layer_dict["lstm"].get_state()
    alone.step(1)


def test_recurrent_states_reset_with_other_ranks(tmp_path, caplog):
    """Those of an LSTM, an RNN and the forks' Lstm; the place of a source, and with as many ranks all states, are kept."""
    ranks.write_rows(tmp_path, x=np.random.default_rng(1).random((20, 3, 4)), cont=np.ones((20, 3)))
    layers = {"first": "RNN", "second": "LSTM", "third": "RNN", "fourth": "LSTM", "fifth": "Lstm"}
    net = (layer_text("HDF5Data", "rows", "", "x cont", f'hdf5_data_param {{ source: "{tmp_path}/list.txt" batch_size: 2 }}')
           + "".join(layer_text(kind, name, "x cont", more=f"{'lstm' if kind == 'Lstm' else 'recurrent'}_param {{ num_output: 2 weight_filler {{ type: 'xavier' }} }}")
                     for name, kind in layers.items())
           + layer_text("Eltwise", "sum", " ".join(layers)) + layer_text("Reduction", "loss", "sum", more="loss_weight: 1"))

    def solver_of():
        return net_solver(net, base_lr=0.1, momentum=0, random_seed=3, snapshot_prefix=f"{tmp_path}/s")

    def states(solver):
        return {layer.name: layer.get_state() for layer in solver.net.layers if layer.get_state() is not None}

    solver, fresh = solver_of(), states(solver_of())
    solver.step(3)
    kept = states(solver)
    assert set(kept) == {"rows", *layers} and all(kept[name] != fresh[name] for name in kept)
    _, path = solver.snapshot()
    for written, expected in ((1, kept), (2, {**fresh, "rows": kept["rows"]})):
        stored = caffe_pb2.SolverState.FromString(Path(path).read_bytes())
        resume = json.loads(stored.resume_state)
        stored.resume_state = json.dumps({**resume, "ranks": [resume] * written} if written > 1 else resume)
        Path(tmp_path, "other.solverstate").write_bytes(stored.SerializeToString())
        for steps in (0, 2):    # a new solver, and one whose states are others already
            again = solver_of()
            again.step(steps)
            caplog.clear()
            again.restore(f"{tmp_path}/other.solverstate")
            assert states(again) == expected
            named = re.findall(r"; layer '(\w+)' \((\w+)\) begins with states of zero", caplog.text)
            assert named == (list(layers.items()) if written > 1 else [])


def resume_from(folder, state):
    """Three ranks continue from the states of two and of one, after `distribute` and before it; then everything that may fail."""
    messages, results = ranks.heard("minicaffe.solver", "WARNING"), []
    for path in (f"{folder}/SGD_iter_4.solverstate", state):
        for before in (False, True):
            solver = make(folder, "SGD", prefix="three")
            if before:
                solver.restore(path)
            together(solver)
            if not before:
                solver.restore(path)
            results.append([solver.iter, solver.generator.seed, solver.generator.offset, len(messages),
                            [float(blob.cpu_data.sum()) for blob in (*solver.net.param_table.params, *solver.history)],
                            solver.net.layer_dict["lstm"].get_state(), solver.net.layer_dict["stored"].get_state()["position"]])
            solver.step(1)
    failures, loss = [], solver.smoothed_loss
    solver.param.snapshot_prefix = f"{folder}/gone/s"
    for fails in (solver.snapshot, lambda: solver.restore(f"{folder}/no.solverstate"), lambda: solver.restore(f"{folder}/bad.solverstate")):
        before = everything(solver)
        try:
            fails()
        except Error as error:
            failures.append([type(error).__name__, str(error), everything(solver) == before])
    solver.step(1)
    return [results, failures, messages, solver.group.gather(loss), solver.iter]


def test_other_numbers_of_ranks_resume(folder, resumed, tmp_path):
    alone = make(folder, "SGD", prefix="alone")
    alone.step(4)
    model, state = alone.snapshot()
    with open(state, "rb") as file:
        bad = caffe_pb2.SolverState.FromString(file.read())
    resume = json.loads(bad.resume_state)
    lstm = {**resume["train"]["lstm"], "h": {"shape": [1], "data": ""}}
    bad.resume_state = json.dumps({**resume, "ranks": [resume, resume, {**resume, "train": {**resume["train"], "lstm": lstm}}]})
    Path(folder, "bad.solverstate").write_bytes(bad.SerializeToString())
    expected = [[float(blob.cpu_data.sum()) for blob in (*solver.net.param_table.params, *solver.history)]
                for solver in [restored(folder, f"{folder}/SGD_iter_4.solverstate"), alone]]
    found = ranks.run(3, __file__, "resume_from", folder, state)
    for rank, (results, failures, _, losses, iteration) in enumerate(found):
        for k, (iteration_then, seed, offset, _, sums, lstm, position) in enumerate(results):
            assert (iteration_then, seed) == (4, 3 + rank) and sums == expected[k // 2]
            assert position == (32, 16)[k // 2]     # after 4 iterations of 2 batches of 4, or of one
            assert offset == found[0][0][k][2] and lstm == found[0][0][k][5]
        assert len(set(losses)) == 1 and iteration == 5
        assert [failure[:2] for failure in failures] == [failure[:2] for failure in found[0][1]]
        assert [failure[0] for failure in failures] == ["FileError", "FileError", "ShapeError"] and failures[1][2]
        assert "gone does not exist" in failures[0][1] and "no.solverstate" in failures[1][1]
        assert "layer 'lstm' (LSTM): the state 'h' was stored for shape [1]" in failures[2][1]
    # Rank 0 warns; of ranks that restore before they join each does.
    assert [len(rank[2]) for rank in found] == [3, 1, 1]
    assert [re.search("was written by (.*):", text)[1] for text in found[0][2]] == [
        "2 ranks, and 3 ranks continue", "2 ranks, and 1 process continues", "1 process, and 3 ranks continue"]


def restored(folder, state):
    solver = make(folder, "SGD")
    solver.restore(state)
    return solver


def test_states_of_a_thousand_ranks(folder):
    state = {"solver": "SGDSolver", "generator": {"seed": 2**64 - 1, "offset": 2**60}, "train": {}, "test": []}
    rows = {"seed": 2**63, "position": 2**60}
    differ = {**state, "generator": {"seed": 5, "offset": 2**60}, "train": {f"data{i}": rows for i in range(20)}}
    text = json.dumps({**state, "ranks": [differ] * 1024})
    assert len(text) < snapshot.MAX_RESUME_STATE / 4
    assert snapshot._parse_resume_state(text)["ranks"][7] == differ
