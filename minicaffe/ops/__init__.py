"""Operations that run on the CPU or on a CUDA stream, from one functor each; C++ headers, and the current context."""
