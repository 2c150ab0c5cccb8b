"""``minicaffe draw``: a net as a picture; ``draw_net`` is the same as Caffe has it (python/draw_net.py). Old nets are upgraded."""

import click

from minicaffe.cli import options
from minicaffe.proto import caffe_pb2
from minicaffe.proto.upgrade import read_net_file
from minicaffe.pycaffe.draw import draw_net_to_file
from minicaffe.pycaffe.drawing import RANKDIRS


def _command(name, rankdir):
    """Return a command with the direction `rankdir` by default: downwards fits screens, rightwards is Caffe's."""

    @click.command(name, cls=options.CaffeCommand)
    @click.argument("net_file", metavar="NET")
    @click.argument("picture")
    @click.option("--rankdir", type=click.Choice(RANKDIRS), default=rankdir, show_default=True,
                  help="Direction: left to right, top to bottom, ...")
    @click.option("--phase", type=click.Choice(["TRAIN", "TEST", "ALL"]), default="ALL", show_default=True, help="Layers to draw.")
    @click.option("--display_lrm", "--display-lrm", is_flag=True, help="Show learning-rate multipliers.")
    @options.skip_unknown_fields
    @options.debug
    def draw(net_file, picture, rankdir, phase, display_lrm):
        """Draw NET to PICTURE; its extension is the format: svg, png, dot, or what Graphviz makes of that, such as pdf."""
        net, _ = read_net_file(net_file, options.net_options()["skip_unknown_fields"])
        draw_net_to_file(net, picture, rankdir, None if phase == "ALL" else caffe_pb2.Phase.Value(phase), display_lrm)
        click.echo(f"Drawing net to {picture}")

    return draw


draw, draw_net = _command("draw", "TB"), _command("draw_net", "LR")
