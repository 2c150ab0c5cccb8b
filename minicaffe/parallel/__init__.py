"""Processes that train and score together: ranks, as MPI calls them (Caffe parallel.cpp, which joined the GPUs of one machine).

Only alone.py is imported, and MPI is not started, unless mpiexec started the process or the program requests it.
"""
