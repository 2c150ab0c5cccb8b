from minicaffe.device.context cimport Context
from minicaffe.net.schedule cimport Schedule

cdef Schedule compile_nodes(list nodes, pinned, list params, list learnable, bint training, bint plan, unsigned long long stamp,
                            const Context& on)
