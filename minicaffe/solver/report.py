"""A test of a solver's net, and what a solver reports about outputs: records for listeners, and Caffe's words for its log.

`run_batches` yields the outputs of a test's batches; the ranks of a group divide the batches.
"""

import logging
from collections import namedtuple

import numpy as np

from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.layers.data.sources import NumberedSource, RankSharding, sync_sources, why_not_divisible
from minicaffe.parallel import SINGLE_PROCESS
from minicaffe.proto import caffe_pb2

log = logging.getLogger("minicaffe.solver")


class RecordCounts(namedtuple("RecordCounts", "records size why")):
    """Numbers of records of a test: `records` in all data of the net (None: not known), `size` in a batch.

    `why` is the reason why the last batch cannot be smaller than the others; it is empty if the test can use each record once.
    """

    @classmethod
    def of(cls, net, mean=True):
        """Return the RecordCounts of a net; `mean`: whether its outputs are averaged over the batches."""
        sources = [node for node in net.nodes if node.tops and not node.bottoms and node.type != "Parameter"]
        numbered = [node.layer for node in sources if isinstance(node.layer, NumberedSource)]
        counts = {(layer.count_records(), layer.batch_size) for layer in numbered}
        records, size = counts.pop() if len(counts) == 1 else (None, None)
        if not isinstance(records, int) or not records:
            return cls(None, size, "how many records there are is not known")
        others = [f"layer '{node.name}' ({node.type}) has a batch of its own" for node in sources if node.layer not in numbered]
        why = others[0] if others else why_not_divisible(net) or ""
        if not why and records % size:
            why = mean and _why_not_averaged(net) or _why_batch_rejected(net, numbered, size, records % size)
        return cls(records, size, why)

    @property
    def batches(self):
        """int: the number of batches of all records; the last one may be smaller."""
        return -(-self.records // self.size)

    def share(self, batch):
        """Return the size of batch number `batch` as a fraction of a full batch, in a test that uses each record once."""
        return min(self.size, self.records - batch * self.size) / self.size


def _why_not_averaged(net):
    """Return why a smaller last batch makes the mean of a net's outputs wrong: one is a sum over the batch. '' if none is."""
    for node in net.nodes:
        reduction, field, axes = node.param.reduction_param, "", node.bottoms[0].num_axes if node.bottoms else 0
        if node.param.loss_param.normalization == caffe_pb2.LossParameter.NONE:
            field = "loss_param.normalization: NONE"
        elif node.type == "Reduction" and reduction.operation != reduction.MEAN and reduction.axis in (0, -axes):
            field = f"reduction_param.operation: {caffe_pb2.ReductionParameter.ReductionOp.Name(reduction.operation)}"
        if field:
            return f"layer '{node.name}' ({node.type}) gives a sum over its batch ({field})"
    return ""


def _why_batch_rejected(net, sources, size, rest):
    """Return why a net cannot be reshaped for batches of `rest` records, such as by a Reshape with fixed sizes; '' if it can.

    It is tried with the numbered `sources`, and the net is restored for batches of `size`.
    """
    tops = [top for node in net.nodes if node.layer in sources for top in node.tops if top.shape[:1] == (size,)]
    try:
        for layer in sources:
            layer.end = layer.position + rest       # the next batch ends there
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
    """Run a net over the next batches of its data; yield for each, in order, loss, outputs as a list of arrays, and their shares.

    A share is that of the batch of which the values are means (`Layer.counted_shares`).

    In a group all ranks must call this. In a round each computes one batch (`RankSharding` in layers/data/sources.py), then they
    exchange the results, so that each rank yields those of all batches. If batches of the net depend on earlier ones
    (`why_not_divisible`), each rank computes all.

    Parameters
    ----------
    net : Net
    batches : int
    group : Group or SingleProcess
        Of minicaffe.parallel.
    blobs : list of Blob, optional
        Of any shapes: yielded in place of the outputs, on rank 0 only. If the batches are divided, the other ranks yield loss 0 and
        empty lists.
    records : int, optional
        Number of records of all batches, if the last one shall be smaller than the others; see `RecordCounts`.
    proceed : callable
        Called before each batch of a process; False ends the test. It must return the same on all ranks.

    Notes
    -----
    The arrays are valid until the next batch.
    """
    size, rank = group.size, group.rank
    if size > 1:
        sync_sources(net, group)
        if reason := why_not_divisible(net):
            log.info("This test is not divided over the ranks: %s", reason)
            size, rank = 1, 0
    sharding, done = RankSharding(net, size, rank, records), 0
    exchange, blobs = (group.gather, net.output_blobs) if blobs is None else (group.gather_to_root, blobs)
    try:
        for first in range(0, batches, size):
            if not proceed():
                break
            result, owners = None, [(sharding.first + batch) % size for batch in range(first, min(first + size, batches))]
            if rank in owners:
                if sharding.others:
                    sharding.advance_to(first + owners.index(rank))
                loss = net.forward_from_to(0, len(net.nodes) - 1)
                shares = {node.tops[i].data_memory: share       # a Split's top or another view of the value is another blob
                          for node in net.nodes for i, share in node.layer.counted_shares(node.bottoms).items()}
                result = loss, [blob.cpu_data for blob in blobs], [shares.get(blob.data_memory, 1.0) for blob in blobs]
            results = [result] if size == 1 else exchange(result) or [(0.0, [], [])] * size
            for owner in owners:
                done += 1
                yield results[owner]
    finally:
        sharding.end(done)


class OutputMeans:
    """Collect the values of all outputs of a net, and its loss, over some forward passes.

    The first pass fixes how many values each output has, as in Caffe. If that changes, Caffe adds to wrong sums; add() raises.
    Different from Caffe: a value is weighed by what it counted, such as labels that are not ignored.
    """

    def __init__(self, net):
        self.net = net
        self.passes = 0
        self.sums, self.weights = [], []
        self.loss_sum = self.loss_weight = 0.0

    def add(self, values=None, share=1.0, counted=None, loss=0.0):
        """Add the outputs of a pass, by default as they are now; ShapeError if one has another size than in the first pass.

        `share` is the size of the pass as a fraction of a full batch. Times the value of `counted` for the output, by default 1, it
        is the weight of its values. If it is below 1, an output with values for each record is shorter: each of these values has
        weight 1. `loss` is that of the pass.
        """
        values = [value.ravel() for value in values or [blob.cpu_data for blob in self.net.output_blobs]]
        self.loss_sum += loss * share
        self.loss_weight += share
        shares = [np.float64(share) * part for part in counted or [1.0] * len(values)]
        if not self.passes:
            self.sums, self.weights = ([np.zeros(value.shape) for value in values] for _ in range(2))
        for blob, total, weights, value, part in zip(self.net.output_blobs, self.sums, self.weights, values, shares, strict=True):
            if share < 1 and value.size == round(total.size * share) < total.size:
                total[:value.size] += value
                weights[:value.size] += 1
                continue
            if total.size != value.size:
                raise ShapeError(f"output '{blob.name}' has {value.size} values, in the first batch of this test it had "
                                 f"{total.size}; the mean needs equal batches", file=self.net.file)
            total += value * part
            weights += part
        self.passes += 1

    def records(self):
        """Return the means as records, see `output_records`."""
        # 0 if nothing was counted, as of a batch.
        return output_records(self.net, [total / np.where(weights, weights, 1) for total, weights in zip(self.sums, self.weights)])

    def loss(self):
        """Return the mean loss: by the means of the outputs, unless a loss is not an output."""
        if {blob for blob, weight in self.net.loss_weights.items() if weight} <= set(self.net.output_blobs):
            return sum(record["value"] * record["loss_weight"] for record in OutputMeans.records(self)) + 0.0
        return self.loss_sum / self.loss_weight


def evaluation_of(net):
    """Return the class that reports the outputs of a net in a test: that of the layer type of all outputs, else `OutputMeans`.

    Detections are not averaged: DetectionEvaluate of the add-on ssd has a class of its own (`Layer.test_outputs`).
    """
    ends = {node.layer.test_outputs for node in net.nodes if set(node.tops) & set(net.output_blobs)}
    return ends.pop() or OutputMeans if len(ends) == 1 else OutputMeans


def output_records(net, values=None):
    """Return one dict for each scalar of each output, in Caffe's order: name, index, value, loss_weight.

    `values` are the outputs, as a list of arrays; by default those of the last forward pass.
    """
    records = []
    for blob, array in zip(net.output_blobs, [blob.cpu_data for blob in net.output_blobs] if values is None else values):
        for value in array.ravel().tolist():
            records.append({"name": blob.name, "index": len(records), "value": value, "loss_weight": net.loss_weights[blob]})
    return records


def log_outputs(phase, records):
    """Log ``    Train net output #0: loss = 2.3 (* 1 = 2.3 loss)`` for each record; `phase` is Train or Test."""
    for record in records:
        log.info("    %s net output #%d: %s", phase, record["index"], output_text(record))


def output_text(record):
    """Return ``loss = 0.3 (* 1 = 0.3 loss)``, as Caffe logs it, for an output record."""
    value, weight = record["value"], record["loss_weight"]
    return f"{record['name']} = {value:g}" + (f" (* {weight:g} = {weight * value:g} loss)" if weight else "")


def batch_size(net):
    """Return the first axis of the first top of the first layer that reads data, for pictures per second; None without one."""
    for node in net.nodes:
        if not node.bottoms and node.tops and node.type != "Parameter":
            return node.tops[0].shape[0] if node.tops[0].num_axes else None
    return None


def images_per_iteration(solver):
    """Return the number of pictures of one iteration on all ranks together; None if no layer reads data."""
    images = batch_size(solver.net)
    return images * solver.param.iter_size * solver.group.size if images is not None else None


def evaluation(net, param):
    """Return the object that collects the outputs of a test net with ``eval_type: "detection"``, of their layer type."""
    made = evaluation_of(net)
    if made is OutputMeans:
        types = ", ".join(sorted({node.type for node in net.nodes if set(node.tops) & set(net.output_blobs)}))
        raise ConfigError("is for test nets whose outputs are evaluated detections, such as those of DetectionEvaluate; the "
                          f"outputs of this one are of {types}; leave it out", field="eval_type")
    return made(net, param)
