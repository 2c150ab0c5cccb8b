from minicaffe.engines.table import CUDNN
from minicaffe.ops.conv import engine_onednn, engine_winograd  # noqa: F401 they register themselves

CUDNN.modules.append("minicaffe.ops.conv.engine_cudnn")
