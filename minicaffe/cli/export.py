"""``minicaffe export``: a net as a model of ONNX, compared with onnxruntime."""

import click
import numpy as np

from minicaffe.cli import options
from minicaffe.cli.picture_nets import IntegerList, find_mean
from minicaffe.cli.summary import inspection_options
from minicaffe.errors import DataError, FileError
from minicaffe.net.definitions import filter_layers
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.argument("weights", required=False)
@click.option("-o", "--out", "out", required=True, metavar="FILE", help="The .onnx file to write.")
@click.option("--opset", type=click.IntRange(17, 22), default=17, show_default=True, help="Version of ONNX's operators.")
@click.option("--batch", type=options.batch_size, help="Size of the first axis of the inputs, if not as the file says.")
@click.option("--dynamic-batch", is_flag=True, help="Let the first axis of the inputs have any size.")
@click.option("--mean", metavar="FILE|A,B,C", help="Subtract this in the model, of the first input: a number for each channel in "
              "the order of the net's input, or one for all; a .npy or mean file.")
@click.option("--scale", type=options.Real(), default=1.0, show_default=True, help="Factor after the mean, in the model.")
@click.option("--channel-swap", type=IntegerList(), help="Order of the channels that the model takes: 2,1,0 for RGB, if the net "
              "takes BGR.")
@click.option("--inputs", metavar="FILE", help="An .npz file with an array for each input, to compare on; by default random "
              "numbers.")
@click.option("--seed", type=click.IntRange(0, options.INT_MAX), default=0, show_default=True, help="Of the random numbers.")
@click.option("--no-check", is_flag=True, help="Do not compare the model with the net.")
@options.force
@options.whole_net_options
def export(file, weights, out, opset, batch, dynamic_batch, mean, scale, channel_swap, inputs, seed, no_check, force, level, stage):
    """Write NET with WEIGHTS as a model of ONNX.

    NET is a deploy net: its inputs are Input layers. The net and the model are run on the same inputs, and the greatest difference
    of each output is printed. If one is above 1e-4 of the output's greatest value, nothing is written, and the first layer that
    differs is named.
    """
    options.check_outputs(out, force=force)
    given = inspection_options()
    arrays = None if inputs is None else read_arrays(inputs)
    from minicaffe import onnx
    param, positions = read_net(file, caffe_pb2.TEST, level, stage, skip_unknown_fields=given["skip_unknown_fields"])
    layers = filter_layers(param.layer, param.state, file, positions)
    onnx.check_types([(layer.name, layer.type, line) for layer, line, _ in layers], file)
    net = Net(param, file=file, positions=positions, **given)
    if weights:
        net.copy_from(weights)
    if batch:
        for blob in net.input_blobs:
            blob.reshape(batch, *blob.shape[1:])
        net.reshape_all()
    how = None
    if mean or scale != 1 or channel_swap:
        channels = net.input_blobs[0].shape[1] if net.input_blobs and net.input_blobs[0].num_axes > 1 else 1
        how = onnx.Preprocessing(find_mean(mean or "", None, channels, False)[0], scale, channel_swap or ())
    found = onnx.export(net, out, opset=opset, dynamic_batch=dynamic_batch, preprocessing=how, check=not no_check, inputs=arrays,
                        seed=seed)
    if not weights:
        click.echo("the parameters are those that the fillers gave: no WEIGHTS were given")
    for one in found:
        click.echo(f"{one.blob} {' x '.join(map(str, one.shape))}: differs by at most {one.absolute:.2g}, "
                   f"{one.relative:.1g} of the greatest value")
    click.echo(f"wrote {out}" + (", not compared with the net" if no_check else ""))


def read_arrays(path):
    """Return the arrays of an .npz file by name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}", file=path) from error
    except (ValueError, TypeError, EOFError) as error:
        raise DataError(f"is no .npz file of numbers: {error}", file=path) from error
