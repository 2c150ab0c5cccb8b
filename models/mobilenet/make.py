"""Write MobileNet 1.0's net.prototxt and deploy.prototxt (layer names of the usual Caffe port: conv2_1/dw, conv2_1/sep, ...)."""

import sys
from pathlib import Path

from minicaffe import layers as L
from minicaffe import params as P

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

MEAN, SCALE = (103.94, 116.78, 123.68), 0.017
# Of each pair of a depthwise and a pointwise convolution: outputs and stride (table 1 of the paper).
PAIRS = {"2_1": (64, 1), "2_2": (128, 2), "3_1": (128, 1), "3_2": (256, 2), "4_1": (256, 1), "4_2": (512, 2),
         "5_1": (512, 1), "5_2": (512, 1), "5_3": (512, 1), "5_4": (512, 1), "5_5": (512, 1), "5_6": (1024, 2), "6": (1024, 1)}


def convolution(n, name, relu, bottom, **fields):
    """Add `name`, its BatchNorm `name`/bn, its Scale `name`/scale, and the ReLU."""
    n[name] = L.Convolution(bottom, bias_term=False, param=making.WEIGHT_AND_BIAS[:1], weight_filler=dict(type="msra"), **fields)
    n[f"{name}/bn"] = L.BatchNorm(n[name], in_place=True, eps=1e-5, param=[dict(lr_mult=0, decay_mult=0)] * 3)
    n[f"{name}/scale"] = L.Scale(n[f"{name}/bn"], in_place=True, bias_term=True, param=[dict(lr_mult=1, decay_mult=0)] * 2)
    n[relu] = L.ReLU(n[f"{name}/scale"], in_place=True)
    return n[relu]


def body(n):
    """Add the layers from n.data to the scores n.fc7."""
    x, width = convolution(n, "conv1", "relu1", n.data, num_output=32, pad=1, kernel_size=3, stride=2), 32
    for pair, (num_output, stride) in PAIRS.items():
        x = convolution(n, f"conv{pair}/dw", f"relu{pair}/dw", x, num_output=width, group=width, pad=1, kernel_size=3,
                        stride=stride)
        x, width = convolution(n, f"conv{pair}/sep", f"relu{pair}/sep", x, num_output=num_output, kernel_size=1), num_output
    n.pool6 = L.Pooling(x, pool=P.Pooling.AVE, global_pooling=True)
    n.fc7 = L.Convolution(n.pool6, num_output=1000, kernel_size=1, param=making.WEIGHT_AND_BIAS, weight_filler=dict(type="msra"))
    return n.fc7


def nets():
    """Return the NetParameters by file name."""
    return making.train_and_deploy("MOBILENET", body, 224, 64, 50, mean_value=MEAN, scale=SCALE)


if __name__ == "__main__":
    making.write(__file__, nets())
