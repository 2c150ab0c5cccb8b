"""``minicaffe fold``: BatchNorm, Scale and Bias in the weights of the convolutions and inner products before them."""

import click

from minicaffe.addons.export.comparison import TOLERANCE, difference, random_inputs, run_net
from minicaffe.addons.export.fold import fold as fold_net
from minicaffe.cli import options
from minicaffe.cli.summary import inspection_options
from minicaffe.errors import DataError
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.text import write_text


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.argument("weights")
@click.option("-o", "--out", "out", required=True, metavar="NAME", help="NAME.prototxt and NAME.caffemodel are written.")
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
    made = fold_net(net, param)
    if not no_check:
        compare(net, made.net, random_inputs(net))
    made.net.save(f"{out}.caffemodel")
    write_bytes(f"{out}.prototxt", write_text(made.param).encode())
    click.echo(f"wrote {out}.prototxt and {out}.caffemodel: {summary_of(made)}")


def summary_of(made):
    """Print why layers are left, and return how many layers of a Folded there are."""
    for name, reason in made.kept.items():
        click.echo(f"'{name}' is left: {reason}")
    left, folded = len(made.param.layer), sum(map(bool, made.layers.values()))
    return f"{left} layers of {left + len(made.layers)}, {folded} folded into others, {len(made.layers) - folded} removed"


def compare(net, folded, inputs):
    """Print the greatest difference of each output; raise DataError for one above the tolerance."""
    wanted, found = run_net(net, inputs), run_net(folded, inputs)
    for blob in net.output_blobs:
        one = difference(blob.name, wanted[blob.name], found[blob.name])
        if not one.relative <= TOLERANCE:
            raise DataError(f"output '{blob.name}' of the folded net differs by {one.absolute:.3g}, {one.relative:.2g} of the "
                            "greatest value: the products of the weights round otherwise; --no-check writes the net all the same")
        click.echo(one)
