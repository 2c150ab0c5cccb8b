"""Write GoogLeNet's net.prototxt and deploy.prototxt (layer names of Caffe's bvlc_googlenet)."""

import sys
from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

# Outputs of 1x1, 3x3_reduce, 3x3, 5x5_reduce, 5x5, pool_proj (table 1 of the paper).
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def weights(bias):
    return dict(param=making.WEIGHT_AND_BIAS, weight_filler=dict(type="xavier"),
                bias_filler=dict(type="constant", value=bias))


def convolution(n, block, name, bottom, num_output, relu=None, **fields):
    """Add <block>/<name> and <block>/relu_<name>."""
    n[f"{block}/{name}"] = L.Convolution(bottom, num_output=num_output, **fields, **weights(0.2))
    relu = f"{block}/relu_{relu or name}"
    n[relu] = L.ReLU(n[f"{block}/{name}"], in_place=True)
    return n[relu]


def pool(n, name, bottom):
    n[name] = L.Pooling(bottom, pool=P.Pooling.MAX, kernel_size=3, stride=2)
    return n[name]


def inception(n, which, bottom):
    block = f"inception_{which}"
    one, reduce3, three, reduce5, five, projection = INCEPTIONS[which]
    branches = [
        convolution(n, block, "1x1", bottom, one, kernel_size=1),
        convolution(n, block, "3x3", convolution(n, block, "3x3_reduce", bottom, reduce3, kernel_size=1), three, pad=1,
                    kernel_size=3),
        convolution(n, block, "5x5", convolution(n, block, "5x5_reduce", bottom, reduce5, kernel_size=1), five, pad=2,
                    kernel_size=5),
    ]
    n[f"{block}/pool"] = L.Pooling(bottom, pool=P.Pooling.MAX, kernel_size=3, stride=1, pad=1)
    branches.append(convolution(n, block, "pool_proj", n[f"{block}/pool"], projection, kernel_size=1))
    n[f"{block}/output"] = L.Concat(*branches)
    return n[f"{block}/output"]


def scores(n, block, bottom, loss, loss_weight):
    """Add a classifier's loss and its accuracies."""
    n[f"{block}/classifier"] = L.InnerProduct(bottom, num_output=1000, **weights(0))
    n[loss] = L.SoftmaxWithLoss(n[f"{block}/classifier"], n.label, loss_weight=loss_weight)
    test = dict(phase=caffe.TEST)
    n[f"{block}/top-1"] = L.Accuracy(n[f"{block}/classifier"], n.label, include=test)
    n[f"{block}/top-5"] = L.Accuracy(n[f"{block}/classifier"], n.label, include=test, top_k=5)


def auxiliary(n, block, bottom):
    """Add one of the two classifiers inside the net, which exist for training only."""
    n[f"{block}/ave_pool"] = L.Pooling(bottom, pool=P.Pooling.AVE, kernel_size=5, stride=3)
    x = convolution(n, block, "conv", n[f"{block}/ave_pool"], 128, kernel_size=1)
    n[f"{block}/fc"] = L.InnerProduct(x, num_output=1024, **weights(0.2))
    n[f"{block}/relu_fc"] = L.ReLU(n[f"{block}/fc"], in_place=True)
    n[f"{block}/drop_fc"] = L.Dropout(n[f"{block}/relu_fc"], in_place=True, dropout_ratio=0.7)
    scores(n, block, n[f"{block}/drop_fc"], f"{block}/loss1", 0.3)


def body(n, training):
    """Add the layers from n.data to the last pooling and its dropout; for `training` with auxiliary classifiers."""
    x = convolution(n, "conv1", "7x7_s2", n.data, 64, relu="7x7", pad=3, kernel_size=7, stride=2)
    n["pool1/norm1"] = L.LRN(pool(n, "pool1/3x3_s2", x), local_size=5, alpha=0.0001, beta=0.75)
    x = convolution(n, "conv2", "3x3", convolution(n, "conv2", "3x3_reduce", n["pool1/norm1"], 64, kernel_size=1), 192, pad=1,
                    kernel_size=3)
    n["conv2/norm2"] = L.LRN(x, local_size=5, alpha=0.0001, beta=0.75)
    x = pool(n, "pool2/3x3_s2", n["conv2/norm2"])
    for which in INCEPTIONS:
        x = inception(n, which, x)
        if which in ("3b", "4e"):
            x = pool(n, f"pool{which[0]}/3x3_s2", x)
        if training and which in ("4a", "4d"):
            auxiliary(n, "loss1" if which == "4a" else "loss2", x)
    n["pool5/7x7_s1"] = L.Pooling(x, pool=P.Pooling.AVE, kernel_size=7, stride=1)
    n["pool5/drop_7x7_s1"] = L.Dropout(n["pool5/7x7_s1"], in_place=True, dropout_ratio=0.4)
    return n["pool5/drop_7x7_s1"]


def nets():
    """Return the NetParameters by file name."""
    n = caffe.NetSpec()
    n.data, n.label = making.pictures(224, 32, mean_value=making.MEAN_VALUES)
    scores(n, "loss3", body(n, training=True), "loss3/loss3", 1)
    deploy = caffe.NetSpec()
    deploy.data = making.one_picture(224)
    deploy["loss3/classifier"] = L.InnerProduct(body(deploy, training=False), num_output=1000, **weights(0))
    deploy.prob = L.Softmax(deploy["loss3/classifier"])
    return {"net.prototxt": making.named(making.with_test_pictures(n.to_proto(), 50), "GoogleNet"),
            "deploy.prototxt": making.named(deploy.to_proto(), "GoogleNet")}


if __name__ == "__main__":
    making.write(__file__, nets())
