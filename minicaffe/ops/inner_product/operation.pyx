"""The operation of the inner product."""

from minicaffe.engines.epilogue cimport ReluEpilogue


cdef class InnerProduct(Operation):
    """y = x W^T + bias: x (m, k), weight (n, k), or (k, n) if `transpose`, y (m, n); bias (n,) or None."""

    epilogue_class = ReluEpilogue
    streams_weight_gradient = True
