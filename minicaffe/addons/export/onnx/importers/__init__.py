"""Operators of ONNX as layers of Caffe: each function adds the layers of one or several operators (`importer`)."""

from minicaffe.addons.export.onnx.importers import elementwise, products, shapes  # noqa: F401 (each registers its operators)
