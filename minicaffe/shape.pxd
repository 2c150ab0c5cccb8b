cdef class Shaped:
    cdef readonly int num_axes
    cdef readonly long long count   # product of the sizes: 1 without axes, 0 without a shape
    cdef long long dims[32]         # the first `num_axes` are valid
    cdef void set_dims(self, const long long* dims, int num_axes, long long count) noexcept
    cdef bint has_dims(self, const long long* dims, int num_axes) noexcept
    cdef bint same_shape(self, Shaped other) noexcept
    cdef long long dim(self, int axis) except? -1
    cdef long long count_range(self, int start, int end) except? -1
    cpdef int canonical_axis(self, axis) except -1

cdef long long checked_count(const long long* dims, int num_axes) except -1
