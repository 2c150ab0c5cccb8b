"""What the make.py scripts of the models share: the data layers for ImageNet, the ends of the nets, and writing the files."""

from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.proto import caffe_pb2, text

MEAN_FILE = "data/imagenet_mean.binaryproto"
MEAN_VALUES = (104, 117, 123)  # of ImageNet's blue, green and red
WEIGHT_AND_BIAS = [dict(lr_mult=1, decay_mult=1), dict(lr_mult=2, decay_mult=0)]


def pictures(crop, batch_size, **transform):
    """Return the Tops data and label of ImageNet's training pictures; `transform` is added to transform_param."""
    return L.Data(ntop=2, include=dict(phase=caffe.TRAIN), transform_param=dict(mirror=True, crop_size=crop, **transform),
                  data_param=dict(source="data/imagenet_train_lmdb", batch_size=batch_size, backend=P.Data.LMDB))


def with_test_pictures(net, batch_size):
    """Return `net`, whose first layer is that of `pictures`, with a layer for the test pictures behind that one."""
    test = caffe_pb2.LayerParameter()
    test.CopyFrom(net.layer[0])
    test.include[0].phase = caffe.TEST
    test.transform_param.ClearField("mirror")
    test.data_param.source = "data/imagenet_val_lmdb"
    test.data_param.batch_size = batch_size
    return caffe_pb2.NetParameter(name=net.name, layer=[net.layer[0], test, *net.layer[1:]])


def one_picture(side):
    """Return the Top of an Input for one picture of three channels."""
    return L.Input(shape=dict(dim=[1, 3, side, side]))


def named(net, name):
    """Return `net` with a name."""
    net.name = name
    return net


def score(n, scores):
    """End a training net: accuracy among the first and the first five in tests, and the loss."""
    n.accuracy = L.Accuracy(scores, n.label, include=dict(phase=caffe.TEST))
    n.accuracy_top5 = L.Accuracy(scores, n.label, include=dict(phase=caffe.TEST), top_k=5)
    n.loss = L.SoftmaxWithLoss(scores, n.label)


def contents(script, nets):
    """Return file name: text for a dict of file name: NetParameter; `script` is the make.py that made them."""
    path = Path(script).resolve()
    head = f"# Written by {'/'.join(path.parts[-3:])}; change that instead.\n"
    return {name: head + text.write_text(net) for name, net in nets.items()}


def write(script, nets):
    """Write nets beside the make.py `script`."""
    for name, content in contents(script, nets).items():
        Path(script).with_name(name).write_text(content)
        print(Path(script).with_name(name))
