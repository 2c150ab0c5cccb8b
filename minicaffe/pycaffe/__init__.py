"""pycaffe's names, under which BVLC Caffe's ``python/caffe/`` is known: ``minicaffe`` has them all, and its own beside them."""

from minicaffe.common import TEST, TRAIN
from minicaffe.pycaffe import settings, solvers
from minicaffe.pycaffe.net import Net, set_phase_test, set_phase_train
from minicaffe.pycaffe.net_spec import NetSpec, layers, params, to_proto
from minicaffe.pycaffe.settings import *  # noqa: F403
from minicaffe.pycaffe.solvers import *  # noqa: F403

__all__ = [
    "Net", "NetSpec", "TEST", "TRAIN", "layers", "params", "set_phase_test", "set_phase_train", "to_proto",
]
__all__ += settings.__all__
__all__ += solvers.__all__
