"""LSTM (Caffe lstm_layer.cpp): see recurrent.pyx."""

from minicaffe.layers.recurrent import LSTMLayer  # noqa: F401
