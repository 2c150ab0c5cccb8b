"""MPI without processes: what minicaffe/parallel calls of mpi4py, for ranks that are threads, or for one whose others do the same.

A call that does not fit those of the other ranks fails the test. What MPI may write to holds 0xff until it has written.
"""

import inspect
import pickle
import threading
from collections import defaultdict, deque
from types import SimpleNamespace

import numpy as np

IN_PLACE = object()
PATIENCE = 20   # seconds after which ranks that wait for each other fail


class Broken(RuntimeError):
    """What MPI raises for ranks that wait for one that is gone, and for a call that a test lets fail, as mpi4py's errors are."""


class Job:
    """Processes that were started together.

    Parameters
    ----------
    size : int
    mirror : bool
        There is one rank only, and the others give what it gives.
    late : int
        How often `Test` says of a complete request that it is not.
    threads : bool
        Whether MPI takes calls of several threads.
    """

    def __init__(self, size, mirror=False, late=0, threads=True):
        self.size, self.mirror, self.late, self.broken = size, mirror, late, None
        self.changed, self.meetings, self.letters = threading.Condition(), {}, defaultdict(deque)
        self.fails = None   # the number of the call that fails
        self.count()
        self.aborted = []
        self.module = SimpleNamespace(
            COMM_TYPE_SHARED=0, IN_PLACE=IN_PLACE, SUM=np.add, FLOAT=np.dtype("f4"), DOUBLE=np.dtype("f8"), UINT16_T=np.dtype("u2"),
            ANY_TAG=-1, THREAD_MULTIPLE=3, Query_thread=lambda: 3 if threads else 1, Get_processor_name=lambda: "here",
            Status=lambda: SimpleNamespace(tag=None), Op=SimpleNamespace(Create=lambda function, commute: _element_by_element(function)))

    def use(self, monkeypatch):
        """Let minicaffe have this in place of mpi4py during a test."""
        from minicaffe.parallel import group, heartbeat, transport
        for module in (transport, group, heartbeat):
            monkeypatch.setattr(module, "mpi", lambda: self.module)
        monkeypatch.setattr(group, "world", lambda: self.comm(0))
        monkeypatch.setattr(transport, "sum_of_bf16", inspect.unwrap(transport.sum_of_bf16))   # which keeps one operation of the real MPI
        monkeypatch.setattr(transport, "keep_freed_memory", lambda: None)

    def comm(self, rank):
        """Return the communicator of all as a rank has it."""
        return Comm(self, rank, ())

    def together(self, function):
        """Return what ``function(rank)`` returns in a thread of each rank; raise what the first raises that is not Broken."""
        results, errors = [None] * self.size, [None] * self.size

        def run(rank):
            try:
                results[rank] = function(rank)
            except BaseException as error:
                errors[rank] = error
                self.end(f"rank {rank} raised {error!r}")
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [error for error in errors if error is not None]
        for error in sorted(found, key=lambda error: isinstance(error, Broken)):
            raise error
        return results

    def end(self, why):
        """A rank is gone: who waits for others, or calls from now on, gets an error."""
        with self.changed:
            self.broken = self.broken or why
            self.changed.notify_all()

    def count(self):
        """Count from now on, from 0, the calls of this thread."""
        self.calls, self.counted = 0, threading.get_ident()

    def call(self):
        """Count a call of MPI by the thread that made this, and let the one fail that a test has named."""
        if self.broken:
            raise Broken(self.broken)
        if threading.get_ident() == self.counted:
            self.calls += 1
            if self.calls == self.fails:
                raise Broken(f"call {self.calls}")


class Comm:
    def __init__(self, job, rank, name):
        self.job, self.rank, self.name = job, rank, name
        self.size, self.calls, self.children = job.size, 0, 0

    def Dup(self):
        self._all("Dup", None)
        self.children += 1
        return Comm(self.job, self.rank, (*self.name, self.children))

    def Split_type(self, kind):
        return self.Dup()

    def Free(self):
        self.job.call()

    def Abort(self, status):
        self.job.aborted.append(status)
        self.job.end("aborted")

    # ---- all ranks

    def allgather(self, value):
        return [pickle.loads(theirs) for theirs in self._all("allgather", pickle.dumps(value))]

    def gather(self, value):
        found = self._all("gather", pickle.dumps(value))
        return [pickle.loads(theirs) for theirs in found] if self.rank == 0 else None

    def bcast(self, value):
        return pickle.loads(self._all("bcast", pickle.dumps(value))[0])

    def scatter(self, values):
        return pickle.loads(self._all("scatter", pickle.dumps(values))[0])[self.rank]

    def Bcast(self, array):
        array[...] = self._all(("Bcast", array.shape, array.dtype), array.copy())[0]

    def Allgather(self, given, found):
        self.Iallgather(given, found).Wait()

    def Iallgather(self, given, found):
        def arrive(values):
            found[...] = values
        _bytes(found)[...] = 0xff
        return self._begin(("Iallgather", given.shape, given.dtype), given.copy(), arrive)

    def Allreduce(self, given, found, operation=np.add):
        if given is IN_PLACE:
            data, kind = found
            self.Iallreduce(given, [data, len(data) // kind.itemsize, kind], operation).Wait()
        else:
            found[...] = np.sum(self._all(("Allreduce", given.shape, given.dtype), given.copy()), axis=0)

    def Iallreduce(self, given, found, operation):
        assert given is IN_PLACE
        data, count, kind = found
        array = np.frombuffer(data, kind)
        assert array.size == count, (array.size, count)

        def arrive(values):
            total = values[0].copy()
            for value in values[1:]:
                total[...] = operation(total, value)
            array[...] = total
        mine = array.copy()
        _bytes(array)[...] = 0xff
        return self._begin(("Iallreduce", count, kind), mine, arrive)

    def _all(self, what, value):
        return self._begin(what, value, lambda values: None).Wait()

    def _begin(self, what, value, arrive):
        job = self.job
        job.call()
        self.calls += 1
        with job.changed:
            meeting = job.meetings.setdefault((self.name, self.calls), {})
            for rank, (others, _) in meeting.items():
                assert others == what, f"rank {rank} calls {others}, rank {self.rank} calls {what}"
            meeting.update({rank: (what, value) for rank in (range(self.size) if job.mirror else [self.rank])})
            if len(meeting) == self.size:
                del job.meetings[self.name, self.calls]
            job.changed.notify_all()
        return Request(job, meeting, arrive)

    # ---- two ranks

    def Isend(self, data, to, tag):
        with self.job.changed:
            sender = to if self.job.mirror else self.rank       # a ring of ranks that do the same: what one sends it gets
            self.job.letters[self.name, self.rank if self.job.mirror else to].append((sender, tag, data.copy()))
        return SimpleNamespace(Test=lambda: True)

    def Iprobe(self, sender, tag, status):
        return bool(self.job.letters[self.name, self.rank])

    def Recv(self, data, sender, tag, status):
        _, status.tag, data[...] = self.job.letters[self.name, self.rank].popleft()


class Request:
    def __init__(self, job, meeting, arrive):
        self.job, self.meeting, self.arrive, self.late = job, meeting, arrive, job.late

    def Wait(self):
        self.job.call()
        with self.job.changed:
            done = self.job.changed.wait_for(lambda: self.job.broken or len(self.meeting) == self.job.size, PATIENCE)
            assert done, f"no other rank comes to this: {self.meeting}"
            if len(self.meeting) < self.job.size:
                raise Broken(self.job.broken)
            return self._arrived()

    def Test(self):
        self.job.call()
        with self.job.changed:
            if len(self.meeting) < self.job.size:
                return False
            self.late -= 1
            if self.late >= 0:
                return False
            self._arrived()
            return True

    def _arrived(self):
        values = [self.meeting[rank][1] for rank in range(self.job.size)]
        if self.arrive is not None:     # a request that is done does nothing more
            self.arrive, arrive = None, self.arrive
            arrive(values)
        return values


def _bytes(array):
    return array.reshape(-1).view(np.uint8)


def _element_by_element(function):
    """An operation of NumPy arrays that does what one of MPI's does, which adds to its second argument."""
    def operation(total, value):
        found = total.copy()
        function(memoryview(value), memoryview(found), None)
        return found
    return operation
