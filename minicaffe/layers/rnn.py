"""RNN (Caffe rnn_layer.cpp): see recurrent.pyx."""

from minicaffe.layers.recurrent import RNNLayer  # noqa: F401
