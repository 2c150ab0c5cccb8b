"""Processes that train and score together: ranks, as MPI calls them (Caffe parallel.cpp, which joined the GPUs of one machine).

Nothing here but alone.py is imported, and no MPI is started, unless a process was started by mpiexec or asks for it.
"""
