"""Nets of Caffe in ONNX (https://onnx.ai), the format that other runtimes read. Needs ``pip install "minicaffe[onnx]"``."""

from minicaffe.net.comparison import random_inputs
from minicaffe.onnx.check import compare
from minicaffe.onnx.conversion import importer
from minicaffe.onnx.export import Preprocessing, check_types, export, to_model
from minicaffe.onnx.graph import exporter
from minicaffe.onnx.load import Imported, load

__all__ = ["Imported", "Preprocessing", "check_types", "compare", "export", "exporter", "importer", "load", "random_inputs",
           "to_model"]
