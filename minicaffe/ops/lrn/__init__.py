from minicaffe.engines.table import CUDNN
from minicaffe.ops.lrn import engine_onednn  # noqa: F401 it registers itself

CUDNN.modules.append("minicaffe.ops.lrn.engine_cudnn")
