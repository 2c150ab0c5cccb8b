"""A net as a table: layers, shapes, parameters, bytes, operations and engines (`minicaffe summary`, ``print(net)``)."""

from collections import namedtuple
from html import escape

from minicaffe.blob import NUMPY_TYPES
from minicaffe.inspection import cost
from minicaffe.memory.sizes import scaled_text, size_text
from minicaffe.proto.fields import window_sizes

CONVOLUTIONS = ("Convolution", "Deconvolution", "Im2col", "ConvolutionDepthwise", "DepthwiseConvolution")
HEADS = "layer", "type", "output", "parameters", "data", "diff", "scratch", "FLOPs", "computed by"
TEXTS = "layer", "type", "output", "computed by"        # columns to the left
SUMMED = "parameters", "data", "diff", "flops", "backward_flops"      # fields of a LayerRow
LESS_NEEDED = "scratch", "diff", "data", "FLOPs"        # columns that a narrow terminal lacks, the first one first


class LayerRow(namedtuple(
        "LayerRow", "name type shapes sizes parameters data diff flops backward_flops engine layout fused by scratch block",
        defaults=(None, None, (), "", None, ""))):
    """Type, sizes and memory of a layer; bytes that it shares with an earlier layer are not counted again.

    `shapes` are those of the tops, `sizes` a text (`sizes` below). `parameters` is a number of values; `data`, `diff` (of the tops)
    and `scratch` are bytes. `flops` and `backward_flops` are operations (cost.py); `layout` is None if plain. Before the first
    run it is None, and so is `engine` where layouts decide it. `fused` names the layers that it computes, too, and `by` the one
    that computes it ("": itself). `block` is the name by which `Summary.collapse` groups layers (`block_names`).
    """

    def cells(self):
        """Return the row as text, a cell for each of `HEADS`."""
        output = ["x".join(map(str, shape)) or "scalar" for shape in self.shapes]
        nbytes = (size_text(n) if n else "" for n in (self.data, self.diff, self.scratch))
        return (self.name, f"{self.type} {self.sizes}".rstrip(), ", ".join(output),
                f"{self.parameters:,}" if self.parameters else "", *nbytes,
                flops_text(self.flops) if self.flops else "", self.remark())

    def remark(self):
        """Return the text of column "computed by": the engine, or the layer that computes this one, and layouts."""
        parts = [f"with {self.by}"] if self.by else [self.engine] if self.engine else []
        parts += [f"layout {self.layout}"] if self.layout else []
        return ", ".join(parts + ([f"computes {', '.join(self.fused)}, too"] if self.fused else []))


class Summary:
    """The layers of a net as rows, and their totals.

    Parameters
    ----------
    net : Net
    types : dict of str to str, optional
        What the table calls the type of layers that replace others.
    scratch : dict of str to int, optional
        Bytes of scratch memory by layer, if they were measured (inspection/memory_estimate.py).

    Attributes
    ----------
    rows : list of LayerRow
        Splits that take no memory are left out.
    layers : int
        Number of rows before `collapse`.
    parameters, parameter_bytes : int
        Of memories, so that shared parameters count once.
    data, diff, flops, backward_flops : int
        Sums.
    """

    def __init__(self, net, types=None, scratch=None):
        self.name, self.file, self.phase = net.name, net.file, "TEST" if net.phase else "TRAIN"
        # By number of a node: the later layers that it computes, too (`steps`), and the earlier one that computes it (`by`).
        seen, by, self.rows = set(), {}, []
        steps = [[]] * len(net.nodes)
        owners = block_names(net.nodes)
        for row in net.schedule().rows:
            if row.direction == "forward":
                steps[len(by)] = row.layers[1:] + [row.part_of] * (row.part_of is not None)
                by.update(enumerate([""] + row.layers[:1] * (len(row.layers) - 1), len(by)))
        for i, (node, fused, owner) in enumerate(zip(net.nodes, steps, owners, strict=True)):
            flops = [cost.of_node(node, direction).flops for direction in ("forward", "backward")]
            engines = [operation.describe()["engine"] for operation in node.layer.operations()]
            layouts = [layout.name for blob in node.tops if (layout := blob.layout_of_data()) is not None]
            row = LayerRow(
                node.name, (types or {}).get(node.name, node.type), [blob.shape for blob in node.tops], sizes(node.param),
                sum(blob.count for blob in node.blobs if _is_new(blob.data_memory, seen)),
                cost.nbytes(blob for blob in node.tops if _is_new(blob.data_memory, seen)),
                cost.nbytes(blob for blob in node.tops if node.needs_backward and _is_new(blob.diff_memory, seen)),
                *flops, "/".join(dict.fromkeys(filter(None, engines))) or None,
                next(iter(layouts), None), fused, by[i], (scratch or {}).get(node.name), owner)
            if node.type != "Split" or row.diff or row.data:
                self.rows.append(row)
        for name in SUMMED:
            setattr(self, name, sum(getattr(row, name) for row in self.rows))
        self.layers = len(self.rows)
        self.parameter_bytes = self.parameters * NUMPY_TYPES[net.dtype].itemsize

    def totals(self):
        """Return the sums in words, a list of lines below the table."""
        shown = f" in {len(self.rows)} rows" if len(self.rows) < self.layers else ""
        lines = [f"{self.layers} layers{shown}, {self.parameters:,} parameters ({size_text(self.parameter_bytes)})",
                 f"blobs, without a plan by which they share memory: data {size_text(self.data)}, diff {size_text(self.diff)}",
                 "net.release() frees them until the next forward",
                 f"operations of a batch: {flops_text(self.flops)}FLOP forward"]
        if self.backward_flops:
            lines[-1] += f", {flops_text(self.backward_flops)}FLOP backward"
        return lines

    def collapse(self, depth):
        """Make one row of the layers whose names have the same first `depth` parts.

        Parts are separated by ``/``, or by ``_`` if no name has a ``/``. Layers in place belong to the layer
        whose blob they change. Such a row has the output of its last layer, sums of parameters, bytes and operations, and the
        largest scratch memory.
        """
        between, groups = "/" if any("/" in row.block for row in self.rows) else "_", {}
        for row in self.rows:
            groups.setdefault(between.join(row.block.split(between)[:depth]), []).append(row)
        self.rows = []
        for name, rows in groups.items():
            sums = {field: sum(getattr(row, field) for row in rows) for field in SUMMED}
            scratch = max((row.scratch for row in rows if row.scratch is not None), default=None)
            self.rows.append(rows[0] if len(rows) == 1 else LayerRow(
                name, f"{len(rows)} layers", rows[-1].shapes, "", **sums, scratch=scratch, block=name))

    def text(self, width=None, engines=True):
        """Return the table and the totals, one line a layer; with `engines` a column says what computes each.

        If `width` is given, so many columns of `LESS_NEEDED` are left out as a line of that width needs, and a line names them.
        """
        place = f" ({self.file})" if self.file else ""
        columns = {head: [head, *cells] for head, cells in zip(HEADS, zip(*(row.cells() for row in self.rows), strict=True))
                   if any(cells) and (engines or head != "computed by")} if self.rows else {}
        widths = {head: max(map(len, cells)) + 2 for head, cells in columns.items()}
        left_out = []
        for head in LESS_NEEDED:
            if width is not None and sum(widths.values()) - 2 > width and widths.pop(head, None):
                left_out.append(head)
        lines = [f"{self.name or 'net'}{place}, phase {self.phase}", ""]
        for cells in zip(*(columns[head] for head in widths), strict=True):
            aligned = (f"{cell:<{size - 2}}" if head in TEXTS else f"{cell:>{size - 2}}"
                       for cell, (head, size) in zip(cells, widths.items(), strict=True))
            lines.append("  ".join(aligned).rstrip())
        if left_out:
            lines.append(f"left out at {width} columns: {', '.join(left_out)}; a pipe and --json have all")
        return "\n".join([*lines, "", *self.totals()])

    def __str__(self):
        return self.text()

    def _repr_html_(self):
        """Return the table for notebooks, which display this instead of `text`."""
        head = "".join(f"<th>{escape(text)}</th>" for text in HEADS)
        lines = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells()) + "</tr>" for row in self.rows]
        return (f"<p><b>{escape(self.name or 'net')}</b>, phase {self.phase}</p><table><thead><tr>{head}</tr></thead>"
                f"<tbody>{''.join(lines)}</tbody></table><p>{'<br>'.join(map(escape, self.totals()))}</p>")


def block_names(nodes):
    """Return for each node a name whose first parts are those of its block: ``inception_3a/1x1`` belongs to ``inception_3a``.

    It is the layer's own name. A layer in place or a Split gets the name of the layer that made its bottom: names such as
    ``bn_conv1`` and ``relu1`` do not begin as those of their block.
    """
    makers, found = {}, []
    for node in nodes:
        bottoms, tops = list(node.param.bottom), list(node.param.top)
        joins = bottoms and (bottoms == tops or node.type == "Split")
        owner = makers.get(bottoms[0], node.name) if joins else node.name
        makers.update(dict.fromkeys(tops, owner))
        found.append(owner)
    return found


def flops_text(flops):
    """Return a number of operations as text: ``36.9 M``."""
    return scaled_text(flops, 1000, ("", *"kMGTP"))


def _is_new(memory, seen):
    """Return whether a memory is not in `seen`, a set of ids, and add it: shared parameters and tops in place count once."""
    count = len(seen)
    seen.add(id(memory))
    return len(seen) > count


def sizes(layer):
    """Return ``kernel/stride+pad num_output/group`` of a convolution or pooling for tables and drawings, usual values left out."""
    if layer.type in CONVOLUTIONS:
        param = layer.convolution_param
        outputs = f" {param.num_output}" if param.num_output else ""
        return _window(param) + outputs + (f"/{param.group}" if param.group != 1 else "")
    if layer.type == "Pooling":
        return "global" if layer.pooling_param.global_pooling else _window(layer.pooling_param)
    return str(layer.inner_product_param.num_output) if layer.type == "InnerProduct" else ""


def _window(param):
    """Return ``kernel/stride+pad`` of a ConvolutionParameter or PoolingParameter, stride 1 and pad 0 left out; 3x3 is ``3``."""
    sizes = (window_sizes(param, name) for name in ("kernel_size", "stride", "pad"))
    kernel, stride, pad = ("x".join(map(str, each if len(set(each)) > 1 else each[:1])) for each in sizes)
    return kernel + (f"/{stride}" if stride not in ("", "1") else "") + (f"+{pad}" if pad not in ("", "0") else "")
