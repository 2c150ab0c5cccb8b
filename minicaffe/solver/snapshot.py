"""Snapshots: the model and the solver state in two files, and the way back (Caffe sgd_solver.cpp, SnapshotSolverState).

Binary files are those of Caffe; minicaffe adds the field ``resume_state``, JSON with what Caffe forgets: random numbers
and data positions. With it a resumed training computes the same bits as one that never stopped (on the same number of
threads). Each file appears whole under its name or not at all (proto/atomic.py), the model before the state that names it.

Of processes that train together rank 0 writes and reads. Its states are the file's, and `ranks` in ``resume_state`` has those of
each rank; parameters and history are the same on all.
"""

import glob
import json
import logging
import os
import re

import numpy as np

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError, located
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import binary, binary_writer, caffe_pb2
from minicaffe.proto.atomic import check_writable, replacing
from minicaffe.proto.files import is_hdf5
from minicaffe.proto.stored import StoredBlob, StoredState

log = logging.getLogger("minicaffe.solver")
MAX_RESUME_STATE = 16 << 20  # characters; a few of them become an object of a hundred bytes
ARRAY = re.compile('"[A-Za-z0-9+/=]{100,}"')    # what recurrent layers keep: a single object, however long, so it does not count
POLICY_STATE = ("iter", "current_step", "minimum_loss", "iter_last_event")     # of a solver: what its rate depends on
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


def complete_states(prefix):
    """Return state, iteration and model of each snapshot with this prefix that has both files, the newest (by date) last."""
    found = []
    for state in glob.glob(f"{glob.escape(prefix)}_iter_*.solverstate*"):
        match = re.fullmatch(r"(.*_iter_(\d+))\.solverstate(\.h5)?", state, re.DOTALL)
        if match and os.path.isfile(model := f"{match[1]}.caffemodel{match[3] or ''}"):
            found.append((state, int(match[2]), model))
    return sorted(found, key=lambda one: (os.stat(one[0]).st_mtime_ns, one[1]))


def write(solver, state):
    """Write the model and the state of `solver`, on rank 0; return the two paths. `state`: `own_state` or `state_of_ranks`."""
    param, resume = solver.param, json.dumps(state)
    if not param.snapshot_prefix:
        raise ConfigError("is not set, and a snapshot needs it", field="snapshot_prefix", file=solver.file)
    hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    extension, kind = (".h5", "HDF5") if hdf5 else ("", "binary proto")
    stem = f"{param.snapshot_prefix}_iter_{solver.iter}"
    model_path, state_path = f"{stem}.caffemodel{extension}", f"{stem}.solverstate{extension}"
    # BVLC Caffe writes nothing of policy plateau.
    plateau = {} if param.lr_policy != "plateau" else {"minimum_loss": min(solver.minimum_loss, NO_LOSS),
                                                       "iter_last_event": solver.iter_last_event}
    path = model_path
    solver.notify("before_snapshot", model_path, state_path)
    try:
        log.info("Snapshotting to %s file %s", kind, model_path)
        write_model(solver, model_path)
        path = state_path
        log.info("Snapshotting solver state to %s file %s", kind, state_path)
        with replacing(state_path) as file:
            if hdf5:
                _write_hdf5_state(solver, file, model_path, resume, plateau)
            else:
                message = caffe_pb2.SolverState(iter=solver.iter, learned_net=model_path, current_step=solver.current_step,
                                                resume_state=resume, **plateau)
                binary_writer.write_solver_state(file, message, [StoredBlob(blob.shape, blob.cpu_data) for blob in solver.history])
    except Error as error:
        error.file = path  # not the temporary file or the memory that was written to
        error.message += f". The solver is at iteration {solver.iter} and can continue"
        raise
    return model_path, state_path


def write_model(solver, path):
    """Write the model of `solver` to a file, in the format of its snapshots."""
    hdf5 = solver.param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    try:
        (solver.net.save_hdf5 if hdf5 else solver.net.save)(path, solver.param.snapshot_diff)
    except Error as error:
        error.file = path   # not the temporary file or the memory that was written to
        raise


def _write_hdf5_state(solver, file, model_path, resume, plateau):
    """Write a state as Caffe's ``SnapshotSolverStateToHDF5`` does; `plateau` has the fields that only this policy has."""
    import h5py

    from minicaffe.proto.hdf5 import hdf5_in_memory
    with hdf5_in_memory(file) as hdf5:
        for name, value in {"iter": solver.iter, "current_step": solver.current_step, **plateau}.items():
            hdf5.create_dataset(name, data=np.array([value], np.float32 if name == "minimum_loss" else np.int32))
        for name, text in (("learned_net", model_path), ("resume_state", resume)):
            # As H5LTmake_dataset_string does it: Caffe reads up to the closing zero.
            content = os.fsencode(text) + b"\0"
            string = h5py.h5t.C_S1.copy()
            string.set_size(len(content))
            dataset = h5py.h5d.create(hdf5.id, name.encode(), string, h5py.h5s.create(h5py.h5s.SCALAR))
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(content), string)
        group = hdf5.create_group("history")
        for i, blob in enumerate(solver.history):
            group.create_dataset(str(i), data=blob.cpu_data)


def own_state(solver):
    """Return the state of this process that Caffe's fields of a state file do not have, as a dict for JSON.

    With it a resumed training draws the same random numbers and reads the same records as one that did not stop.
    """
    train, *test = [{layer.key: state for layer in net.layers if (state := layer.get_state()) is not None}
                    for net in (solver.net, *solver.test_nets)]
    return {"solver": type(solver).__name__,
            "generator": {"seed": solver.generator.seed, "offset": solver.generator.offset}, "train": train, "test": test,
            **({"best": solver.best.get_state()} if solver.best is not None else {})}


def state_of_ranks(solver):
    """Return `own_state`, on rank 0 of a group with `ranks`, a list of the states of all ranks."""
    state = own_state(solver)
    everyone = solver.group.gather_to_root(state)
    return state if everyone is None else {**state, "ranks": everyone}


# ---- the same state on all ranks

def share(solver, resume=None):
    """Copy parameters, history, iteration and the states of layers from rank 0 to all ranks of a solver's group.

    Random numbers differ: the seed of a rank is that of rank 0 plus its number.

    Parameters
    ----------
    resume : dict, optional
        On rank 0 the `resume_state` that it has just restored; if its `ranks` are as many as there are, each rank takes its own.

    Raises
    ------
    DataError, ShapeError
        On all ranks, if a layer of one refuses its state; everything else is shared by then.
    """
    group, policy = solver.group, {name: getattr(solver, name) for name in POLICY_STATE}
    nets = (solver.net, *solver.test_nets)
    for blob in [*dict.fromkeys(blob for net in nets for blob in net.param_table.params), *solver.history]:
        group.comm.Bcast(blob.data)
    first, policy = group.broadcast_from_root((own_state(solver), policy))
    states = None
    if group.rank == 0:
        states = (resume or {}).get("ranks", ())
        if len(states) != group.size:
            seed, offset = first["generator"]["seed"], first["generator"]["offset"]
            states = [{"generator": {"seed": (seed + rank) % 2**64, "offset": offset}} for rank in range(group.size)]
    state = {**first, **group.comm.scatter(states)}
    for name, value in policy.items():
        setattr(solver, name, value)
    if solver.best is not None and group.rank:
        solver.best.set_state(first["best"])
    _set_generator(solver, state)
    failed = None
    try:
        _set_layer_states(solver, state, lambda: None)
    except Error as error:
        failed = error
    for error in filter(None, group.gather(failed)):
        raise error


# ---- the way back

def restore(solver, path):
    """Take everything from a state file; it is checked first, so that `solver` stays as it was if something does not fit.

    In a group rank 0 calls this, and then all `share`. Returns the file's `resume_state`, None if there is none or it is not used.
    """
    with located(file=path):
        state = _read_hdf5_state(path) if is_hdf5(path) else binary.read_solver_state(path)
        _check(solver, state)
        found = _parse_resume_state(state.resume_state) if solver.exact_resume or solver.best is not None else None
        resume = found if solver.exact_resume else None
        if solver.best is not None:
            solver.best.check_state((found or {}).get("best"))
        model = _find_model(state.learned_net, path)
        reset_layers = _compare_ranks(solver, resume, path) if resume is not None else []
        _set_layer_states(solver, resume, lambda: model and solver.net.copy_from(model))
    for blob, stored in zip(solver.history, state.history, strict=True):
        blob.data.reshape(-1)[:] = stored.data.reshape(-1)
    for layer in reset_layers:
        layer.reset()
    if resume is not None:
        _set_generator(solver, resume)
    for name in POLICY_STATE:
        setattr(solver, name, getattr(state, name))
    if solver.best is not None:
        solver.best.set_state((found or {}).get("best"))
    return resume


def _set_generator(solver, state):
    """Continue the random numbers of a resumed training, for dropout and fillers, where `state` has stopped."""
    solver.generator.seed, solver.generator.offset = state["generator"]["seed"], state["generator"]["offset"]


def _compare_ranks(solver, resume, path):
    """Warn if the state was written by another number of ranks; return the layers whose state is reset.

    The state of a recurrent layer belongs to the records that come next on the same rank: it is left out of `resume`.
    """
    written, size = len(resume.get("ranks", [{}])), solver.group.size
    if written == size:
        return []
    reset_layers = [layer for layer in solver.net.layers if layer.type in ("LSTM", "RNN", "Lstm") and layer.key in resume["train"]]
    for layer in reset_layers:
        del resume["train"][layer.key]
    log.warning("%s was written by %s, and %s: weights, history and place in the data are kept, but batches have other records and "
                "random layers draw other numbers than they would have%s", path,
                "1 process" if written == 1 else f"{written} ranks",
                "1 process continues" if size == 1 else f"{size} ranks continue",
                "".join(f"; layer '{layer.name}' ({layer.type}) begins with states of zero" for layer in reset_layers))
    return reset_layers


def _read_hdf5_state(path):
    """Return the StoredState of an HDF5 file, as `binary.read_solver_state` does of the other format."""
    import h5py

    from minicaffe.proto.hdf5 import find, is_numbers, read_array, reading
    with reading(path) as file:
        history = find(file, "history", caffe.trusted)
        if not isinstance(history, h5py.Group):
            raise DataError("is no group of datasets; the file is no solver state of Caffe", field="history")
        arrays = [find(history, str(i), caffe.trusted) for i in range(len(history))]
        if not all(map(is_numbers, arrays)):
            raise DataError("has no dataset of numbers for each; the file is no solver state of Caffe", field="history")
        return StoredState(
            iter=_value(file, "iter", "iu"), current_step=_value(file, "current_step", "iu"),
            learned_net=_value(file, "learned_net", "SO", ""), resume_state=_value(file, "resume_state", "SO", ""),
            minimum_loss=_value(file, "minimum_loss", "f", NO_LOSS), iter_last_event=_value(file, "iter_last_event", "iu", 0),
            history=[StoredBlob(array.shape, read_array(array, f"history[{i}]")) for i, array in enumerate(arrays)])


def _value(file, name, kinds, default=None):
    """Return the one number or text of a dataset; `default`, if there is one, without the dataset.

    Its NumPy type must be of one of `kinds`: a text may be of fixed length, as Caffe writes it, or variable, as h5py does.
    """
    import h5py

    from minicaffe.proto.hdf5 import find
    dataset = find(file, name, caffe.trusted)
    if dataset is None and default is not None:
        return default
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None or dataset.size != 1 or dataset.dtype.kind not in kinds:
        raise DataError(f"must be one {'text' if 'S' in kinds else 'number'}; the file is no solver state of Caffe", field=name)
    check_bytes(dataset.dtype.itemsize, name)
    value = np.asarray(dataset[()]).item()
    if "S" in kinds and not isinstance(value, bytes):   # kind O is also that of references and of arrays
        raise DataError("must be one text; the file is no solver state of Caffe", field=name)
    return os.fsdecode(value.split(b"\0")[0]) if isinstance(value, bytes) else value


def _check(solver, state):
    """Raise DataError or ShapeError unless a state that was read fits the solver's type and net."""
    for field in ("iter", "current_step", "iter_last_event"):
        if not 0 <= getattr(state, field) < 2**31:
            raise DataError(f"must be from 0 to 2^31 - 1, got {getattr(state, field)}; fetch the file again", field=field)
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
    length = len(ARRAY.sub("", text)) if len(text) > MAX_RESUME_STATE else len(text)
    if length > MAX_RESUME_STATE:
        raise DataError(f"has {length} characters, at most {MAX_RESUME_STATE} are read besides arrays; fetch the file again",
                        field="resume_state")
    try:
        resume = json.loads(text)
        states = resume, *resume.get("ranks", ())
        maps = [layers for state in states for layers in (state["train"], *state["test"])]
        numbers = [state["generator"][name] for state in states for name in ("seed", "offset")]
        if any(len(state["test"]) != len(resume["test"]) for state in states):
            raise ValueError("test of a rank")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:  # of lists nested thousands deep
        raise DataError(f"is not what minicaffe writes there ({cause!r}); fetch the file again",
                        field="resume_state") from cause
    if not all(isinstance(n, int) and 0 <= n < 2**64 for n in numbers) or not all(isinstance(m, dict) for m in maps):
        raise DataError("is not what minicaffe writes there; fetch the file again", field="resume_state")
    return resume


def _find_model(learned_net, state_path):
    """Return the path of the model: as the state names it, or the file of that name beside the state. None if unset.

    The state of a solver that is not trusted gets the file beside it before any other. A state that was renamed gets the model that
    was renamed with it, as `minicaffe train` does with snapshots of an earlier training: another may have the old name by now.
    """
    if not learned_net:
        log.warning("%s names no model, the weights stay as they are", state_path)
        return None
    beside = os.path.join(os.path.dirname(state_path), os.path.basename(learned_net))
    stem, found, extension = state_path.rpartition(".solverstate")
    own = f"{stem}.caffemodel{extension}"
    if found and os.path.basename(own) != os.path.basename(learned_net) and os.path.exists(own):
        log.warning("%s names the model %s; %s, which has the state's own name, is taken", state_path, learned_net, own)
        return own
    for path in (learned_net, beside) if caffe.trusted else (beside, learned_net):
        if os.path.exists(path):
            if path != beside:
                caffe.check_path(path, "learned_net", who="solver state")
            return path
    raise FileError(f"names the model {learned_net}, which is neither there nor at {beside}; put it beside the state file",
                    field="learned_net")


def _set_layer_states(solver, resume, finish):
    """Restore the states of layers (None: reset), then call `finish`, which loads the model; if one fails, undo the states."""
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
            with located(layer=layer.name, layer_type=layer.type):
                if state is None and hasattr(layer, "reset"):   # a file may have None for any
                    layer.reset()
                else:
                    layer.set_state(state)
        finish()
    except Error:
        for layer, before in done:
            layer.set_state(before)
        raise
