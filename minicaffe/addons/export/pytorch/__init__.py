"""Nets of Caffe as modules of PyTorch (https://pytorch.org): readable text and a state dict. Only the comparison needs PyTorch."""

from minicaffe.addons.export.exporting import Preprocessing, random_inputs
from minicaffe.addons.export.pytorch.export import check_file_name, check_types, compare, export, load_torch, to_module
from minicaffe.addons.export.pytorch.source import Module, writer

__all__ = ["Module", "Preprocessing", "check_file_name", "check_types", "compare", "export", "load_torch", "random_inputs",
           "to_module", "writer"]
