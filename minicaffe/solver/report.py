"""What a solver tells about the outputs of a net: as records for listeners and in Caffe's words for its log."""

import logging

from minicaffe.errors import ShapeError

log = logging.getLogger("minicaffe.solver")


class OutputMeans:
    """Collect the values of all outputs of a net over some forward passes.

    The first pass fixes how many there are (as in Caffe, which would count wrong after a change).
    """

    def __init__(self, net):
        self.net = net
        self.passes = 0
        self.sums = []

    def add(self):
        """Add the outputs as they are now. Raises ShapeError if an output has another size than in the first pass."""
        values = [blob.cpu_data.ravel() for blob in self.net.output_blobs]
        if not self.passes:
            self.sums = [v.astype("float64") for v in values]
        else:
            for blob, total, value in zip(self.net.output_blobs, self.sums, values, strict=True):
                if total.size != value.size:
                    raise ShapeError(f"output '{blob.name}' has {value.size} values, in the first batch of this "
                                     f"test it had {total.size}; the mean needs equal batches", file=self.net.file)
                total += value
        self.passes += 1

    def records(self):
        """Return one dict for each scalar of each output, in Caffe's order: name, index, value (the mean), loss_weight."""
        records = []
        for blob, total in zip(self.net.output_blobs, self.sums, strict=bool(self.passes)):
            weight = self.net.loss_weights[blob]
            for value in (total / self.passes).tolist():
                records.append({"name": blob.name, "index": len(records), "value": value, "loss_weight": weight})
        return records


def output_records(net):
    """Return the outputs of the last forward pass as records, see `OutputMeans.records`."""
    means = OutputMeans(net)
    means.add()
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
