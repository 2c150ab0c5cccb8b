"""What a solver reports about the outputs of a net: as records for listeners and in Caffe's words for its log.

`run_batches` gives the outputs of a test's batches, which processes that test together divide.
"""

import logging
from collections import namedtuple

import numpy as np

from minicaffe.errors import Error, ShapeError
from minicaffe.layers.data.sources import NumberedSource, RankSharding, sync_sources, why_not_divisible
from minicaffe.parallel.single import SINGLE_PROCESS
from minicaffe.proto import caffe_pb2

log = logging.getLogger("minicaffe.solver")


class RecordCounts(namedtuple("RecordCounts", "records size why")):
    """Numbers of records for a test: of a net's data in all (None: not known), and in a batch.

    `why` is the reason why the last batch cannot be smaller than the others; it is empty if each record can count once.
    """

    @classmethod
    def of(cls, net, mean=True):
        """Return the RecordCounts of a net; `mean` says that the mean of its outputs over the batches is what is wanted."""
        sources = [node for node in net.nodes if node.tops and not node.bottoms and node.type != "Parameter"]
        numbered = [node.layer for node in sources if isinstance(node.layer, NumberedSource)]
        counts = {(layer.count_records(), layer.batch_size) for layer in numbered}
        records, size = counts.pop() if len(counts) == 1 else (None, None)
        if not isinstance(records, int) or not records:
            return cls(None, size, "how many records there are is not known")
        others = [f"layer '{node.name}' ({node.type}) has a batch of its own" for node in sources if node.layer not in numbered]
        why = others[0] if others else why_not_divisible(net) or ""
        if not why and records % size:
            why = mean and _sums_over_batch(net) or _rejects_batch(net, numbered, size, records % size)
        return cls(records, size, why)

    @property
    def batches(self):
        """int: how many batches hold all records."""
        return -(-self.records // self.size)

    def share(self, batch):
        """Return what part of a whole batch batch number `batch` is, of a test that gives each record once."""
        return min(self.size, self.records - batch * self.size) / self.size


def _sums_over_batch(net):
    """Return why a smaller batch would count less in the mean of a net's outputs; '' if it does not."""
    for node in net.nodes:
        reduction, axes = node.param.reduction_param, len(node.bottoms[0].shape) if node.bottoms else 0
        if node.param.loss_param.normalization == caffe_pb2.LossParameter.NONE:
            field = "loss_param.normalization: NONE"
        elif node.type == "Reduction" and reduction.operation != reduction.MEAN and reduction.axis in (0, -axes):
            field = f"reduction_param.operation: {caffe_pb2.ReductionParameter.ReductionOp.Name(reduction.operation)}"
        else:
            continue
        return f"layer '{node.name}' ({node.type}) gives a sum over its batch ({field})"
    return ""


def _rejects_batch(net, sources, size, rest):
    """Return why a net does not take a batch of `rest` records in place of `size`; '' if it does."""
    tops = [top for node in net.nodes if node.layer in sources for top in node.tops if top.shape[:1] == (size,)]
    try:
        for layer in sources:
            layer.end = layer.position + rest
        for top in tops:
            top.reshape(rest, *top.shape[1:])
        net.reshape_all()
        return ""
    except Error as error:
        return str(error)
    finally:
        for layer in sources:
            layer.end = None
        for top in tops:
            top.reshape(size, *top.shape[1:])
        net.reshape_all()


def run_batches(net, batches, group=SINGLE_PROCESS, proceed=lambda: True, blobs=None, records=None):
    """Run a net over the next batches of its data; yield for each, in order, its loss and its outputs as a list of arrays.

    In a group all ranks must call this, and each gets all results: each computes every `size`-th batch (layers/data/sources.py);
    results are exchanged after each round of `size` batches. A net whose batches depend on those before is not divided: each rank
    computes all batches.

    Parameters
    ----------
    net : Net
    batches : int
    group : Group or SingleProcess
        Of minicaffe.parallel.
    blobs : list of Blob, optional
        Of any shapes: what is yielded in place of the outputs, and to rank 0 alone: other ranks get no arrays.
    records : int, optional
        How many there are in all batches, if the last one is to be smaller than the others; see `RecordCounts`.
    proceed : callable
        Called before each round, in a single process before each batch; False, the same on all ranks, ends the test.

    Notes
    -----
    The arrays are good until the next batch.
    """
    size, rank = group.size, group.rank
    if size > 1:
        sync_sources(net, group)
        if reason := why_not_divisible(net):
            log.info("This test is not divided over the ranks: %s", reason)
            size, rank = 1, 0
    sharding, done = RankSharding(net, size, rank, records), 0
    try:
        for first in range(0, batches, size):
            if not proceed():
                break
            mine, owners = None, [sharding.owner(batch) for batch in range(first, min(first + size, batches))]
            if rank in owners:
                sharding.advance_to(first + owners.index(rank))
                loss = net.forward_from_to(0, len(net.nodes) - 1)
                mine = loss, [blob.cpu_data for blob in (net.output_blobs if blobs is None else blobs)]
            if size == 1:
                results = [mine]
            elif blobs is None:     # before a source overwrites an output
                results = group.gather(mine)
            else:
                results = group.gather_to_root(mine) or [(0.0, [])] * size
            for owner in owners:
                done += 1
                yield results[owner]
    finally:
        sharding.end(done)


class OutputMeans:
    """Collect the values of all outputs of a net over some forward passes.

    The first pass fixes how many there are (as in Caffe, which would count wrong after a change).
    """

    def __init__(self, net):
        self.net = net
        self.passes = 0
        self.sums, self.weights = [], []

    def add(self, values=None, share=1.0):
        """Add the outputs of a pass, by default as they are now; ShapeError if one has another size than in the first pass.

        `share` is what part of a whole batch the pass had. Below 1 it is the weight of its values. An output with values for each
        record is then shorter, and its values count as they are.
        """
        values = [value.ravel() for value in values or [blob.cpu_data for blob in self.net.output_blobs]]
        if not self.passes:
            self.sums = [v * np.float64(share) for v in values]
            self.weights = [np.full(v.shape, share) for v in values]
        else:
            for blob, total, weights, value in zip(self.net.output_blobs, self.sums, self.weights, values, strict=True):
                if share < 1 and value.size == round(total.size * share) < total.size:
                    total[:value.size] += value
                    weights[:value.size] += 1
                    continue
                if total.size != value.size:
                    raise ShapeError(f"output '{blob.name}' has {value.size} values, in the first batch of this "
                                     f"test it had {total.size}; the mean needs equal batches", file=self.net.file)
                total += value * np.float64(share)
                weights += share
        self.passes += 1

    def records(self):
        """Return one dict for each scalar of each output, in Caffe's order: name, index, value (the mean), loss_weight."""
        records = []
        for blob, total, weights in zip(self.net.output_blobs, self.sums, self.weights, strict=bool(self.passes)):
            weight = self.net.loss_weights[blob]
            for value in (total / weights).tolist():
                records.append({"name": blob.name, "index": len(records), "value": value, "loss_weight": weight})
        return records


def output_records(net, values=None):
    """Return the outputs of one forward pass, by default the last, as records, see `OutputMeans.records`."""
    means = OutputMeans(net)
    means.add(values)
    return means.records()


def log_outputs(phase, records):
    """Log ``    Train net output #0: loss = 2.3 (* 1 = 2.3 loss)`` for each record; `phase` is Train or Test."""
    for record in records:
        value, weight = record["value"], record["loss_weight"]
        suffix = f" (* {weight:g} = {weight * value:g} loss)" if weight else ""
        log.info("    %s net output #%d: %s = %g%s", phase, record["index"], record["name"], value, suffix)


def batch_size(net):
    """Return the first axis of the first top of the first layer that reads data; None if no layer does."""
    for node in net.nodes:
        if not node.bottoms and node.tops and node.type != "Parameter":
            return node.tops[0].shape[0] if node.tops[0].num_axes else None
    return None


def images_together(solver):
    """Return how many pictures an iteration takes, of a solver and those that train with it; None if no layer reads data."""
    images = batch_size(solver.net)
    return images * solver.param.iter_size * solver.group.size if images is not None else None
