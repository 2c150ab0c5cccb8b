"""``minicaffe draw``: a net as a picture; ``draw_net`` is the same as Caffe has it (python/draw_net.py). Old nets are upgraded."""

import click

from minicaffe.cli import options
from minicaffe.errors import ConfigError
from minicaffe.net.net import Net
from minicaffe.net.replace_sources import replace_sources
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.upgrade import read_net_file
from minicaffe.pycaffe.draw import draw_net_to_file
from minicaffe.pycaffe.drawing import RANKDIRS, net_svg, svg_to_png


def _command(name, rankdir):
    """Return a command with the direction `rankdir` by default: downwards fits screens, rightwards is Caffe's."""

    @click.command(name, cls=options.CaffeCommand)
    @click.argument("net_file", metavar="NET")
    @click.argument("picture")
    @click.option("--rankdir", type=click.Choice(RANKDIRS, case_sensitive=False), default=rankdir, show_default=True,
                  help="Direction: left to right, top to bottom, ...")
    @click.option("--phase", type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False), default="ALL",
                  show_default=True, help="Layers to draw.")
    @click.option("--display_lrm", "--display-lrm", is_flag=True, help="Show learning-rate multipliers.")
    @click.option("--shapes", is_flag=True, help="Write the blobs' shapes in svg and png; builds the net, without its data.")
    @options.force
    @options.model_file
    @options.messages
    def draw(net_file, picture, rankdir, phase, display_lrm, shapes, force):
        """Draw NET to PICTURE; its extension is the format: svg, png, dot, or what Graphviz makes of that, such as pdf."""
        options.check_outputs(picture, force=force)
        given = options.net_options()
        net, _ = read_net_file(net_file, given["skip_unknown_fields"])
        if not net.layer:
            raise ConfigError("has no layer to draw; give the prototxt of a net", file=net_file)
        chosen = None if phase == "ALL" else caffe_pb2.Phase.Value(phase)
        if shapes:
            if chosen is None:
                raise click.UsageError("--shapes: a net is built for one phase; give --phase TRAIN or TEST",
                                       click.get_current_context())
            if not picture.endswith((".svg", ".png")):
                raise click.UsageError(f"--shapes is for .svg and .png, got {picture}", click.get_current_context())
            net.state.phase = chosen
            made, sources = replace_sources(net, net_file)
            svg = net_svg(Net(made, file=net_file, **given), rankdir, display_lrm=display_lrm,
                          types={name: source.type for name, source in sources.items()})
            write_bytes(picture, svg.encode() if picture.endswith(".svg") else svg_to_png(svg))
        else:
            draw_net_to_file(net, picture, rankdir, chosen, display_lrm)
        click.echo(f"Drawing net to {picture}")

    return draw


draw, draw_net = _command("draw", "TB"), _command("draw_net", "LR")
