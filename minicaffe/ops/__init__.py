"""Operations, a folder each: kernels for both compilers (kernel.hpp), engine CAFFE (caffe.hpp), and the other engines."""
