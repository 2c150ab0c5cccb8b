"""Write VGG16's net.prototxt and deploy.prototxt (layer names of the authors' VGG_ILSVRC_16_layers)."""

import sys
from pathlib import Path

from minicaffe import layers as L
from minicaffe import params as P

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

STAGES = {1: (64, 64), 2: (128, 128), 3: (256, 256, 256), 4: (512, 512, 512), 5: (512, 512, 512)}  # net D of the paper
WEIGHTS = dict(param=making.WEIGHT_AND_BIAS, weight_filler=dict(type="xavier"))


def body(n):
    """Add the layers from n.data to the scores n.fc8."""
    x = n.data
    for stage, widths in STAGES.items():
        for i, num_output in enumerate(widths, 1):
            n[f"conv{stage}_{i}"] = L.Convolution(x, num_output=num_output, pad=1, kernel_size=3, **WEIGHTS)
            x = n[f"relu{stage}_{i}"] = L.ReLU(n[f"conv{stage}_{i}"], in_place=True)
        x = n[f"pool{stage}"] = L.Pooling(x, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    for number in (6, 7):
        n[f"fc{number}"] = L.InnerProduct(x, num_output=4096, **WEIGHTS)
        n[f"relu{number}"] = L.ReLU(n[f"fc{number}"], in_place=True)
        x = n[f"drop{number}"] = L.Dropout(n[f"relu{number}"], in_place=True, dropout_ratio=0.5)
    n.fc8 = L.InnerProduct(x, num_output=1000, **WEIGHTS)
    return n.fc8


def nets():
    """Return the NetParameters by file name."""
    return making.train_and_deploy("VGG_ILSVRC_16_layers", body, 224, 32, 25, mean_value=(103.939, 116.779, 123.68))


if __name__ == "__main__":
    making.write(__file__, nets())
