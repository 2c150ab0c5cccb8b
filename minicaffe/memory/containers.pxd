# The members of containers of C++ that are used here. Cython reads each .pxd file for each module, and those of libcpp are long.
from libcpp.utility cimport pair

cdef extern from "<unordered_map>" namespace "std" nogil:
    cppclass unordered_map[K, V]:
        cppclass iterator:
            pair[K, V]& operator*()
            iterator operator++()
            bint operator==(iterator)
            bint operator!=(iterator)
        V& operator[](K)
        iterator begin()
        iterator end()
        iterator find(K)
        size_t count(K)
        size_t size()
        iterator erase(iterator)
        size_t erase(K)

cdef extern from "<unordered_set>" namespace "std" nogil:
    cppclass unordered_set[T]:
        cppclass iterator:
            T operator*()
            iterator operator++()
            bint operator!=(iterator)
        iterator begin()
        iterator end()
        void insert(T) except +
        size_t erase(T)
