"""ResNet-50 as a NetParameter (He et al., arXiv:1512.03385; the stride stands in the 3x3 convolution, as in torchvision).

    python tools/bench/resnet.py [--batch 64] [--size 224] [--classes 1000] > resnet50.prototxt

In training form: BatchNorm with its Scale, softmax loss; data from DummyData, or Input layers that a program fills.
"""

import argparse

from minicaffe.proto import caffe_pb2, text

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and blocks


class Builder:
    """Appends layers to a NetParameter; each method returns the name of its top."""

    def __init__(self, name):
        self.net = caffe_pb2.NetParameter(name=name)

    def layer(self, name, kind, bottoms, top=None):
        """Append a layer and return it; in place if `top` is its bottom."""
        return self.net.layer.add(name=name, type=kind, bottom=bottoms, top=[top or name])

    def convolution(self, name, bottom, outputs, kernel, stride=1, relu=True):
        """Convolution without bias, BatchNorm, Scale, and ReLU unless told otherwise."""
        param = self.layer(name, "Convolution", [bottom]).convolution_param
        param.num_output, param.bias_term = outputs, False
        param.kernel_size.append(kernel)
        param.stride.append(stride)
        param.pad.append(kernel // 2)
        param.weight_filler.type = "msra"
        self.layer(f"{name}_bn", "BatchNorm", [name], name)
        self.layer(f"{name}_scale", "Scale", [name], name).scale_param.bias_term = True
        if relu:
            self.layer(f"{name}_relu", "ReLU", [name], name)
        return name

    def bottleneck(self, name, bottom, width, stride, first):
        """1x1, 3x3, 1x1 convolutions and the shortcut around them."""
        shortcut = self.convolution(f"{name}_short", bottom, 4 * width, 1, stride, relu=False) if first else bottom
        x = self.convolution(f"{name}_a", bottom, width, 1)
        x = self.convolution(f"{name}_b", x, width, 3, stride)
        x = self.convolution(f"{name}_c", x, 4 * width, 1, relu=False)
        self.layer(f"{name}_sum", "Eltwise", [shortcut, x], name)
        self.layer(f"{name}_relu", "ReLU", [name], name)
        return name


def resnet50(batch=64, size=224, classes=1000, data="DummyData", stages=STAGES):
    """Return the net; `data` is DummyData, which fills pictures and labels once, or Input. Fewer `stages` make a toy of it."""
    builder = Builder("ResNet-50")
    shapes = ([batch, 3, size, size], [batch])
    if data == "Input":
        for name, shape in zip(("data", "label"), shapes):
            builder.layer(name, "Input", []).input_param.shape.add(dim=shape)
    else:
        layer = builder.net.layer.add(name="data", type="DummyData", top=["data", "label"])
        for shape, value in zip(shapes, (0.5, 1)):
            layer.dummy_data_param.shape.add(dim=shape)
            layer.dummy_data_param.data_filler.add(type="constant", value=value)
    x = builder.convolution("conv1", "data", stages[0][0], 7, 2)
    pool = builder.layer("pool1", "Pooling", [x]).pooling_param
    # 3x3 with stride 2 and no padding: Caffe rounds up, which gives the 56x56 that padding 1 gives where sizes round down.
    pool.pool, pool.kernel_size, pool.stride = pool.MAX, 3, 2
    x = "pool1"
    for stage, (width, blocks) in enumerate(stages, 2):
        for block in range(blocks):
            x = builder.bottleneck(f"res{stage}{chr(97 + block)}", x, width, 2 if block == 0 and stage > 2 else 1, block == 0)
    pool = builder.layer("pool5", "Pooling", [x]).pooling_param
    pool.pool, pool.global_pooling = pool.AVE, True
    param = builder.layer("fc", "InnerProduct", ["pool5"]).inner_product_param
    param.num_output, param.weight_filler.type = classes, "xavier"
    builder.layer("loss", "SoftmaxWithLoss", ["fc", "label"])
    return builder.net


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    options = parser.parse_args()
    print(text.write_text(resnet50(options.batch, options.size, options.classes)), end="")


if __name__ == "__main__":
    main()
