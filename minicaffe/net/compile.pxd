from minicaffe.device.context cimport Context
from minicaffe.net.schedule cimport Schedule

cdef dict find_lifetimes(list nodes, list backward_starts, kept, list params, bint training, dict deferred_relus)
cdef Schedule compile_nodes(list nodes, kept, list params, list learnable, bint training, bint plan, unsigned long long stamp,
                            const Context& on)
