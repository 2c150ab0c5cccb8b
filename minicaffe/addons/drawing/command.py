"""``minicaffe draw``: a net as a picture (Caffe python/draw_net.py, ``draw_net`` is an alias).

Different from Caffe: the direction is from top to bottom unless ``--rankdir`` says another, and old nets are upgraded.
"""

import click

from minicaffe.addons.drawing.draw import check_format, svg_to_png
from minicaffe.addons.drawing.svg import RANKDIRS, is_included, net_svg
from minicaffe.cli import options
from minicaffe.errors import ConfigError
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.upgrade import read_net_file


@click.command(cls=options.CaffeCommand)
@click.argument("net_file", metavar="NET")
@click.argument("picture")
@click.option("--rankdir", type=click.Choice(RANKDIRS, case_sensitive=False), default="TB", show_default=True,
              help="Direction: left to right, top to bottom, ...")
@click.option("--phase", type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False), default="ALL", show_default=True,
              help="Layers to draw.")
@click.option("--display_lrm", "--display-lrm", is_flag=True, help="Show learning-rate multipliers.")
@click.option("--shapes", is_flag=True, help="Write the blobs' shapes; builds the net of a phase, without its data.")
@options.force
@options.model_file
@options.messages
def draw(net_file, picture, rankdir, phase, display_lrm, shapes, force):
    """Draw NET to PICTURE, a .svg, or a .png by resvg-py."""
    options.check_outputs(picture, force=force)
    given = options.net_options()
    extension = check_format(picture.rpartition(".")[2] if "." in picture else "", picture)
    net, positions = read_net_file(net_file, given["skip_unknown_fields"])
    if not net.layer:
        raise ConfigError("has no layer to draw; give the prototxt of a net", file=net_file)
    chosen = None if phase == "ALL" else caffe_pb2.Phase.Value(phase)
    types = {}
    if shapes:
        if chosen is None:
            raise click.UsageError("--shapes: a net is built for one phase; give --phase TRAIN or TEST")
        net.state.phase = chosen
        made, sources = replace_sources(net, net_file, positions=positions)
        types = {layer.name: layer.type for layer in net.layer if layer.name in sources and is_included(layer, chosen)}
        net = Net(made, file=net_file, positions=positions, **given)
    svg = net_svg(net, rankdir, chosen, display_lrm, types=types)
    write_bytes(picture, svg.encode() if extension == "svg" else svg_to_png(svg))
    click.echo(f"Drawing net to {picture}")
