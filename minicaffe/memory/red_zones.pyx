"""Inaccessible bytes between the blocks of one allocation, as in AddressSanitizer's manual poisoning.

An allocator that splits memory into blocks marks which bytes are in use. The simulated device checks these marks
(minicaffe/sim); for other memory `nbytes` is 0 and nothing is marked.
"""


cdef class RedZones:
    """The gap that an allocator keeps between blocks, and the functions that mark bytes as closed or in use.

    Parameters
    ----------
    nbytes : int
        Blocks begin at multiples of it, and that many bytes after each stay closed; 0: the memory is not checked.
    poison, unpoison : int
        Addresses of C functions ``void f(size_t address, size_t nbytes)``: close bytes; open those of a new block.
    """

    def __init__(self, size_t nbytes=0, size_t poison=0, size_t unpoison=0):
        self.nbytes = nbytes
        self.poison = <mark_function> <void*> poison
        self.unpoison = <mark_function> <void*> unpoison

    cdef void close(self, size_t address, size_t nbytes) noexcept:
        """Mark `nbytes` as inaccessible: a new segment, or a freed block. Nothing without red zones."""
        if self.nbytes:
            self.poison(address, nbytes)

    cdef void open(self, size_t address, size_t nbytes) noexcept:
        """Mark the `nbytes` of an allocated block as accessible, to the end of their last page; pages behind it stay closed."""
        if self.nbytes:
            self.unpoison(address, nbytes)
