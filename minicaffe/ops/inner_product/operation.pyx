"""The operation of the inner product."""


cdef class InnerProduct(Operation):
    """y = x W^T + bias: x (m, k), weight (n, k), or (k, n) if `transpose`, y (m, n); bias (n,) or None."""

    streams_weight_gradient = True
