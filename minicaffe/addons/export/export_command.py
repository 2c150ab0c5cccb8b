"""``minicaffe export``: a net as a model of ONNX, or as a module of PyTorch, compared with the net."""

import click
import numpy as np

from minicaffe.addons.export.exporting import Preprocessing
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
@click.option("-o", "--out", "out", required=True, metavar="FILE", help="The .onnx file to write; with --to torch a NAME, for "
              "NAME.py and NAME.pt.")
@click.option("--to", type=click.Choice(["onnx", "torch"]), default="onnx", show_default=True, help="What is written: a model of "
              "ONNX, or the text and the state dict of a PyTorch module.")
@click.option("--batch", type=options.batch_size, help="Size of the first axis of the inputs, if not as the file says.")
@click.option("--dynamic-batch", is_flag=True, help="Let the first axis of the inputs of ONNX have any size.")
@click.option("--mean", metavar="FILE|A,B,C", help="Subtract this in the model, of the first input: a number for each channel in "
              "the order of the net's input, or one for all; a .npy or mean file.")
@click.option("--scale", type=options.Real(), default=1.0, show_default=True, help="Factor after the mean, in the model.")
@click.option("--channel-swap", type=IntegerList(), help="Order of the channels that the model takes: 2,1,0 for RGB, if the net "
              "takes BGR.")
@click.option("--inputs", metavar="FILE", help="An .npz file with an array for each input, to compare on; by default random "
              "numbers.")
@click.option("--no-check", is_flag=True, help="Do not compare the model with the net.")
@options.force
@options.whole_net_options
def export(file, weights, out, to, batch, dynamic_batch, mean, scale, channel_swap, inputs, no_check, force, level, stage):
    """Write NET with WEIGHTS as a model of ONNX, or as a module of PyTorch.

    NET is a deploy net: its inputs are Input layers. The net and the model are run on the same inputs, and the greatest difference
    of each output is printed. If one is above 1e-4 of the output's greatest value, the layers are compared one by one; if one
    differs, nothing is written, and the first one is named. With --to torch, NAME.py has a line for each layer, NAME.pt is read by
    torch.load, and PyTorch is needed only to compare.
    """
    if to == "torch":
        from minicaffe.addons.export import pytorch as target
        out = out[:-3] if out.endswith((".py", ".pt")) else out
        target.check_file_name(out)
        names, specific = [f"{out}.py", f"{out}.pt"], {}
        if dynamic_batch:
            raise click.UsageError("--dynamic-batch does not go with --to torch: a module takes any batch that its layers take")
    else:
        from minicaffe.addons.export import onnx as target
        names, specific = [out], {"dynamic_batch": dynamic_batch}
    options.check_outputs(*names, force=force)
    given = inspection_options()
    arrays = None if inputs is None else read_arrays(inputs)
    param, positions = read_net(file, caffe_pb2.TEST, level, stage, skip_unknown_fields=given["skip_unknown_fields"])
    layers = filter_layers(param.layer, param.state, file, positions)
    target.check_types([(layer.name, layer.type, line) for layer, line, _ in layers], file)
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
        how = Preprocessing(find_mean(mean or "", None, channels, False)[0], scale, channel_swap or ())
    found = target.export(net, out, preprocessing=how, check=not no_check, inputs=arrays, **specific)
    if not weights:
        click.echo("the parameters are those that the fillers gave: no WEIGHTS were given")
    for one in found:
        click.echo(one)
    click.echo(f"wrote {' and '.join(names)}{', not compared with the net' if no_check else ''}")


def read_arrays(path):
    """Return the arrays of an .npz file by name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}", file=path) from error
    except (ValueError, TypeError, EOFError) as error:
        raise DataError(f"is not an .npz file of numbers: {error}", file=path) from error
