"""Write ResNet-50's net.prototxt and deploy.prototxt (layer names of the authors' ResNet-50-deploy.prototxt).

``python make.py 101`` or ``152`` prints the deploy net of that depth.
"""

import sys
from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # of the stages 2 to 5 (table 1 of the paper)


def convolution(n, name, bottom, num_output, norm, relu=None, bias=False, **fields):
    """Add a convolution `name` with its BatchNorm and Scale, bn<norm> and scale<norm>, and a ReLU named `relu`."""
    params = making.WEIGHT_AND_BIAS if bias else making.WEIGHT_AND_BIAS[:1]
    n[name] = L.Convolution(bottom, num_output=num_output, bias_term=bias, param=params, weight_filler=dict(type="msra"), **fields)
    n[f"bn{norm}"] = L.BatchNorm(n[name], in_place=True, param=[dict(lr_mult=0, decay_mult=0)] * 3)
    x = n[f"scale{norm}"] = L.Scale(n[f"bn{norm}"], in_place=True, bias_term=True, param=[dict(lr_mult=1, decay_mult=0)] * 2)
    if relu:
        x = n[relu] = L.ReLU(x, in_place=True)
    return x


def block(n, name, bottom, width, stride, project):
    """Add a bottleneck; where it halves the picture, its first 1x1 convolution does so."""
    short = bottom
    if project:
        short = convolution(n, f"res{name}_branch1", bottom, 4 * width, f"{name}_branch1", kernel_size=1, stride=stride)
    x = bottom
    for part, num_output, fields in (("a", width, dict(kernel_size=1, stride=stride)), ("b", width, dict(kernel_size=3, pad=1)),
                                     ("c", 4 * width, dict(kernel_size=1))):
        branch = f"{name}_branch2{part}"
        x = convolution(n, f"res{branch}", x, num_output, branch, relu=f"res{branch}_relu" if part != "c" else None, **fields)
    n[f"res{name}"] = L.Eltwise(short, x)
    n[f"res{name}_relu"] = L.ReLU(n[f"res{name}"], in_place=True)
    return n[f"res{name}_relu"]


def block_names(depth, stage, count):
    """Return the names of a stage's blocks: 2a, 2b, 2c; in the middle stages of the deeper nets 3a, 3b1, 3b2 and so on."""
    if depth > 50 and stage in (3, 4):
        return [f"{stage}a", *(f"{stage}b{i}" for i in range(1, count))]
    return [f"{stage}{letter}" for letter in "abcdef"[:count]]


def body(n, depth):
    """Add the layers from n.data to the scores n.fc1000."""
    x = convolution(n, "conv1", n.data, 64, "_conv1", relu="conv1_relu", bias=depth == 50, kernel_size=7, pad=3, stride=2)
    x = n.pool1 = L.Pooling(x, pool=P.Pooling.MAX, kernel_size=3, stride=2)
    for stage, count in enumerate(BLOCKS[depth], 2):
        for i, name in enumerate(block_names(depth, stage, count)):
            x = block(n, name, x, 64 * 2 ** (stage - 2), 2 if i == 0 and stage > 2 else 1, project=i == 0)
    n.pool5 = L.Pooling(x, pool=P.Pooling.AVE, kernel_size=7, stride=1)
    n.fc1000 = L.InnerProduct(n.pool5, num_output=1000, param=making.WEIGHT_AND_BIAS, weight_filler=dict(type="msra"))


def deploy(depth):
    """Return the NetParameter for one picture."""
    n = caffe.NetSpec()
    n.data = making.one_picture(224)
    body(n, depth)
    n.prob = L.Softmax(n.fc1000)
    return making.named(n.to_proto(), f"ResNet-{depth}")


def nets():
    """Return the NetParameters by file name."""
    n = caffe.NetSpec()
    n.data, n.label = making.pictures(224, 32, mean_value=making.MEAN_VALUES)
    body(n, 50)
    making.score(n, n.fc1000)
    return {"net.prototxt": making.named(making.with_test_pictures(n.to_proto(), 25), "ResNet-50"),
            "deploy.prototxt": deploy(50)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(deploy(int(sys.argv[1])))
    else:
        making.write(__file__, nets())
