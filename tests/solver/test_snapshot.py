"""Snapshots and the way back: both formats, equal bits after a resume, files of Caffe, and everything that may be wrong."""

import errno
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import h5py
import kill_test
import numpy as np
import pytest
from bowl import BOWL, make_solver, weights

from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError
from minicaffe.proto import atomic, binary, caffe_pb2
from minicaffe.solver import snapshot

FORMATS = {"BINARYPROTO": "", "HDF5": ".h5"}
KINDS = {
    "SGD": "momentum: 0.9 lr_policy: 'multistep' gamma: 0.5 stepvalue: 3 stepvalue: 5 stepvalue: 9",  # two are passed at 7
    "RMSProp": "rms_decay: 0.9",
    "Adam": "momentum: 0.9 weight_decay: 0.01",
}
TESTED = "test_iter: 2 test_interval: 5"


def built(tmp_path, fields="", form="BINARYPROTO", **keywords):
    return make_solver(f"snapshot_prefix: '{tmp_path}/s' snapshot_format: {form} {fields}", **keywords)


def histories(solver):
    return [blob.cpu_data.copy() for blob in solver.history]


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def read_state(path):
    return caffe_pb2.SolverState.FromString(Path(path).read_bytes())


def rewrite(path, **changes):
    """Write a binary state again with some fields changed; None clears one."""
    state = read_state(path)
    for name, value in changes.items():
        state.ClearField(name)
        if value is not None:
            setattr(state, name, value)
    Path(path).write_bytes(state.SerializeToString())


@pytest.fixture
def state(tmp_path):
    solver = built(tmp_path, "momentum: 0.9")
    solver.step(2)
    return solver.snapshot()[1]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_same_bits(tmp_path, kind, form):
    fields = f"type: '{kind}' {KINDS[kind]} {TESTED}"
    through = built(tmp_path, fields, form)
    through.step(7)
    model, state = through.snapshot()
    assert (model, state) == tuple(f"{tmp_path}/s_iter_7.{kind_}{FORMATS[form]}" for kind_ in ("caffemodel", "solverstate"))
    through.step(6)
    resumed = built(tmp_path, fields + " random_seed: 99", form)
    resumed.restore(state)
    assert resumed.iter == 7
    resumed.step(6)
    assert resumed.current_step == through.current_step
    assert same(weights(resumed), weights(through)) and same(histories(resumed), histories(through))
    assert resumed.test_nets[0].layers[0].passes == through.test_nets[0].layers[0].passes


@pytest.mark.parametrize("form", FORMATS)
def test_resumed_plateau_same_bits(tmp_path, form):
    fields = "lr_policy: 'plateau' gamma: 0.5 plateau_winsize: 2 plateau_winsize: 3 plateau_winsize: 3"
    through = built(tmp_path, fields, form)
    through.step(5)
    _, state = through.snapshot()
    remembered = through.current_step, through.minimum_loss, through.iter_last_event
    assert 0 < through.current_step < 3 and remembered[2] > 0
    through.step(9)
    resumed = built(tmp_path, fields, form)
    resumed.restore(state)
    assert (resumed.current_step, resumed.minimum_loss, resumed.iter_last_event) == remembered
    resumed.step(9)
    assert resumed.current_step == through.current_step > remembered[0] and same(weights(resumed), weights(through))
    resumed.restore(built(tmp_path, fields, form).snapshot()[1])      # before the first loss the smallest one is the SSD fork's default, not infinity
    assert resumed.minimum_loss == pytest.approx(1e38)
    _, path = built(tmp_path, form=form).snapshot()     # other policies write none
    written = set(h5py.File(path)) if form == "HDF5" else {field.name for field, _ in read_state(path).ListFields()}
    assert not written & {"minimum_loss", "iter_last_event"} and "learned_net" in written


@pytest.mark.parametrize("form", FORMATS)
def test_solve_resumes(tmp_path, form):
    fields, extension, written = "max_iter: %s snapshot: 4 momentum: 0.5 snapshot_after_train: true", FORMATS[form], []
    through = built(tmp_path, fields % 8, form)
    through.listeners.append(SimpleNamespace(on_snapshot=lambda solver, *paths: written.extend(paths)))
    through.solve()     # the last one is not written again at the end
    assert written == [f"{tmp_path}/s_iter_{i}.{kind}{extension}" for i in (4, 8) for kind in ("caffemodel", "solverstate")]
    assert sorted(map(str, tmp_path.iterdir())) == sorted(written)
    for end in 8, 9:
        os.remove(written[2])
        resumed = built(tmp_path, fields % end, form)
        resumed.solve(written[1])
        assert os.path.exists(written[2]) and resumed.iter == end
        assert end == 9 or same(weights(resumed), weights(through))
    assert os.path.exists(f"{tmp_path}/s_iter_9.caffemodel{extension}")


@pytest.mark.parametrize(("max_iter", "done", "words"), [(4, 4, "max_iter is 4, and 4 iterations are done"), (3, 4, "max_iter is 3, and 4"),
                                                         (5, 4, ""), (0, 0, "max_iter is 0, and 0")])
def test_resume_at_max_iter_warns(tmp_path, caplog, max_iter, done, words):
    solver = built(tmp_path, "max_iter: 9")
    solver.step(done)
    built(tmp_path, f"max_iter: {max_iter}").solve(solver.snapshot()[1])
    lines = [record.getMessage() for record in caplog.records if "nothing is trained" in record.getMessage()]
    assert len(lines) == bool(words) and all(words in line and line.endswith("; set max_iter (--max-iter) higher") for line in lines)


def test_snapshot_diff(tmp_path):
    for form in FORMATS:
        solver = built(tmp_path, "snapshot_diff: true", form)
        solver.step(1)
        model, _ = solver.snapshot()
        diff = h5py.File(model)["diff/bowl/0"][()] if form == "HDF5" else binary.read_net(model)[1][0].blobs[0].diff
        assert np.array_equal(np.reshape(diff, (5, 3)), solver.net.learnable_params[0].cpu_diff)


# ---- the files

def test_binary_state_is_caffes(tmp_path):
    solver = built(tmp_path, "type: 'Adam' momentum: 0.9")
    solver.step(3)
    model, path = solver.snapshot()
    state = read_state(path)
    assert state.iter == 3 and state.learned_net == model and state.current_step == 0
    assert [list(blob.shape.dim) for blob in state.history] == [[5, 3], [4]] * 2
    assert np.array_equal(state.history[3].data, solver.history[3].cpu_data)
    assert json.loads(state.resume_state) == {"solver": "AdamSolver", "generator": {"seed": 3, "offset": solver.generator.offset},
                                              "train": {"bowl": {"passes": 3}}, "test": []}


def test_hdf5_state_is_caffes(tmp_path):
    solver = built(tmp_path, form="HDF5")
    solver.step(3)
    model, path = solver.snapshot()
    with h5py.File(path) as file:
        assert file["iter"].shape == (1,) and file["iter"].dtype == np.int32 and file["iter"][0] == 3
        assert file["current_step"].shape == (1,)
        string = file["learned_net"].id.get_type()  # Caffe reads a C string: it needs the closing zero
        assert string.get_strpad() == h5py.h5t.STR_NULLTERM and string.get_size() == len(model) + 1
        assert file["learned_net"][()] == model.encode()
        assert sorted(file["history"]) == ["0", "1"]
        assert np.array_equal(file["history/0"][()], solver.history[0].cpu_data)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("exact", [True, False])
def test_resume_without_resume_state(tmp_path, form, exact):
    """Caffe's files have none; an inexact resume restarts the data, but has the best test. History of more than ten parameters: names of
    datasets sort as text, where 10 comes before 2; the parameters have one shape, so no check would see it.
    """
    many, seen = BOWL[:BOWL.index("dummy_data_param")] + "dummy_data_param {" + " shape { dim: 2 }" * 12 + "} }", []
    solver = built(tmp_path, "momentum: 0.9", form, net=many)
    best = SimpleNamespace(get_state=lambda: {"value": 3}, check_state=seen.append, set_state=seen.append)
    solver.step(3)
    solver.best = best
    _, path = solver.snapshot()
    if exact and form == "HDF5":
        with h5py.File(path, "r+") as file:
            del file["resume_state"]
    elif exact:
        rewrite(path, resume_state=None)
    fresh = built(tmp_path, "momentum: 0.9 random_seed: 5", form, net=many)
    fresh.exact_resume, fresh.best, offset = exact, None if exact else best, fresh.generator.offset
    fresh.restore(path)
    assert fresh.iter == 3 and same(weights(fresh), weights(solver)) and same(histories(fresh), histories(solver))
    assert fresh.generator.offset == offset and fresh.net.layers[0].passes == 0
    assert seen == ([] if exact else [{"value": 3}] * 2)


def test_history_with_legacy_dimensions(tmp_path, state):
    old, fresh, again = read_state(state), *(built(tmp_path, "momentum: 0.9") for _ in range(2))
    fresh.restore(state)
    for blob in old.history:
        blob.num, blob.channels, blob.height, blob.width = [1] * (4 - len(blob.shape.dim)) + list(blob.shape.dim)
        blob.ClearField("shape")
    Path(state).write_bytes(old.SerializeToString())
    again.restore(state)
    assert same(histories(again), histories(fresh)) and histories(fresh)[0].any()


def test_moved_model_or_none(tmp_path, state):
    first, fresh = built(tmp_path, "momentum: 0.9"), built(tmp_path, "momentum: 0.9")
    before = weights(fresh)
    first.restore(state)
    (tmp_path / "there").mkdir()
    for path in state, state.replace("solverstate", "caffemodel"):
        moved = os.rename(path, tmp_path / "there" / os.path.basename(path)) or tmp_path / "there" / os.path.basename(state)
    fresh.restore(moved)
    assert same(weights(fresh), weights(first)) and not same(weights(fresh), before)
    rewrite(moved, learned_net=None)
    for blob, array in zip(fresh.net.learnable_params, before):
        blob.data[...] = array
    fresh.restore(moved)
    assert fresh.iter == 2 and same(weights(fresh), before)


@pytest.mark.parametrize("trusted", [True, False])
def test_model_named_in_state_or_beside(tmp_path, monkeypatch, trusted):
    monkeypatch.chdir(tmp_path)
    named, beside = (make_solver("snapshot_prefix: 's'", trusted=trusted, own_fields=["snapshot_prefix"]) for _ in range(2))
    beside.step(2)
    (tmp_path / "there").mkdir()
    for path in beside.snapshot():
        os.rename(path, tmp_path / "there" / path)
    named.step(1)
    named.iter = 2
    named.snapshot()
    fresh = make_solver(trusted=trusted)
    fresh.restore("there/s_iter_2.solverstate")
    assert same(weights(fresh), weights(named if trusted else beside))


# ---- what does not fit changes nothing

def test_text_in_hdf5_state(tmp_path, monkeypatch):
    solver = built(tmp_path, "", "HDF5")
    _, state = solver.snapshot()
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "1000")
    for kind, data, error, words in (
            (h5py.special_dtype(vlen=np.int32), None, DataError, "must be one text"), (h5py.special_dtype(ref=h5py.Reference), None, DataError, "must be one text"),
            ("S2000", b"x" * 2000, ShapeError, "would take 2000 bytes, the budget for one blob is 1000")):
        with h5py.File(state, "r+") as file:
            del file["learned_net"]
            file.create_dataset("learned_net", (1,) if data is None else (), kind, data)
        assert_refused(solver, state, error, "learned_net:? " + words)


def assert_refused(solver, path, error_class, match):
    def place():
        return solver.iter, solver.current_step, solver.generator.seed, solver.generator.offset, solver.net.layers[0].passes

    kept, was = [*weights(solver), *histories(solver)], place()
    with pytest.raises(error_class, match=match):
        solver.restore(path)
    assert same([*weights(solver), *histories(solver)], kept) and place() == was


def test_state_of_another_training(tmp_path):
    for form in FORMATS:
        _, path = built(tmp_path, form=form).snapshot()
        for other, words in ((built(tmp_path, "type: 'Adam'"), r"s_iter_0.*history: the file has 2 blobs, AdamSolver .* needs 4"),
                             (built(tmp_path, net=BOWL.replace("dim: 3", "dim: 6")), r"history\[0\]: is \[5, 3\], the net needs \[5, 6\]")):
            assert_refused(other, path, ShapeError, words)


def test_files_that_are_no_state(tmp_path, state):
    solver, model = built(tmp_path), state.replace("solverstate", "caffemodel")
    path = tmp_path / "x.solverstate"
    assert_refused(solver, path, FileError, "no such file")
    for content in b"", b"net: 'x'", b"\x89HDF\r\n\x1a\n rubbish":
        path.write_bytes(content)
        assert_refused(solver, path, Error, "x.solverstate")
    for name, value, words in (("resume_state", "{", "resume_state: is not what minicaffe writes"), ("iter", -1, "iter"),
                               ("current_step", -1, "current_step")):
        path.write_bytes(Path(state).read_bytes())
        rewrite(path, **{name: value})
        assert_refused(solver, path, DataError, words)
    make_solver(net=BOWL.replace("dim: 3", "dim: 6")).net.save(model)
    assert_refused(solver, state, ShapeError, r"caffemodel: layer 'bowl' .*blobs\[0\]")
    os.remove(model)
    assert_refused(solver, state, FileError, "learned_net: names the model .*s_iter_2.caffemodel, which is neither there")


def test_the_form_of_a_resume_state():
    """It may come from anywhere, and the states of ranks are used after those of rank 0 were."""
    rank = {"generator": {"seed": 1, "offset": 2}, "train": {}, "test": [{}]}
    good = {"solver": "SGDSolver", "generator": {"seed": 2**64 - 1, "offset": 0}, "train": {}, "test": [{}]}
    for changes in {}, {"ranks": [rank, rank]}, {"ranks": [rank, {"generator": {"seed": 5, "offset": 6}, "train": {"a": 1}, "test": [{}]}]}:
        assert snapshot._parse_resume_state(json.dumps(good | changes)) == good | changes
    generators = [{"seed": "x", "offset": 0}, {"seed": -1, "offset": 0}, {"seed": 2**64, "offset": 0}, {"seed": 0, "offset": 2**64},
                  {"seed": 0, "offset": 1.0}, {"seed": 0}, [1, 2], None]
    parts = [*({"generator": one} for one in generators), {"train": None}, {"train": "x"}, {"train": []}, {"test": [[]]}, {"test": [{}, 3]}, {"test": None}]
    others = [{}, *(rank | part for part in parts), rank | {"test": []}, rank | {"test": [{}, {}]}]
    for changes in [*parts, {"ranks": 3}, {"ranks": [3]}, *({"ranks": [rank, other]} for other in others)]:
        with pytest.raises(DataError) as caught:
            pytest.fail(f"accepted: {snapshot._parse_resume_state(json.dumps(good | changes))}")
        assert re.match("resume_state: is not what minicaffe writes there.*; fetch the file again$", str(caught.value)), changes


def test_the_length_of_a_resume_state(monkeypatch):
    """Long arrays of recurrent layers do not count."""
    monkeypatch.setattr(snapshot, "MAX_RESUME_STATE", 1000)
    resume = {"generator": {"seed": 2**64 - 1, "offset": 0}, "train": {"lstm": "A" * 5000}, "test": [], "more": ""}
    assert snapshot._parse_resume_state(json.dumps(resume)) == resume
    resume["train"] = {}
    resume["more"] = "?" * (1000 - len(json.dumps(resume)))
    assert snapshot._parse_resume_state(json.dumps(resume)) == resume
    resume["train"] = {"lstm": "A" * 99}        # no long one
    with pytest.raises(DataError, match=r"^resume_state: has 1109 characters, at most 1000 are read besides arrays; fetch the file again$"):
        snapshot._parse_resume_state(json.dumps(resume))
    assert snapshot._parse_resume_state("") is snapshot._parse_resume_state(None) is None


def test_states_of_layers_refused_or_unknown(tmp_path, state, monkeypatch, caplog):
    solver = built(tmp_path)
    real = type(solver.net.layers[0]).set_state

    def refuse(self, state):
        real(self, state)
        if state["passes"] == 2:
            raise DataError("the database has only 1 record")

    monkeypatch.setattr(type(solver.net.layers[0]), "set_state", refuse)
    assert_refused(solver, state, DataError, "layer 'bowl' .*the database has only 1 record")
    rewrite(state, resume_state=json.dumps({"generator": {"seed": 1, "offset": 2}, "train": {"gone": {"passes": 5}}, "test": []}))
    solver.restore(state)
    assert solver.generator.offset == 2 and any("layer gone is not used" in message for message in caplog.messages)


def test_hdf5_files_that_are_no_state(tmp_path):
    for name, replaced in ("history", {}), ("iter", {}), ("history/1", {"history/7": np.zeros(4)}), ("iter", {"iter": "text"}), ("history", {"history": 7}):
        _, path = built(tmp_path, form="HDF5").snapshot()
        with h5py.File(path, "r+") as file:
            del file[name]
            for key, value in replaced.items():
                file[key] = value
        assert_refused(built(tmp_path), path, Error, "s_iter_0.solverstate.h5")


# ---- writing fails

@pytest.mark.parametrize("form", FORMATS)
def test_full_disk_costs_only_snapshot(tmp_path, monkeypatch, form):
    """And an interrupt not even that."""
    solver = built(tmp_path, "snapshot: 2 momentum: 0.9", form)
    solver.step(2)
    model = Path(f"{tmp_path}/s_iter_2.caffemodel{FORMATS[form]}")
    old = model.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(FileError, match=f"{model}: cannot be written: no room .* The solver is at iteration 2"):
        patch.setattr(atomic.os, "fsync", full)
        solver.snapshot()
    assert model.read_bytes() == old and not list(tmp_path.glob("*.tmp"))
    solver.step(3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("minicaffe.solver.snapshot.own_state", lambda solver: signal.raise_signal(signal.SIGINT) or {})
        solver.snapshot()
    assert solver.iter == 5 and sorted(os.listdir(tmp_path)) == sorted(
        f"s_iter_{i}.{kind}{FORMATS[form]}" for i in (2, 4, 5) for kind in ("caffemodel", "solverstate"))


def test_snapshots_that_cannot_be_written(tmp_path):
    net, refused = BOWL.replace('name: "bowl"', 'name: "a/bowl"'), "layer 'a/bowl': cannot be saved as HDF5"
    with pytest.raises(FileError, match=f"s_iter_0.caffemodel.h5: {refused}"):
        built(tmp_path, form="HDF5", net=net).snapshot()
    with pytest.raises(FileError, match=refused):
        built(tmp_path, "snapshot: 5", form="HDF5", net=net)    # before training
    with pytest.raises(ConfigError, match="snapshot_prefix"):
        make_solver().snapshot()


@pytest.mark.parametrize("form", FORMATS)
def test_renamed_state_and_its_model(tmp_path, monkeypatch, caplog, form):
    monkeypatch.chdir(tmp_path)
    solver, later = (make_solver(f"snapshot_prefix: 's' snapshot_format: {form}") for _ in range(2))
    model, state = solver.snapshot()
    kept = weights(solver)
    for path in (model, state):
        os.rename(path, path.replace("s_iter_0", "old"))
    later.step(1)
    later.iter = 0
    later.snapshot()        # another model has the name that the renamed state knows
    fresh = make_solver("random_seed: 5")
    fresh.restore(f"old.solverstate{FORMATS[form]}")
    assert same(weights(fresh), kept)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"old.solverstate{FORMATS[form]} names the model {model}; old.caffemodel{FORMATS[form]}, which has the state's own name, is taken"]
    caplog.clear()
    fresh.restore(f"s_iter_0.solverstate{FORMATS[form]}")
    assert not caplog.records and not same(weights(fresh), kept)


@pytest.mark.parametrize("form", FORMATS)
def test_log_lines_of_a_snapshot(tmp_path, caplog, form):
    """The listener hears of it before there are files; an error names the file that could not be written."""
    solver, heard = built(tmp_path, form=form), []
    solver.listeners.append(SimpleNamespace(
        before_snapshot=lambda solver, *paths: heard.append((paths, sorted(path.name for path in tmp_path.iterdir()))),
        on_snapshot=lambda solver, *paths: heard.append(paths)))
    solver.step(1)
    paths = tuple(f"{tmp_path}/s_iter_1.{kind}{FORMATS[form]}" for kind in ("caffemodel", "solverstate"))
    kind = "HDF5" if form == "HDF5" else "binary proto"
    with caplog.at_level("INFO", "minicaffe.solver"):
        assert solver.snapshot() == paths
    assert caplog.messages == [f"Snapshotting to {kind} file {paths[0]}", f"Snapshotting solver state to {kind} file {paths[1]}"]
    assert heard == [(paths, []), paths]
    solver.step(1)
    for i, path in enumerate(path.replace("_1.", "_2.") for path in paths):
        os.mkdir(path)
        with pytest.raises(FileError, match=rf"^{re.escape(path)}: .*\. The solver is at iteration 2 and can continue$") as caught:
            solver.snapshot()
        assert caught.value.file == path and len(heard) == 3 + i        # `before_snapshot` alone
        os.rmdir(path)


@pytest.mark.parametrize("resume, used", [(None, False), ({}, False), ({"ranks": [{}, {}]}, False),
                                          ({"ranks": [{}, {"generator": {"seed": 8, "offset": 9}}, {}]}, True)])
def test_what_the_first_rank_sends(resume, used):
    """Each rank's own state if the file has one of each; otherwise seeds that follow one another, round the end of 64 bits."""
    solver, arrays, sent = make_solver("momentum: 0.9"), [], []
    comm = SimpleNamespace(Bcast=arrays.append, scatter=lambda values: sent.extend(values) or values[0])
    solver.group = SimpleNamespace(rank=0, size=3, comm=comm, broadcast_from_root=lambda value: value, gather=lambda value: [value] * 3)
    solver.generator.seed, solver.generator.offset = 2**64 - 2, 7
    solver.best = SimpleNamespace(get_state=lambda: 1)      # it has the best test, and takes none
    snapshot.share(solver, resume)
    assert sent == (resume["ranks"] if used else [{"generator": {"seed": seed, "offset": 7}} for seed in (2**64 - 2, 2**64 - 1, 0)])
    assert len(arrays) == 4 and (solver.generator.seed, solver.generator.offset) == (2**64 - 2, 7)     # two parameters, and their history


@pytest.mark.slow(13)
@pytest.mark.parametrize("form", FORMATS)
def test_every_file_is_whole_after_kills(form):
    """A few kills of a training that takes snapshots all the time (tools/kill_test.py does many)."""
    lines = []
    kill_test.run(3, form, seed=4, report=lines.append)
    assert len(lines) == 4 and lines[-1].startswith("3 kills")


class OneOfRanks:
    """A group as rank `rank` sees it: what rank 0 sends is given, and what this one sends is kept."""

    def __init__(self, rank, size, sent=None, difference=None):
        self.rank, self.size, self.sent, self.difference, self.comm, self.scattered = rank, size, sent, difference, self, None
        self.arrays = 0

    def Bcast(self, array):
        self.arrays += 1
        if self.rank:
            array[...] = 5

    def broadcast_from_root(self, value):
        return self.sent if self.rank else value

    def scatter(self, values):
        self.scattered = values
        return self.difference if self.rank else values[0]

    def gather(self, value):
        return [value] * self.size


def test_what_another_rank_takes():
    """All of rank 0, but for its own part of the state; a layer that refuses its part is an error after all else is taken."""
    fields = "momentum: 0.9 lr_policy: 'plateau' gamma: 0.5 plateau_winsize: 2"
    first, solver = make_solver(fields), make_solver(fields)
    first.iter, first.current_step, first.minimum_loss, first.iter_last_event = 6, 1, 0.5, 4
    policy = {name: getattr(first, name) for name in snapshot.POLICY_STATE}
    assert list(policy.values()) == [6, 1, 0.5, 4]
    first.net.layers[0].passes = 3
    taken = []
    best = SimpleNamespace(get_state=lambda: 1, set_state=taken.append)
    sent = {**snapshot.own_state(first), "best": {"value": 2}}, policy
    solver.group = OneOfRanks(1, 2, sent, {})
    snapshot.share(solver)
    solver.best = best
    solver.group = OneOfRanks(1, 2, sent, {"generator": {"seed": 11, "offset": 12}})
    snapshot.share(solver)
    assert {name: getattr(solver, name) for name in policy} == policy and taken == [{"value": 2}]
    assert solver.group.scattered is None and solver.net.layers[0].passes == 3
    assert (solver.generator.seed, solver.generator.offset) == (11, 12)
    assert all((array == 5).all() for array in weights(solver) + histories(solver))
    solver.group.difference = {"train": {"bowl": {"passes": 8}}}
    snapshot.share(solver)
    assert solver.net.layers[0].passes == 8 and solver.generator.seed == sent[0]["generator"]["seed"]
    solver.iter = 0

    def refuse(state):
        raise DataError("has no such record")

    solver.net.layers[0].set_state = refuse
    with pytest.raises(DataError, match="has no such record"):
        snapshot.share(solver)
    assert solver.iter == 6
