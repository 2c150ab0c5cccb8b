"""Layers that bring data into a net. Processes divide numbered records among them: in training by record, in tests by batch.

A record's number counts from the start of training and continues when the file or the database starts over. What is random about
a record, its place in a shuffled epoch, crop, mirror, depends on the seed and that number alone. So it does not matter which
process reads it. Different from Caffe: all sources with records are divided, not only Data, and `position` is the same in all
processes.
"""

import logging

from minicaffe.common import TRAIN, caffe
from minicaffe.errors import ConfigError
from minicaffe.layer import Layer
from minicaffe.layers.base.checks import state_numbers

log = logging.getLogger(__name__)


class SourceLayer(Layer):
    """Base of the sources: no bottoms, no gradient, computed on the host; a type says what its tops hold."""

    host_only = True
    exact_num_bottom_blobs = 0
    overwritten = ()    # indices of tops that layers in place change, so that forward has to write them; set by net/build.py

    def reshape(self, bottom, top):
        """Do nothing: the tops have their shapes from layer_setup on, or each batch brings its own."""

    def log_ignored(self, why, used=()):
        """Log a warning, with words `why`, of the fields of `transform_param` that the type ignores: all but `used`."""
        names = [field.name for field, _ in self.param.transform_param.ListFields() if field.name not in used]
        if names:
            log.warning("layer '%s' (%s): transform_param: %s ignored: %s", self.name, self.type, ", ".join(names), why)

    def backward_cpu(self, top, propagate_down, bottom):
        """Do nothing: data have no gradient."""


class NumberedSource(SourceLayer):
    """A layer that gives batches of numbered records.

    In phase TRAIN process r of n (`caffe.solver_rank`, `caffe.solver_count`) gets the records whose number modulo n is r: n
    processes with batches of b records read together what one with batches of n b reads. In other phases each gets all, but for
    tests that are divided (`RankSharding`).

    A type sets `batch_size` and `position` when it is set up. Its forward gives the records that `records` names, and adds the step
    that comes with them to `position`; it must pass over the others without decoding them.

    Attributes
    ----------
    batch_size : int
    position : int
        Number of the first record that no process was given.
    numbered : bool
        False for a source such as a camera, whose records no process can pass over.
    """

    numbered = True
    batch_size = 1
    position = 0
    sharding = None     # (count, rank) in a divided test: this process reads batch `rank` of each `count` (RankSharding)
    end = None          # number behind the last record of a test that gives each record once (the last batch may be smaller)

    def records(self):
        """Return the numbers of the records of the next batch, as a range, and the step to those of the batch after it.

        Raises
        ------
        ConfigError
            If the program gave this process a rank that is not below the count.
        """
        size, position = self.batch_size, self.position
        if self.sharding is None and self.phase == TRAIN:
            count, rank = caffe.solver_count, caffe.solver_rank
            if rank >= count:
                raise ConfigError(f"must be from 0 to {count - 1}, got {rank}", field="solver_rank")
            first = position + (rank - position) % count    # of a resumed run the position is any number
            return range(first, first + size * count, count), size * count
        count, rank = self.sharding or (1, 0)
        first = position + rank * size
        return range(first, first + size if self.end is None else min(first + size, self.end)), size * count

    def get_state(self):    # for a snapshot, and for `sync_sources`
        return {"position": self.position}

    def set_state(self, state):
        self.position, = state_numbers(state, {"position": 1 << 63})     # raises DataError for another layer's state

    def count_records(self):
        """Return how many records there are; ranks compare it (solver/ranks.py). None: not known without reading all."""
        return None


class RankSharding:
    """Divides the next batches of a net over processes, one batch to each in order.

    Sources with numbered records skip the other processes' batches without reading them; all other sources run for every batch. ::

        sharding = RankSharding(net, count, rank)
        for batch in range(batches):
            if (sharding.first + batch) % count == rank:
                sharding.advance_to(batch)
                net.forward_from_to(0, len(net.layers) - 1)
        sharding.end(batches)

    Which process is `first` depends on the position of the first source: prefetch threads continue from one test to the next.

    Parameters
    ----------
    net : Net
        Whose sources have the same state in all processes (`sync_sources`), and which may be divided (`why_not_divisible`).
    count, rank : int
    records : int, optional
        How many there are in all batches, if the last one is to be smaller than the others.
    """

    def __init__(self, net, count, rank, records=None):
        self.net = net
        self.batch = 0      # number, in this test, of the next batch of the sources in `others`
        sources = {i: node.layer for i, node in enumerate(net.nodes) if not node.bottoms}
        self.numbered = [layer for layer in sources.values() if isinstance(layer, NumberedSource)]
        self.others = [i for i, layer in sources.items() if layer not in self.numbered]
        self.first = next((layer.position // layer.batch_size for layer in self.numbered), 0) % count
        self.began = [layer.position for layer in self.numbered]    # to compute their positions in `end`
        for layer in self.numbered:
            layer.end = layer.position + records if records is not None else None
            layer.sharding = count, (rank - self.first) % count

    def advance_to(self, batch):
        """Prepare the sources for batch number `batch` of the test, a later one than before: run the others for those between."""
        for _ in range(self.batch, batch):
            for i in self.others:
                self.net.forward_from_to(i, i)
        self.batch = batch + 1

    def end(self, batches):
        """End the division: set all sources to the position after `batches` batches in one process, which all ranks then share."""
        for layer, began in zip(self.numbered, self.began):     # first, as the others may fail
            position = began + batches * layer.batch_size
            layer.position = position if layer.end is None else min(position, layer.end)
            layer.sharding = layer.end = None
        if self.others:
            self.advance_to(batches)


def sync_sources(net, group):
    """Set the numbered sources of a net to position and seed of rank 0, before a divided test; all ranks must call it."""
    layers = [layer for layer in net.layers if isinstance(layer, NumberedSource)]
    states = [layer.get_state() for layer in layers]
    for layer, mine, first in zip(layers, states, group.broadcast_from_root(states), strict=True):
        if mine != first:
            layer.set_state(first)


def why_not_divisible(net):
    """Return why the batches of a net cannot be divided over processes, as words for the log; None if they can.

    A layer that keeps something from one batch to the next, such as an LSTM, must see them all, and so must one that writes files.
    """
    for node in net.nodes:
        if node.bottoms and node.layer.get_state() is not None:
            return f"layer '{node.name}' ({node.type}) keeps something from one batch to the next"
        if node.type == "HDF5Output" or node.param.detection_output_param.HasField("save_output_param"):
            return f"layer '{node.name}' ({node.type}) writes files"
    return None


def log_undivided_sources(net):
    """Log which sources of a net do not divide records over the processes that train together."""
    for node in net.nodes:
        layer = node.layer
        numbered = isinstance(layer, NumberedSource) and layer.numbered
        constant = node.type == "DummyData" and not layer.varying
        if node.tops and not (node.bottoms or node.blobs or numbered or constant):
            log.info("layer '%s' (%s) gives each rank what it is given", node.name, node.type)
