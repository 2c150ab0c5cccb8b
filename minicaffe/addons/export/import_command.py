"""``minicaffe import``: a model of ONNX as a prototxt and a caffemodel, compared with onnxruntime."""

import click

from minicaffe.addons.export.comparison import random_inputs
from minicaffe.addons.export.fold import fold as fold_net
from minicaffe.addons.export.fold_command import compare, summary_of
from minicaffe.cli import options
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.text import write_text


@click.command("import", cls=options.CaffeCommand)
@click.argument("file", metavar="MODEL.onnx")
@click.option("-o", "--out", "out", required=True, metavar="NAME", help="NAME.prototxt and NAME.caffemodel are written.")
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
        folded = fold_net(net, param)
        if not no_check:
            click.echo("with folded layers, compared with the net before:")
            compare(net, folded.net, random_inputs(net))
        net, param, count = folded.net, folded.param, summary_of(folded)
    net.save(f"{out}.caffemodel")
    write_bytes(f"{out}.prototxt", write_text(param).encode())
    click.echo(f"wrote {out}.prototxt and {out}.caffemodel: {count}{', not compared' if no_check else ''}")
