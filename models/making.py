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


def train_and_deploy(name, body, side, batch_size, test_batch_size, **transform):
    """Return net.prototxt and deploy.prototxt of a classifier of ImageNet's pictures by file name.

    `body(n)` adds the layers from ``n.data`` and returns the scores; `side` is that of the pictures after the crop.
    """
    n = caffe.NetSpec()
    n.data, n.label = pictures(side, batch_size, **transform)
    score(n, body(n))
    deploy = caffe.NetSpec()
    deploy.data = one_picture(side)
    deploy.prob = L.Softmax(body(deploy))
    return {"net.prototxt": named(with_test_pictures(n.to_proto(), test_batch_size), name),
            "deploy.prototxt": named(deploy.to_proto(), name)}


def alexnet(n, bias, norm_first):
    """Add AlexNet's layers from n.data to the scores n.fc8, and return these.

    `bias` is where most biases start; `norm_first` whether normalization comes before pooling, as in AlexNet, or behind it, as in
    CaffeNet, where it has less to do.
    """
    def weights(std, start):
        return dict(param=WEIGHT_AND_BIAS, weight_filler=dict(type="gaussian", std=std),
                    bias_filler=dict(type="constant", value=start))

    def convolution(number, bottom, start, **fields):
        n[f"conv{number}"] = L.Convolution(bottom, **fields, **weights(0.01, start))
        n[f"relu{number}"] = L.ReLU(n[f"conv{number}"], in_place=True)
        return n[f"relu{number}"]

    def norm(number, bottom):
        n[f"norm{number}"] = L.LRN(bottom, local_size=5, alpha=0.0001, beta=0.75)
        return n[f"norm{number}"]

    def pool(number, bottom):
        n[f"pool{number}"] = L.Pooling(bottom, pool=P.Pooling.MAX, kernel_size=3, stride=2)
        return n[f"pool{number}"]

    def smaller(number, bottom):
        return pool(number, norm(number, bottom)) if norm_first else norm(number, pool(number, bottom))

    def fully_connected(number, bottom):
        n[f"fc{number}"] = L.InnerProduct(bottom, num_output=4096, **weights(0.005, bias))
        n[f"relu{number}"] = L.ReLU(n[f"fc{number}"], in_place=True)
        n[f"drop{number}"] = L.Dropout(n[f"relu{number}"], in_place=True, dropout_ratio=0.5)
        return n[f"drop{number}"]

    x = smaller(1, convolution(1, n.data, 0, num_output=96, kernel_size=11, stride=4))
    x = smaller(2, convolution(2, x, bias, num_output=256, pad=2, kernel_size=5, group=2))
    x = convolution(3, x, 0, num_output=384, pad=1, kernel_size=3)
    x = convolution(4, x, bias, num_output=384, pad=1, kernel_size=3, group=2)
    x = pool(5, convolution(5, x, bias, num_output=256, pad=1, kernel_size=3, group=2))
    n.fc8 = L.InnerProduct(fully_connected(7, fully_connected(6, x)), num_output=1000, **weights(0.01, 0))
    return n.fc8


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
