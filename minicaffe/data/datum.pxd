from libc.stdint cimport int32_t, uint8_t, uint64_t

cdef struct Datum:
    int32_t channels
    int32_t height
    int32_t width
    int32_t label
    const uint8_t* data  # points into the record
    uint64_t size        # bytes at data
    uint64_t floats      # elements of float_data
    bint encoded

# Return 0, or an index into datum.FAULTS.
cdef int datum_parse(const uint8_t* record, uint64_t size, Datum* datum) noexcept nogil
# The float_data, `count` floats, of a record that datum_parse accepted, as a new array.
cdef object copy_float_data(const uint8_t* record, uint64_t size, uint64_t count)
cdef str datum_fault(int reason, const Datum* datum)
