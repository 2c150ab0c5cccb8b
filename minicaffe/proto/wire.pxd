from libc.stdint cimport uint8_t, uint64_t

cdef enum:  # wire type: the lowest three bits of a tag
    VARINT, FIXED64, LENGTH_DELIMITED, GROUP, GROUP_END, FIXED32

cdef enum:  # results of next_field
    END, CUT, MALFORMED, FIELD

cdef enum:
    MAX_GROUPS = 100  # nested, the limit of protobuf

cdef struct Field:
    uint64_t tag
    uint64_t value        # VARINT: the number; else the bytes of the content, which end at the next field
    const uint8_t* start  # of the tag

cdef inline int varint(const uint8_t** at, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Read 1 to 10 bytes of 7 bits, the lowest first."""
    cdef int shift = 0
    cdef uint8_t byte
    value[0] = 0
    while shift < 70:
        if at[0] == end:
            return CUT
        byte = at[0][0]
        at[0] += 1
        value[0] |= (<uint64_t>(byte & 127)) << shift if shift < 64 else 0
        if byte < 128:
            return FIELD
        shift += 7
    return MALFORMED


cdef inline int next_field(const uint8_t** at, const uint8_t* end, Field* field) noexcept nogil:
    """Read a field and advance to its end; skip groups before it, which no message of Caffe has.

    Returns FIELD; END if there is no further field; CUT or MALFORMED for an invalid field, which begins at `field.start`.
    """
    cdef uint64_t groups[MAX_GROUPS]
    cdef uint64_t number
    cdef int wire, reason, depth = 0
    while at[0] != end:
        field.start = at[0]
        field.value = 0
        reason = varint(at, end, &field.tag)
        if reason != FIELD:
            return reason
        wire, number = field.tag & 7, field.tag >> 3
        if number == 0 or field.tag >> 32:
            return MALFORMED
        if wire == VARINT or wire == LENGTH_DELIMITED:
            reason = varint(at, end, &field.value)
            if reason != FIELD:
                return reason
        elif wire == FIXED32 or wire == FIXED64:
            field.value = 4 if wire == FIXED32 else 8
        elif wire == GROUP and depth < MAX_GROUPS:
            groups[depth] = number
            depth += 1
            continue
        elif wire == GROUP_END and depth and groups[depth - 1] == number:
            depth -= 1
            continue
        else:
            return MALFORMED
        if wire != VARINT:
            if field.value > <uint64_t>(end - at[0]):
                return CUT
            at[0] += field.value
        if depth == 0:
            return FIELD
    field.value = 0
    return CUT if depth else END


cdef inline Py_ssize_t count_same_tag(const uint8_t* at, const uint8_t* end, const Field* field) noexcept nogil:
    """Return how many fields from `at` on have the tag of `field` and its 4 or 8 bytes: unpacked numbers may be millions."""
    cdef Py_ssize_t count = 0, step = 1 + field.value
    if field.tag < 128 and (field.tag & 7 == FIXED32 or field.tag & 7 == FIXED64):
        while end - at >= step and at[0] == field.tag:
            at += step
            count += 1
    return count
