"""Write SqueezeNet 1.1 (net.prototxt, deploy.prototxt) and 1.0 (net_v1.0.prototxt, deploy_v1.0.prototxt), published layer names."""

import sys
from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

# Outputs of squeeze1x1 and of each expand (table 1 of the paper).
FIRES = {2: (16, 64), 3: (16, 64), 4: (32, 128), 5: (32, 128), 6: (48, 192), 7: (48, 192), 8: (64, 256), 9: (64, 256)}
POOLED = {"1.0": (4, 8), "1.1": (3, 5)}  # fires with a pooling behind them


def convolution(n, name, relu, bottom, num_output, filler, **fields):
    n[name] = L.Convolution(bottom, num_output=num_output, weight_filler=filler, **fields)
    n[relu] = L.ReLU(n[name], in_place=True)
    return n[relu]


def pool(n, number, bottom):
    n[f"pool{number}"] = L.Pooling(bottom, pool=P.Pooling.MAX, kernel_size=3, stride=2)
    return n[f"pool{number}"]


def fire(n, number, bottom):
    squeeze, expand = FIRES[number]
    xavier = dict(type="xavier")

    def part(name, bottom, num_output, **fields):
        return convolution(n, f"fire{number}/{name}", f"fire{number}/relu_{name}", bottom, num_output, xavier, **fields)

    x = part("squeeze1x1", bottom, squeeze, kernel_size=1)
    n[f"fire{number}/concat"] = L.Concat(part("expand1x1", x, expand, kernel_size=1),
                                         part("expand3x3", x, expand, pad=1, kernel_size=3))
    return n[f"fire{number}/concat"]


def body(n, version):
    """Add the layers from n.data to the scores n.pool10."""
    first = dict(num_output=96, kernel_size=7) if version == "1.0" else dict(num_output=64, kernel_size=3)
    x = pool(n, 1, convolution(n, "conv1", "relu_conv1", n.data, filler=dict(type="xavier"), stride=2, **first))
    for number in FIRES:
        x = fire(n, number, x)
        if number in POOLED[version]:
            x = pool(n, number, x)
    n.drop9 = L.Dropout(x, in_place=True, dropout_ratio=0.5)
    frame = dict(pad=1) if version == "1.0" else {}  # 1.0 was published with a frame of zeros around this 1x1 convolution
    x = convolution(n, "conv10", "relu_conv10", n.drop9, 1000, dict(type="gaussian", std=0.01), kernel_size=1, **frame)
    n.pool10 = L.Pooling(x, pool=P.Pooling.AVE, global_pooling=True)


def nets():
    """Return the NetParameters by file name."""
    made = {}
    for version, suffix in (("1.1", ""), ("1.0", "_v1.0")):
        n = caffe.NetSpec()
        n.data, n.label = making.pictures(227, 32, mean_value=making.MEAN_VALUES)
        body(n, version)
        making.score(n, n.pool10)
        deploy = caffe.NetSpec()
        deploy.data = making.one_picture(227)
        body(deploy, version)
        deploy.prob = L.Softmax(deploy.pool10)
        name = f"SqueezeNet_v{version}"
        made[f"net{suffix}.prototxt"] = making.named(making.with_test_pictures(n.to_proto(), 25), name)
        made[f"deploy{suffix}.prototxt"] = making.named(deploy.to_proto(), name)
    return made


if __name__ == "__main__":
    making.write(__file__, nets())
