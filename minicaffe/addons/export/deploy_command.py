"""``minicaffe deploy``: the net that predicts, made from a training net; Caffe's users write it by hand."""

import click
import numpy as np

from minicaffe.cli import options
from minicaffe.cli.picture_nets import PictureSource
from minicaffe.common import caffe
from minicaffe.errors import ConfigError
from minicaffe.net.deploy import deploy_net, source_layer
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.fields import copy_of
from minicaffe.proto.text import write_text


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.argument("weights", required=False)
@click.option("-o", "--out", "out", required=True, metavar="NAME",
              help="NAME.prototxt is written, with WEIGHTS NAME.caffemodel, too.")
@click.option("--batch", type=options.batch_size, default=1, show_default=True, help="Records in a batch.")
@click.option("--shape", metavar="3x224x224", help="Of a record, if the data are not there.")
@click.option("--preprocessing", type=click.Choice(["comments", "layers"]), default="comments", show_default=True,
              help="Write mean and scale as comments, or as layers, so that the net takes pixels.")
@click.option("--half", is_flag=True, help="Store the parameters in half precision, two bytes each, as NVIDIA's fork and OpenCV "
              "do. BVLC Caffe does not read such a file.")
@options.force
@options.net_state
@options.model_file
@options.messages
def deploy(file, weights, out, batch, shape, preprocessing, half, force, level, stage):
    """Write the deploy net of a training NET.

    The data layer becomes an Input, the last loss its prediction (SoftmaxWithLoss: Softmax). Layers that need a label, and layers
    that the prediction does not need, are left out. With WEIGHTS the parameters of the layers that are left are written, too.
    """
    if half and not weights:
        raise click.UsageError("--half: it is for the parameters; give WEIGHTS")
    if shape is not None and (sizes := options.sizes_of(shape)) is None:
        raise click.UsageError(f"--shape: write CHANNELSxHEIGHTxWIDTH, such as 3x224x224, got '{shape}'")
    options.check_outputs(f"{out}.prototxt", f"{out}.caffemodel" if weights else None, force=force)
    given = options.net_options()
    param, positions = read_net(file, caffe_pb2.TEST, level, stage, skip_unknown_fields=given["skip_unknown_fields"])
    with caffe.trusting(given["trusted"]):
        source = source_layer(param, file, positions)
        if source is None or source.type == "Input":
            why = f"is a deploy net, with the Input '{source.name}'" if source else "has no layer that reads data in phase TEST"
            raise ConfigError(f"{why}; give a training net", file=file)
        training = PictureSource.of(param, file, positions)
        if shape is None and training is None:
            raise ConfigError(f"the shape of a record of '{source.type}' is not known; give --shape", file=file, layer=source.name,
                              layer_type=source.type)
        sizes = training.input_shape() if shape is None else sizes
        made = deploy_net(param, (batch, *sizes), file, positions)
        mean, name = training.mean(sizes[0]) if training is not None else (None, "")
    scale = training.scale if training is not None else None
    made.ClearField("state")
    arrays = add_preprocessing(made, mean, scale, sizes, file) if preprocessing == "layers" else {}
    if arrays and not weights:
        raise click.UsageError("--preprocessing layers: the mean is a parameter; give WEIGHTS")
    record = " x ".join(map(str, sizes)) + (f", minus {name}" if mean is not None else "") + (f", times {scale:g}" if scale else "")
    own = "; the net computes that" if preprocessing == "layers" else ""
    text = f"# The deploy net of {file}.\n# A record is {record}{own}.\n"
    if weights:
        param = copy_of(made)
        param.state.phase = caffe_pb2.TEST
        net = Net(param, file=file, positions=positions, **given)
        net.copy_from(weights)
        for layer, array in arrays.items():
            net.layer_dict[layer].blobs[0].data[...] = array
        net.save(f"{out}.caffemodel", half=half)
    write_bytes(f"{out}.prototxt", (text + write_text(made)).encode(errors="backslashreplace"))
    files = f"{out}.prototxt" + (f" and {out}.caffemodel" if weights else "")
    click.echo(f"wrote {files}: {len(made.layer)} layers; a record is {record}")


def add_preprocessing(net, mean, scale, sizes, file):
    """Put mean and scale as layers behind the Input (--preprocessing layers); return the arrays of their parameters by layer."""
    top, arrays, layers = net.layer[0].top[0], {}, []
    if mean is not None:
        mean = np.asarray(mean, np.float32)
        if mean.ndim == 3 and mean.shape != sizes:
            if mean.shape[0] != sizes[0] or min(np.subtract(mean.shape[1:], sizes[1:])) < 0:
                raise ConfigError(f"the mean has the shape {list(mean.shape)}, a record {list(sizes)}", file=file)
            above, left = ((a - b) // 2 for a, b in zip(mean.shape[1:], sizes[1:]))      # what the centre crop of TEST sees
            mean = mean[:, above:above + sizes[1], left:left + sizes[2]]
        layers.append(caffe_pb2.LayerParameter(name="minus_mean", type="Bias", bias_param={"axis": 1, "num_axes": mean.ndim}))
        arrays["minus_mean"] = -mean
    if scale is not None:
        layers.append(caffe_pb2.LayerParameter(name="times_scale", type="Power", power_param={"scale": scale}))
    if layers:
        net.layer[0].top[0] = "pixels"
        rest = list(net.layer)[1:]
        del net.layer[1:]
        names = ["pixels", *[layer.name for layer in layers[:-1]], top]
        for layer, below, above in zip(layers, names, names[1:]):
            layer.bottom.append(below)
            layer.top.append(above)
        net.layer.extend([*layers, *rest])
    return arrays
