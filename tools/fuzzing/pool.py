"""Workers: forked processes that run case after case within limits, and who watches over them.

The watcher has everything imported and computes nothing, so that a worker is there within milliseconds. A worker says in
shared memory which case it is at, leaves the case in a file, and reports each result through a pipe; one that dies or takes too
long is replaced by one that begins with the next case.
"""

import base64
import faulthandler
import json
import logging
import mmap
import os
import resource
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import minicaffe
from fuzzing import files, targets
from minicaffe import memory
from minicaffe.errors import DeviceError, Error

ADDRESSES = 3 << 30  # bytes of address space that a worker may add to what it has
GROWTH = 1 << 30     # bytes of memory that one case may add
LONGEST = 10_000  # characters of an error
CPU_SECONDS = 10.0   # of one case
WALL_SECONDS = 30.0  # of one case: it waits for something that does not come
START_SECONDS = 120.0  # until the first case
LIVES = 1000         # cases of a worker
IDLE = 2**64 - 1
FAILURES = ("exception", "memory", "signal", "timeout", "device")


class Worker:
    """A process that runs cases of `seed`, or those given.

    Parameters
    ----------
    chosen : list of str
        Names of the kinds.
    cases : iterable of int
    given : list of (str, bytes), optional
        Kinds and cases, of which those with the numbers `cases` are run instead.
    """

    def __init__(self, all_kinds, chosen, seed, cases, given=None):
        self.place = mmap.mmap(-1, 8)
        self.place[:] = struct.pack("<Q", IDLE)
        # In memory where that is offered: saving a net waits for the disk.
        self.home = Path(tempfile.mkdtemp(prefix="minicaffe-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        (self.home / "work").mkdir()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(read)
                _work(self.place, self.home, write, all_kinds, chosen, seed, cases, given)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        self.pipe = read
        self.rest = b""
        self.seen = (IDLE, 0.0, time.monotonic())  # number of the case, and when it was first seen: processor time and time of day

    @property
    def number(self):
        """The case that the worker is at; IDLE before the first."""
        return struct.unpack("<Q", self.place[:])[0]

    def results(self):
        """Read what came through the pipe; return (list of results, whether the worker has ended)."""
        chunk = os.read(self.pipe, 1 << 16)
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines], not chunk

    def overdue(self, patience=CPU_SECONDS):
        """Return whether the present case takes more than `patience` seconds of processor time."""
        number, now = self.number, time.monotonic()
        if number != self.seen[0]:
            self.seen = number, self.cpu_seconds(), now
            return False
        if number == IDLE:  # it makes the files to start from
            return now - self.seen[2] > START_SECONDS
        return self.cpu_seconds() - self.seen[1] > patience or now - self.seen[2] > WALL_SECONDS

    def cpu_seconds(self):
        """Return the processor time that the worker used."""
        try:
            words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        """End the worker, which first writes where it is."""
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.2)
        os.kill(self.pid, signal.SIGKILL)

    def bury(self, slow=False):
        """Wait for the end of the worker and remove its folder; return the result of a case that ended it, else None."""
        number = self.number
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        fallen = None
        if slow or status:
            kind, _, data = _content(self.home / "case").partition(b"\n")
            words = _content(self.home / "fault").decode(errors="replace")
            fallen = {"number": number, "kind": kind.decode() or "start", "data": base64.b64encode(data).decode(), "seconds": 0.0,
                      "growth": 0, "detail": words[:4000], **_cause(slow, status, words)}
        shutil.rmtree(self.home, ignore_errors=True)
        return fallen


def _work(place, home, pipe, all_kinds, chosen, seed, cases, given):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fault = open(home / "fault", "w")  # noqa: SIM115  (open until the process ends)
    faulthandler.enable(fault)
    faulthandler.register(signal.SIGUSR1, fault)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    minicaffe.set_random_seed(1)
    folder = files.Folder(home / "work")
    os.dup2(fault.fileno(), 2)  # libpng and others write there what is in the errors too
    if os.environ.get("MINICAFFE_DEVICE") == "sim":  # it reserves addresses, and watches over each block of the driver
        minicaffe.set_mode_gpu()
        memory.use(memory.CUDAPlace(0), "plain")
    else:
        limit = _status("VmSize") + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in cases:
        place[:] = struct.pack("<Q", number)
        minicaffe.set_random_seed(1)
        started = time.process_time()
        folder.restore()  # the case before may have written over what this one is made of
        try:
            kind, data = given[number] if given else targets.make(all_kinds, chosen, seed, number)
        except Exception:
            kind, data, result = "making", b"", {"outcome": "exception", "where": "tools/fuzzing", "detail": traceback.format_exc(),
                                                 "growth": 0}
        else:
            (home / "case").write_bytes(kind.encode() + b"\n" + data)
            folder.restore()
            result = run(all_kinds[kind], data)
            if result["outcome"] in FAILURES:
                result["data"] = base64.b64encode(data).decode()
        result.update(number=number, kind=kind, seconds=time.process_time() - started)
        os.write(pipe, json.dumps(result).encode() + b"\n")
        if result["outcome"] == "device":
            return  # the context is lost
    place[:] = struct.pack("<Q", IDLE)


def run(kind, data):
    """Run one case; return outcome, where it failed, what it said, and by how many bytes memory grew at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before = _status("VmRSS")
    outcome, where, detail = "ok", "", ""
    try:
        kind.run(data)
    except Error as error:
        outcome, detail = type(error).__name__, str(error)
        if len(detail) > LONGEST:
            outcome, where = "exception", f"an error of {len(detail)} characters at {_where(error)}"
        if isinstance(error, MemoryError):
            outcome, where = "memory", _where(error)
        elif isinstance(error, DeviceError):  # only the simulated device's watch over its memory raises it here
            outcome, where = "device", error.layer_type or "?"
    except BaseException as error:
        outcome = "memory" if isinstance(error, MemoryError) else "exception"
        where, detail = f"{type(error).__name__} at {_where(error)}", traceback.format_exc()
    growth = _status("VmHWM") - before
    if growth > GROWTH and outcome not in ("memory", "exception"):
        outcome, where = "memory", "a growth of more than 1 GiB"
    return {"outcome": outcome, "where": where, "detail": detail[-4000:], "growth": growth}


def _where(error):
    """Return the innermost place in the project that an exception came from."""
    places = [f"{frame.filename.rpartition('minicaffe/')[2]}:{frame.lineno} {frame.name}"
              for frame in traceback.extract_tb(error.__traceback__) if "minicaffe/" in frame.filename]
    return places[-1] if places else "?"


def _status(name):
    """Return a figure of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {name}")


def results(all_kinds, chosen, seed, jobs, seconds=None, cases=None, patience=CPU_SECONDS):
    """Yield the result of each case, a dict, until the time is over or all cases are run.

    A result has number, kind, outcome (``ok``, the name of one of minicaffe's errors, or ``exception``, ``memory``, ``signal``,
    ``timeout``, ``device``), where, detail, seconds and growth (bytes).
    """
    end = None if seconds is None else time.monotonic() + seconds
    last = cases if cases is not None else 1 << 62
    nexts = list(range(jobs))
    workers = {}
    for job in range(jobs):
        if job < last:
            workers[job] = Worker(all_kinds, chosen, seed, range(job, min(last, job + LIVES * jobs), jobs))
    try:
        while workers and (end is None or time.monotonic() < end):
            ready, _, _ = select.select([worker.pipe for worker in workers.values()], [], [], 0.25)
            for job, worker in list(workers.items()):
                ended = False
                if worker.pipe in ready:
                    found, ended = worker.results()
                    for result in found:
                        nexts[job] = result["number"] + jobs
                        yield result
                slow = not ended and worker.overdue(patience)
                if slow:
                    worker.kill()
                if not ended and not slow:
                    continue
                fallen = worker.bury(slow)
                del workers[job]
                if fallen is not None:
                    yield fallen
                    if fallen["number"] == IDLE:
                        return
                    nexts[job] = fallen["number"] + jobs
                if nexts[job] < last:
                    first = nexts[job]
                    workers[job] = Worker(all_kinds, chosen, seed, range(first, min(last, first + LIVES * jobs), jobs))
    finally:
        for worker in workers.values():
            os.kill(worker.pid, signal.SIGKILL)
            worker.bury()


def replay(all_kinds, given, patience=CPU_SECONDS):
    """Yield the result of each (kind, data) of the list `given`; a worker runs them in turn, until one ends it."""
    done = 0
    while done < len(given):
        worker = Worker(all_kinds, [], 0, range(done, len(given)), given)
        ended = False
        while not ended:
            ready, _, _ = select.select([worker.pipe], [], [], 0.25)
            if ready:
                found, ended = worker.results()
                yield from found
                done += len(found)
                fallen = worker.bury() if ended else None
            elif ended := worker.overdue(patience):
                worker.kill()
                fallen = worker.bury(True)
            if ended and fallen is not None:
                yield fallen
                if fallen["number"] == IDLE:
                    return
                done = fallen["number"] + 1


def _cause(slow, status, words):
    """Return outcome and where of a case that ended its worker."""
    places = [line.strip() for line in words.splitlines() if "minicaffe/" in line]
    where = places[0] if places else "?"
    if slow:
        return {"outcome": "timeout", "where": where}
    if os.WIFSIGNALED(status):
        return {"outcome": "signal", "where": f"{signal.Signals(os.WTERMSIG(status)).name} at {where}"}
    return {"outcome": "signal", "where": f"exit status {os.waitstatus_to_exitcode(status)} at {where}"}


def _content(path):
    return path.read_bytes() if path.exists() else b""
