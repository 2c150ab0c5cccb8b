"""What ranks send each other, and what a process knows of how it was started."""

import os
import pickle
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import ranks
from fake_mpi import Job

from minicaffe import parallel
from minicaffe.errors import ConfigError, Error, NotFiniteError
from minicaffe.parallel import LOCAL_RANKS, RANKS, SIZES, heartbeat, launch, launched
from minicaffe.parallel import group as groups
from minicaffe.parallel.group import Group
from minicaffe.parallel.heartbeat import Heartbeat


def meet():
    from minicaffe.parallel.group import Group
    group = Group()
    try:
        group.check_equal({"the net": "lenet", "the weights": 7 if group.rank == 1 else 3})
        differs = None
    except ConfigError as error:
        differs = str(error)
    group.check_equal({"the net": "lenet"})
    return {"size": group.size, "all": group.gather(group.rank * 10), "first": group.broadcast_from_root(group.rank + 5),
            "name": group.name(1), "launched": launched(), "local": [group.local_rank, group.local_size], "differs": differs}


def test_ranks_compare_values_and_name_differences():
    found = ranks.run(3, __file__, "meet")
    assert [rank["local"] for rank in found] == [[0, 3], [1, 3], [2, 3]]
    for rank in found:
        assert (rank["size"], rank["all"], rank["first"], rank["launched"]) == (3, [0, 10, 20], 5, 3)
        assert rank["differs"].startswith(f"the weights differs: 7 on {rank['name']}, 3 on the others")


@pytest.mark.parametrize("facts, words", [
    (({}, {"clip": 5}, {}), "clip differs: 5 on rank 1 of 3 (here), nothing on the others"),
    (({"clip": 5}, {}, {"clip": 5}), "clip differs: nothing on rank 1 of 3 (here), 5 on the others"),
    (({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}), "b differs: nothing on rank 0 of 3 (here), 2 on the others")])
def test_missing_on_some_ranks_differs(monkeypatch, facts, words):
    job = Job(3)
    job.use(monkeypatch)

    def compare(rank):
        with pytest.raises(ConfigError) as raised:
            Group(job.comm(rank)).check_equal(facts[rank])
        return str(raised.value)

    assert job.together(compare) == [f"{words}; it must be the same on all ranks"] * 3


@pytest.mark.parametrize("error, words", [(ConfigError("wrong"), "wrong"), (ValueError("wrong"), "rank 0 of 2 (here) failed: ValueError('wrong')")])
def test_failure_of_first_rank_reaches_all(monkeypatch, error, words):
    job = Job(2)
    job.use(monkeypatch)

    def fails():
        raise error

    def run(rank):
        with pytest.raises(type(error) if rank == 0 else Error) as raised:
            Group(job.comm(rank)).run_on_root(fails)
        return str(raised.value)
    assert job.together(run) == ["wrong", words]


def test_mpi_settings_of_environment_stay(monkeypatch):
    *given, absent = launch.SETTINGS
    for name in given:
        monkeypatch.setenv(name, "mine")
    monkeypatch.delenv(absent, raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI="the module"))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", "the module")
    assert launch.mpi() == "the module"
    assert [os.environ.pop(name) for name in (*given, absent)] == ["mine"] * len(given) + [launch.SETTINGS[absent]]


def test_errors_go_to_other_processes_whole():
    error = NotFiniteError("weights are not finite", remedy="lower the rate", since=7, file="solver.prototxt").at(field="nan")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is NotFiniteError and str(again) == str(error) and (again.since, again.remedy) == (7, "lower the rate")


@pytest.mark.parametrize("environment, count, numbers", [
    ({}, 1, (0, 0)), ({"PMI_SIZE": "four"}, 1, (0, 0)), ({"PMI_SIZE": "4", "PMI_RANK": "3"}, 4, (3, 3)),
    ({"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1"}, 4, (3, 1)),
    ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 2, (1, 0)),
    ({"SLURM_NTASKS": "8", "PMIX_RANK": "5", "SLURM_PROCID": "5", "SLURM_LOCALID": "2"}, 8, (5, 2)),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "2"}, 1, (0, 0)),     # srun gives its numbers to every program
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 1, (0, 0)), ({"PMI_SIZE": "1", "PMI_RANK": "0", "MPI_LOCALRANKID": "1"}, 1, (0, 0))])
def test_place_among_started_processes(monkeypatch, environment, count, numbers):
    for name in (*SIZES, *RANKS, *LOCAL_RANKS, "PMI_FD", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (launched(), parallel.rank(), parallel.local_rank()) == (count, *numbers)


@pytest.mark.slow(3)
def test_process_ended_before_mpi_ends_all():
    if ranks.open_mpi():
        pytest.skip("Open MPI ends all itself then, and on a busy machine its mpiexec sometimes hangs after that (PMIX_ERR_UNREACH)")
    program = ("import sys; from minicaffe.parallel import launch, rank; launch.MPI_START_TIMEOUT = 3; rank() and sys.exit(3); launch.mpi()")
    process = ranks.start(2, "-c", program)
    _, errors = ranks.finish(process)
    assert process.returncode != 0
    assert "Timeout (0:00:03)!" in errors


@pytest.mark.parametrize("bound, count, processors", [
    ([{0, 1}, {2, 3}, {4}], None, [2, 2, 1]), ([{0, 1, 2, 3}] * 3, None, [1, 1, 1]), ([{0, 1, 2, 3}, {2, 3}, {5, 6}], None, [2, 1, 2]),
    (None, 6, [2, 2, 2]), (None, None, [1, 1, 1])])     # of a system that binds no processes, and of one that does not know how many there are
def test_ranks_share_processors(monkeypatch, bound, count, processors):
    """Not those of ranks that mpiexec has bound to others; at least one for each."""
    job, mine = Job(3), threading.local()
    job.use(monkeypatch)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    if bound is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: bound[mine.rank], raising=False)
    monkeypatch.setattr(groups, "usable_processors", lambda: len(bound[mine.rank]) if bound else count or 1)

    def run(rank):
        mine.rank = rank
        return Group(job.comm(rank)).processors()
    assert job.together(run) == processors


NAMES = "rank 1 of 2 (here)", "rank 0 of 2 (here)"


@pytest.mark.parametrize("timeout, seconds, words", [
    (60, {}, None),
    (60, {"last_heartbeat": 11}, f"{NAMES[0]} has sent no heartbeat for 10 s: "),
    (60, {"last_heartbeat": 9}, None),
    (60, {"last_heartbeat": 50, "left": 50}, None),
    (60, {"left": 11, "progress": 11, "waits": True}, f"{NAMES[0]} has ended or left the group, and {NAMES[1]} waits for it at here"),
    (60, {"left": 11, "progress": 9, "waits": True}, None),
    (60, {"progress": 61, "latest_progress": 0}, f"{NAMES[1]} has made no progress for 60 s; it is at here"),
    (60, {"progress": 59}, None),
    (0, {"progress": 10 ** 6, "latest_progress": 10 ** 6}, None),
    (60, {"progress": 63, "latest_progress": 63, "waits": True}, f"no rank has made progress for 60 s; {NAMES[1]} waits for others at here"),
    (60, {"progress": 63, "latest_progress": 1, "waits": True}, None),
    (60, {"progress": 61.5, "latest_progress": 61.5, "waits": True}, None),    # news take 2 s
    (0, {"progress": 10 ** 6, "latest_progress": 10 ** 6, "waits": True}, None)])
def test_what_is_trouble(monkeypatch, timeout, seconds, words):
    """Seconds since this rank last_heartbeat of the one before, since that left, and since this and any rank made progress; 0: for ever."""
    job = Job(2, mirror=True, threads=False)
    job.use(monkeypatch)
    signs = Heartbeat(Group(), timeout)
    signs.waits, signs.place, signs.left = seconds.pop("waits", False), "here", None
    for name, ago in {"last_heartbeat": 0, "progress": 0, "latest_progress": 0, **seconds}.items():
        setattr(signs, name, 10 ** 7 - ago)
    found = signs._find_failure(10 ** 7)
    assert found is None if words is None else found.startswith(words), found


def heartbeat_of_two(monkeypatch, **options):
    """Return the Heartbeat of rank 0 of 2 without its thread, and its Job."""
    job = Job(2, mirror=True, threads=False)
    job.use(monkeypatch)
    group = Group()
    beats = Heartbeat(group, **options)
    beats.group_of_test = group     # which would end it when it is deleted
    return beats, job


def test_exception_hook_until_end(monkeypatch):
    """Another one that was set since stays."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = sys.excepthook
    beats, _ = heartbeat_of_two(monkeypatch)
    assert sys.excepthook == beats._excepthook != before
    beats.end()
    beats.end()
    assert sys.excepthook is before
    beats, _ = heartbeat_of_two(monkeypatch)
    theirs = sys.excepthook = lambda *_: None
    beats.end()
    assert sys.excepthook is theirs
    job = Job(1)
    job.use(monkeypatch)
    Heartbeat(Group()).end()
    assert sys.excepthook is theirs


@pytest.mark.parametrize("kind, words, status", [(ConfigError, "net.prototxt: lr: wrong", 1), (ValueError, "ValueError: wrong", 1),
                                                 (KeyboardInterrupt, "KeyboardInterrupt: wrong", 130)])
@pytest.mark.parametrize("when", ["others wait", "at a prompt", "ended"])
def test_exception_in_rank_ends_all(monkeypatch, capfd, kind, words, status, when):
    """It is shown first; at a prompt, and after the heartbeats' end, it is shown alone."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    done = []
    sys.excepthook = lambda *found: done.append(found)
    beats, _ = heartbeat_of_two(monkeypatch)
    hook = sys.excepthook
    monkeypatch.setattr(heartbeat, "wait_for_root_error", lambda rank: done.append(f"rank {rank} waits"))
    monkeypatch.setattr(heartbeat, "abort", lambda comm, status: done.append((comm, status)))
    if when == "at a prompt":
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    elif when == "ended":
        beats.end()
    error = kind("wrong", file="net.prototxt", field="lr") if kind is ConfigError else kind("wrong")
    streams = SimpleNamespace(flush=lambda: done.append("flushed")), SimpleNamespace()      # one is none, as in a program without a terminal
    with monkeypatch.context() as context:
        context.setattr(sys, "stdout", streams[0])
        context.setattr(sys, "stderr", streams[1])
        hook(kind, error, None)
    _, errors = capfd.readouterr()
    if when == "others wait":
        assert done == ["rank 0 waits", (kind, error, None), "flushed", (beats.comm, status)]
        assert errors == f"minicaffe: rank 0 of 2 (here): {words}; all ranks end\n"
    else:
        assert done == [(kind, error, None)] and errors == ""


def test_end_of_all_is_silent(monkeypatch):
    job, done = Job(2, mirror=True), []
    job.use(monkeypatch)
    with monkeypatch.context() as context:
        context.setattr(groups.os, "dup2", lambda source, target: done.append((os.fstat(source).st_rdev, target)) or os.close(source))
        groups.abort(job.comm(0), 7)
    assert done == [(os.stat(os.devnull).st_rdev, 2)] and job.aborted == [7]
    done.clear()
    monkeypatch.setattr(groups.time, "sleep", done.append)
    for rank in range(8):
        groups.wait_for_root_error(rank)
    assert done == pytest.approx([1.3, 1.6, 1.9, 2.2, 2.5, 2.5, 2.5])


class Clock:
    """Seconds that pass only where a test lets them; `wait` is that of an Event which is set at the end of a list of pauses."""

    def __init__(self, pauses):
        self.now, self.pauses = 100.0, list(pauses)

    def wait(self, interval):
        self.now += self.pauses.pop(0) if self.pauses else 0
        return not self.pauses

    def is_set(self):
        return not self.pauses


def test_common_stop_counts_for_no_rank(monkeypatch):
    """As by Ctrl-Z; MPI's errors are no failures, but what is found after them is; in the end comes a goodbye."""
    beats, _ = heartbeat_of_two(monkeypatch, interval=1.0)
    clock, seen, failures = Clock([1, 1.9, 51, 2.1, 1, 1]), [], [None, None, None, "rank 1 is gone", None]
    beats.ended = clock
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock.now)

    def exchange(now):
        seen.append((now, beats.last_heartbeat, beats.progress, beats.latest_progress))
        if len(seen) in (2, 4):
            raise OSError("the other rank has ended")

    ended, sent = [], []

    def send(tag, now):
        sent.append((tag, now))
        raise OSError("the other rank is gone")

    monkeypatch.setattr(beats, "_exchange", exchange)
    monkeypatch.setattr(beats, "_find_failure", lambda now: failures.pop(0))
    monkeypatch.setattr(beats, "_abort_all", ended.append)
    monkeypatch.setattr(beats, "_send", send)
    beats._watch()
    stopped = [100, 100, 150, 151.1, 151.1]     # 50 s and 1.1 s longer than the interval; 0.9 s may be a busy machine
    assert [now for now, *_ in seen] == pytest.approx([101, 102.9, 153.9, 156, 157])
    for (_, *times), wanted in zip(seen, stopped, strict=True):
        assert times == pytest.approx([wanted] * 3)
    assert ended == ["rank 1 is gone"] and failures == [] and sent == [(heartbeat.GOODBYE_TAG, clock.now)]


def test_heartbeat_waits_for_receipt(monkeypatch):
    """A goodbye is noted; ages of progress are those of the rank that knows the latest."""
    beats, _ = heartbeat_of_two(monkeypatch)
    sent, letters, complete = [], [(heartbeat.HEARTBEAT_TAG, 30.0), (heartbeat.HEARTBEAT_TAG, 5.0)], [False, True, True, True]

    class Comm:
        def Isend(self, age, to, tag):
            sent.append((float(age[0]), to, tag))
            return SimpleNamespace(Test=lambda: complete.pop(0))

        def Iprobe(self, source, tag, status):
            return bool(letters)

        def Recv(self, age, source, tag, status):
            status.tag, age[0] = letters.pop(0)

    beats.comm, beats.status = Comm(), SimpleNamespace(tag=None)
    beats.last_count, beats.left, beats.sent, beats.steps = 5, None, None, SimpleNamespace(count=5)
    beats.last_heartbeat = beats.progress = beats.latest_progress = 10.0
    monkeypatch.setattr(heartbeat, "_place", lambda thread: (True, True, "there"))
    beats._exchange(100.0)
    assert sent == [(90.0, 1, heartbeat.HEARTBEAT_TAG)] and (beats.last_heartbeat, beats.latest_progress, beats.left) == (100, 95, None)
    assert (beats.waits, beats.place, beats.progress) == (True, "there", 10)
    beats._exchange(101.0)      # the first was not received
    assert len(sent) == 1 and beats.last_heartbeat == 100
    letters.append((heartbeat.GOODBYE_TAG, 50.0))
    beats._exchange(102.0)
    assert sent[1:] == [(7.0, 1, heartbeat.HEARTBEAT_TAG)] and (beats.last_heartbeat, beats.latest_progress, beats.left) == (102, 95, 102)
    beats.steps.count = 6       # a step is progress
    beats._exchange(103.0)
    assert (beats.progress, beats.latest_progress) == (103, 103)
    monkeypatch.setattr(heartbeat, "_place", lambda thread: (False, False, "here"))     # so is time outside of minicaffe, for this rank alone
    beats._exchange(104.0)
    assert (beats.progress, beats.latest_progress) == (104, 103)


@pytest.mark.parametrize("names, found", [
    ([], (False, False)), (["program"], (False, False)), (["program", "minicaffe.net.run"], (True, False)),
    (["program", "minicaffe.parallel.group"], (True, True)), (["minicaffe.solver", "their_layer"], (True, False)),
    (["minicaffe.parallel.group", "pickle"], (True, False)), (["minicaffe_of_others"], (False, False))])
def test_where_a_thread_is(names, found):
    """In minicaffe if any frame of it is; in its parallel part, where it waits for others, if the last one is."""
    if not names:       # a thread that has ended
        assert heartbeat._place(-1) == (*found, "the program")
        return
    began, lock = threading.Event(), threading.Lock()
    lock.acquire()
    call = None
    for name in reversed(names):
        scope = {"__name__": name, "began": began, "lock": lock, "call": call}
        last = "began.set()\n    lock.acquire()" if call is None else "\n    call()"
        exec(compile(f"def run():\n    {last}\n", f"{name}.py", "exec"), scope)
        call = scope["run"]
    thread = threading.Thread(target=call)
    thread.start()
    began.wait(10)
    for _ in range(1000):
        *got, where = heartbeat._place(thread.ident)
        if where == f"{names[-1]}.py:3" or not found[0]:
            break
        time.sleep(1e-3)
    lock.release()
    thread.join()
    assert (tuple(got), where) == (found, f"{names[-1]}.py:3" if found[0] else "the program")
