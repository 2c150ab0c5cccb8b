"""The operation of pooling."""


cdef class Pooling(Operation):
    """x (images, channels, height, width), y (images, channels, out_height, out_width); `mask`, of y's shape, is written by forward
    and read by backward if `method` is MAX or draws, else None.
    """

    def __cinit__(self, *_):
        self.saves_for_backward = self.depends_on_layout = True
