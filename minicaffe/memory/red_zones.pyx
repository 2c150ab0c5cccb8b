"""Bytes that nobody may touch between the blocks cut from one piece of memory, as AddressSanitizer's manual poisoning has them.

An allocator that cuts blocks tells what watches the memory, if anything does, which bytes are in use. The simulated device
watches (minicaffe/sim); of other memory `nbytes` is 0 and nothing is told.
"""


cdef class RedZones:
    """What an allocator has to keep free between blocks, and whom it tells which bytes are in use.

    Parameters
    ----------
    nbytes : int
        Blocks begin at multiples of it, and that many bytes after each stay closed; 0: nothing watches the memory.
    poison, unpoison : int
        Addresses of C functions ``void f(size_t address, size_t nbytes)``: close bytes; open those of a new block.
    """

    def __init__(self, size_t nbytes=0, size_t poison=0, size_t unpoison=0):
        self.nbytes = nbytes
        self.poison = <mark_function> <void*> poison
        self.unpoison = <mark_function> <void*> unpoison

    cdef void close(self, size_t address, size_t nbytes) noexcept:
        """Close `nbytes`: memory just taken, or a block that was freed."""
        if self.nbytes:
            self.poison(address, nbytes)

    cdef void open(self, size_t address, size_t nbytes) noexcept:
        """Open the `nbytes` of a block that is given out."""
        if self.nbytes:
            self.unpoison(address, nbytes)
