"""Pictures of nets as graphs (pycaffe ``caffe.draw``).

Different from pycaffe: neither pydot nor Graphviz is needed. `net_svg` (drawing.py) draws the ``svg`` and ``png`` of `draw_net`.
`get_pydot_graph` returns a `Graph` with pydot's methods. Its text in the DOT language needs no program (``.dot``, ``.gv``,
``.raw``); Graphviz's ``dot`` makes all other formats from it. A pad, stride or kernel given by ``_h`` and ``_w`` is shown as
height x width.
"""

import os
import shutil
import subprocess

from minicaffe.errors import ConfigError, DependencyError, Error
from minicaffe.net.definitions import window_text
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.inspection.definition import WEIGHTED, get_layer_lr_mult, is_included

LAYER_STYLE_DEFAULT = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
TEXT_FORMATS = ("dot", "gv", "raw")


class Node:
    """A node of a `Graph`."""

    def __init__(self, name, **attributes):
        self.name, self.attributes = name, attributes

    def get_name(self):
        """Return the name."""
        return self.name

    def to_string(self):
        """Return the node's statement in DOT."""
        return f"{quoted(self.name)} [{_listed(self.attributes)}];"


class Graph:
    """A directed graph with the methods of pydot's Dot that pycaffe's users know."""

    def __init__(self, name, **attributes):
        self.name, self.attributes, self.nodes, self.edges = name, attributes, [], []

    def add_node(self, node):
        """Add a Node."""
        self.nodes.append(node)

    def add_edge(self, source, target, label=""):
        """Add an edge between two Nodes."""
        self.edges.append((source, target, label))

    def get_name(self):
        """Return the graph's name."""
        return self.name

    def get_nodes(self):
        """Return the list of nodes."""
        return list(self.nodes)

    get_node_list = get_nodes

    def get_edges(self):
        """Return the list of edges: source, target, label."""
        return list(self.edges)

    get_edge_list = get_edges

    def to_string(self):
        """Return the graph in the DOT language."""
        lines = [f"digraph {quoted(self.name)} {{", *(f"{key}={quoted(value)};" for key, value in self.attributes.items())]
        lines += [node.to_string() for node in self.nodes]
        lines += [f"{quoted(source.name)} -> {quoted(target.name)}" + (f" [{_listed({'label': label})}];" if label else ";")
                  for source, target, label in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def create(self, prog="dot", format="ps"):
        """Return the picture as bytes, laid out by Graphviz's `prog`; the text formats need no Graphviz.

        Raises DependencyError if the program is not installed, Error if it fails, as for an unknown format.
        """
        text = self.to_string().encode()
        if format in TEXT_FORMATS:
            return text
        if shutil.which(prog) is None:
            raise DependencyError(f"a picture in format '{format}' needs Graphviz's program '{prog}': apt-get install graphviz (or "
                                  "conda install graphviz); a file that ends in .dot needs nothing")
        done = subprocess.run([prog, f"-T{format}"], input=text, capture_output=True)
        if done.returncode:
            raise Error(f"{prog} failed: {done.stderr.decode(errors='replace').strip()}", field="format")
        return done.stdout

    def write(self, path, prog="dot", format="raw"):
        """Write the picture to a file."""
        write_bytes(path, self.create(prog, format))
        return True

    def __getattr__(self, name):
        verb, _, format = name.partition("_")
        if verb == "create" and format:
            return lambda prog="dot": self.create(prog, format)
        if verb == "write" and format:
            return lambda path, prog="dot": self.write(path, prog, format)
        raise AttributeError(f"a graph has no attribute '{name}'")


def quoted(text):
    r"""Return `text` as a DOT string; ``\n`` in it stays a line break of DOT's."""
    return '"' + str(text).replace('"', r"\"").replace("\n", r"\n") + '"'


def _listed(attributes):
    return ", ".join(f"{key}={quoted(value)}" for key, value in attributes.items())


def get_pooling_types_dict():
    """Return the names of the pooling methods by number."""
    return {value: name for name, value in caffe_pb2.PoolingParameter.PoolMethod.items()}


def get_edge_label(layer):
    """Return the label of an edge from `layer`: ``Batch 64`` for Data, num_output for layers that have one, else nothing."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    return str(getattr(layer, WEIGHTED[layer.type]).num_output) if layer.type in WEIGHTED else ""


def get_layer_label(layer, rankdir, display_lrm=False):
    """Return the label of the node of `layer`: name, type, and the sizes of convolutions and poolings.

    The parts are side by side for `rankdir` TB and BT, below each other for LR and RL.
    """
    parts = [layer.name]
    if layer.type in ("Convolution", "Deconvolution"):
        parts += [f"({layer.type})"] + _sizes(layer.convolution_param)
    elif layer.type == "Pooling":
        parts += [f"({get_pooling_types_dict()[layer.pooling_param.pool]} {layer.type})"] + _sizes(layer.pooling_param)
    else:
        parts += [f"({layer.type})"]
    if display_lrm and layer.type in WEIGHTED:
        weight, bias = get_layer_lr_mult(layer)
        if weight or bias:
            parts += [f"lr mult: {weight:.1f}, {bias:.1f}"]
    return (" " if rankdir in ("TB", "BT") else r"\n").join(parts)


def _sizes(param):
    return [f"{name.replace('_', ' ')}: {window_text(param, name, usual)}"
            for name, usual in (("kernel_size", 1), ("stride", 1), ("pad", 0))]


def choose_color_by_layertype(layertype):
    """Return the colour of a layer's node."""
    return COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def get_pydot_graph(caffe_net, rankdir, label_edges=True, phase=None, display_lrm=False):
    """Return the graph of a net.

    Parameters
    ----------
    caffe_net : NetParameter
        Its ``layer`` entries are drawn; upgrade old nets before.
    rankdir : {"LR", "RL", "TB", "BT"}
    label_edges : bool
    phase : int, optional
        TRAIN or TEST: draw only the layers of this phase.
    display_lrm : bool
        Show learning-rate multipliers.
    """
    graph = Graph(caffe_net.name or "Net", rankdir=rankdir)
    nodes = {}

    def blob_node(name):
        return nodes.setdefault(f"{name}_blob", Node(f"{name}_blob", label=name, **BLOB_STYLE))

    for layer in caffe_net.layer:
        if phase is not None and not is_included(layer, phase):
            continue
        name = f"{layer.name}_{layer.type}"
        in_place = len(layer.bottom) == 1 and len(layer.top) == 1 and layer.bottom[0] == layer.top[0]
        style = NEURON_LAYER_STYLE if in_place else {**LAYER_STYLE_DEFAULT, "fillcolor": choose_color_by_layertype(layer.type)}
        nodes[name] = node = Node(name, label=get_layer_label(layer, rankdir, display_lrm), **style)
        for bottom in layer.bottom:
            graph.add_edge(blob_node(bottom), node)
        for top in layer.top:
            graph.add_edge(node, blob_node(top), get_edge_label(layer) if label_edges else "")
    for node in nodes.values():
        graph.add_node(node)
    return graph


def draw_net(caffe_net, rankdir, ext="png", phase=None, display_lrm=False):
    """Return the picture of a net as bytes in the format `ext`; the other parameters are those of `get_pydot_graph`.

    ``svg`` and ``png`` need no Graphviz (`net_svg`), ``png`` the wheel resvg-py.
    """
    if ext in ("svg", "png"):
        from minicaffe.inspection.drawing import net_svg, svg_to_png  # `import minicaffe` imports this file
        svg = net_svg(caffe_net, rankdir, phase, display_lrm)
        return svg.encode() if ext == "svg" else svg_to_png(svg)
    return get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm).create(format=ext)


def draw_net_to_file(caffe_net, filename, rankdir="LR", phase=None, display_lrm=False):
    """Write the picture of a net to a file; its extension is the format: svg, png, dot, and with Graphviz pdf, ...

    Raises
    ------
    ConfigError
        If the name has no extension.
    FileError
        If the file cannot be written.
    """
    extension = os.path.splitext(filename)[1]
    if not extension:
        raise ConfigError("has no extension, which says the format: .svg, .png, .dot, or what Graphviz makes, such as .pdf",
                          file=os.fspath(filename))
    write_bytes(filename, draw_net(caffe_net, rankdir, extension[1:], phase, display_lrm))
