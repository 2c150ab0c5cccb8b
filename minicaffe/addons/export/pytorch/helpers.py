"""Helpers for layers that `torch.nn` lacks: an export contains the text of those that it uses (source.py).

minicaffe does not import this module, so it works without PyTorch. Everything here is complete without minicaffe.
"""

import torch
import torch.nn.functional as F
from torch import nn

# ---- modules, with the shapes of Caffe's parameters


class Scale(nn.Module):
    """Scale, Bias: multiply by a weight, add a bias; both get `trailing` axes of size 1 at the end, and are broadcast."""

    def __init__(self, shape, trailing=0, weight=True, bias=False):
        super().__init__()
        self.trailing = (1,) * trailing
        self.weight = nn.Parameter(torch.ones(shape)) if weight else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def forward(self, x):
        x = x if self.weight is None else x * self.weight.reshape(self.weight.shape + self.trailing)
        return x if self.bias is None else x + self.bias.reshape(self.bias.shape + self.trailing)


class Recurrent(nn.Module):
    """LSTM or RNN of Caffe: x (steps, batch, inputs), and cont (steps, batch), which is 0 where a sequence begins and else 1.

    The states before the first step are those after the last step of the previous call, without a gradient; in the first call
    they are 0. Set `state` to None to start from 0 again. If h, and c of an LSTM, (1, batch, size) are given, the call begins with
    them, and also returns those after the last step.
    """

    gates = states = 1

    def __init__(self, inputs, size, static=0):
        super().__init__()
        rows, self.size, self.state = self.gates * size, size, None
        self.weight_x = nn.Parameter(torch.empty(rows, inputs).uniform_(-0.08, 0.08))
        self.bias = nn.Parameter(torch.zeros(rows))
        self.weight_static = nn.Parameter(torch.empty(rows, static).uniform_(-0.08, 0.08)) if static else None
        self.weight_h = nn.Parameter(torch.empty(rows, size).uniform_(-0.08, 0.08))

    def forward(self, x, cont, static=None, **given):
        sums, cont, tops = F.linear(x.flatten(2), self.weight_x, self.bias), cont.reshape(*x.shape[:2], 1), []
        if self.weight_static is not None:
            sums = sums + F.linear(static.flatten(1), self.weight_static)
        if given:
            state = [given[name].reshape(x.shape[1], self.size) for name in "hc"[:self.states]]
        elif self.state is not None and self.state[0].shape[0] == x.shape[1]:
            state = [value.to(x) for value in self.state]
        else:
            state = [x.new_zeros(x.shape[1], self.size)] * self.states
        for value, m in zip(sums, cont):
            top, state = self.step(value + F.linear(state[0] * m, self.weight_h), m, *state)
            tops.append(top)
        if given:
            return torch.stack(tops), *(value[None] for value in state)
        self.state = [value.detach() for value in state]
        return torch.stack(tops)


class LSTM(Recurrent):
    """LSTM of Caffe, with the states h and c."""

    gates, states = 4, 2

    def step(self, gate, m, h, c):
        c, h = caffe_lstm_unit(c, gate, m)
        return h, (h, c)


class RNN(Recurrent):
    """RNN of Caffe: h = tanh(W_h h + W_x x + b), y = tanh(W_o h + b_o)."""

    def __init__(self, inputs, size, static=0):
        super().__init__(inputs, size, static)
        self.weight_o = nn.Parameter(torch.empty(size, size).uniform_(-0.08, 0.08))
        self.bias_o = nn.Parameter(torch.zeros(size))

    def step(self, value, m, h):
        h = value.tanh()
        return F.linear(h, self.weight_o, self.bias_o).tanh(), (h,)


# ---- functions


def caffe_pool(x, method, kernel, stride, pad, sizes):
    """MAX or AVE pooling with windows that PyTorch's pooling does not support; the top has planes of `sizes`."""
    ends = [max(0, (n - 1) * s + k - size - p) for n, s, k, size, p in zip(sizes, stride, kernel, x.shape[2:], pad)]
    sides = (pad[1], ends[1], pad[0], ends[0])
    if method == "MAX":
        y = F.max_pool2d(F.pad(x, sides, value=-torch.inf), kernel, stride)
        return y.clamp(min=torch.finfo(x.dtype).min)    # not -inf for a window outside of the picture
    ones = F.pad(torch.ones_like(x[:1, :1]), (pad[1], pad[1], pad[0], pad[0]), value=1)     # Caffe's divisor counts padding,
    ones = F.pad(ones, (0, ends[1] - pad[1], 0, ends[0] - pad[0]))                          # and not what is beyond it
    counted = F.avg_pool2d(ones, kernel, stride).clamp(min=torch.finfo(x.dtype).tiny)   # no 0 / 0 outside of the picture
    return F.avg_pool2d(F.pad(x, sides), kernel, stride) / counted


def caffe_mask(y, positions):
    """Return a maximum and its positions as the floats that Caffe's second top has."""
    return y, positions.to(y.dtype)


def caffe_stochastic_pool(x, kernel, stride):
    """STOCHASTIC pooling in phase TEST: sum of x^2 / sum of x. Training does the same, without random numbers."""
    total = F.avg_pool2d(x, kernel, stride, ceil_mode=True)
    squares = F.avg_pool2d(x * x, kernel, stride, ceil_mode=True)
    return torch.where(total > 0, squares / torch.where(total > 0, total, 1), 0)


def caffe_lrn_within_channel(x, size, alpha, beta):
    """LRN with WITHIN_CHANNEL; Caffe ignores k here."""
    return x * (1 + alpha * F.avg_pool2d(x * x, size, 1, (size - 1) // 2)) ** -beta


def caffe_mvn(x, dims, normalize_variance, eps):
    """MVN: subtract the mean; eps is added to the deviation, not to the variance."""
    x = x - x.mean(dims, keepdim=True)
    return x / ((x * x).mean(dims, keepdim=True).sqrt() + eps) if normalize_variance else x


def caffe_arg_max(x, top_k, dim):
    """Return the `top_k` greatest values along an axis and their indices; of equal values, the last index is first."""
    values, indices = x.flip(dim).sort(dim=dim, descending=True, stable=True)
    return values.narrow(dim, 0, top_k), (x.shape[dim] - 1 - indices.narrow(dim, 0, top_k)).to(x.dtype)


def caffe_lstm_unit(c, gates, cont):
    """LSTMUnit: return the next c and h."""
    i, f, o, g = gates.chunk(4, -1)
    c = f.sigmoid() * cont.reshape(*gates.shape[:-1], 1) * c + i.sigmoid() * g.tanh()
    return c, o.sigmoid() * c.tanh()


def caffe_detection_output(location, score, prior, classes, share_location, background, code_type, variance_in_target, threshold,
                           nms_threshold, eta, top_k, keep_top_k):
    """DetectionOutput of SSD: return rows (picture, label, score, xmin, ymin, xmax, ymax), shape (1, 1, rows, 7); no gradient.

    -1 means no `background`, or all boxes for `top_k` and `keep_top_k`. If no picture has a row, each gets one, in which all
    values except the picture's number are -1.
    """
    pictures, rows = len(location), []
    prior, variance = prior.detach().reshape(2, -1, 1, 4)
    score = score.detach().reshape(pictures, -1, classes)
    code = location.detach().reshape(pictures, -1, 1 if share_location else classes, 4)
    if not variance_in_target:
        code = code * variance
    low, size = prior[..., :2], prior[..., 2:] - prior[..., :2]
    if code_type == "CENTER_SIZE":
        middle = code[..., :2] * size + (low + prior[..., 2:]) / 2
        half = code[..., 2:].exp() * size / 2
        boxes = torch.cat((middle - half, middle + half), -1)
    else:
        boxes = prior + (code * torch.cat((size, size), -1) if code_type == "CORNER_SIZE" else code)
    for picture in range(pictures):
        found = []
        for label in range(classes):
            if label == background:
                continue
            own, where = score[picture, :, label].sort(descending=True, stable=True)
            count = int((own > threshold).sum())
            count = min(count, top_k) if top_k >= 0 else count
            box = boxes[picture, where[:count], 0 if share_location else label]
            kept = suppress(box, nms_threshold, eta)
            head = torch.stack((torch.full_like(own[kept], picture), torch.full_like(own[kept], label), own[kept]), 1)
            found.append(torch.cat((head, box[kept]), 1))
        found = torch.cat(found) if found else score.new_zeros(0, 7)
        if 0 <= keep_top_k < len(found):
            best = found[:, 2].sort(descending=True, stable=True).indices[:keep_top_k]
            found = found[best.sort().values]
        rows.append(found)
    rows = torch.cat(rows)
    if not len(rows):
        rows = score.new_full((pictures, 7), -1)
        rows[:, 0] = torch.arange(pictures)
    return rows[None, None]


def suppress(boxes, threshold, eta):
    """Return the indices of the boxes, sorted by falling score, that no better kept box overlaps by more than a threshold."""
    low, high = boxes[:, :2], boxes[:, 2:]
    both = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0).prod(2)
    area = (high - low).clamp(min=0).prod(1)
    overlap = (both / (area[:, None] + area - both)).where(both > 0, 0)
    kept = []
    for i in range(len(boxes)):
        if not (overlap[i, kept] > threshold).any():
            kept.append(i)
            threshold = threshold * eta if eta < 1 and threshold > 0.5 else threshold
    return kept


# ---- accuracy and losses


def labels_of(scores, labels, axis, ignore_label=None):
    """Return two tensors with an axis of size 1 for the classes: labels as indices (0 if ignored), and 1 for labels not ignored."""
    shape = list(scores.shape)
    shape[axis] = 1
    index = labels.reshape(shape).long()
    valid = torch.ones_like(scores.narrow(axis, 0, 1)) if ignore_label is None else (index != ignore_label).to(scores.dtype)
    return index.where(valid > 0, 0), valid


def normalized(total, normalization, scores, axis, valid):
    """Divide the sum of a loss by the divisor that `loss_param.normalization` names."""
    divisor = {"VALID": valid.sum(), "FULL": valid.new_tensor(valid.numel()), "NONE": valid.new_ones(()),
               "BATCH_SIZE": valid.new_tensor(scores.shape[:axis].numel())}[normalization]
    return total / divisor.clamp(min=1)


def caffe_accuracy(scores, labels, axis, top_k, ignore_label):
    """Accuracy: return the share of labels among the `top_k` highest scores, of all and of each class."""
    index, valid = labels_of(scores, labels, axis, ignore_label)
    # Another class with an equal score ranks above the label, as in Caffe; a NaN does not rank above any class.
    rank = (~(scores < scores.gather(axis, index))).sum(axis, keepdim=True)
    hits = (rank <= top_k) * valid
    own = torch.zeros_like(scores).scatter(axis, index, valid)
    right, count = ((own * x).movedim(axis, 0).reshape(scores.shape[axis], -1).sum(1) for x in (hits, 1))
    return hits.sum() / valid.sum().clamp(min=1), right / count.clamp(min=1)


def caffe_softmax_loss(scores, labels, axis, ignore_label, normalization):
    """SoftmaxWithLoss: return the loss and the probabilities."""
    index, valid = labels_of(scores, labels, axis, ignore_label)
    losses = -scores.log_softmax(axis).gather(axis, index).clamp(min=-87.33655)     # the log of FLT_MIN
    return normalized((losses * valid).sum(), normalization, scores, axis, valid), scores.softmax(axis)


def caffe_infogain_loss(scores, labels, matrix, axis, ignore_label, normalization):
    """InfogainLoss: return the loss and the probabilities."""
    index, valid = labels_of(scores, labels, axis, ignore_label)
    log = scores.softmax(axis).clamp(min=1e-20).log()
    rows = matrix.reshape(scores.shape[axis], scores.shape[axis])[index.squeeze(axis)].movedim(-1, axis)
    losses = -(rows * log).sum(axis, keepdim=True)
    return normalized((losses * valid).sum(), normalization, scores, axis, valid), scores.softmax(axis)


def caffe_logistic_loss(probabilities, labels):
    """MultinomialLogisticLoss."""
    flat = probabilities.flatten(1)
    return -flat.gather(1, labels.reshape(-1, 1).long()).clamp(min=1e-20).log().sum() / len(flat)


def caffe_hinge_loss(scores, labels, norm):
    """HingeLoss with the norm L1 or L2."""
    flat = scores.flatten(1)
    sign = torch.ones_like(flat).scatter(1, labels.reshape(-1, 1).long(), -1)
    margin = (1 + sign * flat).clamp(min=0)
    return (margin if norm == "L1" else margin * margin).sum() / len(flat)


def caffe_smooth_l1_loss(x, y, weight=None):
    """SmoothL1Loss of SSD: the sum divided by the batch, with a weight for each element."""
    difference = x - y.reshape(x.shape)
    difference = difference if weight is None else difference * weight.reshape(x.shape)
    return torch.where(difference.abs() < 1, 0.5 * difference * difference, difference.abs() - 0.5).sum() / len(x)


def caffe_cross_entropy_loss(scores, targets, ignore_label, normalization):
    """SigmoidCrossEntropyLoss."""
    targets = targets.reshape(scores.shape)
    valid = torch.ones_like(scores) if ignore_label is None else (targets.long() != ignore_label).to(scores.dtype)
    losses = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    return normalized((losses * valid).sum(), normalization, scores, 1, valid)


def caffe_contrastive_loss(a, b, similar, margin, legacy_version):
    """ContrastiveLoss; with `legacy_version` the margin is compared with the squared distance."""
    distance = ((a - b) ** 2).flatten(1).sum(1)
    far = (margin - distance).clamp(min=0) if legacy_version else (margin - distance.sqrt()).clamp(min=0) ** 2
    return torch.where(similar.reshape(-1).long() != 0, distance, far).sum() / len(a) / 2
