"""Write FCN-32s and FCN-8s on VGG16 for the 21 classes of PASCAL VOC (layer names of the authors' voc-fcn32s and voc-fcn8s).

The published weights hold the upsampling as a dense 21 x 21 Deconvolution that is zero off its diagonal: for those are
published_32s.prototxt and published_8s.prototxt. The other files have one group for each class, which computes the same
with a 21st of the work, and which the bilinear filler makes ready for training.
"""

import sys
from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.coord_map import crop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

CLASSES = 21
STAGES = {1: (64, 64), 2: (128, 128), 3: (256, 256, 256), 4: (512, 512, 512), 5: (512, 512, 512)}
MEAN = (104.00699, 116.66877, 122.67892)


def convolution(n, name, relu, bottom, num_output, **fields):
    n[name] = L.Convolution(bottom, num_output=num_output, param=making.WEIGHT_AND_BIAS, weight_filler=dict(type="xavier"),
                            **fields)
    n[relu] = L.ReLU(n[name], in_place=True)
    return n[relu]


def scores(bottom):
    """Return the Top with a score for each class; the weights begin at 0, so that the net begins as its predecessor."""
    return L.Convolution(bottom, num_output=CLASSES, kernel_size=1, param=making.WEIGHT_AND_BIAS)


def upsample(bottom, factor, grouped):
    """Return the Top `factor` times as large; its weights stay."""
    fields = dict(num_output=CLASSES, kernel_size=2 * factor, stride=factor, bias_term=False)
    if grouped:
        fields.update(group=CLASSES, weight_filler=dict(type="bilinear"))
    return L.Deconvolution(bottom, param=[dict(lr_mult=0)], convolution_param=fields)


def body(n, stride, grouped):
    """Add the layers from n.data to n.score: with `stride` 32 from conv5 alone, with 8 from pool3 and pool4 too."""
    x = n.data
    for stage, widths in STAGES.items():
        for i, width in enumerate(widths, 1):
            pad = 100 if (stage, i) == (1, 1) else 1  # so that the smallest picture covers the 7 x 7 of fc6
            x = convolution(n, f"conv{stage}_{i}", f"relu{stage}_{i}", x, width, kernel_size=3, pad=pad)
        x = n[f"pool{stage}"] = L.Pooling(x, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    for number, kernel in ((6, 7), (7, 1)):
        x = convolution(n, f"fc{number}", f"relu{number}", x, 4096, kernel_size=kernel)
        x = n[f"drop{number}"] = L.Dropout(x, in_place=True, dropout_ratio=0.5)
    n.score_fr = scores(x)
    if stride == 32:
        n.upscore = upsample(n.score_fr, 32, grouped)
        n.score = crop(n.upscore, n.data)
        return
    n.upscore2 = upsample(n.score_fr, 2, grouped)
    n.score_pool4 = scores(n.pool4)
    n.score_pool4c = crop(n.score_pool4, n.upscore2)
    n.fuse_pool4 = L.Eltwise(n.upscore2, n.score_pool4c, operation=P.Eltwise.SUM)
    n.upscore_pool4 = upsample(n.fuse_pool4, 2, grouped)
    n.score_pool3 = scores(n.pool3)
    n.score_pool3c = crop(n.score_pool3, n.upscore_pool4)
    n.fuse_pool3 = L.Eltwise(n.upscore_pool4, n.score_pool3c, operation=P.Eltwise.SUM)
    n.upscore8 = upsample(n.fuse_pool3, 8, grouped)
    n.score = crop(n.upscore8, n.data)


def maps(kind, split, phase, **fields):
    """Return the Top of the pictures or of the label maps, one at a time, as they differ in size."""
    source = f"data/voc_{split}_{kind}_lmdb"
    return L.Data(include=dict(phase=phase), **fields, data_param=dict(source=source, batch_size=1, backend=P.Data.LMDB))


def training(stride):
    """Return the NetParameter for training."""
    mean = dict(transform_param=dict(mean_value=MEAN))
    test = caffe.NetSpec()
    test.data = maps("pictures", "val", caffe.TEST, **mean)
    test.label = maps("labels", "val", caffe.TEST)
    n = caffe.NetSpec()
    n.data = maps("pictures", "train", caffe.TRAIN, **mean)
    n.label = maps("labels", "train", caffe.TRAIN)
    body(n, stride, grouped=True)
    n.accuracy = L.Accuracy(n.score, n.label, axis=1, ignore_label=255, include=dict(phase=caffe.TEST))
    n.loss = L.SoftmaxWithLoss(n.score, n.label, loss_param=dict(normalize=False, ignore_label=255))
    net = n.to_proto()
    return type(net)(name=f"FCN-{stride}s", layer=[*net.layer[:2], *test.to_proto().layer, *net.layer[2:]])


def deploy(stride, grouped):
    """Return the NetParameter for one picture."""
    n = caffe.NetSpec()
    n.data = making.one_picture(500)
    body(n, stride, grouped)
    return making.named(n.to_proto(), f"FCN-{stride}s")


def nets():
    """Return the NetParameters by file name."""
    return {"net.prototxt": training(32), "net_8s.prototxt": training(8),
            "deploy.prototxt": deploy(32, True), "deploy_8s.prototxt": deploy(8, True),
            "published_32s.prototxt": deploy(32, False), "published_8s.prototxt": deploy(8, False)}


if __name__ == "__main__":
    making.write(__file__, nets())
