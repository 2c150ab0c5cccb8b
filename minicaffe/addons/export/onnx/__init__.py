"""Nets of Caffe in ONNX (https://onnx.ai), the format that other runtimes read. Needs ``pip install "minicaffe[onnx]"``."""

from minicaffe.addons.export.exporting import random_inputs
from minicaffe.addons.export.onnx.conversion import importer
from minicaffe.addons.export.onnx.export import Preprocessing, check_types, compare, export, to_model
from minicaffe.addons.export.onnx.graph import exporter
from minicaffe.addons.export.onnx.load import Imported, load

__all__ = ["Imported", "Preprocessing", "check_types", "compare", "export", "exporter", "importer", "load", "random_inputs",
           "to_model"]
