"""The prefetch thread: order, wrap-around, restart, every n-th record, errors, and that it always ends."""

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from records import datum

from minicaffe.data.prefetch import BatchArrays, Prefetcher
from minicaffe.data.record_batches import RecordBatches
from minicaffe.data.transform import Transformer
from minicaffe.errors import DataError, Error, FileError, OutOfMemoryError
from minicaffe.proto import caffe_pb2


def over(path, backend, batch_size, transformer, *, start=0, gap=1, step=None, **options):
    """Return a Prefetcher over the records of a database, `gap` apart, from record `start` on."""
    reader = RecordBatches(path, backend, transformer)
    return Prefetcher(reader, range(start, start + batch_size * gap, gap), step or batch_size * gap, **options)


def transformer(phase=caffe_pb2.TEST, **fields):
    return Transformer(caffe_pb2.TransformationParameter(**fields), phase, seed=3)


def numbered(count):
    return [datum(np.full((1, 2, 2), i, np.uint8), label=i) for i in range(count)]


def labels_of(prefetcher, batches):
    taken = []
    for _ in range(batches):
        data, labels = prefetcher.next()
        assert (data[:, 0, 0, 0] == labels).all()
        taken += labels.astype(int).tolist()
    return taken


@pytest.fixture
def open_prefetcher(make_db, backend):
    """Return a function that opens a Prefetcher over ten numbered records; all are closed at the end."""
    path, opened = make_db(numbered(10), backend), []

    def open_it(batch_size, **options):
        opened.append(over(path, backend, batch_size, options.pop("transformer", transformer()), **options))
        return opened[-1]

    yield open_it
    for prefetcher in opened:
        prefetcher.close()


@pytest.mark.parametrize("batch_size, depth, start, gap", [
    *((size, depth, 0, 1) for size in (1, 3, 10, 23) for depth in (1, 2, 7)), *((3, 3, start, 1) for start in (4, 9, 10, 1_000_003)),
    *((2, 3, start, gap) for start in (0, 1, 7) for gap in (2, 3, 12))])
def test_order_of_records(open_prefetcher, batch_size, depth, start, gap):
    prefetcher = open_prefetcher(batch_size, depth=depth, start=start, gap=gap)
    assert labels_of(prefetcher, 12) == [(start + i * gap) % 10 for i in range(12 * batch_size)]
    assert (prefetcher.numbers.stop, prefetcher.upcoming.start) == (start + 12 * batch_size * gap,) * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_resumed_run(make_db, pixels, dtype):
    path = make_db([datum(p, label=i) for i, p in enumerate(pixels)])
    rule = transformer(caffe_pb2.TRAIN, crop_size=3, mirror=True)
    straight = over(path, "LMDB", 4, rule, dtype=dtype)
    seen = [straight.next()[0].copy() for _ in range(4)]
    resumed = over(path, "LMDB", 4, rule, dtype=dtype, start=straight.upcoming.start)
    for _ in range(4):
        assert (straight.next()[0] == resumed.next()[0]).all()
    assert seen[0].dtype == dtype


def test_every_nth_batch(make_db):
    values = numbered(12)
    for i in (2, 5, 8, 11):
        values[i] = b"\x08"
    assert labels_of(over(make_db(values), "LMDB", 2, transformer(), step=6), 6) == [0, 1, 6, 7] * 3


def test_bad_record(make_db, backend):
    values = numbered(6)
    values[4] = b"\x08"
    prefetcher = over(make_db(values, backend), backend, 2, transformer(), start=6)
    assert labels_of(prefetcher, 2) == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(DataError, match=r"db: record 4 \(key '00000004'\): is no Datum") as caught:
            prefetcher.next()
        frame, names = caught.value.__traceback__, []
        while frame is not None:        # they would keep the values of the records, and so the database, alive
            names.append(frame.tb_frame.f_code.co_name)
            frame = frame.tb_next
        assert "next" in names and not {"run", "fill", "_fill", "load"} & set(names)


def test_sizes_that_vary_name_the_record(make_db):
    path = make_db([*numbered(3), datum(np.zeros((1, 2, 3), np.uint8))])
    prefetcher = over(path, "LMDB", 2, transformer())
    prefetcher.next()
    with pytest.raises(DataError, match=r"record 3 \(key '00000003'\): is 1 x 2 x 3, the first of the batch is 1 x 2 x 2"):
        prefetcher.next()


@pytest.mark.parametrize("error", [DataError("no device"), MemoryError("no more"), RuntimeError("no device")])
def test_database_is_closed_after_errors(make_db, monkeypatch, error):
    """While the error and the Prefetcher are still held, and however long closing takes."""
    close, closed = RecordBatches.close, []
    monkeypatch.setattr(RecordBatches, "close", lambda reader: (time.sleep(0.1), close(reader), closed.append(reader)))

    def allocate(shape, dtype):
        raise error

    prefetcher = over(make_db(numbered(3)), "LMDB", 2, transformer(), labels=False, allocate=allocate, dtype=np.float64)
    memory = isinstance(error, MemoryError)
    with pytest.raises(OutOfMemoryError if memory else type(error)) as caught:
        prefetcher.next()
    assert closed and ("no memory for a batch of shape [2, 1, 2, 2], 64 bytes (no more); make batch_size or prefetch smaller" if memory else
                       "no device") in str(caught.value)


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name.startswith("prefetch")]


def test_close(open_prefetcher):
    prefetcher = open_prefetcher(2)
    assert [(thread.name.partition(" ")[0], thread.daemon) for thread in prefetch_threads()] == [("prefetch", True)]    # a slow disk does not block the exit
    data, labels = prefetcher.next()
    time.sleep(0.05)  # the thread has filled all it may
    for _ in range(2):
        assert labels.tolist() == data[:, 0, 0, 0].tolist() == [0, 1]
        prefetcher.close()
    assert prefetch_threads() == [] and labels.tolist() == data[:, 0, 0, 0].tolist() == [0, 1]
    with pytest.raises(Error, match="was closed"):
        prefetcher.next()


@pytest.mark.parametrize("cycle", [False, True])
def test_dropping_the_prefetcher(make_db, backend, cycle):
    prefetcher = over(make_db(numbered(4), backend), backend, 2, transformer())
    prefetcher.next()
    if cycle:
        prefetcher.owner = prefetcher
    gone = weakref.ref(prefetcher)
    del prefetcher
    if cycle:
        gc.collect()
    assert gone() is None and prefetch_threads() == []


def test_interpreter_exit_does_not_hang(make_db):
    code = """
    import sys
    from minicaffe.data.prefetch import Prefetcher
    from minicaffe.data.record_batches import RecordBatches
    from minicaffe.data.transform import Transformer
    from minicaffe.proto import caffe_pb2
    kept = Prefetcher(RecordBatches(sys.argv[1], "LMDB", Transformer(caffe_pb2.TransformationParameter(), caffe_pb2.TEST)), range(2), 2)
    kept.next()
    print("end")
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(make_db(numbered(4)))], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forked_child(make_db, backend):
    path = make_db(numbered(4), backend)
    prefetcher = over(path, backend, 2, transformer())
    prefetcher.next()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(Error, match="forked"):
                prefetcher.next()
            with pytest.raises(FileError, match="used after a fork") if backend == "LEVELDB" else contextlib.nullcontext():
                assert over(path, backend, 2, transformer()).next()[1].tolist() == [0, 1]     # an LMDB can be opened again
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert prefetcher.next()[1].tolist() == [2, 3]


def test_growing_buffers(make_db):
    """One buffer is used again and again: it is allocated for larger batches only."""
    sizes, asked = [(1, 2, 2), (3, 4, 5), (1, 1, 1), (3, 5, 4), (1, 7, 9), (2, 2, 2), (1, 9, 7)], []

    def allocate(shape, dtype):
        asked.append(shape[0])
        return np.empty(shape, dtype)

    path = make_db([datum(np.full(size, i, np.uint8), label=i) for i, size in enumerate(sizes)])
    prefetcher = over(make_db(numbered(10), name="numbered"), "LMDB", 5, transformer(), depth=2, allocate=allocate)
    assert len({prefetcher.next()[0].ctypes.data for _ in range(20)}) <= 3
    assert sorted(asked) == [5] * 3 + [20] * 3      # labels and data of depth + 1 buffers
    asked.clear()
    prefetcher = over(path, "LMDB", 1, transformer(), depth=1, hold=1, labels=False, allocate=allocate)
    for i in range(21):
        data, labels = prefetcher.next()
        assert labels is None and data.shape == (1, *sizes[i % 7]) and (data == i % 7).all()
    assert sorted(asked)[-2:] == [63, 63]       # two buffers, each of which met every size
    assert len(asked) <= 8 and set(asked) <= {4, 60, 1, 63, 8}


def test_smaller_memory_is_released_first():
    made = []

    def allocate(shape, dtype):
        assert not [shape for shape, array in made if array() is not None]
        array = np.empty(shape, dtype)
        made.append((shape, weakref.ref(array)))
        return array

    buffer = BatchArrays(np.dtype("f4"), False, allocate)
    for shape in (1, 3), (2, 3), (2, 2), (4, 3):
        assert buffer.reshape(shape)[0].shape == shape
    assert [shape for shape, _ in made] == [(3,), (6,), (12,)]


def test_no_batch_after_the_end():
    """Free buffers are left as they are: filling them may take long."""
    began, filled = threading.Event(), []

    def fill(numbers, buffer):
        began.set()
        time.sleep(0.05)
        filled.append(numbers)

    prefetcher = Prefetcher(SimpleNamespace(source="slow", fill=fill, close=lambda: None), range(2), 2, depth=6)
    assert began.wait(5)
    prefetcher.close()
    assert len(filled) == 1 and prefetch_threads() == []
