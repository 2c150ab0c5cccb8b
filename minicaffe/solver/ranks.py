"""What a solver does as one of several processes that train together: joining them, the means of their statistics."""

import logging
import math

import numpy as np

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, float_of, int_of, shown
from minicaffe.layers.data.sources import log_undivided_sources
from minicaffe.solver import snapshot

log = logging.getLogger("minicaffe.solver")
WIRES = ("float32", "bf16")     # types in which gradients are sent between processes
CARRIERS = ("mpi", "nccl")      # what sends them
RATE_SCALES = {"linear": float, "sqrt": math.sqrt}  # what n processes with the batches of one each may multiply the rate by


def join(solver, comm, carrier, wire, overlap, sync_batch_norm, scale_lr, warmup, timeout):
    """Let a solver train together with others; see `Solver.distribute`."""
    from minicaffe.parallel.exchange import Exchange
    from minicaffe.parallel.group import Group
    from minicaffe.parallel.heartbeat import Heartbeat
    from minicaffe.parallel.transport import make_transport  # imported here: a single process does not need them
    from minicaffe.solver import rank_checks
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
    Heartbeat(group, timeout)
    rank_checks.check(solver, group)
    group.check_equal({"the carrier of gradients": carrier, "their type": wire, "overlap": overlap,
                       "sync_batch_norm": sync_batch_norm, "scale_lr": scale_lr, "warmup": warmup})
    exchange = Exchange(group, solver.net.learnable_params, solver.net.learned(),
                        make_transport(group, carrier, wire == "bf16", overlap), wire == "bf16")
    caffe.join_group(group)
    solver.group, solver._exchange = group, exchange
    if scale_lr is not None:
        solver.rate_scale, solver.warmup = RATE_SCALES[scale_lr](group.size), warmup
    with solver.net.lock:
        snapshot.share(solver)
    log_undivided_sources(solver.net)
    if sync_batch_norm:
        apart = Group(group.comm)   # a communicator of its own: gradients are sent at the same time
        solver._sync_batch_norm_layers = [layer.name for layer in solver.net.layers
                                          if layer.type == "BatchNorm" and layer.synchronise(apart)]
        if not solver._sync_batch_norm_layers and group.rank == 0:
            log.warning("sync_batch_norm changes nothing: the net has no BatchNorm layer that uses the statistics of its batch")
    if group.size > 1 and statistics(solver):
        log.info("BatchNorm's running statistics are each rank's own; before tests and snapshots all take their mean.")


def statistics(solver):
    """Return the blobs of BatchNorm's running statistics that each rank has for itself, as no gradient makes them equal."""
    if solver._sync_batch_norm_layers:
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
