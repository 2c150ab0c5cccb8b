"""Operations, a folder each: kernels for both compilers (kernel.hpp), engine CAFFE (caffe.hpp), and the other engines."""
from minicaffe.engines.table import PLAIN

PLAIN.modules.append("minicaffe.ops.plain")
