"""Snapshots: the model and the solver state in two files, and the way back (Caffe sgd_solver.cpp, SnapshotSolverState).

Binary files are those of Caffe; minicaffe adds the field ``resume_state``, JSON with what Caffe forgets: random numbers
and data positions. With it a resumed training computes the same bits as one that never stopped (on the same number of
threads). Each file appears whole under its name or not at all (proto/atomic.py), the model before the state that names it.
"""

import json
import logging
import os

import numpy as np

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError
from minicaffe.memory.budget import check_bytes
from minicaffe.net import weights
from minicaffe.proto import binary, caffe_pb2
from minicaffe.proto.atomic import check_writable, hdf5_in_memory, replacing
from minicaffe.proto.files import is_hdf5
from minicaffe.proto.hdf5 import find, read_array, reading

log = logging.getLogger("minicaffe.solver")
MAX_RESUME_STATE = 16 << 20  # characters; a few of them become an object of a hundred bytes
NO_LOSS = caffe_pb2.SolverState().minimum_loss  # the SSD fork's default: higher than any loss


def check_trust(param):
    """Raise ConfigError if the solver is not trusted and its file says where snapshots are written."""
    if param.HasField("snapshot_prefix") and not caffe.trusted:
        try:
            caffe.check_path(param.snapshot_prefix, "snapshot_prefix", writes=True, who="solver")
        except ConfigError as error:
            error.message += ", or name the place of snapshots yourself: --snapshot-prefix, or own_fields of Solver"
            raise


def check_prefix(param):
    """Raise unless files can be made under snapshot_prefix (ConfigError if it is not set, FileError otherwise)."""
    if not param.snapshot_prefix:
        raise ConfigError("is not set, and snapshots need it; set it, or snapshot: 0 and snapshot_after_train: false",
                          field="snapshot_prefix")
    try:
        check_writable(param.snapshot_prefix + "_iter_0")
    except FileError as error:
        raise error.at(field="snapshot_prefix")


def write(solver):
    """Write model and state of `solver`; return their paths."""
    param = solver.param
    if not param.snapshot_prefix:
        raise ConfigError("is not set, and a snapshot needs it", field="snapshot_prefix", file=solver.file)
    hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    extension, kind = (".h5", "HDF5") if hdf5 else ("", "binary proto")
    stem = f"{param.snapshot_prefix}_iter_{solver.iter}"
    model_path, state_path = f"{stem}.caffemodel{extension}", f"{stem}.solverstate{extension}"
    path = model_path
    try:
        log.info("Snapshotting to %s file %s", kind, model_path)
        with replacing(model_path) as file:
            if hdf5:
                weights.save_hdf5(solver.net, file, param.snapshot_diff)
            else:
                weights.save(solver.net, file, param.snapshot_diff)
        path = state_path
        log.info("Snapshotting solver state to %s file %s", kind, state_path)
        with replacing(state_path) as file:
            if hdf5:
                _write_hdf5_state(solver, file, model_path)
            else:
                binary.write_solver_state(file, solver.iter, model_path, solver.current_step,
                                          [binary.StoredBlob(blob.shape, blob.cpu_data) for blob in solver.history],
                                          json.dumps(resume_state(solver)), **_plateau_state(solver))
    except Error as error:
        error.file = path  # not the temporary file or the memory that was written to
        error.message += f". The solver is at iteration {solver.iter} and can go on"
        raise
    return model_path, state_path


def _write_hdf5_state(solver, file, model_path):
    import h5py
    with hdf5_in_memory(file) as hdf5:
        hdf5.create_dataset("iter", data=np.array([solver.iter], np.int32))
        hdf5.create_dataset("current_step", data=np.array([solver.current_step], np.int32))
        for name, text in (("learned_net", model_path), ("resume_state", json.dumps(resume_state(solver)))):
            # As H5LTmake_dataset_string does it: Caffe reads up to the closing zero.
            content = os.fsencode(text) + b"\0"
            string = h5py.h5t.C_S1.copy()
            string.set_size(len(content))
            dataset = h5py.h5d.create(hdf5.id, name.encode(), string, h5py.h5s.create(h5py.h5s.SCALAR))
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(content), string)
        for name, value in _plateau_state(solver).items():
            hdf5.create_dataset(name, data=np.array([value], np.float32 if name == "minimum_loss" else np.int32))
        group = hdf5.create_group("history")
        for i, blob in enumerate(solver.history):
            group.create_dataset(str(i), data=blob.cpu_data)


def _plateau_state(solver):
    """Return what a state file holds of policy plateau, as a dict; other policies write none, as in BVLC Caffe."""
    if solver.param.lr_policy != "plateau":
        return {}
    return {"minimum_loss": min(solver.minimum_loss, NO_LOSS), "iter_last_event": solver.iter_last_event}


def resume_state(solver):
    """Return what a state file keeps beyond Caffe's fields, as a dict for JSON."""
    return {"solver": type(solver).__name__,
            "generator": {"seed": solver.generator.seed, "offset": solver.generator.offset},
            "train": _layer_states(solver.net),
            "test": [_layer_states(net) for net in solver.test_nets]}


def _layer_states(net):
    states = {layer.key: layer.get_state() for layer in net.layers}
    return {key: state for key, state in states.items() if state is not None}


# ---- the way back

def restore(solver, path):
    """Take everything from a state file; it is checked first, so that `solver` stays as it was if something does not fit."""
    try:
        state = _read_hdf5_state(path) if is_hdf5(path) else binary.read_solver_state(path)
        _check(solver, state)
        resume = _parse_resume_state(state.resume_state) if solver.exact_resume else None
        model = _find_model(state.learned_net, path)
        _set_layer_states(solver, resume, lambda: model and solver.net.copy_from(model))
    except Error as error:
        raise error.at(file=path)
    for blob, stored in zip(solver.history, state.history, strict=True):
        blob.data.reshape(-1)[:] = stored.data.reshape(-1)
    if resume is not None:
        solver.generator.seed, solver.generator.offset = resume["generator"]["seed"], resume["generator"]["offset"]
    solver.iter = state.iter
    solver.current_step = state.current_step
    solver.minimum_loss, solver.iter_last_event = state.minimum_loss, state.iter_last_event


def _read_hdf5_state(path):
    import h5py
    with reading(path) as file:
        history = find(file, "history", caffe.trusted)
        if not isinstance(history, h5py.Group):
            raise DataError("is no group of datasets; the file is no solver state of Caffe", field="history")
        arrays = [read_array(_dataset(history, str(i), "fiu"), f"history[{i}]") for i in range(len(history))]
        return binary.StoredState(
            iter=_number(file, "iter"), current_step=_number(file, "current_step"),
            learned_net=_string(file, "learned_net"), resume_state=_string(file, "resume_state"),
            minimum_loss=_number(file, "minimum_loss", "f") if "minimum_loss" in file else NO_LOSS,
            iter_last_event=_number(file, "iter_last_event") if "iter_last_event" in file else 0,
            history=[binary.StoredBlob(array.shape, array) for array in arrays])


def _dataset(group, name, kinds):
    """Return a dataset whose NumPy type is of one of `kinds`; DataError if it is missing or something else."""
    import h5py
    dataset = find(group, name, caffe.trusted)
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None or dataset.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds or "i" in kinds else "text"
        raise DataError(f"is missing or no dataset of {what}; the file is no solver state of Caffe",
                        field=f"{group.name}/{name}".lstrip("/"))
    return dataset


def _number(file, name, kinds="iu"):
    """Return the one number of a dataset; a whole one Caffe reads as int32."""
    dataset = _dataset(file, name, kinds)
    if dataset.size != 1:
        raise DataError(f"must hold one number, holds {dataset.size}", field=name)
    number = dataset[()].item()
    if kinds == "iu" and not -2**31 <= number < 2**31:
        raise DataError(f"must be from -2^31 to 2^31 - 1, got {number}; fetch the file again", field=name)
    return number


def _string(file, name):
    """Return a text, of fixed length as Caffe writes it or of variable length as h5py does; None if there is none."""
    if find(file, name, caffe.trusted) is None:
        return None
    dataset = _dataset(file, name, "SO")
    check_bytes(dataset.size * dataset.dtype.itemsize, name)
    text = dataset[()]
    if not isinstance(text, bytes):
        raise DataError(f"must be one text, got shape {list(dataset.shape)}; the file is no solver state of Caffe", field=name)
    return os.fsdecode(text.split(b"\0")[0])


def _check(solver, state):
    for field in ("iter", "current_step", "iter_last_event"):
        if getattr(state, field) < 0:
            raise DataError(f"must be at least 0, got {getattr(state, field)}", field=field)
    got, needed = len(state.history), len(solver.history)
    if got != needed:
        raise ShapeError(f"the file has {got} blobs, {type(solver).__name__} with this net needs {needed}; resume with the "
                         "solver type and net that wrote it", field="history")
    for i, (blob, stored) in enumerate(zip(solver.history, state.history, strict=True)):
        if not blob.shape_equals(stored.shape, stored.legacy):
            raise ShapeError(f"is {list(stored.shape)}, the net needs {list(blob.shape)}; resume with the net that wrote it",
                             field=f"history[{i}]")


def _parse_resume_state(text):
    """Return the checked content of `resume_state`, None for a file of Caffe."""
    if not text:
        return None
    if len(text) > MAX_RESUME_STATE:
        raise DataError(f"has {len(text)} characters, at most {MAX_RESUME_STATE} are read; fetch the file again",
                        field="resume_state")
    try:
        resume = json.loads(text)
        generator = resume["generator"]
        numbers = [generator["seed"], generator["offset"]]
        maps = [resume["train"], *resume["test"]]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:  # RecursionError: lists nested thousands deep
        raise DataError(f"is not what minicaffe writes there ({cause!r}); fetch the file again",
                        field="resume_state") from cause
    if not all(isinstance(n, int) and 0 <= n < 2**64 for n in numbers) or not all(isinstance(m, dict) for m in maps):
        raise DataError("is not what minicaffe writes there; fetch the file again", field="resume_state")
    return resume


def _find_model(learned_net, state_path):
    """Return the path of the model: as the state names it, or the file of that name beside the state. None if unset.

    The state of a solver that is not trusted gets the file beside it before any other.
    """
    if not learned_net:
        log.warning("%s names no model, the weights stay as they are", state_path)
        return None
    beside = os.path.join(os.path.dirname(state_path), os.path.basename(learned_net))
    for path in (learned_net, beside) if caffe.trusted else (beside, learned_net):
        if os.path.exists(path):
            if path != beside:
                caffe.check_path(path, "learned_net", who="solver state")
            return path
    raise FileError(f"names the model {learned_net}, which is neither there nor at {beside}; put it beside the state file",
                    field="learned_net")


def _set_layer_states(solver, resume, finish):
    """Give layers their states, then call `finish`; if anything fails, give back the states that they had."""
    plan = []
    for net, states in zip([solver.net, *solver.test_nets], [resume["train"], *resume["test"]] if resume else []):
        layers = {layer.key: (layer, layer.get_state()) for layer in net.layers}
        for key, state in states.items():
            if key in layers and layers[key][1] is not None:
                plan.append((*layers[key], state))
            else:
                log.warning("The state of layer %s is not used: the net has no such layer, or it keeps none", key)
    done = []
    try:
        for layer, before, state in plan:
            done.append((layer, before))
            try:
                layer.set_state(state)
            except Error as error:
                raise error.at(layer=layer.name, layer_type=layer.type)
        finish()
    except Error:
        for layer, before in done:
            layer.set_state(before)
        raise
