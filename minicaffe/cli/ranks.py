"""Commands that several processes run together: ``mpiexec -n 4 minicaffe train ...``.

A process that was started alone has no group and does not import mpi4py. Several processes form a group before they read
their arguments, so that a later error on any of them ends all.
"""

import collections
import contextlib
import importlib.util
import os
import sys
import time

import click

from minicaffe import entry_points, parallel
from minicaffe.errors import DependencyError
from minicaffe.parallel import SINGLE_PROCESS

PARALLEL_COMMANDS = {"train": "training", "test": "parallel", "classify": "parallel", "extract_features": "parallel"}
MAX_HOSTS_SHOWN = 8   # at most, in a line

group = SINGLE_PROCESS      # the Group of the processes that run this command together


def parallel_commands():
    """Return the commands that several processes may run together, and how: "training", which has a solver, or "parallel"."""
    of_addons = {name: each[0].value[3] for name, each in entry_points.additions("commands").items() if each[0].value[3:]}
    return {**PARALLEL_COMMANDS, **of_addons}


def init_process_group(command):
    """Form the group of the processes that were started together with this one, to run `command`.

    Each gets its share of the machine's processors as threads. Raises UsageError if the command is not for several processes,
    DependencyError if there is no MPI, ConfigError if the mpiexec that has started the processes belongs to another MPI.
    """
    global group
    if group is not SINGLE_PROCESS:
        return
    how = parallel_commands().get(command)
    if command is not None and how is None:
        raise click.UsageError(f"{command} is for one process, and {parallel.launched()} were started together; start it without "
                               f"mpiexec. For several are {', '.join(parallel_commands())}")
    from minicaffe.parallel.group import Group
    from minicaffe.parallel.heartbeat import Heartbeat
    group = Group()
    group.check_equal({"the command": command})      # else ranks of different commands wait for each other
    if how != "training":   # whose solver starts one that also watches the progress
        Heartbeat(group, timeout=0)
    from minicaffe.device.threads import set_num_threads, threads_by_variable
    share = group.processors()      # a call of all ranks, whose variables may differ
    if threads_by_variable() is None:
        set_num_threads(share)


def report_failure(line, status):
    """Print why the command fails and end all processes that run it; return `status` if there is only one.

    An error that all ranks raise at once is printed once: rank 0 prints at once, and ends the others while they wait.
    """
    if group is SINGLE_PROCESS:
        if parallel.local_rank() == 0:  # no process of this machine could join a group
            print_error_line(line)
        else:       # Open MPI ends all when the first one ends
            time.sleep(2)
        return status
    from minicaffe.parallel.group import abort, wait_for_root_error
    wait_for_root_error(group.rank)
    print_error_line(f"{group.name()}: {line}")
    abort(group.comm, status)


def print_error_line(line):
    """Write the line of an error on standard error, after the text of standard output; both may be closed."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):     # the exit status reports the error
        sys.stderr.write(f"minicaffe: {line}\n")
        sys.stderr.flush()


def map_over_ranks(count, compute):
    """Yield ``compute(i)`` for each `i` below `count`, in order, for ``classify`` and ``detect``.

    Ranks take every size-th `i`; only rank 0 gets the results.
    """
    if group is SINGLE_PROCESS:
        yield from map(compute, range(count))
        return
    group.check_equal({"the number of inputs": count})
    for begin in range(0, count, group.size):
        mine = begin + group.rank
        results = group.gather_to_root(compute(mine) if mine < count else None)     # None on other ranks
        yield from (results or ())[:count - begin]


def start_on_gpus(ids, command, arguments):
    """Become the mpiexec that runs ``minicaffe command arguments`` on one process for each of the GPUs `ids`.

    Raises UsageError if the command is not for several processes, DependencyError if there is no mpiexec or no mpi4py.
    """
    if command not in parallel_commands():
        raise click.UsageError(f"--gpu: {command} computes on one GPU, got {','.join(map(str, ids))}")
    from minicaffe.parallel.launch import mpiexec
    program = mpiexec()
    if importlib.util.find_spec("mpi4py") is None:
        raise DependencyError('mpi4py is not installed, and processes that compute together, one a GPU, need it: '
                              'pip install "minicaffe[mpi]"')
    sys.stdout.flush()
    sys.stderr.flush()
    # Open MPI would start no more processes than there are processors.
    os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    # -P, as for the command `minicaffe`: the working directory may hold a module of the same name.
    os.execv(program, [program, "--bind-to", "none", "-n", str(len(ids)), sys.executable, "-P", "-m", "minicaffe", command,
                       *arguments])


def use_gpu(ids=None, begin=None):
    """Compute on a GPU: one of `ids` (--gpu), by default of all, from number `begin` (a device_id) on.

    A caller gives one of both, or none. Each rank of a machine takes the next GPU, ranks beyond their number start again with the
    first. A single process takes the first, by default the current one.
    """
    from minicaffe import cuda
    ids = ids or ([] if group is SINGLE_PROCESS else range(cuda.count()))
    # Without `ids`, use_gpu takes the current GPU, or raises if there is none.
    cuda.use_gpu(ids[((begin or 0) + group.local_rank) % len(ids)] if ids else begin)


def mpiexec_words(gpus):
    """Return the words before ``minicaffe`` that start as many processes again; [] if --gpu with `gpus` GPUs (0: none) does."""
    return [] if group is SINGLE_PROCESS or gpus == group.size == group.local_size else ["mpiexec", "-n", str(group.size)]


def lines():
    """Return lines of text about the ranks: hosts, threads, GPUs that several share by mistake. All ranks must call this."""
    from minicaffe.common import caffe
    from minicaffe.device.threads import get_num_threads
    hosts = collections.Counter(group.hosts)
    shown = ", ".join(f"{count} on {host}" for host, count in list(hosts.items())[:MAX_HOSTS_SHOWN])
    more = f" and {len(hosts) - MAX_HOSTS_SHOWN} machines more" if len(hosts) > MAX_HOSTS_SHOWN else ""
    threads = sorted(set(group.gather(get_num_threads())))
    each = f"{' to '.join(map(str, {threads[0]: 0, threads[-1]: 0}))} thread{'s' * (threads != [1])} each"
    texts = [f"{group.size} ranks: {shown}{more}; {each}"]
    if caffe.mode == "gpu":
        from minicaffe import cuda
        index = cuda.current().index
        # Schedulers give each rank its own GPUs by this variable; each rank then counts from 0.
        gpus = group.gather((group.hosts[group.rank], os.environ.get("CUDA_VISIBLE_DEVICES"), index))
        shared = {gpu: [rank for rank, its in enumerate(gpus) if its == gpu] for gpu in gpus}
        texts += [f"ranks {', '.join(map(str, ranks))} share GPU {index} of {host}" for (host, _, index), ranks in shared.items()
                 if len(ranks) > 1]
    return texts
