"""``minicaffe draw``: a net as a picture or a page; ``draw_net`` is the same as Caffe has it (python/draw_net.py). Old nets are
upgraded. Different from Caffe: of large nets `draw` shows a block that is repeated once (inspection/folding.py).
"""

import click

from minicaffe.cli import net_page, options
from minicaffe.errors import ConfigError
from minicaffe.net.net import Net
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.upgrade import read_net_file
from minicaffe.inspection.definition import is_included
from minicaffe.inspection.draw import draw_net_to_file
from minicaffe.inspection.drawing import RANKDIRS, Drawing, svg_to_png

FOLDED_ABOVE = 60   # layers; a drawing of as many fits some four screens


def _command(name, rankdir):
    """Return a command with the direction `rankdir` by default: downwards fits screens, rightwards is Caffe's."""

    @click.command(name, cls=options.CaffeCommand)
    @click.argument("net_file", metavar="NET")
    @click.argument("picture")
    @click.option("--rankdir", type=click.Choice(RANKDIRS, case_sensitive=False), default=rankdir, show_default=True,
                  help="Direction: left to right, top to bottom, ...")
    @click.option("--phase", type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False), default="ALL",
                  show_default=True, help="Layers to draw; a page is of one phase, by default TEST.")
    @click.option("--display_lrm", "--display-lrm", is_flag=True, help="Show learning-rate multipliers.")
    @click.option("--shapes", is_flag=True, help="Write the blobs' shapes in svg and png; builds the net, without its data.")
    @click.option("--weights", metavar="FILE", help="Of a page: show statistics of these weights, a .caffemodel or HDF5.")
    @click.option("--fold/--unfold", default=None, help="Draw a block that is repeated in a row once, in svg, png and html. " + (
        f"By default in nets of more than {FOLDED_ABOVE} layers." if name == "draw" else "By default not, as in Caffe."))
    @options.force
    @options.model_file
    @options.messages
    def draw(net_file, picture, rankdir, phase, display_lrm, shapes, weights, fold, force):
        """Draw NET to PICTURE; its extension is the format: svg, png, html, dot, or what Graphviz makes of that, such as pdf.

        An html is a page on which layers and blobs can be chosen: it shows their definition, shapes, and with --weights statistics
        of their parameters. It is one file that needs no network.
        """
        options.check_outputs(picture, force=force)
        given = options.net_options()
        extension = picture.rpartition(".")[2]
        if weights and extension != "html":
            raise click.UsageError(f"--weights is for .html, got {picture}")
        if fold and extension not in ("svg", "png", "html"):
            raise click.UsageError(f"--fold is for .svg, .png and .html, got {picture}")
        net, positions = read_net_file(net_file, given["skip_unknown_fields"])
        if not net.layer:
            raise ConfigError("has no layer to draw; give the prototxt of a net", file=net_file)
        if fold is None:
            fold = name == "draw" and len(net.layer) > FOLDED_ABOVE
        if extension == "html" and phase == "ALL":
            phase = "TEST"
            options.notify("a page is of one phase: TEST; --phase TRAIN shows the other")
        chosen = None if phase == "ALL" else caffe_pb2.Phase.Value(phase)
        replaced = {}
        if shapes and chosen is None:
            raise click.UsageError("--shapes: a net is built for one phase; give --phase TRAIN or TEST")
        if shapes and extension not in ("svg", "png", "html"):
            raise click.UsageError(f"--shapes is for .svg, .png and .html, got {picture}")
        if shapes or extension == "html":
            net.state.phase = chosen
            made, sources = replace_sources(net, net_file, positions=positions)
            replaced = {layer.name: layer for layer in net.layer if layer.name in sources and is_included(layer, chosen)}
            net = Net(made, file=net_file, positions=positions, **given)
        folded = 0
        if extension == "html":
            if weights:
                net.copy_from(weights)
            content, folded = net_page.page(net, rankdir, display_lrm, replaced, fold, weights)
            write_bytes(picture, content.encode(errors="backslashreplace"))
        elif extension in ("svg", "png"):
            types = {one: layer.type for one, layer in replaced.items()}
            drawing = Drawing(net, rankdir, chosen, display_lrm, types, fold)
            folded = drawing.folded
            write_bytes(picture, drawing.svg(True).encode() if extension == "svg" else svg_to_png(drawing.svg(True)))
        else:
            draw_net_to_file(net, picture, rankdir, chosen, display_lrm)
        if folded:
            options.notify(f"{folded} layers are repetitions of a block, which is drawn once; --unfold draws each")
        click.echo(f"Drawing net to {picture}")

    return draw


draw, draw_net = _command("draw", "TB"), _command("draw_net", "LR")
