"""The network of a prototxt in PyTorch: a small translator for benchmarks and comparisons.

It knows the layer types of the nets that docs/benchmarks.md compares; another type raises and names itself. A BatchNorm and the
Scale that follows it are one operator, as PyTorch's users write them.
"""

import torch
import torch.nn.functional as F

from minicaffe.proto import caffe_pb2


class TorchNet(torch.nn.Module):
    """Runs the layers of a built minicaffe net with PyTorch's operators and the same parameter values.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        Gives layers, shapes and values; float32.
    """

    def __init__(self, net):
        super().__init__()
        self.steps = []
        self.values = torch.nn.ParameterList()
        nodes = net.nodes
        for i, node in enumerate(nodes):
            layer, after = node.layer, nodes[i + 1] if i + 1 < len(nodes) else None
            maker = getattr(self, "make_" + layer.type, None)
            if layer.type == "Input" or (layer.type == "Scale" and _normalizes(nodes[i - 1], node)):
                continue
            if layer.type == "BatchNorm":
                scale = after if after is not None and after.type == "Scale" and _normalizes(node, after) else None
                run = self.make_BatchNorm(layer, [self._keep(blob) for blob in scale.blobs] if scale else [])
                self.steps.append((run, node.bottoms, (scale or node).tops))
                continue
            if maker is None:
                raise ValueError(f"the PyTorch translator does not know layer type {layer.type} ('{layer.name}')")
            params = [self._keep(blob) for blob in layer.blobs]
            self.steps.append((maker(layer.param, params, node.bottoms[0].shape), node.bottoms, node.tops))
        self.inputs = net.input_blobs
        self.losses = {blob: weight for blob, weight in net.loss_weights.items() if weight}

    def _keep(self, blob):
        self.values.append(torch.nn.Parameter(torch.from_numpy(blob.data.copy())))
        return self.values[-1]

    def _keep_constant(self, value):
        """Keep a tensor that is no parameter; return a function that gives it where the module is now."""
        name = f"constant{len(self._buffers)}"
        self.register_buffer(name, value)
        return lambda: self._buffers[name]

    def forward(self, *inputs):
        """Return the sum of the losses by their weights, or the first top of the last layer if there is none."""
        blobs = dict(zip(self.inputs, inputs))
        for run, bottoms, tops in self.steps:
            results = run(*[blobs[bottom] for bottom in bottoms])
            for top, value in zip(tops, results if isinstance(results, (list, tuple)) else [results] * len(tops)):
                blobs[top] = value
        if not self.losses:
            return blobs[tops[0]]
        return sum(blobs[loss] if weight == 1 else weight * blobs[loss] for loss, weight in self.losses.items())

    # ---- one method for each layer type, returning a callable

    def make_Convolution(self, param, params, shape):
        p = param.convolution_param
        stride, pad, dilation = (_pair(p, "stride", 1), _pair(p, "pad", 0), _pair(p, "dilation", 1))
        weight, bias = params[0], params[1] if len(params) > 1 else None
        return lambda x: F.conv2d(x, weight, bias, stride, pad, dilation, p.group)

    def make_Pooling(self, param, params, shape):
        p = param.pooling_param
        ceil = p.round_mode == caffe_pb2.PoolingParameter.CEIL
        if p.global_pooling:
            return (lambda x: F.adaptive_max_pool2d(x, 1)) if p.pool == p.MAX else (lambda x: F.adaptive_avg_pool2d(x, 1))
        kernel, stride, pad = (p.kernel_h or p.kernel_size, p.kernel_w or p.kernel_size), p.stride, p.pad
        if p.pool == p.MAX:
            return lambda x: F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil)
        return lambda x: F.avg_pool2d(x, kernel, stride, pad, ceil_mode=ceil)

    def make_InnerProduct(self, param, params, shape):
        weight, bias = params[0], params[1] if len(params) > 1 else None
        return lambda x: F.linear(x.flatten(param.inner_product_param.axis), weight, bias)

    def make_ReLU(self, param, params, shape):
        return lambda x: F.relu(x)

    def make_Sigmoid(self, param, params, shape):
        return torch.sigmoid

    def make_TanH(self, param, params, shape):
        return torch.tanh

    def make_Dropout(self, param, params, shape):
        return lambda x: F.dropout(x, param.dropout_param.dropout_ratio, param.phase == caffe_pb2.TRAIN)

    def make_LRN(self, param, params, shape):
        p = param.lrn_param
        return lambda x: F.local_response_norm(x, p.local_size, p.alpha, p.beta, p.k)

    def make_BatchNorm(self, layer, params):
        mean, variance, factor = (torch.from_numpy(blob.data.copy()) for blob in layer.blobs)
        if factor.item():   # Caffe keeps sums; with a factor of 0 they are 0
            mean, variance = mean / factor, variance / factor
        train, eps = layer.param.phase == caffe_pb2.TRAIN, layer.param.batch_norm_param.eps
        mean, variance = self._keep_constant(mean), self._keep_constant(variance)
        return lambda x: F.batch_norm(x, mean(), variance(), *params, training=train, eps=eps)

    def make_Scale(self, param, params, shape):
        view = (1, -1) + (1,) * (len(shape) - 2)
        if len(params) > 1:
            return lambda x: x * params[0].view(view) + params[1].view(view)
        return lambda x: x * params[0].view(view)

    def make_Eltwise(self, param, params, shape):
        return lambda *xs: sum(xs[1:], xs[0])

    def make_Concat(self, param, params, shape):
        return lambda *xs: torch.cat(xs, param.concat_param.axis)

    def make_Flatten(self, param, params, shape):
        return lambda x: x.flatten(1)

    def make_Split(self, param, params, shape):
        return lambda x: x

    def make_Softmax(self, param, params, shape):
        return lambda x: F.softmax(x, param.softmax_param.axis)

    def make_SoftmaxWithLoss(self, param, params, shape):
        axis = param.softmax_param.axis
        return lambda x, label: F.cross_entropy(x.flatten(1) if label.ndim == 1 else x.movedim(axis, 1), label.long())

    def make_Embed(self, param, params, shape):
        return lambda x: F.embedding(x.long(), params[0])

    def make_LSTM(self, param, params, shape):
        """Every batch begins with a state of zeros, whatever `cont` says; the gates i, f, o, g of Caffe are i, f, g, o there."""
        weight, bias, recurrent = params
        size = recurrent.shape[1]
        order = torch.cat([torch.arange(size * gate, size * (gate + 1)) for gate in (0, 1, 3, 2)])
        for value in params:
            value.data = value.data[order].contiguous()
        nothing, state = self._keep_constant(torch.zeros_like(bias.data)), self._keep_constant(torch.zeros(1, shape[1], size))
        train = param.phase == caffe_pb2.TRAIN
        return lambda x, cont: torch.lstm(x, (state(), state()), [weight, recurrent, bias, nothing()], True, 1, 0.0, train, False,
                                          False)[0]

    def make_Silence(self, param, params, shape):
        return lambda *xs: []

    def make_Accuracy(self, param, params, shape):
        return lambda x, label: (x.argmax(1) == label).float().mean()


def _normalizes(node, after):
    """Whether a node is a BatchNorm whose top is the only bottom of the next."""
    return node.type == "BatchNorm" and after.bottoms == node.tops


def _pair(param, field, default):
    """A spatial field of ConvolutionParameter as (height, width)."""
    name = {"kernel_size": "kernel"}.get(field, field)
    if field != "dilation" and (param.HasField(name + "_h") or param.HasField(name + "_w")):
        return getattr(param, name + "_h"), getattr(param, name + "_w")
    values = list(getattr(param, field)) or [default]
    return (values[0], values[0]) if len(values) == 1 else tuple(values)
