"""Checks the answers of chapter5.py against layers."""

import itertools

import numpy as np
from chapter5 import im2col, needs_columns, pooled_size, receptive_field, weight_gradient

import minicaffe as caffe

INPUT = 'force_backward: true layer { name: "data" type: "Input" top: "x" input_param { shape { %s } } }\n'


def net_of(tmp_path, shape, *layers):
    """A net of an input x, with random values, and these layers, after its forward."""
    path = tmp_path / "net.prototxt"
    path.write_text(INPUT % " ".join(f"dim: {size}" for size in shape) + "\n".join(layers))
    net = caffe.Net(str(path), caffe.TEST)
    net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal(shape)
    net.forward()
    return net


def test_pooled_size(tmp_path):
    for size, kernel, stride, pad in ((24, 2, 2, 0), (7, 2, 2, 0), (7, 3, 2, 0), (6, 3, 2, 1), (7, 3, 2, 1), (4, 2, 2, 1), (5, 2, 3, 1),
                                      (112, 3, 2, 0), (5, 3, 5, 2), (8, 3, 4, 1)):
        net = net_of(tmp_path, (1, 1, size, size), 'layer { name: "pool" type: "Pooling" bottom: "x" top: "y" pooling_param {'
                     f" pool: AVE kernel_size: {kernel} stride: {stride} pad: {pad} }} }}")
        assert pooled_size(size, kernel, stride, pad) == net.blobs["y"].shape[2], f"size {size}, kernel {kernel}, stride {stride}, pad {pad}"


def test_im2col(tmp_path):
    for height, width, kernel, stride, pad in ((3, 3, 2, 1, 0), (5, 4, 3, 1, 1), (7, 6, 3, 2, 1), (6, 9, 2, 3, 0), (4, 5, 1, 2, 0)):
        net = net_of(tmp_path, (1, 1, height, width), 'layer { name: "columns" type: "Im2col" bottom: "x" top: "y" convolution_param {'
                     f" kernel_size: {kernel} stride: {stride} pad: {pad} }} }}")
        theirs = net.blobs["y"].data.reshape(kernel * kernel, -1)
        np.testing.assert_array_equal(im2col(net.blobs["x"].data[0, 0], kernel, stride, pad), theirs)


def test_weight_gradient(tmp_path):
    for kernel, stride, pad, group in ((3, 1, 1, 1), (2, 2, 0, 1), (3, 2, 1, 2), (1, 1, 0, 4)):
        net = net_of(tmp_path, (3, 4, 7, 6), 'layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 8'
                     f" kernel_size: {kernel} stride: {stride} pad: {pad} group: {group} }} }}")
        dY = np.random.default_rng(1).standard_normal(net.blobs["y"].shape).astype(np.float32)
        net.backward(y=dY)
        mine = weight_gradient(net.blobs["x"].data, dY, kernel, stride, pad, group)
        np.testing.assert_allclose(mine, net.params["conv"][0].diff, rtol=1e-4, atol=1e-4)


def test_receptive_field(tmp_path):
    for layers in ([(3, 1, 1)], [(3, 1, 1), (3, 1, 1)], [(2, 2, 1), (3, 1, 1)], [(3, 1, 2), (3, 2, 1)], [(3, 2, 1), (2, 2, 1), (3, 1, 2)]):
        names = ["x", *(f"y{i}" for i in range(len(layers)))]
        net = net_of(tmp_path, (1, 1, 1, 60), *(
            f'layer {{ name: "{top}" type: "Convolution" bottom: "{bottom}" top: "{top}" convolution_param {{ num_output: 1 kernel_h: 1 '
            f'kernel_w: {kernel} stride_h: 1 stride_w: {stride} dilation: 1 dilation: {dilation} weight_filler {{ type: "constant" value: 1 }} }} }}'
            for bottom, top, (kernel, stride, dilation) in zip(names, names[1:], layers, strict=False)))
        gradient = np.zeros(net.blobs[names[-1]].shape, np.float32)
        gradient[..., 2] = 1                            # the pixels that one output reads are those that get a gradient
        read = np.flatnonzero(net.backward(**{names[-1]: gradient})["x"])
        assert receptive_field(layers) == read[-1] - read[0] + 1, layers


def test_needs_columns(tmp_path):
    for kernel, stride, pad, dilation in itertools.product((1, 3), (1, 2), (0, 1), (1, 2)):
        net = net_of(tmp_path, (1, 2, 6, 7), 'layer { name: "columns" type: "Im2col" bottom: "x" top: "y" convolution_param {'
                     f" kernel_size: {kernel} stride: {stride} pad: {pad} dilation: {dilation} }} }}")
        differ = not np.array_equal(net.blobs["x"].data, net.blobs["y"].data)
        assert needs_columns(kernel, stride, pad, dilation) == differ, (kernel, stride, pad, dilation)
