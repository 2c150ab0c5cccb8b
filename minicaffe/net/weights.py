"""Load, save and share weights of a net: .caffemodel and HDF5 files, other nets (Caffe net.cpp, hdf5.cpp)."""

import difflib
import itertools
import logging
import warnings

import numpy as np

from minicaffe.errors import ConfigError, ConfigWarning, DataError, FileError, ShapeError, located
from minicaffe.proto import binary_writer, caffe_pb2, upgrade
from minicaffe.proto.files import is_hdf5
from minicaffe.proto.stored import LayerBlobs, StoredBlob, equal_but_unit_axes

log = logging.getLogger("minicaffe.net")
details = logging.getLogger("minicaffe.net.build")     # the command line shows them with --verbose
SHOWN = 5  # names in a list


class LoadReport:
    """The layers of a net that got weights from a file, and those that did not; `stored`: the file's layers with parameters.

    Attributes
    ----------
    file : str
    net : list of str
        The layers of the net that have parameters.
    taken, unused : list of str
        The layers of the file that have parameters: those whose names are in the net, and the others.
    owners : dict
        Name of a layer of `net` -> numbers of the parameters whose memory it uses. Layers share a parameter by a name in ``param``.
    """

    def __init__(self, file, net, stored):
        self.file = str(file)
        self.net = list(dict.fromkeys(node.name for node in net.nodes if node.blobs))
        there = set(self.net)
        self.taken = [name for name in stored if name in there]
        self.unused = [name for name in stored if name not in there]
        places = iter(net.param_table.owners)
        self.owners = {}
        for node in net.nodes:
            self.owners.setdefault(node.name, set()).update(itertools.islice(places, len(node.blobs)))

    def log_summary(self, given=()):
        """Log in one line which layers got weights; a ConfigWarning if none did, although the net has parameters.

        `given` are layers that an earlier file has given weights: they are not counted as new. A file of which no layer fits is a
        mistake even then, and has its warning.
        """
        if self.net and not self.taken:
            reason = f"the file has {listed(self.unused)}" if self.unused else "the file holds no parameters"
            warnings.warn(ConfigWarning(f"no layer of the net got weights: {reason}, the net has {self._new(self.net)}; a layer "
                                        "takes the weights of the layer with its name", file=self.file), stacklevel=2)
            return
        new = self.missing(given)
        log.log(logging.WARNING if new or self.unused else logging.INFO, "%s: took %d of %d layers%s%s", self.file, len(self.taken),
                len(self.net), f"; new here: {self._new(new)}" if new else "",
                f"; not used: {listed(self.unused)}" if self.unused else "")

    def missing(self, given=()):
        """Return the layers of the net that got no weights, neither from this file nor as one of `given`."""
        got = {owner for name in (*self.taken, *given) for owner in self.owners.get(name, ())}
        return [name for name in self.net if not self.owners[name] <= got]

    def _new(self, names):
        """Return a text with layers of the net, each with the most similar name in the file."""
        near = {name: difflib.get_close_matches(name, self.unused, n=1) for name in names[:SHOWN]}
        return listed(names, lambda name: f"{name} (near {near[name][0]})" if near[name] else name)


def listed(names, text=str, shown=SHOWN):
    """Return a text with the first names of a list, and how many more there are."""
    return ", ".join(map(text, names[:shown])) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def load(net, path, hdf5=None):
    """Copy weights to the layers of `net` with the same names, and return a LoadReport.

    The file is a caffemodel of any age or, if `hdf5` says or its first bytes do, an HDF5 file. All of it is read and checked before
    the first value is written, so that a net keeps its weights when the file does not fit.
    """
    hdf5 = is_hdf5(path) if hdf5 is None else hdf5
    with located(file=str(path)):
        layers = _read_hdf5(net, path) if hdf5 else upgrade.read_weights(path)
        stored = [part for layer in layers for part in _with_scale(net, layer)]
        _copy_layers(net, stored, hdf5)
    return LoadReport(path, net, [layer.name for layer in stored if layer.blobs])


def _read_hdf5(net, path):
    """Return the layers of an HDF5 file; a blob is None if its dataset is missing, or if the net lacks the layer."""
    import h5py

    from minicaffe.proto.hdf5 import find, reading
    with reading(path) as file:
        data = find(file, "data", net.trusted)
        if not isinstance(data, h5py.Group):
            raise DataError("has no group 'data'; it is no weights file of Caffe")
        nodes, stored = by_name(net.nodes), []
        for name in data:
            group, target = find(data, name, net.trusted), nodes.get(name, [None])[-1]
            count = len(group) if isinstance(group, h5py.Group) else 0
            stored.append(LayerBlobs(name, "", [None] * count))
            if target is None:
                continue
            with located(layer=name, layer_type=target.type):
                if not isinstance(group, h5py.Group):
                    raise DataError("is no group of datasets")
                wanted = [blob for part in _with_scale(net, stored[-1]) for blob in nodes.get(part.name, [target])[-1].blobs]
                if count > len(wanted):
                    raise ShapeError(_other_count(target, count), field="blobs")
                stored[-1].blobs = [_read_dataset(group, i, net.trusted, blob) for i, blob in enumerate(wanted)]
        return stored


def _read_dataset(group, i, follow, blob):
    """Return parameter `i` of a layer, for `blob`, as a StoredBlob, None if it is missing; `follow`: it may be in another file.

    Its size is compared before it is read: a small file may say that it has gigabytes.
    """
    from minicaffe.proto.hdf5 import find, is_numbers, read_array
    dataset = find(group, str(i), follow)
    if dataset is None:
        return None
    if not is_numbers(dataset):
        raise DataError("must be a dataset of numbers", field=f"blobs[{i}]")
    if dataset.size != blob.count:
        raise ShapeError(f"is {_times(dataset.shape)}, the net needs {_times(blob.shape)}; rename the layer to train it from "
                         "scratch", field=f"blobs[{i}]")
    return StoredBlob(dataset.shape, read_array(dataset).reshape(-1))


def _copy_layers(net, stored, last):
    """Copy stored layers (name, type, blobs) into the layers of the same names; others are ignored. `last` as of `_matching_nodes`.

    Raises ShapeError, before the first value is written, if the number of blobs or a shape differs, or one is missing whose memory
    is not another's.
    """
    plan, table = [], net.param_table
    sharers = {id(table.params[i]) for i, owner in enumerate(table.owners) if owner != i}
    for layer, target in _matching_nodes(net, stored, last):
        with located(layer=target.name, layer_type=target.type):
            if len(layer.blobs) != len(target.blobs):
                raise ShapeError(_other_count(target, len(layer.blobs)), field="blobs")
            for i, (source, blob) in enumerate(zip(layer.blobs, target.blobs)):
                if source is not None:
                    _check_shape(target, i, source.shape, source.legacy)
                    plan.append((source, blob))
                elif id(blob) not in sharers:
                    raise ShapeError("is missing in the file and not shared from another layer", field=f"blobs[{i}]")
    for source, blob in plan:
        blob.data.reshape(-1)[:] = source.data
        if source.diff is not None:
            blob.diff.reshape(-1)[:] = source.diff


def save(net, file, write_diff=False, half=False):
    """Write the net and its parameters to an open binary file as a NetParameter, one entry for each layer.

    With `half` the data, not the diffs, are rounded to float16 and stored as raw_data. Raises, before anything is written, as
    `check_names`, and DataError if float16 has no room for a number.
    """
    check_names(net)
    param = caffe_pb2.NetParameter(name=net.name)
    stored = []
    for node in net.nodes:
        entry = param.layer.add()
        entry.CopyFrom(node.param)
        entry.ClearField("blobs")
        stored.append(LayerBlobs(entry.name, entry.type, []))
        for i, blob in enumerate(node.blobs):
            with located(layer=node.name, layer_type=node.type, field=f"blobs[{i}]"):
                data = binary_writer.to_half(blob.cpu_data) if half else blob.cpu_data
            stored[-1].blobs.append(StoredBlob(blob.shape, data, blob.cpu_diff if write_diff else None))
    binary_writer.write_net(file, param, stored)


def save_hdf5(net, file, write_diff=False):
    """Write the parameters to an open binary file as HDF5: ``/data/<layer>/<index>``, and ``/diff/...`` with `write_diff`.

    Raises as `check_names`.
    """
    from minicaffe.proto.hdf5 import hdf5_in_memory
    check_names(net, True)
    table = net.param_table
    owned = {id(table.params[i]) for i in table.learnable}
    with hdf5_in_memory(file) as hdf5:
        for kind in ("data", "diff") if write_diff else ("data",):
            groups = hdf5.create_group(kind)
            for name, (node, *_) in by_name(net.nodes).items():
                group = groups.create_group(name)
                for i, blob in enumerate(node.blobs):
                    if kind == "diff" or id(blob) in owned:
                        group.create_dataset(str(i), data=getattr(blob, f"cpu_{kind}"))


def _scale_behind(net, name):
    """Return the Scale node after BatchNorm `name`, both of which NVCaffe's BatchNorm with scale and bias becomes; None without."""
    pairs = ((node, scale) for node, scale in itertools.pairwise(net.nodes) if node.name == name)
    return next((scale for node, scale in pairs if (node.type, scale.type) == ("BatchNorm", "Scale")
                 and scale.name.rstrip("_") == f"{name}_1" and scale.tops == scale.bottoms == node.tops), None)


def _with_scale(net, layer):
    """Return a list of a stored layer, or of two for NVCaffe's BatchNorm with scale and bias, as the net has them."""
    scale = _scale_behind(net, layer.name) if len(layer.blobs) == 5 else None
    if scale is None:
        return [layer]
    return [LayerBlobs(layer.name, layer.type, layer.blobs[:3]), LayerBlobs(scale.name, "Scale", layer.blobs[3:])]


def _other_count(target, count):
    """Return the message for a stored layer of `count` blobs where the net's layer `target` has another number."""
    message = f"the file has {count} parameter blobs, the net needs {len(target.blobs)}; "
    if target.type == "BatchNorm" and count == 5:
        return message + ("NVCaffe's BatchNorm keeps scale and bias as its blobs 3 and 4: give the net "
                          "batch_norm_param { scale_bias: true }")
    if target.type == "Scale" and len(target.blobs) - count == 1 or count == 1 and len(target.blobs) == 2:
        return message + "bias_term: false leaves the bias out as the file does, or rename the layer to train it from scratch"
    if count == 2 and len(target.blobs) == 1:
        return message + "the file has a bias: leave bias_term: false out, or rename the layer to train it from scratch"
    return message + "rename the layer to train it from scratch"


def share(net, other):
    """Share the data memory of the parameters of `other` with layers of `net` of the same name; diffs are not shared.

    Raises ShapeError, and shares nothing, if the parameters of a layer differ in shape.
    """
    pairs = list(_matching_nodes(net, other.nodes))
    for node, target in pairs:
        shapes, theirs = [b.shape for b in target.blobs], [b.shape for b in node.blobs]
        if shapes != theirs:
            raise ShapeError(f"cannot share parameters of shapes {theirs} with {shapes}", field="blobs", layer=target.name,
                             layer_type=target.type)
    for node, target in pairs:
        for blob, source in zip(target.blobs, node.blobs):
            blob.share_data(source)


def check_names(net, hdf5=False):
    """Raise ConfigError if files cannot hold the net's parameters by the names of its layers; FileError if only HDF5 cannot."""
    parameters = {}
    for node in net.nodes:
        memories = [blob.data_memory for blob in node.blobs]
        if memories and parameters.setdefault(node.name, memories) != memories:
            raise node.with_place(ConfigError("an earlier layer of this name has parameters, too; BVLC Caffe and others find them "
                                              "in files by the name and lose one; give each a name of its own", field="name"))
        if hdf5 and (node.name in ("", ".") or "/" in node.name or "\0" in node.name):
            raise FileError("cannot be saved as HDF5: layer names must be neither empty nor '.', and without '/' and NUL; save a "
                            ".caffemodel instead (snapshot_format: BINARYPROTO)", layer=node.name)


def by_name(layers):
    """Return a dict with the layers of each name that have parameters, or the first of them if none has."""
    found = {}
    for layer in layers:
        found.setdefault(layer.name, []).append(layer)
    return {name: [layer for layer in group if layer.blobs] or group[:1] for name, group in found.items()}


def _matching_nodes(net, layers, last=False):
    """Yield (layer, node) of each name; several with parameters in order if the net has as many, else all with its first node.

    With `last`, as in Caffe for HDF5 files, the last node of a name gets the parameters.
    """
    nodes = by_name(net.nodes)
    for name, group in by_name(layers).items():
        targets = nodes.get(name, [])[-1 if last else 0:]
        if not targets:
            details.info("Ignoring source layer %s", name)
        elif len(targets) != len(group):
            if not (_alike(targets) and _alike(group)):
                log.warning("layer '%s': the source has %d of this name with parameters, the net has %d; as in Caffe the net's "
                            "first one takes those of the source's last", name, len(group), len(targets))
            targets = targets[:1] * len(group)
        yield from zip(group, targets)


def _alike(layers):
    """Return whether layers have the same parameters: nodes the same memories, stored layers equal values."""
    return len({tuple(blob.data.tobytes() if isinstance(blob, StoredBlob) else getattr(blob, "data_memory", None)
                       for blob in layer.blobs)
                for layer in layers}) == 1


def _check_shape(target, i, shape, legacy=False):
    """Raise ShapeError unless a stored shape is that of parameter `i` of the node `target`; `legacy`: of an old file's 4 axes."""
    blob = target.blobs[i]
    if not (target.layer.ignores_unit_axes and equal_but_unit_axes(shape, blob.shape) or blob.shape_equals(shape, legacy)):
        raise ShapeError(f"is {_times(shape)}, the net needs {_times(blob.shape)}; rename the layer to train it from scratch",
                         field=f"blobs[{i}]")


def _times(shape):
    return "x".join(map(str, np.atleast_1d(shape))) if len(shape) else "a scalar"
