"""Write AlexNet's net.prototxt and deploy.prototxt (layer names of Caffe's bvlc_alexnet)."""

import sys
from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402


def weights(std, bias):
    return dict(param=making.WEIGHT_AND_BIAS, weight_filler=dict(type="gaussian", std=std),
                bias_filler=dict(type="constant", value=bias))


def convolution(n, number, bottom, bias, **fields):
    n[f"conv{number}"] = L.Convolution(bottom, **fields, **weights(0.01, bias))
    n[f"relu{number}"] = L.ReLU(n[f"conv{number}"], in_place=True)
    return n[f"relu{number}"]


def norm_and_pool(n, number, bottom):
    n[f"norm{number}"] = L.LRN(bottom, local_size=5, alpha=0.0001, beta=0.75)
    n[f"pool{number}"] = L.Pooling(n[f"norm{number}"], pool=P.Pooling.MAX, kernel_size=3, stride=2)
    return n[f"pool{number}"]


def fully_connected(n, number, bottom):
    n[f"fc{number}"] = L.InnerProduct(bottom, num_output=4096, **weights(0.005, 0.1))
    n[f"relu{number}"] = L.ReLU(n[f"fc{number}"], in_place=True)
    n[f"drop{number}"] = L.Dropout(n[f"relu{number}"], in_place=True, dropout_ratio=0.5)
    return n[f"drop{number}"]


def body(n):
    """Add the layers from n.data to the scores n.fc8."""
    x = norm_and_pool(n, 1, convolution(n, 1, n.data, 0, num_output=96, kernel_size=11, stride=4))
    x = norm_and_pool(n, 2, convolution(n, 2, x, 0.1, num_output=256, pad=2, kernel_size=5, group=2))
    x = convolution(n, 3, x, 0, num_output=384, pad=1, kernel_size=3)
    x = convolution(n, 4, x, 0.1, num_output=384, pad=1, kernel_size=3, group=2)
    x = convolution(n, 5, x, 0.1, num_output=256, pad=1, kernel_size=3, group=2)
    n.pool5 = L.Pooling(x, pool=P.Pooling.MAX, kernel_size=3, stride=2)
    n.fc8 = L.InnerProduct(fully_connected(n, 7, fully_connected(n, 6, n.pool5)), num_output=1000, **weights(0.01, 0))


def nets():
    """Return the NetParameters by file name."""
    n = caffe.NetSpec()
    n.data, n.label = making.pictures(227, 256, mean_file=making.MEAN_FILE)
    body(n)
    making.score(n, n.fc8)
    deploy = caffe.NetSpec()
    deploy.data = making.one_picture(227)
    body(deploy)
    deploy.prob = L.Softmax(deploy.fc8)
    return {"net.prototxt": making.named(making.with_test_pictures(n.to_proto(), 50), "AlexNet"),
            "deploy.prototxt": making.named(deploy.to_proto(), "AlexNet")}


if __name__ == "__main__":
    making.write(__file__, nets())
