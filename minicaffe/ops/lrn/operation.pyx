"""The operation of local response normalisation."""


cdef class LRN(Operation):
    """``y = x s^-beta`` with ``s = k + alpha sum x^2`` over a window; x and y have the same shape, viewed as groups of rows."""

    def __cinit__(self, *_):
        self.saves_for_backward = self.depends_on_layout = True
