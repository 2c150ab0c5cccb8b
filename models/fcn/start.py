"""Make the weights that FCN-32s starts from out of VGG16's: fc6 and fc7 as convolutions.

    python models/fcn/start.py VGG_ILSVRC_16_layers.caffemodel vgg16_convolutions.caffemodel

The numbers are the same, only their shapes change: fc6 from 4096 x 25088 to 4096 x 512 x 7 x 7, fc7 from 4096 x 4096 to
4096 x 4096 x 1 x 1. Layers that FCN does not have, fc8 among them, are left out.
"""

import argparse
from pathlib import Path

import minicaffe as caffe
from minicaffe.errors import ShapeError
from minicaffe.proto import upgrade

NET = Path(__file__).resolve().with_name("deploy.prototxt")


def transplant(source, net):
    """Copy the stored layers `source` into the layers of `net` with the same name, number by number.

    Raises
    ------
    ShapeError
        If a blob of the net has another count of numbers than the stored one.
    """
    targets = net.layer_dict
    for layer in source:
        if layer.name not in targets:
            continue
        for index, (stored, blob) in enumerate(zip(layer.blobs, targets[layer.name].blobs, strict=True)):
            if stored.data.size != blob.count:
                raise ShapeError(f"holds {stored.data.size} numbers, the net needs {blob.count}; is this VGG16?", layer=layer.name,
                                 field=f"blobs[{index}]")
            blob.data.reshape(-1)[:] = stored.data.reshape(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("vgg16", help="VGG16's .caffemodel")
    parser.add_argument("out", help="file to write")
    arguments = parser.parse_args()
    net = caffe.Net(str(NET), caffe.TEST)
    transplant(upgrade.read_weights(arguments.vgg16), net)
    net.save(arguments.out)


if __name__ == "__main__":
    main()
