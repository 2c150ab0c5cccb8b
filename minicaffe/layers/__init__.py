"""Layer types of BVLC Caffe, a module each: those that compute here, sources of data in data/, what they share in base/."""

from minicaffe.layer import find_types_in

find_types_in(__name__, __path__)
