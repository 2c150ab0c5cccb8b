from minicaffe import cuda as cuda
from minicaffe import errors as errors
from minicaffe import memory as memory
from minicaffe.addons.caffe2.slot import Slot as Slot
from minicaffe.addons.caffe2.tensor import Tensor as Tensor
from minicaffe.addons.caffe2.workspace import Workspace as Workspace
from minicaffe.addons.drawing import draw as draw
from minicaffe.addons.gradcheck.gradient_check import gradcheck as gradcheck
from minicaffe.addons.opencv import dnn as dnn
from minicaffe.addons.ssd import model_libs as model_libs
from minicaffe.as_caffe import install_as_caffe as install_as_caffe
from minicaffe.device.threads import get_num_threads as get_num_threads
from minicaffe.device.threads import set_num_threads as set_num_threads
from minicaffe.engines.engine import get_exact as get_exact
from minicaffe.engines.engine import get_precision as get_precision
from minicaffe.engines.engine import set_exact as set_exact
from minicaffe.engines.engine import set_precision as set_precision
from minicaffe.layer import register_layer as register_layer
from minicaffe.layers.python import Layer as Layer
from minicaffe.layers.python import allow_python_layers as allow_python_layers
from minicaffe.pycaffe import *  # noqa: F403
from minicaffe.pycaffe import classifier as classifier
from minicaffe.pycaffe import coord_map as coord_map
from minicaffe.pycaffe import detector as detector
from minicaffe.pycaffe import io as io
from minicaffe.pycaffe import net_spec as net_spec
from minicaffe.pycaffe.classifier import Classifier as Classifier
from minicaffe.pycaffe.detector import Detector as Detector
from minicaffe.pycaffe.solvers import *  # noqa: F403
from minicaffe.solver import register_solver as register_solver
from minicaffe.solver.rules import UpdateRule as UpdateRule

TRAIN: int
TEST: int
__version__: str
