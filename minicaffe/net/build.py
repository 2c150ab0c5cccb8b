"""Make nodes from layer definitions: create, connect, set up, choose the layers that run backward (Caffe net.cpp, Init)."""

import logging
from collections import Counter, defaultdict

from minicaffe.blob import NUMPY_TYPES, Blob
from minicaffe.errors import ConfigError, ShapeError, located
from minicaffe.layer import layer_class
from minicaffe.net.node import Node
from minicaffe.ops.activation.operation import Activation
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import copy_of

log = logging.getLogger("minicaffe.net.build")


class Builder:
    """Make the nodes of a net in order; file, phase, element type and the workspaces of parameters and blobs are the net's.

    `available` has by name the blobs that no layer has consumed so far; `overwritten`, after `finish`, the memories of blobs that
    layers change in place.
    """

    def __init__(self, net):
        self.net = net
        self.nodes, self.param_table, self.available = [], ParamTable(), {}
        self._produced, self._needing = set(), set()  # the names of all blobs so far, and the blobs that need a gradient
        self._repeats, self._elements = Counter(), 0  # how many layers had each name so far, and the size of all tops

    def add(self, definition):
        """Make the node of a LayerDef; errors name its place."""
        param = copy_of(definition.param)
        with located(file=self.net.file, line=definition.line, layer=param.name, layer_type=param.type):
            layer = self._create(param)
            for name in param.bottom:
                log.info("%s <- %s", param.name, name)
            # `insert_splits` has found the producer of each bottom.
            node = Node(layer, [self.available.pop(name) for name in param.bottom], [], self.net.file, definition.line)
            self._add_tops(node, param)
            log.info("Setting up %s", param.name)
            layer.set_up(node.bottoms, node.tops)
            for blob, weight in zip(node.tops, node.loss_weights):
                log.info("Top shape: %s", blob.shape_string())
                if weight:
                    log.info("    with loss weight %g", weight)
            self._elements += sum(blob.count for blob in node.tops)
            log.info("Memory required for data: %d", self._elements * NUMPY_TYPES[self.net.dtype].itemsize)
            self._add_params(node)
        self.nodes.append(node)

    def _create(self, param):
        """Make the layer of a definition; layers of one name share parameters with other nets by a key that differs."""
        if not param.HasField("phase"):
            param.phase = self.net.phase
        if len(param.propagate_down) not in (0, len(param.bottom)):
            raise ConfigError(f"give none or one for each of the {len(param.bottom)} bottoms, got {len(param.propagate_down)}",
                              field="propagate_down")
        log.info("Creating Layer %s", param.name)
        repeats = self._repeats[param.name]
        self._repeats[param.name] += 1
        return layer_class(param.type)(param, self.net.dtype, self.net.parameters,
                                       f"{param.name}#{repeats}" if repeats else param.name)

    def _add_tops(self, node, param):
        """Give a node a new blob for each top, or the bottom itself where it works in place."""
        for i, name in enumerate(param.top):
            in_place = i < len(param.bottom) and name == param.bottom[i]
            if not in_place and name in self._produced:
                raise ConfigError(f"blob '{name}' is produced by more than one layer; in-place needs the same name at the "
                                  "same index of bottom and top", field=f"top[{i}]")
            log.info("%s -> %s%s", param.name, name, " (in-place)" if in_place else "")
            blob = node.bottoms[i] if in_place else Blob(None, self.net.dtype, name)
            if not in_place:
                self._produced.add(name)
                self.net.workspace.set(name, blob)
            self.available[name] = blob
            node.tops.append(blob)
        if node.layer.auto_top_blobs:
            for _ in range(max(node.layer.min_top_blobs, node.layer.exact_num_top_blobs) - len(param.top)):
                log.info("%s -> (automatic)", param.name)
                node.tops.append(Blob(None, self.net.dtype, "(automatic)"))

    def _add_params(self, node):
        """Add the layer's parameters to the table, and record which blobs need a gradient, so whether the layer runs backward."""
        specs = node.param.param
        if len(specs) > len(node.blobs):
            raise ConfigError(f"too many param entries: {len(specs)} for {len(node.blobs)} parameter blobs", field="param")
        below = [blob in self._needing for blob in node.bottoms]
        node.bottom_needs = list(node.param.propagate_down) or below
        node.layer.param_propagate_down = [i >= len(specs) or specs[i].lr_mult != 0 for i in range(len(node.blobs))]
        node.needs_backward = any(below) or any(node.layer.param_propagate_down)
        if node.needs_backward:
            self._needing.update(node.tops)
        for i, blob in enumerate(node.blobs):
            self.param_table.append(node.name, i, blob, specs[i] if i < len(specs) else None)

    def finish(self, force_backward):
        """Decide which layers run backward; set for Splits which tops get no gradient, and for sources which tops change in place.

        It runs after the last `add`. SourceLayer and Parameter have `overwritten`, numbers of their tops: these must be written in
        each forward, as layers in place change them.
        """
        cut_backward(self.nodes)
        for node in self.nodes:
            if force_backward:
                node.needs_backward = True
                node.layer.param_propagate_down = [True] * len(node.blobs)
                node.bottom_needs = [needs or node.layer.allow_force_backward(i) for i, needs in enumerate(node.bottom_needs)]
            log.info("%s %s backward computation.", node.name, "needs" if node.needs_backward else "does not need")
        # Split gives each top one reader (insert_splits). A reader without a gradient, such as a Flatten, may share the diff of its
        # own top, which is another gradient. A top without a reader is there for its loss weight, and its diff counts.
        readers = {blob: needs and node.needs_backward
                   for node in self.nodes for blob, needs in zip(node.bottoms, node.bottom_needs)}
        self.overwritten = find_overwritten(self.nodes, force_backward or self.net.phase == caffe_pb2.TRAIN)
        for node in self.nodes:
            if node.type == "Split":
                node.layer.leave_out([blob for blob in node.tops if not readers.get(blob, True)])
            elif hasattr(node.layer, "overwritten"):
                node.layer.overwritten = [i for i, blob in enumerate(node.tops) if blob.data_memory in self.overwritten]


def find_overwritten(nodes, training):
    """Return the memories that nodes overwrite in place; warn of layers and gradients that get other values.

    Of gradients only if `training`. Blobs share memory if one is a view of the other, such as the top of a Flatten. `reads` has
    after node, text and memory the range of the memory's writers, by number, that change what the node reads.
    """
    writers, made, reads = defaultdict(list), {}, []    # `made`: by blob, how many had overwritten its memory when it was made
    for node in nodes:
        backward = training and node.needs_backward
        effect = "gradients do not fit these values" if backward else "gets these values"
        reads += [(node, f"it reads '{blob.name}', whose memory", blob.data_memory, made[blob], len(writers[blob.data_memory]),
                   "has overwritten", effect) for blob in node.bottoms]
        for blob in node.tops:
            if blob in node.bottoms and (node.type != "Dropout" or node.layer.phase == caffe_pb2.TRAIN):
                writers[blob.data_memory].append((node, blob))
            made[blob] = len(writers[blob.data_memory])
        reads += [(node, f"its gradient is made from its {kind} '{blob.name}', which", blob.data_memory,
                   len(writers[blob.data_memory]), None, "overwrites", "may be wrong")
                  for kind, blob in (_read_by_backward(node) if backward else ())]
    for node, read, memory, first, end, done, effect in reads:
        # A ReLU's gradient needs to know where its top is 0.
        harmless = ("ReLU", "Dropout") if node.type == "ReLU" and end is None else ()
        for writer, top in [late for late in writers[memory][first:end] if late[0].type not in harmless][:1]:
            log.warning("layer '%s' (%s): %s layer '%s' (%s) %s as '%s', and %s, as in Caffe; give the top of '%s' a name of its "
                        "own", node.name, node.type, read, writer.name, writer.type, done, top.name, effect, writer.name)
    return {memory for memory, nodes in writers.items() if nodes}


def _read_by_backward(node):
    """Return ("bottom" or "top", blob) for the data that backward reads; a loss may show its scratch memory as a top.

    `Layer.backward_reads_tops` is true by default, also of types that read none.
    """
    scratch, own = ({blob.data_memory for blob in blobs} for blobs in (node.layer.scratch_blobs(), node.tops))
    tops = node.type == "Softmax" or any(isinstance(operation, Activation) for operation in node.layer.operations()) and (
        node.layer.backward_reads_tops or node.bottoms == node.tops)
    return [*(("bottom", blob) for blob in node.bottoms if node.layer.backward_reads_bottoms and blob.data_memory not in own),
            *(("top", blob) for blob in node.tops if tops or blob.data_memory in scratch)]


def cut_backward(nodes):
    """Switch backward off for layers that no loss depends on, or that get no gradient from the layers above."""
    under_loss, skip = set(), set()     # blobs that a loss depends on; blobs that a reader gives no gradient
    for node in reversed(nodes):
        contributes = any(node.loss_weights) or any(blob in under_loss for blob in node.tops)
        if not contributes or node.needs_backward and all(blob in skip for blob in node.tops):
            node.needs_backward, node.bottom_needs = False, [False] * len(node.bottoms)
        if contributes:
            under_loss.update(node.bottoms)
        skip.update(blob for blob, needs in zip(node.bottoms, node.bottom_needs) if not needs)


class ParamTable:
    """The parameters of a net in layer order, which may share memory by name (Caffe Net::AppendParam).

    `params` are the blobs, `places` their names in messages (``layer 'conv1' blobs[0]``). `owners` has for each the index of the
    one whose memory it uses, for an owner its own. `learnable` are the indices of the owners; `lr_mult` may still be 0.
    """

    def __init__(self):
        self.params = []
        self.owners = []
        self.learnable = []
        self.places = []
        self._named = {}   # param name -> index of its owner
        self._mults = {}   # index of an owner -> {"lr_mult": given or None, "decay_mult": ...}

    def append(self, layer_name, index, blob, spec):
        """Add parameter `index` of a layer; `spec` is its ParamSpec or None.

        Raises ShapeError or ConfigError if it shares memory with a parameter of another shape, or both name different multipliers.
        """
        spec = spec if spec is not None else caffe_pb2.ParamSpec()
        position = len(self.params)
        place = f"layer '{layer_name}' blobs[{index}]"
        self.params.append(blob)
        self.places.append(place)
        given = {f: getattr(spec, f) if spec.HasField(f) else None for f in ("lr_mult", "decay_mult")}
        if not spec.name or spec.name not in self._named:
            if spec.name:
                self._named[spec.name] = position
            self.owners.append(position)
            self.learnable.append(position)
            self._mults[position] = given
            return
        owner = self._named[spec.name]
        self.owners.append(owner)
        owner_blob = self.params[owner]
        field = f"param[{index}]"
        if spec.share_mode == caffe_pb2.ParamSpec.PERMISSIVE:
            if blob.count != owner_blob.count:
                raise ShapeError(f"shares '{spec.name}' with {self.places[owner]} but has {blob.count} values against "
                                 f"{owner_blob.count}", field=field)
        elif blob.shape != owner_blob.shape:
            other = ", or set share_mode: PERMISSIVE" if blob.count == owner_blob.count else ""
            raise ShapeError(f"shares '{spec.name}' with {self.places[owner]} but has shape {list(blob.shape)} against "
                             f"{list(owner_blob.shape)}; make them equal{other}", field=field)
        mults = self._mults[owner]
        for name, value in given.items():
            if value is not None and mults[name] is not None and value != mults[name]:
                raise ConfigError(f"shares '{spec.name}' with {self.places[owner]}, which has {mults[name]:g}, got {value:g}",
                                  field=f"{field}.{name}")
            mults[name] = value if mults[name] is None else mults[name]

    def multipliers(self, name):
        """Return ``lr_mult`` or ``decay_mult`` of each learnable parameter; 1 by default."""
        return [1.0 if m[name] is None else m[name] for m in self._mults.values()]

    def share(self):
        """Point the data and diff of every sharer at its owner's memory; `Runner` calls it after the last `append`."""
        for blob, owner in zip(self.params, self.owners):
            if blob is not self.params[owner]:
                blob.share_data(self.params[owner])
                blob.share_diff(self.params[owner])
