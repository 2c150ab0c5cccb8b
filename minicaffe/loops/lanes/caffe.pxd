cdef extern from "minicaffe/loops/lanes/caffe.hpp" namespace "mc" nogil:
    cppclass Channels:
        Channels()
        Channels(long long outer, long long channels, long long inner)
        long long outer, channels, inner, lanes
