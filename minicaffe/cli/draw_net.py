"""``minicaffe draw_net``: a net as a graph (Caffe python/draw_net.py). Old nets are upgraded first, unlike there."""

import click

from minicaffe.cli import options
from minicaffe.proto import caffe_pb2
from minicaffe.proto.upgrade import read_net_file
from minicaffe.pycaffe import draw


@click.command(cls=options.CaffeCommand)
@click.argument("net_file", metavar="NET")
@click.argument("picture")
@click.option("--rankdir", type=click.Choice(["LR", "RL", "TB", "BT"]), default="LR", show_default=True,
              help="Direction: left to right, top to bottom, ...")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST", "ALL"]), default="ALL", show_default=True, help="Layers to draw.")
@click.option("--display_lrm", "--display-lrm", is_flag=True, help="Show learning-rate multipliers.")
@options.skip_unknown_fields
@options.debug
def draw_net(net_file, picture, rankdir, phase, display_lrm):
    """Draw NET to PICTURE; its extension is the format: png, svg, pdf (these need Graphviz), or dot."""
    net, _ = read_net_file(net_file, options.net_options()["skip_unknown_fields"])
    draw.draw_net_to_file(net, picture, rankdir, None if phase == "ALL" else caffe_pb2.Phase.Value(phase), display_lrm)
    click.echo(f"Drawing net to {picture}")
