"""A net without its data: sources whose databases or files may be missing become DummyData of the same shapes.

`minicaffe summary` builds and runs nets in this way. The shape of a batch comes from the layer itself if its data exist; otherwise
it is assumed, and `ReplacedSource.assumed` names the origin. Layers that write files write none.
"""

import math
import os
from collections import namedtuple

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, ShapeError, int_of, located, shown
from minicaffe.layer import layer_class
from minicaffe.net.definitions import filter_layers, with_batch_size
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.proto.fields import copy_of

READERS = ("Data", "AnnotatedData", "ImageData", "WindowData", "VideoData", "HDF5Data", "MemoryData")


class ReplacedSource(namedtuple("ReplacedSource", "type shapes batches assumed top", defaults=(0, "", ""))):
    """A layer that was replaced: its type, the shapes of its tops, how many batches it prefetches (`batches`), its first `top`.

    `assumed` is a text for the user about the origin of a shape that the data did not give; "" if they gave it.
    """

    @property
    def prefetched_bytes(self):
        """Bytes of prefetched batches, which are not in the memory of blobs."""
        return self.batches * sum(4 * math.prod(shape) for shape in self.shapes)


def replace_sources(param, file=None, shapes=None, batch=None, positions=None):
    """Return a copy of a NetParameter whose sources need no data, for the phase of its state, and its ReplacedSources by name.

    Layer by layer its positions are the net's, and a deploy.prototxt beside its `file` gives the shapes of inputs that are unknown
    otherwise. `shapes` are known shapes of tops, tuples without the batch; errors suggest to give more, by --shape, unless it is
    None. `batch` is the number of pictures in a batch, in place of what the file says. Raises ConfigError if a source is wrong, if
    neither data nor file say how large its pictures are, or if no source has a batch.
    """
    if batch is not None and not 1 <= int_of(batch, "batch", field="batch") < 1 << 31:
        raise ConfigError(f"must be from 1 to 2^31 - 1, got {shown(batch)}", field="batch", file=file)
    result = copy_of(param)
    state = param.state
    lines = {layer.path: layer.line for layer in filter_layers(result.layer, state, file, positions)}   # included layers
    deploy = os.path.join(os.path.dirname(file), "deploy.prototxt") if file else ""     # as in Caffe's models
    sources, batched, inputs = {}, False, _deploy_inputs(deploy)
    for i, layer in enumerate(result.layer):
        if f"layer[{i}]" not in lines:
            continue
        if disable_file_output(layer):
            sources[layer.name] = ReplacedSource("HDF5Output", [])
        if layer.type == "DetectionEvaluate":
            layer.detection_evaluate_param.ClearField("name_size_file")     # the sizes of images that are not read
        if layer.bottom:
            continue
        batched |= batch is not None and set_batch(layer, batch)
        if layer.type in READERS:
            with located(file=file, line=lines[f"layer[{i}]"], layer=layer.name, layer_type=layer.type):
                sources[layer.name] = source = _replaced_source(layer, state.phase, shapes, deploy, inputs, sources)
            made = caffe_pb2.LayerParameter(name=layer.name, type="DummyData", top=layer.top)
            made.include.extend(layer.include)
            made.exclude.extend(layer.exclude)
            for i, shape in enumerate(source.shapes):
                made.dummy_data_param.shape.add(dim=shape)
                # Of objects: number 1 of the batch, of class 1; of a batch of one picture it has none, -1.
                objects = i > 0 and source.type == "AnnotatedData"
                value = 0 if not objects else 1 if source.shapes[0][0] > 1 else -1
                made.dummy_data_param.data_filler.add(type="constant", value=value)
            layer.CopyFrom(made)
    if batch is not None and not batched:
        raise ConfigError(f"cannot be {batch}: no layer of the net gives batches", field="--batch", file=file)
    return result, sources


def disable_file_output(layer):
    """Keep a layer from writing its file, which a summary must not replace; return whether its type was changed."""
    if layer.type == "HDF5Output":
        layer.type = "Silence"
        layer.ClearField("hdf5_output_param")
        return True
    if layer.type == "DetectionOutput":
        layer.detection_output_param.ClearField("save_output_param")
        layer.detection_output_param.ClearField("visualize")
    return False


def set_batch(layer, batch):
    """Set the batch size of a layer without bottoms to `batch` (--batch-size); return whether it has a field for that."""
    for _, value in with_batch_size(layer):
        value.batch_size = batch
        return True
    shapes = layer.input_param.shape if layer.type == "Input" else layer.dummy_data_param.shape
    for shape in shapes:
        if shape.dim:
            shape.dim[0] = batch
    return bool(shapes)


def _replaced_source(layer, phase, shapes, deploy, inputs, earlier):
    """Return the ReplacedSource of a layer: by --shape (`shapes`), by the layer alone if its data exist, else by assumption.

    `inputs` are those of `deploy`, a file beside the net, `earlier` the sources before this one. Only sizes of pictures are
    assumed; an Error of missing data is raised where even these are not known.
    """
    kind = layer_class(layer.type)
    ahead = layer.data_param.prefetch + 1 if hasattr(kind, "make_batches") else 0      # types with a prefetch thread
    given = shapes or {}
    if layer.top[0] not in given:
        try:
            alone = caffe_pb2.NetParameter(layer=[layer])
            alone.state.phase = phase
            alone.layer[0].ClearField("include")
            alone.layer[0].ClearField("exclude")
            return ReplacedSource(layer.type, [blob.shape for blob in Net(alone).nodes[0].tops], ahead, top=layer.top[0])
        except (ConfigError, ShapeError):
            raise
        except Error as error:
            picture, why = _assumed_size(layer, deploy, inputs, earlier)
            if picture is None:
                error.message += ("; to go without, say how large a picture is: --shape " + layer.top[0] + "=3x224x224"
                                  if shapes is not None else "")
                raise
    else:
        picture, why = given[layer.top[0]], "as --shape says"
    batch = next((value.batch_size for _, value in with_batch_size(layer)), 1)
    # Further tops are labels: a row of 8 numbers for each object, here one a picture; or one or `reals` numbers a picture.
    reals = next((value.label_size for _, value in layer.ListFields() if getattr(value, "label_size", 0)), None)
    rest = [(1, 1, batch, 8) if layer.type == "AnnotatedData" else (batch,) if reals is None else (batch, reals)
            for _ in layer.top[1:]]
    rest = [(batch, *known) if (known := given.get(top, inputs.get(top))) is not None else shape
            for shape, top in zip(rest, layer.top[1:])]
    return ReplacedSource(layer.type, [(batch, *picture), *rest], ahead, f"{layer.top[0]} is {'x'.join(map(str, picture))}, {why}",
                  layer.top[0])


def _assumed_size(layer, deploy, inputs, earlier):
    """Return (channels, height, width) of a picture whose data are missing, and the origin of these sizes for the user.

    They are those of the layer's crop or resize, of the deploy net, or of another source whose pixels these label; else (None, "").
    """
    transform = layer.transform_param
    channels = 1 if transform.force_gray else 3
    image, resize = layer.image_data_param, transform.resize_param
    for height, width, origin in ((transform.crop_size, transform.crop_size, "crop_size"),
                                  (transform.crop_h, transform.crop_w, "crop_h and crop_w"),
                                  (resize.height, resize.width, "resize_param"),
                                  (image.new_height, image.new_width, "new_height and new_width"),
                                  (layer.window_data_param.crop_size, layer.window_data_param.crop_size, "crop_size")):
        if height and width:
            return (channels, height, width), f"from {origin}"
    top, beside = layer.top[0], f"as in {deploy}"
    if top in inputs:
        return inputs[top], beside
    for source in earlier.values():
        if source.top in inputs and len(source.shapes[0]) == 4:     # of the pictures of another source: a map of labels
            return (1, *source.shapes[0][2:]), f"a value for each pixel of {source.top}"
    return (next(iter(inputs.values())), beside) if inputs else (None, "")


def _deploy_inputs(deploy):
    """Return the shapes, without the batch, of the inputs of a deploy.prototxt by name; none if there is no such file."""
    inputs = {}
    if os.path.isfile(deploy):
        try:
            caffe.check_path(deploy, "deploy.prototxt")
            for layer in upgrade.read_net_file(deploy)[0].layer:
                if layer.type == "Input":
                    shapes = list(layer.input_param.shape)      # one for each top, or one for all
                    inputs.update((top, tuple(shape.dim[1:])) for top, shape in
                                  zip(layer.top, shapes * len(layer.top) if len(shapes) == 1 else shapes))
        except Error:
            pass    # a deploy.prototxt with errors is not used
    return inputs
