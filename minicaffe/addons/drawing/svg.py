"""A net as an SVG picture, without Graphviz (`minicaffe draw`, and the graph in the view of a trace).

Each layer is a box and each blob a pill beside the layer that makes it; layers in place lie under the one whose blob they change.
Splits are not drawn: their tops are the same blob as their bottom. How a script finds the elements:

===============  ==============================================================================================
``g.layer``      ``data-layer``, ``data-type``, ``data-node``: the layer's place in ``net.nodes`` or ``param.layer``;
                 its id is ``node-<place>``
``g.blob``       ``data-blob``; ``data-aliases``: the names of tops of Splits, as JSON; its id is ``blob-<number>``
``path.edge``    ``data-blob``, and ``data-from`` and ``data-to``, the places of both layers
===============  ==============================================================================================

Colours are classes (``layer convolution``), and text beside boxes has the colour of the page (``currentColor``).
"""

import json
from dataclasses import dataclass, field
from html import escape

from minicaffe.addons.drawing.graph_layout import Box, place
from minicaffe.errors import ConfigError
from minicaffe.inspection.summary import sizes

WEIGHTED = {"Convolution": "convolution_param", "Deconvolution": "convolution_param", "InnerProduct": "inner_product_param"}
RANKDIRS = ("LR", "RL", "TB", "BT")
SIZE, LINE, PAD = 12, 15, 8             # of letters, of lines, and beside text, in pixels
PILL, GAP, HEAD, MARGIN = 19, 6, 5, 16  # the height of a blob, between blobs, of an arrow's head, around the picture
FONT = "system-ui, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
STYLE = """
.net-drawing text { font: 12px FONT; fill: #fff; }
.net-drawing .name { font-weight: 600; }
.net-drawing .layer rect { fill: #4a6fb5; }
.net-drawing .convolution rect { fill: #b83f3b; }
.net-drawing .pooling rect { fill: #a8620b; }
.net-drawing .product rect { fill: #8645b8; }
.net-drawing .neuron rect { fill: #2d7f49; }
.net-drawing .data rect { fill: #5d6673; }
.net-drawing .loss rect { fill: #a3365f; }
.net-drawing .blob rect { fill: #88909c; fill-opacity: 0.16; stroke: #88909c; }
.net-drawing .blob text { fill: currentColor; }
.net-drawing .edge { fill: none; stroke: #88909c; stroke-width: 1.3; }
.net-drawing .head { fill: #88909c; }
""".replace("FONT", FONT)
STANDALONE = """
.net-drawing { color: #1b1f24; background: #ffffff; }
@media (prefers-color-scheme: dark) { .net-drawing { color: #e4e7eb; background: #16191d; } }
"""
KINDS = {**dict.fromkeys(("Convolution", "Deconvolution", "ConvolutionDepthwise", "DepthwiseConvolution"), "convolution"),
         **dict.fromkeys(("Pooling", "SPP"), "pooling"), **dict.fromkeys(("InnerProduct", "Embed", "LSTM", "RNN"), "product")}


@dataclass(eq=False)
class LayerDrawing(Box):
    """A layer with the in-place layers on its top in one box, and their other tops.

    `rows` and `pills` are rectangles (left, top, width, height) relative to the centre (x, y).
    """

    layers: list = field(default_factory=list)      # (place among the layers, LayerParameter)
    blobs: list = field(default_factory=list)       # names
    rows: list = field(default_factory=list)
    pills: list = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0


def net_svg(net, rankdir="TB", phase=None, display_lrm=False, standalone=True, types=None):
    """Return the picture of a net as an SVG element, a str; parameters and errors are those of `draw_net` (draw.py), and these.

    Parameters
    ----------
    net : Net or NetParameter
        Of a Net the blobs' shapes are written, too.
    standalone : bool
        Whether the picture has its own colours for light and dark; False: it inherits those of the page.
    types : dict of str to str, optional
        Types to write for layers that replace others, by the name of the layer.
    """
    if rankdir not in RANKDIRS:
        raise ConfigError(f"must be one of {', '.join(RANKDIRS)}, got '{rankdir}'", field="rankdir")
    return Drawing(net, rankdir, phase, display_lrm, types or {}).svg(standalone)


class Drawing:
    """Boxes and edges of the picture that `net_svg` returns; it has the parameters."""

    def __init__(self, net, rankdir, phase, display_lrm, types):
        self.types = types
        self.rankdir, self.is_horizontal, self.display_lrm = rankdir, rankdir in ("LR", "RL"), display_lrm
        self.shapes = {}
        if hasattr(net, "nodes"):
            layers = [(i, node.param, [blob.name for blob in node.tops]) for i, node in enumerate(net.nodes)]
            self.shapes = {blob.name: blob.shape for node in net.nodes for blob in node.tops}
        else:
            layers = [(i, layer, list(layer.top)) for i, layer in enumerate(net.layer)
                      if phase is None or is_included(layer, phase)]
        self.name = net.name or "net"
        self.drawn, self.edges, self.aliases = [], [], {}
        self._connect(layers)
        self._lay_out()

    def _connect(self, layers):
        """Collect boxes and edges of the layers, without Splits; an edge is (from, number of the blob, to, blob)."""
        sources, read = {}, set()       # blob -> [(LayerDrawing, number of the blob)]; blobs that are read already
        original = {}                   # top of a Split -> its bottom
        for i, layer, tops in layers:
            bottoms = [original.get(name, name) for name in layer.bottom]
            if layer.type == "Split":
                for name in tops:
                    original[name] = bottoms[0]
                    self.aliases.setdefault(bottoms[0], []).append(name)
                continue
            made = sources.get(bottoms[0], []) if bottoms else []
            if bottoms == tops and len(tops) == 1 and len(made) == 1 and made[0][0].blobs == tops and tops[0] not in read:
                made[0][0].layers.append((i, layer))
                continue
            box = LayerDrawing(layers=[(i, layer)], blobs=tops)
            self.drawn.append(box)
            for name in bottoms:
                self.edges += [(source, number, box, name) for source, number in sources.get(name, [])]
                read.add(name)
            for number, name in enumerate(tops):
                again = name in sources and name not in bottoms     # the same blob in another phase
                sources[name] = [*sources[name], (box, number)] if again else [(box, number)]
                read.discard(name)

    # ---- sizes

    def _text(self, layer):
        """Return the lines of a box below its name: the type with its sizes, and the multipliers of --display_lrm."""
        size = sizes(layer)
        kind = self.types.get(layer.name, layer.type)
        lines = [f"{kind}  {size}" if size else kind]
        if self.display_lrm and layer.type in WEIGHTED:
            lines.append("lr mult {:g}, {:g}".format(*get_layer_lr_mult(layer)))
        return lines

    def _blob_text(self, name):
        """Return the text of a pill: the name of the blob, and its shape if the net was built."""
        return f"{name}  {'×'.join(map(str, self.shapes[name])) or 'scalar'}" if name in self.shapes else name

    def _compute_sizes(self, drawn):
        """Compute `rows`, `pills` and the size of a box, for rankdir TB or LR; RL and BT are mirrored later."""
        texts = [[layer.name, *self._text(layer)] for _, layer in drawn.layers]
        width = 2 * PAD + max(_width(text, bold=not n) for lines in texts for n, text in enumerate(lines))
        heights = [LINE * len(lines) + PAD for lines in texts]
        widths = [_width(self._blob_text(name)) + 2 * PAD for name in drawn.blobs]
        if self.is_horizontal:
            drawn.length = width + (GAP + max(widths) if widths else 0.0)
            drawn.breadth = max(sum(heights), len(widths) * (PILL + GAP) - GAP)
            left, top = -drawn.length / 2, -sum(heights) / 2
            pills = [(left + width + GAP, n * (PILL + GAP) - (len(widths) * (PILL + GAP) - GAP) / 2) for n in range(len(widths))]
        else:
            pills_width = sum(widths) + GAP * (len(widths) - 1)
            drawn.breadth, drawn.length = max(width, pills_width), sum(heights) + (PILL + GAP if widths else 0.0)
            left, top = -width / 2, -drawn.length / 2
            pills = [(-pills_width / 2 + sum(widths[:n]) + GAP * n, drawn.length / 2 - PILL) for n in range(len(widths))]
        drawn.pills = [(*at, pill_width, PILL) for at, pill_width in zip(pills, widths)]
        drawn.rows = [(left, top + sum(heights[:n]), width, height) for n, height in enumerate(heights)]

    # ---- places

    def _lay_out(self):
        """Place boxes, pills and edges: `graph_layout.place` knows ranks only, and this turns them into x and y for `rankdir`."""
        for drawn in self.drawn:
            self._compute_sizes(drawn)
        ends = []       # from box to box, and the offset of the pill that the edge leaves
        for source, pill, target, _ in self.edges:
            left, top, width, height = source.pills[pill]
            ends.append((source, top + height / 2 if self.is_horizontal else left + width / 2, target, 0.0))
        bends = place(self.drawn, ends, rank_gap=40.0 if self.is_horizontal else 28.0)
        everything = [*self.drawn, *(bend for way in bends for bend in way)]
        low = min((box.at - box.breadth / 2 for box in everything), default=0.0)
        breadth = max((box.at + box.breadth / 2 for box in everything), default=0.0) - low
        length = max((box.end for box in self.drawn), default=0.0)
        self.width, self.height = (side + 2 * MARGIN for side in ((length, breadth) if self.is_horizontal else (breadth, length)))
        back = self.rankdir in ("RL", "BT")

        def point(along, across):
            along, across = MARGIN + (length - along if back else along), MARGIN + across - low
            return (along, across) if self.is_horizontal else (across, along)

        arriving = {}   # edges to a box share its side, in the order of their positions
        for n, (source, out, target, _) in enumerate(ends):
            arriving.setdefault(target, []).append((bends[n][-1].at if bends[n] else source.at + out, n))
        side = {n: ((k + 0.5) / len(some) - 0.5) for some in arriving.values() for k, (_, n) in enumerate(sorted(some))}
        self.paths = []
        for n, ((source, pill, target, blob), way, (_, out, *_)) in enumerate(zip(self.edges, bends, ends)):
            left, _, width, _ = source.pills[pill]
            begin = source.start + (left + width + source.length / 2 if self.is_horizontal else source.length)
            steps = [(source.end, source.at + out)]     # beyond the boxes of its rank
            for bend in way:
                steps += [(bend.start, bend.at), (bend.end, bend.at)]
            into = side[n] * 0.6 * (sum(row[3] for row in target.rows) if self.is_horizontal else target.rows[0][2])
            steps.append((target.start - HEAD, target.at + into))
            self.paths.append((source, target, blob, [point(begin, source.at + out), *(point(*step) for step in steps)]))
        for drawn in self.drawn:
            drawn.x, drawn.y = point(drawn.start + drawn.length / 2, drawn.at)
            if back:
                drawn.rows, drawn.pills = ([self._mirrored(rectangle) for rectangle in some] for some in (drawn.rows, drawn.pills))

    def _mirrored(self, rectangle):
        """Return a rectangle of a box for rankdir RL or BT, which are LR and TB with the direction of the data reversed."""
        left, top, width, height = rectangle
        return (-left - width, top, width, height) if self.is_horizontal else (left, -top - height, width, height)

    # ---- the text

    def svg(self, standalone):
        """Return the picture as the text of an SVG element."""
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" class="net-drawing" width="{self.width:.0f}" height="{self.height:.0f}" '
                 f'viewBox="0 0 {self.width:.1f} {self.height:.1f}" role="img">', f"<title>{escape(self.name)}</title>",
                 f"<style>{STYLE}{STANDALONE if standalone else ''}</style>"]
        for source, target, blob, points in self.paths:
            lines.append(f'<path class="edge" data-blob="{escape(blob)}" data-from="{source.layers[0][0]}" '
                         f'data-to="{target.layers[0][0]}" d="{self._curve(points)}"/>'
                         f'<path class="head" d="{self._head(points[-1])}"/>')
        count = 0
        for drawn in self.drawn:
            for k, ((i, layer), (x, y, width, height)) in enumerate(zip(drawn.layers, drawn.rows)):
                x, y, name, kind = drawn.x + x, drawn.y + y, escape(layer.name), escape(self.types.get(layer.name, layer.type))
                lines.append(f'<g class="layer {_kind(layer, k > 0)}" id="node-{i}" data-node="{i}" data-layer="{name}" '
                             f'data-type="{kind}"><title>{name} ({kind})</title>'
                             f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height - 1:.1f}" rx="4"/>')
                lines += [_line(x + width / 2, y + LINE * (n + 1) + 1, text, bold=not n)
                          for n, text in enumerate([layer.name, *self._text(layer)])]
                lines.append("</g>")
            for blob, (x, y, width, height) in zip(drawn.blobs, drawn.pills):
                x, y, name = drawn.x + x, drawn.y + y, escape(blob)
                aliases = f' data-aliases="{escape(json.dumps(self.aliases[blob]))}"' if blob in self.aliases else ""
                lines.append(f'<g class="blob" id="blob-{count}" data-blob="{name}"{aliases}><title>blob {name}</title>'
                             f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="{height / 2}"/>'
                             + _line(x + width / 2, y + height - 5.5, self._blob_text(blob)) + "</g>")
                count += 1
        return "\n".join([*lines, "</svg>"]) + "\n"

    def _curve(self, points):
        """Return the path of an edge, straight across ranks and curved between them; the first part is straight."""
        parts = ["M{:.1f} {:.1f}".format(*points[0])]
        for n, ((x0, y0), (x1, y1)) in enumerate(zip(points, points[1:])):
            if n % 2 == 0 or abs((y0 - y1) if self.is_horizontal else (x0 - x1)) < 0.5:
                parts.append(f"L{x1:.1f} {y1:.1f}")
            else:
                x, y = (x0 + x1) / 2, (y0 + y1) / 2
                controls = (x, y0, x, y1) if self.is_horizontal else (x0, y, x1, y)
                parts.append("C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}".format(*controls, x1, y1))
        return " ".join(parts)

    def _head(self, tip):
        """Return the path of an arrow's head whose base is at the end of an edge."""
        (x, y), half = tip, 3.5
        dx, dy = {"TB": (0, 1), "BT": (0, -1), "LR": (1, 0), "RL": (-1, 0)}[self.rankdir]
        corners = (x + HEAD * dx, y + HEAD * dy), (x - half * dy, y - half * dx), (x + half * dy, y + half * dx)
        return "M" + " L".join("{:.1f} {:.1f}".format(*corner) for corner in corners) + " Z"


def _line(x, y, text, bold=False):
    """Return an SVG text centred at x; the name of a layer is bold."""
    name = ' class="name"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{name}>{escape(text)}</text>'


def _width(text, bold=False):
    """Return an upper bound of the width of a text, from the widest of the usual fonts: the reader's font is not known."""
    return len(text) * SIZE * (0.64 if bold else 0.58)


def _kind(layer, in_place):
    """Return the class of a layer in the style sheet, which gives its box a colour; "other" has the default."""
    if layer.type in KINDS:
        return KINDS[layer.type]
    if not layer.bottom:
        return "data"
    if layer.type.endswith("Loss"):
        return "loss"
    return "neuron" if in_place or list(layer.bottom) == list(layer.top) else "other"


def get_layer_lr_mult(layer):
    """Return the learning-rate multipliers of weight and bias, 1.0 where none is given.

    Raises
    ------
    ConfigError
        If the type is not Convolution, Deconvolution or InnerProduct, or there are more than two ``param``; a ValueError.
    """
    if layer.type not in WEIGHTED:
        raise ConfigError(f"shown for {', '.join(WEIGHTED)} only", field="lr_mult", layer=layer.name, layer_type=layer.type)
    if len(layer.param) > 2:
        raise ConfigError(f"weight and bias have two, got {len(layer.param)}", field="param", layer=layer.name,
                          layer_type=layer.type)
    given = [param.lr_mult if param.HasField("lr_mult") else 1.0 for param in layer.param]
    return tuple(given + [1.0] * (2 - len(given)))


def is_included(layer, phase):
    """Return whether the rules of `layer` allow it in `phase`; other conditions are ignored, as a drawing has no state."""
    if layer.include and layer.exclude:
        raise ConfigError("give include or exclude rules, not both", field="include", layer=layer.name, layer_type=layer.type)
    rules = layer.include or layer.exclude
    return not rules or any(rule.phase == phase for rule in rules) == bool(layer.include)
