"""Deconvolution (Caffe deconv_layer.cpp): convolution with forward and backward exchanged."""

from minicaffe.layers.convolution import ConvolutionLayer


class DeconvolutionLayer(ConvolutionLayer):
    """``top[o, i stride - pad + u dilation] += weight[c, o, u] bottom[c, i]``, plus the bias.

    The weights are (channels, num_output / group, kernel...).
    """

    transposed = True
