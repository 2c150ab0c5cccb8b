from minicaffe.net.schedule cimport Schedule

cdef list schedule_rows(Schedule schedule, kept, list params, list learnable)
