"""A solver as one of several processes that train together: checks, joining them, the means of their statistics."""

import logging
import math
import re

import numpy as np

from minicaffe.common import caffe
from minicaffe.engines.engine import get_precision
from minicaffe.errors import ConfigError, float_of, int_of, shown
from minicaffe.layers.data.sources import NumberedSource, log_undivided_sources
from minicaffe.proto import text
from minicaffe.solver import snapshot

log = logging.getLogger("minicaffe.solver")
WIRES = ("float32", "bf16")     # types in which gradients are sent between processes
CARRIERS = ("mpi", "nccl")      # what sends them
RATE_SCALES = {"linear": float, "sqrt": math.sqrt}  # what n processes with the batches of one each may multiply the rate by
# Paths may differ, as each machine may have the data on a disk of its own.
PATHS = re.compile(r'\b(source|root_folder|mean_file|label_map_file|name_size_file|output_directory|file_name): "(\\.|[^"\\])*"')
# Fields of a solver that may differ: nets (compared separately), files, what rank 0 sends to all, and what only affects display.
MAY_DIFFER = {"net", "net_param", "train_net", "train_net_param", "test_net", "test_net_param", "weights", "random_seed",
              "snapshot_prefix", "solver_mode", "device_id", "display", "debug_info"}


def join_group(solver, comm, carrier, wire, overlap, sync_batch_norm, scale_lr, warmup, timeout):
    """Let a solver train together with those of other processes, for `Solver.distribute`, which documents the arguments."""
    from minicaffe.parallel.exchange import Exchange
    from minicaffe.parallel.group import Group
    from minicaffe.parallel.heartbeat import Heartbeat
    from minicaffe.parallel.transport import make_transport  # imported here: a single process does not need them
    for field, value, known in (("wire", wire, WIRES), ("carrier", carrier, (*CARRIERS, None)),
                                ("scale_lr", scale_lr, (*RATE_SCALES, None))):
        if value not in known:
            raise ConfigError(f"must be one of {', '.join(filter(None, known))}, got '{value}'", field=field)
    if int_of(warmup, "warmup", field="warmup") < 0 or warmup and scale_lr is None:
        raise ConfigError(f"must be a number of iterations, with scale_lr, got {warmup}", field="warmup")
    if not 0 <= float_of(timeout, "timeout", field="timeout") < math.inf:
        raise ConfigError(f"must be a number of seconds, or 0 for no limit, got {shown(timeout)}", field="timeout")
    if caffe.group is not None:
        raise ConfigError("a solver of this process trains together with others already, and only one can; delete it first")
    group = Group(comm)
    Heartbeat(group, timeout)   # its thread runs until the group is deleted
    check_equal(solver, group)
    group.check_equal({"the carrier of gradients": carrier, "their type": wire, "overlap": overlap,
                       "sync_batch_norm": sync_batch_norm, "scale_lr": scale_lr, "warmup": warmup})
    exchange = Exchange(group, solver.net.learnable_params, solver.net.learned(),
                        make_transport(group, carrier, wire == "bf16", overlap), wire == "bf16")
    caffe.join_group(group)
    solver.group, solver.exchange = group, exchange
    if scale_lr is not None:
        solver.rate_scale, solver.warmup = RATE_SCALES[scale_lr](group.size), warmup
    with solver.net.lock:
        snapshot.share(solver)
    log_undivided_sources(solver.net)
    if sync_batch_norm:
        apart = Group(group.comm)   # a communicator of its own: gradients are sent at the same time
        # True of a layer: it uses the statistics of its batch, and from now on those of all ranks' batches.
        solver.sync_batch_norm = any([layer.synchronise(apart) for layer in solver.net.layers if layer.type == "BatchNorm"])
        if not solver.sync_batch_norm and group.rank == 0:
            log.warning("sync_batch_norm changes nothing: the net has no BatchNorm layer that uses the statistics of its batch")
    if group.size > 1 and statistics(solver):
        log.info("BatchNorm's running statistics are each rank's own; before tests and snapshots all take their mean.")


def check_equal(solver, group):
    """Raise ConfigError, which names the ranks and their machines, unless the solvers of all ranks of a Group compute the same."""
    from importlib.metadata import version
    group.check_equal({"the version of minicaffe": version("minicaffe"), "the type of the solver": type(solver).__name__,
                       **{f"{field.name} of the solver": _value(value) for field, value in solver.param.ListFields()
                          if field.name not in MAY_DIFFER}})
    nets = {"the train net": solver.net, **{f"test net {i}": net for i, net in enumerate(solver.test_nets)}}
    group.check_equal({f"layer '{node.name}' of {which}": " ".join(PATHS.sub("", text.write_text(node.param)).split())
                       for which, net in nets.items() for node in net.nodes})
    group.check_equal({f"the number of records of layer '{node.name}' of {which}": node.layer.count_records()
                       for which, net in nets.items() for node in net.nodes if isinstance(node.layer, NumberedSource)})
    params = [blob for net in nets.values() for blob in net.param_table.params]
    group.check_equal({"the shapes of the parameters": [list(blob.shape) for blob in params],
                       "the types of the parameters": [blob.dtype.name for blob in params], "the precision": get_precision()})


def _value(value):
    """Return the value of a field as `Group.check_equal` compares and shows it, float32 with the digits that it has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value if isinstance(value, (int, str)) else str(value).strip()


def statistics(solver):
    """Return the blobs of BatchNorm's running statistics that each rank has for itself, as no gradient makes them equal."""
    if solver.sync_batch_norm:
        return []
    return list(dict.fromkeys(blob for layer in solver.net.layers if layer.type == "BatchNorm" for blob in layer.blobs))


def average_statistics(solver):
    """Replace BatchNorm's running statistics on all ranks by their mean.

    They are sums (layers/batch_norm.pyx), so that their means describe the batches of all ranks.
    """
    blobs = statistics(solver) if solver.group.size > 1 else []
    if not blobs:
        return
    # In double: the mean of equal floats is the same float.
    mine = np.concatenate([blob.data.ravel().astype(np.float64) for blob in blobs])
    ends = np.cumsum([blob.count for blob in blobs])
    for blob, mean in zip(blobs, np.split(solver.group.sum(mine) / solver.group.size, ends[:-1]), strict=True):
        blob.data[...] = mean.reshape(blob.shape)
