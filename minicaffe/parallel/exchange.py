"""Exchange: sums the gradients of all processes while backward still runs, and updates parameters as sums arrive.

    backward -> submit(parameters whose gradients are complete) -> bucket -> transport -> update

The first iteration records the order in which gradients become complete, and their layouts; all ranks use the order of rank 0.
From then on a bucket is sent when its last gradient is complete. Before that, while backward begins, an allgather exchanges the
loss of each rank and its action after the iteration.
"""

import time
import zlib

import numpy as np

from minicaffe.blob import NUMPY_TYPES
from minicaffe.errors import Error
from minicaffe.memory import reporter
from minicaffe.parallel.bucket import Bucket

ACTIONS = ("none", "snapshot", "stop")      # of a rank; of all ranks' actions the last in this order is done
UNBUCKETED_MIN_BYTES = 1 << 18  # least bytes of a gradient sent alone: without a copy, and in more time than MPI's latency
BUCKET_BYTES = 1 << 20  # least bytes of a bucket of smaller gradients, except the last

_unfinished = {}    # by id: buffers of allgathers that have not ended; MPI may write to them even if the solver was deleted


class Exchange:
    """Exchanges gradients, losses and actions of a solver with the other processes of its group.

    solver/step.py calls `begin`, `start_loss_allgather` before backward (with a CUDA graph after it), `submit` during backward,
    and `finish_loss_allgather`.

    "Numbers" of parameters are indices in `params`, which is `Net.learnable_params`; those for which `learned` is False get no
    gradients, and are not sent. Of `transport`, from `make_transport`, ``start(bucket)`` begins a sum, ``poll()`` returns the first
    of `in_flight` if it has arrived, else None, and ``wait()`` waits for it.
    """

    def __init__(self, group, params, learned, transport, bf16=False):
        self.group, self.params, self.learned, self.transport, self.bf16 = group, params, learned, transport, bf16
        self.losses, self.update = [], None     # of the last iteration, by rank; see `begin`
        self.buckets = None         # in the order in which they are sent; None: the first iteration has not ended yet
        self.bucket_of = {}         # number of a parameter -> index of its bucket in `buckets`
        self.comm = group.comm.Dup()    # of the allgathers alone, which run at the same time as the sums
        self._pending_allgather = None      # between its start and end: all that MPI may write to
        self._reset()

    def begin(self, update=None):
        """Prepare for the last backward of an iteration; drop what a failed recording of a CUDA graph has left.

        `update` is called with the numbers of parameters whose sums have arrived. None: updates wait for the end of the iteration.
        Raises Error if the last iteration ended between `start_loss_allgather` and `finish_loss_allgather`: other ranks would match
        the next message with the missing one.
        """
        if self._pending_allgather is not None:
            raise Error("an iteration ended in the middle, while its gradients were being sent to other ranks; create the solvers "
                        "of all ranks again, and restore a snapshot")
        self.transport.in_flight.clear()
        self.update = update
        self._reset()

    def _reset(self):
        """Set the counters for the next backward."""
        self.order = []     # parameters, by number, as `submit` gets them in the first iteration
        # Gradients of each bucket that are not complete; no buckets exist in the first iteration.
        self.missing = [len(bucket.which) for bucket in self.buckets or ()]
        self.started = self.arrived = 0     # buckets
        self.arrived_buckets = []   # not used yet: several are updated in one call, as a call costs as much as a small layer

    def start_loss_allgather(self, loss, action):
        """Start an allgather of the loss of this rank's batch and of its action after the iteration, one of `ACTIONS`."""
        given, found = np.array([loss, ACTIONS.index(action)]), np.empty((self.group.size, 2))
        self._pending_allgather = found, self.comm.Iallgather(given, found), given, self.transport.in_flight
        _unfinished[id(self._pending_allgather)] = self._pending_allgather

    def finish_loss_allgather(self):
        """Wait for that allgather; return the mean of the losses, and the action of all ranks after this iteration."""
        found, request, *_ = self._pending_allgather
        request.Wait()
        del _unfinished[id(self._pending_allgather)]
        self._pending_allgather = None
        self.group.steps.count += 1     # progress, for heartbeat.py
        self.losses = found[:, 0].tolist()
        return sum(self.losses) / len(self.losses), ACTIONS[int(found[:, 1].max())]

    def submit(self, which, part=None, last=False):
        """Accept complete gradients, by the numbers of their parameters; return the numbers that this call updated.

        It is the `on_gradients` of `Net.forward_backward`, which frees the gradients of the numbers returned if the net has a plan.
        `part` is None: large gradients are not streamed. `last`: no more follow; return when all sums have arrived.
        """
        if self.buckets is None:
            self.order += which
        if last:
            return self.finish()
        for i in which:
            if i in self.bucket_of:
                self.missing[self.bucket_of[i]] -= 1
        while self.started < len(self.missing) and not self.missing[self.started]:
            self._start()
        self.arrived_buckets += self._poll_arrived()
        return self._update_arrived() if sum(bucket.nbytes for bucket in self.arrived_buckets) >= BUCKET_BYTES else []

    def finish(self):
        """Send all gradients that are left and wait for their sums; return the numbers of the parameters that were updated."""
        if self.buckets is None:
            self._make_buckets()
        while self.started < len(self.buckets):
            self._start()
        used = self._update_arrived()
        while self.arrived < len(self.buckets):
            self.arrived_buckets += [self._record_arrival(self.transport.wait()), *self._poll_arrived()]
            used += self._update_arrived()
        if self.update is not None:
            still = [i for i in range(len(self.params)) if i not in self.bucket_of]     # without gradients, so not sent
            self.update(still)
            used += still
        return used

    def _start(self):
        """Send the next bucket, whose gradients are complete."""
        bucket = self.buckets[self.started]
        self.transport.start(bucket)
        self.started += 1
        bucket.start_ns = time.perf_counter_ns()

    def _poll_arrived(self):
        """Return the buckets that have arrived since the last call."""
        found = []
        while self.arrived < self.started and (bucket := self.transport.poll()) is not None:
            found.append(self._record_arrival(bucket))
        return found

    def _record_arrival(self, bucket):
        """Count a bucket whose sums have arrived, and report for a trace how long that took; return it."""
        self.arrived += 1
        reporter.event("travel", nbytes=bucket.nbytes, name=", ".join(f"{blob.name} diff" for blob in bucket.blobs),
                       took=time.perf_counter_ns() - bucket.start_ns)
        return bucket

    def _update_arrived(self):
        """Update the parameters of arrived buckets, unless updates wait for the end; return their numbers."""
        which = [i for bucket in self.arrived_buckets for i in bucket.which]
        self.arrived_buckets = []
        if self.update is None or not which:
            return []
        self.update(which)
        return which

    def _make_buckets(self):
        """Make the buckets, in the order in which gradients were complete on rank 0, in layouts that all ranks have."""
        rest = [i for i in reversed(range(len(self.params))) if i not in set(self.order)]
        order = self.group.broadcast_from_root([i for i in self.order + rest if self.learned[i] and self.params[i].count])
        layouts = {i: self.params[i].layout_of_diff() for i in order}
        for i, same in zip(order, zip(*self.group.gather([_signature(layouts[i], self.params[i]) for i in order]))):
            if same[0] is None or len(set(same)) > 1:
                layouts[i] = None       # plain order, in which all ranks can give it
        small, parts = [], []       # parameters of the next bucket; those of each bucket
        for i in order:
            if self.params[i].diff_memory.size >= UNBUCKETED_MIN_BYTES:
                parts.append([i])
                continue
            small.append(i)
            if sum(self.params[k].diff_memory.size for k in small) >= BUCKET_BYTES:
                parts.append(small)
                small = []
        self.buckets = [Bucket(which, [self.params[i] for i in which], [layouts[i] for i in which], self.bf16)
                        for which in [*parts, small] if which]
        self.bucket_of = {i: number for number, bucket in enumerate(self.buckets) for i in bucket.which}
        self._reset()


def _signature(layout, blob):
    """Return checksum and bytes of a gradient's numbered elements in a layout: ranks with the same layout have the same pair.

    None: plain order, or another type, which the sums cannot add. `from_plain` writes each byte, padding as 0, and without a
    stream converts on the host, also a layout of a device. Integers up to 2**24 are exact in float32.
    """
    if layout is None or layout.dtype != blob.dtype:
        return None
    plain, private = np.arange(blob.count) % 2 ** 24, np.empty(layout.nbytes, np.uint8)
    plain = plain.astype(NUMPY_TYPES[blob.dtype])
    layout.from_plain(private.ctypes.data, plain.ctypes.data)
    return zlib.crc32(private), layout.nbytes
