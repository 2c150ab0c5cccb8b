"""DepthwiseConvolution: what forks of Caffe call a Convolution with as many groups as channels; it is that layer."""

from minicaffe.layer import register_layer
from minicaffe.layers.convolution import ConvolutionLayer

register_layer("DepthwiseConvolution", ConvolutionLayer)
