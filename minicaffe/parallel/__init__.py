"""Processes that train and score together: ranks, as MPI calls them (Caffe parallel.cpp, which joined the GPUs of one machine).

Only launch.py and single.py are imported, and MPI is not started, unless mpiexec started the process or the program requests it.
"""
