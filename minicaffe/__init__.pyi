from minicaffe import cuda as cuda
from minicaffe import errors as errors
from minicaffe import io as io
from minicaffe import memory as memory
from minicaffe.alias import install_as_caffe as install_as_caffe
from minicaffe.classifier import Classifier as Classifier
from minicaffe.detector import Detector as Detector
from minicaffe.device.threads import get_num_threads as get_num_threads
from minicaffe.device.threads import set_num_threads as set_num_threads
from minicaffe.layer import register_layer as register_layer
from minicaffe.layers.python import Layer as Layer
from minicaffe.layers.python import allow_python_layers as allow_python_layers
from minicaffe.net_spec import NetSpec as NetSpec
from minicaffe.net_spec import layers as layers
from minicaffe.net_spec import params as params
from minicaffe.net_spec import to_proto as to_proto
from minicaffe.pycaffe import Net as Net
from minicaffe.settings import Timer as Timer
from minicaffe.settings import init_log as init_log
from minicaffe.settings import layer_type_list as layer_type_list
from minicaffe.settings import log as log
from minicaffe.settings import set_device as set_device
from minicaffe.settings import set_mode_cpu as set_mode_cpu
from minicaffe.settings import set_mode_gpu as set_mode_gpu
from minicaffe.settings import set_multiprocess as set_multiprocess
from minicaffe.settings import set_random_seed as set_random_seed
from minicaffe.settings import set_solver_count as set_solver_count
from minicaffe.settings import set_solver_rank as set_solver_rank
from minicaffe.settings import solver_count as solver_count
from minicaffe.settings import solver_rank as solver_rank
from minicaffe.slot import Slot as Slot
from minicaffe.solvers import NCCL as NCCL
from minicaffe.solvers import AdaDeltaSolver as AdaDeltaSolver
from minicaffe.solvers import AdaGradSolver as AdaGradSolver
from minicaffe.solvers import AdamSolver as AdamSolver
from minicaffe.solvers import NesterovSolver as NesterovSolver
from minicaffe.solvers import RMSPropSolver as RMSPropSolver
from minicaffe.solvers import SGDSolver as SGDSolver
from minicaffe.solvers import get_solver as get_solver
from minicaffe.solvers import get_solver_from_file as get_solver_from_file
from minicaffe.solvers import has_nccl as has_nccl
from minicaffe.tensor import Tensor as Tensor
from minicaffe.workspace import Workspace as Workspace

TRAIN: int
TEST: int
__version__: str
