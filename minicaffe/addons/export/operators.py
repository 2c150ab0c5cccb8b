"""Layer types as sequences of operators: the one list from which nets are exported to ONNX and to PyTorch.

The function of a layer type has the arguments `out`, a `Writer`, and `node`. It decides Caffe's special cases, and returns a list
with the value of each top, or what ``out.op`` returns for several. ``out.op(operator, *inputs, **attributes)`` writes an operator.
Those with a capital letter are operators of ONNX, with its inputs and attributes. The others, in small letters, are what Caffe
computes by another rule; each writer has its own form of them. Types that the two write by different operators have a function in
`minicaffe.addons.export.onnx` and one in `minicaffe.addons.export.pytorch`.
"""

import logging
import math
from operator import attrgetter

import numpy as np

from minicaffe.addons.export.exporting import checked_preprocessing, registration
from minicaffe.common import TEST
from minicaffe.errors import ConfigError, Error
from minicaffe.net.deploy import ignored
from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary import read_blob

POOLING = caffe_pb2.PoolingParameter
LOSS = caffe_pb2.LossParameter
LAYERS = {}     # layer type -> function
layer = registration(LAYERS)
log = logging.getLogger(__name__)


class Writer:
    """Base of the models that the functions of layer types write, a net in phase TEST.

    Attributes
    ----------
    functions : dict
        Layer type -> function; of the class.
    form, register : str
        For messages: "a model of ONNX", and the function that registers a type; of the class.
    outputs : list of str
        The net's outputs, without its inputs.
    node : minicaffe.net.node.Node
        The layer that is written now.
    values : dict
        Blob -> its value: a name in the model, or an expression.

    Raises
    ------
    ConfigError
        For a net in phase TRAIN or without an output, and for types without a function.
    """

    functions, form, register = {}, "", ""

    def __init__(self, net):
        if net.phase != TEST:
            raise ConfigError("the net is in phase TRAIN; build it for TEST", file=net.file)
        self.check_types([(node.name, node.type, node.line) for node in net.nodes], net.file)
        self.net, self.node, self.values = net, None, {}
        self.outputs = [blob.name for blob in net.output_blobs if blob not in net.input_blobs]
        for blob in net.output_blobs:
            if blob in net.input_blobs:
                log.warning("no layer reads the last value of input '%s', which is not an output of %s", blob.name, self.form)
        if not self.outputs:
            raise ConfigError("the net has no output: its layers have no top that is left for one", file=net.file)

    @classmethod
    def check_types(cls, nodes, file):
        """Raise ConfigError, which names every layer without a function; `nodes` are tuples of name, type and line."""
        found = [node for node in nodes if node[1] != "Input" and node[1] not in cls.functions]
        if not found:
            return
        name, kind, line = found[0]
        if kind == "Python":
            why = (f"{cls.form} cannot call a Python layer; write its formula with other layers, or register a function that "
                   f"exports it ({cls.register}('Python'))")
        elif kind.endswith("Data"):
            why = f"{cls.form} reads no data; make the deploy net (minicaffe deploy), whose inputs are Input layers"
        else:
            why = f"there is no exporter for this type; register one with {cls.register}('{kind}')"
        others = "".join(f"; also '{other}' ({of})" for other, of, _ in found[1:])
        raise ConfigError(why + others, file=file, line=line, layer=name, layer_type=kind)

    def bottom(self, index=0):
        """Return the value of a bottom."""
        return self.values[self.node.bottoms[index].name]

    def bottoms(self):
        """Return the values of all bottoms."""
        return [self.bottom(i) for i in range(len(self.node.bottoms))]

    def preprocess(self, how):
        """Return the value of the first input after a Preprocessing."""
        x, (order, mean) = self.values[self.net.input_blobs[0].name], checked_preprocessing(self.net, how)
        if order:
            x = self.op("Gather", x, order, axis=1)
        if mean is not None:
            x = self.op("Sub", x, mean)
        return self.op("affine", x, how.scale, 0)

    def add_layers(self):
        """Call ``add(index, node)``, of the subclass, for each layer; raise the first error, with the text of all others."""
        errors = []
        for index, node in enumerate(self.net.nodes):
            if node.type == "Input":
                continue
            try:
                if node.type in ("PriorBox", "PriorBoxClustered", "DummyData"):
                    self.net.forward_from_to(index, index)
                self.add(index, node)
            except Error as error:
                errors.append(error.at(file=self.net.file, line=node.line, layer=node.name, layer_type=node.type))
                for blob in node.tops:      # so that later layers are checked, too
                    self.values.setdefault(blob.name, "unknown")
        if errors:
            errors[0].message += "".join(f"\n{error}" for error in errors[1:])
            raise errors[0]


# ---- types that are one operator

def row(operator, **attributes):
    """Return the function of a type that is one operator; an attribute is the path of a field, or a function of the node."""
    found = {name: attrgetter(f"param.{one}") if isinstance(one, str) else one for name, one in attributes.items()}

    def write(out, node):
        result = out.op(operator, *out.bottoms(), **{name: attribute(node) for name, attribute in found.items()})
        return [result] if isinstance(result, str) and len(node.tops) == 1 else result
    return write


def axis_of(axis, shape):
    """Return an axis counted from the front."""
    return axis + len(shape) if axis < 0 else axis


def front(message):
    """Return the attribute that is the `axis` of a message, counted from the front."""
    return lambda node: axis_of(getattr(node.param, message).axis, node.bottoms[0].shape)


def ignored_by(message):
    """Return the attribute that is the label which a message leaves out, or None."""
    return lambda node: ignored(getattr(node.param, message))


def normalized_by(default):
    """Return the attribute that is the name of a loss's normalization."""
    def name(node):
        p = node.param.loss_param
        if not p.HasField("normalization") and p.HasField("normalize"):
            return "VALID" if p.normalize else "BATCH_SIZE"
        return LOSS.NormalizationMode.Name(p.normalization) if p.HasField("normalization") else default
    return name


LAYERS |= {
    "AbsVal": row("Abs"), "BNLL": row("Softplus"), "Sigmoid": row("Sigmoid"), "TanH": row("Tanh"),
    "ReLU": row("relu", slope="relu_param.negative_slope"), "Clip": row("clip", low="clip_param.min", high="clip_param.max"),
    "ELU": row("Elu", alpha="elu_param.alpha"), "Swish": row("swish", beta="swish_param.beta"),
    "Softmax": row("Softmax", axis="softmax_param.axis"), "Dropout": row("dropout", ratio="dropout_param.dropout_ratio"),
    "Threshold": row("threshold", bound="threshold_param.threshold"), "BatchReindex": row("batch_reindex"),
    "PReLU": row("prelu", slopes=lambda node: node.layer.blobs[0].count),
    "Embed": row("embed", rows="embed_param.input_dim", size="embed_param.num_output", bias="embed_param.bias_term"),
    "LSTMUnit": row("lstm_unit"), "Parameter": row("parameter"),
    # Of equal values Caffe takes the last.
    "ArgMax": row("argmax", axis=lambda node: node.param.argmax_param.axis if node.param.argmax_param.HasField("axis") else None,
                  top_k="argmax_param.top_k", out_max_val="argmax_param.out_max_val"),
    # The labels are inputs of the net.
    "Accuracy": row("accuracy", axis=front("accuracy_param"), top_k="accuracy_param.top_k", ignored=ignored_by("accuracy_param")),
    "SoftmaxWithLoss": row("softmax_loss", axis=front("softmax_param"), ignored=ignored_by("loss_param"),
                           mode=normalized_by("VALID")),
    "SigmoidCrossEntropyLoss": row("cross_entropy_loss", ignored=ignored_by("loss_param"), mode=normalized_by("BATCH_SIZE")),
    "HingeLoss": row("hinge_loss", norm=lambda node: caffe_pb2.HingeLossParameter.Norm.Name(node.param.hinge_loss_param.norm)),
    "ContrastiveLoss": row("contrastive_loss", margin="contrastive_loss_param.margin",
                           legacy="contrastive_loss_param.legacy_version"),
    "MultinomialLogisticLoss": row("logistic_loss"), "EuclideanLoss": row("euclidean_loss"),
}


@layer("SmoothL1Loss")
def smooth_l1_loss(out, node):
    if len(node.bottoms) > 3 or node.param.fork_fields:
        raise ConfigError("the loss of Fast R-CNN, with four bottoms or smooth_l1_loss_param, has no exporter; remove the layer")
    return [out.op("smooth_l1_loss", *out.bottoms())]


@layer("InfogainLoss")
def infogain_loss(out, node):
    xs, p = out.bottoms(), node.param.infogain_loss_param
    if len(xs) < 3:
        xs.append(np.array(read_blob(p.source).data, np.float32))
    return out.op("infogain_loss", *xs, axis=axis_of(p.axis, node.bottoms[0].shape), ignored=ignored(node.param.loss_param),
                  mode=normalized_by("VALID")(node))


# ---- elementwise

@layer("Power")
def power(out, node):
    p, x = node.param.power_param, out.bottom()
    if p.power == 0 or p.scale == 0:        # the bottom does not count
        return [out.op("filled", x, 1.0 if p.power == 0 else float(np.float32(p.shift) ** np.float32(p.power)))]
    x = out.op("affine", x, p.scale, p.shift)
    return [x if p.power == 1 else out.op("power", x, p.power)]


@layer("Exp")
def exponential(out, node):
    p, log = node.param.exp_param, log_of(node.param.exp_param.base)
    return [out.op("Exp", out.op("affine", out.bottom(), log * p.scale, log * p.shift))]


@layer("Log")
def logarithm(out, node):
    p = node.param.log_param
    y = out.op("Log", out.op("affine", out.bottom(), p.scale, p.shift))
    return [y if p.base == -1 else out.op("Div", y, log_of(p.base))]


def log_of(base):
    """Return the natural logarithm of the base of an Exp or Log layer; -1 means e."""
    return 1 if base == -1 else math.log(base)


@layer("Eltwise")
def eltwise(out, node):
    p, (y, *xs) = node.param.eltwise_param, out.bottoms()
    if p.operation == p.SUM and p.coeff:
        y, *xs = (out.op("affine", x, coeff, 0) for x, coeff in zip([y, *xs], p.coeff))
    for x in xs:
        y = out.op({p.SUM: "Add", p.PROD: "Mul", p.MAX: "Max"}[p.operation], y, x)
    return [y]


# ---- scales and statistics

@layer("Scale", "Bias")
def scale(out, node):
    """A scale or bias is broadcast from `axis` on: it has axes of size 1 behind it."""
    scales, x, shape = node.type == "Scale", out.bottom(), node.bottoms[0].shape
    p, learned = node.param.scale_param if scales else node.param.bias_param, len(node.bottoms) == 1

    def trailing(own):
        return len(shape) - axis_of(p.axis, shape) - len(own) if own else 0

    if not learned:
        x = out.op("Mul" if scales else "Add", x, trailed(out, out.bottom(1), trailing(node.bottoms[1].shape)))
    if not node.layer.blobs:
        return [x]
    weight = 0 if scales and learned else None
    bias = len(node.layer.blobs) - 1 if not scales or p.bias_term else None
    return [out.op("channels", x, weight=weight, bias=bias, trailing=trailing(node.layer.blobs[0].shape))]


def trailed(out, x, count):
    """Return x with `count` more axes of size 1 at the end."""
    return out.op("Unsqueeze", x, list(range(-count, 0))) if count > 0 else x


def batch_statistics(mean, variance, weight):
    """Return mean and variance of a BatchNorm, which Caffe stores as sums with the sum of their weights."""
    factor = 1 / float(weight.item()) if weight.item() else 0.0
    return np.float64(mean) * factor, np.float64(variance) * factor


@layer("MVN")
def mvn(out, node):
    p = node.param.mvn_param
    x = trailed(out, out.bottom(), 4 - node.bottoms[0].num_axes)       # Caffe's top has 4 axes
    axes = (1, 2, 3) if p.across_channels else (2, 3)
    return [out.op("mvn", x, axes=axes, normalize_variance=p.normalize_variance, eps=p.eps)]


@layer("LRN")
def lrn(out, node):
    p, x = node.param.lrn_param, out.bottom()
    if p.norm_region == p.ACROSS_CHANNELS:
        return [out.op("LRN", x, size=p.local_size, alpha=p.alpha, beta=p.beta, bias=p.k)]
    return [out.op("lrn_within_channel", x, size=p.local_size, alpha=p.alpha, beta=p.beta)]     # Caffe ignores k here


@layer("Reduction")
def reduction(out, node):
    p, count = node.param.reduction_param, node.bottoms[0].num_axes
    kind = {p.SUM: "ReduceSum", p.ASUM: "ReduceL1", p.SUMSQ: "ReduceSumSquare", p.MEAN: "ReduceMean"}[p.operation]
    y = out.op("reduction", out.bottom(), kind=kind, axes=tuple(range(p.axis % count, count)))
    return [out.op("affine", y, p.coeff, 0)]


@layer("Normalize")
def normalize(out, node):
    p, count = node.param.norm_param, node.bottoms[0].num_axes
    axes, shape = tuple(range(1, count)) if p.across_spatial else (1,), node.layer.blobs[0].shape
    x = out.op("normalize", out.bottom(), axes=axes, eps=p.eps)
    return [out.op("channels", x, weight=0, bias=None, trailing=count - 2 if shape else 0)]


# ---- shapes

@layer("Split")
def split(out, node):
    return out.bottoms() * len(node.tops)


@layer("Silence", "HDF5Output")
def nothing(out, node):
    if node.type == "HDF5Output":
        log.warning("layer '%s' (HDF5Output) is left out: no file is written", node.name)
    return []


def older_axis(param, older):
    """Return `axis` of a layer's message, or what its older field gives."""
    return getattr(param, older) if param.HasField(older) else param.axis


@layer("Concat")
def concat(out, node):
    xs, axis = out.bottoms(), older_axis(node.param.concat_param, "concat_dim")
    return xs if len(xs) == 1 else [out.op("Concat", *xs, axis=axis)]


@layer("Slice")
def slices(out, node):
    p, axis = node.param.slice_param, older_axis(node.param.slice_param, "slice_dim")
    return out.bottoms() if len(node.tops) == 1 else out.op("slices", out.bottom(), axis=axis, points=tuple(p.slice_point))


@layer("Permute")
def permute(out, node):
    order, count = list(node.param.permute_param.order), node.bottoms[0].num_axes
    return [out.op("Transpose", out.bottom(), perm=order + [axis for axis in range(count) if axis not in order])]


@layer("Tile")
def tile(out, node):
    p, count = node.param.tile_param, node.bottoms[0].num_axes
    return [out.op("Tile", out.bottom(), [p.tiles if i == p.axis % count else 1 for i in range(count)])]


@layer("Crop")
def crop(out, node):
    """`starts` are the first indices along the axes from `axis` on."""
    p, shape = node.param.crop_param, node.bottoms[0].shape
    axis = axis_of(p.axis, shape)
    count = len(shape) - axis
    starts = list(p.offset) * (count if len(p.offset) == 1 else 1) or [0] * count
    return [out.op("crop", *out.bottoms(), axis=axis, starts=starts)]


@layer("Filter")
def select(out, node):
    *xs, selector = out.bottoms()
    return [out.op("select", x, selector) for x in xs]


@layer("SPP")
def pyramid(out, node):
    """Spatial pyramid pooling: poolings into 1, 4, 16, ... bins, one behind the other."""
    levels = [out.op("pool", out.bottom(), layer=layer, size=tops[0].shape[2:]) for layer, _, tops in node.layer.inside
              if layer.type == "Pooling"]
    return levels if len(levels) == 1 else [out.op("Concat", *(out.op("Flatten", level, axis=1) for level in levels), axis=1)]


def pads(sizes, results, kernel, stride, pad, dilation=None):
    """Return ONNX's `pads` (begins, then ends) for planes of the sizes `results`, if the number of windows is rounded down."""
    begin, end = list(pad), []
    for i, (size, result) in enumerate(zip(sizes, results, strict=True)):
        reach = (kernel[i] - 1) * (dilation[i] if dilation else 1) + 1
        end.append(max(0, (result - 1) * stride[i] + reach - size - pad[i]))
    return begin + end


# ---- sources without data

@layer("DummyData", "PriorBox", "PriorBoxClustered")
def constants(out, node):
    """The tops do not depend on the inputs: their values now."""
    if any(filler.type != "constant" for filler in node.param.dummy_data_param.data_filler):
        raise ConfigError("fills its tops with random numbers in each run; write an Input layer in its place",
                          field="dummy_data_param")
    return [out.op("constant", np.array(blob.data, np.float32), name=f"{node.name}_{blob.name}") for blob in node.tops]
