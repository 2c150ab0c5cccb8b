"""``minicaffe export``, ``fold`` and ``import``: nets in other forms, each compared with the net or model that it is made from."""

import click
import numpy as np

from minicaffe.addons.export.exporting import TOLERANCE, Preprocessing, difference, random_inputs, run_net
from minicaffe.addons.export.fold import fold as fold_net
from minicaffe.cli import options
from minicaffe.cli.picture_nets import IntegerList, find_mean
from minicaffe.cli.summary import inspection_options
from minicaffe.errors import DataError, FileError
from minicaffe.net.definitions import filter_layers
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.text import write_text

net_files = click.option("-o", "--out", "out", required=True, metavar="NAME", help="NAME.prototxt and NAME.caffemodel are written.")


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


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.argument("weights")
@net_files
@click.option("--no-check", is_flag=True, help="Do not compare the two nets.")
@options.force
@options.whole_net_options
def fold(file, weights, out, no_check, force, level, stage):
    """Write NET with WEIGHTS as a net of fewer layers for inference.

    NET is a deploy net. BatchNorm, Scale and Bias go into the weights of the convolution or inner product before them, where that
    is exact; Dropout is removed. Each that is left has a line with the reason. Both nets are run on the same random
    inputs, and the greatest difference of each output is printed; above 1e-4 of its greatest value nothing is written.
    """
    options.check_outputs(f"{out}.prototxt", f"{out}.caffemodel", force=force)
    given = inspection_options()
    param, positions = read_net(file, caffe_pb2.TEST, level, stage, skip_unknown_fields=given["skip_unknown_fields"])
    net = Net(param, file=file, positions=positions, **given)
    net.copy_from(weights)
    save_net(*folded(net, param, no_check), out)


def save_net(net, param, count, out):
    """Write a net and print `count`, which says how many layers it has."""
    net.save(f"{out}.caffemodel")
    write_bytes(f"{out}.prototxt", write_text(param).encode())
    click.echo(f"wrote {out}.prototxt and {out}.caffemodel: {count}")


def folded(net, param, no_check):
    """Return a net with folded layers, its definition, and how many it has; print what is left, and the differences."""
    made = fold_net(net, param)
    if not no_check:
        compare(net, made.net, random_inputs(net))
    for name, reason in made.kept.items():
        click.echo(f"'{name}' is left: {reason}")
    left, gone, owned = len(made.param.layer), len(made.layers), sum(map(bool, made.layers.values()))
    return made.net, made.param, f"{left} layers of {left + gone}, {owned} folded into others, {gone - owned} removed"


def compare(net, folded, inputs):
    """Print the greatest difference of each output; raise DataError for one above the tolerance."""
    wanted, found = run_net(net, inputs), run_net(folded, inputs)
    for blob in net.output_blobs:
        one = difference(blob.name, wanted[blob.name], found[blob.name])
        if not one.relative <= TOLERANCE:
            raise DataError(f"output '{blob.name}' of the folded net differs by {one.absolute:.3g}, {one.relative:.2g} of the "
                            "greatest value: the products of the weights round otherwise; --no-check writes the net all the same")
        click.echo(one)


@click.command("import", cls=options.CaffeCommand)
@click.argument("file", metavar="MODEL.onnx")
@net_files
@click.option("--batch", type=options.batch_size, help="Size of the first axis of inputs that have none.")
@click.option("--shape", "shapes", multiple=True, callback=options.named_shapes("INPUT=SIZExSIZE, such as x=1x3x48x192"),
              metavar="INPUT=1x3x48x192", help="Shape of an input whose sizes the model leaves open; may be repeated.")
@click.option("--fold", is_flag=True, help="Put BatchNorm and Scale into the weights before them, as minicaffe fold does.")
@click.option("--no-check", is_flag=True, help="Do not compare the net with the model.")
@options.force
@options.common
def import_(file, out, batch, shapes, fold, no_check, force):
    """Write a model of ONNX as NAME.prototxt and NAME.caffemodel.

    What Caffe's layers cannot express is listed, and nothing is written. The net is for the shapes of the model's inputs. All blobs
    are compared with onnxruntime's values on random inputs; the first layer that differs is named, and nothing is written. With
    --fold the net with folded layers is then compared with the net before.
    """
    options.check_outputs(f"{out}.prototxt", f"{out}.caffemodel", force=force)
    from minicaffe.addons.export import onnx
    made = onnx.load(file, batch=batch, shapes=shapes, check=not no_check)
    net, param, count = made.net, made.param, f"{len(made.param.layer)} layers"
    for one in made.differences:
        click.echo(one)
    if fold:
        if not no_check:
            click.echo("with folded layers, compared with the net before:")
        net, param, count = folded(net, param, no_check)
    save_net(net, param, f"{count}{', not compared' if no_check else ''}", out)
