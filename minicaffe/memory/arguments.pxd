"""Checks of arguments for compiled functions; the usual case calls no Python function."""


cdef inline size_t bytes_of(value, str what) except? <size_t> -1:
    """Return a number of bytes or an address; raise WrongTypeError naming `what` unless it is an int from 0 to below 2^64."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        from minicaffe.memory.sizes import checked
        value = checked(value, what)
    return value
