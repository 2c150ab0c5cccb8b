"""Caffe's messages: the classes (`caffe_pb2`), prototxt with positions, weights and snapshots, and their old forms.

Different from Caffe: nothing ends the process; every fault is an error that names file, line or byte, layer and field.
Names are imported when first used, so that a program that only reads prototxt does not load the rest.
"""

import importlib

_NAMES_OF_MODULE = {
    "positions": "Positions",
    "text": "layer_fields parse_text read_text write_text",
    "fields": "Fields copy_of",
    "binary": "LayerBlobs StoredBlob StoredState is_hdf5 parse_blob read_blob read_net read_solver_state write_net "
              "write_solver_state",
    "upgrade": "Definition load load_net needs_upgrade upgrade_net upgrade_solver read_net_file read_solver_file read_weights",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()}

__all__ = list(_MODULE_OF)


def __getattr__(name):
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"minicaffe.proto.{_MODULE_OF[name]}"), name)
    if name == "caffe_pb2":
        return importlib.import_module("minicaffe.proto.caffe_pb2")
    raise AttributeError(f"module 'minicaffe.proto' has no attribute '{name}'")
