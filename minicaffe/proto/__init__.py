"""Caffe's messages: the classes (`caffe_pb2`), prototxt with positions, weights and snapshots, and their old forms.

Different from Caffe: nothing ends the process; every fault is an error that names file, line or byte, layer and field.
"""
