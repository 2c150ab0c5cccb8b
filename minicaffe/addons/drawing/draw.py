"""Pictures of nets as graphs (pycaffe ``caffe.draw``).

Different from pycaffe: a picture is an SVG, or a PNG made of it, by a layout of our own (svg.py). So
neither pydot nor Graphviz is needed, and pydot's graph (``get_pydot_graph``) and its labels do not exist.
"""

import os
import re

from minicaffe.addons.drawing.svg import get_layer_lr_mult, net_svg
from minicaffe.errors import ConfigError, DependencyError
from minicaffe.proto.atomic import write_bytes

__all__ = ["draw_net", "draw_net_to_file", "get_layer_lr_mult"]
FORMATS = "svg", "png"


def draw_net(caffe_net, rankdir, ext="png", phase=None, display_lrm=False):
    """Return the picture of a net as bytes.

    Parameters
    ----------
    caffe_net : Net or NetParameter
        Upgrade an old NetParameter before.
    rankdir : {"LR", "RL", "TB", "BT"}
        Direction of the data: left to right, top to bottom, ...
    ext : {"svg", "png"}
        The format; a png needs the wheel resvg-py.
    phase : int, optional
        TRAIN or TEST: draw only the layers of this phase.
    display_lrm : bool
        Write the learning-rate multipliers of convolutions and inner products.

    Raises
    ------
    ConfigError
        If the format or `rankdir` is not one of these, or a layer has both include and exclude rules.
    DependencyError
        If resvg-py is not installed.
    """
    check_format(ext)
    svg = net_svg(caffe_net, rankdir, phase, display_lrm)
    return svg.encode() if ext == "svg" else svg_to_png(svg)


def draw_net_to_file(caffe_net, filename, rankdir="LR", phase=None, display_lrm=False):
    """Write the picture of a net to a file whose extension is the format, ``.svg`` or ``.png``; see `draw_net`.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    ext = check_format(os.path.splitext(os.fspath(filename))[1].removeprefix("."), os.fspath(filename))
    write_bytes(filename, draw_net(caffe_net, rankdir, ext, phase, display_lrm))


def check_format(ext, file=None):
    """Return the format of a picture; ConfigError if it is not one of `FORMATS`."""
    if ext not in FORMATS:
        given = f".{ext}" if ext else "no extension"
        raise ConfigError(f"a net is drawn as .svg or .png, got {given}; rsvg-convert and Inkscape make .pdf and other formats "
                          "of an .svg", file=file)
    return ext


def svg_to_png(svg):
    """Return the PNG of an SVG picture as bytes, on white. Raises DependencyError if resvg is not installed."""
    try:
        import resvg_py
    except ImportError as error:
        raise DependencyError("a PNG needs resvg, which makes pixels of an SVG: pip install 'minicaffe[plots]' (or resvg-py); "
                              "a file that ends in .svg needs nothing") from error
    return bytes(resvg_py.svg_to_bytes(svg_string=re.sub(r"@media.*", "", svg), zoom=2, background="white",
                                       sans_serif_family="DejaVu Sans"))
