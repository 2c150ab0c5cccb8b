from minicaffe.engines.table import CUDNN
from minicaffe.ops.lrn import engine_caffe, engine_onednn  # noqa: F401 they register themselves

CUDNN.modules.append("minicaffe.ops.lrn.engine_cudnn")
